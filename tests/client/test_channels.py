from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_every_channel_gets_every_message(ps: Any) -> None:
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    orders.send_many([b"a", b"b"])
    assert [message.body for message in orders.receive(9)] == [b"a", b"b"]
    assert [message.body for message in audit.receive(9)] == [b"a", b"b"]


def test_a_channel_makes_its_queue_when_nobody_sent_yet(ps: Any) -> None:
    audit = ps.queue("orders").channel("audit")
    assert ps.queues() == ["orders"]
    ps.queue("orders").send(b"x")
    assert audit.receive().body == b"x"


def test_channels_settle_for_themselves(ps: Any) -> None:
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    orders.send(b"x")
    orders.receive().ack()
    message = audit.receive()
    assert (message.channel, message.attempts) == ("audit", 1)
    message.release(error="later")
    assert audit.receive().attempts == 2
    assert audit.stats().leased == 1 and orders.stats().channels["main"].acked == 1


def test_a_channel_starts_at_the_head_at_the_tail_or_at_a_time(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"early")
    world.advance(60)
    noon = world.clock.now_ms() / 1_000
    orders.send(b"noon")
    world.advance(60)
    head, at_noon = orders.channel("head"), orders.channel("noon", start=noon)
    tail = orders.channel("tail", start="tail")
    orders.send(b"late")
    assert [message.body for message in head.receive(9)] == [b"early", b"noon", b"late"]
    assert [message.body for message in tail.receive(9)] == [b"late"]
    assert [message.body for message in at_noon.receive(9)] == [b"noon", b"late"]


def test_a_paused_channel_gives_nothing(ps: Any) -> None:
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    orders.send(b"x")
    audit.pause()
    assert audit.receive() is None
    assert audit.stats().paused
    audit.unpause()
    assert audit.receive().body == b"x"


def test_purging_a_channel_leaves_the_others_alone(ps: Any) -> None:
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    orders.send_many([b"a", b"b"])
    assert audit.purge() == 2
    assert audit.receive() is None
    assert len(orders.receive(9)) == 2


def test_a_deleted_channel_is_gone(ps: Any) -> None:
    audit = ps.queue("orders").channel("audit")
    audit.delete()
    with pytest.raises(penstock.ChannelNotFound):
        audit.receive()
    with pytest.raises(penstock.ChannelNotFound):
        audit.stats()
