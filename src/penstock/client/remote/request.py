"""A command on its way to a server, and who waits for its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.core.commands import (
    Browse,
    Command,
    DescribeQueue,
    Extend,
    Heartbeat,
    LastMark,
    ListQueues,
    ListRedrives,
    QueueStats,
    ReadRecords,
    Receive,
)
from penstock.wire.requests import CONVERSATION

Settle = Callable[[Any, BaseException | None], None]
"""Takes the reply, or the error. Called in the loop; must not raise."""

REPEATABLE: frozenset[type[Command]] = frozenset(
    {
        Browse,
        DescribeQueue,
        Extend,
        Heartbeat,
        LastMark,
        ListQueues,
        ListRedrives,
        QueueStats,
        ReadRecords,
        Receive,
        *CONVERSATION,
    }
)
"""Commands that may come twice and do no harm: they need no name of their own. (A receive whose answer is lost has its
messages released with the connection's session.)"""


class Outstanding:
    """A command without an answer so far."""

    __slots__ = ("abandoned", "alone", "command", "deadline_s", "left", "left_s", "number", "settle")

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
        self.abandoned = False
        """Its caller has left. If messages come all the same, they go back."""
        self.alone = False
        """Not to be merged with others: together they were refused."""
