"""Sessions: who holds leases, and what happens when they go."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, SessionNotFound
from tests.core.driver import HOUR_MS, Desk, attempts_of, bodies_of


def test_end_of_a_session_gives_back_all_that_it_holds_in_one_commit() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker"))
    desk.create("p", channels=("main", "tap"))
    desk.send(b"a", b"b", b"c")
    desk.send(b"d", queue="p")
    desk.receive(2, session=session)
    desk.receive(1)
    desk.receive(1, queue="p", session=session)
    desk.receive(1, queue="p", channel="tap", session=session)
    assert desk.do(c.EndSession(session=session), commit=False) == 4
    assert desk.broker.must_commit
    desk.commit()
    assert desk.counts() == (2, 1, 0)
    assert desk.counts("p") == desk.counts("p", "tap") == (1, 0, 0)
    assert attempts_of(desk.receive(10)) == [2, 2]


def test_session_that_ended_cannot_receive_heartbeat_or_end() -> None:
    desk = Desk()
    desk.create()
    session = desk.do(c.OpenSession(name="worker"))
    desk.do(c.EndSession(session=session))
    for command in (
        c.Receive(queue="q", session=session),
        c.Subscribe(queue="q", session=session, credit=1, ticket="t"),
        c.Heartbeat(session=session),
        c.EndSession(session=session),
    ):
        with pytest.raises(SessionNotFound):
            desk.do(command)


def test_silent_session_ends_by_itself_and_a_heartbeat_keeps_it() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker", ttl_ms=10_000))
    desk.send(b"a")
    desk.receive(session=session, lease_ms=HOUR_MS)
    desk.advance(9_000)
    desk.do(c.Heartbeat(session=session))
    desk.advance(9_999)
    assert desk.counts() == (0, 1, 0)
    desk.advance(1)
    assert desk.counts() == (1, 0, 0)
    with pytest.raises(SessionNotFound):
        desk.do(c.Heartbeat(session=session))
    (seen,) = desk.browse()
    assert [(failure.session, failure.error) for failure in seen.failures] == [("worker", "session expired")]


def test_sessions_and_what_they_hold_survive_a_restart() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker", ttl_ms=10_000))
    desk.send(b"a", b"b")
    desk.receive(1, session=session, lease_ms=HOUR_MS)
    desk.reopen(30_000)
    desk.advance(9_999)
    assert desk.counts() == (1, 1, 0), "while the store was closed nobody could hear a heartbeat: its time begins again"
    desk.advance(1)
    assert bodies_of(desk.receive(10)) == [b"a", b"b"]


def test_session_that_is_heard_of_after_a_restart_keeps_what_it_holds() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker", ttl_ms=10_000))
    desk.send(b"a")
    desk.receive(1, session=session, lease_ms=HOUR_MS)
    desk.reopen(30_000)
    desk.advance(9_999)
    desk.do(c.Heartbeat(session=session))
    desk.advance(9_999)
    assert desk.counts() == (0, 1, 0)
    desk.advance(1)
    assert desk.counts() == (1, 0, 0)


def test_session_number_is_not_given_twice_even_after_a_crash() -> None:
    desk = Desk()
    first = desk.do(c.OpenSession(name="first"), commit=False)
    if desk.broker.must_commit:
        desk.commit()
    desk.reopen()
    assert desk.do(c.OpenSession(name="second")) != first


def test_end_of_a_session_answers_those_who_wait_for_it() -> None:
    desk = Desk()
    desk.create()
    session = desk.do(c.OpenSession(name="worker"))
    desk.wait("poll", session=session)
    desk.do(c.EndSession(session=session))
    (delivery,) = desk.woken["poll"]
    assert delivery.count == 0
    desk.send(b"a")
    assert desk.counts() == (1, 0, 0)


def test_end_of_a_session_ends_its_subscriptions() -> None:
    desk = Desk()
    desk.create()
    session = desk.do(c.OpenSession(name="worker"))
    subscribed = desk.do(c.Subscribe(queue="q", session=session, credit=5, ticket="push"))
    desk.do(c.EndSession(session=session))
    desk.send(b"a")
    assert desk.counts() == (1, 0, 0)
    with pytest.raises(SessionNotFound):
        desk.do(c.AddCredit(subscription=subscribed.subscription, credit=1))


def test_time_to_live_must_be_positive() -> None:
    with pytest.raises(InvalidRequest):
        Desk().do(c.OpenSession(name="worker", ttl_ms=0))


def test_what_a_process_holds_stays_leased_when_it_closes_in_order_although_its_broker_was_opened_again() -> None:
    desk = Desk(checks=False)
    desk.broker.in_process = True
    desk.create()
    desk.send(b"x")
    desk.receive(1)
    first = desk.broker
    desk.broker = desk.opened_anew()
    desk.broker.in_process = True
    desk.broker.adopt(first, ())
    desk.broker.leave_sessions()
    desk.commit()
    desk.broker = desk.opened_anew()
    assert desk.broker.end_bound_sessions() == 0
    assert desk.counts() == (0, 1, 0)
