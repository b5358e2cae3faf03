"""Looking a data directory over, and copying what is readable of a damaged one: `penstock store check` and `salvage`.

A check changes nothing, and may run beside a server. A salvage reads the directory's files in its own way, because a
damaged one does not open: rows of the table from the front and from the back, up to what cannot be read, and every
whole frame of the journal. It writes a new directory:

- A queue of which everything is there is copied as it is: messages, what is leased and done, retries, consumers.
- Of a queue of which something is damaged, nobody knows what was delivered. It is made anew, with the settings and
  channels that are readable, and all of its readable messages are sent to it again, in order. If it promises to deliver
  at most so many times, its channels are paused: somebody has to decide.
- The rest (sessions, marks, redrives) is copied as far as it is readable.

Whatever could not be read, or could not be kept as it was, is in the list of findings.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.core import keys
from penstock.core.broker import Broker
from penstock.core.changes import Changes, Flaw
from penstock.core.channel import Channel
from penstock.core.chunk import Chunk
from penstock.core.commands import CreateQueue, PauseChannel, Send
from penstock.core.config import QueueConfig, from_stored
from penstock.core.errors import ChunkDamaged, PenstockError, StoreError
from penstock.core.keys import ChunkKey, Kind
from penstock.core.queue import Queue
from penstock.core.records import Meta, QueueRecord
from penstock.store.disk import RealDisk
from penstock.store.embedded import EmbeddedStore, open_embedded
from penstock.store.errors import StoreLocked
from penstock.store.inspection import inspect, is_sealed, quick_check, sealed_meta
from penstock.store.journal.file import read_segment
from penstock.store.journal.frames import FRAMES_START, StoredChunk, find_frame, find_mark
from penstock.store.journal.walk import segment_name, segment_sequences
from penstock.store.layer import Layer, Missing, joined, open_flaws
from penstock.store.layout import CLUSTER_NAME, JOURNAL_NAME, TABLE_NAME
from penstock.store.lock import DirectoryLock
from penstock.store.table import SEALED_VERSION, SQLITE_ERRORS, connect, translate
from penstock.store.view import StoreView

LIST_NAME = "not-salvaged.jsonl"
"""The file in the new directory that says what could not be copied, an object a line."""
_PAGE = 1000
_COMMIT_BYTES = 4 << 20
_ENTROPY_BYTES = 64


class Finding(msgspec.Struct, frozen=True):
    """Something that is damaged, missing, or could not be kept as it was."""

    where: str
    """The file, or the kind of record."""
    what: str
    queue: str = ""
    """The queue that is hit, if that is known."""


class Salvaged(msgspec.Struct):
    """What a salvage did."""

    queues: int = 0
    """Queues that were copied as they were."""
    rebuilt: int = 0
    """Queues that were made anew of the messages that are readable."""
    messages: int = 0
    """Messages in the new directory."""
    findings: list[Finding] = []


# -- checking ----------------------------------------------------------------------------------------------------------


def stores_in(directory: Path) -> list[Path]:
    """The stores of a data directory: itself, or those of the processes that share it."""
    if (directory / CLUSTER_NAME).exists():
        return sorted(path.parent for path in directory.glob(f"*/{TABLE_NAME}"))
    return [directory]


def check(directory: Path) -> list[Finding]:
    """Everything that is damaged in a directory. It is not changed, and a server may have it open.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     open_embedded(made).close()
    ...     check(Path(made))
    []
    """
    try:
        view = StoreView(directory)
    except StoreError as error:
        return [Finding("store", str(error))]
    with contextlib.closing(view):
        findings, names = _check_broker(view)
        findings += [_found(flaw, names) for flaw in view.flaws()]
        findings += _check_chunks(view, names)
    findings += _check_file(directory / TABLE_NAME)
    return list(dict.fromkeys(findings))


def _found(flaw: Flaw, names: dict[int, str]) -> Finding:
    if len(flaw.group) == 1 and flaw.group[0] in set(Kind):
        return Finding(f"records of kind {Kind(flaw.group[0]).name.lower()}", flaw.what)
    number = int.from_bytes(flaw.group, "big")
    return Finding("records of a queue", flaw.what, names.get(number, f"#{number}"))


def _now_ms() -> int:
    """The time. A broker that was opened at an earlier one would hold that the clock went back."""
    return time.time_ns() // 1_000_000


def _check_broker(view: StoreView) -> tuple[list[Finding], dict[int, str]]:
    """What makes no sense in the records, and the names of the queues."""
    try:
        broker = Broker.open(view, _now_ms(), bytes(_ENTROPY_BYTES), shard=None)
    except PenstockError as error:
        return [Finding("store", str(error))], {}
    names = {queue.id: queue.name for queue in broker.queues.values()}
    names |= {queue_id: broker.quarantine.label(queue_id) for queue_id in broker.quarantine.ids}
    for queue in broker.queues.values():
        for key, reason in queue.quarantined.items():
            last = key.base + key.messages - 1
            broker.reports.append(_damage(queue.name, f"messages {key.base} to {last} are in quarantine: {reason}"))
    return [Finding("records", report.reason, report.queue) for report in broker.take_reports()], names


def _damage(queue: str, reason: str) -> Any:
    from penstock.core.commands import Damage

    return Damage(queue, 0, -1, reason)


def _check_chunks(view: StoreView, names: dict[int, str]) -> Iterator[Finding]:
    start = b""
    while page := view.list_chunks(b"", start, _PAGE):
        for packed in page:
            try:
                _decoded(packed, bytes(view.read_chunk(packed)))
            except (ChunkDamaged, StoreError, KeyError) as error:
                yield _chunk_finding(packed, str(error) or "it is gone", names)
        start = page[-1] + b"\0"


def _chunk_finding(packed: bytes, what: str, names: dict[int, str]) -> Finding:
    number = int.from_bytes(packed[:8], "big")
    try:
        key = ChunkKey.unpack(packed)
    except Exception:
        return Finding("messages", f"a chunk has a key that is none ({packed.hex()}): {what}")
    where = f"messages {key.base} to {key.base + key.messages - 1}"
    return Finding(where, what, names.get(number, f"#{number}"))


def _decoded(packed: bytes, body: bytes) -> Chunk:
    chunk = Chunk.decode(body)
    key = ChunkKey.unpack(packed)
    if key.messages and (chunk.base, chunk.count) != (key.base, key.messages):
        raise ChunkDamaged(f"it says of itself that it holds {chunk.count} messages from {chunk.base} on")
    return chunk


def _check_file(path: Path) -> list[Finding]:
    try:
        with contextlib.closing(connect(f"{path.absolute().as_uri()}?mode=ro")) as connection:
            wrong = quick_check(connection)
            aside = 0
            with contextlib.suppress(sqlite3.OperationalError):
                (aside,) = connection.execute("SELECT count(*) FROM damaged").fetchone()
    except SQLITE_ERRORS as error:
        return [Finding(path.name, str(translate(error, path)))]
    findings = [] if wrong is None else [Finding(path.name, wrong)]
    if aside:
        findings.append(Finding(path.name, f"{aside} damaged records are kept apart, in the table `damaged`"))
    return findings


# -- salvaging ---------------------------------------------------------------------------------------------------------


class _Remains:
    """Everything that can be read of a directory, whatever its condition."""

    def __init__(self, directory: Path) -> None:
        self.findings: list[Finding] = []
        self.suspects: set[bytes] = set()
        """Groups of which something is damaged or missing."""
        self._path = directory / TABLE_NAME
        self._rows: dict[bytes, int] = {}
        self._records: dict[bytes, bytes] = {}
        self._flaws: list[Flaw] = []
        self._connection: sqlite3.Connection | None = None
        self._meta: dict[str, int] = {}
        if self._path.exists():
            self._read_table()
        else:
            self.findings.append(Finding(TABLE_NAME, "it is missing"))
        self._layer = Layer(self._meta.get("position", 0))
        self._read_journal(directory / JOURNAL_NAME)
        for flaw in open_flaws((self._layer,), self._flaws):
            self.suspects.add(flaw.group)
            self.findings.append(_found(flaw, {}))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # The table.

    def _read_table(self) -> None:
        try:
            self._connection = connect(f"{self._path.absolute().as_uri()}?mode=ro")
        except SQLITE_ERRORS as error:
            self._note_table(error)
            return
        self._read_meta()
        sealed = self._meta.get("schema_version", SEALED_VERSION) >= SEALED_VERSION
        columns = "key, value, seal" if sealed else "key, value"
        for row in self._both_ways(f"SELECT {columns} FROM records", "key"):
            if not sealed or is_sealed(*row):
                self._records[row[0]] = row[1]
            elif type(row[0]) is bytes:
                self.suspects.add(keys.group_of(row[0]))
        for key, row_number in self._both_ways("SELECT key, id FROM chunks NOT INDEXED", "id"):
            if type(key) is bytes:
                self._rows[key] = row_number
        if sealed:
            with contextlib.suppress(*SQLITE_ERRORS):  # what cannot be read is listed by now
                self._flaws = inspect(self._connection, self._meta).flaws

    def _read_meta(self) -> None:
        assert self._connection is not None
        try:
            self._meta = sealed_meta(self._connection, self._path)
        except StoreError as error:
            self.findings.append(Finding(TABLE_NAME, str(error)))
            with contextlib.suppress(*SQLITE_ERRORS):
                rows = self._connection.execute("SELECT name, value FROM meta").fetchall()
                self._meta = {name.decode(errors="replace"): value for name, value in rows if type(value) is int}
                self._meta.pop("position", None)  # then all that the journal has counts
        except SQLITE_ERRORS as error:
            self._note_table(error)

    def _both_ways(self, select: str, order: str) -> Iterator[Any]:
        """Rows from the front; if that breaks off, from the back as well."""
        assert self._connection is not None
        seen: set[Any] = set()
        for direction in ("ASC", "DESC"):
            try:
                for row in self._connection.execute(f"{select} ORDER BY {order} {direction}"):
                    if row[0] not in seen:
                        seen.add(row[0])
                        yield row
                return
            except SQLITE_ERRORS as error:
                self._note_table(error)

    def _note_table(self, error: sqlite3.Error | UnicodeDecodeError) -> None:
        finding = Finding(TABLE_NAME, str(translate(error, self._path)))
        if finding not in self.findings:
            self.findings.append(finding)

    # The journal.

    def _read_journal(self, directory: Path) -> None:
        disk = RealDisk()
        names = disk.names(directory) if directory.is_dir() else []
        if not segment_sequences(names):
            self.findings.append(Finding(JOURNAL_NAME, "there is no segment of the journal"))
        last = self._layer.position
        is_broken = "position" not in self._meta
        for sequence in segment_sequences(names):
            path = directory / segment_name(sequence)
            try:
                with contextlib.closing(disk.open(path, writable=False)) as file:
                    data = read_segment(file, path)
            except (OSError, StoreError) as error:
                self.findings.append(Finding(path.name, str(error)))
                is_broken = True
                continue
            identity = self._meta.get("identity") or int.from_bytes(data[16:24], "little")
            offset = FRAMES_START
            while (frame := find_frame(data, offset, identity, above=last)) is not None:
                if frame.number != last + 1 and last:
                    self._note_gap(path, last + 1, frame.number - 1)
                    is_broken = True
                changes = frame.changes()
                self._layer.absorb(changes, frame.number)
                if is_broken:
                    self.suspects.update(map(keys.group_of, changes.records))
                    self.suspects.update(key[:8] for key in changes.chunks)
                last, offset = frame.number, frame.end
            durable = find_mark(data, offset, identity, above=last)
            if durable is not None:
                self._note_gap(path, last + 1, durable)

    def _note_gap(self, path: Path, first: int, last: int) -> None:
        what = f"commits {first} to {last} are not readable: what they sent or acknowledged is not known"
        self.findings.append(Finding(path.name, what))

    # What there is.

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """The records that are readable."""
        for key, value in self._records.items():
            if not self._layer.hides_record(key):
                yield key, value
        for key, changed in self._layer.records.items():
            if changed is not None:
                yield key, changed

    def chunk_keys(self) -> list[bytes]:
        """The keys of the chunks that are there, readable or not, in order."""
        table = {key for key in self._rows if not self._layer.hides_chunk(key)}
        return sorted(table | set(self._layer.chunk_keys(b"", None)))

    def read_chunk(self, key: bytes) -> bytes:
        """The stored form of a chunk; `ChunkDamaged` if that is not what was written."""
        chunk = self._layer.chunk(key)
        if not isinstance(chunk, Missing):
            body = bytes(joined(chunk))
        else:
            assert self._connection is not None
            try:
                with self._connection.blobopen("chunks", "body", self._rows[key], readonly=True) as blob:
                    body = blob.read()
            except SQLITE_ERRORS as error:
                raise ChunkDamaged(f"the table is damaged where it lies ({error})") from None
        _decoded(key, body)
        return body


def salvage(source: Path, target: Path) -> Salvaged:
    """Copy everything that is readable of a directory, which nobody may have open, to a new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     open_embedded(Path(made) / "old").close()
    ...     salvage(Path(made) / "old", Path(made) / "new").findings
    []
    """
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} is not empty: name a directory that is new")
    if not source.is_dir():
        raise StoreError(f"there is no directory {source}")
    with contextlib.ExitStack() as opened:
        try:
            opened.callback(DirectoryLock(source).release)
        except StoreLocked:
            raise
        except OSError:  # a disk that cannot be written: nobody writes to it
            pass
        remains = _Remains(source)
        opened.callback(remains.close)
        store = open_embedded(target)
        opened.callback(store.close)
        salvaged = _Salvage(remains, store).run()
    (target / LIST_NAME).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in salvaged.findings))
    return salvaged


class _Salvage:
    """What can be read of one directory goes to another."""

    def __init__(self, remains: _Remains, store: EmbeddedStore) -> None:
        self._remains = remains
        self._store = store
        self._records = dict(remains.records())
        self._names = self._queue_names()
        self._done = Salvaged(findings=[self._with_name(each) for each in remains.findings])

    def _queue_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for key, value in self._records.items():
            if key[:1] == bytes([Kind.QUEUE]):
                with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    names[keys.number_of(key)] = msgspec.msgpack.decode(value, type=QueueRecord).name
        return names

    def _with_name(self, finding: Finding) -> Finding:
        if not finding.queue.startswith("#"):
            return finding
        return msgspec.structs.replace(finding, queue=self._names.get(int(finding.queue[1:]), finding.queue))

    def run(self) -> Salvaged:
        """Copy what is whole, then make the rest anew."""
        suspects = self._suspect_queues()
        self._copy_records(suspects)
        self._copy_chunks(suspects)
        broker = self._broker()
        for queue_id in broker.quarantine.ids:  # whole rows that make no sense together
            self._note("records", broker.quarantine.reason(queue_id), queue_id)
            suspects.add(queue_id)
            self._drop(queue_id)
        if len(broker.quarantine):
            broker = self._broker()
        self._done.queues = len(broker.queues)
        for queue_id in sorted(suspects):
            self._rebuild(broker, queue_id)
        self._done.messages = sum(queue.messages for queue in broker.queues.values())
        return self._done

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
        self._done.findings.append(Finding(where, what, self._names.get(queue_id, f"#{queue_id}")))

    def _suspect_queues(self) -> set[int]:
        """The queues that are not copied as they are. Without its name, or in part, a queue is none."""
        outbox = keys.OUTBOX_QUEUES >> 56
        numbers = {group for group in self._remains.suspects if len(group) == 8 and group[0] != outbox}
        there = {keys.group_of(key) for key in self._records if len(keys.group_of(key)) == 8}
        there |= {key[:8] for key in self._remains.chunk_keys() if key[0] != outbox}
        named = {queue_id.to_bytes(8, "big") for queue_id in self._names}
        return {int.from_bytes(number, "big") for number in numbers | (there - named)}

    def _copy_records(self, suspects: set[int]) -> None:
        changes = Changes()
        whole_outbox = not {bytes([Kind.OUTBOX]), bytes([Kind.OUTBOX_TARGET])} & self._remains.suspects
        for key, value in self._records.items():
            kind, number = key[0], keys.number_of(key)
            if kind in (Kind.OUTBOX, Kind.OUTBOX_TARGET) and not whole_outbox:
                continue
            if kind in set(Kind) and not (kind in keys.OF_A_QUEUE and number in suspects):
                changes.put_record(key, value)
        if not whole_outbox:
            self._done.findings.append(Finding("outbox", "messages on their way to other shards are not copied"))
        meta = changes.records.get(keys.record(Kind.META))
        try:
            if self._records:
                msgspec.msgpack.decode(meta or b"", type=Meta)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._make_meta(changes)
        self._store.commit(changes)

    def _make_meta(self, changes: Changes) -> None:
        """Without the store's own record: another secret, another realm, and numbers that nobody has had."""
        changes.delete_record(keys.record(Kind.META))
        self._done.findings.append(
            Finding("store", "its own record is not readable: message ids are others, and receipts are not valid")
        )
        numbered = {*keys.OF_A_QUEUE, Kind.SESSION, Kind.TASK}
        numbers = [keys.number_of(key) for key in self._records if key[0] in numbered]
        free = max(numbers, default=0) + 1
        secret = os.urandom(32)
        meta = Meta(1, secret, int.from_bytes(os.urandom(8), "big"), free, free, free)
        changes.records[keys.record(Kind.META)] = msgspec.msgpack.encode(meta)

    def _copy_chunks(self, suspects: set[int]) -> None:
        changes = Changes()
        size = 0
        for packed in self._remains.chunk_keys():
            queue_id = int.from_bytes(packed[:8], "big")
            if queue_id in suspects:
                continue
            try:
                body = self._remains.read_chunk(packed)
            except ChunkDamaged as error:
                self._done.findings.append(_chunk_finding(packed, str(error), self._names))
                continue
            changes.put_chunk(packed, StoredChunk(body))
            size += len(body)
            if size > _COMMIT_BYTES:
                self._store.commit(changes)
                changes, size = Changes(), 0
        self._store.commit(changes)

    def _drop(self, queue_id: int) -> None:
        changes = Changes()
        changes.drop(keys.queue_chunks(queue_id))
        for kind in keys.OF_A_QUEUE:
            changes.drop(keys.record(kind, queue_id))
        self._store.commit(changes)

    # Queues that are made anew.

    def _rebuild(self, broker: Broker, queue_id: int) -> None:
        name, config, channels = self._known_of(broker, queue_id)
        packed_keys = [key for key in self._remains.chunk_keys() if key.startswith(keys.queue_chunks(queue_id))]
        if queue_id not in self._names and not packed_keys:
            return
        self._names.setdefault(queue_id, name)
        broker.handle(CreateQueue(name=name, config=config, channels=tuple(channels)), 0)
        for channel in channels if config.policy != "at_least_once" else ():
            broker.handle(PauseChannel(queue=name, channel=channel), 0)
        sent = 0
        for packed in sorted(packed_keys, key=_base_of):
            try:
                chunk = _decoded(packed, self._remains.read_chunk(packed))
                broker.now_ms = chunk.sent_ms  # what is sent again is as old as it was
                sent += self._send_again(broker, name, config, ChunkKey.unpack(packed), chunk)
            except PenstockError as error:
                self._done.findings.append(_chunk_finding(packed, str(error), self._names))
            self._commit(broker)
        self._commit(broker)
        self._done.rebuilt += 1
        paused = "; its channels are paused" if config.policy != "at_least_once" else ""
        self._note(
            "delivery state",
            f"it is not known: {sent} messages were sent again to every channel, consumers are gone{paused}",
            queue_id,
        )

    def _known_of(self, broker: Broker, queue_id: int) -> tuple[str, QueueConfig, Sequence[str]]:
        """A queue's name, settings and channels, as far as they are readable."""
        config = QueueConfig()
        name = self._names.get(queue_id, f"salvaged-{queue_id}")
        channels: dict[str, None] = {}
        data = self._records.get(keys.record(Kind.QUEUE, queue_id))
        with contextlib.suppress(Exception):
            config, _ = from_stored(msgspec.msgpack.decode(data or b"", type=QueueRecord).settings)
        model = Queue(broker, queue_id, name, config, 0)
        for key, value in self._records.items():
            if key.startswith(keys.record(Kind.CHANNEL, queue_id)):
                with contextlib.suppress(Exception):
                    channels[Channel.restore(model, int.from_bytes(key[9:13], "big"), value).name] = None
        if name in broker.queues:
            name = f"{name}-salvaged-{queue_id}"
        return name, config, list(channels) or ["main"]

    def _send_again(self, broker: Broker, name: str, config: QueueConfig, key: ChunkKey, chunk: Chunk) -> int:
        is_fifo = config.kind == "fifo"
        for index in range(chunk.count):
            due_ms = chunk.due(index)
            send = Send(
                queue=name,
                bodies=[chunk.body(index)],
                attributes=[chunk.attributes(index)],
                groups=[chunk.group(index) or ("salvaged" if is_fifo else None)],
                dedup_ids=[f"salvaged-{key.queue_id}-{chunk.sequence(index)}"] if is_fifo else None,
                origins=[chunk.origin(index)],
                priority=0 if is_fifo else keys.lane_priority(key.lane),
                due_ms=due_ms or None,
                delay_ms=None if due_ms else 0,
            )
            if is_fifo:
                send.due_ms, send.delay_ms = None, None
            broker.sending.send_forwarded(send)
        return chunk.count


def _base_of(packed: bytes) -> int:
    try:
        return ChunkKey.unpack(packed).base
    except Exception:
        return 0
