"""A read-only look at a data directory, while another process may be writing to it.

Theory of operation. A read transaction on the table fixes one position. The commits after it come from the journal's
files, and form one layer over the table. Both change underneath: the writer applies, trims and recycles. But a file is
recycled only after the table has reached its last commit. So when the commits that follow the table's position are not
there, or look damaged because a frame was being written while it was read, the table has moved on, or a second look is
enough: start again. Only a finding that stays the same is damage.

A commit that is being written can be seen whole before it is durable. The view syncs the journal's last file before it
shows what it found there, so that nothing is shown that a power failure could take back.

Nothing is ever written into the directory. SQLite is told so, too: `mode=ro` for the table, `readonly_shm` for the
WAL's index. That needs the `-wal` and `-shm` files to be there, and the writer leaves them when it closes. Where they
are missing (a copied table), there is no writer, and the table is read as `immutable`.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.store.base import StoreStats
from penstock.store.disk import Disk, RealDisk
from penstock.store.errors import ADVICE, StoreDamaged, StoreReadOnly
from penstock.store.inspection import inspect
from penstock.store.journal.file import read_segment
from penstock.store.journal.walk import Walk, segment_name, segment_sequences
from penstock.store.layer import Layer, Missing, joined, list_chunks, open_flaws, scan
from penstock.store.layout import JOURNAL_NAME, TABLE_NAME, check_readable
from penstock.store.table import (
    HAD_JOURNAL,
    SEALED_VERSION,
    SQLITE_ERRORS,
    TableReads,
    connect,
    read_meta,
    translate,
    translated,
)

ATTEMPTS_MAX = 100
SAME_FINDINGS_MAX = 5
PAUSE_SECONDS = 0.01


class StoreView:
    """One consistent state of a data directory; `refresh` moves on to the latest.

    While a view is open, SQLite keeps what the view may still read, so the table's WAL grows: refresh a view that lives
    long, and close it when it is not needed.
    """

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory = directory
        self._path = directory / TABLE_NAME
        self._disk = disk or RealDisk()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._layer = Layer(0)
        self._left_out: frozenset[bytes] | None = None
        self._table_flaws: list[Flaw] = []
        self._needs_journal = False
        check_readable(directory)
        if not self._path.exists():
            raise StoreError(f"{directory} holds no store: there is no {TABLE_NAME} in it.")
        self.refresh()

    def refresh(self) -> None:
        """Move on to the latest committed state."""
        with self._lock:
            self._look_until_consistent()

    def _look_until_consistent(self) -> None:
        findings: list[str] = []
        for _ in range(ATTEMPTS_MAX):
            try:
                self._look()
                return
            except (StoreDamaged, FileNotFoundError, sqlite3.OperationalError) as error:
                self.close()
                findings.append(str(error))
                if isinstance(error, StoreDamaged) and findings.count(str(error)) >= SAME_FINDINGS_MAX:
                    raise
            except BaseException as error:
                self.close()
                if isinstance(error, SQLITE_ERRORS):
                    raise translate(error, self._path) from error
                raise
            time.sleep(PAUSE_SECONDS)
        raise StoreError(
            f"no consistent state of {self._directory} in {ATTEMPTS_MAX} attempts; the last said: {findings[-1]}"
        )

    def _look(self) -> None:
        """One attempt. What it opened is closed again by whoever handles its errors."""
        self.close()
        connection = self._connection = connect(self._uri())
        connection.execute("BEGIN")
        meta = read_meta(connection, self._path)
        if not meta:
            raise FileNotFoundError(f"{self._path} is being created")
        if meta["schema_version"] >= SEALED_VERSION and self._left_out is None:
            seen = inspect(connection, meta)
            if seen.misplaced:
                raise StoreDamaged(f"table {self._path} is damaged (records are out of order). {ADVICE}")
            self._left_out, self._table_flaws = seen.left_out, seen.flaws
        self._needs_journal = bool(meta["position"] or meta.get(HAD_JOURNAL))
        self._layer = self._read_journal(meta["position"], meta["identity"])

    def _uri(self) -> str:
        base = self._path.absolute().as_uri()
        if all(self._path.with_name(TABLE_NAME + suffix).exists() for suffix in ("-wal", "-shm")):
            return f"{base}?mode=ro&readonly_shm=1"
        return f"{base}?mode=ro&immutable=1"

    def _read_journal(self, position: int, identity: int) -> Layer:
        layer = Layer(position)
        walk = self._walk(position, identity)
        for frame in walk:
            layer.absorb(frame.changes(), frame.number)
        if layer.position > position:
            self._sync(walk.paths[walk.tail])
        return layer

    def _walk(self, position: int, identity: int) -> Walk:
        journal = self._directory / JOURNAL_NAME
        sequences = segment_sequences(self._disk.names(journal))
        if self._needs_journal and not sequences:  # the writer does not open without one either
            raise StoreDamaged(f"the journal in {journal} is missing: put it back. {ADVICE}")
        return Walk([journal / segment_name(sequence) for sequence in sequences], self._read_file, identity, position)

    def _read_file(self, path: Path) -> bytes:
        with contextlib.closing(self._disk.open(path, writable=False)) as file:
            return read_segment(file, path)

    def _sync(self, path: Path) -> None:
        with contextlib.closing(self._disk.open(path, writable=False)) as file:
            file.sync()

    @property
    def position(self) -> int:
        """The last commit that this view shows."""
        return self._layer.position

    def commit(self, changes: Changes) -> None:
        raise StoreReadOnly(f"{self._directory} was opened for reading; open it without read_only=True to commit.")

    def _reads(self) -> TableReads:
        if self._connection is None:
            raise StoreError(f"the view of {self._directory} is closed")
        return TableReads(self._connection, self._left_out)

    def read_chunk(self, key: bytes) -> Buffer:
        chunk = self._layer.chunk(key)
        if chunk is Missing.GONE:
            raise KeyError(key)
        if chunk is not Missing.ASK_BELOW:
            return joined(chunk)
        with self._lock, translated(self._path):
            return self._reads().read_chunk(key)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        with self._lock, translated(self._path):
            return list_chunks((self._layer,), self._reads(), prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock, translated(self._path):
            return iter(list(scan((self._layer,), self._reads(), prefix)))

    def flaws(self) -> list[Flaw]:
        """What was found damaged when the view was opened."""
        return open_flaws((self._layer,), self._table_flaws)

    @property
    def stats(self) -> StoreStats:
        """Nothing: it only reads."""
        return StoreStats()

    def close(self) -> None:
        """Let go of the table."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
