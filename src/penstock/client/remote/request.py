"""A command on its way to a server, and who waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.core.commands import Command, Delivery, Span
from penstock.core.errors import InvalidRequest

Settle = Callable[[Any, BaseException | None], None]
"""Takes the reply, or the error. Called in the loop; must not raise."""


def has_messages(reply: Any) -> bool:
    """Whether there are messages in an answer: if nobody hears it, they have to go back."""
    return isinstance(reply, Delivery) and bool(reply.runs)


def late_delivery(future: asyncio.Future[Any]) -> Delivery | None:
    """The messages of an answer that came in the very turn in which its caller was cancelled: nobody heard it."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    reply = future.result()
    return reply if has_messages(reply) else None


def spans_of(delivery: Delivery) -> list[Span]:
    """The messages of a delivery as commands name them."""
    return [span for run in delivery.runs for span in run.spans()]


def check_loop(home: asyncio.AbstractEventLoop) -> None:
    """`InvalidRequest` if this is not the loop of the connection: its answers could never be awaited here."""
    if asyncio.get_running_loop() is not home:
        raise InvalidRequest("this connection belongs to another event loop, and nothing was sent: connect in this one")


async def told(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait for an answer for so long at most. Its error is raised, unless it comes later: then nobody hears of it."""
    future.add_done_callback(lambda answered: answered.cancelled() or answered.exception())
    await asyncio.wait([future], timeout=seconds)
    if future.done():
        future.result()


class Outstanding:
    """A command without an answer so far."""

    __slots__ = ("abandoned", "alone", "command", "deadline_s", "left", "left_s", "number", "repeated", "settle")

    def __init__(self, command: Command, settle: Settle, deadline_s: float) -> None:
        self.command = command
        self.settle = settle
        self.deadline_s = deadline_s
        """When nobody waits for it any longer, by the loop's clock."""
        self.number = 0
        self.left = False
        """It was given to a link: it may have arrived."""
        self.left_s = 0.0
        """When that was for the first time."""
        self.repeated = False
        """It was given to a link more than once."""
        self.abandoned = False
        """Its caller has left. If messages come all the same, they go back."""
        self.alone = False
        """Not to be merged with others: together they were refused."""
