"""A store without a disk: for tests, the simulator and benchmarks of the core alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.core.storage.changes import Buffer, Changes, Encodable, Flaw
from penstock.store.base import StoreStats
from penstock.store.journal.frames import StoredChunk
from penstock.store.layer import SortedKeys, joined, prefix_end

MEMORY = ":memory:"
"""As a path: that of a store that lives and dies with its process."""


class MemoryStore:
    """Chunks and records in dicts. Chunks are kept as they come, and encoded only when they are read.

    >>> store = MemoryStore()
    >>> changes = Changes()
    >>> changes.put_record(b"color/sky", b"blue")
    >>> store.commit(changes)
    >>> list(store.scan(b"color/"))
    [(b'color/sky', b'blue')]
    """

    def __init__(self) -> None:
        self._chunks: dict[bytes, Encodable] = {}
        self._records: dict[bytes, bytes] = {}
        self._chunk_keys = SortedKeys(self._chunks)
        self._record_keys = SortedKeys(self._records)
        self._lock = threading.Lock()
        self.stats = StoreStats()

    def commit(self, changes: Changes) -> None:
        """Keep the changes, all at once for every reader."""
        with self._lock:
            self.stats.commits += 1
            for prefix in changes.dropped:
                self._drop(prefix)
            if changes.chunks:
                self._change_chunks(changes.chunks)
            if changes.records:
                self._change_records(changes.records)

    def _drop(self, prefix: bytes) -> None:
        end = prefix_end(prefix)
        for key in list(self._chunk_keys.between(prefix, end)):
            del self._chunks[key]
        for key in list(self._record_keys.between(prefix, end)):
            del self._records[key]

    def _change_chunks(self, changed: dict[bytes, Encodable | None]) -> None:
        chunks = self._chunks
        for key, chunk in changed.items():
            if chunk is None:
                chunks.pop(key, None)
            else:
                if key not in chunks:
                    self._chunk_keys.add(key)
                chunks[key] = chunk

    def _change_records(self, changed: dict[bytes, bytes | None]) -> None:
        records = self._records
        for key, value in changed.items():
            if value is None:
                records.pop(key, None)
            else:
                if key not in records:
                    self._record_keys.add(key)
                records[key] = value

    def read_chunk(self, key: bytes) -> Buffer:
        """The stored form of a chunk; `KeyError` if it is not there."""
        return joined(self._chunks[key])

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys with this prefix, from `start` (inclusive) on, in key order."""
        with self._lock:
            return list(islice(self._chunk_keys.between(max(prefix, start), prefix_end(prefix)), limit))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order, as they are now."""
        with self._lock:
            found = [(key, self._records[key]) for key in self._record_keys.between(prefix, prefix_end(prefix))]
        return iter(found)

    def flaws(self) -> list[Flaw]:
        """Memory is not looked over."""
        return []

    def copy(self) -> MemoryStore:
        """Another store with the same content, as if this one were opened again."""
        twin = MemoryStore()
        with self._lock:
            twin._change_chunks(dict(self._chunks))
            twin._change_records(dict(self._records))
        return twin

    @property
    def nbytes(self) -> int:
        """How many bytes the chunks and records have."""
        with self._lock:
            return sum(chunk.nbytes for chunk in self._chunks.values()) + sum(map(len, self._records.values()))

    def close(self) -> None:
        """Nothing to let go of: the content stays as long as the object."""


class MemoryTable:
    """A table without a disk, which can be copied between two transactions: for crash simulations below the store."""

    def __init__(self, identity: int = 1) -> None:
        self._identity = identity
        self._position = 0
        self._store = MemoryStore()

    @property
    def identity(self) -> int:
        """A number that the table and its journal share."""
        return self._identity

    @property
    def position(self) -> int:
        """The last commit that the table holds."""
        return self._position

    def apply(
        self,
        position: int | None,
        dropped: Iterable[bytes],
        chunks: Iterable[tuple[bytes, Buffer | None]],
        records: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        """Keep the changes, all at once."""
        changes = Changes()
        changes.dropped.extend(dropped)
        for key, body in chunks:
            changes.chunks[key] = StoredChunk(body) if body is not None else None
        changes.records.update(records)
        self._store.commit(changes)
        if position is not None:
            self._position = position

    def read_chunk(self, key: bytes) -> bytes:
        """A chunk; `KeyError` if it is not there."""
        return bytes(self._store.read_chunk(key))

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""
        return [key for key in self._store.list_chunks(b"", start, limit) if end is None or key < end]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order, as they are at the call."""
        return ((key, value) for key, value in self._store.scan(b"") if key >= start and (end is None or key < end))

    def flaws(self) -> list[Flaw]:
        """Memory is not looked over."""
        return []

    def give_back(self, *, everything: bool = False) -> bool:
        """Nothing to return."""
        return False

    @property
    def used_bytes(self) -> int:
        """How much space the content takes."""
        return self._store.nbytes

    @property
    def reusable_bytes(self) -> int:
        """Memory needs no space to be reused."""
        return 0

    def copy(self) -> MemoryTable:
        """The table as it is now, as if it were opened again."""
        twin = MemoryTable(self._identity)
        twin._position = self._position
        twin._store = self._store.copy()
        return twin

    def close(self) -> None:
        """Nothing to let go of."""
