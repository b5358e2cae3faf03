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

The interpreter. Python's `sqlite3` lets go of the interpreter lock for every statement and has to get it back after it.
With a busy thread beside, that can take a while. So small rows go in by the dozen, in one statement. Large bodies are
read as an open blob, which copies them once, and lets go of the lock meanwhile; a `SELECT` copies them twice.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from penstock.core.changes import Buffer
from penstock.core.errors import StoreError
from penstock.store.errors import DiskFull, StoreDamaged, StoreLocked, StoreVersion
from penstock.store.keys import prefix_end
from penstock.store.private import make_file

PAGE_BYTES = 16384
ROWS_PER_STATEMENT = 64
SMALL_CHUNK_BYTES = 4096
SCAN_PAGE_ROWS = 1000
GIVE_BACK_PAGES = 256
KEPT_FREE_BYTES = 16 << 20
WAL_KEPT_BYTES = 32 << 20
CHECKPOINT_PAGES = 256
BUSY_MS = 30_000

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE chunks (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        "CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('position', 0), ('identity', random() & 0x7fffffffffffffff)",
    ),
)
"""What brings a table from each version to the next: entry 0 makes version 1 of an empty file. Entries are never
changed.
"""

SCHEMA_VERSION = len(MIGRATIONS)

_FULL_ERRORS = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP"})
_DAMAGE_ERRORS = frozenset({"SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CORRUPT_INDEX", "SQLITE_CORRUPT_VTAB"})


def _put_statement(table: str, value: str, rows: int) -> str:
    places = ",".join(["(?,?)"] * rows)
    return (
        f"INSERT INTO {table} (key, {value}) VALUES {places} ON CONFLICT (key) DO UPDATE SET {value} = excluded.{value}"
    )


def _delete_statement(table: str, rows: int) -> str:
    return f"DELETE FROM {table} WHERE key IN ({','.join('?' * rows)})"


_FIND_CHUNK = f"SELECT id, iif(length(body) <= {SMALL_CHUNK_BYTES}, body, NULL) FROM chunks WHERE key = ?"


def _between(select: str, start: bytes, end: bytes | None) -> tuple[str, list[bytes | int]]:
    if end is None:
        return f"{select} WHERE key >= ?", [start]
    return f"{select} WHERE key >= ? AND key < ?", [start, end]


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Say SQLite's errors in the store's words."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """The store's word for an error of SQLite."""
    name = getattr(error, "sqlite_errorname", "")
    if name in _FULL_ERRORS:
        return DiskFull(f"no room in table {path} ({error}). Free some space: no restart is needed.")
    if name in _DAMAGE_ERRORS:
        return StoreDamaged(f"table {path} is damaged ({error}). Restore the directory from a backup.")
    if name.startswith("SQLITE_READONLY"):
        return StoreLocked(f"table {path} is open in this process through read_only=True: close it first ({error}).")
    return StoreError(f"table {path}: {error} ({name or type(error).__name__})")


def connect(uri: str) -> sqlite3.Connection:
    """A connection that any thread may use, one at a time, and that begins transactions only when told to."""
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)


class TableReads:
    """Reading a table through one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def meta(self, name: str) -> int:
        """An entry of the meta table."""
        row = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return int(row[0])

    def read_chunk(self, key: bytes) -> bytes:
        """A chunk; `KeyError` if it is not there."""
        if self.connection.in_transaction:
            return self._read_chunk(key)
        self.connection.execute("BEGIN")
        try:
            return self._read_chunk(key)
        finally:
            self.connection.execute("COMMIT")

    def _read_chunk(self, key: bytes) -> bytes:
        """Find the row and read its body, within one transaction: row numbers are used again."""
        row = self.connection.execute(_FIND_CHUNK, (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        row_number, small_body = row
        if small_body is not None:
            return bytes(small_body)
        with self.connection.blobopen("chunks", "body", row_number, readonly=True) as blob:
            return blob.read()

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""
        query, arguments = _between("SELECT key FROM chunks", start, end)
        rows = self.connection.execute(f"{query} ORDER BY key LIMIT ?", [*arguments, limit])
        return [row[0] for row in rows.fetchall()]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order."""
        return chain.from_iterable(self.record_pages(start, end))

    def record_pages(self, start: bytes, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        """The records from `start` to `end` in order, a page at a time; the last page is a short one."""
        query, arguments = _between("SELECT key, value FROM records", start, end)
        cursor = self.connection.execute(f"{query} ORDER BY key", arguments)
        page = cursor.fetchmany(SCAN_PAGE_ROWS)
        while len(page) == SCAN_PAGE_ROWS:
            yield page
            page = cursor.fetchmany(SCAN_PAGE_ROWS)
        yield page


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema version of an open table, 0 for a new file; `StoreVersion` if it is later than this code."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return 0
    version = TableReads(connection).meta("schema_version")
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"table {path} has schema version {version}; this version of Penstock knows {SCHEMA_VERSION}. "
            "Open the directory with the version that wrote it, or a later one."
        )
    return version


