"""What can go wrong below the core.

StoreError
├── StoreLocked       another process has the directory open
├── ShardClosed       it was closed: open it again
├── NotReadable       the directory is another user's
├── StoreReadOnly     a commit on a store that was opened for reading
├── StoreVersion      written by a version that this one does not know
├── StoreDamaged      damage in the middle of the journal, or in the table: nothing is skipped, opening is refused
├── DiskFailed        the disk could not be read: nothing is known of what it holds
├── DiskFull          no space: this commit was not written, and the store goes on
├── CommitAborted     the journal refused this commit: it was not written, and the store goes on
├── CommitFailed      the outcome is not known: the store must be opened again
│   ├── ShardFenced   somebody else has the shard now: it must not be opened again here, unless it is given to us
│   └── DirectoryMoved   the data directory was moved, replaced or deleted: nothing more is written
├── LogUnavailable    Kafka does not answer, or does not let us in: try again later
└── LogUnsafe         Kafka would lose what it is given, or the topics are not those that were asked for
"""

from __future__ import annotations

from penstock.core.errors import StoreDamaged as StoreDamaged
from penstock.core.errors import StoreError as StoreError

ADVICE = (
    "Nothing was changed: see `penstock store check`; restore a backup, or copy what is readable to a new directory "
    "with `penstock store salvage`."
)
"""What to do about damage that keeps a directory closed."""


class StoreLocked(StoreError):
    """Another process has the directory open."""


class NotReadable(StoreError):
    """The directory is for another user. Run this as that user."""


class ShardClosed(StoreError):
    """The store was closed. Open it again."""


class StoreReadOnly(StoreError):
    """A store that was opened read-only cannot be changed."""


class StoreVersion(StoreError):
    """The directory was written by a version of Penstock that this one cannot read."""


class DiskFailed(StoreError):
    """The operating system could not read the disk. The stored data may be undamaged: check the disk first."""


class DiskFull(StoreError):
    """The disk is full. This commit was not written; earlier commits are safe."""


class CommitFailed(StoreError):
    """It is not known whether the commit was written. The store must be opened again."""


class CommitAborted(StoreError):
    """The journal refused this commit. It was not written; the store goes on."""


class ShardFenced(CommitFailed):
    """Somebody else writes this shard by now. This commit was not written, and no later one will be."""


class DirectoryMoved(CommitFailed):
    """The path no longer leads to the directory that was opened. This commit was not written, and no later one will be,
    until the directory is back.
    """


class LogUnavailable(StoreError):
    """Kafka does not answer, or does not let us in."""


class LogUnsafe(StoreError):
    """The topics in Kafka would lose messages, or are not those that were asked for."""
