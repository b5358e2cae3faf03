"""The Kafka engine: a shard's log in Kafka, and a table on this machine as its cache.

The store is the embedded one (`embedded`), with a Kafka journal in place of files. What is durable is in Kafka: the
table, and what lies around it in `directory/shard-<n>`, can be lost at any time, and is made again from the log.

Beside the table lies `position`, a small file: up to which offsets the log is in the table, of which topics, and since
when, with a checksum behind it. It is written after each transaction of the table, so that it is never ahead of it;
being behind does no harm (see `journal.kafka`). The cache is thrown away, and read anew from the start of the log, when

- there is no such file, or it belongs to another table, other topics, another Kafka, another shard, or a later format;
- the log does not go on at these offsets;
- the table was found damaged when it was last used, or is when it is opened;
- it is older than half of the topics' `delete.retention.ms`, after which Kafka may have forgotten deletions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import xxhash

from penstock.core.storage.changes import Changes
from penstock.store.base import ReadThrough
from penstock.store.disk import Disk, RealDisk
from penstock.store.embedded import EmbeddedStore, StoreOptions
from penstock.store.errors import DirectoryMoved, LogUnavailable, LogUnsafe, StoreDamaged, StoreVersion
from penstock.store.journal.kafka import KafkaJournal, LogPosition, PositionLost
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import LogTopics, prepare_topics
from penstock.store.layout import FILE_MODE, POSITION_NAME, TABLE_NAME, restrict
from penstock.store.lock import DirectoryLock, refuse_messages
from penstock.store.table import SqliteTable

POSITION_VERSION = 2
_SEAL_BYTES = 8
REPLAYED_TO_UNAPPLIED = 4
"""A log that does not fit on the disk is read into memory up to so many times what may wait there otherwise."""

log = logging.getLogger("penstock.kafka")


class CachePosition(msgspec.Struct, array_like=True, frozen=True):
    """How far a table has got in its log."""

    version: int
    kafka_id: str
    data_id: str
    offset_id: str
    shard: int
    table: int
    """The table's identity."""
    data: int
    offset: int
    time_s: float
    chunk_splits: dict[bytes, int]
    record_splits: dict[bytes, int]

    @property
    def position(self) -> LogPosition:
        """From where to read on."""
        return LogPosition(self.data, self.offset, self.time_s)


