"""The embedded store: a journal for now, a table for later, in one directory.

Theory of operation. A commit is durable when the journal has it. It then goes into the *newest layer*, in memory, where
reads find it (see `layer`). A thread, the *applier*, now and then closes the newest layer and applies it to the table
in one transaction together with the position it reaches; then the journal is trimmed up to there.

    commit ──► journal ──► newest layer ──► older layer ──► table
                           takes commits    being applied   SQLite

The applier is lazy: it starts when the newest layer holds `apply_live_bytes` in memory, or its commits have taken
`apply_written_bytes` in the journal, or when its first commit is `apply_after_seconds` old. What was put and deleted
again before that is never written to the table, so a queue that is consumed promptly costs its journal writes only. For
such a queue the applier starts earlier, at `apply_dead_bytes`: there is next to nothing to apply, and the journal's
files are used again sooner, which is cheaper than to make new ones.
Even while a layer is being applied, a chunk that the newest layer has deleted meanwhile is left out. That is safe: its
deletion is durable in the journal behind the position that the table is about to reach, and whoever reads the table
reads the journal from there.

Memory is bounded: while the layers hold more than `unapplied_bytes_max`, commits wait for the applier.

Disk full. A commit that adds chunks is refused with `DiskFull` when the disk would be left with less than
`disk_reserve_bytes`, after what is not applied yet; when the content would grow past `content_bytes_max`; when the
applier has just found no room; or when the journal finds none. A commit that only deletes and writes records is let
through as long as the journal has room, of which it keeps some for this purpose. The applier tries again every second;
if a whole layer does not fit, it throws the `ballast` out and applies the deletions alone, which makes room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.core.errors import StoreError
from penstock.core.storage.changes import Buffer, Changes, Flaw
from penstock.store.base import Store, StoreStats, Table
from penstock.store.disk import Disk, RealDisk, is_full
from penstock.store.errors import ADVICE, CommitFailed, DirectoryMoved, DiskFailed, DiskFull, StoreDamaged
from penstock.store.journal.file import SEGMENT_BYTES, FileJournal
from penstock.store.journal.walk import segment_sequences
from penstock.store.layer import Layer, Missing, joined, list_chunks, open_flaws, scan
from penstock.store.layout import BALLAST_NAME, CLUSTER_NAME, JOURNAL_NAME, TABLE_NAME, check_readable, restrict
from penstock.store.lock import DirectoryLock, cannot_open, directory_moved, refuse_cache, refuse_incomplete
from penstock.store.read_ahead import ReadAhead
from penstock.store.table import SqliteTable
from penstock.store.view import StoreView


class Journal(Protocol):
    """Numbered commits. The first has number 1, each next one is one higher, and a number is its commit's *position*.

    One thread at a time appends; `trim` may come from another.
    """

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        """Every commit after a position, in order. Read to its end, once, before the first `append`."""

    def append(self, changes: Changes) -> int:
        """Make a commit durable and give its position. Raises `DiskFull` (nothing written) or `CommitFailed`."""

    def trim(self, position: int) -> None:
        """Forget the commits up to a position, this one included: they are durable elsewhere."""

    def close(self) -> None:
        """Finish background work and let go of files."""


# Space that is kept for the hour when there is none.
#
# To delete messages from a full disk, the table first has to write: the changed pages go to its WAL. The ballast is a
# file that holds blocks for this and nothing else. When the table finds no room, the ballast is thrown out; the
# deletions fit then, give pages back, and when enough is free again the ballast is taken on anew.


BALLAST_BYTES = 8 << 20


class Ballast:
    """A file that holds blocks, and can be let go of."""

    def __init__(self, disk: Disk, path: Path, size: int = BALLAST_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._held = path.name in disk.names(path.parent)

    def take_on(self, disk_reserve_bytes: int) -> None:
        """Hold the blocks, if they are not held and the disk can spare them."""
        if self._held or self._disk.free_bytes(self._path.parent) < disk_reserve_bytes + self._size:
            return
        try:
            with contextlib.closing(self._disk.open(self._path, writable=True, create=True)) as file:
                file.reserve(self._size, zeros=False)
            self._held = True
        except OSError:
            self._held = True
            self.throw_out()

    def throw_out(self) -> None:
        """Give the blocks back to the disk."""
        if self._held:
            with contextlib.suppress(OSError):
                self._disk.remove(self._path)
            self._held = False


SPACE_CHECK_BYTES = 1 << 20
RETRY_SECONDS = 1.0
DELETIONS_PER_TRANSACTION = 256
DEAD_TO_LIVE = 16
"""With so many times more written than left, applying costs next to nothing."""


@dataclass(frozen=True)
class StoreOptions:
    """How much the store keeps where."""

    unapplied_bytes_max: int = 64 << 20
    """Above this much in memory, commits wait for the applier."""
    apply_live_bytes: int = 32 << 20
    """The applier starts when this much is in memory."""
    apply_written_bytes: int = 64 << 20
    """The applier starts when this much was written to the journal."""
    apply_dead_bytes: int = 16 << 20
    """The applier starts when this much was written to the journal, and nearly all of it was deleted again."""
    apply_after_seconds: float = 5.0
    """The applier starts when the oldest commit that it has not seen is this old."""
    segment_bytes: int = SEGMENT_BYTES
    """How large the journal's files are."""
    disk_reserve_bytes: int = 32 << 20
    """Chunks are refused when less than this would stay free on the disk."""
    content_bytes_max: int | None = None
    """Chunks are refused when chunks and records would take more than this."""


