"""The table: SQLite, for what outlives the journal.

Durability. The journal is trimmed as soon as `apply` returns, so `apply` may return only when its transaction survives
a power failure: WAL with `synchronous=FULL`, one sync for a transaction of many commits. (With NORMAL the journal could
be trimmed only after a checkpoint.) A process that ended between writing and syncing the WAL has left a transaction in
the page cache that counts as committed; opening for writing therefore moves the WAL into the database file, with a
sync, before the position is trusted.

Layout. Chunks are a rowid table with an index on the key: the index holds the keys and row numbers alone, so listing
keys and opening a store never touch a body. Records are small and live in their index (`WITHOUT ROWID`).
`auto_vacuum=INCREMENTAL` lets freed pages be returned to the disk in small steps, and made dropping chunks four times
faster. `secure_delete` is off: writing zeros over freed pages made it fifty times slower.

Seals. Every row carries a checksum over its key and value, and every group of rows a sum of them; `seals` says why, and
`inspection` looks them over at opening. The applier reads the seals of the rows that it replaces or deletes, from pages
which it is about to change anyway.

The interpreter. Python's `sqlite3` lets go of the interpreter lock for every statement and has to get it back after it.
With a busy thread beside, that can take a while. So small rows go in by the dozen, in one statement. Large bodies are
read as an open blob, which copies them once, and lets go of the lock meanwhile; a `SELECT` copies them twice.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.storage.changes import Buffer, Flaw
from penstock.core.storage.keys import group_of
from penstock.store.errors import ADVICE, DiskFailed, DiskFull, StoreDamaged, StoreLocked, StoreVersion
from penstock.store.inspection import (
    GROUPS_SUM,
    SUM_MASK,
    Group,
    inspect,
    is_sealed,
    quick_check,
    seal_of,
    seal_of_key,
    seal_of_meta,
    sealed_meta,
)
from penstock.store.layer import prefix_end
from penstock.store.layout import make_file

log = logging.getLogger("penstock.store")

PAGE_BYTES = 16384
ROWS_PER_STATEMENT = 64
SMALL_CHUNK_BYTES = 4096
SCAN_PAGE_ROWS = 1000
GIVE_BACK_PAGES = 256
KEPT_FREE_BYTES = 16 << 20
WAL_KEPT_BYTES = 32 << 20
CHECKPOINT_PAGES = 256
BUSY_MS = 30_000
QUICK_CHECK_BYTES = 8 << 20
"""Up to this size, SQLite's own check is part of opening: it takes about 1 ms a MiB."""
SEALING_TOLD_RECORDS = 100_000
"""Sealing an old table of more records than this takes a while, and is told."""

HAD_JOURNAL = "journal"
"""The entry of `meta` that says that a journal was made."""

Migration = tuple[str | Callable[[sqlite3.Connection], None], ...]


def _seal_everything(connection: sqlite3.Connection) -> None:
    """Seal a table that was written without seals. Bodies of chunks are not read."""
    (records,) = connection.execute("SELECT count(*) FROM records").fetchone()
    if records > SEALING_TOLD_RECORDS:
        log.info("adding checksums to %d records, once, so that damage is noticed from now on", records)
    connection.create_function("seal_of", 2, seal_of, deterministic=True)
    connection.create_function("seal_of_meta", 2, seal_of_meta, deterministic=True)
    connection.execute("UPDATE records SET seal = seal_of(key, value)")
    _write_groups(connection, _sums(connection))
    connection.execute("UPDATE meta SET seal = seal_of_meta(CAST(name AS TEXT), value)")
    if records > SEALING_TOLD_RECORDS:
        log.info("added checksums to %d records", records)


def _sums(connection: sqlite3.Connection) -> dict[bytes, Group]:
    """What the groups add up to, as the rows are now."""
    sums: dict[bytes, Group] = {}
    for key, seal in connection.execute("SELECT key, seal FROM records"):
        group = group_of(key)
        sums[group] = sums.get(group, Group()).with_record(seal, 1)
    for (key,) in connection.execute("SELECT key FROM chunks"):
        sums[key[:8]] = sums.get(key[:8], Group()).with_chunk(seal_of_key(key), 1)
    return sums


