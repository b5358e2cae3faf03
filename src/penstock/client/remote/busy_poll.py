"""Busy polling: an event loop that looks for what is about to come, instead of falling asleep until it does.

Waking a processor takes its time, on virtual machines tens of microseconds: a fifth or so of what a message needs from
its sender to its handler, where nobody waits for a disk. Whoever would rather spend processor time has the loop look
again and again, for a moment, while something is expected. It costs nothing while nothing is.
"""

from __future__ import annotations

import asyncio
from time import perf_counter


class BusyPoll:
    """Keeps one loop awake.

    >>> async def example() -> bool:
    ...     poll = BusyPoll(asyncio.get_running_loop(), 0.01)
    ...     poll.expect()
    ...     await asyncio.sleep(0.05)
    ...     return poll.is_awake
    >>> asyncio.run(example())
    False
    """

    __slots__ = ("_is_awake", "_loop", "_seconds", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._until = 0.0
        self._is_awake = False

    @property
    def is_awake(self) -> bool:
        """Whether the loop is kept from falling asleep."""
        return self._is_awake

    def expect(self) -> None:
        """Something is likely to come: look for it, for so long from now on."""
        self._until = perf_counter() + self._seconds
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._look)

    def rest(self) -> None:
        """It has come."""
        self._until = 0.0

    def _look(self) -> None:
        """The loop looks between two calls of this."""
        if perf_counter() < self._until and not self._loop.is_closed():
            self._loop.call_soon(self._look)
        else:
            self._is_awake = False
