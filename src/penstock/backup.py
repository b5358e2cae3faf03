"""Copying a data directory while a server serves from it: `penstock store backup`.

How it works. A store is a table and a journal, and the writer changes both: it appends commits to the journal, applies
them to the table in the background, and then uses the journal's files again. A backup wants both as of one moment:

1. A read transaction on the table fixes its pages, and the position up to which commits are in them. In SQLite's WAL
   mode a writer goes on beside it; what the transaction may still read is kept.
2. Only then are the journal's files read. A file is used again only after the table has reached its last commit, so
   everything behind the position is there, unless the writer has got so far meanwhile. In that case, or if a commit
   was being written while it was read, the commits behind the position do not follow each other: both steps are done
   again. `StoreView` does that for every reader; here the bytes that it has read are kept, too.
3. The journal's bytes are written first, then the table's pages, out of that same transaction, however long it takes.

So the copy is the directory as a crash at the moment of step 2 would have left it, and opens as after a crash.
Everything that was acknowledged before the command began is in it: an acknowledgement waits for the journal, and the
journal was read later. Of what happened meanwhile, a part is in it: what came first. Nothing is written to the source.

A directory with several shards has a store for each. All of them are fixed before the first one is
copied, and each is consistent by itself. What one shard wants done in another (dead letters, units of work over several
shards) is in its outbox until the other one has done it: then it is forgotten. A copy may have it at both ends; the
mark of the outbox says that it was done, and it is not done twice. It must not have it at neither end. So the outboxes
are compared with the marks. A shard that was fixed before it did what another one has already forgotten is fixed again,
until there is none. Under much traffic between shards in both directions that may not come to an end within
`ROUNDS_MAX` rounds; then the backup is refused.

The copy is looked over as `penstock store check` does. Until that is done, a file in it keeps it from being opened.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.core.errors import NotFound, PenstockError, StoreError
from penstock.core.storage import keys
from penstock.core.storage.keys import Kind
from penstock.core.storage.records import Mark, Meta, OutboxTarget
from penstock.raw_directory import Finding, without_advice
from penstock.salvage import look_over, stores_in
from penstock.store.journal.walk import Walk
from penstock.store.layout import (
    BACKUP_INCOMPLETE_NAME,
    CLUSTER_NAME,
    DIRECTORY_MODE,
    FILE_MODE,
    JOURNAL_NAME,
    TABLE_NAME,
    is_store,
    make_file,
    mark_incomplete,
)
from penstock.store.lock import refuse_cache, refuse_incomplete
from penstock.store.table import SQLITE_ERRORS, connect, translate
from penstock.store.view import StoreView

ROUNDS_MAX = 100
_PAGES_PER_STEP = 1_000
_OUTBOX_MARKS = 1
"""Where a shard keeps how far it is with the outboxes of others: see `core/handlers/once.py`."""

Progress = Callable[[float, float | None], None]
"""Told how many bytes are copied, and of how many."""


class BackedUp(msgspec.Struct):
    """What a backup copied."""

    stores: int = 0
    bytes: int = 0
    seconds: float = 0.0
    findings: list[Finding] = []
    """What is damaged in the copy: it was so in the directory."""


def back_up(source: Path, target: Path, progress: Progress = lambda done, total: None) -> BackedUp:
    """Copy a data directory, which a server may have open, to a new one, and look the copy over.

    >>> import tempfile
    >>> from penstock.store.embedded import open_embedded
    >>> with tempfile.TemporaryDirectory() as made:
    ...     open_embedded(Path(made) / "data").close()
    ...     back_up(Path(made) / "data", Path(made) / "copy").findings
    []
    """
    began_s = time.monotonic()
    stores = _stores_of(source)
    _check_target(source, target)
    with contextlib.ExitStack() as opened:
        fixed = [opened.enter_context(contextlib.closing(_Fixed(store))) for store in stores]
        _bring_together(fixed)
        try:
            copied = _copy(source, fixed, target, progress)
        except (PenstockError, OSError) as error:
            reason = without_advice(error)
            if isinstance(error, OSError) and error.filename is not None:
                reason = f"{error.filename}: {error.strerror}."
            is_begun = (target / BACKUP_INCOMPLETE_NAME).exists()
            advice = f" {target} is incomplete: delete it, and start again." if is_begun else ""
            raise StoreError(reason + advice) from error
    for store in stores:
        name = "" if store == source else f"{store.name}: "
        found = look_over(target / store.relative_to(source))
        copied.findings += [msgspec.structs.replace(each, where=name + each.where) for each in found]
    (target / BACKUP_INCOMPLETE_NAME).unlink()
    _sync(target)
    copied.seconds = time.monotonic() - began_s
    return copied


def _stores_of(source: Path) -> list[Path]:
    if not source.is_dir():
        raise NotFound(f"there is no directory {source}")
    refuse_cache(source)
    refuse_incomplete(source)
    stores = stores_in(source)
    for store in stores:
        if not is_store(store):
            raise StoreError(f"{store} holds no store: there is no {TABLE_NAME} and no {JOURNAL_NAME} in it")
    return stores


def _check_target(source: Path, target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise StoreError(f"{target} is a file: name a directory that is new, or empty")
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} is not empty: name a directory that is new, or empty")
    if target.resolve().is_relative_to(source.resolve()):
        raise StoreError(f"{target} is inside {source}: name a directory elsewhere")


# -- one moment --------------------------------------------------------------------------------------------------------


class _Fixed(StoreView):
    """A store as of one moment: its table in a read transaction, and the files of its journal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, bytes] = {}
        self._walked: Walk | None = None
        super().__init__(directory)

    def _walk(self, position: int, identity: int) -> Walk:
        self._files = {}
        self._walked = super()._walk(position, identity)
        return self._walked

    def _read_file(self, path: Path) -> bytes:
        data = self._files[path] = super()._read_file(path)
        return data

    def take_segments(self) -> Iterator[tuple[str, bytes]]:
        """The journal's files that have something in them that the table does not have, and the one behind them.

        The others only wait to be used again. What was taken is not kept.
        """
        walked = self._walked
        assert walked is not None
        wanted = {walked.tail, walked.tail + 1}
        wanted |= {index for index, last in enumerate(walked.last_numbers) if last > walked.after}
        for index, path in enumerate(walked.paths):
            if index in wanted:
                yield path.name, self._files[path]
        self._files, self._walked = {}, None

    @property
    def table(self) -> sqlite3.Connection:
        """The table, in the transaction."""
        assert self._connection is not None
        return self._connection

    def meta(self) -> Meta | None:
        """The store's own record; None in a store that was never used."""
        for _, value in self.scan(keys.record(Kind.META)):
            return msgspec.msgpack.decode(value, type=Meta)
        return None

    def forgotten(self) -> dict[int, int]:
        """For each shard that this one's outbox has had something for: the last number that is forgotten here."""
        targets = self.scan(bytes([Kind.OUTBOX_TARGET]))
        return {
            keys.number_of(key): msgspec.msgpack.decode(value, type=OutboxTarget).first - 1 for key, value in targets
        }

    def done(self) -> dict[str, int]:
        """For each outbox of others: the last number that was done here."""
        marks = self.scan(keys.record(Kind.MARK, _OUTBOX_MARKS))
        return {key[9:].decode(): msgspec.msgpack.decode(value, type=Mark).number for key, value in marks}


