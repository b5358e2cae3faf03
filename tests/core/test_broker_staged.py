"""Work that is too large for one commit: staged in pieces, and made visible by a small one. Whole or nothing."""

from __future__ import annotations

import random

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, StageNotFound
from penstock.core.storage.chunk import PackedBodies
from tests.core.driver import HOUR_MS, MINUTE_MS, BrokerDriver, bodies_of, bodies_of_runs, sequences_of

NAME = "stream"


def _bodies(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def _send(bodies: list[bytes], queue: str = "q", **fields: object) -> c.Send:
    return c.Send(queue=queue, bodies=PackedBodies.even(b"".join(bodies), 6), **fields)  # type: ignore[arg-type]


def _stage(driver: BrokerDriver, *sends: c.Send, stage: int = 0) -> int:
    staged: c.Staged = driver.do(c.StageWork(name=NAME, sends=list(sends), stage=stage))
    assert not staged.refused
    return staged.stage


def _commit(driver: BrokerDriver, stage: int, number: int = 1, sends: tuple[c.Send, ...] = ()) -> object:
    return driver.do(c.CommitWork(acks=[], sends=list(sends), mark=(NAME, number), stage=stage))


def _take_all(driver: BrokerDriver, queue: str = "q") -> list[bytes]:
    found: list[bytes] = []
    while (delivery := driver.receive(9_999, queue=queue)).count:
        found += bodies_of(delivery)
        driver.ack(delivery)
    return found


def test_staged_messages_are_seen_by_nobody_before_the_commit_and_then_all_at_once() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"before")
    stage = _stage(driver, _send(_bodies(0, 10_000)))
    assert _stage(driver, _send(_bodies(10_000, 3), priority=2), stage=stage) == stage
    driver.send(b"meanwhile")
    assert driver.stats().messages == 2
    assert driver.do(c.FindOffsets(queue="q")).end == 2
    assert bodies_of(driver.receive(9)) == [b"before", b"meanwhile"]
    driver.wait("long poll", 4)
    assert _commit(driver, stage, sends=(_send(_bodies(20_000, 1)),)) != []
    assert driver.take_woken("long poll") == [*_bodies(10_000, 3), *_bodies(20_000, 1)]
    driver.send(b"after")
    assert (driver.stats().messages, driver.do(c.FindOffsets(queue="q")).end) == (10_007, 10_007)
    assert _take_all(driver) == [*_bodies(0, 10_000), b"after"]


def test_what_was_staged_is_taken_under_its_numbers_after_a_restart_and_leaves_nothing_behind() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"before")
    _commit(driver, _stage(driver, _send(_bodies(0, 9_000))))
    records = len(list(driver.store.scan(b"")))
    driver.reopen()
    read = driver.do(c.ReadRecords(queue="q", offset=5_000, limit=9))
    assert [run.first for run in read.runs] == [5_000]
    assert bodies_of_runs(read.runs) == _bodies(4_999, 9)
    delivery = driver.receive(9_001)
    assert sequences_of(delivery) == list(range(9_001))
    driver.ack(delivery)
    driver.reopen()
    assert driver.chunk_keys() == []
    assert len(list(driver.store.scan(b""))) < records
    assert driver.send(b"next").first == 9_001


def test_work_is_done_once_and_a_second_stage_of_it_is_forgotten() -> None:
    driver = BrokerDriver()
    driver.create()
    first = _stage(driver, _send(_bodies(0, 5)))
    second = _stage(driver, _send(_bodies(0, 5)))
    _commit(driver, first)
    assert _commit(driver, second) == c.AlreadyDone(NAME, 1)
    driver.do(c.StageWork(name=NAME, sends=[], stage=second, drop=True))
    assert _take_all(driver) == _bodies(0, 5)
    assert driver.chunk_keys() == []


def test_restart_before_the_commit_leaves_nothing_of_the_stage() -> None:
    driver = BrokerDriver()
    driver.create()
    stage = _stage(driver, _send(_bodies(0, 9_000)), _send(_bodies(0, 9), "new"))
    assert len(driver.chunk_keys()) == 4
    driver.reopen()
    assert driver.chunk_keys() == []
    with pytest.raises(StageNotFound, match="publish again"):
        _commit(driver, stage)
    assert driver.do(c.LastMark(name=NAME)) == -1
    again = _stage(driver, _send(_bodies(0, 9_000)))
    assert again > stage  # no number is given twice: what is under it may be on its way out
    _commit(driver, again)
    assert _take_all(driver) == _bodies(0, 9_000)


