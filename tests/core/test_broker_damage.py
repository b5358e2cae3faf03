"""Damaged chunks: named, counted, reported, kept; and delivery goes on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.errors import ChunkDamaged
from penstock.core.storage.changes import Buffer
from penstock.store.memory import MemoryStore
from tests.core.driver import DAY_MS, HOUR_MS, BrokerDriver, Raw, attempts_of, bodies_of, bodies_of_runs


def _damaged(*indexes: int, chunks: int = 3, **settings: Any) -> BrokerDriver:
    """Chunks of two messages each, some of them damaged."""
    driver = BrokerDriver()
    driver.create(**settings)
    for number in range(chunks):
        bodies = [b"%d" % (2 * number), b"%d" % (2 * number + 1)]
        if settings.get("kind") == "fifo":
            driver.send_fifo(f"group {number}", *bodies)
        else:
            driver.send(*bodies)
    keys = driver.chunk_keys()
    for index in indexes:
        driver.damage(keys[index])
    return driver


def _receive_all(driver: BrokerDriver, limit: int = 10, **fields: Any) -> tuple[list[bytes], list[ChunkDamaged]]:
    found: list[bytes] = []
    errors: list[ChunkDamaged] = []
    for _ in range(30):
        try:
            delivery = driver.receive(limit, **fields)
        except ChunkDamaged as error:
            errors.append(error)
            continue
        if not delivery.count:
            break
        found += bodies_of(delivery)
        driver.ack(delivery)
    return found, errors


@pytest.mark.parametrize("kind", ["standard", "fifo"])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_damaged_chunk_is_reported_once_and_delivery_goes_on(kind: str, limit: int) -> None:
    driver = _damaged(1, kind=kind)
    found, _ = _receive_all(driver, limit)
    assert found == [b"0", b"1", b"4", b"5"]
    (report,) = driver.broker.take_reports()
    assert (report.queue, report.first, report.last) == ("q", 2, 3)
    assert "checksum" in report.reason


def test_error_names_the_queue_and_the_sequence_range() -> None:
    driver = _damaged(0)
    with pytest.raises(ChunkDamaged, match="messages 0 to 1 of queue 'q'"):
        driver.receive(10)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_messages_before_a_damaged_chunk_are_not_used_up_by_the_error(kind: str) -> None:
    driver = _damaged(1, kind=kind)
    found: list[int] = []
    for _ in range(4):
        try:
            found += attempts_of(driver.receive(10))
        except ChunkDamaged:
            assert driver.counts()[1] == len(found), "messages were leased that nobody was given"
    assert found == [1, 1, 1, 1]


def test_message_to_be_consumed_once_is_not_lost_to_the_damage_of_another() -> None:
    driver = _damaged(1, policy="consume_once")
    found, _ = _receive_all(driver)
    driver.advance(HOUR_MS)
    assert found == [b"0", b"1", b"4", b"5"]


def test_damaged_chunk_is_counted_and_never_deleted() -> None:
    driver = _damaged(1, retention_ms=60_000)
    key = driver.chunk_keys()[1]
    _receive_all(driver)
    stats = driver.stats()
    assert (stats.quarantined, stats.messages) == (2, 0)
    driver.reopen()
    assert driver.stats().quarantined == 2
    driver.advance(DAY_MS)
    assert driver.chunk_keys() == [key]
    assert driver.counts() == (0, 0, 0)


def test_damage_that_was_found_is_reported_again_by_who_opens_the_store_and_by_nobody_else() -> None:
    driver = _damaged(1)
    _receive_all(driver)
    reports = driver.broker.take_reports()
    driver.reopen()
    assert driver.broker.take_reports() == reports != []
    driver.send(b"new")
    assert bodies_of(driver.receive(10)) == [b"new"]
    assert driver.broker.take_reports() == []


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_several_damaged_chunks_stop_neither_receives_nor_sends(kind: str) -> None:
    driver = _damaged(0, 1, 3, chunks=5, kind=kind)
    errors = 0
    for number in range(4):
        try:
            driver.receive(1)
        except ChunkDamaged:
            errors += 1
        driver.send_fifo("new", b"new %d" % number)
    _receive_all(driver)
    assert [(report.first, report.last) for report in driver.broker.take_reports()] == [(0, 1), (2, 3), (6, 7)]
    assert driver.stats().quarantined == 6


class _Impatient(MemoryStore):
    """A store that does not let itself be asked for ever."""

    questions_left = 5_000

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        self.questions_left -= 1
        assert self.questions_left > 0, "the same chunks are listed again and again"
        return super().list_chunks(prefix, start, limit)


def test_hundreds_of_damaged_chunks_in_a_row_are_passed() -> None:
    driver = BrokerDriver(_Impatient(), checks=False)
    driver.create()
    for number in range(300):
        driver.send(b"%d" % number)
    for key in driver.chunk_keys()[:260]:
        driver.store._chunks[key] = Raw(bytes(driver.store.read_chunk(key))[:-1])
    driver.reopen()
    for _ in range(261):
        try:
            delivery = driver.receive(1)
        except ChunkDamaged:
            continue
        break
    assert bodies_of(delivery) == [b"260"]
    assert driver.stats().quarantined == 260


def test_damaged_retry_chunk_is_kept_aside_too() -> None:
    driver = BrokerDriver()
    driver.send(b"a", b"b")
    driver.fail(2)
    (key,) = driver.chunk_keys()
    driver.damage(key)
    assert _receive_all(driver)[0] == []
    assert driver.counts() == (0, 0, 0)
    assert driver.stats().quarantined == 2
    assert driver.chunk_keys() == [key]


def test_damaged_chunk_due_far_ahead_is_kept_aside_when_its_time_comes() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.send(b"a", delay_ms=HOUR_MS)
    driver.send(b"b", delay_ms=HOUR_MS)
    driver.damage(driver.chunk_keys()[0])
    driver.advance(HOUR_MS)
    assert _receive_all(driver)[0] == [b"b"]
    assert len(driver.broker.take_reports()) == 1
    assert driver.stats().quarantined == 1


class _Forgetful(MemoryStore):
    """A store that lists a chunk and cannot find it."""

    lost = b""

    def read_chunk(self, key: bytes) -> Buffer:
        if key == self.lost:
            raise KeyError(key)
        return super().read_chunk(key)


def test_chunk_that_the_store_cannot_find_is_damage() -> None:
    store = _Forgetful()
    driver = BrokerDriver(store)
    driver.send(b"a")
    driver.send(b"b")
    store.lost = driver.chunk_keys()[0]
    driver.reopen()
    found, (error,) = _receive_all(driver)
    assert found == [b"b"]
    assert "messages 0 to 0" in str(error)


def test_every_channel_goes_on_past_the_damage() -> None:
    driver = _damaged(1, channels=("main", "tap"))
    _receive_all(driver)
    found, errors = _receive_all(driver, channel="tap")
    assert found == [b"0", b"1", b"4", b"5"]
    assert errors == []


def test_expiry_of_messages_whose_chunk_is_damaged_stops_nothing() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1)
    driver.send(b"a")
    driver.send(b"b")
    driver.receive(2, lease_ms=1_000)
    driver.damage(driver.chunk_keys()[0])
    driver.advance(1_000)
    assert driver.counts() == (0, 0, 0)
    assert driver.stats().quarantined == 1
    assert bodies_of(driver.receive(10, queue="q.dead")) == [b"b"]


def test_those_who_wait_are_served_past_the_damage() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    driver.send(b"b")
    driver.damage(driver.chunk_keys()[0])
    driver.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    assert driver.take_woken("push") == [b"b"]


def test_reader_by_offset_is_told_of_the_damage_and_then_passes_it() -> None:
    driver = _damaged(1)
    with pytest.raises(ChunkDamaged):
        driver.do(c.ReadRecords(queue="q", offset=0))
    assert bodies_of_runs(driver.do(c.ReadRecords(queue="q", offset=0)).runs) == [b"0", b"1", b"4", b"5"]


def test_redrive_goes_on_past_the_damage() -> None:
    driver = BrokerDriver()
    driver.create(max_receives=1)
    for number in range(3):
        driver.send(b"%d" % number)
        driver.fail(1)
    driver.damage(driver.chunk_keys()[1])
    driver.do(c.StartRedrive(queue="q.dead"))
    driver.advance(1_000)
    (task,) = driver.do(c.ListRedrives())
    assert (task.status, task.moved) == ("done", 2)
    assert bodies_of(driver.receive(10)) == [b"0", b"2"]


def test_messages_that_vanished_from_the_store_are_reported_once_and_passed() -> None:
    driver = BrokerDriver(checks=False)
    driver.send(b"0", b"1")
    for key in driver.chunk_keys():
        del driver.store._chunks[key]
    driver.reopen()
    assert driver.receive(10).count == 0
    driver.send(b"2")
    assert bodies_of(driver.receive(10)) == [b"2"]
    (report,) = driver.broker.take_reports()
    assert (report.queue, report.first) == ("q", 0)
    assert "2 messages are not in the store" in report.reason