def _write_groups(connection: sqlite3.Connection, groups: dict[bytes, Group]) -> None:
    """Write all groups anew, and their sum."""
    rows = [(name, value, seal_of(name, value)) for name, value in ((n, g.packed()) for n, g in groups.items())]
    connection.execute("DELETE FROM groups")
    connection.executemany("INSERT INTO groups (name, value, seal) VALUES (?, ?, ?)", rows)
    _write_meta(connection, GROUPS_SUM, sum(row[2] for row in rows) & SUM_MASK)


def _write_meta(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO meta (name, value, seal) VALUES (?, ?, ?)", (name, value, seal_of_meta(name, value))
    )


MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE chunks (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        "CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('position', 0), ('identity', random() & 0x7fffffffffffffff)",
    ),
    (
        "ALTER TABLE records ADD COLUMN seal INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE meta ADD COLUMN seal INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE groups (name BLOB PRIMARY KEY, value BLOB NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE damaged (key BLOB, value BLOB, seal INTEGER)",
        _seal_everything,
    ),
)
"""What brings a table from each version to the next: entry 0 makes version 1 of an empty file. Entries are never
changed.
"""

SCHEMA_VERSION = len(MIGRATIONS)
SEALED_VERSION = 2
"""From this version on rows are sealed."""

_FULL_ERRORS = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP"})
_DAMAGE_ERRORS = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_INDEX", "SQLITE_CORRUPT_VTAB"})


def _put_chunks_statement(rows: int) -> str:
    places = ",".join(["(?,?)"] * rows)
    return f"INSERT INTO chunks (key, body) VALUES {places} ON CONFLICT (key) DO UPDATE SET body = excluded.body"


def _put_records_statement(rows: int) -> str:
    places = ",".join(["(?,?,?)"] * rows)
    return (
        f"INSERT INTO records (key, value, seal) VALUES {places} "
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value, seal = excluded.seal"
    )


def _delete_statement(table: str, rows: int) -> str:
    return f"DELETE FROM {table} WHERE key IN ({','.join('?' * rows)})"


_FIND_CHUNK = (
    f"SELECT id, key, iif(length(body) <= {SMALL_CHUNK_BYTES}, body, NULL) FROM chunks "
    "WHERE id = (SELECT id FROM chunks WHERE key = ?)"
)
"""The index says which row it is, and the row says whose it is: they have to agree."""


def _between(select: str, start: bytes, end: bytes | None) -> tuple[str, list[bytes | int]]:
    if end is None:
        return f"{select} WHERE key >= ?", [start]
    return f"{select} WHERE key >= ? AND key < ?", [start, end]


SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What comes out of SQLite. Where it quotes what is damaged in a message, that cannot be decoded."""


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Say SQLite's errors in the store's words."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StoreError:
    if isinstance(error, UnicodeDecodeError):
        return StoreDamaged(f"table {path} is damaged (its schema is no text). {ADVICE}")
    name = getattr(error, "sqlite_errorname", "")
    if name in _FULL_ERRORS:
        return DiskFull(f"no room in table {path} ({error}). Free some space: no restart is needed.")
    if name in _DAMAGE_ERRORS or str(error).startswith(("no such table", "no such column", "malformed")):
        return StoreDamaged(f"table {path} is damaged ({error}). {ADVICE}")
    if name.startswith("SQLITE_IOERR"):
        return DiskFailed(f"table {path} cannot be read ({error}, {name}): look at the disk. Nothing was changed.")
    if name.startswith("SQLITE_READONLY"):
        return StoreLocked(f"table {path} is open in this process through read_only=True: close it first ({error}).")
    return StoreError(f"table {path}: {error} ({name or type(error).__name__})")


def connect(uri: str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time, and that begins transactions only when told to."""
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
    connection.text_factory = bytes  # the only texts are names, and damaged ones need not be texts
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


