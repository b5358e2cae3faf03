"""Files of the operating system, and what is done where it lacks a call that Linux has. Not tried on macOS itself."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from penstock.store.disk import RealDisk

FULL_SYNC = 51


@pytest.fixture
def like_macos(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that macOS lacks are gone, and the one that it has instead is written down."""
    asked: list[int] = []

    def full_sync(descriptor: int, command: int) -> int:
        asked.append(command)
        return 0

    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    return asked


def test_without_fdatasync_the_drive_is_told_to_write(tmp_path: Path, like_macos: list[int]) -> None:
    file = RealDisk().open(tmp_path / "file", writable=True, create=True)
    file.write([b"tea"], 0)
    file.sync()
    assert like_macos == [FULL_SYNC]
    file.close()


@pytest.mark.parametrize(("number", "is_served"), [(errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_that_cannot_do_that_is_synced_and_a_broken_disk_is_an_error(
    tmp_path: Path, like_macos: list[int], monkeypatch: pytest.MonkeyPatch, number: int, is_served: bool
) -> None:
    synced: list[int] = []

    def refuse(descriptor: int, command: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    file = RealDisk().open(tmp_path / "file", writable=True, create=True)
    if is_served:
        file.sync()
    else:
        with pytest.raises(OSError):
            file.sync()
    assert bool(synced) == is_served
    file.close()


def test_without_fallocate_reserved_space_is_written(tmp_path: Path, like_macos: list[int]) -> None:
    file = RealDisk().open(tmp_path / "file", writable=True, create=True)
    file.reserve(1 << 20, zeros=False)
    assert os.stat(tmp_path / "file").st_blocks * 512 >= 1 << 20
    file.close()
