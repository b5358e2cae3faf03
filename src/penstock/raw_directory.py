"""Everything that can be read of a data directory, whatever its condition.

A damaged directory does not open. So this reads its files in its own way: rows of the table from the front and from
the back, up to what cannot be read; chunks by the index and by the rows, so that what is lost in one is found in the
other; and every whole frame of the journal, whatever is between them. Frames that the table has count, too: they are
the same once more, and make good what is damaged there. Of a broken frame, chunks count whose own checksums match.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes, Encodable, Flaw
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind, LaneKind
from penstock.store.disk import RealDisk
from penstock.store.errors import ADVICE
from penstock.store.inspection import inspect, is_sealed, sealed_meta
from penstock.store.journal.file import read_segment
from penstock.store.journal.frames import (
    ALIGNMENT,
    FRAMES_START,
    broken_frames,
    check_segment_header,
    find_frame,
    find_mark,
    mark_at,
)
from penstock.store.journal.walk import segment_name, segment_sequences
from penstock.store.layer import Layer, Missing, joined, open_flaws
from penstock.store.layout import JOURNAL_NAME, TABLE_NAME
from penstock.store.table import SEALED_VERSION, SQLITE_ERRORS, connect, translate

NUMBER_BYTES = 8
CUT_SHORT = "it was cut short: what was sent or acknowledged last may be missing"
"""Of a journal's file: opening takes the end of one for a commit that was never finished."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is damaged, missing, or could not be kept as it was."""

    where: str
    """The file, or the kind of record."""
    what: str
    queue: str = ""
    """The queue that is hit, if that is known."""


def without_advice(error: Exception) -> str:
    """What an error says, for somebody who is following its advice already."""
    return str(error).removesuffix(ADVICE).rstrip()


def finding_of_flaw(flaw: Flaw, names: dict[int, str]) -> Finding:
    """A group of rows that does not add up, in words."""
    if len(flaw.group) == 1 and flaw.group[0] in set(Kind):
        return Finding(f"records of kind {Kind(flaw.group[0]).name.lower()}", flaw.what)
    number = int.from_bytes(flaw.group, "big")
    return Finding("records of a queue", flaw.what, names.get(number, f"#{number}"))


def finding_of_chunk(packed: bytes, what: str, names: dict[int, str]) -> Finding:
    """A chunk that cannot be read, in words."""
    number = int.from_bytes(packed[:NUMBER_BYTES], "big")
    try:
        key = ChunkKey.unpack(packed)
    except Exception:
        return Finding("messages", f"a chunk has an invalid key ({packed.hex()}): {what}")
    if packed[0] == keys.OUTBOX_QUEUES >> 56:
        return Finding("messages for other shards", what)
    where = f"messages {key.base} to {key.base + key.messages - 1}"
    return Finding(where, what, names.get(number, f"#{number}"))


def decoded(packed: bytes, body: bytes) -> Chunk:
    """A chunk that is what its key says; `ChunkDamaged` otherwise."""
    chunk = Chunk.decode(body)
    key = ChunkKey.unpack(packed)
    if key.messages and (chunk.base, chunk.count) != (key.base, key.messages):
        raise ChunkDamaged(f"it says of itself that it holds {chunk.count} messages from {chunk.base} on")
    return chunk


def _overlap(one: ChunkKey, other: ChunkKey) -> bool:
    ends = min(one.base + one.messages, other.base + other.messages)
    return one.queue_id == other.queue_id and max(one.base, other.base) < ends


