"""What a listener for threads stands on: a work queue, signals, a pool of threads.

`penstock.client.task_workers` has the same names for the tasks of an event loop: `tools/generate_sync.py` puts this
module in its place. Lines and signals are made of primitives that a signal handler may interrupt anywhere.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from penstock.client.listening import check_callable, check_result
from penstock.core.errors import InvalidRequest
from penstock.signals import acquire_and_look
from penstock.signals import told_to_stop as told_to_stop

WAIT_SECONDS = 0.5
"""How long a receive waits: a thread that waits cannot be called off, so a stop takes up to this long."""

T = TypeVar("T")
Work = Callable[[], None]


class WorkQueue(Generic[T]):
    """Things to do, for many workers. Closed, it gives None to each."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def put(self, items: Iterable[T]) -> None:
        for item in items:
            self._items.put(item)

    def get(self) -> T | None:
        """The next thing to do; waits for it. None when there is no more work, ever."""
        item = self._items.get()
        if item is None:
            self._items.put(None)
        return item

    def drain(self) -> list[T]:
        """Take back what nobody has begun."""
        items: list[T] = []
        with contextlib.suppress(queue.Empty):
            while (item := self._items.get_nowait()) is not None:
                items.append(item)
        return items

    def close(self) -> None:
        self._items.put(None)


class Signal:
    """Wakes the one who waits, or the next one who will. Twice is as good as once."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        """Wake. May be called by a signal handler."""
        if self._unset.locked():
            with contextlib.suppress(RuntimeError):  # set by somebody else in between
                self._unset.release()

    def wait(self, seconds: float | None = None) -> None:
        """Until it is set, or the time is over. It is not set afterwards."""
        acquire_and_look(self._unset, threading.TIMEOUT_MAX if seconds is None else seconds)


class WorkerPool:
    """Threads that are started, and awaited, together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: list[threading.Thread] = []

    def start(self, work: Work) -> None:
        member = threading.Thread(target=work, name=f"{self.name}-{len(self._members)}", daemon=True)
        self._members.append(member)
        member.start()

    def cancel(self) -> None:
        """Threads cannot be cancelled: they end when they look."""

    def wait(self, seconds: float | None = None) -> bool:
        """Until all have ended (True), or the time is over."""
        until = None if seconds is None else time.monotonic() + seconds
        for member in self._members:
            if member is not threading.current_thread():
                member.join(None if until is None else max(0.0, until - time.monotonic()))
        return not any(member.is_alive() for member in self._members if member is not threading.current_thread())


_ASYNC_HANDLER = (
    "the handler is a coroutine function, and this listener works with threads: give a plain function, or use "
    "penstock.open_async or penstock.connect_async"
)


def check_handler(handler: Callable[..., Any]) -> None:
    """`InvalidRequest` for a handler that this kind of worker cannot run."""
    check_callable(handler)
    if inspect.iscoroutinefunction(handler):
        raise InvalidRequest(_ASYNC_HANDLER)


def finish_handler(handler: Callable[..., Any], result: Any) -> None:
    """Refuse what a handler has only begun: nobody here could wait for it."""
    if inspect.iscoroutine(result):  # it did not look like one
        result.close()
        raise InvalidRequest(_ASYNC_HANDLER)
    check_result(handler, result)


def is_cancelled(error: BaseException, others: WorkerPool) -> bool:
    """Whether this worker was called off: a thread never is."""
    return False


def sleep(seconds: float) -> None:
    time.sleep(seconds)
