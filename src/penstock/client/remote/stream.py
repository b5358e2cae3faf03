"""A listener's messages, as they come: a push whose credit follows the room that the listener has.

A receive brings one answer, and whatever becomes ready until the next one is there has to wait for it: a way to the
server and back. A push stands. The listener has room for so many messages; what the server may still push counts, and
the difference is only made up when it is half of the room, so that messages which come one by one cost no command of
their own. The room is asked for here, in the thread that hands messages on: elsewhere a delivery could come between the
question and the credit, and the same room would be given away twice.

A push belongs to its link. When that is lost, the server has released what it pushed, and with the next link the
listener is asked for its room again. If that link cannot push, the stream is over, and the listener has to ask.

Everything here happens in the loop's thread.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol

from penstock.client.listening import PushTarget
from penstock.client.remote.request import Outstanding, Settle
from penstock.core.commands import Command, Delivery
from penstock.core.errors import NotSent, PenstockError
from penstock.wire.answers import KeyedDelivery
from penstock.wire.requests import AddPushCredit, StartPush, StopPush


class Carrier(Protocol):
    """What a stream needs of the caller."""

    @property
    def can_push(self) -> bool:
        """Whether the server can push now, or may be able to when there is a link again."""

    @property
    def is_linked(self) -> bool: ...

    @property
    def credit_max(self) -> int:
        """What a push may be given at a time."""

    def carry(self, command: Command, settle: Settle) -> Outstanding:
        """Take a command to the server."""

    def withdraw(self, outstanding: Outstanding) -> None:
        """Who waited for this has left, and hears no more of it."""

    def give_back(self, delivery: Delivery) -> None:
        """Nobody wants these messages: as if they had never been handed out."""

    def forget(self, stream: Stream) -> None:
        """A stream is over."""


class Stream:
    """One push, for one listener."""

    def __init__(
        self, carrier: Carrier, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget
    ) -> None:
        self._carrier = carrier
        self._queue = queue
        self._channel = channel
        self._lease_ms = lease_ms
        self._push_target = push_target
        self._push: Outstanding | None = None
        self._is_started = False
        self._credit = 0
        """What the server may still push."""
        self._stopped: asyncio.Future[None] | None = None
        """Resolved when the server has stopped the push, or cannot push any more."""
        self.is_over = False
        self.error: BaseException | None = None
        """Why it is over, if the listener did not end it itself."""

    @property
    def push(self) -> int:
        """The number of the push; 0 if there is none."""
        return 0 if self._push is None else self._push.number

    # -- for the listener --

    def top_up(self) -> None:
        if self.is_over or self._stopped is not None:
            return
        wanted = min(self._push_target.room(), self._carrier.credit_max)
        more = wanted - self._credit
        if self._push is None:
            if wanted > 0:
                self._start(wanted)
        elif self._is_started and more > 0 and 2 * more >= wanted:
            self._credit += more
            add = AddPushCredit(push=self._push.number, credit=more)
            self._carrier.carry(add, partial(self._answered, self._push, more))

    async def close(self) -> None:
        """Have nothing pushed any more. What comes meanwhile goes back."""
        if not self.is_over and self._push is not None and self._carrier.is_linked:
            self._stopped = asyncio.get_running_loop().create_future()
            if self._is_started:
                self._stop()
            try:
                await self._stopped
            finally:  # also when nobody waits for that any more
                self._end(None)
        self._end(None)

    # -- for the caller --

    def pushed(self, delivery: KeyedDelivery) -> None:
        credit = self._credit
        for run in delivery.runs:
            credit -= run.stop - run.start
        self._credit = max(0, credit)
        if not self._push_target.take(delivery):
            self._carrier.give_back(delivery)

    def ended(self, error: BaseException) -> None:
        """The server ended the push, or cannot be reached."""
        self._end(error)

    def drop(self) -> None:
        """Another stream takes its place: its link is gone, and need not come back."""
        self._end(None)

    def lost(self) -> None:
        """The link is gone, and all leases with it."""
        self._push, self._credit, self._is_started = None, 0, False
        self._resolve()

    def resume(self) -> None:
        if self._carrier.can_push:
            self._push_target.ask()
        else:
            self._end(None)

    # -- the push --

    def _start(self, credit: int) -> None:
        self._credit = credit
        start = StartPush(queue=self._queue, channel=self._channel, credit=credit, lease_ms=self._lease_ms)
        self._push = self._carrier.carry(start, self._started)

    def _started(self, _reply: Any, error: BaseException | None) -> None:
        if error is not None:
            self._end(error)
        elif self._stopped is not None or self.is_over:
            self._stop()
        else:
            self._is_started = True
            self.top_up()

    def _answered(self, push: Outstanding, credit: int, _reply: Any, error: BaseException | None) -> None:
        """Credit was given; or the push has ended, which is told separately, or the link is lost, or it never left."""
        if isinstance(error, NotSent) and push is self._push:
            self._credit = max(0, self._credit - credit)
            self._push_target.ask()

    def _stop(self) -> None:
        assert self._push is not None
        self._carrier.carry(StopPush(push=self._push.number), lambda _reply, _error: self._resolve())

    def _resolve(self) -> None:
        if self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(None)

    def _end(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.error = error if isinstance(error, PenstockError) else None
        if self._push is not None and not self._push.left:  # it waits for a connection, and nobody would hear of it
            self._carrier.withdraw(self._push)
        self._resolve()
        self._carrier.forget(self)
        self._push_target.ask()
