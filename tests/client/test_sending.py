from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_a_sent_message_is_received_with_all_that_was_sent(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    attributes = {"kind": "order", "size": 3, "weight": 0.5, "raw": b"\x00\xff"}
    sent = orders.send(b"hello", attributes=attributes, group="customer-7")
    message = orders.receive()
    assert (message.body, message.text) == (b"hello", "hello")
    assert (message.id, message.sequence) == (sent.id, sent.sequence)
    assert message.attributes == attributes
    assert message.group == "customer-7"
    assert message.sent_at == world.clock.now_ms() / 1_000
    assert message.queue == "orders" and message.channel == "main"


def test_text_is_sent_as_utf8(ps: Any) -> None:
    ps.queue("orders").send("größe")
    assert ps.queue("orders").receive().text == "größe"


def test_a_run_of_messages_gets_consecutive_sequence_numbers_and_different_ids(ps: Any) -> None:
    sent = ps.queue("orders").send_many([b"a", "b", bytearray(b"c")])
    assert len(sent) == 3
    assert list(sent.sequences) == [sent.first, sent.first + 1, sent.first + 2]
    assert len({message.id for message in sent}) == 3
    assert sent[-1] == sent[2] and sent[0:2] == [sent[0], sent[1]]
    assert [message.body for message in ps.queue("orders").receive(10)] == [b"a", b"b", b"c"]


def test_lists_beside_the_bodies_reach_their_messages(ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"], attributes=[{"n": 1}, None], groups=["g", None])
    first, second = sorted(ps.queue("orders").receive(2), key=lambda message: message.sequence)
    assert (first.attributes, first.group) == ({"n": 1}, "g")
    assert (second.attributes, second.group) == ({}, None)


def test_the_senders_list_may_be_used_again(ps: Any) -> None:
    bodies = [b"a", b"b"]
    ps.queue("orders").send_many(bodies)
    bodies[0] = b"changed"
    bodies.clear()
    assert [message.body for message in ps.queue("orders").receive(2)] == [b"a", b"b"]


def test_an_empty_run_sends_nothing(ps: Any) -> None:
    ps.create_queue("orders")
    assert list(ps.queue("orders").send_many([])) == []
    assert ps.queue("orders").stats().messages == 0


@pytest.mark.parametrize("body", [5, None, ["a"]])
def test_a_body_that_is_neither_bytes_nor_text_is_refused(ps: Any, body: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="bytes or text"):
        ps.queue("orders").send(body)
    with pytest.raises(penstock.InvalidRequest, match="bytes or text"):
        ps.queue("orders").send_many([b"good", body])


def test_one_body_instead_of_a_list_is_refused(ps: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="use send"):
        ps.queue("orders").send_many(b"abc")


def test_an_attribute_that_cannot_be_stored_is_refused(ps: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="attribute 'when'"):
        ps.queue("orders").send(b"x", attributes={"when": object()})


def test_a_delayed_message_comes_when_it_is_due(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"later", delay=60)
    orders.send(b"at a time", due=world.clock.now_ms() / 1_000 + 30)
    assert orders.receive() is None
    world.advance(30)
    with orders.receive() as message:
        assert message.body == b"at a time"
    world.advance(30)
    assert orders.receive().body == b"later"


def test_a_negative_delay_is_refused(ps: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="delay is -1"):
        ps.queue("orders").send(b"x", delay=-1)


def test_the_highest_priority_goes_first(ps: Any) -> None:
    orders = ps.queue("orders")
    for priority in (0, 9, 5):
        orders.send(str(priority), priority=priority)
    assert [orders.receive().text for _ in range(3)] == ["9", "5", "0"]


def test_a_duplicate_in_a_fifo_queue_is_told_and_not_added(ps: Any) -> None:
    orders = ps.create_queue("orders", kind="fifo")
    first = orders.send(b"pay", group="a", dedup_id="1")
    again = orders.send(b"pay", group="a", dedup_id="1")
    assert (again.id, again.sequence, again.duplicate) == (first.id, first.sequence, True)
    assert not first.duplicate
    assert orders.stats().messages == 1


def test_a_message_larger_than_the_queue_takes_is_refused(ps: Any) -> None:
    orders = ps.create_queue("orders", message_bytes_max=10)
    with pytest.raises(penstock.MessageTooLarge):
        orders.send(bytes(11))
    assert orders.send(bytes(10)).sequence == 0