class TableReads:
    """Reading a table through one connection.

    `left_out` are the keys of records that are known to be damaged; None if the table has no seals.
    """

    def __init__(self, connection: sqlite3.Connection, left_out: frozenset[bytes] | None = frozenset()) -> None:
        self.connection = connection
        self._left_out = left_out

    def read_chunk(self, key: bytes) -> bytes:
        if self.connection.in_transaction:
            return self._read_chunk(key)
        self.connection.execute("BEGIN")
        try:
            return self._read_chunk(key)
        finally:
            self.connection.execute("COMMIT")

    def _read_chunk(self, key: bytes) -> bytes:
        """Find the row and read its body, within one transaction: row numbers are used again."""
        try:
            row = self.connection.execute(_FIND_CHUNK, (key,)).fetchone()
            if row is None:
                raise KeyError(key)
            row_number, found_key, small_body = row
            if found_key != key:
                raise ChunkDamaged("the table's index leads to another chunk")
            if isinstance(small_body, bytes):
                return small_body
            if small_body is not None:
                raise ChunkDamaged(f"the table has {type(small_body).__name__} where its bytes should be")
            with self.connection.blobopen("chunks", "body", row_number, readonly=True) as blob:
                return blob.read()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "") in _DAMAGE_ERRORS:
                raise ChunkDamaged(f"the table is damaged where this chunk is stored ({error})") from error
            raise

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        query, arguments = _between("SELECT key FROM chunks", start, end)
        rows = self.connection.execute(f"{query} ORDER BY key LIMIT ?", [*arguments, limit])
        return [row[0] for row in rows.fetchall()]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order."""
        return chain.from_iterable(self.record_pages(start, end))

    def record_pages(self, start: bytes, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        """The records from `start` to `end` in order, a page at a time; the last page is a short one."""
        columns = "key, value" if self._left_out is None else "key, value, seal"
        query, arguments = _between(f"SELECT {columns} FROM records", start, end)
        cursor = self.connection.execute(f"{query} ORDER BY key", arguments)
        page = cursor.fetchmany(SCAN_PAGE_ROWS)
        while len(page) == SCAN_PAGE_ROWS:
            yield self._checked(page)
            page = cursor.fetchmany(SCAN_PAGE_ROWS)
        yield self._checked(page)

    def _checked(self, page: list[tuple[bytes, ...]]) -> list[tuple[bytes, bytes]]:
        if self._left_out is None:
            return page  # type: ignore[return-value]
        sealed = [(row[0], row[1]) for row in page if is_sealed(*row)]
        if len(sealed) < len(page):
            for row in page:
                if not is_sealed(*row) and row[0] not in self._left_out:
                    raise StoreDamaged(f"record {row[0]!r} is damaged, and was not when the table was opened. {ADVICE}")
        return sealed


def read_meta(connection: sqlite3.Connection, path: Path) -> dict[str, int]:
    """The meta table of an open table, empty for a new file; `StoreVersion` if it is later than this code."""
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master").fetchall()]
    if not names and connection.execute("PRAGMA page_count").fetchone()[0] <= 1:
        return {}
    if b"meta" not in names:
        raise StoreDamaged(f"table {path} is damaged: it has no meta table. {ADVICE}")
    meta = sealed_meta(connection, path)
    version = meta["schema_version"]
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"table {path} has schema version {version}; this version of Penstock knows {SCHEMA_VERSION}. "
            "Open the directory with the version that wrote it, or a later one."
        )
    return meta


def _put_groups_statement(rows: int) -> str:
    places = ",".join(["(?,?,?)"] * rows)
    return f"INSERT OR REPLACE INTO groups (name, value, seal) VALUES {places}"


class _Sums:
    """The groups as a transaction changes them."""

    def __init__(self, before: dict[bytes, Group]) -> None:
        self._before = before
        self.changed: dict[bytes, Group] = {}

    def _group(self, name: bytes) -> Group:
        return self.changed.get(name) or self._before.get(name) or Group()

    def record(self, key: bytes, seal: int, sign: int) -> None:
        name = group_of(key)
        self.changed[name] = self._group(name).with_record(seal if type(seal) is int else 0, sign)

    def chunk(self, key: bytes, sign: int) -> None:
        self.changed[key[:8]] = self._group(key[:8]).with_chunk(seal_of_key(key), sign)


class SqliteTable:
    """The table of an embedded store, open for writing."""

    def __init__(
        self,
        path: Path,
        *,
        kept_free_bytes: int = KEPT_FREE_BYTES,
        on_damage: Callable[[], None] | None = None,
        check_chunk: Callable[[bytes], object] | None = None,
        check_place: Callable[[], None] | None = None,
    ) -> None:
        """`on_damage` is for a table that is a cache: called, in any thread, when that turns out to be damaged. What
        is cached can be had again: `check_chunk` looks at what is read, and raises `ChunkDamaged` if it is not whole.
        `check_place` raises if the path leads to another table by now. It is called before the table is opened again.
        """
        self._path = path
        self._uri = path.absolute().as_uri()
        self._check_place = check_place or (lambda: None)
        self._check_chunk = check_chunk or (lambda chunk: None)
        self._is_cache = on_damage is not None
        self._on_damage = on_damage or (lambda: None)
        self._kept_free_bytes = kept_free_bytes
        self._idle: list[TableReads] = []
        self._closed = False
        self._left_out: frozenset[bytes] = frozenset()
        self._flaws: list[Flaw] = []
        with translated(path):
            make_file(path)
            self._writer = connect(f"{self._uri}?mode=rwc")
            try:
                meta = self._prepare()
                self._anchor = connect(f"{self._uri}?mode=ro")
                self._anchor.execute("SELECT count(*) FROM meta").fetchone()
                self._identity = meta["identity"]
                self._position = meta["position"]
                self._had_journal = bool(meta.get(HAD_JOURNAL))
                self._page_bytes = self._pragma("page_size")
                self._measure()
            except BaseException:
                self._writer.close()
                raise

    def _prepare(self) -> dict[str, int]:
        execute = self._writer.execute
        meta = read_meta(self._writer, self._path)
        version = meta.get("schema_version", 0)
        if version == 0:
            execute(f"PRAGMA page_size = {PAGE_BYTES}")
            execute("PRAGMA auto_vacuum = INCREMENTAL")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA fullfsync = ON")  # of effect on macOS only: see `RealFile.sync`
        execute("PRAGMA secure_delete = OFF")
        execute("PRAGMA cache_size = -8192")
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        for number, steps in enumerate(MIGRATIONS[version:], version + 1):
            self._migrate(number, steps)
        meta = sealed_meta(self._writer, self._path)
        self._look_over(meta)
        return meta

    def _migrate(self, version: int, steps: Migration) -> None:
        with self._transaction():
            for step in steps:
                if callable(step):
                    step(self._writer)
                else:
                    self._writer.execute(step)
            if version < SEALED_VERSION:
                self._writer.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (version,))
            else:
                _write_meta(self._writer, "schema_version", version)

    # Damage.

    def _look_over(self, meta: dict[str, int]) -> None:
        """Find out what is damaged, and set right what can be without losing anything."""
        seen = inspect(self._writer, meta)
        is_small = self._pragma("page_count") * self._pragma("page_size") <= QUICK_CHECK_BYTES
        if seen.flaws or seen.misplaced or seen.lost_groups or is_small:
            wrong = quick_check(self._writer)
            if (wrong is not None or seen.lacks_chunks) and self._make_index_anew():
                seen, wrong = inspect(self._writer, meta), None
            if seen.misplaced:
                self._set_records_in_order()
                wrong = quick_check(self._writer)
            if wrong is not None:
                raise StoreDamaged(f"table {self._path} is damaged ({wrong}). {ADVICE}")
        if seen.lost_groups:
            log.error("table %s: its sums were damaged, and were computed again from its rows", self._path)
            with self._transaction():
                _write_groups(self._writer, seen.groups)
        self._groups = seen.groups
        self._groups_sum = sum(seal_of(name, group.packed()) for name, group in seen.groups.items()) & SUM_MASK
        self._left_out = seen.left_out
        self._flaws = seen.flaws
        if seen.flaws:
            self._on_damage()

    def _make_index_anew(self) -> bool:
        """Make the index of the chunks anew, of the rows. If that does not set everything right, leave it as it is."""
        try:
            with self._transaction():
                self._writer.execute("REINDEX chunks")
                again = inspect(self._writer, sealed_meta(self._writer, self._path))
                if again.lacks_chunks or (not again.misplaced and quick_check(self._writer) is not None):
                    raise sqlite3.IntegrityError("the rows do not add up either")
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return False
        log.error("table %s: the index of the chunks was damaged, and was rebuilt from the chunks", self._path)
        return True

    def _set_records_in_order(self) -> None:
        """Write the records anew, in order; what is damaged is kept apart. Else nothing could be looked up."""
        with self._transaction():
            rows = self._writer.execute("SELECT key, value, seal FROM records").fetchall()
            good = {row[0]: row for row in rows if is_sealed(*row)}
            bad = [row for row in rows if not is_sealed(*row)]
            self._writer.execute("DELETE FROM records")
            self._writer.executemany("INSERT INTO records (key, value, seal) VALUES (?, ?, ?)", sorted(good.values()))
            self._writer.executemany("INSERT INTO damaged (key, value, seal) VALUES (?, ?, ?)", bad)
        log.error(
            "table %s: records were out of order, and were written again; damaged ones are kept apart", self._path
        )

    def flaws(self) -> Sequence[Flaw]:
        return self._flaws

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise self._said(error) from error

    def _said(self, error: sqlite3.Error | UnicodeDecodeError) -> StoreError:
        said = translate(error, self._path)
        if isinstance(said, StoreDamaged):
            self._on_damage()
        return said

    @property
    def identity(self) -> int:
        return self._identity

    @property
    def position(self) -> int:
        """The last commit that the table holds."""
        return self._position

    @property
    def had_journal(self) -> bool:
        """Whether a journal was made for this table: then it has to be there."""
        return self._had_journal

    def note_journal(self) -> None:
        """There is a journal for this table from now on."""
        if not self._had_journal:
            with self._translated(), self._transaction():
                _write_meta(self._writer, HAD_JOURNAL, 1)
            self._had_journal = True

    # Writing.

    def apply(
        self,
        position: int | None,
        dropped: Iterable[bytes],
        chunks: Iterable[tuple[bytes, Buffer | None]],
        records: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        """Make changes durable in one transaction."""
        groups = _Sums(self._groups)
        with self._translated(), self._transaction():
            for prefix in dropped:
                self._drop(prefix, groups)
            self._apply_chunks(chunks, groups)
            self._apply_records(records, groups)
            groups_sum = self._save_groups(groups)
            if position is not None:
                _write_meta(self._writer, "position", position)
        self._groups.update(groups.changed)
        self._groups_sum = groups_sum
        for name in [name for name, group in groups.changed.items() if group == Group()]:
            del self._groups[name]
        if position is not None:
            self._position = position
        self._measure()

    def _save_groups(self, groups: _Sums) -> int:
        total = self._groups_sum
        puts: list[Buffer | int] = []
        for name, group in groups.changed.items():
            before = self._groups.get(name)
            if before == group:
                continue
            if before is not None:
                total -= seal_of(name, before.packed())
            if group == Group():
                self._writer.execute("DELETE FROM groups WHERE name = ?", (name,))
            else:
                value = group.packed()
                seal = seal_of(name, value)
                total += seal
                puts += (name, value, seal)
        self._in_batches(puts, 3, _put_groups_statement)
        if total & SUM_MASK != self._groups_sum:
            _write_meta(self._writer, GROUPS_SUM, total & SUM_MASK)
        return total & SUM_MASK

    def _drop(self, prefix: bytes, groups: _Sums) -> None:
        end = prefix_end(prefix)
        for key, seal in self._writer.execute(*_between("SELECT key, seal FROM records", prefix, end)):
            groups.record(key, seal, -1)
        for (key,) in self._writer.execute(*_between("SELECT key FROM chunks", prefix, end)):
            groups.chunk(key, -1)
        for table in ("chunks", "records"):
            self._writer.execute(*_between(f"DELETE FROM {table}", prefix, end))

    def _apply_chunks(self, chunks: Iterable[tuple[bytes, Buffer | None]], groups: _Sums) -> None:
        puts: list[Buffer | int] = []
        put_keys: list[bytes] = []
        deletes: list[bytes] = []
        for key, body in chunks:
            if body is None:
                deletes.append(key)
                continue
            if len(body) > SMALL_CHUNK_BYTES:
                try:
                    self._writer.execute("INSERT INTO chunks (key, body) VALUES (?, ?)", (key, body))
                    groups.chunk(key, 1)
                except sqlite3.IntegrityError:  # it is there: a log that is read again from an earlier place
                    self._writer.execute(_put_chunks_statement(1), (key, body))
            else:
                puts += (key, body)
                put_keys.append(key)
        self._note_chunks(put_keys, groups, 1)
        self._note_chunks(deletes, groups, -1)
        self._in_batches(deletes, 1, partial(_delete_statement, "chunks"))
        self._in_batches(puts, 2, _put_chunks_statement)

    def _note_chunks(self, keys: list[bytes], groups: _Sums, sign: int) -> None:
        """Count chunks that come and are not there, or go and are."""
        there = {key for (key,) in self._found("key", "chunks", keys)}
        for key in keys:
            if (key in there) == (sign < 0):
                groups.chunk(key, sign)

    def _found(self, columns: str, table: str, keys: list[bytes]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(keys), ROWS_PER_STATEMENT):
            some = keys[start : start + ROWS_PER_STATEMENT]
            places = ",".join("?" * len(some))
            yield from self._writer.execute(f"SELECT {columns} FROM {table} WHERE key IN ({places})", some).fetchall()

    def _apply_records(self, records: Iterable[tuple[bytes, bytes | None]], groups: _Sums) -> None:
        records = list(records)
        for key, seal in self._found("key, seal", "records", [key for key, _ in records]):
            groups.record(key, seal, -1)
        puts: list[Buffer | int] = []
        deletes: list[bytes] = []
        for key, value in records:
            if value is None:
                deletes.append(key)
            else:
                seal = seal_of(key, value)
                puts += (key, value, seal)
                groups.record(key, seal, 1)
        self._in_batches(deletes, 1, partial(_delete_statement, "records"))
        self._in_batches(puts, 3, _put_records_statement)

    def _in_batches(self, arguments: Sequence[Buffer | int], width: int, statement: Callable[[int], str]) -> None:
        step = ROWS_PER_STATEMENT * width
        whole = len(arguments) - len(arguments) % step
        for start in range(0, whole, step):
            self._writer.execute(statement(ROWS_PER_STATEMENT), arguments[start : start + step])
        for start in range(whole, len(arguments), width):
            self._writer.execute(statement(1), arguments[start : start + width])

    # Space.

    def _measure(self) -> None:
        self._pages = self._pragma("page_count")
        self._free_pages = self._pragma("freelist_count")

    def _pragma(self, name: str) -> int:
        return int(self._writer.execute(f"PRAGMA {name}").fetchone()[0])

    @property
    def used_bytes(self) -> int:
        return (self._pages - self._free_pages) * self._page_bytes

    @property
    def reusable_bytes(self) -> int:
        return self._free_pages * self._page_bytes

    def give_back(self, *, everything: bool = False) -> bool:
        """Return a few megabytes to the disk if much more is free than will soon be used again."""
        kept_pages = 0 if everything else max(self._kept_free_bytes // self._page_bytes, self._pages // 4)
        with self._translated():
            if self._free_pages > kept_pages:
                # Every page is a step of the statement: `execute` would take one step, `executescript` takes all.
                self._writer.executescript(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})")
                before_pages = self._free_pages
                self._measure()
                if kept_pages < self._free_pages < before_pages:
                    return True
                self._checkpoint("PASSIVE")
            if everything:
                self._checkpoint("TRUNCATE")
        return False

    def _checkpoint(self, mode: str) -> None:
        """Move the WAL into the table, as far as readers allow without waiting for them."""
        self._writer.execute("PRAGMA busy_timeout = 0")
        self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        self._writer.execute(f"PRAGMA busy_timeout = {BUSY_MS}")

    # Reading.

    @contextlib.contextmanager
    def _reads(self) -> Iterator[TableReads]:
        reads = self._borrow()
        try:
            yield reads
        except SQLITE_ERRORS as error:
            raise self._said(error) from error
        finally:
            if self._closed:
                reads.connection.close()
            else:
                self._idle.append(reads)

    def _borrow(self) -> TableReads:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        self._check_place()
        with self._translated():
            connection = connect(f"{self._uri}?mode=rw")
            connection.execute("PRAGMA query_only = ON")
        return TableReads(connection, self._left_out)

    def read_chunk(self, key: bytes) -> bytes:
        with self._reads() as reads:
            try:
                chunk = reads.read_chunk(key)
                self._check_chunk(chunk)
                return chunk
            except ChunkDamaged as error:
                if not self._is_cache:
                    raise
                self._on_damage()
                raise StoreDamaged(f"table {self._path} is damaged ({error})") from error

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        with self._reads() as reads:
            return reads.list_chunks(start, end, limit)

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        pages = self._record_pages(start, end)
        first = next(pages)
        return chain(first, chain.from_iterable(pages))

    def _record_pages(self, start: bytes, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        with self._reads() as reads:
            yield from reads.record_pages(start, end)

    def close(self) -> None:
        """Move the WAL into the database file and let go of it.

        The last connection to close is one that cannot write: SQLite then leaves the (empty) WAL and its index in
        place, and read-only openers need no right to create them.
        """
        self._closed = True
        with contextlib.suppress(sqlite3.Error):
            self._checkpoint("TRUNCATE")
        while self._idle:
            self._idle.pop().connection.close()
        self._writer.close()
        self._anchor.close()
