"""SIGTERM and SIGINT for who waits in the main thread.

Python runs a signal's handler in the main thread, between two of its steps. Two things follow. The handler may come in
the middle of code that holds a lock, `threading.Event.wait` for one: whatever it calls that wants the same lock waits
for ever. And a signal that comes just before the main thread falls asleep on a lock does not wake it. So what a signal
calls is called in a thread of its own, and whoever sleeps in the main thread looks up from time to time.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

LOOK_SECONDS = 0.5
"""How long the main thread may sleep without a look."""


@contextlib.contextmanager
def told_to_stop(stop: Callable[[], object]) -> Iterator[None]:
    """While in here, SIGTERM and SIGINT call `stop`, each time. Elsewhere than in the main thread nothing happens.

    >>> import os
    >>> told = threading.Event()
    >>> with told_to_stop(told.set):
    ...     os.kill(os.getpid(), signal.SIGTERM)
    ...     told.wait(10)
    True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # threading.Thread would take locks of its own
    before = {
        number: signal.signal(number, lambda *_: _thread.start_new_thread(stop, ()))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_kept: set[int] = set()
_ignored: set[int] = set()


def keep(number: int) -> None:
    """From now on a signal ends nothing: whoever can do something about it later asks `was_kept`."""
    if signal.signal(number, lambda number, _: _kept.add(number)) is signal.SIG_IGN:
        _ignored.add(number)


def was_kept(number: int) -> bool:
    """Whether a signal has come since `keep`. Asked again, it has not."""
    was_there = number in _kept
    _kept.discard(number)
    return was_there


def was_ignored(number: int) -> bool:
    """Whether whoever started this process had it ignore a signal, before `keep`: `nohup` does."""
    return number in _ignored


def acquire_and_look(lock: threading.Lock, seconds: float = threading.TIMEOUT_MAX) -> bool:
    """Take a lock; signals are heard meanwhile, in the main thread, too. False when the time is over."""
    if threading.current_thread() is not threading.main_thread():
        return lock.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))
    until = time.monotonic() + seconds
    while True:
        if lock.acquire(timeout=max(0.0, min(seconds, LOOK_SECONDS))):
            return True
        seconds = until - time.monotonic()
        if seconds <= 0:
            return False
