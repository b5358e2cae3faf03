"""Messages are for the eyes of the user who keeps them: what is made in a data directory is for nobody else.

Directories are made with mode 0700, and files with 0600, whatever the umask. A data directory that was there before may
hold other things, so it stays as it is; the files of an earlier build in it, which anybody could read, are mended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.core.errors import StoreError
from penstock.store.layout import BALLAST_NAME, JOURNAL_NAME, LOCK_NAME, POSITION_NAME, TABLE_NAME

log = logging.getLogger("penstock.store")

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
_FILES = (LOCK_NAME, TABLE_NAME, f"{TABLE_NAME}-wal", f"{TABLE_NAME}-shm", BALLAST_NAME, POSITION_NAME)


def make_file(path: Path) -> None:
    """Make a file, empty, if it is not there; one that is there is not opened, for its locks' sake."""
    with contextlib.suppress(OSError):  # who opens it next says what is wrong
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def restrict(directory: Path) -> None:
    """Take from others what an earlier build gave them; and say so if they can put files into the directory."""
    for path in _own(directory):
        status = path.lstat()
        if status.st_mode & _OTHERS and not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        log.warning("%s can be written to by everybody, who can replace files in it: chmod o-w it", directory)


def check_readable(directory: Path) -> None:
    """Raise if a data directory is there, and is for another user."""
    for path, needed in (
        (directory, os.R_OK | os.X_OK),
        (directory / TABLE_NAME, os.R_OK),
        (directory / JOURNAL_NAME, os.R_OK | os.X_OK),
    ):
        if os.access(path, os.F_OK) and not os.access(path, needed):
            raise StoreError(
                f"this user may not read {path}: a data directory is for the user who writes to it (number "
                f"{path.stat().st_uid}). Run this as that one, or ask its server."
            )


def _own(directory: Path) -> Iterator[Path]:
    """What is Penstock's in a data directory."""
    journal = directory / JOURNAL_NAME
    found = [directory / name for name in _FILES] + [journal]
    if journal.is_dir():
        found += journal.iterdir()
    return (path for path in found if path.exists())
