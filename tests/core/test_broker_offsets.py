"""Readers that go by offset: a channel that is moved on by offset, and where offsets are."""

from __future__ import annotations

import random

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, QueueNotFound
from penstock.core.storage.keys import ChunkKey
from tests.core.driver import DAY_MS, MINUTE_MS, SECOND_MS, Desk


def send_chunks(desk: Desk, *counts: int, **fields: object) -> None:
    """Chunks of so many messages each."""
    at = desk.do(c.FindOffsets(queue="q")).end
    for count in counts:
        desk.send(*(b"%d" % (at + index) for index in range(count)), **fields)  # type: ignore[arg-type]
        at += count


def stream(desk: Desk, offset: int = 0, channel: str = "stream") -> None:
    desk.do(c.CreateChannel(queue="q", channel=channel, offset=offset))


def ack_up_to(desk: Desk, offset: int, channel: str = "stream") -> int:
    done: int = desk.do(c.AckUpTo(queue="q", channel=channel, offset=offset))
    return done


def stats(desk: Desk, channel: str = "stream") -> c.ChannelStats:
    found: c.Stats = desk.do(c.QueueStats(name="q"))
    return found.channels[channel]


def stored(desk: Desk) -> list[int]:
    records: c.Records = desk.do(c.ReadRecords(queue="q", offset=0, limit=100_000))
    return [run.chunk.base + index for run in records.runs for index in range(run.start, run.stop)]


def test_what_was_sent_before_the_offset_is_done_for_the_channel_alone() -> None:
    desk = Desk()
    desk.create()
    send_chunks(desk, 10, 10, 10)
    stream(desk)
    assert ack_up_to(desk, 15) == 15
    assert stats(desk).ready == 15
    assert stats(desk).acked == 15
    assert stats(desk, "main").ready == 30
    assert len(stored(desk)) == 30


def test_chunks_that_every_channel_is_done_with_are_deleted() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10, 10, 10)
    ack_up_to(desk, 15)
    assert stored(desk) == list(range(10, 30)), "the chunk on both sides is kept whole"
    ack_up_to(desk, 30)
    assert stored(desk) == []
    assert stats(desk).ready == 0


def test_the_channel_hands_out_exactly_what_is_left() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10, 10)
    ack_up_to(desk, 13)
    delivery = desk.receive(100, channel="stream")
    assert [run.first + at for run in delivery.runs for at in range(run.count)] == list(range(13, 20))


def test_going_back_does_nothing() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10)
    assert ack_up_to(desk, 7) == 7
    assert ack_up_to(desk, 7) == 0
    assert ack_up_to(desk, 3) == 0
    assert stats(desk).ready == 3


def test_an_offset_past_the_end_is_refused() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10)
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        ack_up_to(desk, 11)
    with pytest.raises(InvalidRequest, match="from 0 to 10"):
        stream(desk, 11, "late")


def test_leased_messages_before_the_offset_are_done_and_their_ack_comes_too_late() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10)
    delivery = desk.receive(4, channel="stream")
    assert ack_up_to(desk, 6) == 6
    spans = [span for run in delivery.runs for span in run.spans()]
    assert desk.do(c.Ack(queue="q", channel="stream", spans=spans)).count == 0
    assert (stats(desk).ready, stats(desk).leased) == (4, 0)


def test_messages_that_were_acked_one_by_one_are_not_counted_twice() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10)
    delivery = desk.receive(3, channel="stream")
    desk.do(c.Ack(queue="q", channel="stream", spans=delivery.runs[0].spans()))
    assert ack_up_to(desk, 8) == 5
    assert stats(desk).acked == 8


def test_delayed_and_far_messages_before_the_offset_never_come() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 2, delay_ms=MINUTE_MS)
    send_chunks(desk, 2, delay_ms=10 * DAY_MS)
    send_chunks(desk, 2)
    assert stats(desk).delayed == 4
    assert ack_up_to(desk, 6) == 6
    assert (stats(desk).ready, stats(desk).delayed) == (0, 0)
    assert stored(desk) == []
    desk.advance(11 * DAY_MS)
    assert desk.receive(10, channel="stream").count == 0


