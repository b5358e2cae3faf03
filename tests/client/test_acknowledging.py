from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_an_acknowledged_message_is_gone(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.receive().ack()
    world.advance(60)
    assert orders.receive() is None
    assert orders.stats().messages == 0


def test_a_message_cannot_be_acknowledged_twice(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    message = orders.receive()
    message.ack()
    with pytest.raises(penstock.StaleReceipt):
        message.ack()


def test_a_late_ack_counts_while_nobody_else_has_the_message(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    message = orders.receive(lease=1)
    world.advance(2)
    message.ack()
    assert orders.receive() is None


def test_an_ack_is_refused_when_somebody_else_has_the_message(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    late = orders.receive(lease=1)
    world.advance(2)
    orders.receive().ack()
    with pytest.raises(penstock.StaleReceipt):
        late.ack()


def test_a_released_message_comes_again_with_its_history(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.receive().release(error="no printer")
    message = orders.receive()
    assert message.attempts == 2
    assert [(failure.attempt, failure.error) for failure in message.history] == [(1, "no printer")]
    assert message.first_received_at == message.sent_at


def test_a_release_with_a_delay_keeps_the_message_back(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.receive().release(delay=30)
    assert orders.receive() is None
    world.advance(30)
    assert orders.receive().attempts == 2


def test_receipts_settle_from_anywhere(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c", b"d"])
    receipts = [message.receipt for message in orders.receive(4)]
    assert orders.ack(receipts[0]) == 1
    assert orders.extend(receipts[1], 60) == 1
    assert orders.release([receipts[2]], error="again") == 1
    assert orders.ack([receipts[1], receipts[3]]) == 2
    assert [message.body for message in orders.receive(4)] == [b"c"]


def test_good_receipts_are_settled_beside_a_stale_one(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    receipts = [message.receipt for message in orders.receive(3)]
    orders.ack(receipts[1])
    with pytest.raises(penstock.StaleReceipt, match="1 of 3"):
        orders.ack(receipts)
    assert orders.stats().messages == 0


def test_a_receipt_of_another_queue_or_channel_is_foreign(ps: Any) -> None:
    orders, others = ps.queue("orders"), ps.queue("others")
    audit = orders.channel("audit")
    orders.send(b"x")
    others.send(b"y")
    receipt = orders.receive().receipt
    with pytest.raises(penstock.ForeignReceipt):
        others.ack(receipt)
    with pytest.raises(penstock.ForeignReceipt):
        audit.ack(receipt)
    with pytest.raises(penstock.ForeignReceipt):
        orders.ack(audit.receive().receipt)
    assert orders.ack(receipt) == 1


@pytest.mark.parametrize("forge", [lambda receipt: receipt[:-4] + "AAAA", lambda receipt: "", lambda receipt: "näh"])
def test_a_changed_receipt_is_forged(ps: Any, forge: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    with pytest.raises(penstock.ForgedReceipt):
        orders.ack(forge(orders.receive().receipt))


def test_a_message_in_a_block_is_acknowledged(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    with orders.receive() as message:
        assert message.body == b"x"
    assert orders.stats().messages == 0


def test_a_message_whose_block_fails_is_released_with_the_error_and_the_error_goes_on(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    with pytest.raises(ValueError, match="no such customer"), orders.receive():
        raise ValueError("no such customer")
    again = orders.receive()
    assert [failure.error for failure in again.history] == ["ValueError: no such customer"]


def test_a_message_settled_inside_its_block_is_left_alone(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b"])
    with orders.receive() as message:
        message.release(error="not now")
    assert orders.receive().attempts == 2
    with pytest.raises(KeyError), orders.receive() as message:
        message.ack()
        raise KeyError
    main = orders.stats().channels["main"]
    assert (main.acked, main.failed, main.leased, main.ready) == (1, 1, 1, 0)


def test_an_error_in_the_block_is_not_hidden_by_a_lease_that_is_over(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    with pytest.raises(ValueError, match="the real one"), orders.receive(lease=1):
        world.advance(2)
        orders.receive()
        raise ValueError("the real one")


def test_a_batch_is_read_and_acknowledged_as_one(ps: Any) -> None:
    orders = ps.queue("orders")
    bodies = [f"body {number}".encode() for number in range(1_000)]
    orders.send_many(bodies)
    batch = orders.receive_batch(1_000)
    assert len(batch) == 1_000 and batch
    assert batch.bodies == bodies
    assert batch.ack() == 1_000
    assert orders.stats().messages == 0


def test_a_batch_shows_its_bodies_in_arrows_layout_without_copying(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"zero", b"one", b"", b"three"])
    orders.receive().ack()
    (run,) = orders.receive_batch(10).runs
    assert len(run) == 3
    bounds = run.offsets.tolist()
    assert run.offsets.dtype == "int32"
    assert [bytes(run.buffer[low:high]) for low, high in pairwise(bounds)] == [b"one", b"", b"three"]
    assert run.bodies == [b"one", b"", b"three"]
    assert run.attempts == [1, 1, 1]


def test_a_batch_with_different_attempts_is_settled_as_one(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    first, second, third = orders.receive(3)
    second.release()
    third.release()
    first.release()
    second, third, first = orders.receive(3)
    second.release(delay=0)
    first.ack()
    third.release(delay=0)
    orders.send(b"d")
    batch = orders.receive_batch(10)
    assert batch.ack() == 3
    assert orders.stats().messages == 0


def test_a_part_of_a_batch_is_settled_by_itself_and_the_rest_is_given_back_as_if_never_received(ps: Any) -> None:
    orders = ps.queue("orders")
    for low in (0, 4):
        orders.send_many([str(number).encode() for number in range(low, low + 4)])
    orders.receive().release(delay=0)
    batch = orders.receive_batch(10)
    assert [part.bodies for part in (batch[:2], batch[2:6], batch[6:])] == [
        [b"0", b"1"],
        [b"2", b"3", b"4", b"5"],
        [b"6", b"7"],
    ]
    assert (batch[:3].ack(), batch[3:].give_back(), batch[8:].give_back()) == (3, 5, 0)
    again = orders.receive_batch(10)
    assert [(message.body, message.attempts) for message in again] == [(str(n).encode(), 1) for n in range(3, 8)]
    assert ps.queue("orders").stats().channels["main"].failed == 1


@pytest.mark.parametrize("part", [0, slice(None, None, 2)])
def test_a_batch_is_cut_by_plain_slices_only(ps: Any, part: Any) -> None:
    with pytest.raises(penstock.InvalidRequest, match="messages"):
        ps.create_queue("orders").receive_batch(10)[part]


def test_an_empty_batch_is_false_and_settles_nothing(ps: Any) -> None:
    batch = ps.create_queue("orders").receive_batch(10)
    assert not batch
    assert (batch.ack(), batch.release(), batch.extend(1)) == (0, 0, 0)
    assert batch.bodies == [] and batch.messages() == []


def test_a_batch_is_released_and_extended_as_one(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    batch = orders.receive_batch(3, lease=5)
    assert batch.extend(60) == 3
    world.advance(30)
    assert orders.receive() is None
    assert batch.release(error="all of it") == 3
    assert [message.history[0].error for message in orders.receive(3)] == ["all of it"] * 3


def test_a_batch_in_a_block_settles_like_a_message(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b"])
    with pytest.raises(ValueError), orders.receive_batch(2):
        raise ValueError("both")
    with orders.receive_batch(2) as batch:
        assert [message.history[0].error for message in batch] == ["ValueError: both"] * 2
    assert orders.stats().messages == 0


def test_single_messages_of_a_batch_are_settled_one_by_one(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    batch = orders.receive_batch(3)
    batch.messages()[1].ack()
    with pytest.raises(penstock.StaleReceipt, match="1 of 3"):
        batch.ack()
    assert orders.stats().messages == 0


def test_a_message_that_always_fails_leaves_the_others_every_other_receive(ps: Any) -> None:
    ps.create_queue("in", max_receives=0)
    ps.queue("in").send_many([b"bad", b"1", b"2", b"3"])
    got = []
    for _ in range(7):
        message = ps.queue("in").receive()
        got.append(message.body)
        if message.body == b"bad":
            message.release(delay=0, error="again")
        else:
            message.ack()
    assert got == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3"]


def test_by_default_what_failed_twice_waits_before_it_is_tried_again(world: World, ps: Any) -> None:
    ps.queue("in").send(b"1")
    for _ in range(2):
        with pytest.raises(ValueError), ps.queue("in").receive():
            raise ValueError("down")
    assert ps.queue("in").receive() is None
    world.advance(1)
    assert ps.queue("in").receive().attempts == 3
