from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_the_end_of_a_session_releases_all_it_holds_at_once(ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b", b"c"])
    session = ps.session("worker-1")
    assert len(session.queue("orders").receive(2)) == 2
    ps.queue("orders").receive()
    assert session.end() == 2
    again = ps.queue("orders").receive(9)
    assert [message.attempts for message in again] == [2, 2]
    failure = again[0].history[0]
    assert (failure.session, failure.error) == ("worker-1", "session ended")


def test_leaving_the_block_ends_the_session(ps: Any) -> None:
    ps.queue("orders").send(b"a")
    with ps.session("worker-1") as session:
        assert session.queue("orders").receive().body == b"a"
    assert ps.queue("orders").receive().attempts == 2
    with pytest.raises(penstock.SessionNotFound):
        session.heartbeat()


def test_a_session_without_heartbeats_ends_by_itself(world: World, ps: Any) -> None:
    ps.queue("orders").send(b"a")
    session = ps.session("worker-1", ttl=10)
    session.queue("orders").receive(lease=600)
    world.advance(9)
    session.heartbeat()
    world.advance(9)
    assert ps.queue("orders").receive() is None
    world.advance(1)
    assert ps.queue("orders").receive().attempts == 2


def test_a_channel_of_a_sessions_queue_leases_for_the_session(ps: Any) -> None:
    session = ps.session("worker-1")
    audit = session.queue("orders").channel("audit")
    ps.queue("orders").send(b"a")
    assert audit.receive().body == b"a"
    assert session.end() == 1
    assert audit.stats().ready == 1


def test_the_end_of_a_session_ends_its_waits(world: World, ps: Any) -> None:
    ps.create_queue("orders")
    session = ps.session("worker")
    outcomes: list[Any] = []

    def receive() -> None:
        try:
            outcomes.append(session.queue("orders").receive(wait=20))
        except penstock.PenstockError as error:
            outcomes.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    world.wait_for_receivers("orders")
    session.end()
    receiver.join(10)
    assert [type(outcome) for outcome in outcomes] == [penstock.SessionNotFound]
