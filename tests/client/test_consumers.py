from __future__ import annotations

from typing import Any

import pytest

import penstock
from tests.client.adapter import World


def test_a_consumer_reads_by_offset_and_leases_nothing(ps: Any) -> None:
    orders = ps.queue("orders")
    sent = orders.send_many([b"a", b"b", b"c"], attributes=[{"n": 1}, None, None])
    reader = orders.consumer("report")
    records = reader.read(2)
    assert [(record.offset, record.body, record.id) for record in records] == [
        (0, b"a", sent[0].id),
        (1, b"b", sent[1].id),
    ]
    assert records[0].attributes == {"n": 1}
    assert (records.next_offset, records.end_offset) == (2, 3)
    assert len(orders.receive(9)) == 3


def test_a_consumer_goes_on_from_what_it_acknowledged(world: World, ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    reader = orders.consumer("report")
    assert reader.offset is None
    records = reader.read(2)
    assert reader.ack(records[0]) == 1
    assert reader.offset == 1
    assert reader.ack(records.next_offset) == 2
    world.restart()
    reader = world.ps.queue("orders").consumer("report")
    assert [record.body for record in reader.read()] == [b"c"]


def test_reading_from_an_offset_does_not_move_the_consumer(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    reader = orders.consumer("report")
    reader.ack(1)
    assert [record.body for record in reader.read(offset=2)] == [b"c"]
    assert [record.body for record in reader.read()] == [b"b", b"c"]


def test_going_back_is_refused_unless_allowed(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b"])
    reader = orders.consumer("report")
    reader.ack(2)
    with pytest.raises(penstock.RewindRefused):
        reader.ack(1)
    assert reader.ack(0, allow_rewind=True) == 0
    assert len(reader.read()) == 2


def test_messages_are_kept_for_a_consumer_until_it_has_read_them(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"a")
    reader = orders.consumer("report")
    reader.ack(0)
    orders.receive().ack()
    assert [record.body for record in reader.read()] == [b"a"]


def test_a_deleted_consumer_is_forgotten(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"a")
    reader = orders.consumer("report")
    reader.ack(1)
    reader.delete()
    assert reader.offset is None
