"""Who calls, what it may do, and whether it is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from penstock.core.commands import Command, Delivery, Once, Receive
from penstock.core.errors import AccessDenied
from penstock.protocols.rest.body import no_room
from penstock.server.auth import Principal
from penstock.server.budget import NoRoom, Share, asked_bytes
from penstock.server.settings import Settings
from penstock.server.shard import Call, give_back
from penstock.server.shards import Shards

TRANSPORT = "penstock.transport"
"""Where the connection puts its transport into the scope of a request."""

_Command = TypeVar("_Command", bound=Command)
Messages = Callable[[], Awaitable[MutableMapping[str, Any]]]


class CallerGone(Exception):
    """The client has hung up; nobody is left to answer."""


class Waits:
    """How many requests are in flight, and how many of them wait for messages."""

    def __init__(self) -> None:
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request has come, or goes on after its wait."""
        self._busy += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request is answered, or waits for messages."""
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    async def settled(self, grace_s: float) -> bool:
        """Wait until only requests that wait for messages are in flight; False if that takes too long."""
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            return False
        return True


class Caller:
    """One request's caller."""

    __slots__ = ("_messages", "_scope", "_share", "_waits", "delivery", "principal", "queue", "request_name", "wanted")

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        messages: Messages,
        waits: Waits,
        principal: Principal,
        share: Share,
    ) -> None:
        self._scope = scope
        self._messages = messages
        self._waits = waits
        self._share = share
        self.principal = principal
        self.queue = ""
        """The queue that the call is about, once it is known: for the log."""
        self.wanted = ""
        """The content type of the answer, among those that the operation offers."""
        self.request_name: str | None = None
        """What the same request has in common with itself, if it comes again: from `Idempotency-Key`."""
        self.delivery: Delivery | None = None
        """What was leased for this caller, to be given back if it does not get it."""

    def need(self, queue: str, *kinds: type[Command]) -> str:
        """The queue's name, if the caller may do one of these commands with it."""
        self.queue = queue
        if not self.principal.may(queue, *kinds):
            rights = " or ".join(str(kind.traits.right) for kind in kinds)
            raise AccessDenied(f"{self.principal.name!r} has no {rights} right on queue {queue!r}")
        return queue

    def named(self, command: _Command, number: int = 0) -> _Command:
        """The command, done once however often the request comes, if the caller wants that."""
        if self.request_name is not None:
            command.once = Once(self.request_name, number)
        return command

    async def room_for(self, shard: Shards, queue: str, count: int, limits: Settings) -> None:
        """Wait until there is room for an answer with so many messages of a queue: as they are, and encoded."""
        bytes_max = limits.rest.response_bytes_max
        try:
            nbytes = asked_bytes(shard.identity.queues.get(queue), count, bytes_max)
            await self._share.claimed(2 * nbytes)
        except NoRoom:
            raise no_room() from None

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed, or about to be."""
        transport: asyncio.Transport | None = self._scope.get(TRANSPORT)
        return transport is not None and transport.is_closing()

    async def receive(self, shard: Shards, command: Receive) -> Delivery:
        """Lease messages, now or when there are any. If the caller hangs up meanwhile, it takes none with it."""
        delivery: Delivery | None
        if command.wait_ms == 0:
            delivery = await shard.call(command)
        else:
            delivery = await self._wait(shard, command)
        if delivery is None:  # the server stops
            return Delivery(command.queue, 0, command.channel, 0, 0, 0)
        if delivery.error is not None:
            raise delivery.error
        self.delivery = delivery
        return delivery

    async def _wait(self, shard: Shards, command: Receive) -> Delivery | None:
        answered = asyncio.get_running_loop().create_future()

        def settled(_call: Call) -> None:
            if not answered.done():
                answered.set_result(None)

        call = shard.submit(command, settled)
        hanging_up = asyncio.ensure_future(self._hang_up())
        self._waits.leave()
        try:
            await asyncio.wait((answered, hanging_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits.enter()
            hanging_up.cancel()
            if not answered.done():
                shard.withdraw(call)
        if not answered.done():
            raise CallerGone
        delivery: Delivery | None = call.result()
        return delivery

    async def _hang_up(self) -> None:
        while (await self._messages())["type"] != "http.disconnect":
            pass

    def give_back(self, shard: Shards) -> None:
        """What was leased for this caller is ready again, as if never handed out: it did not get it."""
        delivery, self.delivery = self.delivery, None
        if delivery is not None and delivery.runs:
            shard.submit(give_back(delivery), lambda _: None)
