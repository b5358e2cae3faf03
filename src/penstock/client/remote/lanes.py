"""What a command is about, for who routes: its lane. All commands of a lane go through one node at a time."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock.client.listening import PushTarget
from penstock.client.remote.request import Outstanding, Settle
from penstock.client.remote.stream import Stream
from penstock.core import commands as c
from penstock.core.commands import Command
from penstock.core.errors import NotSent
from penstock.core.traits import Home
from penstock.wire.order import CallLine

if TYPE_CHECKING:
    from penstock.client.remote.member import MemberCaller, Taken

_OF_A_CONNECTION = frozenset({Home.SESSION, Home.SUBSCRIPTION, Home.SHARD})
"""Any node can do the other commands; those of them about a queue are better done by its owner."""

ANYWHERE = ""
"""The lane of commands that any node does as well as any other."""


def lane_of(command: Command) -> str | None:
    """The queue that says where a command goes, or `ANYWHERE`; None: only the first connection can do it.

    A unit of work goes where its first ack goes, or its first send: that shard is its coordinator.

    >>> lane_of(c.QueueStats(name="orders")), lane_of(c.ListQueues()), lane_of(c.Heartbeat(session=7))
    ('orders', '', None)
    """
    kind = type(command)
    if kind is c.Receive and command.session:  # type: ignore[attr-defined]
        return None
    name = command.about
    if name is not None:
        return name
    return None if command.traits.home in _OF_A_CONNECTION else ANYWHERE


class Lane:
    """Where the commands of one queue go now."""

    __slots__ = (
        "asked_s",
        "is_asking",
        "line",
        "moved_version",
        "name",
        "partitions",
        "refused",
        "streams",
        "strict_version",
        "target",
        "tries",
        "version",
    )

    def __init__(self, name: str, caller: MemberCaller) -> None:
        self.name = name
        self.line: CallLine[RoutedCall, MemberCaller] = CallLine(caller)
        """Commands that the caller has, and those that wait until it has answered them."""
        self.target: MemberCaller | None = caller
        """Who should be the caller; None: that is not known, since the caller has refused something."""
        self.streams: list[RoutedStream] = []
        self.partitions: int | None = None
        """How many partitions the queue has; None if that is not known."""
        self.is_asking = False
        self.asked_s = float("-inf")
        self.version = -1
        """The state of things for which the caller is the right one."""
        self.strict_version = 0
        """The map by which the caller owns the queue: if it does not any more, it says so. 0: it forwards then."""
        self.refused: list[Taken] = []
        """Commands that the caller did not do, because it does not own the queue."""
        self.moved_version = 0
        """The newest map by which a command was refused."""
        self.tries = 0
        """How often commands were refused since one was done."""

    @property
    def caller(self) -> MemberCaller:
        """Through whom its commands go."""
        return self.line.place

    @property
    def is_draining(self) -> bool:
        """Whether commands wait until the caller has answered those before them."""
        return self.target is not self.line.place

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss it."""
        return self.line.is_idle and not (self.streams or self.is_asking or self.refused)


_orders = count()


class RoutedCall(Outstanding):
    """A command, and who waits for its answer; whichever node it goes through."""

    __slots__ = ("_is_counted", "carried", "lane", "on_settled", "order")

    def __init__(self, command: Command, settle: Settle, lane: Lane | None, on_settled: Any) -> None:
        super().__init__(command, settle, 0.0)
        self.lane = lane
        self.carried: Outstanding | None = None
        """The command as a member carries it."""
        self.on_settled = on_settled
        self.order = next(_orders)
        """Who came first."""
        self._is_counted = False

    def count(self) -> None:
        """It was given to the lane's caller."""
        if self.lane is not None and type(self.command) is not c.Receive:
            self._is_counted = True
            self.lane.line.left(self.lane.caller)

    def settled(self, reply: Any, error: BaseException | None) -> None:
        """The answer came."""
        self.carried = None  # it knows this, too: a ring would outlive the call
        if self._is_counted and self.lane is not None:
            self._is_counted = False
            self.lane.line.answered()
        self.on_settled(self, reply, error)
        self.settle(reply, error)


class RoutedStream:
    """Messages of a channel as they become ready.

    The old push is stopped, and the server has said so, before the listener is asked what room it has for a new one:
    else the same room would be given away twice. What was pushed before stays leased: the old connection stands.
    """

    def __init__(self, lane: Lane, inner: Stream, channel: str, lease_ms: int | None, push_target: PushTarget) -> None:
        self._lane = lane
        self._inner = inner
        self._at = lane.caller
        self._channel = channel
        self._lease_ms = lease_ms
        self._push_target = push_target
        self._moving: asyncio.Task[None] | None = None
        self._is_closed = False
        lane.streams.append(self)

    @property
    def is_over(self) -> bool:
        return self._is_closed or (self._moving is None and self._inner.is_over)

    @property
    def error(self) -> BaseException | None:
        return self._inner.error if self.is_over else None

    def top_up(self) -> None:
        if self._moving is None and not self._is_closed:
            self._inner.top_up()

    async def close(self) -> None:
        self._is_closed = True
        self._forget()
        if self._moving is not None:
            await asyncio.wait((self._moving,))
        await self._inner.close()

    def follow(self) -> None:
        """The lane goes through another node now: so does this."""
        if self._is_closed or self._moving is not None or self._at is self._lane.caller or self._inner.is_over:
            return
        if self._at.is_linked:
            self._moving = asyncio.get_running_loop().create_task(self._move())
        else:
            self._inner.drop()
            self._start()
            self._push_target.ask()

    async def _move(self) -> None:
        await self._inner.close()
        if not self._is_closed:
            self._start()
        self._moving = None
        self._push_target.ask()

    def _start(self) -> None:
        self._at = self._lane.caller
        stream = self._at.open_stream(self._lane.name, self._channel, self._lease_ms, self._push_target)
        if stream is None:  # it cannot push: the listener has to ask
            self._is_closed = True
            self._forget()
        else:
            self._inner = stream

    def connection_closed(self) -> None:
        """Nothing comes any more, from anywhere."""
        self._inner.ended(NotSent("the connection was closed"))
        self._forget()

    def _forget(self) -> None:
        if self in self._lane.streams:
            self._lane.streams.remove(self)
