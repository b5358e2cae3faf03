"""Who carries commands: what every handle of the API holds on to."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from penstock.client.content import Identity
from penstock.client.listening import PushTarget
from penstock.core.commands import Command, Damage


class AsyncCaller(Protocol):
    """Takes commands to where the messages are, and brings replies back."""

    async def call(self, command: Command) -> Any:
        """The reply, when its effect is as durable as it has to be; or the error, raised."""

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""

    async def close(self) -> None:
        """Let go of everything. Once more does nothing."""

    def now_ms(self) -> int:
        """The time there."""

    @property
    def identity(self) -> Identity:
        """Who names messages and reads receipts."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be changed through this caller."""

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged messages."""


class AsyncStream(Protocol):
    """Messages of a channel, handed on as they become ready."""

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""

    @property
    def error(self) -> BaseException | None:
        """Why it is over, if something went wrong."""

    def top_up(self) -> None:
        """Let as many messages come as there is room for."""

    async def close(self) -> None:
        """End it. What comes meanwhile goes back."""


@runtime_checkable
class AsyncTelling(Protocol):
    """A caller whose answers may be long in coming: there is a network in between."""

    async def tell(self, command: Command, seconds: float) -> None:
        """As `call`, for who waits so long for the answer at most; the command goes on without them."""


@runtime_checkable
class AsyncStreaming(Protocol):
    """A caller that may be able to hand on messages without being asked for them."""

    def open_stream(
        self, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget
    ) -> AsyncStream | None:
        """A stream which has to be topped up; None if messages have to be asked for at the moment."""
