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
    BrokerDriver,
    attempts_of,
    bodies_of,
    bodies_of_runs,
    calls_of,
    sequences_of,
)


def test_every_channel_gets_every_message() -> None:
    driver = BrokerDriver()
    driver.create(channels=("one", "two"))
    driver.send(b"a", b"b")
    assert bodies_of(driver.receive(10, channel="one")) == [b"a", b"b"]
    assert bodies_of(driver.receive(10, channel="two")) == [b"a", b"b"]


def test_channels_fail_and_retry_on_their_own() -> None:
    driver = BrokerDriver()
    driver.create(channels=("one", "two"))
    driver.send(b"a")
    driver.fail(3, channel="one")
    assert attempts_of(driver.receive(channel="one")) == [4]
    assert attempts_of(driver.receive(channel="two")) == [1]


def test_receipt_of_one_channel_does_not_settle_in_another() -> None:
    driver = BrokerDriver()
    driver.create(channels=("one", "two"))
    driver.send(b"a")
    (run,) = driver.receive(channel="one").runs
    assert driver.do(c.Ack(queue="q", channel="two", spans=run.spans())).count == 0


def test_chunk_goes_when_every_channel_is_done_with_it() -> None:
    driver = BrokerDriver()
    driver.create(channels=("one", "two"))
    driver.send(b"a")
    driver.ack(driver.receive(channel="one"))
    assert len(driver.chunk_keys()) == 1
    driver.ack(driver.receive(channel="two"))
    assert driver.chunk_keys() == []


def test_new_channel_starts_at_the_head_the_tail_or_a_time() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    driver.advance(1_000)
    driver.send(b"b")
    between_ms = driver.now_ms
    driver.advance(1_000)
    driver.send(b"c")
    for channel, start in (("head", "head"), ("tail", "tail"), ("time", between_ms), ("future", driver.now_ms + 1)):
        driver.do(c.CreateChannel(queue="q", channel=channel, start=start))
    driver.send(b"d")
    assert bodies_of(driver.receive(10, channel="head")) == [b"a", b"b", b"c", b"d"]
    assert bodies_of(driver.receive(10, channel="tail")) == [b"d"]
    assert bodies_of(driver.receive(10, channel="time")) == [b"b", b"c", b"d"]
    assert bodies_of(driver.receive(10, channel="future")) == [b"d"]


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS])
def test_channel_that_starts_at_a_time_gets_what_was_sent_with_a_delay_after_it(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"before", delay_ms=delay_ms)
    driver.advance(1_000)
    start_ms = driver.now_ms
    driver.send(b"after", delay_ms=delay_ms)
    driver.advance(1_000)
    driver.send(b"now")
    driver.do(c.CreateChannel(queue="q", channel="time", start=start_ms))
    assert driver.counts(channel="time") == (1, 0, 1)
    driver.advance(delay_ms)
    assert sorted(bodies_of(driver.receive(10, channel="time"))) == [b"after", b"now"]


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS, 90 * DAY_MS])
def test_channel_at_the_tail_does_not_get_what_was_delayed_before_it(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"before", delay_ms=delay_ms)
    driver.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    assert driver.counts(channel="tail") == (0, 0, 0)
    driver.send(b"after", delay_ms=delay_ms)
    assert driver.counts(channel="tail") == (0, 0, 1)
    driver.reopen(delay_ms)
    assert bodies_of(driver.receive(10, channel="tail")) == [b"after"]
    assert bodies_of(driver.receive(10)) == [b"before", b"after"]


def test_creating_a_channel_again_is_fine() -> None:
    driver = BrokerDriver()
    driver.create()
    first = driver.do(c.CreateChannel(queue="q", channel="tap"))
    assert driver.do(c.CreateChannel(queue="q", channel="tap", start="tail")) == first
    with pytest.raises(InvalidName):
        driver.do(c.CreateChannel(queue="q", channel="no name"))
    with pytest.raises(InvalidRequest):
        driver.do(c.CreateChannel(queue="q", channel="other", start="middle"))


def test_paused_channel_gives_nothing_and_goes_on_where_it_was() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    delivery = driver.receive(1)
    driver.do(c.PauseChannel(queue="q", channel="main"))
    assert driver.receive(10).count == 0
    assert driver.ack(delivery).count == 1
    driver.reopen()
    assert driver.receive(10).count == 0
    driver.do(c.PauseChannel(queue="q", channel="main", paused=False))
    assert bodies_of(driver.receive(10)) == [b"b"]


def test_deleted_channel_frees_what_only_it_wanted() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "slow"))
    driver.send(b"a")
    driver.fail(2, channel="slow")
    driver.send(b"b")
    for _ in range(2):
        driver.ack(driver.receive(1))
    assert len(driver.chunk_keys()) == 2
    driver.do(c.DeleteChannel(queue="q", channel="slow"))
    assert driver.chunk_keys() == []
    assert driver.stats().messages == 0
    with pytest.raises(ChannelNotFound):
        driver.receive(channel="slow")


def test_channel_created_again_after_its_deletion_starts_anew() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    driver.send(b"a", b"b")
    old = driver.receive(1, channel="tap")
    driver.do(c.DeleteChannel(queue="q", channel="tap"))
    driver.do(c.CreateChannel(queue="q", channel="tap"))
    assert driver.ack(old).count == 0
    assert bodies_of(driver.receive(10, channel="tap")) == [b"a", b"b"]


