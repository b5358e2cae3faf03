from __future__ import annotations

import threading
from typing import Any

import penstock
from tests.client.adapter import World


def test_the_end_of_a_session_ends_its_waits(world: World, ps: Any) -> None:
    ps.create_queue("orders")
    session = ps.session("worker")
    outcomes: list[Any] = []

    def receive() -> None:
        try:
            outcomes.append(session.queue("orders").receive(wait=20))
        except penstock.PenstockError as error:
            outcomes.append(error)

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    world.wait_for_receivers("orders")
    session.end()
    receiver.join(2)
    assert [type(outcome) for outcome in outcomes] == [penstock.SessionNotFound]
