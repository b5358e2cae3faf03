"""Counters that are exact, and looking at messages without consuming them."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.states import State
from penstock.core.errors import InvalidRequest
from penstock.core.queues.queue import Queue
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, BrokerDriver


def test_counters_are_exact_in_every_state() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=3, channels=("main", "tap"))
    driver.send(*(b"%d" % number for number in range(10)))
    driver.ack(driver.receive(2))
    driver.receive(3)
    driver.release(driver.receive(1), delay_ms=1_000)
    driver.send(b"later", delay_ms=HOUR_MS)
    found = driver.stats()
    main, tap = found.channels["main"], found.channels["tap"]
    assert (main.ready, main.leased, main.delayed, main.acked, main.failed) == (4, 3, 2, 2, 1)
    assert (tap.ready, tap.leased, tap.delayed, tap.acked, tap.failed) == (10, 0, 1, 0, 0)
    assert (found.sent, found.next_sequence) == (11, 11)


def test_bytes_sent_are_counted_once_however_often_a_message_moves() -> None:
    driver = BrokerDriver()
    driver.send(b"12345", b"12345")
    driver.fail(2)
    driver.ack(driver.receive(1))
    assert driver.stats().sent_bytes == 10


def test_waiting_receivers_are_counted() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.wait("one")
    driver.wait("two")
    assert driver.stats().channels["main"].waiting_receivers == 2


def test_message_in_the_retry_lane_is_a_message_of_the_queue() -> None:
    driver = BrokerDriver()
    driver.send(b"body")
    driver.fail(2)
    stats = driver.stats()
    assert (stats.messages, stats.bytes) == (1, 4)


@pytest.mark.parametrize("delay_ms", [0, MINUTE_MS, HOUR_MS, 90 * DAY_MS])
def test_age_counts_from_the_time_of_sending(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a", delay_ms=delay_ms)
    driver.advance(1_000)
    driver.send(b"b")
    stats = driver.stats()
    assert stats.oldest_ms == START_MS
    assert stats.channels["main"].oldest_ms == START_MS


def test_age_of_a_retried_message_counts_from_the_time_of_sending() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.advance(1_000)
    driver.fail(1)
    driver.release(driver.receive(), delay_ms=5_000)
    driver.send(b"b")
    stats = driver.stats()
    assert (stats.oldest_ms, stats.channels["main"].oldest_ms) == (START_MS, START_MS)


def test_empty_queue_has_no_age() -> None:
    driver = BrokerDriver()
    driver.create()
    assert (driver.stats().oldest_ms, driver.stats().channels["main"].oldest_ms) == (None, None)


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS])
def test_queue_counts_what_is_delayed_however_far(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b", delay_ms=delay_ms)
    assert driver.stats().delayed == 2


def test_browsing_shows_every_state_and_changes_none() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=0)
    driver.send(b"done", b"leased", b"retried", b"far", b"ready")
    driver.receive(4)
    driver.do(c.Ack(queue="q", spans=[c.Span(0, 0, 1)]))
    driver.do(c.Release(queue="q", spans=[c.Span(2, 2, 1)], delay_ms=1_000, error="oh"))
    driver.do(c.Release(queue="q", spans=[c.Span(3, 3, 1)], delay_ms=DAY_MS))
    driver.send(b"delayed", delay_ms=2_000)
    before = driver.broker.snapshot()
    seen = driver.browse()
    assert driver.broker.snapshot() == before
    assert [(each.sequence, each.chunk.body(each.index), each.state.name, each.attempts) for each in seen] == [
        (1, b"leased", "LEASED", 1),
        (2, b"retried", "DELAYED", 1),
        (3, b"far", "DELAYED", 1),
        (4, b"ready", "READY", 0),
        (5, b"delayed", "DELAYED", 0),
    ]
    assert [each.deadline_ms - START_MS for each in seen if each.deadline_ms] == [30_000, 1_000, DAY_MS, 2_000]
    assert [failure.error for failure in seen[1].failures] == ["oh"]


def test_browsing_chooses_by_state_and_by_content() -> None:
    driver = BrokerDriver()
    driver.send(b"red apple", b"green apple", b"red pepper")
    driver.receive(1)
    assert [seen.sequence for seen in driver.browse(states=(State.READY,))] == [1, 2]
    assert [seen.sequence for seen in driver.browse(contains=b"red")] == [0, 2]
    assert [seen.sequence for seen in driver.browse(contains=b"applered")] == []


def test_browsing_page_by_page_shows_everything_once_and_in_order() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=0)
    driver.send(*(b"%d" % number for number in range(20)))
    driver.fail(1)
    driver.receive(20)
    driver.do(c.Release(queue="q", spans=[c.Span(5, 5, 2), c.Span(11, 13, 2)]))
    driver.do(c.Release(queue="q", spans=[c.Span(7, 7, 2)], delay_ms=DAY_MS))
    driver.send(b"20", priority=3)
    driver.send(b"21", delay_ms=1_000)
    for limit in (1, 3, 10):
        after, found = -1, []
        while page := driver.browse(after=after, limit=limit):
            found += [seen.sequence for seen in page]
            after = found[-1]
        assert found == list(range(22))


def test_browsing_a_channel_shows_what_it_is_about() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    driver.send(b"b")
    assert [seen.sequence for seen in driver.browse(channel="tail")] == [1]


def test_browsing_far_messages_of_before_a_channels_start_shows_none() -> None:
    driver = BrokerDriver()
    driver.send(b"a", delay_ms=DAY_MS)
    driver.do(c.CreateChannel(queue="q", channel="tail", start="tail"))
    assert driver.browse(channel="tail") == []


def test_browsing_with_a_limit_of_nothing_is_refused() -> None:
    driver = BrokerDriver()
    driver.create()
    with pytest.raises(InvalidRequest):
        driver.browse(limit=0)


def test_a_look_at_a_few_messages_of_a_large_chunk_reads_no_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of a chunk was looked at for the first ones: a queue of large batches was read many times over."""
    driver = BrokerDriver()
    driver.send(*(b"%d" % number for number in range(2_000)))
    driver.send(b"urgent", priority=9)
    looked_at: list[int] = []
    honest = Queue._seen

    def counted(queue: Queue, channel: Channel | None, key: ChunkKey, chunk: Chunk, index: int) -> c.Seen:
        looked_at.append(index)
        return honest(queue, channel, key, chunk, index)

    monkeypatch.setattr(Queue, "_seen", counted)
    seen = driver.do(c.Browse(queue="q", after=99, limit=10))
    assert [one.sequence for one in seen] == list(range(100, 110))
    assert len(looked_at) <= 11, len(looked_at)
    last = driver.do(c.Browse(queue="q", after=1_994, limit=10))
    assert [one.sequence for one in last] == list(range(1_995, 2_001))
