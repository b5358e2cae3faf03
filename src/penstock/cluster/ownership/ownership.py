"""The shards of this node: opened when the controller says so, served, and given up in order.

Each shard that this node shall own has an `OwnedShard`, one for each epoch and never a second one in the same:

    wait      until the former owner has released the shard, if it is alive; not for ever
    open      in a thread: fence the former owner, catch up with the log, write the claim (`Claim`)
    wait      out the former owner's proof, unless it has released the shard in writing
    serve     in the host; the forwarder runs; `serving/<n>` is published
    release   when another shall own it, when a commit has failed, or when the node stops: no new commands, those in
              flight are answered, the rest is committed, the claim is released; `released/<n>` is published

An owner that let go of a shard that it should have (a commit failed, it was fenced, it could not be opened) says so in
the same way, and the controller decides again, in a new epoch.

Everything here runs in the event loop, save what a thread does for `open`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from penstock.cluster.base import ShardMoved
from penstock.cluster.membership.ledger import Ledger, Record, ReleasedRecord, ServingRecord
from penstock.cluster.ownership.forwarder import Forwarder, Submit
from penstock.core.backoff import backoff
from penstock.core.errors import StoreError
from penstock.core.storage.changes import Changes
from penstock.server.clock import Clock
from penstock.server.proof import PROOF_S, Proof, steady_s
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.store.base import ReadThrough, Store
from penstock.store.errors import CommitAborted, DiskFull, StoreVersion

LAZY_COMMIT_MS = 100
"""How long leases may wait for a commit to go along with: one on Kafka costs far more than one on a disk."""
CLOCK_MARGIN = 1.1
"""Two machines' clocks do not run equally fast."""
OPENINGS_MAX = 4
"""Shards that are opened at the same time."""
PAUSE_S = 1.0
PAUSE_S_MAX = 30.0
"""How long a shard that could not be kept is left alone before the controller hears of it; it doubles each time."""
REPEAT_S = 5.0
"""How long a record of ours may be missing from the ledger before it is written again."""

log = logging.getLogger("penstock.cluster")


class Host(Protocol):
    """Where shards are served: `ShardHost`."""

    @property
    def served(self) -> Mapping[int, AsyncShard]: ...

    def add(self, shard: int, served: AsyncShard) -> None:
        """Serve a shard from now on."""

    async def release(self, shard: int) -> None:
        """Serve a shard no longer."""


