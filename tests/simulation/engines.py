"""Where a simulated broker keeps its data, and how that place can fail."""

from __future__ import annotations

import errno
import random
from enum import Enum
from pathlib import Path
from typing import Protocol

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Changes
from penstock.store.base import Store
from penstock.store.embedded import EmbeddedStore, StoreOptions
from penstock.store.errors import CommitFailed, DiskFull
from penstock.store.journal.file import FileJournal
from penstock.store.memory import MemoryStore
from tests.store.faulty_disk import FaultyDisk, PowerLost
from tests.store.in_memory import MemoryTable


class Fault(Enum):
    """How a broker's life can end."""

    BEFORE = "crash before the commit"
    AFTER = "crash after the commit, before the replies"
    DURING = "crash in the middle of the commit"
    FAILED = "commit failed, outcome unknown"
    FULL = "disk full"


class Kept(Enum):
    """What must be there after a fault."""

    BEFORE = "the state before the commit"
    AFTER = "the state after the commit"
    EITHER = "one of the two"


class Engine(Protocol):
    """A place for data that survives its stores."""

    def open(self) -> Store:
        """The store, opened on what is there now."""
        ...

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> Kept:
        """The last commit of a broker, which goes wrong; says what must be found when the store is opened after it."""
        ...

    def rest(self, rng: random.Random) -> None:
        """Between commits: time for work in the background."""
        ...


class MemoryEngine:
    """A store in memory: commits happen, or not."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> Kept:
        if fault in (Fault.BEFORE, Fault.FULL):
            return Kept.BEFORE
        if fault is Fault.AFTER or rng.random() < 0.5:
            self._store.commit(changes)
            return Kept.AFTER
        return Kept.BEFORE

    def rest(self, rng: random.Random) -> None:
        pass


class DiskEngine:
    """The embedded store on a disk that loses power: a file journal in small segments, and a table in memory."""

    def __init__(self, rng: random.Random) -> None:
        self._segment_bytes = rng.choice([4_096, 16_384, 65_536])
        self._apply_bytes = rng.choice([2_000, 30_000, 1 << 20])
        self._disk = FaultyDisk()
        self._table = MemoryTable()
        self._store = self._opened()

    def _opened(self) -> EmbeddedStore:
        journal = FileJournal(
            self._disk,
            Path("/journal"),
            self._table.identity,
            segment_bytes=self._segment_bytes,
            first_segment_bytes=4_096,
            background=False,
        )
        options = StoreOptions(apply_written_bytes=self._apply_bytes)
        return EmbeddedStore(journal, self._table, options, background=False)

    def open(self) -> Store:
        return self._store

    def rest(self, rng: random.Random) -> None:
        if rng.random() < 0.05:
            self._store.apply_now()

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> Kept:
        if fault is Fault.FULL:
            return self._run_full(changes)
        kept = self._fail_to_sync(changes) if fault is Fault.FAILED else self._lose_power(fault, changes, rng)
        self._store = self._opened()
        return kept

    def _run_full(self, changes: Changes) -> Kept:
        """No room: the commit is refused, unless what is left in the journal is enough for it. The store goes on."""
        self._disk.capacity_bytes, capacity_bytes = self._disk.used_bytes, self._disk.capacity_bytes
        try:
            self._store.commit(changes)
        except DiskFull:
            return Kept.BEFORE
        finally:
            self._disk.capacity_bytes = capacity_bytes
        return Kept.AFTER

    def _fail_to_sync(self, changes: Changes) -> Kept:
        """The operating system could not write. The process opens the store again; the machine stays up."""

        def fail(operation: str, path: Path) -> None:
            if operation == "sync":
                raise OSError(errno.EIO, "the disk does not answer")

        self._disk.on_operation = fail
        try:
            self._store.commit(changes)
        except CommitFailed:
            return Kept.EITHER
        finally:
            self._disk.on_operation = lambda operation, path: None
        return Kept.AFTER

    def _lose_power(self, fault: Fault, changes: Changes, rng: random.Random) -> Kept:
        kept = Kept.BEFORE
        if fault is not Fault.BEFORE:
            kept = Kept.AFTER
            if fault is Fault.DURING:
                self._disk.power_fails_at = self._disk.operations + rng.randint(1, 6)
            try:
                self._store.commit(changes)
                if rng.random() < 0.2:
                    self._store.apply_now()
            except (PowerLost, StoreError):
                kept = Kept.EITHER
        self._disk, self._table = self._disk.crash(rng.randrange(1 << 30)), self._table.copy()
        return kept
