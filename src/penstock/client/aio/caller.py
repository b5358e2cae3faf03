"""Who carries commands: what every handle of the API holds on to."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.client.identity import Identity
from penstock.core.commands import Command, Damage


class AsyncCaller(Protocol):
    """Takes commands to where the messages are, and brings replies back."""

    async def call(self, command: Command) -> Any:
        """The reply, when its effect is as durable as it has to be; or the error, raised."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        ...

    async def close(self) -> None:
        """Let go of everything. Once more does nothing."""
        ...

    def now_ms(self) -> int:
        """The time there."""
        ...

    @property
    def identity(self) -> Identity:
        """Who names messages and reads receipts."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed through this caller."""
        ...

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged messages."""
        ...
