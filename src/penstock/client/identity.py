"""What a handle asks of a broker without a command: names for messages, and receipts."""

from __future__ import annotations

from typing import Protocol


class Identity(Protocol):
    """Ids and receipts. They stay what they are over restarts."""

    @property
    def realm(self) -> int:
        """What message ids are made of, besides queue and number."""
        ...

    def message_id(self, queue_id: int, sequence: int) -> str:
        """A message's id, in the form of a UUID."""
        ...

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What settles one delivery of a message."""
        ...
