"""What a listener for tasks stands on: a work queue, signals, a pool of tasks.

`penstock.client.thread_workers` has the same names for threads: `tools/generate_sync.py` puts it in this one's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from penstock.client.listening import check_callable, check_result

WAIT_SECONDS = 20.0
"""How long a receive waits: a task that waits can be cancelled at any time."""
_TURN_SECONDS = 0.005
"""After how long of work without a pause the other tasks of the loop get their turn."""

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]


class WorkQueue(Generic[T]):
    """Things to do, for many workers. Closed, it gives None to each."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._turn_ends = 0.0

    def put(self, items: Iterable[T]) -> None:
        self._items.extend(items)
        self._wake(len(self._items))

    async def get(self) -> T | None:
        """The next thing to do; waits for it. None when there is no more work, ever."""
        if time.monotonic() > self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = time.monotonic() + _TURN_SECONDS
        while not self._items:
            if self._closed:
                return None
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                if woken.done() and not woken.cancelled():
                    self._wake(1)
                raise
        return self._items.popleft()

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            woken = self._waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                count -= 1

    def drain(self) -> list[T]:
        """Take back what nobody has begun."""
        items = list(self._items)
        self._items.clear()
        return items

    def close(self) -> None:
        self._closed = True
        self._wake(len(self._waiting))


class Signal:
    """Wakes the one who waits, or the next one who will. Twice is as good as once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Until it is set, or the time is over. It is not set afterwards."""
        if not self._event.is_set():
            timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._event.set)
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._event.clear()


class WorkerPool:
    """Tasks that are started, and awaited, together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: list[asyncio.Task[None]] = []

    def start(self, work: Work) -> None:
        self._members.append(asyncio.create_task(work(), name=f"{self.name}-{len(self._members)}"))

    def cancel(self) -> None:
        for member in self._members:
            member.cancel()

    @property
    def is_cancelled(self) -> bool:
        return any(member.cancelled() or member.cancelling() for member in self._members)

    async def wait(self, seconds: float | None = None) -> bool:
        """Until all have ended (True), or the time is over."""
        members = [member for member in self._members if member is not asyncio.current_task()]
        if not members:
            return True
        _, running = await asyncio.wait(members, timeout=seconds)
        return not running


def check_handler(handler: Callable[..., Any]) -> None:
    """`InvalidRequest` for a handler that this kind of worker cannot run."""
    check_callable(handler)


async def finish_handler(handler: Callable[..., Any], result: Any) -> None:
    """Wait for what a handler has begun, if it is a coroutine function."""
    if inspect.isawaitable(result):
        result = await result
    if result is not None:
        check_result(handler, result)


def is_cancelled(error: BaseException, others: WorkerPool) -> bool:
    """Whether this task was called off, and the others with it: not by its own handler, nor what that waited for."""
    if isinstance(error, GeneratorExit):  # its loop was closed, and it is being collected: nothing can be awaited
        return True
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or task is None or not task.cancelling():
        return False
    if others.is_cancelled:
        return True
    while task.uncancel():  # a handler has called off its own task: it has failed, and its worker goes on
        pass
    return False


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@contextlib.contextmanager
def told_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """While in here, SIGTERM and SIGINT call `stop`. Elsewhere than in the main thread nothing happens."""
    loop = asyncio.get_running_loop()
    heard: list[signal.Signals] = []
    try:
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
                heard.append(number)
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
