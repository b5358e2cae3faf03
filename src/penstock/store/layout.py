"""The names in a data directory."""

from __future__ import annotations

from pathlib import Path

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