class SqliteTable:
    """The table of an embedded store, open for writing."""

    def __init__(
        self, path: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES, on_damage: Callable[[], None] = lambda: None
    ) -> None:
        """`on_damage` is called, in any thread, whenever an open table turns out to be damaged."""
        self._path = path
        self._on_damage = on_damage
        self._kept_free_bytes = kept_free_bytes
        self._idle: list[TableReads] = []
        self._closed = False
        with translated(path):
            make_file(path)
            self._writer = connect(f"{path.absolute().as_uri()}?mode=rwc")
            try:
                self._prepare()
                self._anchor = connect(f"{path.absolute().as_uri()}?mode=ro")
                reads = TableReads(self._anchor)
                self._identity = reads.meta("identity")
                self._position = reads.meta("position")
                self._page_bytes = self._pragma("page_size")
                self._measure()
            except BaseException:
                self._writer.close()
                raise

    def _prepare(self) -> None:
        execute = self._writer.execute
        version = schema_version(self._writer, self._path)
        if version == 0:
            execute(f"PRAGMA page_size = {PAGE_BYTES}")
            execute("PRAGMA auto_vacuum = INCREMENTAL")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA secure_delete = OFF")
        execute("PRAGMA cache_size = -8192")
        execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            self._migrate(number, statements)

    def _migrate(self, version: int, statements: tuple[str, ...]) -> None:
        with self._transaction():
            for statement in statements:
                self._writer.execute(statement)
            self._writer.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (version,))

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
        except sqlite3.Error as error:
            raise self._said(error) from error

    def _said(self, error: sqlite3.Error) -> StoreError:
        said = translate(error, self._path)
        if isinstance(said, StoreDamaged):
            self._on_damage()
        return said

    @property
    def identity(self) -> int:
        """A random number that the table and its journal share."""
        return self._identity

    @property
    def position(self) -> int:
        """The last commit that the table holds."""
        return self._position

    # Writing.

    def apply(
        self,
        position: int | None,
        dropped: Iterable[bytes],
        chunks: Iterable[tuple[bytes, Buffer | None]],
        records: Iterable[tuple[bytes, bytes | None]],
    ) -> None:
        """Make changes durable in one transaction."""
        with self._translated(), self._transaction():
            for prefix in dropped:
                self._drop(prefix)
            self._apply_chunks(chunks)
            self._apply_rows("records", "value", records)
            if position is not None:
                self._writer.execute("UPDATE meta SET value = ? WHERE name = 'position'", (position,))
        if position is not None:
            self._position = position
        self._measure()

    def _drop(self, prefix: bytes) -> None:
        for table in ("chunks", "records"):
            self._writer.execute(*_between(f"DELETE FROM {table}", prefix, prefix_end(prefix)))

    def _apply_chunks(self, chunks: Iterable[tuple[bytes, Buffer | None]]) -> None:
        small: list[tuple[bytes, Buffer | None]] = []
        for key, body in chunks:
            if body is not None and len(body) > SMALL_CHUNK_BYTES:
                self._writer.execute(_put_statement("chunks", "body", 1), (key, body))
            else:
                small.append((key, body))
        self._apply_rows("chunks", "body", small)

    def _apply_rows(self, table: str, value: str, rows: Iterable[tuple[bytes, Buffer | None]]) -> None:
        puts: list[Buffer] = []
        deletes: list[Buffer] = []
        for key, content in rows:
            if content is None:
                deletes.append(key)
            else:
                puts += (key, content)
        self._in_batches(deletes, 1, partial(_delete_statement, table))
        self._in_batches(puts, 2, partial(_put_statement, table, value))

    def _in_batches(self, arguments: list[Buffer], width: int, statement: Callable[[int], str]) -> None:
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
        """How much space the content takes, without what is free for reuse."""
        return (self._pages - self._free_pages) * self._page_bytes

    @property
    def reusable_bytes(self) -> int:
        """How much more content fits before the table takes more of the disk."""
        return self._free_pages * self._page_bytes

    def _kept_pages(self) -> int:
        return max(self._kept_free_bytes // self._page_bytes, self._pages // 4)

    def give_back(self, *, everything: bool = False) -> bool:
        """Return a few megabytes to the disk if much more is free than will soon be used again."""
        kept_pages = 0 if everything else self._kept_pages()
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
        except sqlite3.Error as error:
            raise self._said(error) from error
        finally:
            self._hand_back(reads)

    def _borrow(self) -> TableReads:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        with self._translated():
            connection = connect(f"{self._path.absolute().as_uri()}?mode=rw")
            connection.execute("PRAGMA query_only = ON")
        return TableReads(connection)

    def _hand_back(self, reads: TableReads) -> None:
        if self._closed:
            reads.connection.close()
        else:
            self._idle.append(reads)

    def read_chunk(self, key: bytes) -> bytes:
        """A chunk; `KeyError` if it is not there."""
        with self._reads() as reads:
            return reads.read_chunk(key)

    def list_chunks(self, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys from `start` (inclusive) to `end` (exclusive), in order."""
        with self._reads() as reads:
            return reads.list_chunks(start, end, limit)

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The records from `start` (inclusive) to `end` (exclusive), in order, as they are at the call."""
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
