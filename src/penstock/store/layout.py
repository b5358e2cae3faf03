"""The names in a data directory."""

from __future__ import annotations

LOCK_NAME = "lock"
"""Who has the directory open for writing."""
JOURNAL_NAME = "journal"
"""The directory of the journal's segments."""
TABLE_NAME = "table.sqlite"
"""The table."""
BALLAST_NAME = "ballast"
"""Blocks kept for deletions on a full disk."""
CLUSTER_NAME = "cluster.json"
"""Only where several processes share the directory: each has a store in a directory of its own below."""
