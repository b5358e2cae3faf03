"""Remote calls from threads: one event loop in a background thread, shared by every connection of the process.

A thread puts its command into the caller's inbox and waits for a lock; the loop takes all that is in the inbox at once,
so that threads which call at the same time share frames.

At the end of a program the loop rests. Its thread is a daemon, and when an answer or a timer wakes uvloop after the
interpreter is gone, it asks for the interpreter all the same, and the process dies (SIGSEGV). A thread that waits in
Python has no such trouble. Whoever still calls, in a function of `atexit` perhaps, wakes the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from penstock.client.content import Identity
from penstock.client.listening import PushTarget
from penstock.client.remote.address import Address, Options, TransportName
from penstock.client.remote.caller import RemoteCaller
from penstock.client.remote.lanes import RoutedStream
from penstock.client.remote.request import UNWRITABLE, Outstanding, has_messages, unwritable
from penstock.client.remote.routed import RoutedCaller, open_caller
from penstock.client.remote.stream import Stream
from penstock.core.commands import Command, Damage
from penstock.core.errors import NotSent
from penstock.signals import acquire_and_look

_REST_S = 10.0
"""How long the loop rests: longer than the interpreter needs to end; and nobody is kept waiting for ever."""


class _Background:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_awake = threading.Event()
        self.is_awake.set()
        self.loop = _new_loop()
        thread = threading.Thread(target=self.loop.run_forever, name="penstock-client", daemon=True)
        thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; an interrupt cancels it."""
        self.is_awake.set()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def rest(self) -> None:
        """Hold the loop's thread where it is, until somebody calls or the process is gone."""
        rests = threading.Event()

        def rest() -> None:
            rests.set()
            self.is_awake.wait(_REST_S)

        self.is_awake.clear()
        self.loop.call_soon_threadsafe(rest)
        rests.wait(_REST_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_background: _Background | None = None


def background() -> _Background:
    """The loop of this process. A child after a fork gets its own: threads do not survive a fork."""
    global _background
    with _lock:
        if _background is None or _background.pid != os.getpid():
            _background = _Background()
        return _background


@atexit.register
def _rest() -> None:
    if _background is not None and _background.pid == os.getpid():
        _background.rest()


class _Waiting:
    """A thread that waits for its answer."""

    __slots__ = ("_is_over", "_lock", "_outstanding", "command", "error", "is_withdrawn", "reply")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.reply: Any = None
        self.error: BaseException | None = None
        self.is_withdrawn = False
        """Its thread was interrupted, and has left."""
        self._outstanding: Outstanding | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._lock.acquire()

    @property
    def outstanding(self) -> Outstanding | None:
        """What was sent for it, until it is answered: that knows this, too, and a ring would outlive the call."""
        return self._outstanding

    def sent(self, outstanding: Outstanding) -> None:
        """Called in the loop, maybe after the answer came."""
        if not self._is_over:
            self._outstanding = outstanding

    def settle(self, reply: Any, error: BaseException | None) -> None:
        """Called in the loop."""
        self.reply, self.error = reply, error
        self._is_over, self._outstanding = True, None
        self._lock.release()

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> None:
        """Called in the thread."""
        acquire_and_look(self._lock, seconds)


class ThreadedStream:
    """A `Stream` for threads. What it brings is handed on in the loop's thread."""

    def __init__(self, stream: Stream | RoutedStream, host: _Background) -> None:
        self._stream = stream
        self._background = host

    @property
    def is_over(self) -> bool:
        return self._stream.is_over

    @property
    def error(self) -> BaseException | None:
        return self._stream.error

    def top_up(self) -> None:
        self._background.loop.call_soon_threadsafe(self._stream.top_up)

    def close(self) -> None:
        self._background.run(self._stream.close())


class ThreadedCaller:
    """A `RemoteCaller` for threads: `call` blocks."""

    read_only = False

    def __init__(self, remote: RemoteCaller | RoutedCaller, host: _Background) -> None:
        self._remote = remote
        self._background = host
        self._loop = host.loop
        self._inbox: deque[_Waiting] = deque()
        self._is_awake = False

    @classmethod
    def connect(cls, address: Address, options: Options) -> ThreadedCaller:
        """A caller with a link; or the reason why there is none, raised."""
        host = background()
        return cls(host.run(open_caller(address, options)), host)

    def tell(self, command: Command, seconds: float) -> None:
        self.call(command, seconds)

    def call(self, command: Command, seconds: float = threading.TIMEOUT_MAX) -> Any:
        """The reply, or the error raised; None when it has not come in so many seconds."""
        self._check_process()
        waiting = _Waiting(command)
        try:
            self._inbox.append(waiting)
            if not self._background.is_awake.is_set():
                self._background.is_awake.set()
            if not self._is_awake:
                self._is_awake = True
                self._loop.call_soon_threadsafe(self._take)
            waiting.wait(seconds)
        except BaseException:
            self._loop.call_soon_threadsafe(self._withdraw, waiting)
            raise
        error, waiting.error = waiting.error, None
        if error is None:
            return waiting.reply
        try:
            raise error
        finally:
            del error  # its traceback leads here

    def open_stream(
        self, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget
    ) -> ThreadedStream | None:
        """Messages as they become ready; None where they have to be asked for."""
        self._check_process()
        stream = self._background.run(self._open_stream(queue, channel, lease_ms, push_target))
        return None if stream is None else ThreadedStream(stream, self._background)

    async def _open_stream(
        self, queue: str, channel: str, lease_ms: int | None, push_target: PushTarget
    ) -> Stream | RoutedStream | None:
        return self._remote.open_stream(queue, channel, lease_ms, push_target)

    def _take(self) -> None:
        """In the loop: take everything that threads have brought."""
        self._is_awake = False
        inbox, remote = self._inbox, self._remote
        while inbox:
            waiting = inbox.popleft()
            if waiting.is_withdrawn:
                continue
            try:
                waiting.sent(remote.submit(waiting.command, waiting.settle))
            except UNWRITABLE as error:  # it cannot even be looked at, and its thread must not wait for ever
                waiting.settle(None, unwritable(error))
        remote.flush()

    def _withdraw(self, waiting: _Waiting) -> None:
        waiting.is_withdrawn = True
        self._take()  # the interrupt may have come before anybody was told of the inbox
        if waiting.outstanding is not None:
            self._remote.withdraw(waiting.outstanding)
        if has_messages(waiting.reply):
            self._remote.give_back(waiting.reply)

    def _check_process(self) -> None:
        if self._background.pid != os.getpid():
            raise NotSent("this connection was made before a fork, by the parent: connect again in the child")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        if self._background.pid == os.getpid():
            self._background.run(self._remote.close())

    def now_ms(self) -> int:
        """The server's time, as far as it is known here."""
        return self._remote.now_ms()

    @property
    def frame_bytes_max(self) -> int | None:
        """How large a call may be."""
        return self._remote.frame_bytes_max

    @property
    def identity(self) -> Identity:
        """Who names messages and writes receipts."""
        return self._remote.identity

    @property
    def reports(self) -> list[Damage]:
        """Damage that the server reported."""
        return self._remote.reports

    @property
    def transport(self) -> TransportName | None:
        return self._remote.transport
