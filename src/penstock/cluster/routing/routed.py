"""A call on its way through a router."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from penstock.cluster.base import Place
from penstock.core.commands import Command
from penstock.server.shard import Call
from penstock.server.tasks import AsyncShard, CallbackCall


class FailureHandler(Protocol):
    """Who looks at calls that did not just succeed."""

    def settled(self, call: Routed) -> None:
        """A call has come back, with an error, or with something to be noted."""


class Counting(Protocol):
    """Who counts the calls that other nodes have."""

    def landed(self, call: Routed) -> None:
        """Another node has answered a call that is counted."""


_orders = itertools.count()


def ignore(_call: Call) -> None:
    """Nobody waits any more."""


class Routed(CallbackCall):
    """A command for one shard, or for several.

    For a shard of this process it is itself the call that goes through the shard, so that routing costs no second one.
    For a shard elsewhere, `inner` is the call at that place. For several shards, `task` puts the replies together.
    """

    __slots__ = (
        "away",
        "caller",
        "deadline_s",
        "inner",
        "is_noted",
        "is_over",
        "order",
        "parts",
        "place",
        "reopened",
        "router",
        "served",
        "session",
        "since_ms",
        "task",
        "tried_s",
        "tries",
        "whole",
    )

    def __init__(
        self, command: Command, on_settled: Callable[[Call], None], router: FailureHandler, caller: object = None
    ) -> None:
        super().__init__(command, on_settled)
        self.router = router
        self.caller = caller
        self.order = next(_orders)
        """Who came first."""
        self.away: Counting | None = None
        """Who counts it among those that another node has, and has not answered; None: nobody."""
        self.is_noted = False
        """Whether the router wants to see its reply."""
        self.is_over = False
        """Settled, or withdrawn."""
        self.served: AsyncShard | None = None
        """The shard of this process that has it."""
        self.place: Place | None = None
        self.inner: CallbackCall | None = None
        self.task: asyncio.Task[Any] | None = None
        self.session = 0
        """The session as the router numbers it, while the command has the shard's number."""
        self.reopened = 0
        """How often its session was opened anew for it."""
        self.since_ms = 0
        """When a receive began to wait."""
        self.deadline_s = 0.0
        """Until when it is tried again; 0: nothing went wrong yet."""
        self.tried_s = 0.0
        """When it was tried last."""
        self.tries = 0
        self.whole: Command | None = None
        """The command as it came, if it went straight to one partition of several."""
        self.parts: list[Any] = []
        """The parts of subscriptions that are told how many messages it has settled."""

    def settle(self) -> None:
        """The shard has answered."""
        if self.error is None and not self.is_noted:
            self.is_over = True
            self.on_settled(self)
        else:
            self.router.settled(self)

    def inner_settled(self, inner: Call) -> None:
        """The place has answered."""
        self.inner = None
        if self.away is not None:
            self.away.landed(self)
        self.reply, self.error = inner.reply, inner.error
        self.settle()
