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
def test_what_a_process_held_when_it_died_is_free_when_the_store_is_opened(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"received", b"taken", b"of a session"])
    ps.queue("orders").receive(lease=3_600)
    ps.unit_of_work().take("orders", lease=3_600)
    ps.session("worker", ttl=3_600).queue("orders").receive(lease=3_600)
    world.advance(0.02)
    world.crash()
    messages = world.ps.queue("orders").receive(9)
    assert [message.body for message in messages] == [b"received", b"taken", b"of a session"]
    assert [message.attempts for message in messages] == [2, 2, 2], "a lease is written after 20 ms"
    failures = [(message.history[0].session, message.history[0].error) for message in messages]
    gone = "the process that held it, or its connection, is gone"
    assert failures == [("", gone), ("", gone), ("worker", gone)]


@in_process_only
def test_a_group_does_not_wait_for_a_process_that_died(world: World, ps: Any) -> None:
    ps.create_queue("orders", kind="fifo", content_dedup=True)
    ps.queue("orders").send_many([b"first", b"second"], groups=["a", "a"])
    ps.unit_of_work().take("orders", lease=3_600)
    world.advance(0.02)
    world.crash()
    assert [message.body for message in world.ps.queue("orders").receive(9)] == [b"first", b"second"]


@in_process_only
def test_a_receipt_of_a_process_that_died_is_good_until_somebody_else_gets_the_message(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    receipts = [message.receipt for message in ps.queue("orders").receive(2)]
    world.advance(0.02)
    world.crash()
    orders = world.ps.queue("orders")
    assert orders.ack(receipts[0]) == 1
    assert orders.receive().body == b"b"
    with pytest.raises(penstock.StaleReceipt):
        orders.ack(receipts[1])


@in_process_only
def test_a_process_that_closes_in_order_and_comes_back_may_still_die(world: World, ps: Any) -> None:
    """What it held when it closed is nobody's, and keeps its time; what it takes after that is its own again."""
    ps.queue("orders").send_many([b"kept", b"taken"])
    ps.queue("orders").receive(lease=60)
    world.restart()
    assert world.ps.queue("orders").receive(lease=60).body == b"taken"
    world.advance(0.02)
    world.crash()
    assert [message.body for message in world.ps.queue("orders").receive(9)] == [b"taken"]
    world.advance(60)
    assert world.ps.queue("orders").receive().body == b"kept"


@in_process_only
def test_a_session_with_a_time_to_live_outlives_a_process_that_closes_in_order(world: World, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    ps.session("for good").queue("orders").receive(lease=60)
    ps.session("for a while", ttl=30).queue("orders").receive(lease=60)
    world.restart()
    assert [message.body for message in world.ps.queue("orders").receive(9, lease=60)] == [b"a"]
    world.advance(29)
    assert world.ps.queue("orders").receive() is None
    world.advance(1)
    assert world.ps.queue("orders").receive().body == b"b"


@in_process_only
def test_what_a_process_holds_outlives_a_failed_commit(world: World, ps: Any) -> None:
    """The broker is opened again, in the same process: that takes nothing from anybody."""
    ps.queue("orders").send_many([b"a", b"b"])
    message = ps.queue("orders").receive(lease=60)
    world.advance(0.02)
    for shard in world.shards:
        shard._broker_is_good = shard._is_well = False
    assert ps.queue("orders").receive(lease=60).body == b"b"
    message.extend(60)
    message.ack()


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
    assert world.ps.queue("orders.dead").receive().body == b"a"


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
