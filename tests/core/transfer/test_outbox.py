"""Effects in other shards: written with their cause, done once, and never in the way of each other."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from penstock.core import commands as c
from penstock.core.errors import (
    InvalidName,
    InvalidRequest,
    MarkMoved,
    MessageTooLarge,
    QueueNotFound,
    StoreDamaged,
    WorkRefused,
)
from penstock.core.handlers.once import Marks
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.origin import Origin
from penstock.core.queues.partition import partition_of
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.chunk import PackedBodies
from penstock.core.transfer.outbox import Outbox
from tests.core.driver import MINUTE_MS, SECOND_MS, BrokerDriver, bodies_of, calls_of

SHARDS = 3


def name_at(shard: int, stem: str = "q", ending: str = "") -> str:
    """The first name of a queue that lives in a shard."""
    return next(name for number in count() if partition_of(name := f"{stem}{number}{ending}", SHARDS) == shard)


def queue_and_dead_letters(at: int, dead_at: int, stem: str = "q") -> str:
    """A name in one shard, whose own dead-letter queue is in another."""
    names = (f"{stem}{number}" for number in count())
    return next(
        name for name in names if partition_of(name, SHARDS) == at and partition_of(f"{name}.dead", SHARDS) == dead_at
    )


class Cluster:
    """Three drivers, and a forwarder that is told what to do."""

    def __init__(self) -> None:
        self.drivers = [BrokerDriver(shard=shard, shards=SHARDS) for shard in range(SHARDS)]

    def __getitem__(self, shard: int) -> BrokerDriver:
        return self.drivers[shard]

    def batch(self, source: int, target: int, after: int | None = None, limit_bytes: int = 1 << 22) -> c.TakeOutbox:
        driver = self.drivers[source]
        after = driver.broker.outbox.first(target) - 1 if after is None else after
        entries = driver.do(c.ReadOutbox(target=target, after=after, limit_bytes=limit_bytes))
        return c.TakeOutbox(
            source=driver.broker.outbox_name,
            after=after,
            up_to=entries[-1].number if entries else after,
            entries=entries,
        )

    def forward(self, source: int, target: int) -> c.Taken:
        batch = self.batch(source, target)
        taken: c.Taken = self.drivers[target].do(batch)
        self.drivers[source].do(c.ForgetOutbox(target=target, up_to=taken.number))
        return taken

    def settle(self) -> list[c.Taken]:
        """Forward all there is, over as many hops as it takes."""
        taken = []
        while waiting := [
            (source, target) for source in range(SHARDS) for target in self.drivers[source].broker.outbox_targets()
        ]:
            taken += [self.forward(*pair) for pair in waiting]
        return taken


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def die(driver: BrokerDriver, queue: str, *bodies: bytes, **settings: object) -> None:
    """Messages of a queue are received and released until they are dead."""
    if queue not in driver.broker.queues:
        driver.create(queue, max_receives=1, **settings)
    driver.send(*bodies, queue=queue)
    driver.fail(1, queue=queue, error="no good")


def origins_of(delivery: c.Delivery) -> list[Origin]:
    found = [run.chunk.origin(index) for run in delivery.runs for index in range(run.start, run.stop)]
    return [Origin.decode(data) for data in found if data is not None]


# -- dead letters --


def test_dead_letters_reach_a_queue_in_another_shard(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a", b"b")
    assert cluster[0].broker.outbox_targets() == {1: 1}, "one entry for the run"
    assert f"{name}.dead" not in cluster[0].broker.queues
    cluster.settle()
    delivery = cluster[1].receive(10, queue=f"{name}.dead")
    assert bodies_of(delivery) == [b"a", b"b"]
    first = origins_of(delivery)[0]
    assert (first.queue, first.sequence, first.attempts) == (name, 0, 1)
    assert first.failures[0].error == "no good"
    assert first.id == cluster[0].broker.message_id(cluster[0].broker.queues[name].id, 0)


def test_a_dead_letter_queue_of_this_shard_is_used_here(cluster: Cluster) -> None:
    die(cluster[0], queue_and_dead_letters(0, 0), b"a")
    assert not cluster[0].broker.outbox_targets()


def test_a_dead_letter_queue_that_is_here_is_used_wherever_its_name_belongs(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    cluster[0].create(f"{name}.dead")
    die(cluster[0], name, b"a")
    assert cluster[0].stats(f"{name}.dead").messages == 1


def test_a_dead_letter_queue_is_created_of_the_kind_and_for_the_sizes_of_its_source(cluster: Cluster) -> None:
    name = next(
        name
        for number in count()
        if partition_of(name := f"q{number}.fifo", SHARDS) == 0 and partition_of(f"q{number}.dead.fifo", SHARDS) == 1
    )
    driver = cluster[0]
    driver.create(name, kind="fifo", max_receives=1, message_bytes_max=77)
    driver.send_fifo("g", b"a", b"b", queue=name)
    driver.fail(1, queue=name)
    cluster.settle()
    info = cluster[1].do(c.DescribeQueue(name=name.replace(".fifo", ".dead.fifo")))
    assert (info.config.kind, info.config.message_bytes_max, info.config.max_receives) == ("fifo", 77, 0)


def test_dead_letters_with_dedup_ids_that_were_there_before_are_not_lost(cluster: Cluster) -> None:
    driver, name = cluster[0], name_at(0, ending=".fifo")
    dead = name_at(1, "d", ".fifo")
    cluster[1].create(dead, kind="fifo")
    driver.create(name, kind="fifo", max_receives=1, dead_letter=dead)
    for _ in range(2):
        driver.send_fifo("g", b"same", queue=name)
        driver.fail(1, queue=name)
        driver.advance(6 * MINUTE_MS)
    cluster.settle()
    assert cluster[1].stats(dead).messages == 2


def test_dead_letters_of_one_step_are_one_entry_however_they_fail(cluster: Cluster) -> None:
    driver, name = cluster[0], queue_and_dead_letters(0, 1)
    driver.create(name, max_receives=1)
    driver.send(*(b"%d" % number for number in range(50)), queue=name)
    deliveries = [driver.receive(1, queue=name) for _ in range(50)]
    driver.step(*(c.Release(queue=name, spans=delivery.spans()) for delivery in deliveries))
    assert driver.broker.outbox_targets() == {1: 1}
    cluster.settle()
    assert bodies_of(cluster[1].receive(100, queue=f"{name}.dead")) == [b"%d" % number for number in range(50)]


def test_large_runs_are_cut_into_entries_of_the_size_of_a_chunk(cluster: Cluster) -> None:
    driver, name = cluster[0], name_at(1)
    driver.do(
        c.CommitWork(
            acks=[],
            sends=[
                c.Send(queue=name, bodies=PackedBodies.even(b"12" * 5_000, 2)),
                c.Send(queue=name, bodies=[b"x" * (1 << 20)] * 5, attributes=[b"a"] * 5),
            ],
        )
    )
    assert driver.broker.outbox_targets() == {1: 3}
    cluster[1].create(name, message_bytes_max=1 << 21)
    cluster.settle()
    assert cluster[1].stats(name).messages == 5_005


def test_entries_are_read_in_pieces(cluster: Cluster) -> None:
    driver, name = cluster[0], queue_and_dead_letters(0, 1)
    for number in range(5):
        die(driver, name, b"%d" % number * 1_000)
    batch = cluster.batch(0, 1, limit_bytes=3_000)
    assert [entry.number for entry in batch.entries] == [0, 1]
    assert len(cluster.batch(0, 1, limit_bytes=1).entries) == 1, "one comes in any case"


# -- once --


def test_a_batch_that_comes_twice_is_done_once(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a")
    batch = cluster.batch(0, 1)
    assert cluster[1].do(batch) == c.Taken(0, True)
    assert cluster[1].do(batch) == c.Taken(0, False)
    cluster[1].reopen()
    assert cluster[1].do(batch) == c.Taken(0, False)
    assert cluster[1].stats(f"{name}.dead").messages == 1


def test_a_batch_out_of_turn_does_nothing_and_is_told_where_the_mark_is(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a")
    die(cluster[0], name, b"b")
    assert cluster[1].do(cluster.batch(0, 1, after=0)) == c.Taken(-1, False)
    first = cluster.batch(0, 1, limit_bytes=1)
    assert cluster[1].do(first) == c.Taken(0, True)
    assert cluster[1].do(cluster.batch(0, 1, after=-1)) == c.Taken(0, False), "it overlaps with what was done"
    assert cluster[1].do(cluster.batch(0, 1, after=0)) == c.Taken(1, True)
    assert bodies_of(cluster[1].receive(9, queue=f"{name}.dead")) == [b"a", b"b"]


def test_what_is_told_of_a_mark_is_committed_first(cluster: Cluster) -> None:
    die(cluster[0], queue_and_dead_letters(0, 1), b"a")
    batch = cluster.batch(0, 1)
    cluster[1].do(batch)
    broker = cluster[1].broker
    broker.handle(batch, cluster[1].now_ms)
    assert broker.must_commit


def test_numbers_go_on_after_everything_was_forgotten_and_the_store_opened_again(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a")
    cluster.settle()
    assert not cluster[0].store.list_chunks(keys.queue_chunks(keys.OUTBOX_QUEUES | 1), b"", 10), "nothing is left of it"
    cluster[0].reopen()
    die(cluster[0], name, b"b")
    assert [entry.number for entry in cluster.batch(0, 1).entries] == [1]
    cluster.settle()
    assert cluster[1].stats(f"{name}.dead").messages == 2


def test_a_source_whose_store_is_new_is_another_one(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a")
    cluster.settle()
    cluster.drivers[0] = BrokerDriver(shard=0, shards=SHARDS, now_ms=cluster[0].now_ms + 1)
    die(cluster[0], name, b"b")
    assert cluster.forward(0, 1).done
    assert bodies_of(cluster[1].receive(9, queue=f"{name}.dead")) == [b"a", b"b"]


def test_a_target_whose_store_is_new_gets_what_is_left(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a")
    cluster.settle()
    cluster.drivers[1] = BrokerDriver(shard=1, shards=SHARDS)
    die(cluster[0], name, b"b")
    taken = cluster[1].do(cluster.batch(0, 1))
    assert taken == c.Taken(-1, False)
    assert cluster[1].do(cluster.batch(0, 1, after=-1)) == c.Taken(1, True)


def test_marks_of_outboxes_are_never_forgotten_and_are_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.handlers.once.NAMES_MAX", 2)
    driver = BrokerDriver(shard=0, shards=2)
    batch = c.TakeOutbox(source="1 5", after=-1, up_to=7, entries=[])
    driver.do(batch)
    for number in range(5):
        driver.do(c.CommitWork(acks=[], sends=[], mark=(f"m{number}", 1)))
    driver.reopen()
    assert driver.do(batch) == c.Taken(7, False)
    assert driver.do(c.LastMark(name="1 5")) == -1


def test_marks_that_are_restored_are_as_they_were() -> None:
    assert Marks().last_of_outbox("0 0") == -1


@pytest.mark.parametrize(("source", "after", "up_to"), [("", -1, 0), ("x" * 65, -1, 0), ("0 0", 3, 3), ("0 0", 3, 2)])
def test_a_batch_that_makes_no_sense_is_refused(cluster: Cluster, source: str, after: int, up_to: int) -> None:
    with pytest.raises(InvalidRequest, match="no entries of outbox"):
        cluster[0].do(c.TakeOutbox(source=source, after=after, up_to=up_to, entries=[]))


# -- the signal --


def test_whoever_forwards_is_told_of_new_entries_once_and_again_after_opening(cluster: Cluster) -> None:
    driver = cluster[0]
    assert driver.broker.take_outbox_targets() == []
    die(driver, queue_and_dead_letters(0, 1), b"a")
    die(driver, queue_and_dead_letters(0, 2, "r"), b"b")
    assert driver.broker.take_outbox_targets() == [1, 2]
    assert driver.broker.take_outbox_targets() == []
    driver.reopen()
    assert driver.broker.take_outbox_targets() == [1, 2]
    cluster.settle()
    driver.reopen()
    assert driver.broker.take_outbox_targets() == []


def test_the_age_of_the_oldest_entry_is_known(cluster: Cluster) -> None:
    driver, name = cluster[0], queue_and_dead_letters(0, 1)
    outbox: Outbox = driver.broker.outbox
    die(driver, name, b"a")
    first_ms = driver.now_ms
    driver.advance(SECOND_MS)
    die(driver, name, b"b")
    assert outbox.oldest_ms(1) == first_ms
    driver.reopen()
    assert driver.broker.outbox.oldest_ms(1) == first_ms
    driver.do(c.ForgetOutbox(target=1, up_to=0))
    assert driver.broker.outbox.oldest_ms(1) == first_ms + SECOND_MS
    driver.do(c.ForgetOutbox(target=1, up_to=1))
    assert driver.broker.outbox.oldest_ms(1) is None


def test_forgetting_what_is_not_there_does_nothing(cluster: Cluster) -> None:
    assert cluster[0].do(c.ForgetOutbox(target=2, up_to=10)) == 0
    assert cluster[0].do(c.ReadOutbox(target=2, after=-1)) == []


# -- redrives --


def test_a_redrive_brings_messages_back_to_a_queue_in_another_shard(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"a", b"b", b"c")
    cluster.settle()
    cluster[1].do(c.StartRedrive(queue=f"{name}.dead"))
    cluster[1].advance(SECOND_MS)
    assert cluster[1].broker.outbox_targets() == {0: 1}
    cluster.settle()
    assert bodies_of(cluster[0].receive(9, queue=name)) == [b"a", b"b", b"c"]
    assert cluster[1].stats(f"{name}.dead").messages == 0


def test_a_redrive_keeps_the_priority_of_a_message_over_shards(cluster: Cluster) -> None:
    driver, name = cluster[0], queue_and_dead_letters(0, 1)
    driver.create(name, max_receives=1)
    driver.send(b"urgent", queue=name, priority=7)
    driver.fail(1, queue=name)
    cluster.settle()
    cluster[1].do(c.StartRedrive(queue=f"{name}.dead"))
    cluster[1].advance(SECOND_MS)
    driver.send(b"usual", queue=name, priority=3)
    cluster.settle()
    driver.send(b"more urgent", queue=name, priority=8)
    order = [bodies_of(driver.receive(1, queue=name))[0] for _ in range(3)]
    local = BrokerDriver()
    local.create("q")
    for body, priority in ((b"urgent", 7), (b"usual", 3), (b"more urgent", 8)):
        local.send(body, priority=priority)
    assert order == [bodies_of(local.receive(1))[0] for _ in range(3)]


def test_moved_messages_go_to_the_partition_of_their_group(cluster: Cluster) -> None:
    name = name_at(0, "p")
    config = QueueConfig(partitions=3)
    info = cluster[0].do(c.CreateQueue(name=name, config=config))
    for shard in (1, 2):
        cluster[shard].do(c.CreateQueue(name=name, config=config, part=(shard, info.queue_id)))
    dead = name_at(1, "d")
    groups = [f"g{number}" for number in range(12)]
    cluster[1].create(dead)
    cluster[1].do(c.Send(queue=dead, bodies=[group.encode() for group in groups] + [b"none"], groups=[*groups, None]))
    # The redrive starts where a partition is: the messages have to leave it for the others.
    cluster[1].do(c.StartRedrive(queue=dead, target=name))
    cluster[1].advance(SECOND_MS)
    cluster.settle()
    for shard in range(3):
        found = bodies_of(cluster[shard].receive(100, queue=name))
        expected = [group.encode() for group in groups if partition_of(group, 3) == shard]
        assert sorted(found) == sorted(expected + ([b"none"] if shard == 1 else []))


# -- units of work --


def test_a_unit_of_work_sends_to_other_shards_when_it_commits(cluster: Cluster) -> None:
    here, away = name_at(0), name_at(1)
    cluster[0].create(here)
    cluster[0].send(b"task", queue=here)
    taken = cluster[0].receive(queue=here)
    replies = cluster[0].do(
        c.CommitWork(
            acks=[c.Ack(queue=here, spans=taken.spans())],
            sends=[
                c.Send(queue=away, bodies=[b"one", b"two"], attributes=[b"x", None]),
                c.Send(queue=here, bodies=[b"next"]),
            ],
        )
    )
    assert (replies[0].queue_id, replies[0].first, replies[0].count, replies[0].is_on_its_way) == (0, -1, 2, True)
    assert [replies[0].sequence(index) for index in range(2)] == [-1, -1]
    assert (replies[1].first, replies[1].is_on_its_way) == (1, False)
    cluster.settle()
    delivery = cluster[1].receive(9, queue=away)
    assert bodies_of(delivery) == [b"one", b"two"]
    assert delivery.runs[0].chunk.attributes(0) == b"x"


def test_a_unit_of_work_that_is_refused_leaves_nothing_in_the_outbox(cluster: Cluster) -> None:
    here, away = name_at(0), name_at(1)
    cluster[0].create(here)
    send = c.Send(queue=away, bodies=[b"x"])
    with pytest.raises(WorkRefused):
        cluster[0].do(c.CommitWork(acks=[c.Ack(queue=here, spans=[c.Span(0, 0, 1)])], sends=[send]))
    with pytest.raises(InvalidRequest):
        cluster[0].do(c.CommitWork(acks=[], sends=[send, c.Send(queue=name_at(2), bodies=[b"x"], priority=99)]))
    assert cluster[0].do(c.CommitWork(acks=[], sends=[send], check_only=True)) == []
    assert not cluster[0].broker.outbox_targets()


def test_a_delay_counts_from_the_commit_and_not_from_the_arrival(cluster: Cluster) -> None:
    away = name_at(1)
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=away, bodies=[b"x"], delay_ms=10 * SECOND_MS)]))
    cluster[1].advance(4 * SECOND_MS)
    cluster.settle()
    cluster[1].advance(5 * SECOND_MS)
    assert cluster[1].receive(queue=away).count == 0
    cluster[1].advance(1 * SECOND_MS)
    assert cluster[1].receive(queue=away).count == 1


def test_sends_without_a_delay_get_that_of_their_queue(cluster: Cluster) -> None:
    away = name_at(1)
    cluster[1].create(away, delay_ms=10 * SECOND_MS)
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=away, bodies=[b"x"])]))
    cluster.settle()
    assert cluster[1].receive(queue=away).count == 0
    cluster[1].advance(10 * SECOND_MS)
    assert cluster[1].receive(queue=away).count == 1


def test_dedup_of_a_fifo_queue_works_over_shards(cluster: Cluster) -> None:
    away = name_at(1, ending=".fifo")
    cluster[1].create(away, kind="fifo", throughput_per_second=1)
    send = c.Send(queue=away, bodies=[b"x"], groups=["g"], dedup_ids=["same"])
    other = c.Send(queue=away, bodies=[b"y"], groups=["g"], dedup_ids=["other"])
    cluster[0].do(c.CommitWork(acks=[], sends=[send, other]))
    cluster[0].do(c.CommitWork(acks=[], sends=[send]))
    assert [taken.refused for taken in cluster.settle()] == [0], "a rate does not keep out what is committed"
    assert cluster[1].stats(away).messages == 2


def test_acks_in_another_shard_are_held_and_then_done(cluster: Cluster) -> None:
    away = name_at(1)
    cluster[1].create(away, lease_ms=5 * SECOND_MS)
    cluster[1].send(b"a", b"b", queue=away)
    taken = cluster[1].receive(2, queue=away)
    ack = c.Ack(queue=away, spans=taken.spans())
    assert cluster[1].do(c.HoldForWork(acks=[ack])).count == 2
    cluster[1].reopen(after_ms=30 * SECOND_MS)
    assert cluster[1].counts(away) == (0, 2, 0), "the hold outlasts the lease, and a restart"
    assert cluster[0].do(c.CommitWork(acks=[ack], sends=[])) == []
    assert [taken.stale for taken in cluster.settle()] == [0]
    assert cluster[1].counts(away) == (0, 0, 0)
    assert cluster[1].stats(away).messages == 0


def test_what_is_held_stays_held_when_its_session_ends(cluster: Cluster) -> None:
    away = name_at(1)
    driver = cluster[1]
    driver.create(away)
    driver.send(b"a", b"b", queue=away)
    session = driver.do(c.OpenSession(name="worker"))
    driver.do(c.Subscribe(queue=away, session=session, credit=1, in_flight=True, ticket="push"))
    (pushed,) = driver.woken["push"]
    ack = c.Ack(queue=away, spans=pushed.spans())
    driver.do(c.HoldForWork(acks=[ack]))
    assert driver.take_woken("push") == [b"a", b"b"], "what is held for work does not count against the session"
    cluster[0].do(c.CommitWork(acks=[ack], sends=[]))
    assert driver.do(c.EndSession(session=session)) == 1, "it holds the other one alone"
    assert bodies_of(driver.receive(9, queue=away)) == [b"b"]
    assert cluster.forward(0, 1) == c.Taken(0, True, stale=0)
    assert driver.counts(away) == (0, 1, 0)


def test_what_is_held_cannot_be_released_until_it_is_let_go(cluster: Cluster) -> None:
    """A client that never heard of its commit rolls back; the ack is on its way."""
    away = name_at(1)
    driver = cluster[1]
    driver.create(away, lease_ms=5 * SECOND_MS)
    driver.send(b"a", b"b", b"c", queue=away)
    ack = c.Ack(queue=away, spans=[c.Span(0, 1, 1)])
    taken = driver.receive(3, queue=away)
    driver.do(c.HoldForWork(acks=[ack]))
    assert driver.release(taken).count == 1, "one was not held"
    assert driver.do(c.Extend(queue=away, spans=ack.spans, lease_ms=SECOND_MS)).count == 2
    assert driver.do(c.Extend(queue=away, spans=ack.spans, lease_ms=0)).count == 0
    driver.reopen(after_ms=50 * SECOND_MS)
    assert driver.counts(away) == (1, 2, 0), "neither a heartbeat nor a restart shortens a hold"
    assert driver.do(c.HoldForWork(acks=[ack], let_go=True)).count == 2
    assert driver.do(c.HoldForWork(acks=[ack], let_go=True)).count == 0
    assert driver.release(taken).count == 2
    assert driver.counts(away) == (3, 0, 0)


def test_what_one_unit_of_work_holds_no_other_one_can_hold_ack_or_let_go(cluster: Cluster) -> None:
    """Two clients have a message on the same attempt: the first one's lease was not written when the store crashed."""
    away, other = name_at(1), name_at(1, "other")
    driver = cluster[1]
    driver.create(away, lease_ms=5 * SECOND_MS)
    driver.send(b"a", b"b", queue=away)
    taken = driver.receive(2, queue=away)
    ack = c.Ack(queue=away, spans=[c.Span(0, 0, 1)])
    assert driver.do(c.HoldForWork(acks=[ack], unit=7)).count == 1
    assert driver.do(c.HoldForWork(acks=[ack], unit=7)).count == 1, "the same one, tried again"
    for _ in range(2):
        with pytest.raises(WorkRefused, match="no longer belong to this unit of work"):
            driver.do(c.HoldForWork(acks=[ack], unit=8))
        with pytest.raises(WorkRefused, match="no longer belong to this unit of work"):
            driver.do(c.CommitWork(acks=[ack], sends=[c.Send(queue=other, bodies=[b"x"])]))
        assert driver.do(c.HoldForWork(acks=[ack], unit=8, let_go=True)).count == 0
        assert driver.do(c.GiveBack(queue=away, spans=ack.spans)).count == 0
        driver.reopen()
    assert driver.release(taken).count == 1, "the other message"
    cluster[0].do(c.CommitWork(acks=[ack], sends=[]))
    assert [each.stale for each in cluster.settle()] == [0]
    assert other not in driver.broker.queues


