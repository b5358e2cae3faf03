"""Committed changes that are not in the table yet, on top of it.

A layer is the net effect of a run of commits: what it dropped, what it put and what it deleted since. The newest layer
takes commits; the one before is being applied to the table. To look something up, ask the newest layer, then the older
one, then the table; each may answer "it is here", "it is gone", or "ask below".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, Protocol

from penstock.core.storage.changes import Buffer, Changes, Encodable, Flaw
from penstock.store.keys import SortedKeys, prefix_end

ENTRY_BYTES: Final = 160
"""About what a key costs in memory beside its bytes and its value."""


class Missing(Enum):
    """Why a layer has no value for a key."""

    GONE = 0
    ASK_BELOW = 1


class Reads(Protocol):
    """What the layers need of the table below."""

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""
        ...

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order, as they are at the call."""
        ...


def joined(chunk: Encodable) -> Buffer:
    """A chunk's stored form in one piece."""
    parts = chunk.parts()
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Layer:
    """The net effect of a run of commits."""

    __slots__ = (
        "_chunk_keys",
        "_dropped",
        "_record_keys",
        "chunks",
        "chunks_died",
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
        self._dropped: tuple[bytes, ...] = ()
        self._chunk_keys = SortedKeys(self.chunks)
        self._record_keys = SortedKeys(self.records)

    @property
    def chunks_put(self) -> int:
        """How many chunks are here."""
        return sum(chunk is not None for chunk in self.chunks.values())

    def __bool__(self) -> bool:
        return bool(self.chunks or self.records or self._dropped)

    @property
    def dropped(self) -> tuple[bytes, ...]:
        """The prefixes under which nothing of what is below counts."""
        return self._dropped

    def absorb(self, changes: Changes, position: int) -> None:
        """Put a commit on top."""
        for prefix in changes.dropped:
            self._drop(prefix)
        if changes.chunks:
            self._absorb_chunks(changes.chunks)
        if changes.records:
            self._absorb_records(changes.records)
        self.position = position

    def _absorb_chunks(self, changed: dict[bytes, Encodable | None]) -> None:
        chunks = self.chunks
        for key, chunk in changed.items():
            before = chunks.get(key)
            if before is not None:
                self.live_bytes -= before.nbytes
                self.chunks_died += 1
            elif key not in chunks:
                self._chunk_keys.add(key)
                self.live_bytes += ENTRY_BYTES
            chunks[key] = chunk
            nbytes = chunk.nbytes if chunk is not None else 0
            self.live_bytes += nbytes
            self.written_bytes += nbytes + ENTRY_BYTES

    def _absorb_records(self, changed: dict[bytes, bytes | None]) -> None:
        records = self.records
        for key, value in changed.items():
            before = records.get(key)
            if before is not None:
                self.live_bytes -= len(before)
            elif key not in records:
                self._record_keys.add(key)
                self.live_bytes += ENTRY_BYTES
            records[key] = value
            nbytes = len(value) if value is not None else 0
            self.live_bytes += nbytes
            self.written_bytes += nbytes + ENTRY_BYTES

    def _drop(self, prefix: bytes) -> None:
        end = prefix_end(prefix)
        for key in list(self._chunk_keys.between(prefix, end)):
            chunk = self.chunks.pop(key)
            self.live_bytes -= ENTRY_BYTES + (chunk.nbytes if chunk is not None else 0)
            self.chunks_died += chunk is not None
        for key in list(self._record_keys.between(prefix, end)):
            value = self.records.pop(key)
            self.live_bytes -= ENTRY_BYTES + (len(value) if value is not None else 0)
        if not prefix.startswith(self._dropped):
            self._dropped = (*self._dropped, prefix)
            self.live_bytes += ENTRY_BYTES

    def chunk(self, key: bytes) -> Encodable | Missing:
        """A chunk, or why it is not here."""
        chunk = self.chunks.get(key, Missing.ASK_BELOW)
        if chunk is None:
            return Missing.GONE
        if chunk is Missing.ASK_BELOW and key.startswith(self._dropped):
            return Missing.GONE
        return chunk

    def hides_chunk(self, key: bytes) -> bool:
        """Whether what is below under this key does not count."""
        return key in self.chunks or key.startswith(self._dropped)

    def hides_record(self, key: bytes) -> bool:
        """Whether the record below under this key does not count."""
        return key in self.records or key.startswith(self._dropped)

    def chunk_keys(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The keys of the chunks that are here, in order. The layer must not change meanwhile."""
        return (key for key in self._chunk_keys.between(start, end) if self.chunks[key] is not None)

    def record_snapshot(self, start: bytes, end: bytes | None) -> RecordSnapshot:
        """What the layer says about the records in a range, unmoved by later commits."""
        keys = list(self._record_keys.between(start, end))
        items = [(key, value) for key in keys if (value := self.records[key]) is not None]
        return RecordSnapshot(items, frozenset(keys), self._dropped)


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
