"""Messages that are due far ahead: acked late, browsed, damaged, dropped, and forgotten in a crash."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.storage import keys
from penstock.core.storage.keys import ChunkKey, LaneKind
from tests.core.driver import DAY_MS, HOUR_MS, BrokerDriver, bodies_of
from tests.store.in_memory import twin_of


def retried(*bodies: bytes, delay_ms: int = DAY_MS) -> tuple[BrokerDriver, c.Delivery]:
    """Messages that failed twice, and wait far ahead; and their last delivery."""
    driver = BrokerDriver()
    driver.create(max_receives=9)
    driver.send(*bodies)
    driver.fail(1)
    delivery = driver.receive(len(bodies))
    driver.release(delivery, delay_ms=delay_ms, error="no good")
    assert driver.counts() == (0, 0, len(bodies))
    return driver, delivery


def far_keys(driver: BrokerDriver) -> list[bytes]:
    return [key for key in driver.chunk_keys() if keys.lane_kind(ChunkKey.unpack(key).lane) == LaneKind.FAR]


def test_a_late_ack_reaches_what_waits_far_ahead() -> None:
    driver, delivery = retried(b"a", b"b", b"c")
    (span,) = delivery.spans()
    middle = c.Span(span.first + 1, span.first + 1, span.attempt)
    assert driver.do(c.Ack(queue="q", spans=[middle])).count == 1
    assert driver.counts() == (0, 0, 2)
    wrong = c.Span(span.first, span.last, span.attempt - 1)
    assert driver.do(c.Ack(queue="q", spans=[wrong])).count == 0, "another attempt"
    assert driver.do(c.Ack(queue="q", spans=[span])).count == 2
    assert driver.stats().messages == 0
    assert far_keys(driver) == []


def test_a_unit_of_work_may_ack_what_waits_far_ahead() -> None:
    driver, delivery = retried(b"a", b"b")
    work = c.CommitWork(acks=[c.Ack(queue="q", spans=delivery.spans())], sends=[], check_only=True)
    driver.do(work)
    assert driver.counts() == (0, 0, 2), "it was only looked at"
    work.check_only = False
    driver.do(work)
    assert driver.counts() == (0, 0, 0)


def test_messages_far_ahead_are_seen_with_their_history() -> None:
    driver, _ = retried(b"a")
    driver.send(b"sent far", delay_ms=2 * DAY_MS)
    failed, sent = driver.browse()
    assert (failed.state, failed.attempts, failed.failures[-1].error) == (State.DELAYED, 2, "no good")
    assert (sent.state, sent.attempts, sent.deadline_ms) == (State.DELAYED, 0, driver.now_ms + 2 * DAY_MS)


def test_a_queue_without_channels_shows_messages_as_a_new_channel_would_see_them() -> None:
    driver = BrokerDriver()
    driver.create(channels=())
    driver.send(b"ready")
    driver.send(b"far", delay_ms=DAY_MS)
    ready, far = driver.browse()
    assert (ready.state, ready.deadline_ms) == (State.READY, 0)
    assert (far.state, far.deadline_ms) == (State.DELAYED, driver.now_ms + DAY_MS)


def test_a_channel_that_is_moved_past_retries_far_ahead_is_done_with_them() -> None:
    driver, delivery = retried(b"a", b"b", b"c")
    (span,) = delivery.spans()
    driver.do(c.AckUpTo(queue="q", channel="main", offset=span.first + 2))
    assert driver.counts() == (0, 0, 1)
    driver.advance(DAY_MS)
    assert bodies_of(driver.receive(9)) == [b"c"]


def test_a_damaged_chunk_far_ahead_is_put_aside_when_its_time_comes() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", delay_ms=DAY_MS)
    driver.send(b"b", delay_ms=DAY_MS + 1)
    driver.damage(far_keys(driver)[0])
    assert driver.stats().oldest_ms is not None, "its key says enough to count its age"
    driver.advance(DAY_MS + HOUR_MS)
    delivery = driver.receive(9)
    assert bodies_of(delivery) == [b"b"]
    driver.ack(delivery)
    stats = driver.stats()
    assert (stats.quarantined, stats.messages) == (1, 0)
    driver.do(c.PurgeQueue(name="q"))
    assert driver.stats().quarantined == 0
    driver.reopen()
    assert driver.stats().quarantined == 0


def test_what_was_delivered_from_far_ahead_just_before_a_crash_can_be_acked_after_it() -> None:
    driver, _ = retried(b"a", b"b")
    before = twin_of(driver.store)
    driver.advance(DAY_MS)
    delivery = driver.receive(2)
    assert bodies_of(delivery) == [b"a", b"b"]
    crashed = BrokerDriver(before, now_ms=driver.now_ms - DAY_MS)
    assert crashed.ack(delivery).count == 2
    assert crashed.stats().messages == 0


def test_retention_by_size_drops_the_oldest_wherever_they_wait() -> None:
    driver = BrokerDriver()
    driver.create(retention_bytes=10)
    driver.send(b"far 1", delay_ms=DAY_MS)
    driver.send(b"12345")
    driver.send(b"67890")
    assert far_keys(driver) == []
    assert bodies_of(driver.receive(9)) == [b"12345", b"67890"]