def test_what_was_taken_just_before_a_crash_is_held_after_it(cluster: Cluster) -> None:
    away, driver = name_at(1), cluster[1]
    driver.create(away, lease_ms=5 * SECOND_MS)
    driver.send(b"a", b"b", queue=away)
    taken = driver.do(c.Receive(queue=away, limit=2, wait_ms=0), commit=False)
    driver.reopen()
    ack = c.Ack(queue=away, spans=taken.spans())
    assert driver.do(c.HoldForWork(acks=[ack], unit=7)).count == 2
    assert driver.counts(away) == (0, 2, 0)
    with pytest.raises(WorkRefused, match="no longer belong to this unit of work"):
        driver.do(c.HoldForWork(acks=[ack], unit=8))
    cluster[0].do(c.CommitWork(acks=[ack], sends=[]))
    assert [each.stale for each in cluster.settle()] == [0]
    assert driver.stats(away).messages == 0


def test_what_a_unit_of_work_holds_is_not_acked_by_who_was_forgotten(cluster: Cluster) -> None:
    """Its lease was the second of two that a crash has forgotten; since then, the unit of work took the message."""
    away, driver = name_at(1), cluster[1]
    driver.create(away)
    driver.send(b"a", queue=away)
    driver.reopen()
    ack = c.Ack(queue=away, spans=driver.receive(queue=away).spans())
    driver.do(c.HoldForWork(acks=[ack], unit=7))
    assert driver.do(c.Ack(queue=away, spans=[c.Span(0, 0, 2)])).count == 0
    cluster[0].do(c.CommitWork(acks=[ack], sends=[]))
    assert [each.stale for each in cluster.settle()] == [0]


