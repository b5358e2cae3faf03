"""Channels and named consumers: independent readers of one queue."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.core import commands as c
from penstock.core.errors import ChannelNotFound, ConsumerNotFound, InvalidName, InvalidRequest, RewindRefused
from tests.core.driver import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Desk,
    attempts_of,
    bodies_of,
    bodies_of_runs,
    calls_of,
    sequences_of,
)


def test_every_channel_gets_every_message() -> None:
    desk = Desk()
    desk.create(channels=("one", "two"))
    desk.send(b"a", b"b")
    assert bodies_of(desk.receive(10, channel="one")) == [b"a", b"b"]
    assert bodies_of(desk.receive(10, channel="two")) == [b"a", b"b"]


def test_channels_fail_and_retry_on_their_own() -> None:
    desk = Desk()
    desk.create(channels=("one", "two"))
    desk.send(b"a")
    desk.fail(3, channel="one")
    assert attempts_of(desk.receive(channel="one")) == [4]
    assert attempts_of(desk.receive(channel="two")) == [1]


def test_receipt_of_one_channel_does_not_settle_in_another() -> None:
    desk = Desk()
    desk.create(channels=("one", "two"))
    desk.send(b"a")
    (run,) = desk.receive(channel="one").runs
    assert desk.do(c.Ack(queue="q", channel="two", spans=run.spans())).count == 0


def test_chunk_goes_when_every_channel_is_done_with_it() -> None:
    desk = Desk()
    desk.create(channels=("one", "two"))
    desk.send(b"a")
    desk.ack(desk.receive(channel="one"))
    assert len(desk.chunk_keys()) == 1
    desk.ack(desk.receive(channel="two"))
    assert desk.chunk_keys() == []


def test_new_channel_starts_at_the_head_the_tail_or_a_time() -> None:
    desk = Desk()
    desk.create()
    desk.send(b"a")
    desk.advance(1_000)
    desk.send(b"b")
    between_ms = desk.now_ms
    desk.advance(1_000)
    desk.send(b"c")
    for channel, start in (("head", "head"), ("tail", "tail"), ("time", between_ms), ("future", desk.now_ms + 1)):
        desk.do(c.CreateChannel(queue="q", channel=channel, start=start))
    desk.send(b"d")
    assert bodies_of(desk.receive(10, channel="head")) == [b"a", b"b", b"c", b"d"]
    assert bodies_of(desk.receive(10, channel="tail")) == [b"d"]
    assert bodies_of(desk.receive(10, channel="time")) == [b"b", b"c", b"d"]
    assert bodies_of(desk.receive(10, channel="future")) == [b"d"]


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS])
def test_channel_that_starts_at_a_time_gets_what_was_sent_with_a_delay_after_it(delay_ms: int) -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"before", delay_ms=delay_ms)
    desk.advance(1_000)
    start_ms = desk.now_ms
    desk.send(b"after", delay_ms=delay_ms)
    desk.advance(1_000)
    desk.send(b"now")
    desk.do(c.CreateChannel(queue="q", channel="time", start=start_ms))
    assert desk.counts(channel="time") == (1, 0, 1)
    desk.advance(delay_ms)
    assert sorted(bodies_of(desk.receive(10, channel="time"))) == [b"after", b"now"]


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS, 90 * DAY_MS])
def test_channel_at_the_tail_does_not_get_what_was_delayed_before_it(delay_ms: int) -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"before", delay_ms=delay_ms)
    desk.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    assert desk.counts(channel="tail") == (0, 0, 0)
    desk.send(b"after", delay_ms=delay_ms)
    assert desk.counts(channel="tail") == (0, 0, 1)
    desk.reopen(delay_ms)
    assert bodies_of(desk.receive(10, channel="tail")) == [b"after"]
    assert bodies_of(desk.receive(10)) == [b"before", b"after"]


def test_creating_a_channel_again_is_fine() -> None:
    desk = Desk()
    desk.create()
    first = desk.do(c.CreateChannel(queue="q", channel="tap"))
    assert desk.do(c.CreateChannel(queue="q", channel="tap", start="tail")) == first
    with pytest.raises(InvalidName):
        desk.do(c.CreateChannel(queue="q", channel="no name"))
    with pytest.raises(InvalidRequest):
        desk.do(c.CreateChannel(queue="q", channel="other", start="middle"))


def test_paused_channel_gives_nothing_and_goes_on_where_it_was() -> None:
    desk = Desk()
    desk.send(b"a", b"b")
    delivery = desk.receive(1)
    desk.do(c.PauseChannel(queue="q", channel="main"))
    assert desk.receive(10).count == 0
    assert desk.ack(delivery).count == 1
    desk.reopen()
    assert desk.receive(10).count == 0
    desk.do(c.PauseChannel(queue="q", channel="main", paused=False))
    assert bodies_of(desk.receive(10)) == [b"b"]


def test_deleted_channel_frees_what_only_it_wanted() -> None:
    desk = Desk()
    desk.create(channels=("main", "slow"))
    desk.send(b"a")
    desk.fail(2, channel="slow")
    desk.send(b"b")
    for _ in range(2):
        desk.ack(desk.receive(1))
    assert len(desk.chunk_keys()) == 2
    desk.do(c.DeleteChannel(queue="q", channel="slow"))
    assert desk.chunk_keys() == []
    assert desk.stats().messages == 0
    with pytest.raises(ChannelNotFound):
        desk.receive(channel="slow")


def test_channel_created_again_after_its_deletion_starts_anew() -> None:
    desk = Desk()
    desk.create(channels=("main", "tap"))
    desk.send(b"a", b"b")
    old = desk.receive(1, channel="tap")
    desk.do(c.DeleteChannel(queue="q", channel="tap"))
    desk.do(c.CreateChannel(queue="q", channel="tap"))
    assert desk.ack(old).count == 0
    assert bodies_of(desk.receive(10, channel="tap")) == [b"a", b"b"]


def test_purged_channel_is_empty_and_the_others_are_not() -> None:
    desk = Desk()
    desk.create(channels=("main", "tap"))
    desk.send(b"a", b"b")
    desk.receive(1, channel="tap")
    desk.send(b"c", delay_ms=HOUR_MS)
    assert desk.do(c.PurgeChannel(queue="q", channel="tap")) == 3
    assert desk.counts(channel="tap") == (0, 0, 0)
    assert desk.counts() == (2, 0, 1)


def test_queue_without_channels_keeps_its_messages() -> None:
    desk = Desk()
    desk.create(channels=())
    desk.send(b"a")
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    assert len(desk.chunk_keys()) == 1


# -- consumers --


def _read(desk: Desk, **fields: object) -> c.Records:
    records: c.Records = desk.do(c.ReadRecords(queue="q", **fields))  # type: ignore[arg-type]
    return records


def test_reading_by_offset_leases_nothing_and_shows_everything_in_order() -> None:
    desk = Desk()
    desk.send(b"0")
    desk.send(b"1", delay_ms=1_000)
    desk.send(b"2", priority=9)
    desk.send(b"3", delay_ms=DAY_MS)
    desk.send(b"4")
    records = _read(desk, offset=0)
    assert bodies_of_runs(records.runs) == [b"0", b"1", b"2", b"3", b"4"]
    assert (records.next_offset, records.end_offset) == (5, 5)
    assert desk.counts() == (3, 0, 2)


def test_reading_goes_on_from_any_offset_with_any_limit() -> None:
    desk = Desk()
    for base in range(0, 30, 3):
        desk.send(*(b"%d" % number for number in range(base, base + 3)))
    offset, found = 4, []
    while True:
        records = _read(desk, offset=offset, limit=4)
        if not records.runs:
            break
        found += bodies_of_runs(records.runs)
        offset = records.next_offset
    assert found == [b"%d" % number for number in range(4, 30)]


def test_retry_copies_are_not_in_the_log() -> None:
    desk = Desk()
    desk.send(b"0", b"1")
    desk.fail(2)
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    desk.send(b"2", b"3")
    desk.fail(2)
    assert bodies_of_runs(_read(desk, offset=2).runs) == [b"2", b"3"]


def test_consumer_remembers_its_offset_over_a_restart() -> None:
    desk = Desk()
    desk.send(b"0", b"1", b"2")
    assert desk.do(c.AckConsumer(queue="q", consumer="reader", offset=2)) == 2
    desk.reopen()
    assert bodies_of_runs(_read(desk, consumer="reader").runs) == [b"2"]


def test_consumer_does_not_go_back_unless_allowed() -> None:
    desk = Desk()
    desk.send(b"0", b"1", b"2")
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=2))
    with pytest.raises(RewindRefused, match="offset 2"):
        desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1, allow_rewind=True))
    assert desk.stats().consumers == {"reader": 1}
    with pytest.raises(InvalidRequest):
        desk.do(c.AckConsumer(queue="q", consumer="reader", offset=4))


def test_consumer_holds_the_chunks_that_it_has_not_read() -> None:
    desk = Desk()
    desk.create()
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    desk.send(b"0")
    desk.send(b"1")
    desk.ack(desk.receive(2))
    assert len(desk.chunk_keys()) == 2
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    assert len(desk.chunk_keys()) == 1
    desk.do(c.DeleteConsumer(queue="q", consumer="reader"))
    assert desk.chunk_keys() == []
    with pytest.raises(ConsumerNotFound):
        desk.do(c.DeleteConsumer(queue="q", consumer="reader"))


def test_silent_consumer_is_forgotten_with_what_it_held() -> None:
    desk = Desk()
    desk.create(consumer_retention_ms=HOUR_MS)
    desk.send(b"0")
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    desk.ack(desk.receive())
    desk.reopen(HOUR_MS - 1)
    assert desk.stats().consumers == {"reader": 0}
    desk.advance(1)
    assert desk.stats().consumers == {}
    assert desk.chunk_keys() == []


@pytest.mark.parametrize("retention_ms", [MINUTE_MS, 2 * MINUTE_MS, HOUR_MS])
def test_consumer_that_reads_is_not_forgotten(retention_ms: int) -> None:
    desk = Desk()
    desk.create(consumer_retention_ms=retention_ms)
    desk.send(b"0")
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    for _ in range(5):
        desk.advance(retention_ms * 9 // 10)
        _read(desk, consumer="reader")
    assert desk.stats().consumers == {"reader": 0}


def test_shorter_retention_of_consumers_holds_for_those_that_are_there() -> None:
    desk = Desk()
    desk.send(b"0")
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    desk.change(consumer_retention_ms=MINUTE_MS)
    desk.advance(2 * MINUTE_MS)
    assert desk.stats().consumers == {}


def test_consumers_ack_costs_the_same_whatever_waits_behind() -> None:
    calls = []
    for backlog in (30, 1_000):
        desk = Desk(checks=False)
        desk.create()
        for _ in range(backlog):
            desk.send(b"x")
        desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
        calls.append(calls_of(partial(desk.do, c.AckConsumer(queue="q", consumer="reader", offset=2))))
    assert calls[1] < 3 * calls[0]


def test_deliveries_to_a_channel_carry_sequence_numbers_of_the_queue() -> None:
    desk = Desk()
    desk.send(b"a")
    desk.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    desk.send(b"b")
    assert sequences_of(desk.receive(channel="tail")) == [1]
