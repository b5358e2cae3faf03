"""One process at a time may write to a data directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.store.errors import DirectoryMoved, StoreLocked
from penstock.store.layout import (
    BACKUP_INCOMPLETE_NAME,
    CLUSTER_NAME,
    DIRECTORY_MODE,
    FILE_MODE,
    INCOMPLETE_NAME,
    JOURNAL_NAME,
    LOCK_NAME,
    POSITION_NAME,
    check_readable,
)

ADVICE = (
    "Only one process at a time may open it for writing: stop that one; or talk to it with penstock.connect(), if it "
    "is a server; or read the directory with read_only=True."
)
"""For whoever opens a directory in Python."""


_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.ENOTCONN})
"""What the operating system says when a path leads nowhere any more. Other errors leave it open."""


class DirectoryLock:
    """An exclusive lock on a data directory, held until `release` or the end of the process.

    The lock is the kernel's (`flock`) on the directory itself: a file could be removed while it is locked, and another
    one locked in its place. The file `lock` is locked as well, because earlier versions look there. It says who holds
    it, for the error message alone; one that was left by a process that is gone locks nobody out.

    The lock goes with the directory, and not with its name. `check` says whether the name still leads to it.
    """

    def __init__(self, directory: Path, advice: str = ADVICE) -> None:
        self._directory = directory
        self._paths = (directory, directory.absolute())
        """Either may lead to it: the working directory may have changed, or have another name by now."""
        self._path = directory / LOCK_NAME
        self._descriptors = [os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            self._lock_directory()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptors.append(os.open(LOCK_NAME, flags, FILE_MODE, dir_fd=self.descriptor))
            fcntl.flock(self._descriptors[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign()
        except BlockingIOError:
            holder = self._holder()
            self.release()
            raise StoreLocked(f"{directory} is in use by {holder or 'another process'}. {advice}") from None
        except BaseException:
            self.release()
            raise

    def _lock_directory(self) -> None:
        try:
            fcntl.flock(self._descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # a file system that locks files only: the file has to do
            return

    def _holder(self) -> str:
        with contextlib.suppress(OSError):
            return self._path.read_bytes()[:1000].decode(errors="replace").strip()
        return ""

    def _sign(self) -> None:
        signature = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk keeps nobody out
            os.pwrite(self._descriptors[-1], signature, 0)
            os.ftruncate(self._descriptors[-1], len(signature))

    @property
    def descriptor(self) -> int:
        """The locked directory itself."""
        return self._descriptors[0]

    def check(self) -> None:
        """Raise `DirectoryMoved` if the directory's name no longer leads to the one that is locked."""
        if not self._descriptors:
            return
        try:
            held = os.fstat(self.descriptor)
        except OSError as error:
            raise directory_moved(self._directory, f"it cannot be reached ({error.strerror})") from error
        what = "it is not there any more"
        for path in self._paths:
            try:
                if os.path.samestat(os.stat(path), held):
                    return
                what = "its name leads to another directory now"
            except OSError as error:
                if error.errno not in _GONE:
                    return
        raise directory_moved(self._directory, what + self._new_name(held))

    def _new_name(self, held: os.stat_result) -> str:
        """Where the locked directory is now, as far as Linux tells."""
        with contextlib.suppress(OSError):
            now = os.readlink(f"/proc/self/fd/{self.descriptor}")
            if os.path.samestat(os.stat(now), held):
                return f", and all that was acknowledged is in {now}"
        return ""

    def release(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def directory_moved(directory: Path, what: str) -> DirectoryMoved:
    """A data directory is not where it was when it was opened."""
    return DirectoryMoved(
        f"the data directory {directory} was moved, replaced or deleted while it was open: {what}. Nothing more is "
        "written. Put the directory back; or stop this process, restore a backup, and start again."
    )


# A data directory has messages in it, or what a node has cached of a log in Kafka. Neither is opened as the other.
#
# A cache that is of no use is thrown away, and messages would go with it. And whoever writes to a cache as if it were a
# store makes messages up that Kafka does not have, for the next node that trusts the cache.


def lock_for_node(directory: Path) -> DirectoryLock:
    """Have a directory, which is made if it is not there, for the caches of one node."""
    refuse_messages(directory)
    try:
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        return DirectoryLock(directory, "Each node needs a data directory of its own: give another one.")
    except OSError as error:
        raise StoreError(cannot_open(directory, error)) from error


def cannot_open(directory: Path, error: OSError) -> str:
    """Why, in words."""
    for each in (directory, *directory.parents):
        if each.is_file():
            return f"{each} is a file: name a directory"
    return f"cannot open {directory}: {error.strerror or error}"


def refuse_messages(directory: Path) -> None:
    """Keep a cache out of a directory that has messages in it.

    >>> refuse_messages(Path("/nowhere"))
    """
    check_readable(directory)
    for name in (JOURNAL_NAME, CLUSTER_NAME):
        if (directory / name).exists():
            raise StoreError(
                f"{directory} holds the messages of a server without Kafka. With Kafka the data directory is a cache, "
                "which may be deleted: give another directory. To move the messages, use penstock export and import."
            )


def refuse_cache(directory: Path) -> None:
    """Keep messages out of a directory that is a cache, or has some below.

    >>> refuse_cache(Path("/nowhere"))
    """
    check_readable(directory)
    if (directory / POSITION_NAME).exists() or any(directory.glob(f"shard-*/{POSITION_NAME}")):
        raise StoreError(
            f"{directory} holds only what a node has cached of Kafka: serve it with the engine "
            '"kafka", or give another directory'
        )


def refuse_incomplete(directory: Path) -> None:
    """Do not open what a salvage or a backup has copied in part.

    >>> refuse_incomplete(Path("/nowhere"))
    """
    if (directory / INCOMPLETE_NAME).exists():
        raise StoreError(f"a salvage into {directory} was cut short: delete it, and salvage again")
    if (directory / BACKUP_INCOMPLETE_NAME).exists():
        raise StoreError(f"a backup into {directory} was cut short: delete it, and make another one")
