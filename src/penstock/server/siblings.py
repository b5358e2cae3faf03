"""Whether a commit should wait a moment for others to come along.

Two callers that each wait for their commit before they send again tend to take turns: while the one is being
committed, the other arrives; it is committed alone in turn, while the first prepares its next. Each commit costs a sync
of the disk, and half of them could be saved. So a step whose usual company is missing is put off, for a part of the
time that a step takes at most; a database would call it commit delay and commit siblings.

Who is usual: who was in the last two steps. Nobody waits for anybody if those were a while ago, or if there is only
one caller; and who does not come back is waited for twice.
"""

from __future__ import annotations

from typing import Any

PATIENCE = 1 / 2
"""How long to wait at most, as a part of the last step's time."""
PATIENCE_S_MAX = 0.001

_NOBODY: frozenset[Any] = frozenset()


class Siblings:
    """Knows who came lately, and how long a step takes. Times are seconds of any clock.

    >>> siblings = Siblings()
    >>> siblings.stepped({"a"}, 0.000, 0.003); siblings.stepped({"b"}, 0.003, 0.006)
    >>> siblings.is_early({"a"}, 0.0065), siblings.is_early({"a", "b"}, 0.0065), siblings.is_early({"a"}, 0.0076)
    (True, False, False)
    """

    __slots__ = ("_before", "_last", "_until_s")

    def __init__(self) -> None:
        self._last: frozenset[Any] = _NOBODY
        self._before: frozenset[Any] = _NOBODY
        self._until_s = 0.0
        """Nobody is waited for after this time."""

    def stepped(self, callers: set[Any], start_s: float, end_s: float) -> None:
        """A step with these callers has been committed."""
        self._before = self._last
        self._last = frozenset(callers)
        self._until_s = end_s + min((end_s - start_s) * PATIENCE, PATIENCE_S_MAX)

    def is_early(self, callers: set[Any], now_s: float) -> bool:
        """Whether a step with these callers is worth putting off for a moment."""
        return now_s < self._until_s and bool(callers) and not callers >= (self._last | self._before)
