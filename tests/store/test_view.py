"""Reading a directory that somebody else writes, or nobody, without a trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from penstock.core.errors import StoreError
from penstock.store.disk import RealDisk, RealFile
from penstock.store.embedded import StoreOptions, open_embedded
from penstock.store.errors import StoreDamaged, StoreReadOnly
from penstock.store.journal.frames import FRAMES_START
from penstock.store.layout import JOURNAL_NAME, TABLE_NAME
from penstock.store.view import StoreView
from tests.store.conformance import Model, changes_of, content
from tests.store.other_process import BODY
from tests.store.processes import line_of, other_process

QUIET = StoreOptions(apply_after_seconds=1000.0)


def everything_in(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, times of change and content of a directory."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_view_shows_table_and_journal_together(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"a": b"table", b"b": b"table"}, {b"r": b"table"}))
    store.apply_now()
    store.commit(changes_of({b"b": None, b"c": b"journal"}, {b"s": b"journal"}))
    view = StoreView(tmp_path)
    assert content(view) == Model({b"a": b"table", b"c": b"journal"}, {b"r": b"table", b"s": b"journal"})
    view.close()
    store.close()


def test_view_stays_as_it_was_until_it_is_refreshed(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"a": b"1"}, {b"r": b"1"}))
    store.apply_now()
    store.commit(changes_of({b"b": b"1"}))
    view = StoreView(tmp_path)
    for number in range(5):
        store.commit(changes_of({b"a": b"new", b"b": None, b"c%d" % number: b"2"}, {b"r": b"2"}))
        store.apply_now()
    assert content(view) == Model({b"a": b"1", b"b": b"1"}, {b"r": b"1"})
    view.refresh()
    assert content(view) == content(store)
    view.close()
    store.close()


def test_view_shows_nothing_that_is_not_durable(tmp_path: Path) -> None:
    """The last frame may be in the page cache alone: the view syncs the file after reading, before it shows it."""
    store = open_embedded(tmp_path, options=QUIET)
    store.commit(changes_of({b"c": b"1"}))
    operations: list[str] = []

    class RecordingFile(RealFile):
        def read(self, size: int, offset: int) -> bytes:
            operations.append("read")
            return super().read(size, offset)

        def sync(self) -> None:
            operations.append("sync")
            super().sync()

    class RecordingDisk(RealDisk):
        def open(self, path: Path, *, writable: bool, create: bool = False) -> RealFile:
            return RecordingFile(super().open(path, writable=writable, create=create)._descriptor)

    view = StoreView(tmp_path, disk=RecordingDisk())
    assert operations[-1] == "sync"
    view.close()
    store.close()


def test_view_refuses_commits(tmp_path: Path) -> None:
    open_embedded(tmp_path).close()
    view = StoreView(tmp_path)
    with pytest.raises(StoreReadOnly):
        view.commit(changes_of({b"c": b""}))
    view.close()
    with pytest.raises(StoreError, match="closed"):
        view.list_chunks(b"", b"", 1)


def test_view_of_no_store_is_refused_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no store"):
        StoreView(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("left", ["closed", "killed"])
def test_view_without_a_writer_leaves_no_trace(tmp_path: Path, left: str) -> None:
    with other_process("write", tmp_path, 60 if left == "closed" else 10**9) as writer:
        while line_of(writer) != "60":
            pass
        if left == "closed":
            writer.wait()
    before = everything_in(tmp_path)
    view = StoreView(tmp_path)
    number = int(dict(view.scan(b"number/"))[b"number/1"])
    assert number >= 60
    assert view.list_chunks(b"c/", b"", 100) == [b"c/%08d" % at for at in range(number - 6, number + 1)]
    assert view.read_chunk(b"c/%08d" % number) == BODY
    view.refresh()
    view.close()
    assert everything_in(tmp_path) == before


def test_view_of_a_copy_without_the_wal_index_works(tmp_path: Path) -> None:
    store = open_embedded(tmp_path / "a")
    store.commit(changes_of({b"c": b"1"}))
    store.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    before = everything_in(tmp_path / "b")
    view = StoreView(tmp_path / "b")
    assert content(view) == Model({b"c": b"1"})
    view.close()
    assert everything_in(tmp_path / "b") == before


def test_view_needs_no_right_to_write() -> None:
    """As another user, on a directory that its owner lets others read, and only its owner may write."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    with TemporaryDirectory() as name:
        directory = Path(name)
        with other_process("write", directory, 30) as writer:
            assert writer.wait() == 0
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        child = os.fork()
        if child == 0:
            os._exit(_number_seen_as_nobody(directory))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 30


def _number_seen_as_nobody(directory: Path) -> int:
    os.setuid(65534)
    try:
        (directory / "forbidden").touch()
        return 1
    except PermissionError:
        view = StoreView(directory)
        return int(dict(view.scan(b"number/"))[b"number/1"])


def test_views_are_consistent_while_a_process_writes(tmp_path: Path) -> None:
    """The writer applies, trims and recycles all the time; every view is one of its states, later than the last."""
    with other_process("write", tmp_path) as writer:
        said = int(line_of(writer))
        view = StoreView(tmp_path)
        seen: list[int] = []
        for _ in range(60):
            while len(seen) and said < seen[-1] + 20:
                said = int(line_of(writer))
            view.refresh()
            numbers = dict(view.scan(b"number/"))
            assert numbers[b"number/1"] == numbers[b"number/2"]
            number = int(numbers[b"number/1"])
            assert number >= said, "what was acknowledged before the look is in it"
            keys = view.list_chunks(b"c/", b"", 100)
            assert keys == [b"c/%08d" % at for at in range(max(1, number - 6), number + 1)]
            assert all(view.read_chunk(key) == BODY for key in keys)
            seen.append(number)
        view.close()
    assert seen == sorted(seen)
    assert seen[-1] > 1000


def test_damage_in_the_journal_is_reported_by_a_view(tmp_path: Path) -> None:
    store = open_embedded(tmp_path, options=QUIET)
    for number in range(3):
        store.commit(changes_of({b"c/%d" % number: b"x" * 600}))
    store.close(apply=False)
    segment = tmp_path / JOURNAL_NAME / "000000000001.segment"
    content_before = bytearray(segment.read_bytes())
    content_before[FRAMES_START + 100] ^= 1
    segment.write_bytes(content_before)
    with pytest.raises(StoreDamaged, match=f"at byte {FRAMES_START}:"):
        StoreView(tmp_path)


def test_writer_leaves_the_files_that_readers_need(tmp_path: Path) -> None:
    open_embedded(tmp_path).close()
    names = {path.name for path in tmp_path.iterdir()}
    assert {TABLE_NAME, TABLE_NAME + "-wal", TABLE_NAME + "-shm"} <= names


@pytest.mark.parametrize("applied", [True, False])
def test_a_store_whose_only_journal_file_was_deleted_is_not_shown_without_it(tmp_path: Path, applied: bool) -> None:
    """Who writes does not open it either: a backup of it would be good for nothing."""
    store = open_embedded(tmp_path)
    store.commit(changes_of({b"c": BODY}))
    store.close(apply=applied)
    for path in (tmp_path / JOURNAL_NAME).iterdir():
        path.unlink()
    with pytest.raises(StoreDamaged, match=r"the journal in .* is missing"):
        StoreView(tmp_path)
