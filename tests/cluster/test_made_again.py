"""A queue that is deleted and made again with other partitions, and a node that still knows the old one.

Two nodes in one loop, with a real link between them. `b` is made to believe what it was told of a queue for as long as
a test runs; `a` has the queue's first partition, and makes it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.cluster import catalog
from penstock.cluster.ownership.forwarder import Forwarder
from penstock.cluster.routing.placement import hashed, home_of, shards_of
from penstock.core.commands import (
    Ack,
    CommitWork,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    Once,
    OpenSession,
    PurgeQueue,
    QueueInfo,
    Receive,
    Send,
    StartRedrive,
    Subscribe,
)
from penstock.core.errors import QueueExists, QueueNotFound, QueueReplaced
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.queues.queue import Queue
from penstock.core.transfer.inbox import refused_name
from penstock.server.shard import Call
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import bodies, spans, until
from tests.cluster.routing.test_router_moves import Ticket
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair, pair

FIRST = 0
"""The shard of the queue's first partition: it is at `a`."""
NAME = next(name for name in map("q{}".format, range(100)) if home_of(name, SHARDS) == FIRST)
OTHER = next(name for name in map("other{}".format, range(100)) if home_of(name, SHARDS) == 3)
"""A queue in a shard where the first one has nothing before it is made again."""
GROUPS: list[str | None] = [f"g{number % 12}" for number in range(36)]
BODIES = [b"%d" % number for number in range(36)]
CHANGES = [(3, 2), (3, 1), (2, 4), (1, 3), (3, 3)]
"""How many partitions the queue had, and has."""

made_again = pytest.mark.parametrize(("before", "after"), CHANGES)


def fifo(partitions: int) -> QueueConfig:
    return QueueConfig(kind="fifo", content_dedup=True, partitions=partitions, max_receives=0)


class Stale(Pair):
    """`b` knows a queue that is not there any more, and not the one that is there instead."""

    queue_id = 0

    async def begin(self, before: int) -> None:
        await self.routers["a"].call(CreateQueue(name=NAME, config=fifo(before)))
        await self.routers["b"].call(DescribeQueue(name=NAME))

    async def make_again(self, after: int) -> None:
        await self.routers["a"].call(DeleteQueue(name=NAME))
        info: QueueInfo = await self.routers["a"].call(CreateQueue(name=NAME, config=fifo(after)))
        self.queue_id = info.queue_id

    def restart_forwarder(self, shard: int) -> None:
        owner = self.owners[shard]
        self.forwarders[shard] = Forwarder(self.hosts[owner].served[shard], self.routers[owner].submit_to)
        self.forwarders[shard].start()

    async def close_shard(self, shard: int) -> None:
        """Nobody serves a shard: what comes for it waits."""
        await self.forwarders.pop(shard).stop()
        await self.hosts[self.owners[shard]].release(shard)
        self.owners[shard] = ""
        self.tell()

    def open_shard(self, shard: int, owner: str) -> None:
        self.owners[shard] = owner
        self.open(shard)
        self.tell()

    def parts(self, name: str = NAME) -> dict[int, Queue]:
        """What each shard has under a name."""
        found = {
            shard: self.hosts[owner].served[shard].identity.queues.get(name)
            for shard, owner in enumerate(self.owners)
            if owner
        }
        return {shard: queue for shard, queue in found.items() if queue is not None}  # type: ignore[misc]

    def counts(self) -> int:
        return sum(queue.messages for queue in self.parts().values())

    def check_parts(self, after: int) -> None:
        """Every shard that should have a partition has it, and no other has anything of that name."""
        parts = self.parts()
        assert sorted(parts) == sorted(shards_of(NAME, after, SHARDS))
        assert {queue.id for queue in parts.values()} == {self.queue_id}

    async def check_all_is_there(self, after: int, expected: Counter[bytes] | None = None) -> None:
        """All messages are in the new queue, each in the partition of its group, in order within the group."""
        self.check_parts(after)
        got: list[bytes] = []
        while delivery := await self.take("a"):
            for run in delivery.runs:
                partition = run.first >> PARTITION_SHIFT
                for body in (run.chunk.body(index) for index in range(run.start, run.stop)):
                    group = GROUPS[int(body)]
                    assert group is not None
                    assert partition == hashed(group, after)
                    got.append(bytes(body))
        assert Counter(got) == (Counter(BODIES) if expected is None else expected)
        for group in GROUPS:
            mine = [int(body) for body in got if GROUPS[int(body)] == group]
            assert mine == sorted(mine)
        assert not self.parts(refused_name(NAME))

    async def take(self, node: str) -> Delivery | None:
        delivery: Delivery = await self.routers[node].call(Receive(queue=NAME, limit=100, wait_ms=0))
        if not delivery.runs:
            return None
        await self.routers["a"].call(Ack(queue=NAME, spans=spans(delivery)))
        return delivery