class OwnedShard:
    """One shard, for one epoch."""

    def __init__(self, shard: int, epoch: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.is_ending = asyncio.Event()
        self.reason = ""
        """Why it ends, if that is not the controller's decision."""
        self.claimed: ClaimedStore | None = None
        self.proof: Proof | None = None
        self.forwarder: Forwarder | None = None
        self.served: AsyncShard | None = None
        self.published_s = 0.0

    def end(self, reason: str = "") -> None:
        """Give the shard up."""
        self.reason = self.reason or reason
        self.is_ending.set()

    async def ends_within(self, seconds: float) -> bool:
        """Let some time pass, but not when the shard is given up meanwhile."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.is_ending.wait(), seconds)
        return self.is_ending.is_set()


class Ownership:
    """Follows the ledger: `look` has to be called whenever it has changed."""

    def __init__(
        self,
        node: str,
        ledger: Ledger,
        host: Host,
        publish: Callable[[str, Record | None], None],
        open_store: Callable[[int], Store],
        clock: Clock,
        *,
        handover_s: float,
        proof_s: float = PROOF_S,
        on_served: Callable[[Shard], None] = lambda shard: None,
    ) -> None:
        self.submit: Submit | None = None
        """Where forwarders take what is for other shards; without it none run."""
        self._node = node
        self._ledger = ledger
        self._host = host
        self._publish = publish
        self._open_store = open_store
        self._clock = clock
        self._handover_s = handover_s
        self._proof_s = proof_s
        self._on_served = on_served
        self._loop = asyncio.get_running_loop()
        self._owned_shards: dict[int, OwnedShard] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: dict[int, int] = {}
        """The last epoch of each shard that was this node's, and is over."""
        self._failures: Counter[int] = Counter()
        """How often in a row each shard could not be served."""
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._news = asyncio.Event()
        self._stopping = False

    @property
    def owned_shards(self) -> Mapping[int, OwnedShard]:
        """The shards that are this node's, or on their way here or away."""
        return self._owned_shards

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """The shards that are served here."""
        return self._host.served

    def look(self) -> None:
        """The ledger has changed: take and give up shards."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        for shard, decided in self._ledger.shards.items():
            is_ours = self._ledger.owner_of(shard) == self._node and not self._stopping
            owned_shard = self._owned_shards.get(shard)
            if owned_shard is None:
                if is_ours and decided.epoch > self._over.get(shard, 0):
                    self._begin(shard, decided.epoch)
            elif not is_ours or decided.epoch != owned_shard.epoch:
                owned_shard.end()
        self._repeat()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until there is no shard left here; False if that takes too long."""
        deadline_s = self._loop.time() + timeout_s
        while self._owned_shards and self._loop.time() < deadline_s:
            news = self._news
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), min(1.0, max(0.0, deadline_s - self._loop.time())))
        return not self._owned_shards

    def give_up(self, reason: str) -> None:
        """Whatever is owned here now is somebody else's by now, or free."""
        for owned_shard in self._owned_shards.values():
            owned_shard.end(reason)

    async def close(self) -> None:
        """Give up every shard, in writing."""
        self._stopping = True
        for owned_shard in self._owned_shards.values():
            owned_shard.end("the node stops")
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- an owned shard --

    def _begin(self, shard: int, epoch: int) -> None:
        owned_shard = self._owned_shards[shard] = OwnedShard(shard, epoch)
        task = self._loop.create_task(self._live(owned_shard), name=f"shard {shard}, epoch {epoch}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a shard was given up because of a bug", exc_info=task.exception())

    async def _live(self, owned_shard: OwnedShard) -> None:
        try:
            await self._await_release(owned_shard)
            await self._open(owned_shard)
            if not owned_shard.is_ending.is_set():
                self._serve(owned_shard)
                await owned_shard.is_ending.wait()
        except Exception as error:
            log.warning("shard %d could not be kept in epoch %d: %s", owned_shard.shard, owned_shard.epoch, error)
            owned_shard.reason = owned_shard.reason or f"{type(error).__name__}: {error}"
        finally:
            await self._release(owned_shard)

    async def _await_release(self, owned_shard: OwnedShard) -> None:
        """The former owner may have calls in flight: let it answer them before it is fenced."""
        deadline_s = self._loop.time() + self._handover_s
        while not owned_shard.is_ending.is_set():
            decided, server = self._ledger.shards[owned_shard.shard], self._ledger.server_of(owned_shard.shard)
            left_s = deadline_s - self._loop.time()
            if not decided.after or server != decided.after or left_s <= 0:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), left_s)

    async def _open(self, owned_shard: OwnedShard) -> None:
        async with self._openings:
            if owned_shard.is_ending.is_set():
                return
            shard = await asyncio.to_thread(self._open_shard, owned_shard)
        owned_shard.served = AsyncShard(shard, commit_in_thread=True)
        assert owned_shard.claimed is not None
        if not owned_shard.claimed.is_clean:
            left_s = owned_shard.claimed.fenced_s + owned_shard.claimed.former_proof_s * CLOCK_MARGIN - steady_s()
            log.info(
                "shard %d was not released by its former owner: it is served in %.1f s",
                owned_shard.shard,
                max(0.0, left_s),
            )
            owned_shard.claimed.is_alone = not await owned_shard.ends_within(max(0.0, left_s))

    def _open_shard(self, owned_shard: OwnedShard) -> Shard:
        """In a thread of its own."""
        cluster = self._ledger.cluster
        assert cluster is not None
        store = self._open_store(owned_shard.shard)
        try:
            owned_shard.claimed = ClaimedStore(store, self._node, owned_shard.epoch, proof_s=self._proof_s)
        except BaseException:
            store.close()
            raise
        claimed = owned_shard.claimed
        owned_shard.proof = Proof(
            lambda: ShardMoved(owned_shard.shard), lambda error: self._lost(owned_shard, error), seconds=self._proof_s
        )
        owned_shard.proof.renewed(claimed.began_s)
        return Shard(
            lambda: claimed,
            self._clock,
            lambda: cluster.entropy,
            owned_shard.shard,
            cluster.shards,
            proof=owned_shard.proof,
            lazy_commit_ms=LAZY_COMMIT_MS,
            was_handed_over=claimed.is_clean,
        )

    def _lost(self, owned_shard: OwnedShard, error: Exception) -> None:
        """In any thread: a commit has failed."""
        self._loop.call_soon_threadsafe(owned_shard.end, f"{type(error).__name__}: {error}")

    def _serve(self, owned_shard: OwnedShard) -> None:
        assert owned_shard.served is not None
        self._on_served(owned_shard.served.shard)
        self._host.add(owned_shard.shard, owned_shard.served)
        if self.submit is not None:
            owned_shard.forwarder = Forwarder(owned_shard.served, self.submit)
            owned_shard.forwarder.start()
        self._failures.pop(owned_shard.shard, None)
        self._publish_serving(owned_shard)
        log.info("shard %d is served here, in epoch %d", owned_shard.shard, owned_shard.epoch)

    def _publish_serving(self, owned_shard: OwnedShard) -> None:
        owned_shard.published_s = self._loop.time()
        record = ServingRecord(node=self._node, epoch=owned_shard.epoch, since_ms=self._clock.now_ms())
        self._publish(f"serving/{owned_shard.shard}", record)

    async def _release(self, owned_shard: OwnedShard) -> None:
        if owned_shard.reason and not self._stopping:
            log.warning("shard %d is given up: %s", owned_shard.shard, owned_shard.reason)
        try:
            if owned_shard.forwarder is not None:
                await owned_shard.forwarder.stop()
            if owned_shard.shard in self._host.served:
                await self._host.release(owned_shard.shard)
            elif owned_shard.served is not None:
                await owned_shard.served.close(ShardMoved(owned_shard.shard))
        except Exception as error:
            log.warning("shard %d was not released cleanly; its next owner has to wait: %s", owned_shard.shard, error)
        if owned_shard.reason and not self._stopping:
            failures = self._failures[owned_shard.shard] = self._failures[owned_shard.shard] + 1
            if failures > 1:  # the first time, whatever was wrong may be over
                await asyncio.sleep(backoff(failures, PAUSE_S, PAUSE_S_MAX))
        self._over[owned_shard.shard] = owned_shard.epoch
        self._publish(
            f"released/{owned_shard.shard}",
            ReleasedRecord(node=self._node, epoch=owned_shard.epoch, reason=owned_shard.reason),
        )
        del self._owned_shards[owned_shard.shard]
        log.info("shard %d is no longer served here", owned_shard.shard)
        self.look()

    def _repeat(self) -> None:
        """A former owner that was late may have written over what we have said: say it again."""
        now_s = self._loop.time()
        for owned_shard in self._owned_shards.values():
            if (
                owned_shard.published_s
                and now_s - owned_shard.published_s > REPEAT_S
                and not owned_shard.is_ending.is_set()
            ):
                serving = self._ledger.serving.get(owned_shard.shard)
                if serving is None or (serving.node, serving.epoch) != (self._node, owned_shard.epoch):
                    self._publish_serving(owned_shard)


