"""Queues: created, changed, purged, deleted."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.errors import (
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    QueueExists,
    QueueNotFound,
)
from penstock.core.queues.config import Backoff, QueueConfig
from penstock.core.storage import keys
from tests.core.driver import HOUR_MS, Desk, bodies_of


def test_queue_is_created_by_the_first_send() -> None:
    desk = Desk()
    desk.send(b"a", queue="orders")
    assert desk.do(c.DescribeQueue(name="orders")).config == QueueConfig()


def test_send_that_may_not_create_finds_no_queue() -> None:
    desk = Desk()
    with pytest.raises(QueueNotFound, match="orders"):
        desk.send(b"a", queue="orders", create=False)
    assert desk.do(c.ListQueues()) == []


def test_creating_a_queue_again_is_fine_with_the_same_configuration_only() -> None:
    desk = Desk()
    first = desk.create(lease_ms=5_000)
    assert desk.create(lease_ms=5_000) == first
    with pytest.raises(QueueExists, match="different: lease"):
        desk.create(lease_ms=6_000)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 129, "a/b"])
def test_unusable_queue_name_is_refused(name: str) -> None:
    desk = Desk()
    with pytest.raises(InvalidName):
        desk.create(name)
    with pytest.raises(InvalidName):
        desk.send(b"a", queue=name)


def test_refused_channel_name_leaves_no_queue_behind() -> None:
    desk = Desk()
    with pytest.raises(InvalidName):
        desk.create(channels=("main", "not a name"))
    with pytest.raises(InvalidName):
        desk.send(b"a", queue="other", channels=("not a name",))
    assert desk.do(c.ListQueues()) == []


@pytest.mark.parametrize(
    "settings",
    [{"lease_ms": 1.5}, {"kind": "lifo"}, {"max_receives": "3"}, {"backoff": Backoff("sometimes")}],  # type: ignore[arg-type]
)
def test_configuration_that_could_not_be_read_back_is_refused(settings: dict[str, Any]) -> None:
    desk = Desk(checks=False)
    with pytest.raises(InvalidConfig):
        desk.create(**settings)
    desk.reopen()
    assert desk.do(c.ListQueues()) == []


def test_kind_cannot_be_changed() -> None:
    desk = Desk()
    desk.create()
    with pytest.raises(InvalidConfig, match="kind"):
        desk.change(kind="fifo")


def test_changed_lease_holds_for_the_next_receive() -> None:
    desk = Desk()
    desk.send(b"a")
    desk.change(lease_ms=7_000)
    assert desk.receive().deadline_ms == desk.now_ms + 7_000


def test_dead_letter_queue_must_be_another_one_of_the_same_kind() -> None:
    desk = Desk()
    desk.create("other", kind="fifo")
    with pytest.raises(InvalidConfig, match="its own"):
        desk.create(dead_letter="q")
    with pytest.raises(InvalidConfig, match="same kind"):
        desk.create(dead_letter="other")


def test_queues_are_listed_by_name_prefix_and_page() -> None:
    desk = Desk()
    for name in ("b2", "a1", "b1", "b3"):
        desk.create(name)
    assert desk.do(c.ListQueues(prefix="b", limit=2)) == ["b1", "b2"]
    assert desk.do(c.ListQueues(prefix="b", after="b2")) == ["b3"]


def test_message_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    desk = Desk()
    desk.create(message_bytes_max=10)
    desk.send(b"x" * 10)
    with pytest.raises(MessageTooLarge, match="message 1 has 11 bytes"):
        desk.send(b"x", b"y" * 11)
    with pytest.raises(MessageTooLarge):
        desk.send(b"x" * 6, attributes=[b"y" * 5])
    assert desk.stats().messages == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"bodies": []},
        {"bodies": [b"a"], "priority": 10},
        {"bodies": [b"a"], "priority": -1},
        {"bodies": [b"a"], "delay_ms": -1},
        {"bodies": [b"a"], "groups": ["g", "h"]},
        {"bodies": [b"a"], "groups": [""]},
        {"bodies": [b"a"], "groups": ["g" * 129]},
        {"bodies": [b"a"], "groups": ["\udcff"]},
        {"bodies": [b"a"], "dedup_ids": ["\udcff"]},
        {"bodies": [b"a"], "due_ms": 1 << 60},
    ],
)
def test_send_with_a_wrong_value_is_refused_and_does_nothing(fields: dict[str, Any]) -> None:
    desk = Desk()
    desk.create()
    with pytest.raises(InvalidRequest):
        desk.do(c.Send(queue="q", **fields))
    assert desk.stats().sent == 0


def _busy_queue() -> Desk:
    """A queue with messages in every state and place, a second channel and a consumer."""
    desk = Desk()
    desk.create(channels=("main", "tap"), max_receives=0)
    desk.send(b"retried")
    desk.fail(2)
    desk.send(b"retried, far")
    desk.release(desk.receive(2), delay_ms=HOUR_MS)
    desk.send(b"leased", b"ready")
    desk.receive(1)
    desk.send(b"delayed", delay_ms=10_000)
    desk.send(b"far", delay_ms=400 * 24 * HOUR_MS)
    desk.send(b"urgent", priority=9)
    desk.send(b"once", dedup_ids=["id"])
    desk.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    return desk


def test_purge_takes_messages_of_every_state_and_keeps_the_rest() -> None:
    desk = _busy_queue()
    desk.do(c.PurgeQueue(name="q"))
    stats = desk.stats()
    assert (stats.messages, stats.bytes, stats.delayed) == (0, 0, 0)
    assert desk.counts() == desk.counts(channel="tap") == (0, 0, 0)
    assert desk.chunk_keys() == []
    assert stats.consumers == {"reader": 1}
    desk.send(b"new")
    assert bodies_of(desk.receive(10)) == [b"new"]
    assert bodies_of(desk.receive(10, channel="tap")) == [b"new"]
    desk.advance(500 * 24 * HOUR_MS)
    assert desk.counts() == (0, 0, 0)


def test_purge_says_how_many_messages_went() -> None:
    desk = Desk()
    desk.create()
    desk.send(b"a")
    desk.fail(2)
    desk.send(b"b", b"c")
    desk.receive(1)
    desk.send(b"d", delay_ms=HOUR_MS)
    assert desk.do(c.PurgeQueue(name="q")) == 4


def test_receipt_of_before_a_purge_is_stale() -> None:
    desk = Desk()
    desk.send(b"a")
    delivery = desk.receive()
    desk.do(c.PurgeQueue(name="q"))
    assert desk.ack(delivery).count == 0


def test_deleted_queue_leaves_nothing_in_the_store() -> None:
    desk = _busy_queue()
    queue_id = desk.do(c.DescribeQueue(name="q")).queue_id
    desk.do(c.DeleteQueue(name="q"))
    assert desk.chunk_keys() == []
    for kind in keys.OF_A_QUEUE:
        assert list(desk.store.scan(keys.record(kind, queue_id))) == []
    with pytest.raises(QueueNotFound):
        desk.receive()


def test_queue_created_again_after_its_deletion_is_empty_and_new() -> None:
    desk = _busy_queue()
    delivery = desk.receive()
    first, again = desk.step(c.DeleteQueue(name="q"), c.CreateQueue(name="q"))
    assert first is None
    assert again.queue_id != delivery.queue_id
    assert desk.counts() == (0, 0, 0)
    assert desk.browse(states=tuple(State)) == []
