"""An even pace for an event loop, finer than its own timers.

The timers of asyncio and uvloop go by whole milliseconds: whoever wants to send 1,600 messages a second with `sleep`
sends three together, every other millisecond. The kernel's timer descriptors have no such limit.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

_NS = 1_000_000_000


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Time), ("first", _Time))


async def beats(per_second: float, count: int) -> AsyncIterator[int]:
    """So many numbers, from 0 on, at an even pace. Who is late gets the next ones at once."""
    loop = asyncio.get_running_loop()
    with _timer(round(_NS / per_second)) as timer:
        due = 0
        ticked = asyncio.Event()
        loop.add_reader(timer, ticked.set)
        try:
            for number in range(count):
                while not due:
                    await ticked.wait()
                    ticked.clear()
                    due = _expired(timer)
                due -= 1
                yield number
        finally:
            loop.remove_reader(timer)


def _expired(timer: int) -> int:
    """How often it has gone off since it was last asked."""
    try:
        return int.from_bytes(os.read(timer, 8), "little")
    except BlockingIOError:
        return 0


@contextmanager
def _timer(interval_ns: int) -> Iterator[int]:
    library = ctypes.CDLL(None, use_errno=True)
    timer: int = library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if timer < 0:
        raise OSError(ctypes.get_errno(), "there is no timer descriptor")
    try:
        interval = _Time(*divmod(interval_ns, _NS))
        if library.timerfd_settime(timer, 0, ctypes.byref(_Timer(interval, interval)), None) != 0:
            raise OSError(ctypes.get_errno(), "the timer cannot be set")
        yield timer
    finally:
        os.close(timer)
