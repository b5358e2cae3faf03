"""Reading ahead: what comes from memory, how much is kept there, and that it is never out of date."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.store.embedded import EmbeddedStore, StoreOptions, open_embedded
from penstock.store.read_ahead import CACHE_BYTES_MAX, LANE_BYTES_MAX, SMALL_CHUNK_BYTES, ReadAhead
from tests.store.conformance import changes_of
from tests.store.in_memory import MemoryJournal, MemoryTable
from tests.store.test_embedded import until

BODY = Random(0).randbytes(200_000)
QUIET = StoreOptions(apply_after_seconds=1000.0)


def key(number: int, lane: int = 0) -> bytes:
    return b"%020d" % lane + number.to_bytes(8, "big")


class WatchedTable(MemoryTable):
    """A table that knows which thread has read what, and stops the thread that reads ahead when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.read_by_callers: list[bytes] = []
        self.read_ahead: list[bytes] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def read_chunk(self, key: bytes) -> bytes:
        body = super().read_chunk(key)
        if threading.current_thread().name == "penstock-read-ahead":
            self.read_ahead.append(key)
            self.entered.set()
            assert self.open.wait(20)
        else:
            self.read_by_callers.append(key)
        return body


def filled(count: int, *, lanes: int = 1, body: bytes = BODY) -> WatchedTable:
    table = WatchedTable()
    rows = [(key(number, lane), body) for lane in range(lanes) for number in range(count)]
    table.apply(1, [], rows, [])
    return table


def never_hidden(_: bytes) -> bool:
    return False


@pytest.fixture
def opened() -> Iterator[list[ReadAhead]]:
    """What a test has opened, closed at its end."""
    those: list[ReadAhead] = []
    yield those
    for each in those:
        each.close()


def test_a_lane_read_in_order_comes_from_memory(opened: list[ReadAhead]) -> None:
    table = filled(40)
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    for number in range(39):
        assert ahead.read_chunk(key(number)) == BODY
        ahead.before_sync()
        until(lambda number=number: key(number + 1) in table.read_ahead)  # type: ignore[misc]
        until(lambda: ahead.nbytes > 0)
    assert table.read_by_callers == [key(0)]
    assert len(table.read_ahead) == len(set(table.read_ahead))


def test_the_end_of_a_lane_is_not_crossed(opened: list[ReadAhead]) -> None:
    table = filled(3, lanes=2)
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    for number in range(3):
        ahead.read_chunk(key(number))
        ahead.before_sync()
    until(lambda: ahead.nbytes == 0)
    assert not {key(number, lane=1) for number in range(3)} & set(table.read_ahead)


