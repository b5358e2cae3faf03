"""Directories that an earlier build has written, and was killed over, keep all that they hold with this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.upgrade import builds


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The store as this build opens it, and what the first build said that it holds."""
    expected = builds.run(builds.FIRST, "fill.py", str(tmp_path / "data"))
    with penstock.open(tmp_path / "data") as ps:
        yield ps, expected


def texts(queue: Any, **options: Any) -> list[str]:
    """What a queue has, without taking it."""
    return [message.text for message in queue.browse(limit=10_000, **options)]


def test_messages_are_found_by_their_ids_and_keep_their_due_times(filled: Any) -> None:
    ps, expected = filled
    orders = ps.queue("orders")
    found = {message.text: message for message in orders.browse(limit=10_000)}
    assert len(found) == 2_000 - 499 + 2  # of the first 500 that were received, one was the urgent one
    assert ps.find_message(expected["ids"][1]).body == b"order 1999" == ps.find_message(found["order 1999"].id).body
    year = orders.search("in a year")[0]
    assert year.state is penstock.State.DELAYED and year.until > year.sent_at + 364 * 86_400


def test_receipts_settle_their_messages(filled: Any) -> None:
    ps, expected = filled
    orders = ps.queue("orders")
    orders.ack(expected["receipts"])
    left = texts(orders)
    assert not set(expected["leased"]) & set(left)
    ps.queue("ledger.fifo").ack(expected["entry_receipt"])
    assert expected["entry"] not in texts(ps.queue("ledger.fifo"))


def test_what_has_failed_keeps_its_history(filled: Any) -> None:
    ps, expected = filled
    retrying = [message for message in ps.queue("orders").browse(limit=10_000) if message.text in expected["retrying"]]
    assert [[failure.error for failure in message.history] for message in retrying] == [
        ["the kettle is cold", "still cold"]
    ] * 2
    dead = ps.queue("jobs.dead").receive()
    assert dead.text == "hopeless" and [failure.error for failure in dead.origin.failures] == ["no such table"] * 2


def test_channels_and_consumers_stay_where_they_were(filled: Any) -> None:
    ps, _ = filled
    orders = ps.queue("orders")
    audit = orders.channel("audit")
    assert audit.stats().paused
    audit.unpause()
    assert len(audit.receive_batch(max=5_000)) == 2_000 - 700  # the urgent one was gone before the channel came
    assert orders.consumer("report").offset == 100


def test_fifo_order_and_deduplication_hold(filled: Any) -> None:
    ps, expected = filled
    ledger = ps.queue("ledger.fifo")
    assert ledger.send(b"entry 5", group="account 1").duplicate
    ledger.ack(expected["entry_receipt"])
    received = [message.text for message in ledger.receive(max=10)]
    assert [text for text in received if text in ("entry 2", "entry 4")] == ["entry 2", "entry 4"]
    assert [text for text in received if text not in ("entry 2", "entry 4")] == ["entry 1", "entry 3", "entry 5"]


def test_what_was_consumed_once_does_not_come_again(filled: Any) -> None:
    ps, expected = filled
    once = ps.queue("once")
    assert expected["consumed"] == "first"
    assert [once.receive().text, once.receive()] == ["second", None]


def test_settings_stay_as_they_were_set(filled: Any) -> None:
    config = filled[0].queue("settled").info().config
    assert (config.lease_ms, config.retention_ms, config.delay_ms) == (77_000, 3_600_000, 1_000)
    assert (config.message_bytes_max, config.in_flight_max) == (1_000, 10)
    assert (config.receive_wait_ms, config.max_receives, config.dead_letter) == (2_000, 3, "jobs.dead")
    assert config.backoff == penstock.Backoff("linear", base_ms=200) and config.tags == {"team": "tea"}
    assert filled[0].queue("quick").info().config.deliver_unsynced


def test_new_messages_get_numbers_of_their_own(filled: Any) -> None:
    ps, expected = filled
    sent = ps.queue("orders").send(b"new")
    assert sent.sequence >= 2_003 and sent.id not in expected["ids"]
    assert ps.queue("quick").send(b"new").sequence > 0
