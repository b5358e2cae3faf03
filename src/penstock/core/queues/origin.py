"""Where a message was before it was moved between queues, and what happened to it there."""

from __future__ import annotations

import msgspec

from penstock.core.commands import Failure


class Origin(msgspec.Struct, frozen=True):
    """A dead letter's history; a redriven message keeps it.

    >>> origin = Origin("id", "orders", "main", 7, 1000, 3, 0, [])
    >>> Origin.decode(origin.encode()) == origin
    True
    """

    id: str
    """The identity that the message keeps for life."""
    queue: str
    """The queue it was moved from last."""
    channel: str
    sequence: int
    sent_ms: int
    """When it was first sent."""
    attempts: int
    priority: int
    failures: list[Failure]

    def encode(self) -> bytes:
        """The form in which a chunk carries it."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Origin:
        """Read what `encode` has written."""
        return msgspec.msgpack.decode(data, type=cls)
