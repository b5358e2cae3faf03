"""Committed changes that are not in the table yet, on top of it; and keys in order.

A layer is the net effect of a run of commits: what it dropped, what it put and what it deleted since. The newest layer
takes commits; the one before is being applied to the table. To look something up, ask the newest layer, then the older
one, then the table; each may answer "it is here", "it is gone", or "ask below".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock.core.storage.changes import Buffer, Changes, Encodable, Flaw

ENTRY_BYTES: Final = 160
"""About what a key costs in memory beside its bytes and its value."""
_INSERTS_MAX: Final = 32
_COMPACT_FLOOR: Final = 1024


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all keys with a prefix; None if there is none.

    >>> prefix_end(b"ab"), prefix_end(b"a\\xff"), prefix_end(b"\\xff")
    (b'ac', b'b', None)
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


class SortedKeys:
    """The keys of a dict in order, sorted when somebody looks, and not before.

    The dict is the truth: a key that left it is skipped, and forgotten at some later time. Adding is one `append`;
    looking costs what was added since, and next to nothing when keys come in order. The caller keeps other threads
    away.

    >>> table = {b"b": 1, b"a": 2}
    >>> keys = SortedKeys(table)
    >>> keys.add(b"b"); keys.add(b"a")
    >>> list(keys.between(b"a", None))
    [b'a', b'b']
    """

    __slots__ = ("_added", "_sorted", "_table")

    def __init__(self, table: Mapping[bytes, object]) -> None:
        self._table = table
        self._sorted: list[bytes] = []
        self._added: list[bytes] = []

    def add(self, key: bytes) -> None:
        """A key that was put into the dict, and was not in it before."""
        self._added.append(key)
        if len(self._added) > 2 * len(self._table) + _COMPACT_FLOOR:
            self._rebuild()

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The dict's keys from `start` (inclusive) to `end` (exclusive), in order. The dict must not change
        meanwhile.
        """
        self._settle()
        keys, table = self._sorted, self._table
        for index in range(bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)):
            if keys[index] in table:
                yield keys[index]

    def _settle(self) -> None:
        added = self._added
        if len(self._sorted) + len(added) > 2 * len(self._table) + _COMPACT_FLOOR:
            self._rebuild()
        elif len(added) > _INSERTS_MAX + (len(self._sorted) >> 10):
            self._sorted.extend(added)
            self._sorted.sort()
            self._sorted = list(dict.fromkeys(self._sorted))
            added.clear()
        elif added:
            for key in added:
                self._insert(key)
            added.clear()

    def _rebuild(self) -> None:
        self._sorted = sorted(self._table)
        self._added.clear()

    def _insert(self, key: bytes) -> None:
        keys = self._sorted
        if not keys or key > keys[-1]:
            keys.append(key)
            return
        index = bisect_left(keys, key)
        if keys[index] != key:
            keys.insert(index, key)


class Missing(Enum):
    """Why a layer has no value for a key."""

    GONE = 0
    ASK_BELOW = 1