def test_stage_that_nobody_finishes_is_dropped_after_an_hour() -> None:
    driver = BrokerDriver()
    driver.create()
    stage = _stage(driver, _send(_bodies(0, 5)))
    driver.advance(HOUR_MS - MINUTE_MS)
    _stage(driver, _send(_bodies(5, 5)), stage=stage)
    driver.advance(HOUR_MS - MINUTE_MS)
    assert len(driver.chunk_keys()) == 2
    driver.advance(2 * MINUTE_MS)
    assert driver.chunk_keys() == []
    with pytest.raises(StageNotFound):
        _commit(driver, stage)


@pytest.mark.parametrize("command", [c.PurgeQueue(name="q"), c.DeleteQueue(name="q")])
def test_purge_or_end_of_a_queue_refuses_the_commit_of_what_was_staged_for_it(command: c.Command) -> None:
    driver = BrokerDriver()
    driver.create()
    driver.create("other")
    stage = _stage(driver, _send(_bodies(0, 5)), _send(_bodies(0, 5), "other"))
    driver.do(command)
    with pytest.raises(StageNotFound):
        _commit(driver, stage)
    assert driver.chunk_keys() == []
    assert driver.stats("other").messages == 0


def test_purge_drops_what_was_published() -> None:
    driver = BrokerDriver()
    driver.create()
    _commit(driver, _stage(driver, _send(_bodies(0, 9_000))))
    driver.receive(5_000)
    driver.do(c.PurgeQueue(name="q"))
    driver.reopen()
    assert (driver.chunk_keys(), driver.stats().messages) == ([], 0)


def test_messages_that_must_be_looked_at_are_refused_with_the_reason() -> None:
    driver = BrokerDriver()
    driver.create("f.fifo", kind="fifo")
    driver.create("slow", delay_ms=1_000)
    for send, why in (
        (_send(_bodies(0, 2), "f.fifo", groups=["g", "g"], dedup_ids=["1", "2"]), "queue 'f.fifo' is FIFO"),
        (_send(_bodies(0, 2), "q", dedup_ids=["1", "2"]), "messages for queue 'q' have deduplication ids"),
        (_send(_bodies(0, 2), "slow"), "messages for queue 'slow' are delayed"),
        (_send(_bodies(0, 2), "q", delay_ms=5), "messages for queue 'q' are delayed"),
    ):
        assert driver.do(c.StageWork(name=NAME, sends=[_send(_bodies(0, 2)), send])) == c.Staged(0, why)
    assert driver.chunk_keys() == []
    with pytest.raises(InvalidRequest, match="only work with a mark"):
        driver.do(c.CommitWork(acks=[], sends=[], stage=1))


def test_what_goes_to_other_shards_waits_beside_the_outbox_and_arrives_whole() -> None:
    here, there = BrokerDriver(shard=0, shards=2), BrokerDriver(shard=1, shards=2)
    sends = [
        _send(_bodies(0, 9_000), "far"),
        _send(_bodies(9_000, 2), "far.fifo", groups=["g"] * 2, dedup_ids=["a"] * 2),
    ]
    work = c.StageWork(name=NAME, sends=sends, send_shards=[1, 1])
    here.do(work)
    assert here.do(c.ReadOutbox(target=1, after=-1)) == []
    here.reopen()
    assert here.chunk_keys() == []
    stage = here.do(work).stage
    _commit(here, stage)
    here.reopen()
    after = -1
    while entries := here.do(c.ReadOutbox(target=1, after=after, limit_bytes=100)):
        before, after = after, entries[-1].number
        there.do(c.TakeOutbox(source=here.broker.outbox_name, after=before, up_to=after, entries=entries))
        assert here.do(c.ForgetOutbox(target=1, up_to=after)) == 3 - after
    assert after == 3
    assert _take_all(there, "far") == _bodies(0, 9_000)
    assert _take_all(there, "far.fifo") == _bodies(9_000, 1)
    here.reopen()
    assert here.chunk_keys() == []
    assert here.broker.snapshot()["segments"] == {}


