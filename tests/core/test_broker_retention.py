"""Retention: by age, by size, or none."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, BrokerDriver, bodies_of


def test_old_messages_go_whatever_their_state() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS, channels=("main", "tap"))
    driver.send(b"ready", b"leased")
    driver.receive(1, lease_ms=HOUR_MS)
    driver.advance(30_000)
    driver.send(b"young")
    driver.advance(30_000 - 1)
    assert driver.stats().messages == 3
    driver.advance(1)
    assert driver.stats().messages == 1
    assert driver.counts() == driver.counts(channel="tap") == (1, 0, 0)
    assert bodies_of(driver.receive(10)) == [b"young"]


def test_retention_counts_on_over_a_restart() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"a")
    driver.reopen(MINUTE_MS - 1)
    assert driver.counts() == (1, 0, 0)
    driver.advance(1)
    assert driver.counts() == (0, 0, 0)
    assert driver.chunk_keys() == []


def test_message_sent_with_a_delay_is_kept_until_it_could_be_received() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"near", delay_ms=5 * MINUTE_MS)
    driver.send(b"far", delay_ms=400 * DAY_MS)
    driver.advance(5 * MINUTE_MS)
    assert bodies_of(driver.receive(lease_ms=1)) == [b"near"]
    driver.advance(400 * DAY_MS - 5 * MINUTE_MS)
    assert bodies_of(driver.receive(10)) == [b"far"]
    driver.advance(2 * MINUTE_MS)
    assert driver.stats().messages == 0


def test_messages_in_the_retry_lane_grow_old_as_well() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"a")
    driver.fail(2)
    driver.advance(MINUTE_MS)
    assert driver.counts() == (0, 0, 0)
    assert driver.chunk_keys() == []


def test_no_retention_keeps_messages_for_years() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a")
    driver.reopen(3_000 * DAY_MS)
    assert bodies_of(driver.receive()) == [b"a"]


def test_shorter_retention_holds_for_what_is_there() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.advance(HOUR_MS)
    driver.send(b"b")
    driver.change(retention_ms=MINUTE_MS)
    driver.advance(0)
    assert bodies_of(driver.receive(10)) == [b"b"]


def test_oldest_messages_go_when_the_queue_is_too_large() -> None:
    driver = BrokerDriver()
    driver.create(retention_bytes=250)
    for number in range(4):
        driver.send(b"%d" % number * 100)
    assert driver.stats().bytes == 200
    assert [body[:1] for body in bodies_of(driver.receive(10))] == [b"2", b"3"]


def test_newest_messages_stay_even_if_they_alone_are_too_large() -> None:
    driver = BrokerDriver()
    driver.create(retention_bytes=50)
    driver.send(b"x" * 100)
    assert driver.counts() == (1, 0, 0)


def test_smaller_size_holds_for_what_is_there() -> None:
    driver = BrokerDriver()
    for _ in range(3):
        driver.send(b"x" * 100)
    driver.change(retention_bytes=150)
    assert driver.stats().bytes == 100


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS])
def test_size_counts_what_is_delayed(delay_ms: int) -> None:
    driver = BrokerDriver()
    driver.create(retention_bytes=150)
    driver.send(b"x" * 100, delay_ms=delay_ms)
    driver.send(b"y" * 100)
    assert driver.stats().bytes <= 150


def test_deadline_does_not_stay_when_everything_is_gone() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"a")
    driver.ack(driver.receive())
    driver.advance(HOUR_MS)
    assert driver.broker.next_deadline() is None


def test_dropped_messages_cannot_be_acked() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=MINUTE_MS)
    driver.send(b"a")
    delivery = driver.receive(lease_ms=HOUR_MS)
    driver.advance(MINUTE_MS)
    assert driver.ack(delivery).count == 0
    assert driver.do(c.ReadRecords(queue="q", offset=0)).runs == []


def test_a_restart_takes_nothing_for_its_size_that_was_kept_before() -> None:
    driver = BrokerDriver()
    driver.create(retention_bytes=10)
    driver.send(b"one", b"two")
    driver.send(b"last")
    for _ in range(2):
        driver.release(driver.receive(1), delay_ms=0)
    assert driver.stats().bytes == 13, "with a copy in the retry lane"
    driver.reopen()
    assert sorted(bodies_of(driver.receive(9))) == [b"last", b"one", b"two"]