class KafkaStore(ReadThrough):
    """A shard's store over its log in Kafka. `open_kafka` makes one."""

    _store: EmbeddedStore

    def __init__(self, journal: KafkaJournal, store: EmbeddedStore) -> None:
        self._journal = journal
        self._store = store

    def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or nothing."""
        self._store.commit(changes)

    def touch(self) -> None:
        """Commit nothing: when this returns, nobody else had the shard when it was called."""
        self._journal.append(Changes())

    @property
    def last_proof_s(self) -> float | None:
        """When the last successful commit began, by the monotonic clock; None if there was none."""
        return self._journal.last_proof_s

    @property
    def fenced_ago_s(self) -> float:
        """How many seconds ago, at least, everybody else was fenced. While the machine sleeps this stands still."""
        fenced_s = self._journal.fenced_s
        return 0.0 if fenced_s is None else time.monotonic() - fenced_s

    def close(self, *, apply: bool = True) -> None:
        """Bring the cache up to date, and let go. The shard stays ours until somebody else takes it."""
        self._store.close(apply=apply)


def open_kafka(
    options: KafkaOptions,
    shard: int,
    directory: str | Path,
    *,
    topics: LogTopics | None = None,
    store_options: StoreOptions | None = None,
    disk: Disk | None = None,
    check_chunk: Callable[[bytes], object] | None = None,
) -> KafkaStore:
    """Take a shard over, from whoever has it, and bring its cache in `directory/shard-<n>` up to date.

    `topics` is what `prepare_topics` said; without it, the topics are looked at again, and made if they are absent.
    `check_chunk` raises `ChunkDamaged` for a chunk that is not whole: then the cache is made anew, from Kafka.
    """
    assert 0 <= shard < options.shards, f"there is no shard {shard}"
    home = Path(directory) / f"shard-{shard}"
    for place in (Path(directory), home):
        refuse_messages(place)
    topics = topics or prepare_topics(options)
    disk = disk or RealDisk()
    disk.make_directory(home)
    opening = _Opening(options, topics, shard, home, store_options or StoreOptions(), disk)
    opening.check_chunk = check_chunk
    with contextlib.ExitStack() as opened:
        lock = DirectoryLock(home)
        opened.callback(lock.release)
        restrict(home)
        try:
            store = opening.open(lock)
        except PositionLost as error:
            log.warning("shard %d: the cache in %s is rebuilt: %s", shard, home, error)
            wipe(home)
            store = opening.open_again(lock)
        opened.pop_all()
        return store


class _Opening:
    """What it takes to open a shard, perhaps twice."""

    def __init__(
        self, options: KafkaOptions, topics: LogTopics, shard: int, home: Path, store: StoreOptions, disk: Disk
    ) -> None:
        self._options = options
        self._topics = topics
        self._shard = shard
        self._home = home
        self._store_options = store
        self._disk = disk
        self._is_damaged = False
        self.check_chunk: Callable[[bytes], object] | None = None

    def open_again(self, lock: DirectoryLock) -> KafkaStore:
        """Open with an empty cache; what is wrong now is wrong with the log."""
        try:
            return self.open(lock)
        except PositionLost as error:
            raise LogUnavailable(str(error)) from error

    def open(self, lock: DirectoryLock) -> KafkaStore:
        """Open with the cache that is there, if it is of use."""
        table, found = self._open_table()
        with contextlib.ExitStack() as opened:
            opened.callback(table.close)
            journal = KafkaJournal(
                self._options,
                self._topics,
                self._shard,
                start=found.position if found is not None else None,
                splits=(found.chunk_splits, found.record_splits) if found is not None else ({}, {}),
            )
            journal.saves(self._saver(journal, table.identity, lock))
            opened.callback(journal.close)
            store = EmbeddedStore(
                journal,
                table,
                self._store_options,
                disk=self._disk,
                directory=self._home,
                lock=lock,
                replayed_bytes_max=REPLAYED_TO_UNAPPLIED * self._store_options.unapplied_bytes_max,
            )
            journal.knows(store)
            opened.pop_all()
        return KafkaStore(journal, store)

    def _open_table(self) -> tuple[SqliteTable, CachePosition | None]:
        """The table, and how far it has got; a new one, if the one that is there is of no use."""
        found = read_position(self._home)
        useless = self._why_useless(found)
        if useless is None:
            try:
                table = self._made_table()
                if found is not None and table.identity == found.table and not table.flaws():
                    return table, found
                table.close()
                useless = "it is damaged" if table.flaws() else "it belongs to another table"
            except (StoreDamaged, StoreVersion) as error:
                useless = str(error)
        if found is not None or (self._home / TABLE_NAME).exists():
            log.info("shard %d: the cache in %s is rebuilt: %s", self._shard, self._home, useless)
        wipe(self._home)
        return self._made_table(), None

    def _made_table(self) -> SqliteTable:
        self._is_damaged = False
        return SqliteTable(self._home / TABLE_NAME, on_damage=self._mark_damaged, check_chunk=self.check_chunk)

    def _mark_damaged(self) -> None:
        """The table is damaged: whoever opens the shard next makes it anew."""
        if self._is_damaged:
            return
        self._is_damaged = True
        log.error(
            "shard %d: the cache in %s is damaged, and will be rebuilt at the next opening", self._shard, self._home
        )
        with contextlib.suppress(OSError):
            (self._home / POSITION_NAME).unlink(missing_ok=True)

    def _why_useless(self, found: CachePosition | None) -> str | None:
        """Why a cache cannot be used; None if it can."""
        topics = self._topics
        if found is None:
            return "its position in the log is not known"
        if (found.kafka_id, found.data_id, found.offset_id) != (topics.kafka_id, topics.data_id, topics.offset_id):
            return "it belongs to another Kafka, or to topics that are gone"
        if found.shard != self._shard:
            return f"it belongs to shard {found.shard}"
        age_s = time.time() - found.time_s
        if not 0 <= age_s <= topics.delete_retention_ms / 2000:
            return f"it is {age_s:.0f} seconds old, and Kafka forgets deletions after {topics.delete_retention_ms} ms"
        return None

    def _saver(self, journal: KafkaJournal, table: int, lock: DirectoryLock) -> Callable[[LogPosition], None]:
        topics = self._topics

        def save(position: LogPosition) -> None:
            if self._is_damaged:
                return
            chunk_splits, record_splits = journal.splits
            found = CachePosition(
                POSITION_VERSION,
                topics.kafka_id,
                topics.data_id,
                topics.offset_id,
                self._shard,
                table,
                *position,
                chunk_splits,
                record_splits,
            )
            try:
                lock.check()
                write_position(self._home, found)
            except (OSError, DirectoryMoved) as error:  # the one that is there is behind, which does no harm
                log.warning("shard %d: the position of the cache cannot be written: %s", self._shard, error)

        return save


def _seal(data: bytes) -> bytes:
    return xxhash.xxh3_64_digest(data)


def read_position(home: Path) -> CachePosition | None:
    """How far a cache has got; None if that is not known.

    >>> read_position(Path("/nowhere"))
    """
    try:
        data = (home / POSITION_NAME).read_bytes()
        found = msgspec.msgpack.decode(data[:-_SEAL_BYTES], type=CachePosition)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if data[-_SEAL_BYTES:] != _seal(data[:-_SEAL_BYTES]):
        return None
    return found if found.version == POSITION_VERSION else None


def write_position(home: Path, position: CachePosition) -> None:
    """Write down, durably, how far a cache has got."""
    temporary = home / f"{POSITION_NAME}.tmp"
    with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as file:
        data = msgspec.msgpack.encode(position)
        file.write(data + _seal(data))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(home / POSITION_NAME)
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def wipe(home: Path) -> None:
    """Throw a cache away; how far it had got first."""
    for name in (POSITION_NAME, TABLE_NAME, f"{TABLE_NAME}-wal", f"{TABLE_NAME}-shm"):
        (home / name).unlink(missing_ok=True)


__all__ = [
    "POSITION_NAME",
    "CachePosition",
    "KafkaOptions",
    "KafkaStore",
    "LogTopics",
    "LogUnsafe",
    "open_kafka",
    "prepare_topics",
    "read_position",
    "wipe",
    "write_position",
]
