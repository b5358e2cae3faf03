"""Stores that fail when told to, around a real one in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.store.errors import CommitFailed, DiskFull
from penstock.store.memory import MemoryStore


class TroubledStore:
    """A store in memory whose commits fail, block or find no space as a test says."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.commits = 0
        self.opened = 0
        self.full = False
        """Commits that add chunks find no space."""
        self.on_commit: Callable[[Changes], None] = lambda changes: None
        self.refuses_to_open = False
        self.unreadable: StoreError | None = None
        """What reading a chunk raises."""
        self._failures: list[tuple[BaseException, bool]] = []

    def fail_next(self, *, kept: bool, error: BaseException | None = None) -> None:
        """The next commit raises; its changes are kept, or not."""
        self._failures.append((error or CommitFailed("the disk does not answer"), kept))

    def fail_nothing(self) -> None:
        """Forget the failures that are still to come."""
        self._failures.clear()

    def open(self) -> TroubledStore:
        """What the shard opens, again and again."""
        if self.refuses_to_open:
            raise CommitFailed("the disk is gone")
        self.opened += 1
        return self

    def commit(self, changes: Changes) -> None:
        self.on_commit(changes)
        if self.full and any(chunk is not None for chunk in changes.chunks.values()):
            raise DiskFull("no space left")
        if self._failures:
            error, kept = self._failures.pop(0)
            if kept:
                self.inner.commit(changes)
            raise error
        self.inner.commit(changes)
        self.commits += 1

    def read_chunk(self, key: bytes) -> Buffer:
        if self.unreadable is not None:
            raise self.unreadable
        return self.inner.read_chunk(key)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        return self.inner.list_chunks(prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(prefix)

    def flaws(self) -> Sequence[Flaw]:
        return self.inner.flaws()

    def close(self) -> None:
        pass


class Gate:
    """Holds commits back until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def hold(self, changes: Changes) -> None:
        self.reached.set()
        assert self._open.wait(10)

    def open(self) -> None:
        self._open.set()
