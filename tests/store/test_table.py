"""The SQLite table: versions, space, and what it does not read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock.core.errors import ChunkDamaged, StoreError
from penstock.core.storage.chunk import Chunk
from penstock.store import table as table_module
from penstock.store.embedded import open_store
from penstock.store.errors import DiskFailed, StoreDamaged, StoreVersion
from penstock.store.layout import TABLE_NAME
from penstock.store.table import SqliteTable
from tests.store.conformance import changes_of


def chunk_rows(count: int, nbytes: int = 100_000) -> list[tuple[bytes, bytes]]:
    body = Random(1).randbytes(nbytes)
    return [(b"q/%06d" % number, body) for number in range(count)]


def test_transaction_holds_its_position(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")
    table.apply(7, [], chunk_rows(3), [(b"r", b"v")])
    table.close()
    table = SqliteTable(tmp_path / "t")
    assert table.position == 7
    assert table.read_chunk(b"q/000002") == chunk_rows(3)[2][1]
    table.close()


def test_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")

    def rows() -> Iterator[tuple[bytes, bytes]]:
        yield b"c", b"x" * 100_000
        raise RuntimeError("the applier was stopped")

    with pytest.raises(RuntimeError):
        table.apply(7, [], rows(), [])
    assert (table.position, table.list_chunks(b"", None, 10)) == (0, [])
    table.apply(8, [], [(b"c", b"y")], [])
    assert table.read_chunk(b"c") == b"y"
    table.close()


def test_identity_is_random_and_stays(tmp_path: Path) -> None:
    first, second = SqliteTable(tmp_path / "a"), SqliteTable(tmp_path / "b")
    assert first.identity != second.identity
    first.close()
    second.close()
    again = SqliteTable(tmp_path / "a")
    assert again.identity == first.identity
    again.close()


def test_later_schema_is_refused_for_writing_and_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "MIGRATIONS", (*table_module.MIGRATIONS, ("CREATE TABLE later (x)",)))
    open_store(tmp_path).close()
    monkeypatch.undo()
    for read_only in (False, True):
        with pytest.raises(StoreVersion, match=f"schema version {table_module.SCHEMA_VERSION + 1}"):
            open_store(tmp_path, read_only=read_only)


def test_earlier_schema_is_migrated_and_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    store.commit(changes_of({b"c": b"body"}))
    store.close()
    migrations = (*table_module.MIGRATIONS, ("ALTER TABLE chunks ADD COLUMN note TEXT",))
    monkeypatch.setattr(table_module, "MIGRATIONS", migrations)
    monkeypatch.setattr(table_module, "SCHEMA_VERSION", len(migrations))
    store = open_store(tmp_path)
    assert store.read_chunk(b"c") == b"body"
    store.close()
    connection = sqlite3.connect(tmp_path / TABLE_NAME)
    assert connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (len(migrations),)
    assert connection.execute("SELECT note FROM chunks").fetchall() == [(None,)]
    connection.close()


def test_failed_migration_leaves_the_earlier_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(tmp_path).close()
    broken = (*table_module.MIGRATIONS, ("ALTER TABLE chunks ADD COLUMN note TEXT", "CREATE NONSENSE"))
    monkeypatch.setattr(table_module, "MIGRATIONS", broken)
    with pytest.raises(Exception, match="NONSENSE"):
        open_store(tmp_path)
    monkeypatch.undo()
    open_store(tmp_path).close()


@pytest.mark.parametrize("instead", [1 << 62, 12, 1.5])
def test_chunk_whose_type_was_flipped_is_damaged_whatever_it_became(tmp_path: Path, instead: object) -> None:
    """A type is a byte of the row. A number would else be taken for a length: eight exabytes of zeros."""
    table = SqliteTable(tmp_path / "t")
    table.apply(7, [], chunk_rows(3), [(b"r", b"v")])
    table.close()
    connection = sqlite3.connect(tmp_path / "t")
    connection.execute("UPDATE chunks SET body = ? WHERE key = ?", (instead, b"q/000002"))
    connection.commit()
    connection.close()
    table = SqliteTable(tmp_path / "t")
    with pytest.raises(ChunkDamaged):
        table.read_chunk(b"q/000002")
    assert table.read_chunk(b"q/000001") == chunk_rows(3)[1][1]
    table.close()


def test_file_that_is_no_table_is_an_error(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    (tmp_path / TABLE_NAME).write_bytes(b"not a database, but long enough to be taken for one" * 500)
    for read_only in (False, True):
        with pytest.raises(StoreDamaged, match=TABLE_NAME):
            open_store(tmp_path, read_only=read_only)


def test_deleting_a_big_queue_shrinks_the_file(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t", kept_free_bytes=1 << 20)
    table.apply(1, [], chunk_rows(300), [])
    full_bytes = table.used_bytes
    assert (tmp_path / "t").stat().st_size > 25_000_000
    table.apply(2, [b"q/"], [], [])
    assert table.used_bytes < full_bytes / 10
    steps = 0
    while table.give_back():
        steps += 1
    assert 2 <= steps < 30, "bounded steps, and not a page at a time"
    table.close()
    assert (tmp_path / "t").stat().st_size < 2_000_000


def test_freed_space_is_used_again_before_the_file_grows(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "t")
    rows = chunk_rows(60)
    for round_number in range(6):
        table.apply(round_number, [b"q/"], rows, [])
        table.give_back()
    table.close()
    assert (tmp_path / "t").stat().st_size < 60 * 100_000 * 2.2


def test_listing_and_opening_read_no_bodies(tmp_path: Path) -> None:
    """The index alone answers: SQLite says so itself."""
    SqliteTable(tmp_path / "t").close()
    connection = sqlite3.connect(tmp_path / "t")
    query = "EXPLAIN QUERY PLAN SELECT key FROM chunks WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
    (plan,) = [row[3] for row in connection.execute(query, (b"a", b"b", 5))]
    assert "USING COVERING INDEX" in plan
    connection.close()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_rows_in_batches_are_all_there(tmp_path: Path, count: int) -> None:
    table = SqliteTable(tmp_path / "t")
    records = [(b"r/%04d" % number, b"%d" % number) for number in range(count)]
    chunks = [(b"c/%04d" % number, b"%d" % number) for number in range(count)]
    table.apply(1, [], chunks, records)
    assert list(table.scan(b"", None)) == records
    assert table.list_chunks(b"", None, 1000) == [key for key, _ in chunks]
    table.apply(2, [], [(key, None) for key, _ in chunks[1:]], [(key, None) for key, _ in records[1:]])
    assert list(table.scan(b"", None)) == records[:1]
    assert table.list_chunks(b"", None, 1000) == [b"c/0000"]
    table.close()


def test_a_table_that_cannot_be_opened_once_more_is_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(uri: str) -> sqlite3.Connection:
        raise sqlite3.OperationalError(f"unable to open database file {uri}")

    table = SqliteTable(tmp_path / "t")
    monkeypatch.setattr(table_module, "connect", refuse)
    with pytest.raises(StoreError, match="unable to open"):
        table.read_chunk(b"c")
    monkeypatch.undo()
    table.close()


def test_table_of_the_version_without_seals_is_sealed_at_opening(tmp_path: Path) -> None:
    """As the version before wrote it. Damage from then is not seen; damage from now on is."""
    connection = sqlite3.connect(tmp_path / "t", isolation_level=None)
    for statement in table_module.MIGRATIONS[0]:
        assert isinstance(statement, str)
        connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES ('schema_version', 1)")
    connection.execute("UPDATE meta SET value = 7 WHERE name = 'position'")
    connection.execute("INSERT INTO records VALUES (?, ?)", (b"\x02" + bytes(8), b"value"))
    connection.execute("INSERT INTO chunks (key, body) VALUES (?, ?)", (bytes(8) + b"chunk", b"body"))
    connection.close()
    table = SqliteTable(tmp_path / "t")
    assert (table.position, list(table.flaws())) == (7, [])
    assert list(table.scan(b"", None)) == [(b"\x02" + bytes(8), b"value")]
    assert table.read_chunk(bytes(8) + b"chunk") == b"body"
    table.close()
    connection = sqlite3.connect(tmp_path / "t", isolation_level=None)
    connection.execute("UPDATE records SET value = ?", (b"other",))
    connection.close()
    table = SqliteTable(tmp_path / "t")
    (flaw,) = table.flaws()
    assert (flaw.group, flaw.keys) == (bytes(8), (b"\x02" + bytes(8),))
    table.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SQLITE_IOERR_READ", DiskFailed), ("SQLITE_IOERR_SHORT_READ", DiskFailed), ("SQLITE_CORRUPT", StoreDamaged)],
)
def test_disk_that_cannot_be_read_is_neither_full_nor_damaged(name: str, kind: type[StoreError]) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    said = table_module.translate(error, Path("data/table.sqlite"))
    assert type(said) is kind
    assert "data/table.sqlite" in str(said)
    assert ("backup" in str(said)) == (kind is StoreDamaged)


def test_a_cache_whose_chunk_has_rotted_says_so_and_is_of_no_use_any_more(tmp_path: Path) -> None:
    """Its body is what SQLite knows nothing about: the chunk's own checksum tells."""
    whole, damaged = b"".join(Chunk.of(7, 0, [b"tea " * 5_000]).parts()), []
    made = {"on_damage": lambda: damaged.append(True), "check_chunk": Chunk.decode}
    table = SqliteTable(tmp_path / "t", **made)  # type: ignore[arg-type]
    table.apply(1, [], [(b"c/1", whole)], [])
    assert table.read_chunk(b"c/1") == whole
    table.close()
    data = bytearray((tmp_path / "t").read_bytes())
    data[data.index(b"tea tea tea") + 4] ^= 1
    (tmp_path / "t").write_bytes(data)
    table = SqliteTable(tmp_path / "t", **made)  # type: ignore[arg-type]
    assert not damaged, "opening reads no bodies"
    with pytest.raises(StoreDamaged, match="is damaged"):
        table.read_chunk(b"c/1")
    assert damaged == [True]
    table.close()