class EmbeddedStore:
    """A journal, a table, and the layers between them.

    `open_store` makes one for a directory. With `background=False` nothing happens behind the caller's back: the
    applier runs within the commit that makes it due, or when `apply_now` is called, so that a simulation runs the same
    way twice.
    """

    def __init__(
        self,
        journal: Journal,
        table: Table,
        options: StoreOptions | None = None,
        *,
        disk: Disk | None = None,
        directory: Path | None = None,
        lock: DirectoryLock | None = None,
        background: bool = True,
        replayed_bytes_max: int | None = None,
    ) -> None:
        """`replayed_bytes_max` is for a journal that holds more than memory does: with so much replayed, and no room
        for it in the table, opening is given up with `DiskFull`.
        """
        self._replayed_bytes_max = replayed_bytes_max
        self._journal = journal
        self._table = table
        self._options = options = options or StoreOptions()
        self._due_from_bytes = min(options.apply_live_bytes, options.apply_written_bytes, options.apply_dead_bytes)
        """With less than this in the newest layer, nothing can be due."""
        self._disk = disk
        self._directory = directory
        self._directory_lock = lock
        self._ballast = Ballast(disk, directory / BALLAST_NAME) if disk is not None and directory is not None else None
        self._stats = StoreStats()
        self._failure: StoreError | None = None
        self._no_room: DiskFull | None = None
        self._no_room_at = 0.0
        self._unchecked_bytes = SPACE_CHECK_BYTES
        self._first_commit_at = 0.0
        self._stopping = False
        self._closed = False
        self.known: Known | None = None
        """What `open_embedded` has to find when it opens this store again."""
        self._apply_lock = threading.Lock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Who only needs the lock takes it as such: that takes no call of Python's."""
        self._newest = Layer(table.position)
        self._layers: tuple[Layer, ...] = (self._newest,)
        self._ahead = ReadAhead(table, self._is_hidden) if background else None
        self._replay()
        self._flaws = open_flaws(self._layers, table.flaws())
        self._applier: threading.Thread | None = None
        if background:
            self._applier = threading.Thread(target=self._apply_when_due, name="penstock-applier", daemon=True)
            self._applier.start()

    def _replay(self) -> None:
        for position, changes in self._journal.replay(self._table.position):
            self._newest.absorb(changes, position)
            if self._newest.live_bytes >= self._options.unapplied_bytes_max:
                self._apply_replayed(position)
        self._journal.trim(self._table.position)
        if self._newest:
            self._first_commit_at = time.monotonic()

    def _apply_replayed(self, position: int) -> None:
        """Keep memory bounded while replaying a long journal."""
        try:
            self._apply_layer(self._newest, Layer(position))
        except DiskFull:
            if self._replayed_bytes_max is not None and self._newest.live_bytes > self._replayed_bytes_max:
                raise
            return
        self._newest = Layer(position)
        self._layers = (self._newest,)

    # Committing.

    def commit(self, changes: Changes) -> None:
        """Make the changes durable, all or nothing."""
        if not (changes.chunks or changes.records or changes.dropped):
            return
        ahead = self._ahead
        if self._failure is not None:
            self._refuse_after_failure()
        layers = self._layers
        if layers[0].live_bytes + (layers[1].live_bytes if len(layers) > 1 else 0) > self._options.unapplied_bytes_max:
            self._wait_for_applier()
        put_bytes = 0
        for chunk in changes.chunks.values():
            if chunk is not None:
                put_bytes += chunk.nbytes
        if put_bytes:
            if self._no_room is not None and self._applier is None:
                self._apply_or_note()
            if self._no_room is not None:
                raise DiskFull(str(self._no_room)) from self._no_room
            if self._options.content_bytes_max is not None:
                self._check_content(put_bytes, self._options.content_bytes_max)
            self._unchecked_bytes += put_bytes
            if self._unchecked_bytes >= SPACE_CHECK_BYTES:
                self._check_disk(put_bytes)
                self._unchecked_bytes = 0
        if ahead is not None and ahead.is_wanted:
            ahead.before_sync()
        try:
            position = self._journal.append(changes)
        except CommitFailed as error:
            self._failure = error
            raise
        with self._lock:
            newest = self._newest
            first = not (newest.chunks or newest.records or newest.dropped)
            if first:
                self._first_commit_at = time.monotonic()
            newest.absorb(changes, position)
            self._stats.commits += 1
            due = newest.live_bytes + newest.written_bytes >= self._due_from_bytes and self._is_due(newest)
            if first or due:
                self._changed.notify_all()
        if ahead is not None and ahead.lanes and (changes.chunks or changes.dropped):
            ahead.forget(changes.chunks, changes.dropped)
        if due and self._applier is None:
            self._apply_or_note()

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure

    def _is_due(self, newest: Layer) -> bool:
        options = self._options
        live_bytes, written_bytes = newest.live_bytes, newest.written_bytes
        if live_bytes >= options.apply_live_bytes or written_bytes >= options.apply_written_bytes:
            return True
        return written_bytes >= options.apply_dead_bytes and written_bytes >= DEAD_TO_LIVE * live_bytes

    def _unapplied_bytes(self) -> int:
        return sum(layer.live_bytes for layer in self._layers)

    def _wait_for_applier(self) -> None:
        if self._applier is None:
            self._apply_or_note()
            return
        with self._changed:
            self._stats.commits_waited += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._no_room or self._failure or not self._is_over_bound())
        self._refuse_after_failure()

    def _is_over_bound(self) -> bool:
        return self._unapplied_bytes() > self._options.unapplied_bytes_max

    # Space.

    def _check_content(self, put_bytes: int, content_bytes_max: int) -> None:
        content_bytes = self._table.used_bytes + self._unapplied_bytes()
        if content_bytes + put_bytes > content_bytes_max:
            raise DiskFull(
                f"the content of {self._directory} takes {content_bytes} bytes; {put_bytes} more would exceed the "
                f"limit of {content_bytes_max}. The commit was not written. Receive or delete messages, or raise the "
                "limit."
            )

    def _check_disk(self, put_bytes: int) -> None:
        if self._disk is None or self._directory is None:
            return
        if not self._has_space(self._disk.free_bytes(self._directory), put_bytes):
            self._apply_or_note()
            self._give_back_everything()
            free_bytes = self._disk.free_bytes(self._directory)
            if not self._has_space(free_bytes, put_bytes):
                raise DiskFull(
                    f"{free_bytes} bytes are free for {self._directory}: a commit of {put_bytes} would use up the "
                    f"reserve of {self._options.disk_reserve_bytes}. The commit was not written. Free some space and "
                    "try again: no restart is needed."
                )

    def _has_space(self, free_bytes: int, put_bytes: int) -> bool:
        """Whether what is not applied yet fits, first into the table's WAL and then into the table."""
        coming_bytes = self._unapplied_bytes() + put_bytes
        promised_bytes = coming_bytes + max(0, coming_bytes - self._table.reusable_bytes)
        return free_bytes - promised_bytes >= self._options.disk_reserve_bytes

    # Applying.

    def apply_now(self) -> None:
        """Bring the table up to the last commit. Raises `DiskFull` if there is no room."""
        with self._apply_lock:
            older, newest = self._close_layer()
            if older is None:
                return
            self._apply_layer(older, newest)
            if self._ahead is not None:
                self._ahead.table_changed()
            with self._changed:
                self._layers = (newest,)
                self._no_room = None
                self._changed.notify_all()
        self._journal.trim(older.position)

    def _close_layer(self) -> tuple[Layer | None, Layer]:
        """The layer to apply, and the one that takes commits from now on."""
        with self._changed:
            if len(self._layers) == 1 and self._newest:
                self._newest = Layer(self._newest.position)
                self._layers = (self._newest, *self._layers)
            return (self._layers[1] if len(self._layers) > 1 else None), self._newest

    def _apply_layer(self, older: Layer, newest: Layer) -> None:
        try:
            died = self._apply_lasting(older, newest)
        except DiskFull:
            self._make_room(older)
            died = self._apply_lasting(older, newest)
        if self._ballast is not None:
            self._ballast.take_on(self._options.disk_reserve_bytes)
        self._stats.chunks_died_young += older.chunks_died + len(died)
        self._stats.chunks_applied += older.chunks_put - len(died)
        self._stats.transactions += 1  # last: who sees it counted sees the rest

    def _apply_lasting(self, older: Layer, newest: Layer) -> list[bytes]:
        """Apply a layer without the chunks that died meanwhile; these are the answer."""
        died: list[bytes] = []
        chunks = _lasting_chunks(older, newest, died)
        self._table.apply(older.position, older.dropped, chunks, older.records.items())
        return died

    def _make_room(self, layer: Layer) -> None:
        """Apply what a layer deletes, and nothing else: it is an early part of the same changes."""
        if self._ballast is not None:
            self._ballast.throw_out()
        deleted = [key for key, chunk in layer.chunks.items() if chunk is None]
        records = [(key, None) for key, value in layer.records.items() if value is None]
        self._table.apply(None, layer.dropped, [], records)
        for start in range(0, len(deleted), DELETIONS_PER_TRANSACTION):
            some = deleted[start : start + DELETIONS_PER_TRANSACTION]
            self._table.apply(None, [], [(key, None) for key in some], [])
        while self._table.give_back(everything=True):
            pass

    def _give_back_everything(self) -> None:
        try:
            with self._apply_lock:
                while self._table.give_back(everything=True):
                    pass
        except DiskFull:
            return
        except StoreError as error:
            self._fail(error)

    def _apply_or_note(self) -> None:
        try:
            self.apply_now()
        except DiskFull as error:
            self._note_no_room(error)
        except Exception as error:  # nobody waits in vain for an applier that is gone
            self._fail(error)

    def _note_no_room(self, error: DiskFull) -> None:
        with self._changed:
            self._no_room = error
            self._no_room_at = time.monotonic()
            self._stats.apply_failures += 1
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        """Refuse every commit from now on. What was committed is in the journal: opening again starts from there."""
        failure = error if isinstance(error, (CommitFailed, StoreDamaged)) else CommitFailed(_not_applied(error))
        failure.__cause__ = error.__cause__ if failure is error else error
        with self._changed:
            self._failure = failure
            self._stats.apply_failures += 1
            self._changed.notify_all()

    def _apply_when_due(self) -> None:
        while self._wait_until_due():
            self._apply_or_note()
            self._give_back_while_idle()

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._stopping and self._failure is None:
                seconds = self._seconds_until_due()
                if seconds is not None and seconds <= 0:
                    return True
                self._changed.wait(seconds)
            return False

    def _seconds_until_due(self) -> float | None:
        """How long the applier may rest; None until somebody wakes it."""
        if self._no_room is not None:
            return self._no_room_at + RETRY_SECONDS - time.monotonic()
        if len(self._layers) > 1 or self._is_due(self._newest) or self._is_over_bound():
            return 0.0
        if not self._newest:
            return None
        return self._first_commit_at + self._options.apply_after_seconds - time.monotonic()

    def _give_back_while_idle(self) -> None:
        more = True
        while more and not self._stopping and self._failure is None and not self._is_due(self._newest):
            try:
                with self._apply_lock:
                    more = self._table.give_back()
            except DiskFull:
                return
            except StoreError as error:
                self._fail(error)

    # Reading.

    def read_chunk(self, key: bytes) -> Buffer:
        for layer in self._layers:
            chunk = layer.chunk(key)
            if chunk is Missing.GONE:
                raise KeyError(key)
            if chunk is not Missing.ASK_BELOW:
                return joined(chunk)
        return (self._ahead or self._table).read_chunk(key)

    def _is_hidden(self, key: bytes) -> bool:
        return any(layer.hides_chunk(key) for layer in self._layers)

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        with self._changed:
            return list_chunks(self._layers, self._table, prefix, start, limit)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order, as they are at the call."""
        with self._changed:
            return scan(self._layers, self._table, prefix)

    def flaws(self) -> Sequence[Flaw]:
        return self._flaws

    # The rest.

    @property
    def failure(self) -> StoreError | None:
        """Why every commit is refused; None if none is, as far as it was noticed."""
        return self._failure or getattr(self._journal, "failure", None)

    def check_place(self) -> None:
        """Raise `DirectoryMoved` if the path no longer leads to the directory that was opened."""
        if not self._closed and isinstance(self._journal, FileJournal):
            self._journal.check_place()

    @property
    def stats(self) -> StoreStats:
        return replace(self._stats, unapplied_bytes=self._unapplied_bytes())

    def close(self, *, apply: bool = True) -> None:
        """Bring the table up to date, and let go of files and locks. Without `apply`, the next opening replays the
        journal.
        """
        if self._closed:
            return
        try:
            self.check_place()
        except DirectoryMoved as error:
            self._failure = self._failure or error
        self._closed = True
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._applier is not None:
            self._applier.join()
        if apply and self._failure is None:
            with contextlib.suppress(StoreError):
                self.apply_now()
        self._failure = self._failure or CommitFailed(f"the store in {self._directory} is closed")
        self._journal.close()
        if self._ahead is not None:
            self._ahead.close()
        self._table.close()
        if self._directory_lock is not None:
            self._directory_lock.release()


def _lasting_chunks(older: Layer, newest: Layer, died: list[bytes]) -> Iterator[tuple[bytes, Buffer | None]]:
    for key, chunk in older.chunks.items():
        if chunk is None:
            yield key, None
        elif newest.hides_chunk(key):
            died.append(key)
        else:
            yield key, joined(chunk)


def open_store(
    directory: str | Path,
    *,
    read_only: bool = False,
    options: StoreOptions | None = None,
    disk: Disk | None = None,
    background: bool = True,
) -> Store:
    """Open a data directory, making it if it is not there.

    With `read_only`, another process may go on writing: the store shows one consistent state, and a newer one after
    `refresh()`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = open_store(directory)
    ...     changes = Changes()
    ...     changes.put_record(b"color/sky", b"blue")
    ...     store.commit(changes)
    ...     store.close()
    ...     dict(open_store(directory, read_only=True).scan(b""))
    {b'color/sky': b'blue'}
    """
    refuse_several_shards(Path(directory))
    if read_only:
        return StoreView(Path(directory), disk=disk)
    return open_embedded(directory, options=options, disk=disk, background=background)


def open_embedded(
    directory: str | Path,
    *,
    options: StoreOptions | None = None,
    disk: Disk | None = None,
    background: bool = True,
    known: Known | None = None,
) -> EmbeddedStore:
    """Open a data directory for writing, making it if it is not there. One that is `known` has to be there."""
    directory = Path(directory)
    refuse_cache(directory)
    refuse_incomplete(directory)
    options = options or StoreOptions()
    with contextlib.ExitStack() as opened:
        try:
            if known is None:
                (disk or RealDisk()).make_directory(directory)
            else:
                known.check(directory)
            lock = DirectoryLock(directory)
            opened.callback(lock.release)
            disk = disk or RealDisk(directory, lock.descriptor)
            _expect_table(directory, disk)
            restrict(directory)
            table = SqliteTable(directory / TABLE_NAME, check_place=lock.check)
            opened.callback(table.close)
            if known is not None and table.identity != known.table:
                raise directory_moved(directory, "another store is there now")
            journal = FileJournal(
                disk,
                directory / JOURNAL_NAME,
                table.identity,
                segment_bytes=options.segment_bytes,
                background=background,
                is_expected=table.had_journal,
                lock=lock if isinstance(disk, RealDisk) else None,
            )
            opened.callback(journal.close)
            store = EmbeddedStore(
                journal, table, options, disk=disk, directory=directory, lock=lock, background=background
            )
            table.note_journal()
            store.known = Known(os.fstat(lock.descriptor), table.identity)
            journal.check_place()
        except OSError as error:
            raise _cannot_open(directory, error) from error
        opened.pop_all()
        return store


class Known(NamedTuple):
    """By what a store is known that was open before."""

    directory: os.stat_result
    table: int

    def check(self, directory: Path) -> None:
        """Raise `DirectoryMoved` if a path does not lead to the directory, or the table is not in it."""
        try:
            is_there = os.path.samestat(directory.stat(), self.directory)
        except (FileNotFoundError, NotADirectoryError):
            raise directory_moved(directory, "it is not there any more") from None
        if not is_there:
            raise directory_moved(directory, "its name leads to another directory now")
        if not (directory / TABLE_NAME).exists():
            raise directory_moved(directory, f"{directory / TABLE_NAME} was deleted")


class StoreOpener:
    """Opens the store in a directory for writing; and again, when it has failed: then it has to be the same one."""

    def __init__(self, directory: Path, options: StoreOptions | None = None) -> None:
        self._directory = directory
        self._options = options
        self._known: Known | None = None

    def __call__(self) -> Store:
        refuse_several_shards(self._directory)
        store = open_embedded(self._directory, options=self._options, known=self._known)
        self._known = store.known
        return store


def refuse_several_shards(directory: Path) -> None:
    """A directory whose stores are below it is no store."""
    check_readable(directory)
    if (directory / CLUSTER_NAME).exists():
        raise StoreError(
            f"{directory} has several shards, so it cannot be opened directly: serve it (penstock serve --data), and "
            "use the server"
        )


def _not_applied(error: Exception) -> str:
    return (
        f"committed changes could not be brought into the table ({type(error).__name__}: {error}). They are safe in "
        "the journal: open the store again."
    )


def _expect_table(directory: Path, disk: Disk) -> None:
    """A journal, or a ballast, is made after the table: where one is, the table has to be."""
    if TABLE_NAME in disk.names(directory):
        return
    journal = directory / JOURNAL_NAME
    names = disk.names(directory)
    if BALLAST_NAME in names or (JOURNAL_NAME in names and segment_sequences(disk.names(journal))):
        raise StoreDamaged(
            f"table {directory / TABLE_NAME} is missing, and other files of the store are there. {ADVICE}"
        )


def _cannot_open(directory: Path, error: OSError) -> StoreError:
    if is_full(error):
        return DiskFull(f"no room to open {directory} ({error}). Free some space and try again.")
    if error.errno == errno.EIO:
        path = error.filename or directory
        return DiskFailed(f"{path} cannot be read ({error.strerror}): look at the disk. Nothing was changed.")
    return StoreError(cannot_open(directory, error))
