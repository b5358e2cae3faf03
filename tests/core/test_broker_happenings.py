"""What happened to messages is told, run by run, to who wants to know; and to nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.commands import MessageEvent
from tests.core.driver import MINUTE_MS, BrokerDriver


def heard(**settings: Any) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(**settings)
    driver.broker.message_events = []
    return driver


def told(driver: BrokerDriver) -> list[MessageEvent]:
    assert driver.broker.message_events is not None
    found, driver.broker.message_events = driver.broker.message_events, []
    return found


def short(driver: BrokerDriver) -> list[tuple[str, int, int, int]]:
    return [(each.what, each.first, each.messages, each.attempt) for each in told(driver)]


def test_the_life_of_messages_is_told_from_send_to_ack() -> None:
    driver = heard()
    session = driver.do(c.OpenSession(name="worker 7"))
    driver.send(b"abc", b"d")
    (sent,) = told(driver)
    assert (sent.what, sent.queue, sent.channel, sent.messages, sent.size) == ("sent", "q", "", 2, 4)
    delivery = driver.receive(2, session=session)
    (received,) = told(driver)
    assert (received.what, received.channel, received.last, received.size) == ("received", "main", 1, 4)
    assert received.session == "worker 7"
    driver.ack(delivery)
    (acked,) = told(driver)
    assert (acked.what, acked.first, acked.messages, acked.attempt) == ("acked", 0, 2, 1)
    assert (acked.session, acked.sent_ms) == ("worker 7", sent.at_ms)


def test_acks_of_parts_are_told_as_they_come() -> None:
    driver = heard()
    driver.send(b"a", b"b", b"c", b"d")
    driver.receive(4)
    told(driver)
    for span in (c.Span(1, 1, 1), c.Span(2, 3, 1)):
        driver.do(c.Ack(queue="q", spans=[span]))
    assert short(driver) == [("acked", 1, 1, 1), ("acked", 2, 2, 1)]


def test_failures_say_whether_somebody_reported_them_and_which_was_the_last() -> None:
    driver = heard(lease_ms=MINUTE_MS, max_receives=2)
    driver.send(b"a")
    driver.receive()
    driver.advance(MINUTE_MS)
    delivery = driver.receive()
    told(driver)
    driver.release(delivery, error="no good")
    assert [(each.what, each.attempt, each.error) for each in told(driver)][:2] == [
        ("released", 2, "no good"),
        ("dead", 2, "no good"),
    ]


def test_a_lease_that_ran_out_is_told_as_expired() -> None:
    driver = heard(lease_ms=MINUTE_MS)
    driver.send(b"a")
    driver.receive()
    told(driver)
    driver.advance(MINUTE_MS)
    assert short(driver) == [("expired", 0, 1, 1)]


def test_a_delivery_that_never_arrived_is_told_as_returned() -> None:
    driver = heard()
    driver.send(b"a", b"b")
    delivery = driver.receive(2)
    told(driver)
    driver.do(c.GiveBack(queue="q", spans=delivery.spans()))
    assert short(driver) == [("returned", 0, 2, 1)]


def test_a_channel_that_is_moved_on_by_offset_is_told_as_passed() -> None:
    driver = heard()
    driver.send(b"a", b"b", b"c")
    told(driver)
    driver.do(c.AckUpTo(queue="q", channel="main", offset=2))
    (passed,) = told(driver)
    assert (passed.what, passed.first, passed.messages) == ("passed", -1, 2)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_nothing_is_gathered_while_nobody_wants_to_know(kind: str) -> None:
    driver = BrokerDriver()
    driver.create(kind=kind)
    driver.send_fifo("g", b"a") if kind == "fifo" else driver.send(b"a")
    driver.ack(driver.receive())
    assert driver.broker.message_events is None
