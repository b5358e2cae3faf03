"""A shard's claim: a record in its own log that says who has it, written before its owner serves.

The wait that keeps two owners apart (`server/proof.py`) is not needed after an owner has given the shard up in order.
Who says so? A note elsewhere could be old: an owner that was told to open, stood still, and goes on much later would
believe a note from before others had the shard. So the claim is in the shard's own log, where fencing orders it:

- Every owner commits its claim before it serves.
- An owner that gives the shard up commits that it has *released* it, after the last message left. One that has to let
  go before it has waited writes nothing: the next one would not wait for those whom it has not waited for. Neither does
  one whose last commit failed: after a release the next owner keeps the sessions, and what they hold.
- A new owner fences, and then reads. If the claim that it finds is a release, nobody has served since, and nobody who
  could have can commit a claim any more: there is nobody to wait for. Otherwise it waits.
- If the claim that it finds has a higher epoch than its own, the shard was given to others since: it lets go.

`docs/cluster.md` tells how this was checked over all interleavings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.server.proof import steady_s
from penstock.store.base import Store, StoreStats
from penstock.store.errors import CommitAborted, DiskFull, StoreVersion

CLAIM_KEY = b"\xf0claim"
"""Beyond the kinds of records that the core knows (`core/storage/keys.py`)."""
CLAIM_VERSION = 1

log = logging.getLogger("penstock.cluster")


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """Who has a shard, or had it last."""

    version: int
    epoch: int
    node: str
    is_released: bool = False


class ShardGivenAway(StoreError):
    """The shard was given to somebody else since we were told to open it."""


@runtime_checkable
class Fencing(Protocol):
    """A store that knows when it has fenced its former owner."""

    @property
    def fenced_ago_s(self) -> float:
        """How many seconds ago that was, at least."""
        ...


class ClaimedStore:
    """A store with this node's claim in it. Closing it in good health, and alone, releases the shard."""

    def __init__(self, store: Store, node: str, epoch: int, now_s: Callable[[], float] = steady_s) -> None:
        """Claim a store that was just opened, which has fenced its former owner."""
        self.fenced_s = now_s() - fenced_ago_s(store)
        """When nobody else could commit any more."""
        self.commits = 0
        self.commit_s = 0.0
        """How long the commits took, together."""
        self._store = store
        self._now_s = now_s
        self._is_good = True
        self._is_whole = True
        """Whether the last commit was written. What was not is gone: somebody may hold what the log calls free, or have
        given back what it calls held. So the next owner must not think that it has everything."""
        self._claim = Claim(CLAIM_VERSION, epoch, node)
        former = read_claim(store)
        if former is not None and former.epoch > epoch:
            raise ShardGivenAway(f"epoch {epoch} is over: node {former.node!r} has had the shard in {former.epoch}")
        self.is_clean = former is None or former.is_released
        """Whether there is nobody to wait for."""
        self.is_alone = self.is_clean
        """Whether nobody else can hand out messages any more: set by who has waited."""
        self.began_s = now_s()
        """When the commit of the claim began."""
        self.commit(Changes())

    @property
    def inner(self) -> Store:
        """The store itself."""
        return self._store

    def commit(self, changes: Changes) -> None:
        """As the store's. A commit of nothing writes the claim again: it proves that the shard is ours."""
        if not changes:
            changes.put_record(CLAIM_KEY, msgspec.msgpack.encode(self._claim))
        began_s = self._now_s()
        try:
            self._store.commit(changes)
        except StoreError as error:
            self._is_good = self._is_good and isinstance(error, DiskFull | CommitAborted)
            self._is_whole = False
            raise
        self._is_whole = True
        self.commits += 1
        self.commit_s += self._now_s() - began_s

    def read_chunk(self, key: bytes) -> Buffer:
        """The stored form of a chunk; `KeyError` if it is not there."""
        return self._store.read_chunk(key)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys with this prefix, from `start` (inclusive) on, in key order."""
        return self._store.list_chunks(prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order."""
        return self._store.scan(prefix)

    def flaws(self) -> Sequence[Flaw]:
        """What was found damaged at opening."""
        return self._store.flaws()

    @property
    def stats(self) -> StoreStats:
        """What the store has done since it was opened."""
        return self._store.stats

    def close(self) -> None:
        """Release the shard in writing, if it is ours alone and all of it was written, and let go."""
        try:
            if self._is_good and self._is_whole and self.is_alone:
                self._claim = msgspec.structs.replace(self._claim, is_released=True)
                self.commit(Changes())
        except StoreError as error:
            log.warning("a shard could not be released in writing; its next owner waits: %s", error)
        finally:
            self._store.close()


def fenced_ago_s(store: Store) -> float:
    """How long ago a store has fenced its former owner, if it knows that; 0 means: just now, which is always safe."""
    return store.fenced_ago_s if isinstance(store, Fencing) else 0.0


def read_claim(store: Store) -> Claim | None:
    """The claim in a store; None if nobody has ever had it."""
    for key, value in store.scan(CLAIM_KEY):
        if key == CLAIM_KEY:
            return _decode(value)
    return None


def _decode(value: bytes) -> Claim:
    claim = msgspec.msgpack.decode(value, type=Claim, strict=False)
    if claim.version != CLAIM_VERSION:
        raise StoreVersion(f"the shard's claim has version {claim.version}: this is {CLAIM_VERSION}; update Penstock")
    return claim
