from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_one_message_or_none_without_max_and_a_list_with_max(ps: Any) -> None:
    orders = ps.create_queue("orders")
    assert orders.receive() is None
    assert orders.receive(5) == []
    orders.send_many([b"a", b"b", b"c"])
    assert orders.receive().body == b"a"
    assert [message.body for message in orders.receive(5)] == [b"b", b"c"]


def test_receiving_from_a_queue_that_is_not_there_is_an_error(ps: Any) -> None:
    with pytest.raises(penstock.QueueNotFound):
        ps.queue("nowhere").receive()


def test_a_leased_message_is_nobody_elses_until_its_lease_ends(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    message = orders.receive(lease=10)
    assert message.lease_ends_at == world.clock.now_ms() / 1_000 + 10
    assert orders.receive() is None
    world.advance(10)
    again = orders.receive()
    assert again.attempts == 2
    assert [failure.error for failure in again.history] == ["lease expired"]


def test_extending_keeps_the_lease(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    message = orders.receive(lease=10)
    world.advance(9)
    message.extend(10)
    assert message.lease_ends_at == world.clock.now_ms() / 1_000 + 10
    world.advance(9)
    assert orders.receive() is None
    message.ack()
    assert orders.stats().messages == 0


def test_a_lease_cannot_be_extended_past_twelve_hours_from_the_receive(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    message = orders.receive(lease=60)
    world.advance(1)
    with pytest.raises(penstock.LeaseTooLong):
        message.extend(12 * 3600)
    message.extend(12 * 3600 - 1)


def test_extending_by_nothing_gives_the_message_back(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.receive().extend(0)
    assert orders.receive().attempts == 2


def test_a_waiting_receive_gets_what_is_sent_meanwhile(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders")
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive(wait=20)))
    receiver.start()
    world.wait_for_receivers("orders")
    orders.send(b"here")
    receiver.join(10)
    assert [message.body for message in received] == [b"here"]


def test_a_wait_that_runs_out_gives_none(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders")
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive(wait=20)))
    receiver.start()
    world.wait_for_receivers("orders")
    world.advance(20)
    receiver.join(10)
    assert received == [None]


def test_a_message_that_comes_due_wakes_who_waits(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders")
    orders.send(b"later", delay=5)
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive(wait=20)))
    receiver.start()
    world.wait_for_receivers("orders")
    world.advance(5)
    receiver.join(10)
    assert [message.body for message in received] == [b"later"]


def test_the_queues_own_wait_holds_when_a_receive_does_not_say(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders", receive_wait=3)
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive()))
    receiver.start()
    world.wait_for_receivers("orders")
    world.advance(3)
    receiver.join(10)
    assert received == [None]


def test_deleting_the_queue_ends_a_wait_with_an_error(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders")
    errors: list[BaseException] = []

    def receive() -> None:
        try:
            orders.receive(wait=20)
        except penstock.PenstockError as error:
            errors.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    world.wait_for_receivers("orders")
    orders.delete()
    receiver.join(10)
    assert [type(error) for error in errors] == [penstock.QueueNotFound]


def test_closing_ends_a_wait_with_nothing(world: World, ps: Any) -> None:
    orders = ps.create_queue("orders")
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(orders.receive(wait=20)))
    receiver.start()
    world.wait_for_receivers("orders")
    ps.close()
    receiver.join(10)
    assert received == [None]


def test_a_fifo_queue_gives_the_same_messages_again_for_the_same_attempt_id(ps: Any) -> None:
    orders = ps.create_queue("orders", kind="fifo")
    orders.send_many([b"1", b"2"], groups=["g", "g"], dedup_ids=["1", "2"])
    first = orders.receive(2, attempt_id="try")
    assert orders.receive(2) == []
    again = orders.receive(2, attempt_id="try")
    assert [message.sequence for message in again] == [message.sequence for message in first]
    assert [message.attempts for message in again] == [1, 1]