def test_a_hold_that_runs_out_is_a_failed_delivery(cluster: Cluster) -> None:
    driver = cluster[0]
    driver.create("q", lease_ms=5 * SECOND_MS)
    driver.send(b"a")
    driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=driver.receive().spans())], lease_ms=20 * SECOND_MS))
    driver.advance(19 * SECOND_MS)
    assert driver.counts() == (0, 1, 0)
    driver.advance(SECOND_MS)
    assert driver.counts() == (1, 0, 0)


def test_a_hold_does_not_shorten_a_lease(cluster: Cluster) -> None:
    driver = cluster[0]
    driver.create("q", lease_ms=10 * MINUTE_MS)
    driver.send(b"a")
    taken = driver.receive()
    driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=taken.spans())], lease_ms=SECOND_MS))
    driver.advance(9 * MINUTE_MS)
    assert driver.counts() == (0, 1, 0)


def test_what_is_not_leased_any_more_cannot_be_held(cluster: Cluster) -> None:
    driver = cluster[0]
    driver.create("q", lease_ms=5 * SECOND_MS)
    driver.send(b"a", b"b")
    taken = driver.receive(2)
    first, second = c.Span(0, 0, 1), c.Span(1, 1, 1)
    driver.do(c.Release(queue="q", spans=[second]))
    deadline = [seen.deadline_ms for seen in driver.browse()]
    with pytest.raises(WorkRefused, match="messages 1 to 1"):
        driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=[first]), c.Ack(queue="q", spans=[second])]))
    assert [seen.deadline_ms for seen in driver.browse()] == deadline, "nothing was done"
    with pytest.raises(WorkRefused, match="taken twice"):
        driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=[first, first])]))
    with pytest.raises(WorkRefused):
        driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=[c.Span(0, 0, 0)])]))
    with pytest.raises(QueueNotFound):
        driver.do(c.HoldForWork(acks=[c.Ack(queue="none", spans=taken.spans())]))


