"""Where a shard's time comes from.

Leases, delays and waits are lengths of time, so they must not jump when somebody sets the wall clock. A `SystemClock`
reads the wall clock once, when it is made, and counts from there with a clock that only goes forward (and goes on
while the machine sleeps, where the system offers such a clock).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

_NANOSECONDS_PER_MS = 1_000_000


class Clock(Protocol):
    """Anything that knows the time, in milliseconds since 1970."""

    def now_ms(self) -> int:
        """The time now. It never goes back."""


def _steady_ns() -> Callable[[], int]:
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return time.monotonic_ns
    return partial(time.clock_gettime_ns, boot_time)


class SystemClock:
    """The wall clock as it was at the start, plus the time that has passed since.

    >>> clock = SystemClock()
    >>> clock.now_ms() <= clock.now_ms()
    True
    """

    __slots__ = ("_offset_ns", "_steady_ns")

    def __init__(self) -> None:
        self._steady_ns = _steady_ns()
        self._offset_ns = time.time_ns() - self._steady_ns()

    def now_ms(self) -> int:
        return (self._steady_ns() + self._offset_ns) // _NANOSECONDS_PER_MS
