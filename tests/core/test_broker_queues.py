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
from tests.core.driver import HOUR_MS, BrokerDriver, bodies_of


def test_queue_is_created_by_the_first_send() -> None:
    driver = BrokerDriver()
    driver.send(b"a", queue="orders")
    assert driver.do(c.DescribeQueue(name="orders")).config == QueueConfig()


def test_send_that_may_not_create_finds_no_queue() -> None:
    driver = BrokerDriver()
    with pytest.raises(QueueNotFound, match="orders"):
        driver.send(b"a", queue="orders", create=False)
    assert driver.do(c.ListQueues()) == []


def test_creating_a_queue_again_is_fine_with_the_same_configuration_only() -> None:
    driver = BrokerDriver()
    first = driver.create(lease_ms=5_000)
    assert driver.create(lease_ms=5_000) == first
    with pytest.raises(QueueExists, match="different: lease"):
        driver.create(lease_ms=6_000)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 129, "a/b"])
def test_unusable_queue_name_is_refused(name: str) -> None:
    driver = BrokerDriver()
    with pytest.raises(InvalidName):
        driver.create(name)
    with pytest.raises(InvalidName):
        driver.send(b"a", queue=name)


def test_refused_channel_name_leaves_no_queue_behind() -> None:
    driver = BrokerDriver()
    with pytest.raises(InvalidName):
        driver.create(channels=("main", "not a name"))
    with pytest.raises(InvalidName):
        driver.send(b"a", queue="other", channels=("not a name",))
    assert driver.do(c.ListQueues()) == []


@pytest.mark.parametrize(
    "settings",
    [{"lease_ms": 1.5}, {"kind": "lifo"}, {"max_receives": "3"}, {"backoff": Backoff("sometimes")}],  # type: ignore[arg-type]
)
def test_configuration_that_could_not_be_read_back_is_refused(settings: dict[str, Any]) -> None:
    driver = BrokerDriver(checks=False)
    with pytest.raises(InvalidConfig):
        driver.create(**settings)
    driver.reopen()
    assert driver.do(c.ListQueues()) == []


def test_kind_cannot_be_changed() -> None:
    driver = BrokerDriver()
    driver.create()
    with pytest.raises(InvalidConfig, match="kind"):
        driver.change(kind="fifo")


def test_changed_lease_holds_for_the_next_receive() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.change(lease_ms=7_000)
    assert driver.receive().deadline_ms == driver.now_ms + 7_000


def test_dead_letter_queue_must_be_another_one_of_the_same_kind() -> None:
    driver = BrokerDriver()
    driver.create("other", kind="fifo")
    with pytest.raises(InvalidConfig, match="its own"):
        driver.create(dead_letter="q")
    with pytest.raises(InvalidConfig, match="same kind"):
        driver.create(dead_letter="other")


def test_queues_are_listed_by_name_prefix_and_page() -> None:
    driver = BrokerDriver()
    for name in ("b2", "a1", "b1", "b3"):
        driver.create(name)
    assert driver.do(c.ListQueues(prefix="b", limit=2)) == ["b1", "b2"]
    assert driver.do(c.ListQueues(prefix="b", after="b2")) == ["b3"]


def test_message_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    driver = BrokerDriver()
    driver.create(message_bytes_max=10)
    driver.send(b"x" * 10)
    with pytest.raises(MessageTooLarge, match="message 1 has 11 bytes"):
        driver.send(b"x", b"y" * 11)
    with pytest.raises(MessageTooLarge):
        driver.send(b"x" * 6, attributes=[b"y" * 5])
    assert driver.stats().messages == 1


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
    driver = BrokerDriver()
    driver.create()
    with pytest.raises(InvalidRequest):
        driver.do(c.Send(queue="q", **fields))
    assert driver.stats().sent == 0


def _busy_queue() -> BrokerDriver:
    """A queue with messages in every state and place, a second channel and a consumer."""
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"), max_receives=0)
    driver.send(b"retried")
    driver.fail(2)
    driver.send(b"retried, far")
    driver.release(driver.receive(2), delay_ms=HOUR_MS)
    driver.send(b"leased", b"ready")
    driver.receive(1)
    driver.send(b"delayed", delay_ms=10_000)
    driver.send(b"far", delay_ms=400 * 24 * HOUR_MS)
    driver.send(b"urgent", priority=9)
    driver.send(b"once", dedup_ids=["id"])
    driver.do(c.AckConsumer(queue="q", consumer="reader", offset=1))
    return driver


def test_purge_takes_messages_of_every_state_and_keeps_the_rest() -> None:
    driver = _busy_queue()
    driver.do(c.PurgeQueue(name="q"))
    stats = driver.stats()
    assert (stats.messages, stats.bytes, stats.delayed) == (0, 0, 0)
    assert driver.counts() == driver.counts(channel="tap") == (0, 0, 0)
    assert driver.chunk_keys() == []
    assert stats.consumers == {"reader": 1}
    driver.send(b"new")
    assert bodies_of(driver.receive(10)) == [b"new"]
    assert bodies_of(driver.receive(10, channel="tap")) == [b"new"]
    driver.advance(500 * 24 * HOUR_MS)
    assert driver.counts() == (0, 0, 0)


def test_purge_says_how_many_messages_went() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a")
    driver.fail(2)
    driver.send(b"b", b"c")
    driver.receive(1)
    driver.send(b"d", delay_ms=HOUR_MS)
    assert driver.do(c.PurgeQueue(name="q")) == 4


def test_receipt_of_before_a_purge_is_stale() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive()
    driver.do(c.PurgeQueue(name="q"))
    assert driver.ack(delivery).count == 0


def test_deleted_queue_leaves_nothing_in_the_store() -> None:
    driver = _busy_queue()
    queue_id = driver.do(c.DescribeQueue(name="q")).queue_id
    driver.do(c.DeleteQueue(name="q"))
    assert driver.chunk_keys() == []
    for kind in keys.OF_A_QUEUE:
        assert list(driver.store.scan(keys.record(kind, queue_id))) == []
    with pytest.raises(QueueNotFound):
        driver.receive()


def test_queue_created_again_after_its_deletion_is_empty_and_new() -> None:
    driver = _busy_queue()
    delivery = driver.receive()
    first, again = driver.step(c.DeleteQueue(name="q"), c.CreateQueue(name="q"))
    assert first is None
    assert again.queue_id != delivery.queue_id
    assert driver.counts() == (0, 0, 0)
    assert driver.browse(states=tuple(State)) == []