@pytest.fixture(autouse=True)
def what_is_known_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "FRESH_S", 3_600.0)
    monkeypatch.setattr(catalog, "KEPT_S", 3_600.0)


@asynccontextmanager
async def stale(directory: Path, before: int) -> AsyncIterator[Stale]:
    made = Stale(directory)
    await made.start()
    try:
        await made.begin(before)
        yield made
    finally:
        await made.stop()


def send(low: int = 0, high: int = len(BODIES), **more: object) -> Send:
    return Send(queue=NAME, bodies=BODIES[low:high], groups=GROUPS[low:high], **more)  # type: ignore[arg-type]


# -- sending --


@pytest.mark.parametrize("create", [True, False])
@made_again
@in_loop
async def test_groups_go_to_the_partitions_of_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int, create: bool
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        for low in range(0, len(BODIES), 4):
            assert (await made.routers["b"].call(send(low, low + 4, create=create))).count == 4
        await made.check_all_is_there(after)


@pytest.mark.parametrize("way", ["send", "work"])
@pytest.mark.parametrize("node", NAMES)
@in_loop
async def test_groups_that_are_sent_while_the_queue_is_made_are_in_their_partitions(
    tmp_path: Path, node: str, way: str, breaking: pytest.MonkeyPatch
) -> None:
    """The first partition comes to be after the sender has looked, and before the send gets there."""
    async with stale(tmp_path, 1) as made:
        await made.routers["a"].call(DeleteQueue(name=NAME))
        made.routers["b"].catalog.forget(NAME)
        served = made.hosts["a"].served[FIRST]
        put, created = served.put, list[Call]()

        def put_behind(call: Call, caller: object = None) -> None:
            if isinstance(call.command, Send | CommitWork) and not created:
                created.append(served.submit(CreateQueue(name=NAME, config=fifo(3)), lambda _: None))
            put(call, caller)

        breaking.setattr(served, "put", put_behind)
        first = send(0, 12, config=fifo(1))
        await made.routers[node].call(first if way == "send" else CommitWork(acks=[], sends=[first]))
        made.queue_id = (await made.routers["a"].call(CreateQueue(name=NAME, config=fifo(3)))).queue_id
        assert created
        await made.routers[node].call(send(12))
        await until(lambda: made.counts() == len(BODIES))
        await made.check_all_is_there(3)


@made_again
@in_loop
async def test_a_batch_for_all_partitions_is_in_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        sent = await made.routers["b"].call(send(once=Once("client", 1)))
        assert (sent.queue_id, sent.count) == (made.queue_id, len(BODIES))
        again = await made.routers["b"].call(send(once=Once("client", 1)))
        assert [again.sequence(at) for at in range(36)] == [sent.sequence(at) for at in range(36)]
        await made.check_all_is_there(after)


@in_loop
async def test_a_named_batch_that_comes_again_for_the_next_queue_is_sent_as_a_whole(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        await made.routers["a"].call(send(once=Once("client", 1)))
        await made.make_again(2)
        await made.routers["a"].call(send(once=Once("client", 1)))
        await made.check_all_is_there(2)


@made_again
@in_loop
async def test_messages_without_a_group_are_in_the_queue_that_is_there(tmp_path: Path, before: int, after: int) -> None:
    async with pair(tmp_path) as made:
        a, b = made.routers["a"], made.routers["b"]
        await a.call(CreateQueue(name=NAME, config=QueueConfig(partitions=before)))
        await b.call(DescribeQueue(name=NAME))
        await a.call(DeleteQueue(name=NAME))
        await a.call(CreateQueue(name=NAME, config=QueueConfig(partitions=after)))
        for body in BODIES:
            await b.call(Send(queue=NAME, bodies=[body]))
        got: list[bytes] = []
        while some := bodies(await a.call(Receive(queue=NAME, limit=100, wait_ms=0))):
            got += some
        assert sorted(got) == sorted(BODIES)


@pytest.mark.parametrize("mark", [None, ("work", 1)])
@made_again
@in_loop
async def test_what_a_unit_of_work_sends_is_in_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int, mark: tuple[str, int] | None
) -> None:
    async with stale(tmp_path, before) as made:
        await made.routers["a"].call(Send(queue=OTHER, bodies=[b"task"]))
        await made.make_again(after)
        task = await made.routers["b"].call(Receive(queue=OTHER))
        work = CommitWork(acks=[Ack(queue=OTHER, spans=spans(task))], sends=[send(0, 20), send(20, 36)], mark=mark)
        await made.routers["b"].call(work)
        await until(lambda: made.counts() == len(BODIES))
        await made.check_all_is_there(after)