def test_a_chunk_that_was_fetched_while_somebody_read_it_is_not_kept(
    opened: list[ReadAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(2)
    table.open.clear()
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    ahead.read_chunk(key(0))
    ahead.before_sync()
    assert table.entered.wait(20)
    read_chunk = table.read_chunk

    def read_slowly(wanted: bytes) -> bytes:
        table.open.set()
        until(lambda: ahead.nbytes > 0)
        return read_chunk(wanted)

    monkeypatch.setattr(table, "read_chunk", read_slowly)
    ahead.read_chunk(key(1))
    assert ahead.nbytes == 0


def test_one_look_fetches_one_chunk(opened: list[ReadAhead]) -> None:
    table = filled(20)
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    ahead.read_chunk(key(5))
    until(lambda: ahead.nbytes > 0)
    assert table.read_ahead == [key(6)]


def test_going_back_fetches_nothing(opened: list[ReadAhead]) -> None:
    table = filled(20)
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    ahead.read_chunk(key(10))
    until(lambda: ahead.nbytes > 0)
    for number in (8, 6, 4):
        assert ahead.read_chunk(key(number)) == BODY
        ahead.before_sync()
    assert ahead.nbytes == 0
    ahead.read_chunk(key(5))
    until(lambda: ahead.nbytes > 0)
    assert table.read_ahead == [key(11), key(6)]


def test_memory_is_bounded_whatever_is_read(opened: list[ReadAhead]) -> None:
    table = filled(30, lanes=12)
    ahead = ReadAhead(table, never_hidden)
    opened.append(ahead)
    for number in range(12):
        for lane in range(12):
            assert ahead.read_chunk(key(number, lane)) == BODY
            ahead.before_sync()
            assert ahead.nbytes <= CACHE_BYTES_MAX + LANE_BYTES_MAX
    until(lambda: ahead.nbytes > CACHE_BYTES_MAX // 2)


def test_small_chunks_start_no_thread() -> None:
    table = filled(20, body=bytes(SMALL_CHUNK_BYTES - 1))
    ahead = ReadAhead(table, never_hidden)
    for number in range(20):
        ahead.read_chunk(key(number))
        ahead.before_sync()
    assert ahead._fetcher is None
    ahead.close()


def test_a_chunk_replaced_while_it_is_fetched_is_served_anew() -> None:
    table = filled(3)
    store = EmbeddedStore(MemoryJournal(), table, QUIET)
    table.open.clear()
    store.read_chunk(key(0))
    assert table.entered.wait(20)
    store.commit(changes_of({key(1): b"new" * 10_000}))
    store.apply_now()
    table.open.set()
    for number in (1, 2):
        until(lambda: store._ahead is not None and not store._ahead._wanted)
        assert store.read_chunk(key(number)) == (b"new" * 10_000 if number == 1 else BODY)
    store.close()


def test_a_chunk_replaced_after_it_was_fetched_is_served_anew() -> None:
    table = filled(3)
    store = EmbeddedStore(MemoryJournal(), table, QUIET)
    store.read_chunk(key(0))
    until(lambda: store._ahead is not None and store._ahead.nbytes > 0)
    store.commit(changes_of({key(1): b"new" * 10_000}))
    store.apply_now()
    assert store.read_chunk(key(1)) == b"new" * 10_000
    store.close()


def test_a_dropped_lane_is_gone_from_memory() -> None:
    table = filled(3)
    store = EmbeddedStore(MemoryJournal(), table, QUIET)
    store.read_chunk(key(0))
    until(lambda: store._ahead is not None and store._ahead.nbytes > 0)
    store.commit(changes_of(dropped=[key(0)[:10]]))
    assert store._ahead is not None and store._ahead.nbytes == 0
    store.apply_now()
    with pytest.raises(KeyError):
        store.read_chunk(key(1))
    store.close()


def test_closing_waits_for_the_thread() -> None:
    table = filled(10)
    store = EmbeddedStore(MemoryJournal(), table, QUIET)
    store.read_chunk(key(0))
    assert store._ahead is not None and store._ahead._fetcher is not None
    thread = store._ahead._fetcher
    store.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("seed", range(8))
def test_reads_are_right_whatever_is_committed_between_them(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    store = open_embedded(tmp_path, options=StoreOptions(apply_live_bytes=200_000, apply_written_bytes=400_000))
    model: dict[bytes, bytes] = {}
    position = 0
    for _ in range(150):
        wanted = random.random()
        number = random.randrange(40)
        if wanted < 0.3:
            model[key(number)] = random.randbytes(SMALL_CHUNK_BYTES)
            store.commit(changes_of({key(number): model[key(number)]}))
        elif wanted < 0.4:
            model.pop(key(number), None)
            store.commit(changes_of({key(number): None}))
        elif wanted < 0.42:
            model.clear()
            store.commit(changes_of(dropped=[key(0)[:20]]))
        else:
            position = (position + 1) % 40
            assert_reads(store, model, key(position))
    for number in range(40):
        assert_reads(store, model, key(number))
    store.close()


def assert_reads(store: EmbeddedStore, model: dict[bytes, bytes], wanted: bytes) -> None:
    try:
        assert bytes(store.read_chunk(wanted)) == model.get(wanted)
    except KeyError:
        assert wanted not in model