def test_an_ack_that_comes_too_late_is_counted(cluster: Cluster) -> None:
    away = name_at(1)
    cluster[1].create(away, lease_ms=5 * SECOND_MS)
    cluster[1].send(b"a", b"b", queue=away)
    ack = c.Ack(queue=away, spans=cluster[1].receive(2, queue=away).spans())
    cluster[1].do(c.HoldForWork(acks=[ack], lease_ms=10 * SECOND_MS))
    cluster[0].do(c.CommitWork(acks=[ack], sends=[]))
    cluster[1].advance(20 * SECOND_MS)
    assert cluster[1].receive(1, queue=away).count == 1, "the hold is over, and somebody else has one of them"
    assert cluster.forward(0, 1) == c.Taken(0, True, stale=1)
    assert cluster[1].counts(away) == (0, 1, 0), "the other one is done: nobody had it"


def test_an_ack_of_a_queue_that_is_gone_is_counted(cluster: Cluster) -> None:
    away = name_at(1)
    cluster[0].do(c.CommitWork(acks=[c.Ack(queue=away, spans=[c.Span(0, 4, 1)])], sends=[]))
    assert cluster.forward(0, 1) == c.Taken(0, True, stale=5)


@pytest.mark.parametrize("name", ["\ud800", "no spaces", ""])
def test_a_name_that_no_queue_can_have_is_refused_as_such(cluster: Cluster, name: str) -> None:
    for driver in cluster.drivers:
        with pytest.raises(InvalidName):
            driver.do(c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x"])]))


def test_a_router_may_say_where_things_are(cluster: Cluster) -> None:
    name = name_at(1)
    command = c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x"])], send_shards=[2])
    cluster[0].do(command)
    assert cluster[0].broker.outbox_targets() == {2: 1}
    command.send_shards = [0]
    cluster[0].do(command)
    assert cluster[0].stats(name).messages == 1
    for wrong in ([], [3], [0, 0], [-1]):
        command.send_shards = wrong
        with pytest.raises(InvalidRequest, match="are not the shards of 1 sends"):
            cluster[0].do(command)


def test_work_with_a_mark_is_done_only_from_where_the_mark_is() -> None:
    driver = BrokerDriver()
    send = c.Send(queue="q", bodies=[b"x"])
    assert driver.do(c.CommitWork(acks=[], sends=[send], mark=("m", 5), mark_after=-1))
    with pytest.raises(MarkMoved, match="last number of 'm' is 5") as moved:
        driver.do(c.CommitWork(acks=[], sends=[send], mark=("m", 9), mark_after=7))
    assert moved.value.number == 5
    again = driver.do(c.CommitWork(acks=[], sends=[send], mark=("m", 5), mark_after=-1))
    assert again == c.AlreadyDone("m", 5)
    driver.do(c.CommitWork(acks=[], sends=[send], mark=("m", 9), mark_after=5))
    assert driver.stats().messages == 2


# -- what is not taken --


def refused_of(cluster: Cluster, name: str) -> c.Delivery:
    refused = f"{name}.refused"
    return cluster[partition_of(refused, SHARDS)].receive(99, queue=refused)


@pytest.mark.parametrize(
    ("settings", "send", "reason"),
    [
        (None, c.Send(queue="", bodies=[b"x"], create=False), "there is no queue"),
        ({"message_bytes_max": 3}, c.Send(queue="", bodies=[b"1234"]), "takes 3"),
        ({"kind": "fifo"}, c.Send(queue="", bodies=[b"x"]), "every message needs a group"),
        ({"kind": "fifo"}, c.Send(queue="", bodies=[b"x"], groups=["g"]), "needs a dedup id"),
    ],
)
def test_what_a_queue_does_not_take_is_put_aside_with_the_reason(
    cluster: Cluster, settings: dict[str, object] | None, send: c.Send, reason: str
) -> None:
    name = name_at(1)
    if settings is not None:
        cluster[1].create(name, **settings)
    send.queue = name
    cluster[0].do(c.CommitWork(acks=[], sends=[send]))
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name_at(1, "other"), bodies=[b"behind it"])]))
    assert sum(taken.refused for taken in cluster.settle()) == 1
    delivery = refused_of(cluster, name)
    assert bodies_of(delivery) == [bytes(body) for body in send.bodies]
    (origin,) = origins_of(delivery)
    assert origin.queue == name
    assert reason in origin.failures[0].error
    assert bodies_of(cluster[1].receive(queue=name_at(1, "other"))) == [b"behind it"], "it holds up nobody"


