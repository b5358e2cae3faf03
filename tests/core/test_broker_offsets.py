"""Readers that go by offset: a channel that is moved on by offset, and where offsets are."""

from __future__ import annotations

import random

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, QueueNotFound
from penstock.core.storage.keys import ChunkKey
from tests.core.driver import DAY_MS, MINUTE_MS, SECOND_MS, BrokerDriver


def send_chunks(driver: BrokerDriver, *counts: int, **fields: object) -> None:
    """Chunks of so many messages each."""
    at = driver.do(c.FindOffsets(queue="q")).end
    for count in counts:
        driver.send(*(b"%d" % (at + index) for index in range(count)), **fields)  # type: ignore[arg-type]
        at += count


def stream(driver: BrokerDriver, offset: int = 0, channel: str = "stream") -> None:
    driver.do(c.CreateChannel(queue="q", channel=channel, offset=offset))


def ack_up_to(driver: BrokerDriver, offset: int, channel: str = "stream") -> int:
    done: int = driver.do(c.AckUpTo(queue="q", channel=channel, offset=offset))
    return done


def stats(driver: BrokerDriver, channel: str = "stream") -> c.ChannelStats:
    found: c.Stats = driver.do(c.QueueStats(name="q"))
    return found.channels[channel]


def stored(driver: BrokerDriver) -> list[int]:
    records: c.Records = driver.do(c.ReadRecords(queue="q", offset=0, limit=100_000))
    return [run.chunk.base + index for run in records.runs for index in range(run.start, run.stop)]


def test_what_was_sent_before_the_offset_is_done_for_the_channel_alone() -> None:
    driver = BrokerDriver()
    driver.create()
    send_chunks(driver, 10, 10, 10)
    stream(driver)
    assert ack_up_to(driver, 15) == 15
    assert stats(driver).ready == 15
    assert stats(driver).acked == 15
    assert stats(driver, "main").ready == 30
    assert len(stored(driver)) == 30


def test_chunks_that_every_channel_is_done_with_are_deleted() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10, 10, 10)
    ack_up_to(driver, 15)
    assert stored(driver) == list(range(10, 30)), "the chunk on both sides is kept whole"
    ack_up_to(driver, 30)
    assert stored(driver) == []
    assert stats(driver).ready == 0


def test_the_channel_hands_out_exactly_what_is_left() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10, 10)
    ack_up_to(driver, 13)
    delivery = driver.receive(100, channel="stream")
    assert [run.first + at for run in delivery.runs for at in range(run.count)] == list(range(13, 20))


def test_going_back_does_nothing() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10)
    assert ack_up_to(driver, 7) == 7
    assert ack_up_to(driver, 7) == 0
    assert ack_up_to(driver, 3) == 0
    assert stats(driver).ready == 3


def test_an_offset_past_the_end_is_refused() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10)
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        ack_up_to(driver, 11)
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        stream(driver, 11, "late")


def test_leased_messages_before_the_offset_are_done_and_their_ack_comes_too_late() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10)
    delivery = driver.receive(4, channel="stream")
    assert ack_up_to(driver, 6) == 6
    spans = [span for run in delivery.runs for span in run.spans()]
    assert driver.do(c.Ack(queue="q", channel="stream", spans=spans)).count == 0
    assert (stats(driver).ready, stats(driver).leased) == (4, 0)


def test_messages_that_were_acked_one_by_one_are_not_counted_twice() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10)
    delivery = driver.receive(3, channel="stream")
    driver.do(c.Ack(queue="q", channel="stream", spans=delivery.runs[0].spans()))
    assert ack_up_to(driver, 8) == 5
    assert stats(driver).acked == 8


def test_delayed_and_far_messages_before_the_offset_never_come() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 2, delay_ms=MINUTE_MS)
    send_chunks(driver, 2, delay_ms=10 * DAY_MS)
    send_chunks(driver, 2)
    assert stats(driver).delayed == 4
    assert ack_up_to(driver, 6) == 6
    assert (stats(driver).ready, stats(driver).delayed) == (0, 0)
    assert stored(driver) == []
    driver.advance(11 * DAY_MS)
    assert driver.receive(10, channel="stream").count == 0


def test_far_messages_are_kept_for_another_channel() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream", "other"))
    send_chunks(driver, 4, delay_ms=10 * DAY_MS)
    ack_up_to(driver, 4)
    assert (stats(driver).delayed, stats(driver, "other").delayed) == (0, 4)
    driver.advance(11 * DAY_MS)
    assert driver.receive(10, channel="other").count == 4
    assert driver.receive(10, channel="stream").count == 0


