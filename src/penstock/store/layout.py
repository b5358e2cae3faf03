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
BACKUP_INCOMPLETE_NAME = "backup-incomplete"
"""The same of a backup."""


def is_store(directory: Path) -> bool:
    """Whether a directory has a store in it, or something of one.

    >>> is_store(Path("/nowhere"))
    False
    """
    return any((directory / name).exists() for name in (TABLE_NAME, JOURNAL_NAME, BALLAST_NAME))