def test_only_those_of_a_run_that_a_queue_does_not_take_are_put_aside(cluster: Cluster) -> None:
    name = name_at(1)
    cluster[1].create(name, message_bytes_max=3)
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"1", b"12345", b"2", b"123456"])]))
    assert cluster.forward(0, 1).refused == 2
    cluster.settle()
    assert bodies_of(cluster[1].receive(9, queue=name)) == [b"1", b"2"]
    assert bodies_of(refused_of(cluster, name)) == [b"12345", b"123456"]


def test_what_was_put_aside_can_be_redriven_when_the_queue_takes_it(cluster: Cluster) -> None:
    name = name_at(1)
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x"], create=False)]))
    cluster.settle()
    cluster[1].create(name)
    refused = f"{name}.refused"
    home = cluster[partition_of(refused, SHARDS)]
    home.do(c.StartRedrive(queue=refused))
    home.advance(SECOND_MS)
    cluster.settle()
    assert bodies_of(cluster[1].receive(queue=name)) == [b"x"]


def test_dead_letters_for_a_queue_of_another_kind_are_put_aside_and_keep_their_history(cluster: Cluster) -> None:
    dead = name_at(1, "d")
    cluster[1].create(dead, kind="fifo")
    cluster[0].create("q", max_receives=1, dead_letter=dead)
    cluster[0].send(b"x")
    cluster[0].fail(1, error="no good")
    cluster.settle()
    (origin,) = origins_of(refused_of(cluster, dead))
    assert origin.queue == "q"
    assert origin.failures[0].error == "no good"
    assert "FIFO" in origin.failures[1].error


