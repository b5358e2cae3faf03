"""The names in a data directory.

Messages are for the eyes of the user who keeps them: what is made in a data directory is for nobody else.

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

from penstock.store.errors import NotReadable

LOCK_NAME = "lock"
"""Who has the directory open for writing."""
JOURNAL_NAME = "journal"
"""The directory of the journal's segments."""
TABLE_NAME = "table.sqlite"
"""The table."""
BALLAST_NAME = "ballast"
"""Blocks kept for deletions on a full disk."""
POSITION_NAME = "position"
"""Only where the table is a cache of a log in Kafka: how far it has got."""
CLUSTER_NAME = "cluster.json"
"""Only where several processes share the directory: each has a store in a directory of its own below."""
INCOMPLETE_NAME = "salvage-incomplete"
"""Only while, or after, a salvage into the directory was cut short: it has a part of the messages."""
HISTORY_NAME = "history"
"""Rates and depths of the last days. Losing it costs nothing but charts."""
AUDIT_NAME = "audit.jsonl"
"""Who changed what, when."""
BACKUP_INCOMPLETE_NAME = "backup-incomplete"
"""The same of a backup."""


def is_store(directory: Path) -> bool:
    """Whether a directory has a store in it, or something of one.

    >>> is_store(Path("/nowhere"))
    False
    """
    check_readable(directory)
    return any((directory / name).exists() for name in (TABLE_NAME, JOURNAL_NAME, BALLAST_NAME))


_HARMLESS = {LOCK_NAME, "lost+found"}
"""What is in a directory of which nobody has made anything yet: a new volume, or a start that was cut short."""


def foreign_file(directory: Path) -> str | None:
    """A name that shows that a directory is somebody else's, so that no store must be made in it; None if it is ours.

    >>> foreign_file(Path("/nowhere")) is None, foreign_file(Path("/usr")) is None
    (True, False)
    """
    if not directory.is_dir() or is_store(directory) or (directory / CLUSTER_NAME).exists():
        return None
    found = sorted(each for each in directory.iterdir() if each.name not in _HARMLESS)
    if any(is_store(each) for each in found):  # the stores of several shards
        return None
    return found[0].name if found else None


log = logging.getLogger("penstock.store")

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_OTHERS = 0o077
_FILES = (LOCK_NAME, TABLE_NAME, f"{TABLE_NAME}-wal", f"{TABLE_NAME}-shm", BALLAST_NAME, POSITION_NAME)


def make_file(path: Path) -> None:
    """Make a file, empty, if it is not there; one that is there is not opened, for its locks' sake."""
    with contextlib.suppress(OSError):  # who opens it next says what is wrong
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def mark_incomplete(path: Path) -> None:
    """Make the file that keeps a copy in part from being opened. `OSError` if it cannot be made: then none is begun."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def restrict(directory: Path) -> None:
    """Take from others what an earlier build gave them; and say so if they can put files into the directory."""
    for path in _own(directory):
        status = path.lstat()
        if status.st_mode & _OTHERS and not stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        log.warning("everybody can write to %s, and replace files in it: run chmod o-w on it", directory)


def check_readable(directory: Path) -> None:
    """Raise `NotReadable` if a data directory is there, and is for another user."""
    if not directory.is_dir():
        return
    for path, needed in (
        (directory, os.R_OK | os.X_OK),
        (directory / TABLE_NAME, os.R_OK),
        (directory / JOURNAL_NAME, os.R_OK | os.X_OK),
    ):
        if os.access(path, os.F_OK) and not os.access(path, needed):
            raise NotReadable(
                f"this user may not read {path}: a data directory is for the user who writes to it (number "
                f"{path.stat().st_uid}). Run this as that user, or ask its server."
            )


def _own(directory: Path) -> Iterator[Path]:
    """What is Penstock's in a data directory."""
    journal = directory / JOURNAL_NAME
    found = [directory / name for name in _FILES] + [journal]
    if journal.is_dir():
        found += journal.iterdir()
    return (path for path in found if path.exists())
