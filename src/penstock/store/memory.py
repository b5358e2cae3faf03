"""A store without a disk: for programs that need nothing kept, and for tests, the simulator and benchmarks."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

from penstock.core.storage.changes import Buffer, Changes, Encodable, Flaw
from penstock.store.base import StoreStats
from penstock.store.layer import SortedKeys, joined, prefix_end

MEMORY = ":memory:"
"""As a path: that of a store that lives and dies with its process."""
_Value = TypeVar("_Value")


def _change(table: dict[bytes, _Value], keys: SortedKeys, changed: Mapping[bytes, _Value | None]) -> None:
    for key, value in changed.items():
        if value is None:
            table.pop(key, None)
        else:
            if key not in table:
                keys.add(key)
            table[key] = value


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
                _change(self._chunks, self._chunk_keys, changes.chunks)
            if changes.records:
                _change(self._records, self._record_keys, changes.records)

    def _drop(self, prefix: bytes) -> None:
        end = prefix_end(prefix)
        for key in list(self._chunk_keys.between(prefix, end)):
            del self._chunks[key]
        for key in list(self._record_keys.between(prefix, end)):
            del self._records[key]

    def read_chunk(self, key: bytes) -> Buffer:
        return joined(self._chunks[key])

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
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

    def close(self) -> None:
        """Nothing to let go of: the content stays as long as the object."""
