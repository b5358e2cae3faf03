"""A listener: workers that call a handler with each message of a queue, and settle what it did.

How it works. One fetcher has messages pushed to it, or receives them in batches where there is nobody to push, and puts
them into a line; workers take them from there one by one and call the handler; what handlers have done is settled, many
at a time, by an acknowledger (see `acknowledger.py`), which also keeps the leases of everything in hand. So a message
costs its handler's call and little more, and a slow commit holds up nobody.

How much is in hand. Messages that wait here cannot go to anybody else, and too few of them leave workers idle. Unless
`prefetch` says otherwise, the fetcher aims at what the workers will do in the next half second, by what the last
messages took. A message whose handler has ended takes no room any more: the next one comes while it is settled. With an
at-most policy nothing is fetched ahead: a message counts as consumed once it left the server.

A receive that fails is tried again after a pause which grows, with jitter; so a listener outlives its server. It ends
when it is stopped, and not before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.client.aio.acknowledger import AsyncAcknowledger, AsyncOutcome, LeaseLost
from penstock.client.aio.caller import AsyncCaller, AsyncStream, AsyncStreaming
from penstock.client.aio.message import AsyncMessage, messages_of
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.content import error_text
from penstock.client.listening import (
    GroupOrder,
    HandlerTimes,
    ListenerMetrics,
    check_range,
    next_try,
    pause_seconds,
    seconds_of,
    settings_of,
    wants_unit_of_work,
)
from penstock.client.task_workers import (
    WAIT_SECONDS,
    Signal,
    WorkerPool,
    WorkQueue,
    check_handler,
    finish_handler,
    is_cancelled,
    told_to_stop,
)
from penstock.client.times import Seconds, changes_of, config_of, length_ms
from penstock.core.commands import (
    MAIN,
    ChangeQueue,
    CreateChannel,
    CreateQueue,
    Delivery,
    DescribeQueue,
    QueueInfo,
    Receive,
)
from penstock.core.errors import InvalidRequest, QueueExists, QueueNotFound
from penstock.core.queues.config import Backoff, PolicyName, QueueConfig

_LOG = logging.getLogger("penstock.listener")
WORKERS_MAX = 10_000
_IN_HAND = 2_000
"""How many messages wait for a worker, or are worked on, at most, unless it is told."""
_UNSETTLED_MAX = 2_000
"""How many more may be leased here because their handlers have ended and their acknowledgement is under way."""
_AHEAD_SECONDS = 0.5
"""How much work is fetched ahead, unless it is told."""
_GRACE_SECONDS = 5.0
"""How long a stop waits for the last acknowledgement."""
_LAST_WAIT_SECONDS = 0.5
"""How long a receive waits that no stop calls off, because what it brings would be gone."""
_LOGGED_LETTERS_MAX = 500
_LOOK_SECONDS = 0.05
"""How often it looks whether handlers have ended, if nobody tells."""


class AsyncListener:
    """Workers that handle the messages of one queue. Use `start` and `stop`, a `with` block, or `run_forever`."""

    def __init__(
        self,
        caller: AsyncCaller,
        queue: str,
        handler: Callable[..., Any],
        *,
        workers: int = 8,
        channel: str = MAIN,
        policy: PolicyName | None = None,
        consume_times: int | None = None,
        backoff: Backoff | None = None,
        lease: Seconds | None = None,
        prefetch: int | None = None,
        max_in_hand: int | None = None,
        name: str | None = None,
    ) -> None:
        check_handler(handler)
        check_range("workers", workers, 1, WORKERS_MAX)
        check_range("prefetch", prefetch, 0, WORKERS_MAX)
        check_range("max_in_hand", max_in_hand, 1, 1_000_000)
        self.name = name or str(getattr(handler, "__name__", "handler"))
        self.workers = workers
        self._caller = caller
        self._queue = queue
        self._channel = channel
        self._handler = handler
        self._wants_work = wants_unit_of_work(handler)
        self._settings = settings_of(policy, consume_times, backoff)
        self._lease_ms = length_ms(lease, "lease")
        self._prefetch = prefetch
        self._max_in_hand = max_in_hand or max(_IN_HAND, 2 * workers + (prefetch or 0))
        self._state = "new"
        self._info: QueueInfo | None = None
        """The queue, if it was asked for before the start."""
        self._config = QueueConfig()
        """The queue's, as it was at the start."""
        self._lock = threading.Lock()
        self._stopping = False
        self._handles_all = False
        """Whether what comes is handled, although this is the end: an at-most policy has counted it as consumed."""
        self._abandoned = False
        self._error: BaseException | None = None
        self._failures = 0
        """Receives that failed, one after the other."""
        self._mean_seconds: float | None = None
        """What a handler took lately."""
        self._seen = (0, 0.0)
        """How many handlers had ended, and how long they had taken, when that was computed."""
        self._room = Signal()
        self._stop_asked = Signal()
        self._work_queue: WorkQueue[AsyncMessage] = WorkQueue()
        self._begun: dict[HandlerTimes, AsyncMessage] = {}
        """What each worker is at."""
        self._fetching = WorkerPool(f"penstock-{self.name}-fetch")
        self._working = WorkerPool(f"penstock-{self.name}")
        self._acknowledging = WorkerPool(f"penstock-{self.name}-settle")
        self.metrics = ListenerMetrics(self, queue, channel, self.name)
        self._acknowledger = AsyncAcknowledger(caller, queue, channel, self.metrics, self._room.set)
        self._acknowledger.spare_room = self._spare_room
        self._streaming = caller if isinstance(caller, AsyncStreaming) else None

    def __call__(self, *arguments: Any) -> Any:
        """The handler itself: a decorated function can still be called, by a test for one."""
        return self._handler(*arguments)

    @property
    def state(self) -> str:
        """`new`, `running`, `stopping` or `stopped`."""
        return self._state

    @property
    def in_hand(self) -> int:
        """How many messages are leased by this listener and not yet settled."""
        return self._acknowledger.in_hand

    @property
    def last_error(self) -> BaseException | None:
        """Why the last receive failed. None if it did not fail."""
        return self._error

    # -- starting and stopping --

    async def prepare(self) -> None:
        """All of the start that may have to wait for a server. Nothing is in hand yet."""
        if self._state == "new":
            self._info = await self._prepare()

    async def start(self) -> Self:
        """Configure the queue if the settings ask for that, and start the workers."""
        if self._state == "running":
            return self
        if self._state != "new":
            raise InvalidRequest(f"the listener {self.name!r} is {self._state}: create another one")
        info, self._info = self._info or await self._prepare(), None
        self._config = info.config
        self._acknowledger.order = GroupOrder() if info.config.is_fifo else None
        self._acknowledger.begin = self._work_queue.put
        if info.config.leases_are_durable:
            self._streaming = None
            self._prefetch = self._prefetch or 0
            self._handles_all = True
            self._acknowledger.is_one_by_one = info.config.is_fifo
        self._state = "running"
        self._acknowledging.start(self._acknowledger.run)
        for _ in range(self.workers):
            self._working.start(self._work)
        self._fetching.start(self._fetch)
        return self

    def request_stop(self) -> None:
        """Ask the listener to stop. It may be called from anywhere, also from a handler or a signal handler."""
        self._stopping = True
        self._room.set()
        self._stop_asked.set()

    async def stop(self, timeout: Seconds | None = 30) -> bool:
        """Fetch no more messages, give back those that were not begun, and finish and settle the others.

        Handlers that run longer than `timeout` (None: no limit) lose their messages, which are released. Tasks are then
        cancelled; threads run to their end. Returns True if there were no such handlers. A handler must not call this,
        but may call `request_stop`.
        """
        timeout_s = seconds_of(timeout)
        if self._state in ("new", "stopped"):
            self._state = "stopped"
            return True
        self._state = "stopping"
        self.request_stop()
        left_s = await self._handle_what_came(timeout_s) if self._handles_all else timeout_s
        self._fetching.cancel()
        await self._acknowledger.give_back(self._not_begun())
        self._work_queue.close()
        finished = await self._working.wait(left_s)
        if not finished:
            self._abandoned = True
            self._working.cancel()
            reason = f"the listener stopped, and its handler did not end in {timeout_s} s"
            await self._acknowledger.abandon(list(self._begun.values()), reason)
        await self._fetching.wait(WAIT_SECONDS + _GRACE_SECONDS)
        self._acknowledger.finish()
        if not await self._acknowledging.wait(_GRACE_SECONDS):
            self._acknowledging.cancel()
        self._state = "stopped"
        return finished

    async def run_forever(self, *, timeout: Seconds | None = 30) -> bool:
        """Start, and stop in good order on SIGTERM, on SIGINT, or when `request_stop` is called."""
        return await run_together([self], timeout)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _handle_what_came(self, timeout_s: float | None) -> float | None:
        """What was given back would be gone: have it handled, while there is time. Returns how much time is left."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        most_s = self._wait_seconds + _GRACE_SECONDS
        await self._fetching.wait(most_s if timeout_s is None else min(timeout_s, most_s))
        while self._acknowledger.unhandled and (until is None or time.monotonic() < until):
            await self._room.wait(_LOOK_SECONDS)
        with self._lock:
            self._handles_all = False
        return None if until is None else max(0.0, until - time.monotonic())

    def _not_begun(self) -> list[AsyncMessage]:
        with self._lock:
            behind = self._acknowledger.drain()  # first: what follows somebody else goes from there into the work queue
            return self._work_queue.drain() + behind

    async def _prepare(self) -> QueueInfo:
        """The queue as it is; made, and configured, if need be."""
        try:
            info: QueueInfo = await self._caller.call(DescribeQueue(name=self._queue))
        except QueueNotFound:
            info = await self._create()
        changes = changes_of(self._settings)
        if any(getattr(info.config, setting) != value for setting, value in changes.items()):
            _LOG.info("listener %r sets %s of queue %r", self.name, ", ".join(changes), self._queue)
            info = await self._caller.call(ChangeQueue(name=self._queue, changes=changes))
        if self._channel not in info.channels:
            await self._caller.call(CreateChannel(queue=self._queue, channel=self._channel))
        return info

    async def _create(self) -> QueueInfo:
        try:
            await self._caller.call(CreateQueue(name=self._queue, config=config_of(self._queue, self._settings)))
            _LOG.warning("listener %r: there was no queue %r, so it was created", self.name, self._queue)
        except QueueExists:  # somebody was faster
            _LOG.debug("queue %r was created by another process in the meantime", self._queue)
        info: QueueInfo = await self._caller.call(DescribeQueue(name=self._queue))
        return info

    def tell_of_stops(self, stop_asked: Signal) -> None:
        """Somebody waits for several listeners at once. A stop that was asked for before is told at once."""
        self._stop_asked = stop_asked
        if self._stopping:
            stop_asked.set()

    # -- fetching --

    async def _fetch(self) -> None:
        while not self._stopping:
            stream = self._new_stream()
            try:
                await (self._ask_once() if stream is None else self._follow(stream))
            except Exception as error:  # whatever it is: a listener goes on
                self._failures += 1
                await self._pause(error, self._failures)

    def _new_stream(self) -> AsyncStream | None:
        if self._streaming is None:
            return None
        return self._streaming.open_stream(self._queue, self._channel, self._lease_ms, self)

    async def _follow(self, stream: AsyncStream) -> None:
        """Let messages come, as many as there is room for, until the stream is over."""
        try:
            while not (self._stopping or stream.is_over):
                stream.top_up()
                await self._room.wait()
        finally:
            await stream.close()
        if stream.error is not None:
            raise stream.error

    def room(self) -> int:
        """How many messages may be on their way: see `PushTarget`."""
        return self._room_for(self._wanted())

    def _room_for(self, wanted: int) -> int:
        acknowledger = self._acknowledger
        return max(0, min(wanted - acknowledger.unhandled, wanted + _UNSETTLED_MAX - acknowledger.in_hand))

    def ask(self) -> None:
        """The stream has something to tell: see `PushTarget`."""
        self._room.set()

    def take(self, delivery: Delivery) -> bool:
        """Messages have come by the stream: see `PushTarget`."""
        self._went_well(delivery)
        return self._begin(messages_of(self._caller, delivery))

    async def _ask_once(self) -> None:
        room = self._room_now()
        if not room:
            await self._room.wait()
            return
        delivery = await self._receive(room)
        self._failures, self._error = 0, None
        if delivery is not None and delivery.runs:
            self._went_well(delivery)
            messages = messages_of(self._caller, delivery)
            if not self._begin(messages):
                await self._acknowledger.give_back(messages)

    def _went_well(self, delivery: Delivery) -> None:
        self._failures, self._error = 0, None
        self._acknowledger.leases_last(delivery.deadline_ms - delivery.received_ms)

    async def _receive(self, room: int) -> Delivery | None:
        command = Receive(
            queue=self._queue,
            channel=self._channel,
            limit=1 if self._acknowledger.is_one_by_one else room,
            wait_ms=round(self._wait_seconds * 1_000),
            lease_ms=self._lease_ms,
        )
        delivery: Delivery | None = await self._caller.call(command)
        return delivery

    @property
    def _wait_seconds(self) -> float:
        return min(WAIT_SECONDS, _LAST_WAIT_SECONDS) if self._handles_all else WAIT_SECONDS

    def _begin(self, messages: list[AsyncMessage]) -> bool:
        """Messages have come: into the work queue with them. False if this is the end, and they have to go back."""
        with self._lock:
            if self._stopping and not self._handles_all:
                return False
            self._work_queue.put(self._acknowledger.hold(messages))
        return True

    async def _pause(self, error: Exception, failures: int) -> None:
        self._error = error
        self.metrics.receive_errors += 1
        seconds = pause_seconds(failures)
        log = _LOG.warning if failures == 1 else _LOG.info
        log("listener %r on %r: receiving failed, trying again in %.1f s: %s", self.name, self._queue, seconds, error)
        until = time.monotonic() + seconds
        while not self._stopping and (left := until - time.monotonic()) > 0:
            await self._room.wait(left)

    def _room_now(self) -> int:
        """How many messages to ask for; 0 while it is not worth asking."""
        wanted = self._wanted()
        room = self._room_for(wanted)
        return room if room >= max(1, (wanted - self.workers) // 2) else 0

    def _spare_room(self) -> int:
        """How many more messages could be in hand before it is half of what may be."""
        return max(0, self._wanted() // 2 - self._acknowledger.in_hand)

    def _wanted(self) -> int:
        """How many messages to have in hand."""
        return min(self.workers + self._ahead(), self._max_in_hand)

    def _ahead(self) -> int:
        """How many messages to have waiting for the workers."""
        if self._prefetch is not None:
            return self._prefetch
        count, seconds = self.metrics.worked()
        seen_count, seen_seconds = self._seen  # workers come here too
        if count - seen_count >= self.workers:
            self._mean_seconds = (seconds - seen_seconds) / (count - seen_count)
            self._seen = count, seconds
        if self._mean_seconds is None:
            return self.workers
        return min(self._max_in_hand, round(self.workers * _AHEAD_SECONDS / max(self._mean_seconds, 1e-6)))

    # -- working --

    async def _work(self) -> None:
        times = self.metrics.new_worker()
        while (message := await self._work_queue.get()) is not None:
            if self._acknowledger.is_gone(message):
                self._acknowledger.ended(AsyncOutcome(message, None, LeaseLost("its turn came too late")))
                continue
            self._begun[times] = message
            started = time.perf_counter()
            outcome = await self._handle(message)
            times.add(time.perf_counter() - started)
            if self._abandoned:
                return
            del self._begun[times]
            self._acknowledger.ended(outcome)

    async def _handle(self, message: AsyncMessage) -> AsyncOutcome:
        work = None
        try:
            if self._wants_work:
                work = AsyncUnitOfWork(self._caller)
                work.hold(message.queue, message.channel, [message.span])
                result = self._handler(message, work)
            else:
                result = self._handler(message)
            if result is not None:
                await finish_handler(self._handler, result)
        except BaseException as error:
            if is_cancelled(error, self._acknowledging):
                raise
            self._tell_of(error, message)
            return AsyncOutcome(message, work, error)
        return AsyncOutcome(message, work, None)

    def _tell_of(self, error: BaseException, message: AsyncMessage) -> None:
        attempts, text = message.attempts, " ".join(error_text(error).split())[:_LOGGED_LETTERS_MAX]
        then = next_try(self._config, self._queue, message.span.first, attempts)
        if message.is_settled:
            then = "was settled by its handler"
        told = (self.name, self._queue, message.id, attempts, then, text)
        _LOG.warning("listener %r on %r: message %s failed on attempt %d, and %s: %s", *told)
        _LOG.info("listener %r: where message %s failed", self.name, message.id, exc_info=error)

    def __repr__(self) -> str:
        return f"<Listener {self.name!r} on {self._queue!r}: {self._state}>"


async def run_together(listeners: list[AsyncListener], timeout: Seconds | None) -> bool:
    """Start listeners, and stop them all when a signal says so, or one of them was asked to.

    They are stopped as well when one of them cannot start, or whoever waits here is called off.
    """
    if not listeners:
        raise InvalidRequest("there is no listener to run: declare one with listen or listener")
    timeout_s = seconds_of(timeout)
    stop_asked = Signal()
    try:
        for listener in listeners:
            await listener.prepare()  # may take a while, and signals end that as they end anything
        with told_to_stop(stop_asked.set):
            for listener in listeners:
                listener.tell_of_stops(stop_asked)
                await listener.start()
            await stop_asked.wait()
    finally:
        finished = await _stop_together([each for each in listeners if each.state != "new"], timeout_s)
    return finished


async def _stop_together(listeners: list[AsyncListener], timeout_s: float | None) -> bool:
    for listener in listeners:
        listener.request_stop()
    until = None if timeout_s is None else time.monotonic() + timeout_s
    finished = True
    for listener in listeners:
        finished &= await listener.stop(None if until is None else max(0.0, until - time.monotonic()))
    return finished
