"""What happened to messages, told run by run to whoever wants to know (`Broker.message_events`)."""

from __future__ import annotations

from typing import Literal, NamedTuple

What = Literal["sent", "received", "acked", "released", "expired", "returned", "dead", "passed"]


class MessageEvent(NamedTuple):
    """One thing that happened to a run of messages of one queue.

    >>> MessageEvent("acked", "orders", "main", first=10, messages=5, at_ms=1_500, sent_ms=1_000).last
    14
    """

    what: What
    """`passed`: a reader that goes by offset has moved its channel on. `returned`: a delivery that never arrived."""
    queue: str
    channel: str
    """Empty for what is sent: that is for every channel."""
    first: int
    """The first sequence number; -1 where the run is not known (`passed`)."""
    messages: int
    at_ms: int
    sent_ms: int = 0
    """When the messages were sent; 0 where that is not known."""
    attempt: int = 0
    size: int = 0
    """Bytes, of what is sent or received."""
    session: str = ""
    error: str = ""

    @property
    def last(self) -> int:
        """The last sequence number."""
        return self.first + self.messages - 1