def test_far_messages_are_kept_for_another_channel() -> None:
    desk = Desk()
    desk.create(channels=("stream", "other"))
    send_chunks(desk, 4, delay_ms=10 * DAY_MS)
    ack_up_to(desk, 4)
    assert (stats(desk).delayed, stats(desk, "other").delayed) == (0, 4)
    desk.advance(11 * DAY_MS)
    assert desk.receive(10, channel="other").count == 4
    assert desk.receive(10, channel="stream").count == 0


def test_retries_that_wait_far_ahead_are_done_as_well() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 4)
    for delay_ms in (0, 10 * DAY_MS):
        spans = [span for run in desk.receive(4, channel="stream").runs for span in run.spans()]
        desk.do(c.Release(queue="q", channel="stream", spans=spans, delay_ms=delay_ms))
    assert stats(desk).delayed == 4
    assert ack_up_to(desk, 3) == 3
    assert stats(desk).delayed == 1
    assert ack_up_to(desk, 4) == 1
    assert stored(desk) == []


def test_fifo_order_goes_on_behind_the_offset() -> None:
    desk = Desk()
    desk.create(kind="fifo", channels=("stream",))
    desk.send_fifo("a", b"0", b"1", b"2")
    desk.send_fifo("b", b"3", b"4")
    ack_up_to(desk, 1)
    bodies = [run.chunk.body(run.start) for run in desk.receive(1, channel="stream").runs]
    assert bodies == [b"1"]
    ack_up_to(desk, 4)
    assert [run.chunk.body(run.start) for run in desk.receive(5, channel="stream").runs] == [b"4"]


def test_a_channel_starts_at_an_offset_within_a_chunk() -> None:
    desk = Desk()
    desk.create()
    send_chunks(desk, 10, 10)
    stream(desk, 13)
    assert (stats(desk).ready, stats(desk).acked) == (7, 0)
    desk.do(c.PurgeChannel(queue="q", channel="main"))
    assert stored(desk) == list(range(10, 20))
    ack_up_to(desk, 20)
    assert stored(desk) == []


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_sends_acks_receives_and_restarts_leaves_what_is_after_the_offset(seed: int) -> None:
    """Against a model that is a set of sequence numbers."""
    chance = random.Random(seed)
    desk = Desk()
    desk.create(channels=("stream", "other"), retention_ms=None, max_receives=0)
    left: set[int] = set()
    for _ in range(60):
        end = desk.do(c.FindOffsets(queue="q")).end
        match chance.randrange(6):
            case 0 | 1:
                count = chance.randrange(1, 30)
                delay_ms = chance.choice([None, None, None, 30 * SECOND_MS, 3 * DAY_MS])
                send_chunks(desk, count, priority=chance.randrange(2), delay_ms=delay_ms)
                left |= set(range(end, end + count))
            case 2:
                offset = chance.randrange(end + 1)
                ack_up_to(desk, offset)
                left = {sequence for sequence in left if sequence >= offset}
            case 3:
                delivery = desk.receive(chance.randrange(1, 20), channel="stream")
                for run in delivery.runs:
                    if chance.random() < 0.5:
                        desk.do(c.Ack(queue="q", channel="stream", spans=run.spans()))
                        left -= set(range(run.first, run.first + run.count))
            case 4:
                desk.reopen()
            case 5:
                desk.advance(chance.choice([SECOND_MS, 10 * MINUTE_MS, DAY_MS]))
        now = stats(desk)
        assert now.ready + now.leased + now.delayed == len(left), f"seed {seed}"
    ack_up_to(desk, desk.do(c.FindOffsets(queue="q")).end)
    desk.do(c.PurgeChannel(queue="q", channel="other"))
    assert stored(desk) == []


# -- where offsets are --


def test_offsets_say_where_a_queue_begins_and_ends() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    assert desk.do(c.FindOffsets(queue="q")).end == 0
    send_chunks(desk, 10, 10, 10)
    ack_up_to(desk, 10)
    found: c.Offsets = desk.do(c.FindOffsets(queue="q"))
    assert (found.first, found.end, found.cut) == (10, 30, 30)
    with pytest.raises(QueueNotFound):
        desk.do(c.FindOffsets(queue="nothing"))


def test_the_offset_of_a_time_is_the_first_message_sent_then_or_later() -> None:
    desk = Desk()
    desk.create()
    times = []
    for _ in range(3):
        times.append(desk.now_ms)
        send_chunks(desk, 10)
        desk.advance(MINUTE_MS)
    found = desk.do(c.FindOffsets(queue="q", times_ms=(0, times[1], times[1] + 1, desk.now_ms)))
    assert found.at_times == [0, 10, 20, 30]