def test_a_queue_for_what_was_refused_takes_everything_even_if_it_is_fifo(cluster: Cluster) -> None:
    name = name_at(1)
    refused = f"{name}.refused"
    cluster[partition_of(refused, SHARDS)].create(refused, kind="fifo")
    cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x", b"y"], create=False)]))
    cluster.settle()
    assert bodies_of(refused_of(cluster, name)) == [b"x", b"y"]


def test_messages_that_were_put_aside_have_identities_of_their_own(cluster: Cluster) -> None:
    names = [name_at(shard, "gone") for shard in (1, 2)]
    for name in names * 2:
        cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name, bodies=[b"x", b"y"], create=False)]))
    cluster.settle()
    ids = [origin.id for name in names for origin in origins_of(refused_of(cluster, name))]
    assert len(ids) == len(set(ids)) == 8


def test_a_send_that_is_too_large_for_any_queue_is_refused_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.core.handlers.sending._ANY_QUEUE", QueueConfig(message_bytes_max=10))
    with pytest.raises(MessageTooLarge):
        cluster[0].do(c.CommitWork(acks=[], sends=[c.Send(queue=name_at(1), bodies=[b"x" * 11])]))


# -- damage --


def test_a_damaged_entry_is_reported_and_holds_up_nobody(cluster: Cluster) -> None:
    name = queue_and_dead_letters(0, 1)
    die(cluster[0], name, b"damaged")
    die(cluster[0], name, b"good")
    key = keys.outbox_chunk(1, 0)
    cluster[0].damage(key)
    cluster.settle()
    assert bodies_of(cluster[1].receive(9, queue=f"{name}.dead")) == [b"good"]
    (damage,) = cluster[0].broker.take_reports()
    assert "outbox entry 0" in damage.reason
    assert key in cluster[0].chunk_keys(), "what is left of it stays in the store"


