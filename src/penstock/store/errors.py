"""What can go wrong below the core.

StoreError
├── StoreLocked       another process has the directory open
├── StoreReadOnly     a commit on a store that was opened for reading
├── StoreVersion      written by a version that this one does not know
├── StoreDamaged      damage in the middle of the journal, or in the table: nothing is skipped, opening is refused
├── DiskFull          no space: this commit was not written, and the store goes on
├── CommitAborted     the journal refused this commit: it was not written, and the store goes on
├── CommitFailed      the outcome is not known: the store must be opened again
│   └── ShardFenced   somebody else has the shard now: it must not be opened again here, unless it is given to us
├── LogUnavailable    Kafka does not answer, or does not let us in: try again later
└── LogUnsafe         Kafka would lose what it is given, or the topics are not those that were asked for
"""

from __future__ import annotations

from penstock.core.errors import StoreError


class StoreLocked(StoreError):
    """Another process has the directory open."""


class StoreReadOnly(StoreError):
    """A commit on a store that was opened for reading."""


class StoreVersion(StoreError):
    """The directory was written by a version that this one does not know."""


class StoreDamaged(StoreError):
    """Damage in the middle of the journal, or in the table. Nothing was skipped."""


class DiskFull(StoreError):
    """No space left. This commit was not written; what was committed before is safe."""


class CommitFailed(StoreError):
    """A commit's outcome is not known; the store must be opened again."""


class CommitAborted(StoreError):
    """The journal refused this commit. It was not written; the store goes on."""


class ShardFenced(CommitFailed):
    """Somebody else writes this shard by now. This commit was not written, and no later one will be."""


class LogUnavailable(StoreError):
    """Kafka does not answer, or does not let us in."""


class LogUnsafe(StoreError):
    """The topics in Kafka would lose messages, or are not those that were asked for."""
