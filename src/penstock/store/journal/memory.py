"""A journal that forgets everything when its process ends: for tests and the simulator."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from penstock.core.storage.changes import Changes


class MemoryJournal:
    """Commits in a list.

    >>> journal = MemoryJournal()
    >>> changes = Changes()
    >>> changes.put_record(b"k", b"v")
    >>> journal.append(changes)
    1
    >>> [position for position, _ in journal.replay(0)]
    [1]
    """

    def __init__(self) -> None:
        self._trimmed = 0
        self._commits: list[Changes] = []
        self._lock = threading.Lock()

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        """Every commit after a position, in order."""
        assert after >= self._trimmed, "those commits were trimmed"
        yield from enumerate(self._commits[after - self._trimmed :], after + 1)

    def append(self, changes: Changes) -> int:
        """Keep a commit."""
        with self._lock:
            self._commits.append(changes)
            return self._trimmed + len(self._commits)

    def trim(self, position: int) -> None:
        """Forget the commits up to a position."""
        with self._lock:
            count = max(0, position - self._trimmed)
            del self._commits[:count]
            self._trimmed += count

    def close(self) -> None:
        """Nothing to let go of."""
