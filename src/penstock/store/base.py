"""The store's interface: what a shard needs of an engine, and nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.core.storage.changes import Buffer, Changes, Flaw


@dataclass
class StoreStats:
    """What the store has done since it was opened."""

    commits: int = 0
    commits_waited: int = 0
    """Commits that had to wait for the applier, where there is one."""
    chunks_died_young: int = 0
    """Chunks that were deleted before their turn, and never went to the table."""
    chunks_applied: int = 0
    transactions: int = 0
    apply_failures: int = 0
    unapplied_bytes: int = 0
    """What is in memory now, waiting for the applier."""


class Store(Protocol):
    """Durable chunks and state records. One owner commits; reads may come from several threads.

    Every implementation passes `tests/store/conformance.py`.
    """

    def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or nothing.

        When this returns, they survive a crash. When it raises `CommitFailed`, whether they were kept is not known, and
        the store has to be opened again before the next commit. When it raises `DiskFull`, nothing was written and the
        store goes on: smaller commits, such as deletes, may still succeed.
        """

    def read_chunk(self, key: bytes) -> Buffer:
        """The stored form of a chunk; `KeyError` if it is not there."""

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys with this prefix, from `start` (inclusive) on, in key order."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order."""

    def flaws(self) -> Sequence[Flaw]:
        """What was found damaged at opening. Damaged records are left out of `scan`; the rest can be relied on."""

    @property
    def stats(self) -> StoreStats:
        """What the store has done since it was opened."""

    def close(self) -> None:
        """Finish background work and let go of files and locks. What was committed stays."""


class ReadThrough:
    """A store around another one: what is read comes from that one."""

    _store: Store

    def read_chunk(self, key: bytes) -> Buffer:
        return self._store.read_chunk(key)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        return self._store.list_chunks(prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(prefix)

    def flaws(self) -> Sequence[Flaw]:
        return self._store.flaws()

    @property
    def stats(self) -> StoreStats:
        return self._store.stats


class Table(Protocol):
    """What outlives the journal. One thread applies; reads may come from several others at the same time."""

    @property
    def identity(self) -> int:
        """A random number that the table and its journal share."""

    @property
    def position(self) -> int:
        """The last commit that the table holds, durably."""

    def apply(
        self,
        position: int | None,
        dropped: Iterable[bytes],
        chunks: Iterable[tuple[bytes, Buffer | None]],
        records: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        """Make changes durable in one transaction, prefixes first; with None for a value, delete.

        With a position, the table has then reached it. Without one, the changes are an early part of what leads to the
        next position. Raises `DiskFull` when there is no room: nothing was changed then, and trying again later is
        right.
        """

    def read_chunk(self, key: bytes) -> bytes:
        """A chunk; `KeyError` if it is not there."""

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order, as they are at the call."""

    def flaws(self) -> Sequence[Flaw]:
        """What was found damaged at opening."""

    def give_back(self, *, everything: bool = False) -> bool:
        """Return some unused space to the disk; True if there is more to return.

        Some is kept for what comes next, unless `everything` is wanted.
        """

    @property
    def used_bytes(self) -> int:
        """How much space the content takes, without what is free for reuse."""

    @property
    def reusable_bytes(self) -> int:
        """How much more content fits before the table takes more of the disk."""

    def close(self) -> None:
        """Let go of files."""