def test_purged_channel_is_empty_and_the_others_are_not() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    driver.send(b"a", b"b")
    driver.receive(1, channel="tap")
    driver.send(b"c", delay_ms=HOUR_MS)
    assert driver.do(c.PurgeChannel(queue="q", channel="tap")) == 3
    assert driver.counts(channel="tap") == (0, 0, 0)
    assert driver.counts() == (2, 0, 1)


def test_queue_without_channels_keeps_its_messages() -> None:
    driver = BrokerDriver()
    driver.create(channels=())
    driver.send(b"a")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    assert len(driver.chunk_keys()) == 1


# -- consumers --


def _read(driver: BrokerDriver, **fields: object) -> c.Records:
    records: c.Records = driver.do(c.ReadRecords(queue="q", **fields))  # type: ignore[arg-type]
    return records


def test_reading_by_offset_leases_nothing_and_shows_everything_in_order() -> None:
    driver = BrokerDriver()
    driver.send(b"0")
    driver.send(b"1", delay_ms=1_000)
    driver.send(b"2", priority=9)
    driver.send(b"3", delay_ms=DAY_MS)
    driver.send(b"4")
    records = _read(driver, offset=0)
    assert bodies_of_runs(records.runs) == [b"0", b"1", b"2", b"3", b"4"]
    assert (records.next_offset, records.end_offset) == (5, 5)
    assert driver.counts() == (3, 0, 2)


def test_reading_goes_on_from_any_offset_with_any_limit() -> None:
    driver = BrokerDriver()
    for base in range(0, 30, 3):
        driver.send(*(b"%d" % number for number in range(base, base + 3)))
    offset, found = 4, []
    while True:
        records = _read(driver, offset=offset, limit=4)
        if not records.runs:
            break
        found += bodies_of_runs(records.runs)
        offset = records.next_offset
    assert found == [b"%d" % number for number in range(4, 30)]


def test_retry_copies_are_not_in_the_log() -> None:
    driver = BrokerDriver()
    driver.send(b"0", b"1")
    driver.fail(2)
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    driver.send(b"2", b"3")
    driver.fail(2)
    assert bodies_of_runs(_read(driver, offset=2).runs) == [b"2", b"3"]


def test_consumer_remembers_its_offset_over_a_restart() -> None:
    driver = BrokerDriver()
    driver.send(b"0", b"1", b"2")
    assert driver.do(c.AckConsumer(queue="q", consumer="reader", offset=2)) == 2
    driver.reopen()
    assert bodies_of_runs(_read(driver, consumer="reader").runs) == [b"2"]


def test_consumer_does_not_go_back_unless_allowed() -> None:
    driver = BrokerDriver()
    driver.send(b"0", b"1", b"2")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=2))
    with pytest.raises(RewindRefused, match="offset 2"):
        driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1, allow_rewind=True))
    assert driver.stats().consumers == {"reader": 1}
    with pytest.raises(InvalidRequest):
        driver.do(c.AckConsumer(queue="q", consumer="reader", offset=4))


def test_consumer_holds_the_chunks_that_it_has_not_read() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    driver.send(b"0")
    driver.send(b"1")
    driver.ack(driver.receive(2))
    assert len(driver.chunk_keys()) == 2
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    assert len(driver.chunk_keys()) == 1
    driver.do(c.DeleteConsumer(queue="q", consumer="reader"))
    assert driver.chunk_keys() == []
    with pytest.raises(ConsumerNotFound):
        driver.do(c.DeleteConsumer(queue="q", consumer="reader"))


def test_silent_consumer_is_forgotten_with_what_it_held() -> None:
    driver = BrokerDriver()
    driver.create(consumer_retention_ms=HOUR_MS)
    driver.send(b"0")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    driver.ack(driver.receive())
    driver.reopen(HOUR_MS - 1)
    assert driver.stats().consumers == {"reader": 0}
    driver.advance(1)
    assert driver.stats().consumers == {}
    assert driver.chunk_keys() == []


@pytest.mark.parametrize("retention_ms", [MINUTE_MS, 2 * MINUTE_MS, HOUR_MS])
def test_consumer_that_reads_is_not_forgotten(retention_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(consumer_retention_ms=retention_ms)
    driver.send(b"0")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    for _ in range(5):
        driver.advance(retention_ms * 9 // 10)
        _read(driver, consumer="reader")
    assert driver.stats().consumers == {"reader": 0}


def test_shorter_retention_of_consumers_holds_for_those_that_are_there() -> None:
    driver = BrokerDriver()
    driver.send(b"0")
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    driver.change(consumer_retention_ms=MINUTE_MS)
    driver.advance(2 * MINUTE_MS)
    assert driver.stats().consumers == {}


def test_consumers_ack_costs_the_same_whatever_waits_behind() -> None:
    calls = []
    for backlog in (30, 1_000):
        driver = BrokerDriver(checks=False)
        driver.create()
        for _ in range(backlog):
            driver.send(b"x")
        driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
        calls.append(calls_of(partial(driver.do, c.AckConsumer(queue="q", consumer="reader", offset=2))))
    assert calls[1] < 3 * calls[0]


def test_deliveries_to_a_channel_carry_sequence_numbers_of_the_queue() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    driver.send(b"b")
    assert sequences_of(driver.receive(channel="tail")) == [1]
