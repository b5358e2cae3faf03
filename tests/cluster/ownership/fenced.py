"""Stores that can be taken over, and a partitions topic, both in memory: for owners without Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.cluster.membership.ledger import ClusterRecord, Ledger, Record, ShardRecord, encode
from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.store.errors import CommitFailed, ShardFenced
from penstock.store.memory import MemoryStore


class Log:
    """A shard's log: whoever opens it last may write."""

    def __init__(self) -> None:
        self.kept = MemoryStore()
        self.fence = 0
        self.fails = False
        self.refuses = False

    def open(self) -> FencedStore:
        if self.refuses:
            raise CommitFailed("the log cannot be opened")
        self.fence += 1
        return FencedStore(self, self.fence)


class FencedStore:
    """A store over a log that others may take over."""

    def __init__(self, log: Log, number: int) -> None:
        self._log = log
        self._number = number

    def commit(self, changes: Changes) -> None:
        if self._number < self._log.fence:
            raise ShardFenced("somebody else has the shard")
        if self._log.fails:
            raise CommitFailed("nobody knows")
        self._log.kept.commit(changes)

    def read_chunk(self, key: bytes) -> Buffer:
        return self._log.kept.read_chunk(key)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        return self._log.kept.list_chunks(prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._log.kept.scan(prefix)

    def flaws(self) -> Sequence[Flaw]:
        return self._log.kept.flaws()

    def close(self) -> None:
        """Nothing to let go of."""


class Topic:
    """A partitions topic: everybody who reads it hears of each record at once."""

    def __init__(self, shards: int) -> None:
        self.ledger = Ledger()
        self.written: list[tuple[str, Record | None]] = []
        self.readers: list[Callable[[], None]] = []
        self.publish("cluster", ClusterRecord(identity="c", shards=shards, entropy=bytes(range(64))))

    def publish(self, key: str, record: Record | None) -> None:
        self.ledger.apply(len(self.written), key, None if record is None else encode(record))
        self.written.append((key, record))
        for reader in list(self.readers):
            reader()

    def decide(self, shard: int, owner: str, epoch: int, after: str = "") -> None:
        """What a controller would write."""
        self.publish(f"shard/{shard}", ShardRecord(owner=owner, epoch=epoch, after=after))

    def of(self, kind: str) -> list[Record | None]:
        """The records of one kind that were written."""
        return [record for key, record in self.written if key.startswith(f"{kind}/")]
