"""What goes wrong around a store, and what is said of it: locks, rights, views, tables and segments."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ChunkDamaged, StoreError
from penstock.store import layout as private
from penstock.store import table as table_module
from penstock.store import view as view_module
from penstock.store.disk import RealDisk
from penstock.store.embedded import StoreOptions, open_embedded
from penstock.store.errors import CommitFailed, DiskFull, StoreDamaged, StoreLocked
from penstock.store.inspection import inspect, seal_of, seal_of_meta, sealed_meta
from penstock.store.journal.file import FileJournal
from penstock.store.layout import JOURNAL_NAME, LOCK_NAME, TABLE_NAME
from penstock.store.lock import DirectoryLock
from penstock.store.memory import MemoryStore
from penstock.store.table import SqliteTable, connect, translate
from penstock.store.view import StoreView
from tests.store.conformance import changes_of
from tests.store.faulty_disk import FaultyDisk
from tests.store.in_memory import twin_of

QUIET = StoreOptions(apply_after_seconds=1000.0)


# -- locks and rights --


def test_a_file_system_that_locks_files_only_is_locked_by_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def files_only(descriptor: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOLCK, "no locks for directories")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", files_only)
    held = DirectoryLock(tmp_path)
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        DirectoryLock(tmp_path)
    held.release()
    DirectoryLock(tmp_path).release()


def test_a_full_disk_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    held = DirectoryLock(tmp_path)
    with pytest.raises(StoreLocked, match="is in use by another process"):
        DirectoryLock(tmp_path)
    held.release()


def test_a_lock_that_cannot_be_made_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError):
        DirectoryLock(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_may_not_read_a_directory_is_told_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_embedded(tmp_path).close()
    private.check_readable(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.F_OK)
    with pytest.raises(StoreError, match=rf"this user may not read {tmp_path}: .* \(number {os.getuid()}\)"):
        private.check_readable(tmp_path)


def test_a_file_that_is_there_is_not_opened_to_make_it(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"content")
    private.make_file(tmp_path / "t")
    private.make_file(tmp_path / "nowhere" / "t")
    assert (tmp_path / "t").read_bytes() == b"content"


# -- views --


def test_a_view_gives_up_on_a_directory_that_never_makes_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_embedded(tmp_path).close()
    monkeypatch.setattr(view_module, "ATTEMPTS_MAX", 3)
    monkeypatch.setattr(view_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(view_module, "read_meta", lambda *_: {})
    with pytest.raises(StoreError, match=r"no consistent state .* in 3 attempts; the last said: .* is being created"):
        StoreView(tmp_path)


def test_a_view_says_what_sqlite_said_and_lets_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_embedded(tmp_path).close()

    def fails(*_: object) -> dict[str, int]:
        raise sqlite3.DatabaseError("it went up in smoke")

    monkeypatch.setattr(view_module, "read_meta", fails)
    with pytest.raises(StoreError, match="it went up in smoke"):
        StoreView(tmp_path)

    def interrupted(*_: object) -> dict[str, int]:
        raise KeyboardInterrupt

    monkeypatch.setattr(view_module, "read_meta", interrupted)
    with pytest.raises(KeyboardInterrupt):
        StoreView(tmp_path)


def test_a_view_that_was_closed_says_so(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"a": b"1"}))
    store.apply_now()
    store.commit(changes_of({b"b": b"2", b"a": None}))
    store.close(apply=False)
    view = StoreView(tmp_path)
    assert (view.position, view.stats.commits, view.flaws()) == (2, 0, [])
    assert bytes(view.read_chunk(b"b")) == b"2"
    with pytest.raises(KeyError):
        view.read_chunk(b"a")
    view.close()
    with pytest.raises(StoreError, match="is closed"):
        view.read_chunk(b"c")


def test_a_view_of_a_table_out_of_order_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_embedded(tmp_path).close()
    monkeypatch.setattr(view_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(view_module, "inspect", lambda *given: inspect(*given)._replace(misplaced=True))
    with pytest.raises(StoreDamaged, match="records are out of order"):
        StoreView(tmp_path)


# -- the table --


def spoil(path: Path, statement: str, *arguments: Any) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    assert connection.execute(statement, arguments).rowcount >= 1
    connection.close()


def error_of(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("it is so")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_FULL", DiskFull),
        ("SQLITE_CORRUPT", StoreDamaged),
        ("SQLITE_READONLY_DBMOVED", StoreLocked),
        ("SQLITE_MISUSE", StoreError),
    ],
)
def test_errors_of_sqlite_are_said_in_the_words_of_the_store(name: str, kind: type[StoreError]) -> None:
    said = translate(error_of(name), Path("t"))
    assert type(said) is kind and "it is so" in str(said)


def test_a_schema_that_is_no_text_is_damage() -> None:
    error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    assert isinstance(translate(error, Path("t")), StoreDamaged)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE meta SET value = value + 1 WHERE name = 'identity'", "entry 'identity' of its meta table is damaged"),
        ("DELETE FROM meta WHERE name = 'position'", "entry 'position' of its meta table is missing"),
        ("DROP TABLE meta", "it has no meta table"),
    ],
)
def test_a_table_whose_own_entries_are_damaged_is_refused(tmp_path: Path, statement: str, words: str) -> None:
    SqliteTable(tmp_path / "t").close()
    connection = sqlite3.connect(tmp_path / "t", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with pytest.raises(StoreDamaged, match=words):
        SqliteTable(tmp_path / "t")


def test_names_of_entries_are_checked_as_texts(tmp_path: Path) -> None:
    SqliteTable(tmp_path / "t").close()
    plain = sqlite3.connect(tmp_path / "t")
    assert sealed_meta(plain, "t")["schema_version"] == table_module.SCHEMA_VERSION
    plain.close()
    assert seal_of_meta("position", -1) != seal_of_meta("position", 1)


def test_a_record_that_is_damaged_while_the_table_is_open_is_an_error(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")
    table.apply(1, [], [], [(b"\x0ca", b"1"), (b"\x0cb", b"2")])
    spoil(tmp_path / "t", "UPDATE records SET value = x'00' WHERE key = ?", b"\x0cb")
    with pytest.raises(StoreDamaged, match="was not when the table was opened"):
        list(table.scan(b"", None))
    table.close()
    again = SqliteTable(tmp_path / "t")
    assert list(again.scan(b"", None)) == [(b"\x0ca", b"1")], "it is known by now, and left out"
    assert again.flaws()
    again.close()


def test_damage_of_a_table_that_is_a_cache_is_told_and_is_no_damaged_chunk(tmp_path: Path) -> None:
    told: list[str] = []
    table = SqliteTable(tmp_path / "t", on_damage=lambda: told.append("damaged"))
    table.apply(1, [], [(b"a", b"x" * 10_000), (b"b", b"y" * 10_000)], [])
    reads = table_module.TableReads.read_chunk

    def fails(self: table_module.TableReads, key: bytes) -> bytes:
        if key == b"a":
            raise ChunkDamaged("the table is damaged where this chunk is stored")
        if key == b"b":
            raise error_of("SQLITE_CORRUPT")
        return reads(self, key)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_module.TableReads, "read_chunk", fails)
        for key in (b"a", b"b"):
            with pytest.raises(StoreDamaged):
                table.read_chunk(key)
    assert told == ["damaged", "damaged"]
    assert table.read_chunk(b"a") == b"x" * 10_000
    table.close()


def test_a_damaged_page_is_a_damaged_chunk_and_other_errors_are_not(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")
    table.apply(1, [], [(b"a", b"x")], [])
    connection = connect(f"{(tmp_path / 't').as_uri()}?mode=ro")

    class Failing:
        in_transaction = True

        def __init__(self, error: sqlite3.Error) -> None:
            self._error = error

        def execute(self, *_: object) -> Any:
            raise self._error

    for name, kind in (("SQLITE_CORRUPT", ChunkDamaged), ("SQLITE_BUSY", sqlite3.OperationalError)):
        with pytest.raises(kind):
            table_module.TableReads(Failing(error_of(name))).read_chunk(b"a")  # type: ignore[arg-type]
    connection.execute("BEGIN")
    assert table_module.TableReads(connection).read_chunk(b"a") == b"x", "within a transaction of somebody else's"
    connection.close()
    table.close()


def test_an_index_that_leads_to_another_chunk_is_damage(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")
    table.apply(1, [], [(b"a", b"x")], [])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_module, "_FIND_CHUNK", "SELECT id, x'62', body FROM chunks WHERE key = ?")
        with pytest.raises(ChunkDamaged, match="leads to another chunk"):
            table.read_chunk(b"a")
    table.close()


def test_sealing_a_large_old_table_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_module, "SEALING_TOLD_RECORDS", 1)
    monkeypatch.setattr(table_module, "SEALED_VERSION", 3)
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(table_module, "MIGRATIONS", table_module.MIGRATIONS[:1])
        earlier.setattr(table_module, "SCHEMA_VERSION", 1)
        earlier.setattr(SqliteTable, "_look_over", lambda self, meta: None)
        SqliteTable(tmp_path / "t").close()
    spoil(tmp_path / "t", "INSERT INTO records (key, value) VALUES (x'0c61', x'31'), (x'0c62', x'32')")
    monkeypatch.undo()
    monkeypatch.setattr(table_module, "SEALING_TOLD_RECORDS", 1)
    with caplog.at_level("INFO", logger="penstock.store"):
        table = SqliteTable(tmp_path / "t")
    assert "adding checksums to 2 records" in caplog.text
    assert dict(table.scan(b"", None)) == {b"\x0ca": b"1", b"\x0cb": b"2"}
    assert seal_of(b"a", b"b") != seal_of(b"b", b"a")
    table.close()


# -- files and segments --


def test_room_that_is_not_there_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    file = disk.open(tmp_path / "f", writable=True, create=True)
    file.reserve(1000)
    file.reserve(10)
    assert file.size() == 1000

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.reserve(5000)
    assert file.size() == 1000
    file.reserve(6000, zeros=False)
    assert (file.size(), file.read(9000, 0)) == (6000, bytes(6000))
    file.close()


def journal_on(disk: FaultyDisk) -> FileJournal:
    journal = FileJournal(
        disk, Path("/journal"), 7, segment_bytes=8192, first_segment_bytes=8192, headroom_bytes=0, background=False
    )
    assert list(journal.replay(0)) == []
    return journal


def failing(wanted: str, error: Exception) -> Callable[[str, Path], None]:
    def fail(operation: str, path: Path) -> None:
        if operation == wanted:
            raise error

    return fail


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk does not answer"), RuntimeError("a bug")])
def test_room_that_cannot_be_made_for_another_reason_than_space_ends_the_journal(error: Exception) -> None:
    disk = FaultyDisk()
    journal = journal_on(disk)
    journal.append(changes_of({b"a": b"x" * 4000}))
    disk.on_operation = failing("reserve", error)
    with pytest.raises(CommitFailed, match="making room in /journal failed"):
        journal.append(changes_of({b"b": b"x" * 7000}))
    disk.on_operation = lambda operation, path: None
    with pytest.raises(CommitFailed, match="Open the store again"):
        journal.append(changes_of({b"c": b"x"}))
    journal.close()
    again = FileJournal(disk, Path("/journal"), 7, segment_bytes=8192, first_segment_bytes=8192, background=False)
    assert [number for number, _ in again.replay(0)] == [1]
    assert again.nbytes >= 8192
    again.close()


def test_a_mark_that_cannot_be_written_costs_nothing() -> None:
    disk = FaultyDisk()
    journal = journal_on(disk)
    writes = iter(range(100))

    def every_second(operation: str, path: Path) -> None:
        if operation == "write" and next(writes) % 2:
            raise OSError(errno.EIO, "the disk does not answer")

    disk.on_operation = every_second
    assert journal.append(changes_of({b"a": b"x"})) == 1
    disk.on_operation = lambda operation, path: None
    assert journal.append(changes_of({b"b": b"x"})) == 2
    journal.close()


def test_a_store_in_memory_has_no_flaws_and_its_copy_is_its_own() -> None:
    store = MemoryStore()
    store.commit(changes_of({b"a": b"1"}, {b"r": b"1"}))
    twin = twin_of(store)
    store.commit(changes_of({b"a": None}, {b"r": None, b"s": b"2"}))
    assert (store.list_chunks(b"", b"", 9), list(store.scan(b""))) == ([], [(b"s", b"2")])
    assert (bytes(twin.read_chunk(b"a")), list(twin.scan(b""))) == (b"1", [(b"r", b"1")])
    assert (store.flaws(), store.stats.commits) == ([], 2)
    store.close()


def test_a_directory_without_its_journal_is_refused(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"a": b"1"}))
    store.close()
    for segment in (tmp_path / JOURNAL_NAME).iterdir():
        segment.unlink()
    with pytest.raises(StoreDamaged, match="is missing"):
        open_embedded(tmp_path)
    assert (tmp_path / TABLE_NAME).exists()