@made_again
@in_loop
async def test_what_is_on_its_way_when_the_queue_is_made_again_gets_to_its_partition(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        work = CommitWork(acks=[], sends=[Send(queue=OTHER, bodies=[b"done"]), send()])
        await made.forwarders[3].stop()
        assert (await made.routers["a"].call(work))[1].is_on_its_way
        await made.make_again(after)
        made.restart_forwarder(3)
        await until(lambda: made.counts() == len(BODIES))
        await made.check_all_is_there(after)


@in_loop
async def test_a_partition_that_was_never_made_is_made_before_work_sends_to_it(tmp_path: Path) -> None:
    async with stale(tmp_path, 1) as made:
        await made.routers["a"].call(DeleteQueue(name=NAME))
        info = await made.routers["a"].ask(FIRST, CreateQueue(name=NAME, config=fifo(3)))  # and then a crash
        made.queue_id = info.queue_id
        await made.routers["b"].call(CommitWork(acks=[], sends=[send()]))
        await until(lambda: made.counts() == len(BODIES))
        await made.check_all_is_there(3)


@in_loop
async def test_a_queue_that_is_gone_is_made_by_a_send_or_said_to_be_gone(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        await made.routers["a"].call(DeleteQueue(name=NAME))
        for command in (send(create=False), CommitWork(acks=[], sends=[send(create=False)]), Receive(queue=NAME)):
            with pytest.raises(QueueNotFound):
                await made.routers["b"].call(command)
        assert made.parts() == {}
        await made.routers["b"].call(send(config=fifo(2)))
        made.queue_id = made.parts()[FIRST].id
        await made.check_all_is_there(2)


# -- receiving --


@made_again
@in_loop
async def test_a_receive_finds_what_is_in_any_partition_of_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        await made.routers["a"].call(send())
        got: list[bytes] = []
        while delivery := await made.take("b"):
            assert delivery.queue_id == made.queue_id
            got += bodies(delivery)
        assert sorted(got) == sorted(BODIES)


@made_again
@in_loop
async def test_a_receive_waits_in_all_partitions_of_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        waiting = asyncio.create_task(made.routers["b"].call(Receive(queue=NAME, wait_ms=3_600_000)))
        await until(lambda: [len(part.channels["main"].wait_queue) for part in made.parts().values()] == [1] * after)
        last = next(at for at, group in enumerate(GROUPS) if hashed(str(group), after) == after - 1)
        await made.routers["a"].call(send(last, last + 1))
        assert bodies(await waiting) == [BODIES[last]]


@pytest.mark.parametrize("before", [1, 3])
@in_loop
async def test_a_receive_that_waits_is_told_when_its_queue_is_made_again(tmp_path: Path, before: int) -> None:
    async with stale(tmp_path, before) as made:
        waiting = asyncio.create_task(made.routers["b"].call(Receive(queue=NAME, wait_ms=3_600_000)))
        await until(lambda: [len(part.channels["main"].wait_queue) for part in made.parts().values()] == [1] * before)
        await made.make_again(2)
        with pytest.raises(QueueNotFound):
            await waiting


@made_again
@in_loop
async def test_a_subscription_stands_in_all_partitions_of_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        b, ticket = made.routers["b"], Ticket()
        session = await b.call(OpenSession(name="b's client", bound=True))
        await b.call(Subscribe(queue=NAME, credit=1_000, session=session, ticket=ticket))
        await made.routers["a"].call(send())
        await until(lambda: sorted(ticket.bodies) == sorted(BODIES))


# -- queues and channels --


@made_again
@in_loop
async def test_a_queue_that_is_deleted_by_one_who_knew_the_old_one_leaves_nothing(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        await made.routers["b"].call(DeleteQueue(name=NAME))
        assert made.parts() == {}


@made_again
@in_loop
async def test_channels_come_and_go_in_all_partitions_of_the_queue_that_is_there(
    tmp_path: Path, before: int, after: int
) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        await made.routers["b"].call(CreateChannel(queue=NAME, channel="more"))
        assert ["more" in part.channels for part in made.parts().values()] == [True] * after
        await made.make_again(before)
        await made.routers["b"].call(DeleteChannel(queue=NAME, channel="main"))
        assert ["main" in part.channels for part in made.parts().values()] == [False] * before


@made_again
@in_loop
async def test_all_partitions_of_the_queue_that_is_there_are_purged(tmp_path: Path, before: int, after: int) -> None:
    async with stale(tmp_path, before) as made:
        await made.make_again(after)
        await made.routers["a"].call(send())
        assert await made.routers["b"].call(PurgeQueue(name=NAME)) == len(BODIES)
        assert made.counts() == 0
        assert (await made.routers["b"].call(StartRedrive(queue=NAME, target=OTHER))).queue == NAME


@in_loop
async def test_partitions_go_with_the_first_one_although_whoever_deletes_them_stops_there(tmp_path: Path) -> None:
    async with stale(tmp_path, 4) as made:
        await made.routers["a"].call(send())
        await made.routers["a"].ask(FIRST, DeleteQueue(name=NAME))  # and then a crash
        await until(lambda: not made.parts())


@in_loop
async def test_a_deletion_that_comes_late_takes_nothing_of_the_next_queue(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        await made.forwarders[FIRST].stop()
        await made.make_again(3)
        await made.routers["b"].call(send())
        made.restart_forwarder(FIRST)
        await until(lambda: not made.hosts["a"].served[FIRST].identity.outbox_targets())
        await made.check_all_is_there(3)


@in_loop
async def test_a_partition_that_is_made_too_late_replaces_none_of_the_next_queue(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        old_id = made.parts()[FIRST].id
        await made.make_again(3)
        await made.routers["a"].call(send())
        late = CreateQueue(name=NAME, config=fifo(3), part=(1, old_id))
        with pytest.raises(QueueReplaced):
            await made.routers["b"].ask(shards_of(NAME, 3, SHARDS)[1], late)
        await made.check_all_is_there(3)


@in_loop
async def test_a_queue_is_there_until_all_of_its_partitions_can_be_deleted(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        await made.close_shard(2)
        deleting = asyncio.create_task(made.routers["b"].call(DeleteQueue(name=NAME)))
        await until(lambda: sorted(made.parts()) == [0])
        with pytest.raises(QueueExists):
            await made.routers["a"].call(CreateQueue(name=NAME, config=fifo(2)))
        made.open_shard(2, "a")
        await deleting
        assert made.parts() == {}


@in_loop
async def test_a_deletion_is_for_the_queue_that_was_meant(tmp_path: Path) -> None:
    async with stale(tmp_path, 3) as made:
        old_id = made.parts()[FIRST].id
        await made.make_again(3)
        for shard in shards_of(NAME, 3, SHARDS):
            with pytest.raises(QueueReplaced):
                await made.routers["b"].ask(shard, DeleteQueue(name=NAME, of_queue=old_id))
        made.check_parts(3)


@in_loop
async def test_a_partition_that_an_older_queue_has_left_gets_nothing(tmp_path: Path) -> None:
    async with stale(tmp_path, 2) as made:
        await made.forwarders[FIRST].stop()
        await made.routers["a"].ask(FIRST, DeleteQueue(name=NAME))  # and then a crash
        config = QueueConfig(partitions=2)
        info = await made.routers["a"].ask(FIRST, CreateQueue(name=NAME, config=config))  # and then another one
        assert {part.id for part in made.parts().values()} != {info.queue_id}
        await made.move(1)  # to the node that has the first one, and knows
        for body in BODIES:
            assert (await made.routers["a"].call(Send(queue=NAME, bodies=[body]))).queue_id == info.queue_id
        assert {part.id for part in made.parts().values()} == {info.queue_id}
        assert made.counts() == len(BODIES)


@in_loop
async def test_a_partition_that_is_made_when_its_queue_is_gone_goes_again(tmp_path: Path) -> None:
    made = Stale(tmp_path)
    await made.start()
    try:
        await made.forwarders[FIRST].stop()  # as if the deletion had come before
        await made.close_shard(2)
        making = asyncio.create_task(made.routers["b"].call(CreateQueue(name=NAME, config=fifo(3))))
        await until(lambda: sorted(made.parts()) == [0, 1])
        await made.routers["a"].ask(FIRST, DeleteQueue(name=NAME))
        made.open_shard(2, "a")
        await making
        assert made.parts() == {}
    finally:
        await made.stop()


@in_loop
async def test_whoever_makes_a_queue_that_is_deleted_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        a, b = made.routers["a"], made.routers["b"]
        shards = [made.hosts[made.owners[shard]].served[shard].identity for shard in range(SHARDS)]
        for _ in range(10):
            making = asyncio.create_task(b.call(CreateQueue(name=NAME, config=fifo(4))))
            await until(lambda: NAME in shards[FIRST].queues)
            await asyncio.gather(a.call(DeleteQueue(name=NAME)), making)
            await until(lambda: not any(shard.outbox_targets() for shard in shards))
            assert [NAME in shard.queues for shard in shards] == [False] * SHARDS
