"""Two processes and one directory."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from penstock.store.embedded import open_embedded, open_store
from penstock.store.errors import StoreLocked
from penstock.store.layout import LOCK_NAME
from tests.store.conformance import changes_of
from tests.store.processes import line_of, other_process


def test_second_process_is_refused_and_told_who_and_what_to_do(tmp_path: Path) -> None:
    with other_process("hold", tmp_path) as holder:
        assert line_of(holder) == "open"
        with pytest.raises(StoreLocked) as caught:
            open_embedded(tmp_path)
        message = str(caught.value)
        assert f"process {holder.pid} on {socket.gethostname()}" in message
        assert str(tmp_path) in message
        assert "read_only=True" in message


def test_second_process_is_refused_although_the_lock_file_was_removed(tmp_path: Path) -> None:
    with other_process("hold", tmp_path) as holder:
        assert line_of(holder) == "open"
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(StoreLocked, match="is in use by another process"):
            open_embedded(tmp_path)


def test_process_of_an_earlier_version_is_kept_out_and_keeps_us_out(tmp_path: Path) -> None:
    """It locks the file alone."""
    open_embedded(tmp_path).close()
    with open(tmp_path / LOCK_NAME, "r+") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(StoreLocked):
            open_embedded(tmp_path)
    store = open_embedded(tmp_path)
    with open(tmp_path / LOCK_NAME, "r+") as earlier, pytest.raises(BlockingIOError):
        fcntl.flock(earlier, fcntl.LOCK_EX | fcntl.LOCK_NB)
    store.close()


def test_directory_is_free_again_after_the_holder_was_killed(tmp_path: Path) -> None:
    with other_process("hold", tmp_path) as holder:
        line_of(holder)
    open_embedded(tmp_path).close()


def test_same_process_is_refused_too(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    with pytest.raises(StoreLocked):
        open_embedded(tmp_path)
    store.close()
    open_embedded(tmp_path).close()


def test_reader_locks_no_other_process_out(tmp_path: Path) -> None:
    with other_process("write", tmp_path, 5) as writer:
        assert writer.wait() == 0
    view = open_store(tmp_path, read_only=True)
    with other_process("write", tmp_path, 300) as writer:
        assert writer.wait() == 0
    assert dict(view.scan(b"number/"))[b"number/1"] == b"5"
    view.close()
    view = open_store(tmp_path, read_only=True)
    assert dict(view.scan(b"number/"))[b"number/1"] == b"305"
    view.close()


def test_reader_in_the_same_process_has_to_close_before_a_writer_opens(tmp_path: Path) -> None:
    """SQLite shares what it knows of a file within a process, and a read-only index with it: say so clearly."""
    open_embedded(tmp_path).close()
    view = open_store(tmp_path, read_only=True)
    with pytest.raises(StoreLocked, match="close it first"):
        open_embedded(tmp_path)
    view.close()
    open_embedded(tmp_path).close()


def test_writer_and_reader_of_one_process_work_side_by_side(tmp_path: Path) -> None:
    store = open_embedded(tmp_path)
    view = open_store(tmp_path, read_only=True)
    store.commit(changes_of({b"c": b"1"}))
    store.close()
    assert view.list_chunks(b"", b"", 9) == []
    view.close()
