from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.client.adapter import World
from tests.shards import all_arrived


def bury(ps: Any, body: bytes, error: str = "boom", queue: str = "orders") -> str:
    """Let a message fail until it is dead; returns its id."""
    ps.create_queue(queue, max_receives=2)
    sent = ps.queue(queue).send(body)
    for _ in range(2):
        ps.queue(queue).receive().release(error=error, delay=0)
    all_arrived()
    identity: str = sent.id
    return identity


def test_a_message_that_fails_too_often_becomes_a_dead_letter_with_the_reasons(world: World, ps: Any) -> None:
    ps.create_queue("orders", max_receives=2)
    sent = ps.queue("orders").send(b"x", attributes={"k": "v"})
    sent_at = world.clock.now_ms() / 1_000
    world.advance(1)
    ps.queue("orders").receive().release(error="first")
    ps.queue("orders").receive().release(error="second")
    all_arrived()
    assert ps.queue("orders").stats().messages == 0
    dead = ps.queue("orders.dead").receive()
    assert (dead.id, dead.body, dead.attributes, dead.sent_at) == (sent.id, b"x", {"k": "v"}, sent_at)
    assert [(failure.attempt, failure.error) for failure in dead.history] == [(1, "first"), (2, "second")]
    assert (dead.origin.queue, dead.origin.attempts) == ("orders", 2)


def test_a_redrive_brings_dead_letters_home_with_their_identity(ps: Any) -> None:
    identity = bury(ps, b"x")
    done = ps.redrive("orders.dead").wait(10)
    assert (done.status, done.moved) == ("done", 1)
    message = ps.queue("orders").receive()
    assert (message.id, message.attempts) == (identity, 1)
    assert [failure.error for failure in message.history] == ["boom", "boom"]


def test_a_redrive_goes_elsewhere_when_told(ps: Any) -> None:
    bury(ps, b"x")
    ps.redrive("orders.dead", to="hospital").wait(10)
    assert ps.queue("hospital").receive().body == b"x"


def test_a_redrive_takes_only_what_it_is_told(ps: Any) -> None:
    first = bury(ps, b"one", "disk")
    bury(ps, b"two", "net")
    bury(ps, b"three", "net down")
    bury(ps, b"four", "else")
    ps.redrive("orders.dead", ids=[first]).wait(10)
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"one"]
    ps.redrive("orders.dead", error="net", contains="two").wait(10)
    assert [message.body for message in ps.queue("orders").receive(9)] == [b"two"]
    assert [message.body for message in ps.queue("orders.dead").peek()] == [b"three", b"four"]


def test_a_redrive_of_an_unknown_id_is_refused(ps: Any) -> None:
    bury(ps, b"x")
    with pytest.raises(penstock.MessageNotFound, match="no message"):
        ps.redrive("orders.dead", ids=["00000000-0000-0000-0000-000000000000"])


def test_a_redrive_at_a_rate_can_be_watched_and_cancelled_and_goes_on_after_a_restart(world: World, ps: Any) -> None:
    for _ in range(6):
        bury(ps, b"x")
    redrive = ps.redrive("orders.dead", rate=2)
    world.advance(1)
    before = redrive.progress()
    assert before.status == "running" and 0 < before.moved < 6
    world.restart()
    task, *_ = world.ps.redrives("orders.dead")
    assert task.status == "running"
    world.advance(1)
    task, *_ = world.ps.redrives("orders.dead")
    assert before.moved < task.moved < 6
    moved = task.moved
    world.call(penstock.core.commands.CancelRedrive(task=task.task))
    world.advance(5)
    task, *_ = world.ps.redrives("orders.dead")
    assert (task.status, task.moved) == ("cancelled", moved)


def test_a_queue_without_dead_letters_is_not_redriven_to_where_it_came_from(ps: penstock.Penstock) -> None:
    ps.queue("orders").send(b"tea")
    with pytest.raises(penstock.InvalidRequest, match="'orders' is not a dead-letter queue"):
        ps.redrive("orders")
    assert ps.redrive("orders", to="elsewhere").wait(10).moved == 1


def test_a_backoff_that_is_only_a_word_is_answered_with_the_shapes(ps: penstock.Penstock) -> None:
    with pytest.raises(penstock.InvalidConfig, match="the shapes are none, fixed, linear, exponential"):
        ps.create_queue("orders", backoff="linear")  # type: ignore[arg-type]
