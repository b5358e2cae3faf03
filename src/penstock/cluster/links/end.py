"""What both ends of a link have: frames that come in, and frames in which much leaves at once.

What is to be written is gathered in one turn of the loop, and leaves in the next (`Gathered`): in one frame. If that
would be too large, or something in it does not travel, it leaves in halves, and so on; what cannot even leave alone is
the business of the end that wanted to write it (`LinkEnd`).

Silence is death: both ends say something every `beat_s`, and a link on which nothing came for `silent_beats` of these
is broken. Beats are counted, not measured, so that a process that was stopped for a while looks at what came first.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import ClassVar, Generic, TypeVar, cast

from penstock.cluster.links.settings import LinkIdentity, LinkLimits
from penstock.core.errors import PenstockError
from penstock.wire.links import HANDSHAKE_BYTES_MAX, FrameKind, FrameReader, frame, frame_parts

Item = TypeVar("Item")


class LinkHeartbeat:
    """Both ends of a link say something every so often; who says nothing is dead."""

    __slots__ = ("_beat", "_die", "_limits", "_loop", "_silent", "_timer", "has_spoken")

    def __init__(self, limits: LinkLimits, beat: Callable[[], None], die: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._beat = beat
        self._die = die
        self._silent = 0
        self.has_spoken = False
        """Set when something was written: then no beat is needed."""
        self._timer = self._loop.call_later(limits.beat_s, self._tick)

    def heard(self) -> None:
        """Something came."""
        self._silent = 0

    def stop(self) -> None:
        """The link is over."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._silent += 1
        if self._silent > self._limits.silent_beats:
            self._die()
            return
        if not self.has_spoken:
            self._beat()
        self.has_spoken = False
        self._timer = self._loop.call_later(self._limits.beat_s, self._tick)


class Gathered(Generic[Item]):
    """What is written together: all that comes in one turn of the loop, in the next turn.

    Whoever adds to `items` calls `flush_soon`, unless `is_due`. Most of the time it is, and a call would be made for
    nothing, for every message: so that is asked first.
    """

    __slots__ = ("_flush", "_loop", "is_due", "items")

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self.items: list[Item] = []
        self.is_due = False

    def flush_soon(self) -> None:
        """Have it written in the next turn."""
        if not self.is_due:
            self.is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self.is_due = False
        self._flush()


class LinkEnd(asyncio.Protocol, ABC, Generic[Item]):
    """One end of a connection between two nodes, which writes frames of items: commands, or replies."""

    items_kind: ClassVar[FrameKind]
    """The kind of frame that they are written in."""
    together_bytes_max: ClassVar[int]
    """Several items are not put into a frame larger than this."""

    def __init__(self, identity: LinkIdentity, limits: LinkLimits) -> None:
        self._identity = identity
        self._limits = limits
        self._reader = FrameReader(HANDSHAKE_BYTES_MAX)
        self._heartbeat: LinkHeartbeat | None = None
        """None until both ends know each other."""
        self._frame_bytes_max = 0
        self._together_bytes_max = 0
        self.is_paused = False
        """Whether the other node is slow to read."""
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Frames leave at once."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        used: socket.socket | None = transport.get_extra_info("socket")
        if used is not None and used.family in (socket.AF_INET, socket.AF_INET6):
            used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Read what is complete."""
        if self._heartbeat is not None:
            self._heartbeat.heard()
        try:
            for kind, payload in self._reader.feed(data):
                self._take(kind, payload)
        except PenstockError as error:
            self._cut(error)

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()

    def _begin(self, frame_bytes_max: int) -> None:
        """Both ends know each other: from now on there are frames of items, up to a size, and beats."""
        self._reader.limit_bytes = self._limits.frame_bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._together_bytes_max = min(self.together_bytes_max, frame_bytes_max)
        self._heartbeat = LinkHeartbeat(self._limits, self._beat, self._fall_silent)

    def _beat(self) -> None:
        self._transport.write(frame(FrameKind.BEAT))

    def _send(self, items: list[Item], *, until_paused: bool = False) -> list[Item]:
        """Write items in their order, in as few frames as possible.

        With `until_paused` it ends as soon as the other node is slow to read. Returns what is left then.
        """
        assert self._heartbeat is not None
        parts = [items]
        while parts and not (until_paused and self.is_paused):
            part = parts.pop()
            can_be_split = len(part) > 1
            try:
                payload = self._encode(part)
            except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
                if can_be_split:
                    parts += _halves(part)
                else:
                    self._report_unfit(part[0], error)
                continue
            if len(payload) <= (self._together_bytes_max if can_be_split else self._frame_bytes_max):
                try:
                    self._transport.writelines(frame_parts(self.items_kind, payload))
                    self._heartbeat.has_spoken = True
                except RuntimeError:  # the transport was closed in this turn
                    pass
            elif can_be_split:
                parts += _halves(part)
            else:
                self._report_too_large(part[0], len(payload))
        return list(chain.from_iterable(reversed(parts))) if parts else []

    @abstractmethod
    def _take(self, kind: FrameKind, payload: bytes) -> None:
        """A frame has come."""

    @abstractmethod
    def _cut(self, error: PenstockError) -> None:
        """What has come is wrong: end it."""

    @abstractmethod
    def _fall_silent(self) -> None:
        """Nothing comes any more: end it."""

    @abstractmethod
    def _encode(self, items: list[Item]) -> bytes:
        """Items as what is in a frame."""

    @abstractmethod
    def _report_unfit(self, item: Item, error: Exception) -> None:
        """An item cannot be encoded."""

    @abstractmethod
    def _report_too_large(self, item: Item, size_bytes: int) -> None:
        """An item is larger than the largest frame."""


def _halves(items: list[Item]) -> tuple[list[Item], list[Item]]:
    """The second half, and the first: what is taken next is last.

    >>> _halves([1, 2, 3])
    ([2, 3], [1])
    """
    half = len(items) // 2
    return items[half:], items[:half]
