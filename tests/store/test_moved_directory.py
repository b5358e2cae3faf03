"""The data directory is moved, replaced or deleted while a store is open: nothing is written to another one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.store.disk import RealDisk
from penstock.store.embedded import EmbeddedStore, StoreOpener, open_embedded
from penstock.store.errors import DirectoryMoved
from penstock.store.journal import file as journal_file
from penstock.store.lock import DirectoryLock
from tests.store.conformance import changes_of
from tests.store.test_embedded import QUIET, until

SMALL = changes_of({b"a": b"1"})


def move(data: Path) -> None:
    data.rename(data.with_name("broken"))


def replace(data: Path) -> None:
    shutil.copytree(data, data.with_name("copy"))
    move(data)
    data.with_name("copy").rename(data)


def replace_at_once_by_an_empty_one(data: Path) -> None:
    move(data)
    data.mkdir()


def delete(data: Path) -> None:
    shutil.rmtree(data)


def delete_what_is_in_it(data: Path) -> None:
    shutil.rmtree(data)
    data.mkdir()


def empty(data: Path) -> None:
    for path in data.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


WAYS = [move, replace, replace_at_once_by_an_empty_one, delete, delete_what_is_in_it, empty]


def contents(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.mark.parametrize("way", WAYS)
def test_commits_are_refused_within_about_a_second(tmp_path: Path, way: Callable[[Path], None]) -> None:
    data = tmp_path / "data"
    store = open_embedded(data, options=QUIET)
    store.commit(SMALL)
    way(data)
    until(lambda: store.failure is not None, 5)
    before = contents(data)
    for _ in range(2):
        with pytest.raises(DirectoryMoved, match="was moved, replaced or deleted while it was open"):
            store.commit(SMALL)
    store.close()
    assert contents(data) == before, "nothing is written to what has its place, not even at the end"


@pytest.mark.parametrize("way", WAYS)
def test_a_new_segment_is_not_made_anywhere_else(
    tmp_path: Path, way: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_file, "CHECK_SECONDS", 1000.0)  # only the check before each segment
    data = tmp_path / "data"
    store = open_embedded(data, options=QUIET)
    store.commit(SMALL)
    way(data)
    before = contents(data)
    with pytest.raises(DirectoryMoved):
        for number in range(100):
            store.commit(changes_of({b"c%d" % number: bytes(1 << 20)}))
    store.close()
    assert contents(data) == before


def test_what_was_acknowledged_is_in_the_directory_that_was_moved(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = open_embedded(data, options=QUIET)
    replace(data)
    acknowledged = 0
    with pytest.raises(DirectoryMoved, match=f"all that was acknowledged is in {tmp_path / 'broken'}"):
        for number in range(100):
            store.commit(changes_of({b"r%d" % number: bytes(100_000)}))
            acknowledged += 1
    store.close()
    with_all = open_embedded(tmp_path / "broken")
    assert len(with_all.list_chunks(b"r", b"", 1000)) == acknowledged
    with_all.close()
    open_embedded(data).close()


def test_no_commit_looks_at_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_embedded(tmp_path / "data", options=QUIET)
    looks = []
    monkeypatch.setattr(DirectoryLock, "check", lambda lock: looks.append(lock))
    for _ in range(1000):
        store.commit(SMALL)
    assert len(looks) <= 60, "once a second"
    store.close()


def test_another_working_directory_is_not_taken_for_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_embedded("data", options=QUIET)
    (tmp_path / "other").mkdir()
    os.chdir(tmp_path / "other")
    for number in range(10):
        store.commit(changes_of({b"c%d" % number: bytes(1 << 20)}))
    store.check_place()
    store.apply_now()
    assert store.read_chunk(b"c3") == bytes(1 << 20)
    store.close()
    assert list((tmp_path / "other").iterdir()) == []


def test_no_table_is_read_that_has_taken_the_place_of_ours(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = open_embedded(data, options=QUIET)
    store.commit(changes_of({b"c": b"1"}))
    store.apply_now()
    replace(data)
    store._table._idle.clear()  # type: ignore[attr-defined]
    with pytest.raises(DirectoryMoved):
        store._table.read_chunk(b"c")
    store.close()


# Opening again.


@pytest.mark.parametrize("way", WAYS)
def test_a_store_that_was_open_is_not_made_anew(tmp_path: Path, way: Callable[[Path], None]) -> None:
    data = tmp_path / "data"
    opener = StoreOpener(data, QUIET)
    held = opener()
    held.commit(SMALL)
    way(data)
    before = contents(data)
    held.close()
    with pytest.raises(DirectoryMoved):
        opener()
    assert contents(data) == before
    assert data.exists() == (way not in (move, delete))


def test_a_store_that_failed_is_opened_again_where_it_is(tmp_path: Path) -> None:
    opener = StoreOpener(tmp_path / "data", QUIET)
    first = opener()
    first.commit(SMALL)
    first.close()
    again = opener()
    assert again.read_chunk(b"a") == b"1"
    again.close()


def test_another_store_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    opener = StoreOpener(data, QUIET)
    opener().close()
    empty(data)
    open_embedded(data).close()
    with pytest.raises(DirectoryMoved, match="another store is there now"):
        opener()


# In one process, with Python's API.


@pytest.mark.parametrize("way", WAYS)
def test_an_open_directory_of_python_refuses_sends(tmp_path: Path, way: Callable[[Path], None]) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as ps:
        ps.queue("orders").send(b"before")
        way(data)
        before = contents(data)
        deadline = time.monotonic() + 5
        with pytest.raises(penstock.CommitFailed, match="was moved, replaced or deleted"):
            while time.monotonic() < deadline:
                ps.queue("orders").send(b"after")
        with pytest.raises(penstock.CommitFailed, match="was moved, replaced or deleted"):
            ps.queue("orders").send(b"still")
    assert contents(data) == before


def test_python_goes_on_when_the_directory_is_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as ps:
        ps.queue("orders").send(b"before")
        move(data)
        deadline = time.monotonic() + 5
        with pytest.raises(penstock.CommitFailed):
            while time.monotonic() < deadline:
                ps.queue("orders").send(b"meanwhile")
        (tmp_path / "broken").rename(data)
        found = []

        def goes_on() -> bool:
            try:
                ps.queue("orders").send(b"after")
            except penstock.CommitFailed as error:
                found.append(error)
                return False
            return True

        until(goes_on, 10)
        bodies = [message.body for message in ps.queue("orders").receive(1000)]
        assert (bodies[0], bodies[-1]) == (b"before", b"after")


# The disk below a descriptor.


def test_a_held_directory_is_written_to_whatever_its_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lock = DirectoryLock(data)
    disk = RealDisk(data, lock.descriptor)
    move(data)
    data.mkdir()
    disk.make_directory(data / "journal")
    disk.open(data / "journal" / "a", writable=True, create=True).close()
    disk.rename(data / "journal" / "a", data / "journal" / "b")
    disk.sync_directory(data / "journal")
    assert disk.names(data / "journal") == ["b"]
    assert list(data.iterdir()) == []
    disk.remove(data / "journal" / "b")
    assert list((tmp_path / "broken" / "journal").iterdir()) == []
    assert disk.free_bytes(data) > 0
    lock.release()


def test_a_closed_store_has_no_place_to_check(tmp_path: Path) -> None:
    store: EmbeddedStore = open_embedded(tmp_path / "data")
    store.close()
    delete(tmp_path / "data")
    store.check_place()
