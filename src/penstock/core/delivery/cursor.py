"""Where a channel is in a lane that it walks in order."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.core.storage.keys import ChunkKey

UPCOMING_MAX: Final = 1_024
"""So many chunks ahead are known; those behind them are read when their turn comes."""


class Cursor:
    """Where a channel is in a lane that it walks in order."""

    __slots__ = ("ahead", "caught_up", "sequence", "upcoming")

    def __init__(self, sequence: int, ahead: int = 0) -> None:
        self.sequence = sequence
        """Chunks with a smaller base have been looked at."""
        self.ahead = ahead
        """How many messages wait from there on."""
        self.upcoming: deque[ChunkKey] = deque()
        """The next chunks, as far as they are known."""
        self.caught_up = ahead == 0
        """Whether `upcoming` holds all there are."""

    def passed(self, messages: int) -> None:
        """Messages that were ahead are not any more."""
        self.ahead -= messages
        if not self.ahead:
            self.caught_up = True

    def restart(self, sequence: int, ahead: int) -> None:
        """Go on from another place."""
        self.sequence, self.ahead = sequence, ahead
        self.upcoming.clear()
        self.caught_up = ahead == 0
