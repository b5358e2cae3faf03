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


def test_sessions_tell_what_they_hold_and_one_is_ended_by_its_id(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b", b"c"])
    session = ps.session("worker-1")
    session.queue("orders").receive(2, lease=60)
    idle = ps.session("idle")
    held = [each for each in ps.sessions() if each.leases]
    assert [(each.name, each.held) for each in held] == [("worker-1", 2)]
    (lease,) = held[0].leases
    assert (lease.queue, lease.channel, lease.count, lease.until_ms - lease.since_ms) == ("orders", "main", 2, 60_000)
    assert [each.id for each in ps.sessions("orders")] == [held[0].id]
    assert ps.sessions("orders", limit=1) == held
    assert ps.end_session(held[0].id) == 2
    assert ps.sessions("orders") == []
    assert sorted(message.attempts for message in ps.queue("orders").receive(9)) == [1, 2, 2]
    with pytest.raises(penstock.SessionNotFound):
        session.heartbeat()
    with pytest.raises(penstock.SessionNotFound):
        ps.end_session(held[0].id)
    idle.end()


def test_only_an_id_of_a_session_ends_one(ps: Any) -> None:
    ps.create_queue("orders")
    for wrong in ("", "17", "0-0", "0--1", "0-1x", "worker-1"):
        with pytest.raises(penstock.InvalidRequest, match="not a session id"):
            ps.end_session(wrong)
    session = ps.session("worker-1")
    number = next(each.id for each in ps.sessions() if each.name == "worker-1").split("-")[1]
    with pytest.raises((penstock.SessionNotFound, penstock.InvalidRequest), match="77777"):
        ps.end_session(f"77777-{number}")
    session.heartbeat()
    with pytest.raises(penstock.QueueNotFound):
        ps.sessions("nowhere")
    with pytest.raises(penstock.InvalidRequest, match="limit"):
        ps.sessions(limit=0)