@pytest.mark.parametrize("seed", range(4))
def test_published_messages_are_like_any_others(seed: int) -> None:
    """Whatever is done to them, in whatever order, two brokers say the same: one got them staged, the other at once."""
    chance = random.Random(seed)
    staged, plain = BrokerDriver(), BrokerDriver()
    drivers = (staged, plain)
    number = sent = 0

    def both(make: object) -> None:
        replies = [make(driver) for driver in drivers]  # type: ignore[operator]
        assert replies[0] == replies[1]

    def publish() -> None:
        nonlocal number, sent
        sends = []
        for priority in chance.sample((0, 0, 3), 2):
            count = chance.choice((1, 50, 5_000))
            groups = [chance.choice(("a", None)) for _ in range(count)] if chance.random() < 0.3 else None
            sends.append(_send(_bodies(sent, count), priority=priority, groups=groups))
            sent += count
        number += 1
        stage = 0
        sends.sort(key=lambda send: -send.priority)
        for send in sends:
            stage = _stage(staged, send, stage=stage)
        _commit(staged, stage, number)
        for send in sends:
            plain.do(send)

    def receive(driver: BrokerDriver) -> object:
        seed = chance_of_step
        delivery = driver.receive(random.Random(seed).choice((1, 30, 3_000, 9_000)), lease_ms=MINUTE_MS)
        found = (bodies_of(delivery), sequences_of(delivery), [run.chunk.sent_ms for run in delivery.runs][:1])
        spans = delivery.spans()
        random.Random(seed).shuffle(spans)
        half = spans[: len(spans) // 2 + 1]
        what = random.Random(seed + 1).random()
        if what < 0.6:
            driver.do(c.Ack(queue="q", spans=spans))
        elif what < 0.8:
            driver.do(c.Release(queue="q", spans=half, delay_ms=0, error="no"))
        return found

    def look(driver: BrokerDriver) -> object:
        at = random.Random(chance_of_step).randrange(sent + 1)
        stats = driver.stats()
        read = driver.do(c.ReadRecords(queue="q", offset=at, limit=200))
        offsets = driver.do(c.FindOffsets(queue="q", times_ms=(driver.now_ms - MINUTE_MS,), after=at, bytes_max=500))
        seen = [(each.sequence, each.state) for each in driver.browse(after=at, limit=50)]
        offsets = (offsets.first, offsets.end, offsets.at_times)
        return stats, bodies_of_runs(read.runs), read.next_offset, offsets, seen

    for driver in drivers:
        driver.create(max_receives=1_000, retention_ms=10 * MINUTE_MS)
        driver.do(c.CreateChannel(queue="q", channel="second"))
    for _ in range(40):
        chance_of_step = chance.random()
        step = chance.randrange(9)
        if step < 2:
            publish()
        elif step < 5:
            both(receive)
        elif step == 5:
            both(look)
        elif step == 6:
            for driver in drivers:
                driver.reopen()
        elif step == 7:
            upto = chance.randrange(sent + 1)
            both(lambda driver: driver.do(c.AckUpTo(queue="q", channel="second", offset=upto)))  # noqa: B023
        else:
            passed = chance.choice((1_000, MINUTE_MS, 3 * MINUTE_MS))
            for driver in drivers:
                driver.advance(passed)
        both(lambda driver: (driver.counts(), driver.counts(channel="second")))
    for driver in drivers:
        driver.advance(11 * MINUTE_MS)
        assert driver.stats().messages == 0
        driver.reopen()
        assert driver.chunk_keys() == []
    assert staged.broker.snapshot()["segments"] == {}


def test_packed_bodies_are_staged_without_being_taken_apart(breaking: pytest.MonkeyPatch) -> None:
    driver = BrokerDriver()
    driver.create()

    def taken_apart(self: PackedBodies) -> object:
        raise AssertionError("a million messages would cost as many steps")

    with breaking.context() as patch:
        patch.setattr(PackedBodies, "__iter__", taken_apart)
        stage = _stage(driver, _send(_bodies(0, 10_000)), _send(_bodies(10_000, 3)))
    _commit(driver, stage)
    assert _take_all(driver) == _bodies(0, 10_003)
