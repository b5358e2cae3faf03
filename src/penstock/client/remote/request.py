"""A command on its way to a server, and who waits for its answer.

Some travel as others. Single sends that leave at the same time, to the same queue and in the same way, become one
command (`merged`). It is all or nothing, and its parts were not: if it is refused for what is in it, nothing of it was
done; its parts are sent again one by one, and each gets its own answer. Browsing becomes several commands (`Pages`),
because the server bounds what one answer holds.

A link: one way to a server that works at the moment. Transports make them; the caller uses one until it is lost.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from penstock.client.remote.address import TransportName
from penstock.core.commands import Browse, Command, Delivery, Seen, Send, Sent
from penstock.core.errors import InvalidRequest, NotSent, PenstockError
from penstock.wire.answers import Answer, Welcome
from penstock.wire.requests import Request

UNWRITABLE = (TypeError, ValueError, OverflowError)
"""What the encoder raises for a value that no frame can hold: half a character, a number of more than 64 bits."""


def unwritable(error: Exception) -> InvalidRequest:
    """Why a command can never be sent: something in it is not what it should be."""
    return InvalidRequest(f"the command cannot be sent, and was not: {error}")


class UpgradeRefused(NotSent):
    """There is a server, and something on the way does not let this transport through: another one may."""


class Listener(Protocol):
    """Who hears what comes over a link."""

    old_session: int
    """The session of the last link; 0 if there was none."""

    @property
    def expects(self) -> bool:
        """Whether anything may come: an answer, or a push."""

    def answered(self, now_ms: int, answers: list[Answer]) -> None:
        """Answers came, and the server's time with them."""

    def refused(self, request: int, error: PenstockError) -> None:
        """A request cannot be sent, and never will."""

    def writable(self) -> None:
        """The link takes requests again."""

    def lost(self, link: Link, error: Exception) -> None:
        """The link is no more. Requests that it took and has not answered may have arrived or not."""


class Link(Protocol):
    """Takes requests, brings answers."""

    @property
    def transport(self) -> TransportName:
        """Which way it goes."""

    @property
    def welcome(self) -> Welcome:
        """What the server said first."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes requests now; if not, `writable` will be heard."""

    def send(self, requests: Sequence[Request]) -> None:
        """Take requests, all in as few frames as possible."""

    def cancel(self, request: int) -> None:
        """A receive need not wait any longer."""

    async def close(self) -> None:
        """Say goodbye. Nothing is heard of it any more."""


MERGED_MAX = 1_000
MERGED_BYTES_MAX = 1024 * 1024

Settle = Callable[[Any, BaseException | None], None]
"""Takes the reply, or the error. Called in the loop; must not raise."""


_OTHER_LOOP = "this connection belongs to another event loop, and nothing was sent: connect in this one"
"""Its answers could never be awaited here."""


def has_messages(reply: Any) -> bool:
    """Whether there are messages in an answer: if nobody hears it, they have to go back."""
    return isinstance(reply, Delivery) and bool(reply.runs)


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


