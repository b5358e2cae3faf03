"""A data directory has messages in it, or what a node has cached of a log in Kafka. Neither is opened as the other.

A cache that is of no use is thrown away, and messages would go with it. And whoever writes to a cache as if it were a
store makes messages up that Kafka does not have, for the next node that trusts the cache.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import StoreError
from penstock.store.file_modes import DIRECTORY_MODE
from penstock.store.layout import (
    BACKUP_INCOMPLETE_NAME,
    CLUSTER_NAME,
    INCOMPLETE_NAME,
    JOURNAL_NAME,
    POSITION_NAME,
)
from penstock.store.lock import DirectoryLock


def lock_for_node(directory: Path) -> DirectoryLock:
    """Have a directory, which is made if it is not there, for the caches of one node."""
    refuse_messages(directory)
    try:
        directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        return DirectoryLock(directory, "Each node needs a data directory of its own: give another one.")
    except OSError as error:
        raise StoreError(f"cannot open {directory}: {error}") from error


def refuse_messages(directory: Path) -> None:
    """Keep a cache out of a directory that has messages in it.

    >>> refuse_messages(Path("/nowhere"))
    """
    for name in (JOURNAL_NAME, CLUSTER_NAME):
        if (directory / name).exists():
            raise StoreError(
                f"{directory} holds the messages of a server without Kafka. With Kafka the data directory is a cache, "
                "which may be thrown away: give another one. To move the messages, use penstock export and import."
            )


def refuse_cache(directory: Path) -> None:
    """Keep messages out of a directory that is a cache, or has some below.

    >>> refuse_cache(Path("/nowhere"))
    """
    if (directory / POSITION_NAME).exists() or any(directory.glob(f"shard-*/{POSITION_NAME}")):
        raise StoreError(
            f"{directory} holds what a node has cached of Kafka, and no messages of its own: serve it with the engine "
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
