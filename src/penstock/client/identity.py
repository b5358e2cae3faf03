"""What a handle asks of a broker without a command: names for messages, and what receipts say."""

from __future__ import annotations

from typing import Protocol


class OpenedReceipt(Protocol):
    """What a receipt says, once it is known to be genuine."""

    @property
    def queue_id(self) -> int:
        """The queue."""
        ...

    @property
    def channel_id(self) -> int:
        """The channel."""
        ...

    @property
    def sequence(self) -> int:
        """The message."""
        ...

    @property
    def attempt(self) -> int:
        """The delivery."""
        ...


class Identity(Protocol):
    """Ids and receipts. They stay what they are over restarts."""

    def message_id(self, queue_id: int, sequence: int) -> str:
        """A message's id, in the form of a UUID."""
        ...

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        """What settles one delivery of a message."""
        ...

    def open_receipt(self, text: str) -> OpenedReceipt:
        """What a receipt says; `ForgedReceipt` if it was not made here."""
        ...

    def queue_name(self, queue_id: int) -> str | None:
        """The name of a queue; None if it is gone."""
        ...

    def channel_name(self, queue_id: int, channel_id: int) -> str | None:
        """The name of a channel; None if it is gone."""
        ...