class Calling(ABC):
    """`call` and `tell`, for tasks: on top of `submit`, which takes a command to wherever it goes."""

    _loop: asyncio.AbstractEventLoop

    @abstractmethod
    def submit(self, command: Command, settle: Settle) -> Outstanding:
        """As `call`, without a task: `settle` is called with the reply or the error."""

    @abstractmethod
    def withdraw(self, outstanding: Outstanding) -> None:
        """Who waited for this has left, and hears no more of it. Messages that come all the same go back."""

    @abstractmethod
    def give_back(self, delivery: Delivery) -> None:
        """Messages that nobody heard of are ready for others."""

    async def call(self, command: Command) -> Any:
        """The reply, or the error raised."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest(_OTHER_LOOP)
        future: asyncio.Future[Any] = self._loop.create_future()
        outstanding = self.submit(command, partial(resolve, future))
        try:
            return await future
        except asyncio.CancelledError:
            self.withdraw(outstanding)
            if future.done() and not future.cancelled() and future.exception() is None:  # in the very same turn
                late = future.result()
                if has_messages(late):
                    self.give_back(late)
            raise
        finally:
            del future, outstanding  # they have the error, whose traceback leads here

    async def tell(self, command: Command, seconds: float) -> None:
        """As `call`, for who waits so long for the answer at most; the command goes on without them."""
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest(_OTHER_LOOP)
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(command, partial(resolve, future))
        future.add_done_callback(lambda answered: answered.cancelled() or answered.exception())
        await asyncio.wait([future], timeout=seconds)
        if future.done():
            future.result()


def resolve(future: asyncio.Future[Any], reply: Any, error: BaseException | None) -> None:
    """Give a future the reply or the error, if somebody still waits."""
    if future.done():
        return
    if error is None:
        future.set_result(reply)
    else:
        future.set_exception(error)


Resend = Callable[[Outstanding], None]


def merged(outgoing: list[Outstanding], resend: Resend) -> list[Outstanding]:
    """The outgoing commands, fewer of them where single sends go together. Order within a queue stays."""
    if len(outgoing) < 2:
        return outgoing
    kept: list[Outstanding | _Group] = []
    groups: dict[str, _Group] = {}
    for outstanding in outgoing:
        command = outstanding.command
        if type(command) is not Send:
            kept.append(outstanding)
        elif not _is_single(outstanding, command):
            groups.pop(command.queue, None)
            kept.append(outstanding)
        elif (group := groups.get(command.queue)) is None or not group.add(outstanding, command):
            group = groups[command.queue] = _Group(outstanding, command, resend)
            kept.append(group)
    return [each.merged() if isinstance(each, _Group) else each for each in kept]


def _is_single(outstanding: Outstanding, send: Send) -> bool:
    return (
        len(send.bodies) == 1
        and not outstanding.alone
        and send.groups is None
        and send.dedup_ids is None
        and send.origins is None
        and send.once is None
    )


class _Group:
    """Sends that go together."""

    __slots__ = ("_parts", "_resend", "_sends", "_size")

    def __init__(self, outstanding: Outstanding, send: Send, resend: Resend) -> None:
        self._parts = [outstanding]
        self._sends = [send]
        self._size = len(send.bodies[0])
        self._resend = resend

    def add(self, outstanding: Outstanding, send: Send) -> bool:
        """Take one more along; False if it goes another way, or there is no room."""
        first = self._sends[0]
        same = (
            send.priority == first.priority
            and send.delay_ms == first.delay_ms
            and send.due_ms == first.due_ms
            and send.create == first.create
        )
        size = self._size + len(send.bodies[0])
        if not same or len(self._parts) >= MERGED_MAX or size > MERGED_BYTES_MAX:
            return False
        self._parts.append(outstanding)
        self._sends.append(send)
        self._size = size
        return True

    def merged(self) -> Outstanding:
        if len(self._parts) == 1:
            return self._parts[0]
        first = self._sends[0]
        attributes = [None if send.attributes is None else send.attributes[0] for send in self._sends]
        command = Send(
            queue=first.queue,
            bodies=[send.bodies[0] for send in self._sends],
            attributes=attributes if any(attributes) else None,
            priority=first.priority,
            delay_ms=first.delay_ms,
            due_ms=first.due_ms,
            create=first.create,
        )
        return Outstanding(command, self._split, min(part.deadline_s for part in self._parts))

    def _split(self, reply: Any, error: BaseException | None) -> None:
        if isinstance(error, InvalidRequest):
            for part in self._parts:
                part.alone = True
                self._resend(part)
        elif isinstance(error, PenstockError):
            for part in self._parts:
                part.settle(None, type(error)(str(error)))
        else:
            for index, part in enumerate(self._parts):
                part.settle(Sent(reply.queue_id, reply.sequence(index), 1), None)


class Pages:
    """Gathers pages until the limit is reached or a page is empty; then settles with all of them.

    >>> asked = []
    >>> pages = Pages(Browse(queue="q", limit=5), lambda command, settle: asked.append(command.limit), print)
    >>> pages.settle([], None)
    [] None
    """

    def __init__(self, command: Browse, carry: Callable[[Command, Settle], Any], settle: Settle) -> None:
        self._command = command
        self._carry = carry
        self._settle = settle
        self._found: list[Seen] = []

    def settle(self, page: Any, error: BaseException | None) -> None:
        """A page came, or the reason why there is none."""
        if error is not None:
            self._settle(None, error)
            return
        self._found += page
        left = self._command.limit - len(self._found)
        if not page or left <= 0:
            self._settle(self._found, None)
        else:
            after = page[-1].sequence
            self._carry(msgspec.structs.replace(self._command, after=after, limit=left), self.settle)