def test_retries_that_wait_far_ahead_are_done_as_well() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 4)
    for delay_ms in (0, 10 * DAY_MS):
        spans = [span for run in driver.receive(4, channel="stream").runs for span in run.spans()]
        driver.do(c.Release(queue="q", channel="stream", spans=spans, delay_ms=delay_ms))
    assert stats(driver).delayed == 4
    assert ack_up_to(driver, 3) == 3
    assert stats(driver).delayed == 1
    assert ack_up_to(driver, 4) == 1
    assert stored(driver) == []


def test_fifo_order_goes_on_behind_the_offset() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo", channels=("stream",))
    driver.send_fifo("a", b"0", b"1", b"2")
    driver.send_fifo("b", b"3", b"4")
    ack_up_to(driver, 1)
    bodies = [run.chunk.body(run.start) for run in driver.receive(1, channel="stream").runs]
    assert bodies == [b"1"]
    ack_up_to(driver, 4)
    assert [run.chunk.body(run.start) for run in driver.receive(5, channel="stream").runs] == [b"4"]


def test_a_channel_starts_at_an_offset_within_a_chunk() -> None:
    driver = BrokerDriver()
    driver.create()
    send_chunks(driver, 10, 10)
    stream(driver, 13)
    assert (stats(driver).ready, stats(driver).acked) == (7, 0)
    driver.do(c.PurgeChannel(queue="q", channel="main"))
    assert stored(driver) == list(range(10, 20))
    ack_up_to(driver, 20)
    assert stored(driver) == []


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_sends_acks_receives_and_restarts_leaves_what_is_after_the_offset(seed: int) -> None:
    """Against a model that is a set of sequence numbers."""
    chance = random.Random(seed)
    driver = BrokerDriver()
    driver.create(channels=("stream", "other"), retention_ms=None, max_receives=0)
    left: set[int] = set()
    for _ in range(60):
        end = driver.do(c.FindOffsets(queue="q")).end
        match chance.randrange(6):
            case 0 | 1:
                count = chance.randrange(1, 30)
                delay_ms = chance.choice([None, None, None, 30 * SECOND_MS, 3 * DAY_MS])
                send_chunks(driver, count, priority=chance.randrange(2), delay_ms=delay_ms)
                left |= set(range(end, end + count))
            case 2:
                offset = chance.randrange(end + 1)
                ack_up_to(driver, offset)
                left = {sequence for sequence in left if sequence >= offset}
            case 3:
                delivery = driver.receive(chance.randrange(1, 20), channel="stream")
                for run in delivery.runs:
                    if chance.random() < 0.5:
                        driver.do(c.Ack(queue="q", channel="stream", spans=run.spans()))
                        left -= set(range(run.first, run.first + run.count))
            case 4:
                driver.reopen()
            case 5:
                driver.advance(chance.choice([SECOND_MS, 10 * MINUTE_MS, DAY_MS]))
        now = stats(driver)
        assert now.ready + now.leased + now.delayed == len(left), f"seed {seed}"
    ack_up_to(driver, driver.do(c.FindOffsets(queue="q")).end)
    driver.do(c.PurgeChannel(queue="q", channel="other"))
    assert stored(driver) == []


# -- where offsets are --


def test_offsets_say_where_a_queue_begins_and_ends() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    assert driver.do(c.FindOffsets(queue="q")).end == 0
    send_chunks(driver, 10, 10, 10)
    ack_up_to(driver, 10)
    found: c.Offsets = driver.do(c.FindOffsets(queue="q"))
    assert (found.first, found.end, found.cut) == (10, 30, 30)
    with pytest.raises(QueueNotFound):
        driver.do(c.FindOffsets(queue="nothing"))


def test_the_offset_of_a_time_is_the_first_message_sent_then_or_later() -> None:
    driver = BrokerDriver()
    driver.create()
    times = []
    for _ in range(3):
        times.append(driver.now_ms)
        send_chunks(driver, 10)
        driver.advance(MINUTE_MS)
    found = driver.do(c.FindOffsets(queue="q", times_ms=(0, times[1], times[1] + 1, driver.now_ms)))
    assert found.at_times == [0, 10, 20, 30]


def test_a_limit_of_bytes_is_kept_to_whole_chunks_and_lets_one_pass_at_least() -> None:
    driver = BrokerDriver()
    driver.create()
    for _ in range(4):
        driver.send(*[b"x" * 100] * 10)

    def cut(after: int, bytes_max: int) -> int:
        found: c.Offsets = driver.do(c.FindOffsets(queue="q", after=after, bytes_max=bytes_max))
        return found.cut

    assert [cut(0, 1), cut(0, 1_000), cut(0, 2_500), cut(0, 10_000)] == [10, 10, 20, 40]
    assert [cut(15, 1), cut(15, 2_000), cut(40, 1)] == [20, 30, 40]


