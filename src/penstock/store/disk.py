"""The few file operations that the journal needs, in one place, so that tests can stand in for the disk.

Everything that must survive a power failure goes through `Disk`. `RealDisk` is the operating system; the tests have one
in memory that tears, loses and delays what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock.core.storage.changes import Buffer
from penstock.store.layout import DIRECTORY_MODE, FILE_MODE

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the operating system says when something does not fit."""

BUFFERS_PER_WRITE_MAX: int = min(1024, os.sysconf("SC_IOV_MAX"))
"""How many buffers one `pwritev` may take."""

_ZEROS = bytes(1 << 20)


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no space.

    >>> is_full(OSError(errno.ENOSPC, "No space left on device"))
    True
    """
    return error.errno in FULL_ERRNOS


class File(Protocol):
    """An open file, addressed by offset."""

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write as many of the bytes as the operating system takes at once, and say how many (at most 1024 buffers)."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def sync(self) -> None:
        """Return when what was written is durable."""

    def size(self) -> int:
        """How long the file is, in bytes."""

    def reserve(self, size: int, *, zeros: bool = True) -> None:
        """Make the file `size` bytes long, with real blocks behind them; raise and leave it as it was if they are not
        there.
        """

    def close(self) -> None:
        """Let go of the file."""


class Disk(Protocol):
    """Files in directories."""

    def open(self, path: Path, *, writable: bool, create: bool = False) -> File:
        """Open a file; with `create`, make a new one, or empty the one that is there."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in any order."""

    def make_directory(self, directory: Path) -> None:
        """Make a directory durably; no error if it is there."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file. Durable after `sync_directory`."""

    def remove(self, path: Path) -> None:
        """Remove a file. Durable after `sync_directory`."""

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, directory: Path) -> int:
        """How much more fits on the disk that holds a directory."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """One `pwritev`."""
        return os.pwritev(self._descriptor, buffers, offset)

    def read(self, size: int, offset: int) -> bytes:
        """`pread` until `size` bytes or the end of the file."""
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self._descriptor, size, offset)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sync(self) -> None:
        """One `fdatasync`, or what does the same.

        macOS has no `fdatasync`, and its `fsync` leaves data in the drive's cache: there it is `F_FULLFSYNC`. File
        systems that cannot do that (a network's, say) refuse it, and get `fsync`. Not tried on macOS.
        """
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
            return
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(self._descriptor)

    def size(self) -> int:
        """`fstat`."""
        return os.fstat(self._descriptor).st_size

    def reserve(self, size: int, *, zeros: bool = True) -> None:
        """`posix_fallocate`, then zeros: writing into them later changes no metadata, so that `fdatasync` is cheap."""
        before = self.size()
        if size <= before:
            return
        try:
            start = before
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, before, size - before)
            else:
                zeros = True  # macOS: only what was written has blocks behind it
            while zeros and start < size:
                start += os.pwrite(self._descriptor, _ZEROS[: size - start], start)
        except OSError:
            os.ftruncate(self._descriptor, before)
            raise

    def close(self) -> None:
        """`close`."""
        os.close(self._descriptor)


class RealDisk:
    """The operating system's file systems; or, of a directory that is held open, what is in that one.

    With a descriptor, every path has to be below `directory`, and is looked up from the descriptor: whatever becomes of
    the directory's name, no other directory is written to.
    """

    def __init__(self, directory: Path | None = None, descriptor: int | None = None) -> None:
        self._directory = directory
        self._descriptor = descriptor

    def _name(self, path: Path) -> Path:
        return path if self._directory is None else path.relative_to(self._directory)

    def _open(self, path: Path, flags: int) -> int:
        return os.open(self._name(path), flags | os.O_CLOEXEC, FILE_MODE, dir_fd=self._descriptor)

    def open(self, path: Path, *, writable: bool, create: bool = False) -> RealFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT | os.O_TRUNC if create else 0)
        return RealFile(self._open(path, flags))

    def names(self, directory: Path) -> list[str]:
        descriptor = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, directory: Path) -> None:
        """Make a directory, for nobody else, and those above it, each durably."""
        if self._directory is None:
            self._make_directory(directory, DIRECTORY_MODE)
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._name(directory), DIRECTORY_MODE, dir_fd=self._descriptor)
            self.sync_directory(directory.parent)

    def _make_directory(self, directory: Path, mode: int = 0o777) -> None:
        if directory.is_dir():
            return
        self._make_directory(directory.parent)
        directory.mkdir(mode, exist_ok=True)
        self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        held = self._descriptor
        os.rename(self._name(source), self._name(target), src_dir_fd=held, dst_dir_fd=held)

    def remove(self, path: Path) -> None:
        os.unlink(self._name(path), dir_fd=self._descriptor)

    def sync_directory(self, directory: Path) -> None:
        """`fsync` of the directory."""
        descriptor = self._open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: Path) -> int:
        """What `statvfs` says is free for this user."""
        status = os.statvfs(directory if self._descriptor is None else self._descriptor)
        return status.f_bavail * status.f_frsize
