"""Damaged chunks: named, counted, reported, kept; and delivery goes on."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import commands as c
from penstock.core.errors import ChunkDamaged
from penstock.core.storage.changes import Buffer
from penstock.store.memory import MemoryStore
from tests.core.driver import DAY_MS, HOUR_MS, Desk, Raw, attempts_of, bodies_of, bodies_of_runs


def _damaged(*indexes: int, chunks: int = 3, **settings: Any) -> Desk:
    """Chunks of two messages each, some of them damaged."""
    desk = Desk()
    desk.create(**settings)
    for number in range(chunks):
        bodies = [b"%d" % (2 * number), b"%d" % (2 * number + 1)]
        if settings.get("kind") == "fifo":
            desk.send_fifo(f"group {number}", *bodies)
        else:
            desk.send(*bodies)
    keys = desk.chunk_keys()
    for index in indexes:
        desk.damage(keys[index])
    return desk


def _receive_all(desk: Desk, limit: int = 10, **fields: Any) -> tuple[list[bytes], list[ChunkDamaged]]:
    found: list[bytes] = []
    errors: list[ChunkDamaged] = []
    for _ in range(30):
        try:
            delivery = desk.receive(limit, **fields)
        except ChunkDamaged as error:
            errors.append(error)
            continue
        if not delivery.count:
            break
        found += bodies_of(delivery)
        desk.ack(delivery)
    return found, errors


@pytest.mark.parametrize("kind", ["standard", "fifo"])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_damaged_chunk_is_reported_once_and_delivery_goes_on(kind: str, limit: int) -> None:
    desk = _damaged(1, kind=kind)
    found, _ = _receive_all(desk, limit)
    assert found == [b"0", b"1", b"4", b"5"]
    (report,) = desk.broker.take_reports()
    assert (report.queue, report.first, report.last) == ("q", 2, 3)
    assert "checksum" in report.reason


def test_error_names_the_queue_and_the_sequence_range() -> None:
    desk = _damaged(0)
    with pytest.raises(ChunkDamaged, match="messages 0 to 1 of queue 'q'"):
        desk.receive(10)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_messages_before_a_damaged_chunk_are_not_used_up_by_the_error(kind: str) -> None:
    desk = _damaged(1, kind=kind)
    found: list[int] = []
    for _ in range(4):
        try:
            found += attempts_of(desk.receive(10))
        except ChunkDamaged:
            assert desk.counts()[1] == len(found), "messages were leased that nobody was given"
    assert found == [1, 1, 1, 1]


def test_message_to_be_consumed_once_is_not_lost_to_the_damage_of_another() -> None:
    desk = _damaged(1, policy="consume_once")
    found, _ = _receive_all(desk)
    desk.advance(HOUR_MS)
    assert found == [b"0", b"1", b"4", b"5"]


def test_damaged_chunk_is_counted_and_never_deleted() -> None:
    desk = _damaged(1, retention_ms=60_000)
    key = desk.chunk_keys()[1]
    _receive_all(desk)
    stats = desk.stats()
    assert (stats.quarantined, stats.messages) == (2, 0)
    desk.reopen()
    assert desk.stats().quarantined == 2
    desk.advance(DAY_MS)
    assert desk.chunk_keys() == [key]
    assert desk.counts() == (0, 0, 0)


def test_damage_that_was_found_is_reported_again_by_who_opens_the_store_and_by_nobody_else() -> None:
    desk = _damaged(1)
    _receive_all(desk)
    reports = desk.broker.take_reports()
    desk.reopen()
    assert desk.broker.take_reports() == reports != []
    desk.send(b"new")
    assert bodies_of(desk.receive(10)) == [b"new"]
    assert desk.broker.take_reports() == []


@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_several_damaged_chunks_stop_neither_receives_nor_sends(kind: str) -> None:
    desk = _damaged(0, 1, 3, chunks=5, kind=kind)
    errors = 0
    for number in range(4):
        try:
            desk.receive(1)
        except ChunkDamaged:
            errors += 1
        desk.send_fifo("new", b"new %d" % number)
    _receive_all(desk)
    assert [(report.first, report.last) for report in desk.broker.take_reports()] == [(0, 1), (2, 3), (6, 7)]
    assert desk.stats().quarantined == 6


class _Impatient(MemoryStore):
    """A store that does not let itself be asked for ever."""

    questions_left = 5_000

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        self.questions_left -= 1
        assert self.questions_left > 0, "the same chunks are listed again and again"
        return super().list_chunks(prefix, start, limit)


def test_hundreds_of_damaged_chunks_in_a_row_are_passed() -> None:
    desk = Desk(_Impatient(), checks=False)
    desk.create()
    for number in range(300):
        desk.send(b"%d" % number)
    for key in desk.chunk_keys()[:260]:
        desk.store._chunks[key] = Raw(bytes(desk.store.read_chunk(key))[:-1])
    desk.reopen()
    for _ in range(261):
        try:
            delivery = desk.receive(1)
        except ChunkDamaged:
            continue
        break
    assert bodies_of(delivery) == [b"260"]
    assert desk.stats().quarantined == 260


def test_damaged_retry_chunk_is_kept_aside_too() -> None:
    desk = Desk()
    desk.send(b"a", b"b")
    desk.fail(2)
    (key,) = desk.chunk_keys()
    desk.damage(key)
    assert _receive_all(desk)[0] == []
    assert desk.counts() == (0, 0, 0)
    assert desk.stats().quarantined == 2
    assert desk.chunk_keys() == [key]


def test_damaged_chunk_due_far_ahead_is_kept_aside_when_its_time_comes() -> None:
    desk = Desk()
    desk.create()
    desk.send(b"a", delay_ms=HOUR_MS)
    desk.send(b"b", delay_ms=HOUR_MS)
    desk.damage(desk.chunk_keys()[0])
    desk.advance(HOUR_MS)
    assert _receive_all(desk)[0] == [b"b"]
    assert len(desk.broker.take_reports()) == 1
    assert desk.stats().quarantined == 1


class _Forgetful(MemoryStore):
    """A store that lists a chunk and cannot find it."""

    lost = b""

    def read_chunk(self, key: bytes) -> Buffer:
        if key == self.lost:
            raise KeyError(key)
        return super().read_chunk(key)


def test_chunk_that_the_store_cannot_find_is_damage() -> None:
    store = _Forgetful()
    desk = Desk(store)
    desk.send(b"a")
    desk.send(b"b")
    store.lost = desk.chunk_keys()[0]
    desk.reopen()
    found, (error,) = _receive_all(desk)
    assert found == [b"b"]
    assert "messages 0 to 0" in str(error)


def test_every_channel_goes_on_past_the_damage() -> None:
    desk = _damaged(1, channels=("main", "tap"))
    _receive_all(desk)
    found, errors = _receive_all(desk, channel="tap")
    assert found == [b"0", b"1", b"4", b"5"]
    assert errors == []


def test_expiry_of_messages_whose_chunk_is_damaged_stops_nothing() -> None:
    desk = Desk()
    desk.create(max_receives=1)
    desk.send(b"a")
    desk.send(b"b")
    desk.receive(2, lease_ms=1_000)
    desk.damage(desk.chunk_keys()[0])
    desk.advance(1_000)
    assert desk.counts() == (0, 0, 0)
    assert desk.stats().quarantined == 1
    assert bodies_of(desk.receive(10, queue="q.dead")) == [b"b"]


def test_those_who_wait_are_served_past_the_damage() -> None:
    desk = Desk()
    desk.send(b"a")
    desk.send(b"b")
    desk.damage(desk.chunk_keys()[0])
    desk.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    assert desk.take_woken("push") == [b"b"]


def test_reader_by_offset_is_told_of_the_damage_and_then_passes_it() -> None:
    desk = _damaged(1)
    with pytest.raises(ChunkDamaged):
        desk.do(c.ReadRecords(queue="q", offset=0))
    assert bodies_of_runs(desk.do(c.ReadRecords(queue="q", offset=0)).runs) == [b"0", b"1", b"4", b"5"]


def test_redrive_goes_on_past_the_damage() -> None:
    desk = Desk()
    desk.create(max_receives=1)
    for number in range(3):
        desk.send(b"%d" % number)
        desk.fail(1)
    desk.damage(desk.chunk_keys()[1])
    desk.do(c.StartRedrive(queue="q.dead"))
    desk.advance(1_000)
    (task,) = desk.do(c.ListRedrives())
    assert (task.status, task.moved) == ("done", 2)
    assert bodies_of(desk.receive(10)) == [b"0", b"2"]


def test_messages_that_vanished_from_the_store_are_reported_once_and_passed() -> None:
    desk = Desk(checks=False)
    desk.send(b"0", b"1")
    for key in desk.chunk_keys():
        del desk.store._chunks[key]
    desk.reopen()
    assert desk.receive(10).count == 0
    desk.send(b"2")
    assert bodies_of(desk.receive(10)) == [b"2"]
    (report,) = desk.broker.take_reports()
    assert (report.queue, report.first) == ("q", 0)
    assert "2 messages are not in the store" in report.reason
