"""A listener's stream whose queue may move: one push at a time, at the node through which the queue's lane goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client.listening import PushTarget
from penstock.client.remote.stream import Stream
from penstock.core.errors import NotSent

if TYPE_CHECKING:
    from penstock.client.remote.lanes import Lane


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
        """Whether nothing comes any more."""
        return self._is_closed or (self._moving is None and self._inner.is_over)

    @property
    def error(self) -> BaseException | None:
        """Why it is over, if something went wrong."""
        return self._inner.error if self.is_over else None

    def top_up(self) -> None:
        """Let as many messages come as there is room for."""
        if self._moving is None and not self._is_closed:
            self._inner.top_up()

    async def close(self) -> None:
        """End it. What comes meanwhile goes back."""
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
