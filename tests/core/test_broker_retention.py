"""Retention: by age, by size, or none."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, Desk, bodies_of


def test_old_messages_go_whatever_their_state() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS, channels=("main", "tap"))
    desk.send(b"ready", b"leased")
    desk.receive(1, lease_ms=HOUR_MS)
    desk.advance(30_000)
    desk.send(b"young")
    desk.advance(30_000 - 1)
    assert desk.stats().messages == 3
    desk.advance(1)
    assert desk.stats().messages == 1
    assert desk.counts() == desk.counts(channel="tap") == (1, 0, 0)
    assert bodies_of(desk.receive(10)) == [b"young"]


def test_retention_counts_on_over_a_restart() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS)
    desk.send(b"a")
    desk.reopen(MINUTE_MS - 1)
    assert desk.counts() == (1, 0, 0)
    desk.advance(1)
    assert desk.counts() == (0, 0, 0)
    assert desk.chunk_keys() == []


def test_message_sent_with_a_delay_is_kept_until_it_could_be_received() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS)
    desk.send(b"near", delay_ms=5 * MINUTE_MS)
    desk.send(b"far", delay_ms=400 * DAY_MS)
    desk.advance(5 * MINUTE_MS)
    assert bodies_of(desk.receive(lease_ms=1)) == [b"near"]
    desk.advance(400 * DAY_MS - 5 * MINUTE_MS)
    assert bodies_of(desk.receive(10)) == [b"far"]
    desk.advance(2 * MINUTE_MS)
    assert desk.stats().messages == 0


def test_messages_in_the_retry_lane_grow_old_as_well() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS)
    desk.send(b"a")
    desk.fail(2)
    desk.advance(MINUTE_MS)
    assert desk.counts() == (0, 0, 0)
    assert desk.chunk_keys() == []


def test_no_retention_keeps_messages_for_years() -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"a")
    desk.reopen(3_000 * DAY_MS)
    assert bodies_of(desk.receive()) == [b"a"]


def test_shorter_retention_holds_for_what_is_there() -> None:
    desk = Desk()
    desk.send(b"a")
    desk.advance(HOUR_MS)
    desk.send(b"b")
    desk.change(retention_ms=MINUTE_MS)
    desk.advance(0)
    assert bodies_of(desk.receive(10)) == [b"b"]


def test_oldest_messages_go_when_the_queue_is_too_large() -> None:
    desk = Desk()
    desk.create(retention_bytes=250)
    for number in range(4):
        desk.send(b"%d" % number * 100)
    assert desk.stats().bytes == 200
    assert [body[:1] for body in bodies_of(desk.receive(10))] == [b"2", b"3"]


def test_newest_messages_stay_even_if_they_alone_are_too_large() -> None:
    desk = Desk()
    desk.create(retention_bytes=50)
    desk.send(b"x" * 100)
    assert desk.counts() == (1, 0, 0)


def test_smaller_size_holds_for_what_is_there() -> None:
    desk = Desk()
    for _ in range(3):
        desk.send(b"x" * 100)
    desk.change(retention_bytes=150)
    assert desk.stats().bytes == 100


@pytest.mark.parametrize("delay_ms", [MINUTE_MS, HOUR_MS])
def test_size_counts_what_is_delayed(delay_ms: int) -> None:
    desk = Desk()
    desk.create(retention_bytes=150)
    desk.send(b"x" * 100, delay_ms=delay_ms)
    desk.send(b"y" * 100)
    assert desk.stats().bytes <= 150


def test_deadline_does_not_stay_when_everything_is_gone() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS)
    desk.send(b"a")
    desk.ack(desk.receive())
    desk.advance(HOUR_MS)
    assert desk.broker.next_deadline() is None


def test_dropped_messages_cannot_be_acked() -> None:
    desk = Desk()
    desk.create(retention_ms=MINUTE_MS)
    desk.send(b"a")
    delivery = desk.receive(lease_ms=HOUR_MS)
    desk.advance(MINUTE_MS)
    assert desk.ack(delivery).count == 0
    assert desk.do(c.ReadRecords(queue="q", offset=0)).runs == []


def test_a_restart_takes_nothing_for_its_size_that_was_kept_before() -> None:
    desk = Desk()
    desk.create(retention_bytes=10)
    desk.send(b"one", b"two")
    desk.send(b"last")
    for _ in range(2):
        desk.release(desk.receive(1), delay_ms=0)
    assert desk.stats().bytes == 13, "with a copy in the retry lane"
    desk.reopen()
    assert sorted(bodies_of(desk.receive(9))) == [b"last", b"one", b"two"]