def _bring_together(fixed: list[_Fixed]) -> None:
    """Fix shards again until none lacks what another one has forgotten."""
    if len(fixed) == 1:
        return
    for _ in range(ROUNDS_MAX):
        late = _late(fixed)
        if not late:
            return
        for store in late:
            store.refresh()
    raise StoreError(
        f"{fixed[0].directory.parent}: messages moved between shards all the time, so no moment was found in which "
        "all stores fit together. Nothing was copied. Try again, or stop the server for the backup"
    )


def _late(fixed: list[_Fixed]) -> list[_Fixed]:
    by_shard = {meta.shard: (meta, store) for store in fixed if (meta := store.meta()) is not None}
    late: dict[_Fixed, None] = {}
    for meta, store in by_shard.values():
        for shard, number in store.forgotten().items():
            _, other = by_shard.get(shard, (None, None))
            if other is not None and other.done().get(f"{meta.shard} {meta.made_ms}", -1) < number:
                late[other] = None
    return list(late)


# -- copying -----------------------------------------------------------------------------------------------------------


def _copy(source: Path, fixed: list[_Fixed], target: Path, progress: Progress) -> BackedUp:
    target.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    os.chmod(target, DIRECTORY_MODE)
    mark_incomplete(target / BACKUP_INCOMPLETE_NAME)
    _sync(target)
    copied = BackedUp(len(fixed))
    total = sum(_size(store.directory / TABLE_NAME) for store in fixed)
    for store in fixed:  # the journals first: they are in memory
        journal = target / store.directory.relative_to(source) / JOURNAL_NAME
        journal.parent.mkdir(DIRECTORY_MODE, exist_ok=True)
        journal.mkdir(DIRECTORY_MODE)
        for name, data in store.take_segments():
            _write(journal / name, data)
            copied.bytes += len(data)
            total += len(data)
        _sync(journal)
    for store in fixed:
        place, before = target / store.directory.relative_to(source), copied.bytes

        def told(done: int, before: int = before) -> None:
            progress(before + done, total)

        copied.bytes += _copy_table(store, place / TABLE_NAME, told)
        _sync(place)
    if fixed[0].directory != source:
        _write(target / CLUSTER_NAME, (source / CLUSTER_NAME).read_bytes())
    progress(copied.bytes, copied.bytes)
    return copied


def _copy_table(store: _Fixed, path: Path, told: Callable[[int], None]) -> int:
    make_file(path)
    (page_bytes,) = store.table.execute("PRAGMA page_size").fetchone()
    try:
        with contextlib.closing(connect(path.absolute().as_uri())) as copy:
            store.table.backup(
                copy, pages=_PAGES_PER_STEP, progress=lambda _, left, pages: told((pages - left) * page_bytes)
            )
    except SQLITE_ERRORS as error:
        raise translate(error, path) from error
    return _size(path)


def _size(path: Path) -> int:
    return path.stat().st_size


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
