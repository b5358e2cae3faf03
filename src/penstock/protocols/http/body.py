"""A body as it comes, for a handler that does not want to have it whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BLOCK_BYTES = 1024 * 1024
"""What is read ahead of the handler, about."""


class BodyLeft(Exception):
    """The client has hung up before its body was there."""


class BodyRefused(Exception):
    """The body is not read on: too large, too slow, or not HTTP. The connection ends after the answer."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


class BodyStream:
    """Filled by the connection, emptied by the handler; the client is not read from while it is full."""

    __slots__ = ("_error", "_nbytes", "_on_taken", "_parts", "_waiter", "is_complete")

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self._on_taken = on_taken
        self._parts: list[bytes] = []
        self._nbytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_complete = False

    @property
    def is_full(self) -> bool:
        """Whether no more should be read for now."""
        return self._nbytes >= BLOCK_BYTES

    async def block(self) -> list[bytes]:
        """The next parts, about `BLOCK_BYTES` together; none at the body's end."""
        while not (self.is_full or self.is_complete or self._error is not None):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        parts, self._parts, self._nbytes = self._parts, [], 0
        self._on_taken()
        return parts

    def feed(self, part: bytes) -> None:
        """One more part came."""
        self._parts.append(part)
        self._nbytes += len(part)
        if self._nbytes >= BLOCK_BYTES:
            self._wake()

    def end(self) -> None:
        """All of it is there."""
        self.is_complete = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more will come."""
        if not self.is_complete and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