# -- claims ------------------------------------------------------------------------------------------------------------

# A shard's claim: a record in its own log that says who has it, written before its owner serves.
#
# The wait that keeps two owners apart (`server/proof.py`) is not needed after an owner has given the shard up in order.
# Who says so? A note elsewhere could be old: an owner that was told to open, stood still, and goes on much later would
# believe a note from before others had the shard. So the claim is in the shard's own log, where fencing orders it:
#
# - Every owner commits its claim before it serves.
# - An owner that gives the shard up commits that it has *released* it, after the last message left. One that has to let
#   go before it has waited writes nothing: the next one would not wait for those whom it has not waited for. Neither
#   does one whose last commit failed: after a release the next owner keeps the sessions, and what they hold.
# - A new owner fences, and then reads. If the claim that it finds is a release, nobody has served since, and nobody who
#   could have can commit a claim any more: there is nobody to wait for. Otherwise it waits.
# - If the claim that it finds has a higher epoch than its own, the shard was given to others since: it lets go.
#
# `docs/cluster.md` tells how this was checked over all interleavings.

CLAIM_KEY = b"\xf0claim"
"""Beyond the kinds of records that the core knows (`core/storage/keys.py`)."""
CLAIM_VERSION = 1


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """Who has a shard, or had it last."""

    version: int
    epoch: int
    node: str
    is_released: bool = False
    proof_ms: int = round(PROOF_S * 1_000)
    """How long a commit proves to it that the shard is its own: the next owner waits for so long. An earlier build does
    not say it."""


