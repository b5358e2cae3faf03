"""What was to happen at a time, and is overtaken: its queue is deleted, or its client was heard of again."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.queues.config import DEDUP_WINDOW_MS
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, Desk, bodies_of


def filled(kind: str) -> Desk:
    """A queue with everything in it that waits for a time: a lease, a far message, retention, dedup, a consumer."""
    desk = Desk()
    settings: dict[str, Any] = {"retention_ms": DAY_MS, "consumer_retention_ms": HOUR_MS, "lease_ms": MINUTE_MS}
    desk.create(kind=kind, **settings)
    if kind == "fifo":
        desk.send_fifo("g", b"a")
        desk.receive(attempt_id="try 1")
    else:
        desk.send(b"a")
        desk.send(b"far", delay_ms=HOUR_MS)
        desk.receive()
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    return desk


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_nothing_happens_for_a_queue_that_was_deleted_meanwhile(kind: str) -> None:
    desk = filled(kind)
    desk.do(c.DeleteQueue(name="q"))
    desk.create(kind=kind)
    desk.advance(2 * DAY_MS)
    assert desk.stats().messages == 0
    assert desk.broker.next_deadline() is None


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_everything_has_its_time_in_a_queue_that_stays(kind: str) -> None:
    desk = filled(kind)
    desk.advance(MINUTE_MS)
    assert desk.counts()[0] == 1, "the lease is over"
    desk.advance(2 * HOUR_MS)
    assert desk.stats().consumers == {}
    desk.advance(2 * DAY_MS)
    assert desk.stats().messages == 0
    assert desk.broker.next_deadline() is None


def test_a_client_that_names_its_commands_is_remembered_while_it_is_heard_of() -> None:
    desk = Desk()
    desk.create()
    for number in range(3):
        desk.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", number)))
        desk.advance(DEDUP_WINDOW_MS - MINUTE_MS)
    known = desk.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", 2)))
    assert (known.first, desk.stats().messages) == (2, 3), "it was done before"
    desk.advance(DEDUP_WINDOW_MS)
    assert desk.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", 2))).first == 3
    assert desk.broker.memory.expires_ms("nobody") is None


def test_a_broker_that_stands_still_does_nothing_for_time_alone() -> None:
    desk = Desk()
    desk.create(lease_ms=MINUTE_MS)
    desk.send(b"a")
    desk.receive()
    desk.broker.stands_still = True
    desk.step(at_ms=desk.now_ms + 2 * MINUTE_MS)
    assert desk.counts() == (0, 1, 0)
    desk.broker.stands_still = False
    desk.step(at_ms=desk.now_ms + MINUTE_MS)
    assert bodies_of(desk.receive()) == [b"a"]
