"""One process at a time may write to a data directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path

from penstock.store.errors import StoreLocked
from penstock.store.layout import LOCK_NAME
from penstock.store.private import FILE_MODE

_ADVICE = (
    "Only one process at a time may open it for writing: stop that one, talk to it instead, or open the directory with "
    "read_only=True."
)


class DirectoryLock:
    """An exclusive lock on a data directory, held until `release` or the end of the process.

    The file says who holds it, for the error message alone: the lock itself is the kernel's (`flock`), so a file that
    was left by a process that is gone locks nobody out.
    """

    def __init__(self, directory: Path, advice: str = _ADVICE) -> None:
        self._path = directory / LOCK_NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign()
        except BlockingIOError:
            holder = os.pread(self._descriptor, 1000, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StoreLocked(f"{directory} is in use by {holder or 'another process'}. {advice}") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def _sign(self) -> None:
        signature = f"process {os.getpid()} on {socket.gethostname()}\n".encode()
        with contextlib.suppress(OSError):  # a full disk keeps nobody out
            os.pwrite(self._descriptor, signature, 0)
            os.ftruncate(self._descriptor, len(signature))

    def release(self) -> None:
        """Let the next one in."""
        os.close(self._descriptor)