class RawDirectory:
    """Everything that can be read of one store."""

    def __init__(self, directory: Path, *, is_ours: bool) -> None:
        """`is_ours`: nobody else has it open, and SQLite may make the index of its WAL anew."""
        self.findings: dict[Finding, None] = {}
        self.suspects: set[bytes] = set()
        """Groups of which something is damaged or missing."""
        self.lacks_commits = False
        """Whether commits are missing, whatever they were about."""
        self._path = directory / TABLE_NAME
        self._rows: dict[bytes, int] = {}
        self._records: dict[bytes, bytes] = {}
        self._flaws: list[Flaw] = []
        self._connection: sqlite3.Connection | None = None
        self._meta: dict[str, int] = {}
        self._unsure: set[bytes] = set()
        """Keys of chunks that have no checksum: their queues and channels have to be known from elsewhere."""
        self._is_torn = False
        """Whether the table could not be read from one end to the other."""
        if self._path.exists():
            self._read_table(is_ours)
        else:
            self._note(TABLE_NAME, "it is missing")
        self._layer = Layer(0)
        self._read_journal(directory / JOURNAL_NAME)
        self._exact: dict[bytes, set[bytes]] = {}
        for flaw in open_flaws((self._layer,), self._flaws):
            if flaw.keys or "records" not in flaw.what:
                hidden = filter(self._layer.hides_record, flaw.keys)
                self._exact[flaw.group] = set(flaw.keys).difference(hidden)
            self.suspects.add(flaw.group)
            self.findings[finding_of_flaw(flaw, {})] = None

    def close(self) -> None:
        """Let go of the files."""
        if self._connection is not None:
            self._connection.close()

    def _note(self, where: str, what: str) -> None:
        self.findings[Finding(where, what)] = None

    # The table.

    def _read_table(self, is_ours: bool) -> None:
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        has_wal = all(self._path.with_name(TABLE_NAME + suffix).exists() for suffix in ("-wal", "-shm"))
        try:
            self._connection = connect(uri if has_wal or is_ours else f"{uri}&immutable=1")
            try:
                self._connection.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorname", "") != "SQLITE_CANTOPEN":
                    raise
                self._connection = connect(f"{uri}&immutable=1")  # the disk cannot be written
        except SQLITE_ERRORS as error:
            self._note_torn(error)
            return
        self._read_meta()
        is_sealed_table = self._meta.get("schema_version", SEALED_VERSION) >= SEALED_VERSION
        columns = "key, value, seal" if is_sealed_table else "key, value"
        for row in self._both_ways(self._connection, f"SELECT {columns} FROM records", "key"):
            if type(row[0]) is bytes and (not is_sealed_table or is_sealed(*row)):
                self._records[row[0]] = row[1]
        if is_sealed_table:
            seen = inspect(self._connection, self._meta, self._both_ways)
            self._flaws = seen.flaws
            if seen.lost_groups and self._is_torn:  # nothing says what should be there
                self.suspects.update(seen.groups)
        self._find_chunks({flaw.group for flaw in self._flaws if "chunks" in flaw.what})

    def _find_chunks(self, flawed: set[bytes]) -> None:
        """Which rows have the chunks: by the index, and by the rows themselves."""
        assert self._connection is not None
        indexed = {row: key for key, row in self._both_ways(self._connection, "SELECT key, id FROM chunks", "key")}
        stored = dict(self._both_ways(self._connection, "SELECT id, key FROM chunks NOT INDEXED", "id"))
        for row in indexed.keys() | stored.keys():
            key = indexed.get(row)
            if type(key) is not bytes or (key[:NUMBER_BYTES] in flawed and type(stored.get(row)) is bytes):
                key = stored.get(row)
            if type(key) is bytes:
                self._rows[key] = row

    def _read_meta(self) -> None:
        assert self._connection is not None
        try:
            self._meta = sealed_meta(self._connection, self._path)
        except StoreError as error:
            self._note(TABLE_NAME, without_advice(error))
            with contextlib.suppress(*SQLITE_ERRORS):
                rows = self._connection.execute("SELECT name, value FROM meta").fetchall()
                self._meta = {
                    name.decode(errors="replace"): value
                    for name, value in rows
                    if type(name) is bytes and type(value) is int
                }
                self._meta.pop("position", None)  # then all that the journal has counts
        except SQLITE_ERRORS as error:
            self._note_torn(error)

    def _both_ways(self, connection: sqlite3.Connection, select: str, order: str) -> Iterator[Any]:
        """Rows from the front; if that breaks off, from the back as well."""
        seen: set[Any] = set()
        for direction in ("ASC", "DESC"):
            try:
                for row in connection.execute(f"{select} ORDER BY {order} {direction}"):
                    if row[0] not in seen:
                        seen.add(row[0])
                        yield row
                return
            except SQLITE_ERRORS as error:
                self._note_torn(error)

    def _note_torn(self, error: sqlite3.Error | UnicodeDecodeError) -> None:
        self._is_torn = True
        self._note(TABLE_NAME, without_advice(translate(error, self._path)))

    # The journal.

    def _read_journal(self, directory: Path) -> None:
        disk = RealDisk()
        sequences = segment_sequences(disk.names(directory)) if directory.is_dir() else []
        if not sequences:
            self._note(JOURNAL_NAME, "it is missing: what was sent or acknowledged last may be missing, too")
            self.lacks_commits = True
        position = self._meta.get("position", 0)
        last = 0
        is_broken = self.lacks_commits or "position" not in self._meta
        for sequence in sequences:
            path = directory / segment_name(sequence)
            try:
                with contextlib.closing(disk.open(path, writable=False)) as file:
                    data = read_segment(file, path)
            except (OSError, StoreError) as error:
                self._note_lacking(path, without_advice(error))
                is_broken = True
                continue
            identity = self._meta.get("identity") or int.from_bytes(data[16:24], "little")
            try:
                check_segment_header(data[:ALIGNMENT], identity, path)
            except StoreError as error:
                self._note(path.name, without_advice(error))
            offset = FRAMES_START
            while (frame := find_frame(data, offset, identity, above=last)) is not None:
                known = max(last, position)
                if last < position and frame.number != last + 1:  # the table has what is between, and is newer
                    self._layer = Layer(0)
                if frame.number > known + 1 and known:
                    self._note_gap(path, known + 1, frame.number - 1)
                    self._take_from_broken(data, offset, frame.offset, range(known + 1, frame.number))
                    is_broken = True
                changes = frame.changes()
                self._layer.absorb(changes, frame.number)
                if is_broken:
                    self._suspect(changes)
                last, offset = frame.number, frame.end
            known = max(last, position)
            durable = find_mark(data, offset, identity, above=known)
            if durable is not None:
                if last < position:
                    self._layer = Layer(0)
                self._note_gap(path, known + 1, durable)
                self._take_from_broken(data, offset, len(data), range(known + 1, durable + 1))
            rolled = mark_at(memoryview(data), offset, identity)
            if len(data) % ALIGNMENT:
                self._note_lacking(path, CUT_SHORT)
            if rolled == (last, True) and sequence + 1 not in sequences:
                self._note_lacking(
                    path.with_name(segment_name(sequence + 1)), "it is missing: later commits were there"
                )
        if last < position and not self._unsure:
            self._layer = Layer(0)

    def _take_from_broken(self, data: bytes, start: int, stop: int, numbers: range) -> None:
        """A frame whose checksum does not match may have chunks whose own ones do; and chunks that these replace."""
        for number, changes in broken_frames(data, start, stop):
            if number not in numbers:
                continue
            whole: dict[bytes, Encodable | None] = {}
            for packed, chunk in changes.chunks.items():
                with contextlib.suppress(ChunkDamaged, struct.error):
                    key = ChunkKey.unpack(packed)
                    found = None if chunk is None else decoded(packed, bytes(joined(chunk)))
                    is_far = keys.lane_kind(key.lane) == LaneKind.FAR
                    if (
                        found is None
                        or found.size != key.size
                        or found.sent_ms > key.aged_ms
                        or is_far != (key.order > 0)
                    ):
                        continue  # deleted, or its key is damaged
                    whole[packed] = chunk
            for packed, chunk in changes.chunks.items():
                with contextlib.suppress(struct.error):
                    if chunk is None and any(_overlap(ChunkKey.unpack(packed), ChunkKey.unpack(put)) for put in whole):
                        whole[packed] = None
            taken = Changes()
            taken.chunks = whole
            self._layer.absorb(taken, number)
            self._suspect(taken)
            self._unsure.update(whole)

    def _suspect(self, changes: Changes) -> None:
        self.suspects.update(map(keys.group_of, changes.records))
        self.suspects.update(key[:NUMBER_BYTES] for key in changes.chunks)

    def _note_gap(self, path: Path, first: int, last: int) -> None:
        what = f"commits {first} to {last} are not readable: what they sent or acknowledged is not known"
        self._note_lacking(path, what)

    def _note_lacking(self, path: Path, what: str) -> None:
        self.lacks_commits = True
        self._note(path.name, what)

    # What there is.

    def damaged(self, group: bytes) -> set[bytes] | None:
        """The keys of the damaged records of a group; None if these are not known."""
        if group not in self.suspects:
            return set()
        return None if self._is_torn or self.lacks_commits else self._exact.get(group)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._records.items():
            if not self._layer.hides_record(key):
                yield key, value
        for key, changed in self._layer.records.items():
            if changed is not None:
                yield key, changed

    def chunk_keys(self) -> list[bytes]:
        """The keys of the chunks that are there, readable or not, in order."""
        table = {key for key in self._rows if not self._layer.hides_chunk(key)}
        found = table | set(self._layer.chunk_keys(b"", None))
        records = {key for key, _ in self.records()} if self._unsure else set()
        for packed in self._unsure & found:
            key = ChunkKey.unpack(packed)
            owner = keys.lane_channel(key.lane)
            is_owned = not owner or keys.channel_record(key.queue_id, owner) in records
            if keys.record(Kind.QUEUE, key.queue_id) not in records or not is_owned:
                found.discard(packed)
        return sorted(found)

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
                raise ChunkDamaged(f"the table is damaged where this chunk is stored ({error})") from None
        try:
            decoded(key, body)
        except ChunkDamaged:
            raise
        except Exception as error:
            raise ChunkDamaged(f"it cannot be decoded ({type(error).__name__})") from None
        return body
