"""Looking a data directory over, and copying what is readable of a damaged one: `penstock store check` and `salvage`.

A check changes nothing, and may run beside a server. A salvage reads the directory's files in its own way
(`raw_directory`), because a damaged one does not open, and writes a new directory:

- A queue of which everything is there is copied as it is: messages, what is leased and done, retries, consumers.
- A queue of which something is damaged is repaired (`core.storage.repair`). Its messages keep their places and
  numbers; only where nobody knows whether a message is done, it is delivered again.
- The rest (sessions, marks, redrives, outboxes) is copied as far as it is readable.

Whatever could not be read, or could not be kept as it was, is in the list of findings.

A directory with several shards has a store for each: all of them are looked over, or copied.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from penstock.core.broker import Broker
from penstock.core.errors import ChunkDamaged, InvalidConfig, PenstockError, StoreError
from penstock.core.queues.config import from_stored
from penstock.core.queues.partition import SHARD_SHIFT
from penstock.core.queues.queue import Queue
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.core.storage.records import Meta, QueueRecord
from penstock.core.storage.repair import repair
from penstock.raw_directory import (
    CUT_SHORT,
    NUMBER_BYTES,
    Finding,
    RawDirectory,
    decoded,
    finding_of_chunk,
    finding_of_flaw,
    without_advice,
)
from penstock.store.embedded import EmbeddedStore, open_embedded
from penstock.store.errors import StoreLocked
from penstock.store.inspection import quick_check
from penstock.store.journal.frames import ALIGNMENT, StoredChunk
from penstock.store.journal.walk import SEGMENT_SUFFIX
from penstock.store.layout import (
    BACKUP_INCOMPLETE_NAME,
    CLUSTER_NAME,
    DIRECTORY_MODE,
    INCOMPLETE_NAME,
    JOURNAL_NAME,
    TABLE_NAME,
    is_store,
    make_file,
    mark_incomplete,
)
from penstock.store.lock import DirectoryLock, refuse_cache, refuse_incomplete
from penstock.store.sharded import (
    ENTROPY_BYTES,
    FORMAT,
    SECRET_BYTES,
    ClusterFile,
    read_cluster_file,
    write_cluster_file,
)
from penstock.store.table import SQLITE_ERRORS, connect, translate
from penstock.store.view import StoreView

LIST_NAME = "not-salvaged.jsonl"
"""The file in the new directory that says what could not be copied, an object a line."""
_LOCK_ADVICE = "A salvage needs the directory for itself: stop that process first."
_PAGE = 1000
_COMMIT_BYTES = 4 << 20
_ENTROPY_BYTES = 64
_PROGRESS_CHUNKS = 100
_OUTBOX = keys.OUTBOX_QUEUES >> 56
_SHARD = "shard-"

Progress = Callable[[int, int], None]
"""Told how many chunks of a store are copied, and of how many."""


class Salvaged(msgspec.Struct):
    """What a salvage did."""

    queues: int = 0
    """Queues that were copied as they were."""
    rebuilt: int = 0
    """Queues that were made whole of what is readable of them."""
    messages: int = 0
    """Messages in the new directory that can be received: of each queue, as many as the channel that has most."""
    findings: list[Finding] = []


# -- directories -------------------------------------------------------------------------------------------------------


def stores_in(directory: Path) -> list[Path]:
    """The stores of a data directory: itself, or those of its shards, the missing ones included."""
    found = {path for path in directory.glob(f"{_SHARD}*") if path.is_dir() and path.name[len(_SHARD) :].isdigit()}
    if is_store(directory) or not (found or (directory / CLUSTER_NAME).exists()):
        return [directory]
    with contextlib.suppress(StoreError, ValueError, OSError):
        found |= {directory / f"{_SHARD}{index}" for index in range(_cluster(directory).shards)}
    return sorted(found, key=lambda store: int(store.name.removeprefix(_SHARD)))


def _cluster(directory: Path) -> ClusterFile:
    return read_cluster_file(directory / CLUSTER_NAME)


# -- checking ----------------------------------------------------------------------------------------------------------


def check(directory: Path) -> list[Finding]:
    """Everything that is damaged in a store. It is not changed, and a server may have it open.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     open_embedded(made).close()
    ...     check(Path(made))
    []
    """
    refuse_cache(directory)
    if not directory.is_dir():
        return [Finding(directory.name, "it is missing")]
    if (directory / INCOMPLETE_NAME).exists():
        return [Finding(INCOMPLETE_NAME, "a salvage into this directory was cut short: delete it, and salvage again")]
    if (directory / BACKUP_INCOMPLETE_NAME).exists():
        return [Finding(BACKUP_INCOMPLETE_NAME, "a backup into this directory was cut short: delete it")]
    return look_over(directory)


def look_over(directory: Path) -> list[Finding]:
    """As `check`, of a store that is there, and all of it."""
    try:
        view = StoreView(directory)
    except StoreError as error:
        return _check_raw_directory(directory, error)
    with contextlib.closing(view):
        findings, names = _check_broker(view)
        findings += _check_chunks(view, names)
    findings += _check_file(directory / TABLE_NAME)
    for path in sorted((directory / JOURNAL_NAME).glob(f"*{SEGMENT_SUFFIX}")):
        if path.stat().st_size % ALIGNMENT:
            findings.append(Finding(path.name, CUT_SHORT))
    return list(dict.fromkeys(findings))


def _check_raw_directory(directory: Path, error: StoreError) -> list[Finding]:
    """What is damaged in a store that cannot be opened."""
    with contextlib.closing(RawDirectory(directory, is_ours=False)) as raw_directory:
        names = _queue_names(dict(raw_directory.records()))
        findings = [_with_name(finding, names) for finding in raw_directory.findings]
        for packed in raw_directory.chunk_keys():
            try:
                raw_directory.read_chunk(packed)
            except ChunkDamaged as damage:
                findings.append(finding_of_chunk(packed, str(damage), names))
    return list(dict.fromkeys(findings)) or [Finding("store", without_advice(error))]


def _queue_names(records: Mapping[bytes, bytes]) -> dict[int, str]:
    names: dict[int, str] = {}
    for key, value in records.items():
        if key[:1] == bytes([Kind.QUEUE]):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                names[keys.number_of(key)] = msgspec.msgpack.decode(value, type=QueueRecord).name
    return names


def _with_name(finding: Finding, names: dict[int, str]) -> Finding:
    if not finding.queue.startswith("#"):
        return finding
    return msgspec.structs.replace(finding, queue=names.get(int(finding.queue[1:]), finding.queue))


def _now_ms() -> int:
    """The time. A broker that was opened at an earlier one would hold that the clock went back."""
    return time.time_ns() // 1_000_000


def _check_broker(view: StoreView) -> tuple[list[Finding], dict[int, str]]:
    """What makes no sense in the records, and the names of the queues."""
    try:
        broker = Broker.open(view, _now_ms(), bytes(_ENTROPY_BYTES), shard=None)
    except PenstockError as error:
        flaws = [finding_of_flaw(flaw, {}) for flaw in view.flaws()]
        return flaws or [Finding("store", without_advice(error))], {}
    names = {queue.id: queue.name for queue in broker.queues.values()}
    names |= {queue_id: broker.quarantine.label(queue_id) for queue_id in broker.quarantine.ids}
    findings = [
        Finding("records", report.reason, report.queue)
        for report in broker.take_reports()
        if report.last < report.first
    ]
    for queue in broker.queues.values():
        for key, reason in queue.quarantined.items():
            if not view.list_chunks(key.packed, b"", 1):  # those that are there are found where chunks are read
                findings.append(finding_of_chunk(key.packed, reason, names))
    return findings, names


def _check_chunks(view: StoreView, names: dict[int, str]) -> Iterator[Finding]:
    start = b""
    while page := view.list_chunks(b"", start, _PAGE):
        for packed in page:
            try:
                decoded(packed, bytes(view.read_chunk(packed)))
            except (ChunkDamaged, StoreError, KeyError) as error:
                yield finding_of_chunk(packed, str(error) or "it is gone", names)
        start = page[-1] + b"\0"


def _check_file(path: Path) -> list[Finding]:
    try:
        with contextlib.closing(connect(f"{path.absolute().as_uri()}?mode=ro")) as connection:
            wrong = quick_check(connection)
            aside = 0
            with contextlib.suppress(sqlite3.OperationalError):
                (aside,) = connection.execute("SELECT count(*) FROM damaged").fetchone()
    except SQLITE_ERRORS as error:
        return [Finding(path.name, without_advice(translate(error, path)))]
    findings = [] if wrong is None else [Finding(path.name, wrong)]
    if aside:
        findings.append(Finding(path.name, f"{aside} damaged records are kept apart, in the table `damaged`"))
    return findings


# -- salvaging ---------------------------------------------------------------------------------------------------------


def salvage(source: Path, target: Path, progress: Progress = lambda done, total: None) -> Salvaged:
    """Copy everything that is readable of a directory, which nobody may have open, to a new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     open_embedded(Path(made) / "old").close()
    ...     salvage(Path(made) / "old", Path(made) / "new").findings
    []
    """
    if target.exists() and not target.is_dir():
        raise StoreError(f"{target} is a file: name a directory that is new, or empty")
    refuse_incomplete(target)
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} is not empty: name a directory that is new, or empty")
    if not source.is_dir():
        raise StoreError(f"there is no directory {source}")
    refuse_cache(source)
    stores = stores_in(source)
    if stores == [source] and not is_store(source):
        raise StoreError(f"{source} holds no store: there is no {TABLE_NAME} and no {JOURNAL_NAME} in it")
    if target.resolve().is_relative_to(source.resolve()):
        raise StoreError(f"{target} is inside {source}: name a directory elsewhere")
    with contextlib.ExitStack() as locked:
        for each in dict.fromkeys([source, *stores]):
            try:
                if each.is_dir():
                    locked.callback(DirectoryLock(each, _LOCK_ADVICE).release)
            except StoreLocked:
                raise
            except OSError:  # a disk that cannot be written: nobody writes to it
                pass
        try:
            return _salvage(source, stores, target, progress)
        except (PenstockError, OSError) as error:
            raise StoreError(f"{without_advice(error)} {target} is incomplete: delete it, and start again.") from error


def _salvage(source: Path, stores: list[Path], target: Path, progress: Progress) -> Salvaged:
    target.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    os.chmod(target, DIRECTORY_MODE)
    if stores == [source]:
        salvaged = _salvage_store(source, target, _Shared(_cluster_around(source)), progress)
    else:
        salvaged = _salvage_shards(source, stores, target, progress)
    make_file(target / LIST_NAME)
    (target / LIST_NAME).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in salvaged.findings))
    return salvaged


class _Shared(msgspec.Struct):
    """What the stores of a directory know of each other."""

    cluster: ClusterFile | None
    queues: dict[bytes, bytes] = {}
    """The records of queues: those of a queue with several partitions are in several stores."""


def _cluster_around(store: Path) -> ClusterFile | None:
    """The shards that a store is one of, if it lies where they do."""
    store = store.absolute()
    with contextlib.suppress(PenstockError, OSError):
        if store.name.startswith(_SHARD):
            return _cluster(store.parent)
    return None


def _salvage_store(source: Path, target: Path, shared: _Shared, progress: Progress) -> Salvaged:
    with (
        contextlib.closing(RawDirectory(source, is_ours=True)) as raw_directory,
        contextlib.closing(open_embedded(target)) as store,
    ):
        mark_incomplete(target / INCOMPLETE_NAME)
        salvaged = _Salvage(raw_directory, store, shared, source.name, progress).run()
    (target / INCOMPLETE_NAME).unlink()
    return salvaged


def _salvage_shards(source: Path, stores: list[Path], target: Path, progress: Progress) -> Salvaged:
    """All stores of a directory with several shards."""
    mark_incomplete(target / INCOMPLETE_NAME)
    salvaged, shared = Salvaged(), _Shared(None)
    metas: list[Meta] = []
    for store in stores:
        with contextlib.closing(RawDirectory(store, is_ours=True)) as raw_directory:
            for key, value in raw_directory.records():
                if key[0] == Kind.QUEUE:
                    shared.queues.setdefault(key, value)
                elif key[0] == Kind.META:
                    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                        metas.append(msgspec.msgpack.decode(value, type=Meta))
    try:
        shared.cluster = _cluster(source)
    except PenstockError as error:
        salvaged.findings.append(Finding(CLUSTER_NAME, without_advice(error)))
        shared.cluster = _made_cluster(metas, len(stores))
    for index in range(shared.cluster.shards):
        part = _salvage_store(source / f"{_SHARD}{index}", target / f"{_SHARD}{index}", shared, progress)
        salvaged.queues += part.queues
        salvaged.rebuilt += part.rebuilt
        salvaged.messages += part.messages
        salvaged.findings += [
            msgspec.structs.replace(each, where=f"{_SHARD}{index}: {each.where}") for each in part.findings
        ]
    write_cluster_file(target / CLUSTER_NAME, shared.cluster)
    (target / INCOMPLETE_NAME).unlink()
    return salvaged


def _made_cluster(metas: list[Meta], stores: int) -> ClusterFile:
    """What the shards share, of what their stores say; the rest anew."""
    entropy, shards = os.urandom(ENTROPY_BYTES), stores
    if metas:
        known = metas[0].secret + metas[0].realm.to_bytes(8, "big")
        entropy, shards = known + entropy[len(known) :], metas[0].shards
    return ClusterFile(FORMAT, shards, entropy, os.urandom(SECRET_BYTES))


class _Salvage:
    """What can be read of one store goes to another."""

    def __init__(
        self, raw_directory: RawDirectory, store: EmbeddedStore, shared: _Shared, source_name: str, progress: Progress
    ) -> None:
        self._raw_directory = raw_directory
        self._store = store
        self._shared = shared
        self._source_name = source_name
        self._progress = progress
        self._records = dict(raw_directory.records())
        self._by_group: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
        for key, value in self._records.items():
            self._by_group[keys.group_of(key)][key] = value
        self._names = _queue_names({**shared.queues, **self._records})
        self._chunks: dict[int, list[ChunkKey]] = defaultdict(list)
        """The readable chunks of each queue."""
        self._lost: dict[int, list[ChunkKey]] = defaultdict(list)
        """Those that are not."""
        self._findings = {_with_name(each, self._names): None for each in raw_directory.findings}

    def run(self) -> Salvaged:
        """Copy what is whole, then make the rest so."""
        self._copy_chunks()
        damaged = self._damaged_queues()
        self._copy_records(damaged)
        broker = self._broker()
        senseless = set(broker.quarantine.ids)  # whole rows that make no sense together
        for queue_id in senseless:
            self._note("records", broker.quarantine.reason(queue_id), queue_id)
            self._drop_records(queue_id)
        if senseless:
            broker = self._broker()
        whole = len(broker.queues)
        for queue_id in sorted(damaged | senseless):
            self._repair(broker, queue_id, exact=queue_id not in senseless)
        broker = self._broker()
        for queue_id in broker.quarantine.ids:
            self._note("queue", f"it could not be made whole: {broker.quarantine.reason(queue_id)}", queue_id)
        messages = sum(_receivable(queue) for queue in broker.queues.values())
        return Salvaged(whole, len(broker.queues) - whole, messages, list(self._findings))

    def _broker(self) -> Broker:
        broker = Broker.open(self._store, _now_ms(), os.urandom(_ENTROPY_BYTES), shard=None)
        broker.stands_still = True
        self._commit(broker)
        return broker

    def _commit(self, broker: Broker) -> None:
        changes = broker.take_changes()
        self._store.commit(changes)
        broker.committed(changes)

    def _note(self, where: str, what: str, queue_id: int) -> None:
        self._findings[Finding(where, what, self._names.get(queue_id, f"#{queue_id}"))] = None

    def _copy_chunks(self) -> None:
        changes = Changes()
        size = 0
        packed_keys = self._raw_directory.chunk_keys()
        for done, packed in enumerate(packed_keys):
            if done % _PROGRESS_CHUNKS == 0:
                self._progress(done, len(packed_keys))
            queue_id = int.from_bytes(packed[:NUMBER_BYTES], "big")
            try:
                body = self._raw_directory.read_chunk(packed)
                if packed[0] != _OUTBOX:
                    self._chunks[queue_id].append(ChunkKey.unpack(packed))
            except ChunkDamaged as error:
                self._findings[finding_of_chunk(packed, str(error), self._names)] = None
                with contextlib.suppress(Exception):  # a key that is none says nothing
                    self._lost[queue_id].append(ChunkKey.unpack(packed))
                continue
            changes.put_chunk(packed, StoredChunk(body))
            size += len(body)
            if size > _COMMIT_BYTES:
                self._store.commit(changes)
                changes, size = Changes(), 0
        self._store.commit(changes)

    def _damaged_queues(self) -> set[int]:
        """The queues that are not copied as they are. Without its name, or in part, a queue is none."""
        groups = {group for group in self._raw_directory.suspects if len(group) == NUMBER_BYTES and group[0] != _OUTBOX}
        there = {
            int.from_bytes(group, "big")
            for group in self._by_group
            if len(group) == NUMBER_BYTES and group[0] != _OUTBOX
        }
        named = {keys.number_of(key) for key in self._records if key[0] == Kind.QUEUE}
        damaged = {int.from_bytes(group, "big") for group in groups} | ((there | self._chunks.keys()) - named)
        damaged |= {queue_id for queue_id in self._lost if queue_id >> 56 != _OUTBOX}
        if self._raw_directory.lacks_commits:  # nobody knows what was delivered
            damaged |= {queue_id for queue_id in named if self._promises_at_most(queue_id)}
        return damaged

    def _promises_at_most(self, queue_id: int) -> bool:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, InvalidConfig):
            value = self._records[keys.record(Kind.QUEUE, queue_id)]
            config, _ = from_stored(msgspec.msgpack.decode(value, type=QueueRecord).settings)
            return config.leases_are_durable
        return False

    def _copy_records(self, damaged: set[int]) -> None:
        changes = Changes()
        whole_outbox = not {bytes([Kind.OUTBOX]), bytes([Kind.OUTBOX_TARGET])} & self._raw_directory.suspects
        for key, value in self._records.items():
            kind, number = key[0], keys.number_of(key)
            is_of_outbox = kind in (Kind.OUTBOX, Kind.OUTBOX_TARGET) or number >= keys.OUTBOX_QUEUES
            if is_of_outbox and not whole_outbox:
                continue
            if kind in set(Kind) and not (kind in keys.OF_A_QUEUE and number in damaged):
                changes.put_record(key, value)
        if not whole_outbox:
            self._findings[Finding("outbox", "messages on their way to other shards are not copied")] = None
        meta = changes.records.get(keys.record(Kind.META))
        try:
            msgspec.msgpack.decode(meta or b"", type=Meta)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._make_meta(changes)
        self._store.commit(changes)

    def _make_meta(self, changes: Changes) -> None:
        """Without the store's own record: another secret, another realm, and numbers that nobody has had."""
        cluster, shard, shards = self._shared.cluster, 0, 1
        entropy = os.urandom(_ENTROPY_BYTES)
        if cluster is not None:
            shard, shards, entropy = int(self._source_name.removeprefix(_SHARD)), cluster.shards, cluster.entropy
        elif self._records or self._chunks:
            what = "its own record is not readable: message ids are others, and receipts are not valid"
            self._findings[Finding("store", what)] = None
        first = (shard << SHARD_SHIFT) + 1
        queues = {*self._chunks, *(keys.number_of(key) for key in self._records if key[0] in keys.OF_A_QUEUE)}
        own = [number + 1 for number in queues if number >> SHARD_SHIFT == shard]
        sessions = [keys.number_of(key) + 1 for key in self._records if key[0] == Kind.SESSION]
        tasks = [keys.number_of(key) + 1 for key in self._records if key[0] == Kind.TASK]
        secret, realm = entropy[:32], int.from_bytes(entropy[32:40], "big")
        meta = Meta(1, secret, realm, max([first, *own]), max([1, *sessions]), max([first, *tasks]))
        meta.shard, meta.shards, meta.made_ms = shard, shards, _now_ms()
        changes.records[keys.record(Kind.META)] = msgspec.msgpack.encode(meta)

    def _drop_records(self, queue_id: int) -> None:
        changes = Changes()
        for kind in keys.OF_A_QUEUE:
            changes.drop(keys.record(kind, queue_id))
        self._store.commit(changes)

    def _repair(self, broker: Broker, queue_id: int, *, exact: bool) -> None:
        number = keys.queue_chunks(queue_id)
        records = self._by_group[number]
        chunks = self._chunks.get(queue_id, [])
        own = keys.record(Kind.QUEUE, queue_id)
        if own not in records and own in self._shared.queues:
            records[own] = self._shared.queues[own]
        if own not in records and not chunks:
            return
        damaged = self._raw_directory.damaged(number) if exact else None
        repaired = repair(broker, queue_id, records, chunks, lost=self._lost.get(queue_id, []), damaged=damaged)
        self._commit(broker)
        self._names[queue_id] = repaired.name
        for note in repaired.notes:
            self._note("queue", note, queue_id)


def _receivable(queue: Queue) -> int:
    """How many messages can be received from a queue, by the channel that gets most."""
    if not queue.channels:
        return queue.messages
    return max(channel.ready + channel.leased + channel.delayed for channel in queue.channels.values())
