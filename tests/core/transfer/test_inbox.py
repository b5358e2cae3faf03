"""What other shards hand on: names of what is refused, partitions that were replaced, and groups that are missing."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.queues.config import NAME_LENGTH_MAX, QueueConfig
from penstock.core.queues.draft import Messages
from penstock.core.queues.partition import partition_of
from penstock.core.transfer.inbox import REFUSED, refused_name
from tests.core.driver import BrokerDriver, bodies_of
from tests.core.transfer.test_outbox import SHARDS, Cluster, name_at


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_queue_for_what_a_long_name_refuses_has_a_name_of_its_own_that_fits() -> None:
    one, other = ("x" * (NAME_LENGTH_MAX - 1) + ending for ending in "ab")
    assert refused_name(one) != refused_name(other)
    assert all(
        len(refused_name(each)) <= NAME_LENGTH_MAX and refused_name(each).endswith(REFUSED) for each in (one, other)
    )


def forwarded(driver: BrokerDriver, effect: c.ForwardedMessages, *bodies: bytes, to: BrokerDriver) -> c.Taken:
    """Messages that one shard hands to another, whatever the queue there is by now."""
    here = driver.broker
    here.outbox.add_messages(to.broker.meta.shard, effect, Messages(list(bodies)), sum(map(len, bodies)))
    driver.step()
    first = here.outbox.first(to.broker.meta.shard)
    entries = driver.do(c.ReadOutbox(target=to.broker.meta.shard, after=first - 1, limit_bytes=1 << 20))
    batch = c.TakeOutbox(source=here.outbox_name, after=first - 1, up_to=entries[-1].number, entries=entries)
    taken: c.Taken = to.do(batch)
    driver.do(c.ForgetOutbox(target=to.broker.meta.shard, up_to=taken.number))
    return taken


@pytest.mark.parametrize("moved", [True, False], ids=["moved", "sent"])
@pytest.mark.parametrize("is_home", [True, False], ids=["home", "elsewhere"])
def test_messages_for_a_partition_of_a_replaced_queue_go_on_to_the_queue_of_that_name(
    cluster: Cluster, moved: bool, is_home: bool
) -> None:
    name = name_at(1 if is_home else 2)
    home = cluster[1 if is_home else 2]
    home.create(name)
    effect = c.ForwardedMessages(name, moved, due_ms=0, create=False, config=QueueConfig(), of_queue=99)
    assert forwarded(cluster[0], effect, b"a", b"b", to=cluster[1]).refused == 0
    cluster.settle()
    assert bodies_of(home.receive(9, queue=name)) == [b"a", b"b"]


def test_messages_that_were_sent_on_once_and_find_no_queue_are_put_aside(cluster: Cluster) -> None:
    name = name_at(1)
    effect = c.ForwardedMessages(name, True, due_ms=0, create=False, config=QueueConfig(), of_queue=99, sent_on=True)
    assert forwarded(cluster[0], effect, b"a", b"b", to=cluster[1]).refused == 2
    cluster.settle()
    refused = f"{name}{REFUSED}"
    assert bodies_of(cluster[partition_of(refused, SHARDS)].receive(9, queue=refused)) == [b"a", b"b"]


def test_moved_messages_make_the_queue_that_they_are_for(cluster: Cluster) -> None:
    name = name_at(1)
    made = c.ForwardedMessages(name, True, due_ms=0, create=True, config=QueueConfig(lease_ms=5_000))
    assert forwarded(cluster[0], made, b"a", to=cluster[1]).refused == 0
    assert cluster[1].broker.queues[name].config.lease_ms == 5_000
    other = name_at(1, "other")
    refused = c.ForwardedMessages(other, True, due_ms=0, create=False, config=QueueConfig())
    assert forwarded(cluster[0], refused, b"a", to=cluster[1]).refused == 1


def test_the_end_of_a_queue_takes_its_partitions_along(cluster: Cluster) -> None:
    name = name_at(0)
    info = cluster[0].create(name, partitions=2)
    cluster[1].do(c.CreateQueue(name=name, config=QueueConfig(partitions=2), part=(1, info.queue_id)))
    cluster[1].send(b"there", queue=name)
    cluster[0].do(c.DeleteQueue(name=name))
    cluster.settle()
    assert name not in cluster[1].broker.queues


def test_a_partition_of_an_older_queue_does_not_replace_that_of_a_newer_one(cluster: Cluster) -> None:
    name = name_at(0)
    older = cluster[0].create(name, partitions=2).queue_id
    cluster[0].do(c.DeleteQueue(name=name))
    newer = cluster[0].create(name, partitions=2).queue_id
    config = QueueConfig(partitions=2)
    cluster[1].do(c.CreateQueue(name=name, config=config, part=(1, newer)))
    (refusal,) = cluster[1].step(c.CreateQueue(name=name, config=config, part=(1, older)))
    assert "was created again meanwhile" in str(refusal)
    assert cluster[1].broker.queues[name].id == newer
    again = cluster[1].do(c.CreateQueue(name=name, config=config, part=(1, newer)))
    assert again.queue_id == newer