def bases(driver: BrokerDriver, offset: int, end: int | None = None, limit: int = 100) -> list[int]:
    found: c.ChunkList = driver.do(c.ListChunks(queue="q", offset=offset, end=end, limit=limit))
    return [ChunkKey.unpack(packed).base for packed in found.keys]


def test_the_chunks_of_a_range_are_those_that_hold_any_of_it() -> None:
    driver = BrokerDriver()
    driver.create(channels=("stream",))
    send_chunks(driver, 10, 10, 10, 10)
    ack_up_to(driver, 10)
    assert bases(driver, 0) == [10, 20, 30]
    assert bases(driver, 25) == [20, 30]
    assert bases(driver, 20, 30) == [20]
    assert bases(driver, 20, 31) == [20, 30]
    assert bases(driver, 40) == []


def test_the_chunks_of_a_range_are_listed_page_by_page() -> None:
    driver = BrokerDriver()
    driver.create()
    send_chunks(driver, 10, 10, 10)
    first: c.ChunkList = driver.do(c.ListChunks(queue="q", limit=2))
    assert (len(first.keys), first.next_offset) == (2, 20)
    assert bases(driver, first.next_offset, limit=2) == [20]
    with pytest.raises(InvalidRequest, match="limit is 0"):
        driver.do(c.ListChunks(queue="q", limit=0))


# -- marks --


def work(number: int, body: bytes = b"x", name: str = "stream") -> c.CommitWork:
    return c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[body])], mark=(name, number))


def test_marked_work_is_done_once_and_says_so() -> None:
    driver = BrokerDriver()
    assert [sent.first for sent in driver.do(work(7))] == [0]
    assert driver.do(work(7)) == c.AlreadyDone("stream", 7)
    assert driver.do(work(6)) == c.AlreadyDone("stream", 7)
    assert [sent.first for sent in driver.do(work(8))] == [1]
    assert [sent.first for sent in driver.do(work(1, name="another"))] == [2]
    assert len(stored(driver)) == 3


def test_a_mark_outlives_restarts() -> None:
    driver = BrokerDriver()
    driver.do(work(7))
    driver.reopen(after_ms=30 * DAY_MS)
    assert driver.do(work(7)) == c.AlreadyDone("stream", 7)


def test_work_that_is_refused_leaves_no_mark() -> None:
    driver = BrokerDriver()
    with pytest.raises(InvalidRequest):
        driver.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[])], mark=("stream", 1)))
    assert [sent.first for sent in driver.do(work(1))] == [0]


@pytest.mark.parametrize("mark", [("", 0), ("x" * 300, 0), ("a\nb", 0), ("a", -1), ("a", 1 << 63)])
def test_a_bad_mark_is_refused(mark: tuple[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        BrokerDriver().do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[b"x"])], mark=mark))


def test_the_reply_to_repeated_work_waits_until_the_first_is_durable() -> None:
    driver = BrokerDriver()
    driver.step(work(1), commit=False)
    driver.broker.take_changes()
    driver.step(work(1), commit=False)
    assert driver.broker.must_commit


def test_work_can_be_checked_without_being_done() -> None:
    driver = BrokerDriver()
    assert (
        driver.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[b"x"])], mark=("s", 1), check_only=True)) == []
    )
    assert driver.do(c.LastMark(name="s")) == -1
    with pytest.raises(InvalidRequest):
        driver.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[])], check_only=True))
    driver.do(work(1, name="s"))
    assert driver.do(c.LastMark(name="s")) == 1
    assert len(stored(driver)) == 1


def test_offsets_tell_which_messages_are_not_due_and_in_how_many_runs_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"now")
    driver.send(b"soon", b"soon too", delay_ms=60_000)
    driver.send(b"tomorrow", delay_ms=86_400_000)
    driver.send(b"urgent", delay_ms=90_000, priority=5)
    soon = driver.now_ms + 60_000

    def not_due() -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = driver.do(c.FindOffsets(queue="q")).not_due
        return found

    runs = [(1, 3, soon), (3, 4, soon + 86_340_000), (4, 5, soon + 30_000)]
    assert not_due() == runs
    driver.reopen()
    assert not_due() == runs
    driver.advance(60_000)
    assert not_due() == runs[1:]
    monkeypatch.setattr("penstock.core.handlers.reading.NOT_DUE_MAX", 1)
    assert not_due() == runs[1:2]
    driver.create("q.fifo", kind="fifo", delay_ms=1_000)
    driver.send_fifo("g", b"later", queue="q.fifo")
    assert driver.do(c.FindOffsets(queue="q.fifo")).not_due == [(0, 1, driver.now_ms + 1_000)]
