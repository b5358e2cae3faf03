from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.client.adapter import World, in_process_only


def test_messages_survive_a_crash(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"], attributes=[{"n": 1}, {"n": 2}])
    ps.queue("later").send(b"c", delay=60)
    world.crash()
    assert [message.attributes for message in world.ps.queue("orders").receive(9)] == [{"n": 1}, {"n": 2}]
    assert world.ps.queue("later").receive() is None
    world.advance(60)
    assert world.ps.queue("later").receive().body == b"c"


def test_acknowledged_messages_do_not_come_back_after_a_crash(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b", b"c"])
    ps.queue("orders").receive(2)[1].ack()
    world.crash()
    world.advance(60)
    assert [message.body for message in world.ps.queue("orders").receive(9)] == [b"a", b"c"]


@in_process_only
def test_leases_attempts_and_receipts_survive_a_restart(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    ps.queue("orders").receive().release(error="first try")
    message = ps.queue("orders").receive(lease=60)
    receipt, identity = message.receipt, message.id
    world.restart()
    orders = world.ps.queue("orders")
    assert [message.body for message in orders.receive(9)] == [b"b"]
    (seen,) = orders.browse(states=[penstock.State.LEASED], limit=1)
    assert (seen.id, seen.attempts, seen.history[0].error) == (identity, 2, "first try")
    assert orders.ack(receipt) == 1
    with pytest.raises(penstock.StaleReceipt):
        orders.ack(receipt)


@in_process_only
def test_a_lease_that_had_its_time_to_be_written_survives_a_crash(world: World, ps: Any) -> None:
    ps.queue("orders").send(b"a")
    receipt = ps.queue("orders").receive(lease=60).receipt
    world.advance(0.02)
    world.crash()
    assert world.ps.queue("orders").receive() is None
    assert world.ps.queue("orders").ack(receipt) == 1


def test_a_lease_runs_out_while_nobody_is_there(world: World, ps: Any) -> None:
    ps.queue("orders").send(b"a")
    ps.queue("orders").receive(lease=60)
    world.shut()
    world.clock.advance_ms(60_000)
    world.open()
    assert world.ps.queue("orders").receive().attempts == 2


def test_a_message_that_may_be_consumed_once_is_not_handed_out_again_after_a_crash(world: World, ps: Any) -> None:
    ps.create_queue("orders", policy="consume_once")
    ps.queue("orders").send(b"a")
    assert ps.queue("orders").receive(lease=5).body == b"a"
    world.crash()
    world.advance(5)
    assert world.ps.queue("orders").receive() is None


def test_duplicates_are_known_after_a_restart(world: World, ps: Any) -> None:
    ps.create_queue("orders", kind="fifo")
    ps.queue("orders").send(b"pay", group="a", dedup_id="1")
    ps.queue("orders").receive().ack()
    world.restart()
    assert world.ps.queue("orders").send(b"pay", group="a", dedup_id="1").duplicate


def test_a_closed_store_refuses_everything_clearly(ps: Any) -> None:
    ps.close()
    ps.close()
    with pytest.raises((penstock.ShardClosed, penstock.NotSent), match=r"open it again|connect again"):
        ps.queue("orders").send(b"x")
