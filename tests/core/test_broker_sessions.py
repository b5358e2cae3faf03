"""Sessions: who holds leases, and what happens when they go."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest, SessionNotFound
from tests.core.driver import HOUR_MS, BrokerDriver, attempts_of, bodies_of


def test_end_of_a_session_gives_back_all_that_it_holds_in_one_commit() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker"))
    driver.create("p", channels=("main", "tap"))
    driver.send(b"a", b"b", b"c")
    driver.send(b"d", queue="p")
    driver.receive(2, session=session)
    driver.receive(1)
    driver.receive(1, queue="p", session=session)
    driver.receive(1, queue="p", channel="tap", session=session)
    assert driver.do(c.EndSession(session=session), commit=False) == 4
    assert driver.broker.must_commit
    driver.commit()
    assert driver.counts() == (2, 1, 0)
    assert driver.counts("p") == driver.counts("p", "tap") == (1, 0, 0)
    assert attempts_of(driver.receive(10)) == [2, 2]


def test_session_that_ended_cannot_receive_heartbeat_or_end() -> None:
    driver = BrokerDriver()
    driver.create()
    session = driver.do(c.OpenSession(name="worker"))
    driver.do(c.EndSession(session=session))
    for command in (
        c.Receive(queue="q", session=session),
        c.Subscribe(queue="q", session=session, credit=1, ticket="t"),
        c.Heartbeat(session=session),
        c.EndSession(session=session),
    ):
        with pytest.raises(SessionNotFound):
            driver.do(command)


def test_silent_session_ends_by_itself_and_a_heartbeat_keeps_it() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker", ttl_ms=10_000))
    driver.send(b"a")
    driver.receive(session=session, lease_ms=HOUR_MS)
    driver.advance(9_000)
    driver.do(c.Heartbeat(session=session))
    driver.advance(9_999)
    assert driver.counts() == (0, 1, 0)
    driver.advance(1)
    assert driver.counts() == (1, 0, 0)
    with pytest.raises(SessionNotFound):
        driver.do(c.Heartbeat(session=session))
    (seen,) = driver.browse()
    assert [(failure.session, failure.error) for failure in seen.failures] == [("worker", "session expired")]


def test_sessions_and_what_they_hold_survive_a_restart() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker", ttl_ms=10_000))
    driver.send(b"a", b"b")
    driver.receive(1, session=session, lease_ms=HOUR_MS)
    driver.reopen(30_000)
    driver.advance(9_999)
    assert driver.counts() == (1, 1, 0), (
        "while the store was closed nobody could hear a heartbeat: its time begins again"
    )
    driver.advance(1)
    assert bodies_of(driver.receive(10)) == [b"a", b"b"]


def test_session_that_is_heard_of_after_a_restart_keeps_what_it_holds() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker", ttl_ms=10_000))
    driver.send(b"a")
    driver.receive(1, session=session, lease_ms=HOUR_MS)
    driver.reopen(30_000)
    driver.advance(9_999)
    driver.do(c.Heartbeat(session=session))
    driver.advance(9_999)
    assert driver.counts() == (0, 1, 0)
    driver.advance(1)
    assert driver.counts() == (1, 0, 0)


def test_session_number_is_not_given_twice_even_after_a_crash() -> None:
    driver = BrokerDriver()
    first = driver.do(c.OpenSession(name="first"), commit=False)
    if driver.broker.must_commit:
        driver.commit()
    driver.reopen()
    assert driver.do(c.OpenSession(name="second")) != first


def test_end_of_a_session_answers_those_who_wait_for_it() -> None:
    driver = BrokerDriver()
    driver.create()
    session = driver.do(c.OpenSession(name="worker"))
    driver.wait("poll", session=session)
    driver.do(c.EndSession(session=session))
    (delivery,) = driver.woken["poll"]
    assert delivery.count == 0
    driver.send(b"a")
    assert driver.counts() == (1, 0, 0)


def test_end_of_a_session_ends_its_subscriptions() -> None:
    driver = BrokerDriver()
    driver.create()
    session = driver.do(c.OpenSession(name="worker"))
    subscribed = driver.do(c.Subscribe(queue="q", session=session, credit=5, ticket="push"))
    driver.do(c.EndSession(session=session))
    driver.send(b"a")
    assert driver.counts() == (1, 0, 0)
    with pytest.raises(SessionNotFound):
        driver.do(c.AddCredit(subscription=subscribed.subscription, credit=1))


def test_time_to_live_must_be_positive() -> None:
    with pytest.raises(InvalidRequest):
        BrokerDriver().do(c.OpenSession(name="worker", ttl_ms=0))


def test_what_a_process_holds_stays_leased_when_it_closes_in_order_although_its_broker_was_opened_again() -> None:
    driver = BrokerDriver(checks=False)
    driver.broker.in_process = True
    driver.create()
    driver.send(b"x")
    driver.receive(1)
    first = driver.broker
    driver.broker = driver.opened_anew()
    driver.broker.in_process = True
    driver.broker.adopt(first, ())
    driver.broker.leave_sessions()
    driver.commit()
    driver.broker = driver.opened_anew()
    assert driver.broker.end_bound_sessions() == 0
    assert driver.counts() == (0, 1, 0)
