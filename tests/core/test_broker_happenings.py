"""What happened to messages is told, run by run, to who wants to know; and to nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.happenings import Happening
from tests.core.driver import MINUTE_MS, Desk, spans_of


def heard(**settings: Any) -> Desk:
    desk = Desk()
    desk.create(**settings)
    desk.broker.happenings = []
    return desk


def told(desk: Desk) -> list[Happening]:
    assert desk.broker.happenings is not None
    found, desk.broker.happenings = desk.broker.happenings, []
    return found


def short(desk: Desk) -> list[tuple[str, int, int, int]]:
    return [(each.what, each.first, each.messages, each.attempt) for each in told(desk)]


def test_the_life_of_messages_is_told_from_send_to_ack() -> None:
    desk = heard()
    session = desk.do(c.OpenSession(name="worker 7"))
    desk.send(b"abc", b"d")
    (sent,) = told(desk)
    assert (sent.what, sent.queue, sent.channel, sent.messages, sent.size) == ("sent", "q", "", 2, 4)
    delivery = desk.receive(2, session=session)
    (received,) = told(desk)
    assert (received.what, received.channel, received.last, received.size) == ("received", "main", 1, 4)
    assert received.session == "worker 7"
    desk.ack(delivery)
    (acked,) = told(desk)
    assert (acked.what, acked.first, acked.messages, acked.attempt) == ("acked", 0, 2, 1)
    assert (acked.session, acked.sent_ms) == ("worker 7", sent.at_ms)


def test_acks_of_parts_are_told_as_they_come() -> None:
    desk = heard()
    desk.send(b"a", b"b", b"c", b"d")
    desk.receive(4)
    told(desk)
    for span in (c.Span(1, 1, 1), c.Span(2, 3, 1)):
        desk.do(c.Ack(queue="q", spans=[span]))
    assert short(desk) == [("acked", 1, 1, 1), ("acked", 2, 2, 1)]


def test_failures_say_whether_somebody_reported_them_and_which_was_the_last() -> None:
    desk = heard(lease_ms=MINUTE_MS, max_receives=2)
    desk.send(b"a")
    desk.receive()
    desk.advance(MINUTE_MS)
    delivery = desk.receive()
    told(desk)
    desk.release(delivery, error="no good")
    assert [(each.what, each.attempt, each.error) for each in told(desk)][:2] == [
        ("released", 2, "no good"),
        ("dead", 2, "no good"),
    ]


def test_a_lease_that_ran_out_is_told_as_expired() -> None:
    desk = heard(lease_ms=MINUTE_MS)
    desk.send(b"a")
    desk.receive()
    told(desk)
    desk.advance(MINUTE_MS)
    assert short(desk) == [("expired", 0, 1, 1)]


def test_a_delivery_that_never_arrived_is_told_as_returned() -> None:
    desk = heard()
    desk.send(b"a", b"b")
    delivery = desk.receive(2)
    told(desk)
    desk.do(c.GiveBack(queue="q", spans=spans_of(delivery)))
    assert short(desk) == [("returned", 0, 2, 1)]


def test_a_channel_that_is_moved_on_by_offset_is_told_as_passed() -> None:
    desk = heard()
    desk.send(b"a", b"b", b"c")
    told(desk)
    desk.do(c.AckUpTo(queue="q", channel="main", offset=2))
    (passed,) = told(desk)
    assert (passed.what, passed.first, passed.messages) == ("passed", -1, 2)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_nothing_is_gathered_while_nobody_wants_to_know(kind: str) -> None:
    desk = Desk()
    desk.create(kind=kind)
    desk.send_fifo("g", b"a") if kind == "fifo" else desk.send(b"a")
    desk.ack(desk.receive())
    assert desk.broker.happenings is None
