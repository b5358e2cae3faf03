"""What was to happen at a time, and is overtaken: its queue is deleted, or its client was heard of again."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.queues.config import DEDUP_WINDOW_MS
from tests.core.driver import DAY_MS, HOUR_MS, MINUTE_MS, BrokerDriver, bodies_of


def filled(kind: str) -> BrokerDriver:
    """A queue with everything in it that waits for a time: a lease, a far message, retention, dedup, a consumer."""
    driver = BrokerDriver()
    settings: dict[str, Any] = {"retention_ms": DAY_MS, "consumer_retention_ms": HOUR_MS, "lease_ms": MINUTE_MS}
    driver.create(kind=kind, **settings)
    if kind == "fifo":
        driver.send_fifo("g", b"a")
        driver.receive(attempt_id="try 1")
    else:
        driver.send(b"a")
        driver.send(b"far", delay_ms=HOUR_MS)
        driver.receive()
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=0))
    return driver


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_nothing_happens_for_a_queue_that_was_deleted_meanwhile(kind: str) -> None:
    driver = filled(kind)
    driver.do(c.DeleteQueue(name="q"))
    driver.create(kind=kind)
    driver.advance(2 * DAY_MS)
    assert driver.stats().messages == 0
    assert driver.broker.next_deadline() is None


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_everything_has_its_time_in_a_queue_that_stays(kind: str) -> None:
    driver = filled(kind)
    driver.advance(MINUTE_MS)
    assert driver.counts()[0] == 1, "the lease is over"
    driver.advance(2 * HOUR_MS)
    assert driver.stats().consumers == {}
    driver.advance(2 * DAY_MS)
    assert driver.stats().messages == 0
    assert driver.broker.next_deadline() is None


def test_a_client_that_names_its_commands_is_remembered_while_it_is_heard_of() -> None:
    driver = BrokerDriver()
    driver.create()
    for number in range(3):
        driver.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", number)))
        driver.advance(DEDUP_WINDOW_MS - MINUTE_MS)
    known = driver.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", 2)))
    assert (known.first, driver.stats().messages) == (2, 3), "it was done before"
    driver.advance(DEDUP_WINDOW_MS)
    assert driver.do(c.Send(queue="q", bodies=[b"x"], once=c.Once("client", 2))).first == 3
    assert driver.broker.memory.expires_ms("nobody") is None


def test_a_broker_that_stands_still_does_nothing_for_time_alone() -> None:
    driver = BrokerDriver()
    driver.create(lease_ms=MINUTE_MS)
    driver.send(b"a")
    driver.receive()
    driver.broker.stands_still = True
    driver.step(at_ms=driver.now_ms + 2 * MINUTE_MS)
    assert driver.counts() == (0, 1, 0)
    driver.broker.stands_still = False
    driver.step(at_ms=driver.now_ms + MINUTE_MS)
    assert bodies_of(driver.receive()) == [b"a"]