def test_a_limit_of_bytes_is_kept_to_whole_chunks_and_lets_one_pass_at_least() -> None:
    desk = Desk()
    desk.create()
    for _ in range(4):
        desk.send(*[b"x" * 100] * 10)

    def cut(after: int, bytes_max: int) -> int:
        found: c.Offsets = desk.do(c.FindOffsets(queue="q", after=after, bytes_max=bytes_max))
        return found.cut

    assert [cut(0, 1), cut(0, 1_000), cut(0, 2_500), cut(0, 10_000)] == [10, 10, 20, 40]
    assert [cut(15, 1), cut(15, 2_000), cut(40, 1)] == [20, 30, 40]


def bases(desk: Desk, offset: int, end: int | None = None, limit: int = 100) -> list[int]:
    found: c.ChunkList = desk.do(c.ListChunks(queue="q", offset=offset, end=end, limit=limit))
    return [ChunkKey.unpack(packed).base for packed in found.keys]


def test_the_chunks_of_a_range_are_those_that_hold_any_of_it() -> None:
    desk = Desk()
    desk.create(channels=("stream",))
    send_chunks(desk, 10, 10, 10, 10)
    ack_up_to(desk, 10)
    assert bases(desk, 0) == [10, 20, 30]
    assert bases(desk, 25) == [20, 30]
    assert bases(desk, 20, 30) == [20]
    assert bases(desk, 20, 31) == [20, 30]
    assert bases(desk, 40) == []


def test_the_chunks_of_a_range_are_listed_page_by_page() -> None:
    desk = Desk()
    desk.create()
    send_chunks(desk, 10, 10, 10)
    first: c.ChunkList = desk.do(c.ListChunks(queue="q", limit=2))
    assert (len(first.keys), first.next_offset) == (2, 20)
    assert bases(desk, first.next_offset, limit=2) == [20]
    with pytest.raises(InvalidRequest, match="limit is 0"):
        desk.do(c.ListChunks(queue="q", limit=0))


# -- marks --


def work(number: int, body: bytes = b"x", name: str = "stream") -> c.CommitWork:
    return c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[body])], mark=(name, number))


def test_marked_work_is_done_once_and_says_so() -> None:
    desk = Desk()
    assert [sent.first for sent in desk.do(work(7))] == [0]
    assert desk.do(work(7)) == c.AlreadyDone("stream", 7)
    assert desk.do(work(6)) == c.AlreadyDone("stream", 7)
    assert [sent.first for sent in desk.do(work(8))] == [1]
    assert [sent.first for sent in desk.do(work(1, name="another"))] == [2]
    assert len(stored(desk)) == 3


def test_a_mark_outlives_restarts() -> None:
    desk = Desk()
    desk.do(work(7))
    desk.reopen(after_ms=30 * DAY_MS)
    assert desk.do(work(7)) == c.AlreadyDone("stream", 7)


def test_work_that_is_refused_leaves_no_mark() -> None:
    desk = Desk()
    with pytest.raises(InvalidRequest):
        desk.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[])], mark=("stream", 1)))
    assert [sent.first for sent in desk.do(work(1))] == [0]


@pytest.mark.parametrize("mark", [("", 0), ("x" * 300, 0), ("a\nb", 0), ("a", -1), ("a", 1 << 63)])
def test_a_bad_mark_is_refused(mark: tuple[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        Desk().do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[b"x"])], mark=mark))


def test_the_reply_to_repeated_work_waits_until_the_first_is_durable() -> None:
    desk = Desk()
    desk.step(work(1), commit=False)
    desk.broker.take_changes()
    desk.step(work(1), commit=False)
    assert desk.broker.must_commit


def test_work_can_be_checked_without_being_done() -> None:
    desk = Desk()
    assert (
        desk.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[b"x"])], mark=("s", 1), check_only=True)) == []
    )
    assert desk.do(c.LastMark(name="s")) == -1
    with pytest.raises(InvalidRequest):
        desk.do(c.CommitWork(acks=[], sends=[c.Send(queue="q", bodies=[])], check_only=True))
    desk.do(work(1, name="s"))
    assert desk.do(c.LastMark(name="s")) == 1
    assert len(stored(desk)) == 1