def test_an_entry_that_was_damaged_on_its_way_is_not_done(cluster: Cluster) -> None:
    die(cluster[0], queue_and_dead_letters(0, 1), b"a")
    batch = cluster.batch(0, 1)
    batch.entries[0].chunk = batch.entries[0].chunk[:-1] + b"?"
    with pytest.raises(Exception, match="checksum"):
        cluster[1].do(batch)
    assert cluster[1].do(cluster.batch(0, 1)).done


# -- cost --


def test_one_shard_pays_next_to_nothing_for_there_being_others() -> None:
    """A dead letter costs the same calls in a store of one shard and in its own shard of many, but for the hash."""

    def cost(shards: int) -> int:
        driver = BrokerDriver(shard=0, shards=shards, checks=False)
        driver.create("q", max_receives=1)
        driver.create("q.dead")
        driver.send(b"warm")
        driver.fail(1)
        driver.send(b"x")
        delivery = driver.receive()
        return calls_of(lambda: driver.release(delivery))

    assert cost(SHARDS) - cost(1) <= 2


def test_an_attempt_id_does_not_bring_back_what_is_held_for_work(cluster: Cluster) -> None:
    driver = cluster[0]
    driver.create("q", kind="fifo", lease_ms=5 * SECOND_MS)
    driver.send_fifo("g", b"a")
    taken = driver.receive(attempt_id="try")
    driver.do(c.HoldForWork(acks=[c.Ack(queue="q", spans=taken.spans())], lease_ms=60 * SECOND_MS))
    assert driver.receive(attempt_id="try").count == 0
    driver.advance(20 * SECOND_MS)
    assert driver.counts() == (0, 1, 0), "nor does it shorten the hold"


