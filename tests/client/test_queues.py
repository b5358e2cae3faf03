from __future__ import annotations

from typing import Any

import pytest

import penstock


def test_a_handle_creates_nothing(ps: Any) -> None:
    ps.queue("orders")
    assert ps.queues() == []


def test_queues_are_listed_by_prefix_in_order(ps: Any) -> None:
    for name in ("b", "a.2", "a.1"):
        ps.create_queue(name)
    assert ps.queues() == ["a.1", "a.2", "b"]
    assert ps.queues(prefix="a.") == ["a.1", "a.2"]


def test_settings_are_seconds_and_are_kept(ps: Any) -> None:
    ps.create_queue("orders", lease=5, retention=3600, delay=0.5, backoff=penstock.Backoff("fixed", base_ms=10))
    config = ps.queue("orders").info().config
    assert (config.lease_ms, config.retention_ms, config.delay_ms) == (5_000, 3_600_000, 500)
    assert config.backoff.shape == "fixed"


def test_creating_again_is_fine_with_the_same_settings_only(ps: Any) -> None:
    ps.create_queue("orders", lease=5)
    ps.create_queue("orders", lease=5)
    with pytest.raises(penstock.QueueExists):
        ps.create_queue("orders", lease=6)


def test_a_setting_can_be_changed(ps: Any) -> None:
    ps.create_queue("orders")
    assert ps.queue("orders").configure(lease=7).config.lease_ms == 7_000
    assert ps.queue("orders").info().config.lease_ms == 7_000


@pytest.mark.parametrize("settings", [{"lease": -1}, {"lease": 13 * 3600}, {"leese": 1}, {"kind": "strange"}])
def test_a_wrong_setting_is_refused(ps: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(penstock.InvalidRequest):
        ps.create_queue("orders", **settings)
    assert ps.queues() == []


def test_a_wrong_name_is_refused(ps: Any) -> None:
    with pytest.raises(penstock.InvalidName):
        ps.queue("no spaces").send(b"x")


def test_purging_drops_everything_and_says_how_many(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"a", b"b", b"c"])
    orders.receive()
    assert orders.purge() == 3
    assert orders.receive() is None
    assert orders.stats().messages == 0


def test_deleting_takes_the_queue_away(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.delete()
    assert ps.queues() == []
    with pytest.raises(penstock.QueueNotFound):
        orders.stats()


def test_counts_are_exact(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send_many([b"abc"] * 5)
    orders.send(b"later", delay=60)
    orders.receive(2)
    orders.receive().ack()
    main = orders.stats().channels["main"]
    assert (main.ready, main.leased, main.delayed, main.acked) == (2, 2, 1, 1)


def test_looking_takes_nothing(ps: Any) -> None:
    orders = ps.queue("orders")
    sent = orders.send_many([b"apple", b"pear", b"apple pie"])
    orders.receive()
    orders.send(b"later", delay=60)
    seen = orders.peek()
    assert [(message.body, message.state.name, message.attempts) for message in seen] == [
        (b"apple", "LEASED", 1),
        (b"pear", "READY", 0),
        (b"apple pie", "READY", 0),
        (b"later", "DELAYED", 0),
    ]
    assert [message.id for message in seen][:3] == sent.ids
    assert seen[1].until is None and seen[3].until is not None
    assert len(orders.peek(2)) == 2
    assert [message.body for message in orders.search("apple")] == [b"apple", b"apple pie"]
    assert [message.body for message in orders.browse(after=seen[1].sequence, limit=1)] == [b"apple pie"]
    assert [message.body for message in orders.browse(states=[penstock.State.LEASED])] == [b"apple"]


def test_a_failed_message_shows_its_history_to_who_looks(ps: Any) -> None:
    orders = ps.queue("orders")
    orders.send(b"x")
    orders.receive().release(error="no printer")
    (seen,) = orders.peek()
    assert [failure.error for failure in seen.history] == ["no printer"]