class ShardGivenAway(StoreError):
    """The shard was given to somebody else since we were told to open it."""


@runtime_checkable
class Fencing(Protocol):
    """A store that knows when it has fenced its former owner."""

    @property
    def fenced_ago_s(self) -> float:
        """How many seconds ago that was, at least."""


class ClaimedStore(ReadThrough):
    """A store with this node's claim in it. Closing it in good health, and alone, releases the shard."""

    def __init__(
        self, store: Store, node: str, epoch: int, now_s: Callable[[], float] = steady_s, proof_s: float = PROOF_S
    ) -> None:
        """Claim a store that was just opened, which has fenced its former owner."""
        self.fenced_s = now_s() - fenced_ago_s(store)
        """When nobody else could commit any more."""
        self.commits = 0
        self.commit_s = 0.0
        """How long the commits took, together."""
        self.commit_bytes = 0
        """Of the chunks in them."""
        self._store = store
        self._now_s = now_s
        self._is_good = True
        self._is_whole = True
        """Whether the last commit was written. What was not is gone: somebody may hold what the log calls free, or have
        given back what it calls held. So the next owner must not think that it has everything."""
        self._claim = Claim(CLAIM_VERSION, epoch, node, proof_ms=round(proof_s * 1_000))
        former = read_claim(store)
        if former is not None and former.epoch > epoch:
            raise ShardGivenAway(
                f"epoch {epoch} is over: node {former.node!r} has had the shard since, in epoch {former.epoch}"
            )
        self.is_clean = former is None or former.is_released
        """Whether there is nobody to wait for."""
        self.former_proof_s = 0.0 if former is None else former.proof_ms / 1_000
        """How long the former owner may go on without knowing that it was fenced."""
        self.is_alone = self.is_clean
        """Whether nobody else can hand out messages any more: set by who has waited."""
        self.began_s = now_s()
        """When the commit of the claim began."""
        self.commit(Changes())

    @property
    def inner(self) -> Store:
        return self._store

    def commit(self, changes: Changes) -> None:
        """As the store's. A commit of nothing writes the claim again: it proves that the shard is ours."""
        if not changes:
            changes.put_record(CLAIM_KEY, msgspec.msgpack.encode(self._claim))
        nbytes = sum(chunk.nbytes for chunk in changes.chunks.values() if chunk is not None)
        began_s = self._now_s()
        try:
            self._store.commit(changes)
        except StoreError as error:
            self._is_good = self._is_good and isinstance(error, DiskFull | CommitAborted)
            self._is_whole = False
            raise
        self._is_whole = True
        self.commits += 1
        self.commit_bytes += nbytes
        self.commit_s += self._now_s() - began_s

    def close(self) -> None:
        """Release the shard in writing, if it is ours alone and all of it was written, and let go."""
        try:
            if self._is_good and self._is_whole and self.is_alone:
                self._claim = msgspec.structs.replace(self._claim, is_released=True)
                self.commit(Changes())
        except StoreError as error:
            log.warning("the release of a shard could not be recorded; its next owner has to wait: %s", error)
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
        raise StoreVersion(
            f"the shard's claim has version {claim.version}, and this node knows version {CLAIM_VERSION}: "
            "update Penstock"
        )
    return claim
