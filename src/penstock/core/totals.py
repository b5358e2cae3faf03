"""What all queues of a shard add up to, kept up to date by every commit: nobody has to look at each of them."""

from __future__ import annotations


class Totals:
    """Messages that are there as of the last commit, and what happened to messages since the store was opened.

    Queues and channels that changed since the last commit count themselves when they are saved.
    """

    __slots__ = ("acked", "bytes", "dead", "failed", "messages", "sent")

    def __init__(self) -> None:
        self.messages = 0
        """Messages in the store, whatever their state."""
        self.bytes = 0
        self.sent = 0
        """Since the store was opened; so are those below. What a queue that was deleted has counted stays counted."""
        self.acked = 0
        self.failed = 0
        self.dead = 0