class Reads(Protocol):
    """What the layers need of the table below."""

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order, as they are at the call."""


def joined(chunk: Encodable) -> Buffer:
    """A chunk's stored form in one piece."""
    parts = chunk.parts()
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Layer:
    """The net effect of a run of commits."""

    __slots__ = (
        "_chunk_keys",
        "_record_keys",
        "chunks",
        "chunks_died",
        "dropped",
        "live_bytes",
        "position",
        "records",
        "written_bytes",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        """The last commit in this layer."""
        self.chunks: dict[bytes, Encodable | None] = {}
        self.records: dict[bytes, bytes | None] = {}
        self.live_bytes = 0
        """About what the layer takes in memory."""
        self.written_bytes = 0
        """What its commits took in the journal, dead or alive."""
        self.chunks_died = 0
        """How many chunks came and went within this layer."""
        self.dropped: tuple[bytes, ...] = ()
        """The prefixes under which nothing of what is below counts."""
        self._chunk_keys = SortedKeys(self.chunks)
        self._record_keys = SortedKeys(self.records)

    @property
    def chunks_put(self) -> int:
        """How many chunks are here."""
        return sum(chunk is not None for chunk in self.chunks.values())

    def __bool__(self) -> bool:
        return bool(self.chunks or self.records or self.dropped)

    def absorb(self, changes: Changes, position: int) -> None:
        """Put a commit on top."""
        for prefix in changes.dropped:
            self._drop(prefix)
        for key, chunk in changes.chunks.items():
            chunk_before = self.chunks.get(key)
            if chunk_before is not None:
                self.live_bytes -= chunk_before.nbytes
                self.chunks_died += 1
            elif key not in self.chunks:
                self._chunk_keys.add(key)
                self.live_bytes += ENTRY_BYTES
            self.chunks[key] = chunk
            nbytes = chunk.nbytes if chunk is not None else 0
            self.live_bytes += nbytes
            self.written_bytes += nbytes + ENTRY_BYTES
        for key, value in changes.records.items():
            value_before = self.records.get(key)
            if value_before is not None:
                self.live_bytes -= len(value_before)
            elif key not in self.records:
                self._record_keys.add(key)
                self.live_bytes += ENTRY_BYTES
            self.records[key] = value
            nbytes = len(value) if value is not None else 0
            self.live_bytes += nbytes
            self.written_bytes += nbytes + ENTRY_BYTES
        self.position = position

    def _drop(self, prefix: bytes) -> None:
        end = prefix_end(prefix)
        for key in list(self._chunk_keys.between(prefix, end)):
            chunk = self.chunks.pop(key)
            self.live_bytes -= ENTRY_BYTES + (chunk.nbytes if chunk is not None else 0)
            self.chunks_died += chunk is not None
        for key in list(self._record_keys.between(prefix, end)):
            value = self.records.pop(key)
            self.live_bytes -= ENTRY_BYTES + (len(value) if value is not None else 0)
        if not prefix.startswith(self.dropped):
            self.dropped = (*self.dropped, prefix)
            self.live_bytes += ENTRY_BYTES

    def chunk(self, key: bytes) -> Encodable | Missing:
        chunk = self.chunks.get(key, Missing.ASK_BELOW)
        if chunk is None:
            return Missing.GONE
        if chunk is Missing.ASK_BELOW and key.startswith(self.dropped):
            return Missing.GONE
        return chunk

    def hides_chunk(self, key: bytes) -> bool:
        """Whether what is below under this key does not count."""
        return key in self.chunks or key.startswith(self.dropped)

    def hides_record(self, key: bytes) -> bool:
        """Whether the record below under this key does not count."""
        return key in self.records or key.startswith(self.dropped)

    def chunk_keys(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The keys of the chunks that are here, in order. The layer must not change meanwhile."""
        return (key for key in self._chunk_keys.between(start, end) if self.chunks[key] is not None)

    def record_snapshot(self, start: bytes, end: bytes | None) -> RecordSnapshot:
        """What the layer says about the records in a range, unmoved by later commits."""
        keys = list(self._record_keys.between(start, end))
        items = [(key, value) for key in keys if (value := self.records[key]) is not None]
        return RecordSnapshot(items, frozenset(keys), self.dropped)


class RecordSnapshot(NamedTuple):
    """A layer's word on a range of records."""

    items: list[tuple[bytes, bytes]]
    hidden: frozenset[bytes]
    dropped: tuple[bytes, ...]

    def over(self, below: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """These records in place of those below, in key order."""
        if not self.hidden and not self.dropped:
            return below
        hidden, dropped = self.hidden, self.dropped
        shown = (item for item in below if item[0] not in hidden and not item[0].startswith(dropped))
        return merge(self.items, shown)


def scan(layers: Sequence[Layer], table: Reads, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records with a prefix in layers (newest first) over a table, as they are at the call."""
    end = prefix_end(prefix)
    found = table.scan(prefix, end)
    for snapshot in [layer.record_snapshot(prefix, end) for layer in reversed(layers)]:
        found = snapshot.over(found)
    return found


def open_flaws(layers: Sequence[Layer], flaws: Sequence[Flaw]) -> list[Flaw]:
    """The flaws of a table that layers above it do not make good: they may have all that was damaged anew."""
    return [
        flaw
        for flaw in flaws
        if not flaw.keys or not all(any(layer.hides_record(key) for layer in layers) for key in flaw.keys)
    ]


def list_chunks(layers: Sequence[Layer], table: Reads, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
    """Up to `limit` keys of chunks with a prefix in layers (newest first) over a table. The layers must not change
    meanwhile.
    """
    start, end = max(prefix, start), prefix_end(prefix)
    found = _table_keys(table, start, end, limit)
    for layer in reversed(layers):
        if layer.chunks or layer.dropped:
            found = merge(layer.chunk_keys(start, end), _not_hidden(layer, found))
    return list(islice(found, limit))


def _not_hidden(layer: Layer, keys: Iterator[bytes]) -> Iterator[bytes]:
    return (key for key in keys if not layer.hides_chunk(key))


def _table_keys(table: Reads, start: bytes, end: bytes | None, limit: int) -> Iterator[bytes]:
    page = table.list_chunks(start, end, limit)
    while page:
        yield from page
        page = table.list_chunks(page[-1] + b"\0", end, limit) if len(page) == limit else []
