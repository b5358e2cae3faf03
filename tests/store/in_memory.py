"""A journal and a table without a disk: for tests of what stands on them, and for the simulator."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.store.journal.frames import StoredChunk
from penstock.store.memory import MemoryStore


def twin_of(store: MemoryStore) -> MemoryStore:
    """Another store with the same content, as if this one were opened again."""
    twin, content = MemoryStore(), Changes()
    content.records = dict(store.scan(b""))
    for key in store.list_chunks(b"", b"", 1 << 30):
        content.chunks[key] = StoredChunk(store.read_chunk(key))
    twin.commit(content)
    return twin


class MemoryJournal:
    """Commits in a list: they are gone when the process ends."""

    def __init__(self) -> None:
        self._trimmed = 0
        self._commits: list[Changes] = []
        self._lock = threading.Lock()

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        assert after >= self._trimmed, "those commits were trimmed"
        yield from enumerate(self._commits[after - self._trimmed :], after + 1)

    def append(self, changes: Changes) -> int:
        with self._lock:
            self._commits.append(changes)
            return self._trimmed + len(self._commits)

    def trim(self, position: int) -> None:
        with self._lock:
            count = max(0, position - self._trimmed)
            del self._commits[:count]
            self._trimmed += count

    def close(self) -> None:
        pass


class MemoryTable:
    """A table that can be copied between two transactions: for crashes below the store."""

    def __init__(self, identity: int = 1) -> None:
        self._identity = identity
        self._position = 0
        self._store = MemoryStore()

    @property
    def identity(self) -> int:
        return self._identity

    @property
    def position(self) -> int:
        return self._position

    def apply(
        self,
        position: int | None,
        dropped: Iterable[bytes],
        chunks: Iterable[tuple[bytes, Buffer | None]],
        records: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        changes = Changes()
        changes.dropped.extend(dropped)
        for key, body in chunks:
            changes.chunks[key] = StoredChunk(body) if body is not None else None
        changes.records.update(records)
        self._store.commit(changes)
        if position is not None:
            self._position = position

    def read_chunk(self, key: bytes) -> bytes:
        return bytes(self._store.read_chunk(key))

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        return [key for key in self._store.list_chunks(b"", start, limit) if end is None or key < end]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return ((key, value) for key, value in self._store.scan(b"") if key >= start and (end is None or key < end))

    def flaws(self) -> list[Flaw]:
        return []

    def give_back(self, *, everything: bool = False) -> bool:
        return False

    @property
    def used_bytes(self) -> int:
        chunks = (len(self._store.read_chunk(key)) for key in self._store.list_chunks(b"", b"", 1 << 62))
        return sum(chunks) + sum(len(value) for _, value in self._store.scan(b""))

    @property
    def reusable_bytes(self) -> int:
        return 0

    def copy(self) -> MemoryTable:
        twin = MemoryTable(self._identity)
        twin._position = self._position
        twin._store = twin_of(self._store)
        return twin

    def close(self) -> None:
        pass
