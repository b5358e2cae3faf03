"""The journal's interface: commits in order, each with a number, kept until they are trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.core.storage.changes import Changes


class Journal(Protocol):
    """Numbered commits. The first has number 1, each next one is one higher, and a number is its commit's *position*.

    One thread at a time appends; `trim` may come from another.
    """

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        """Every commit after a position, in order. Read to its end, once, before the first `append`."""
        ...

    def append(self, changes: Changes) -> int:
        """Make a commit durable and give its position. Raises `DiskFull` (nothing written) or `CommitFailed`."""
        ...

    def trim(self, position: int) -> None:
        """Forget the commits up to a position, this one included: they are durable elsewhere."""
        ...

    def close(self) -> None:
        """Finish background work and let go of files."""
        ...