# -- later builds --


@pytest.mark.parametrize(("said", "is_read"), [([None, 0], True), (["until noon"], False)])
def test_acks_of_a_later_build_are_forwarded_unless_they_say_what_is_not_known(
    cluster: Cluster, said: list[object], is_read: bool
) -> None:
    there = name_at(1)
    cluster[1].create(there)
    cluster[1].send(b"x", queue=there)
    taken = cluster[1].receive(queue=there)
    work = c.CommitWork(acks=[c.Ack(queue=there, spans=taken.spans())], sends=[], ack_shards=[1])
    cluster[0].do(work)
    key = keys.outbox_record(1, 0)
    ((_, stored),) = cluster[0].store.scan(key)
    record = msgspec.msgpack.decode(stored)
    record[1][1][0] += said
    changes = Changes()
    changes.put_record(key, msgspec.msgpack.encode(record))
    cluster[0].store.commit(changes)
    if is_read:
        cluster[0].reopen()
        assert [taken.refused for taken in cluster.settle()] == [0]
        assert cluster[1].counts(there) == (0, 0, 0)
    else:
        with pytest.raises(StoreDamaged, match="is not known here: the sender is a newer build"):
            cluster[0].reopen()


def test_a_mark_says_when_what_its_work_sent_has_arrived_whatever_else_comes_or_goes(cluster: Cluster) -> None:
    there, beside = name_at(1), name_at(2)
    driver = cluster[0]
    driver.do(c.CommitWork(acks=[], sends=[c.Send(queue=there, bodies=[b"1"])], mark=("import", 4), send_shards=[1]))
    assert driver.do(c.LastMark(name="import")) == 4
    assert driver.do(c.LastMark(name="import", arrived=True)) == -1
    cluster[1].do(c.Send(queue=there, bodies=[b"somebody else's"]))
    assert driver.do(c.LastMark(name="import", arrived=True)) == -1
    driver.advance(SECOND_MS)
    driver.do(c.CommitWork(acks=[], sends=[c.Send(queue=beside, bodies=[b"2"])], mark=("other", 1), send_shards=[2]))
    cluster.forward(0, 1)
    assert driver.do(c.LastMark(name="import", arrived=True)) == 4
    assert driver.do(c.LastMark(name="other", arrived=True)) == -1
    driver.reopen()
    assert driver.do(c.LastMark(name="import", arrived=True)) == 4
    assert driver.do(c.LastMark(name="other", arrived=True)) == -1
