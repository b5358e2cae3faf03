"""Versions of a conversation, and how two ends agree on one: each says the oldest and the newest that it speaks."""

from __future__ import annotations

from typing import NamedTuple


class Versions(NamedTuple):
    """The versions that a build speaks: its own, and those before it down to the oldest.

    >>> print(Versions(1, 1), "and", Versions(2, 3))
    1 and 2 to 3
    """

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def agreed(self, other: Versions) -> int | None:
        """The newest version that both speak; None if there is none.

        >>> Versions(1, 2).agreed(Versions(2, 3)), Versions(1, 1).agreed(Versions(2, 3))
        (2, None)
        """
        common = min(self.newest, other.newest)
        return common if common >= max(self.oldest, other.oldest) else None
