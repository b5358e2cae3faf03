"""An open store: where every handle comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.listener import AsyncListener, run_together
from penstock.client.aio.queue import AsyncQueue
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.content import Body, encode_body
from penstock.client.listening import ListenerSettings
from penstock.client.queue_settings import QueueSettings
from penstock.client.settings import config_of
from penstock.client.times import Seconds, length_ms
from penstock.core.backoff import backoff
from penstock.core.commands import (
    CancelRedrive,
    CreateQueue,
    Damage,
    EndSession,
    Heartbeat,
    ListQueues,
    ListRedrives,
    OpenSession,
    RedriveTask,
    StartRedrive,
)
from penstock.core.errors import InvalidRequest, SessionNotFound, TaskNotFound


class AsyncSession:
    """What is received through a session belongs to it. Leaving its block ends it."""

    __slots__ = ("_caller", "_number", "name")

    def __init__(self, caller: AsyncCaller, name: str, number: int) -> None:
        self._caller = caller
        self._number = number
        self.name = name

    def queue(self, name: str) -> AsyncQueue:
        """A handle on a queue, whose leases are this session's."""
        return AsyncQueue(self._caller, name, self._number)

    def unit_of_work(self) -> AsyncUnitOfWork:
        """A unit of work, whose leases are this session's."""
        return AsyncUnitOfWork(self._caller, self._number)

    async def heartbeat(self) -> None:
        """The session is alive: a session with a time to live ends when no heartbeat comes for so long."""
        await self._caller.call(Heartbeat(session=self._number))

    async def end(self, *, error: str = "session ended") -> int:
        """Release everything that the session holds, in one commit. Returns how many messages."""
        count: int = await self._caller.call(EndSession(session=self._number, error=error))
        return count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.end()
        except SessionNotFound:
            return

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"


_FIRST_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.25


class AsyncRedrive:
    """A redrive that was started. It goes on by itself, also after a restart."""

    __slots__ = ("_caller", "_queue", "_task")

    def __init__(self, caller: AsyncCaller, task: RedriveTask) -> None:
        self._caller = caller
        self._queue = task.queue
        self._task = task.task

    @property
    def number(self) -> int:
        """The task's number."""
        return self._task

    async def progress(self) -> RedriveTask:
        """How far it is."""
        tasks: list[RedriveTask] = await self._caller.call(ListRedrives(queue=self._queue))
        for task in tasks:
            if task.task == self._task:
                return task
        raise TaskNotFound(f"there is no redrive {self._task} of queue {self._queue!r}")

    async def cancel(self) -> RedriveTask:
        """Stop. What was moved stays moved."""
        task: RedriveTask = await self._caller.call(CancelRedrive(task=self._task))
        return task

    async def wait(self, timeout: Seconds | None = None) -> RedriveTask:
        """Until it is over, or the time is up: look at `status`."""
        left_ms = length_ms(timeout, "timeout")
        looks = 0
        while True:
            task = await self.progress()
            if task.status != "running" or (left_ms is not None and left_ms <= 0):
                return task
            looks += 1
            pause = backoff(looks, _FIRST_LOOK_SECONDS, _LOOK_SECONDS_MAX)
            await self._caller.sleep(pause if left_ms is None else min(pause, left_ms / 1_000))
            left_ms = None if left_ms is None else left_ms - max(1, round(pause * 1_000))

    def __repr__(self) -> str:
        return f"<Redrive {self._task} of {self._queue!r}>"


_PAGE = 1_000


class AsyncPenstock:
    """A store of queues. Close it, or use it as a context manager."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller
        self._listeners: list[AsyncListener] = []

    def queue(self, name: str) -> AsyncQueue:
        """A handle on a queue. Nothing is created until the first write."""
        return AsyncQueue(self._caller, name)

    async def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> AsyncQueue:
        """Create a queue with these settings. Once more with the same is fine; with others it is `QueueExists`."""
        await self._caller.call(CreateQueue(name=name, config=config_of(name, settings)))
        return AsyncQueue(self._caller, name)

    async def queues(self, prefix: str = "", *, dead_letters_to: str | None = None) -> list[str]:
        """The names of all queues that start so, in order; or of those whose dead letters go to a queue."""
        names: list[str] = []
        while True:
            after = names[-1] if names else ""
            command = ListQueues(prefix=prefix, after=after, limit=_PAGE, dead_letters_to=dead_letters_to)
            page: list[str] = await self._caller.call(command)
            names += page
            if len(page) < _PAGE:
                return names

    async def session(self, name: str, *, ttl: Seconds | None = None) -> AsyncSession:
        """Start a session. With `ttl` it ends by itself when no heartbeat comes for so long."""
        number: int = await self._caller.call(OpenSession(name=name, ttl_ms=length_ms(ttl, "ttl")))
        return AsyncSession(self._caller, name, number)

    def unit_of_work(self) -> AsyncUnitOfWork:
        """Takes and puts that happen together or not at all."""
        return AsyncUnitOfWork(self._caller)

    async def listen(
        self, queue: str, handler: Callable[..., Any], **settings: Unpack[ListenerSettings]
    ) -> AsyncListener:
        """Call `handler(message)`, or `handler(message, tx)`, with each message of a queue, by `workers` at a time.

        When the handler returns, its message is acknowledged and what it put into `tx`, a unit of work, is sent, in one
        commit. When it raises, nothing of that happens, and the message goes back with the error. `policy`,
        `consume_times` and `backoff` change the queue. `stop()` the listener, or use it as a context manager.
        """
        return await self._declared(queue, handler, settings).start()

    def listener(
        self, queue: str, **settings: Unpack[ListenerSettings]
    ) -> Callable[[Callable[..., Any]], AsyncListener]:
        """A decorator that makes a listener of a handler. It starts with `start()`, its block, or `run_listeners()`."""
        if not isinstance(queue, str):
            raise InvalidRequest("the decorator needs the name of a queue: write @ps.listener('orders')")
        return lambda handler: self._declared(queue, handler, settings)

    async def run_listeners(self, *, timeout: Seconds | None = 30) -> bool:
        """Start every listener that was declared here, and stop all when SIGTERM or SIGINT comes.

        A listener of which `request_stop` is called ends the others too. True if every handler finished in time.
        """
        return await run_together(self._listeners, timeout)

    def _declared(self, queue: str, handler: Callable[..., Any], settings: ListenerSettings) -> AsyncListener:
        listener = AsyncListener(self._caller, queue, handler, **settings)
        self._listeners = [each for each in self._listeners if each.state != "stopped"]
        self._listeners.append(listener)
        return listener

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        ids: Iterable[str | int] | None = None,
        contains: Body | None = None,
        error: str | None = None,
        rate: int | None = None,
    ) -> AsyncRedrive:
        """Move messages of a dead-letter queue to where they came from, or to the queue `to`.

        All of them; or those with these `ids` (or sequence numbers), those whose body holds `contains`, those one of
        whose errors holds `error`. `rate`: so many a second at most.
        """
        command = StartRedrive(
            queue=queue,
            target=to,
            sequences=None if ids is None else await self._sequences(queue, ids),
            contains=None if contains is None else encode_body(contains),
            error=error,
            per_second=rate,
        )
        task: RedriveTask = await self._caller.call(command)
        return AsyncRedrive(self._caller, task)

    async def redrives(self, queue: str | None = None) -> list[RedriveTask]:
        """Redrives of a queue, or all, the newest first."""
        tasks: list[RedriveTask] = await self._caller.call(ListRedrives(queue=queue))
        return tasks

    async def _sequences(self, queue: str, ids: Iterable[str | int]) -> list[int]:
        """The sequence numbers of messages that are named by id. A moved message keeps its id, so one has to look."""
        given = list(ids)
        found = {one for one in given if isinstance(one, int)}
        missing = {one for one in given if isinstance(one, str)}
        after, handle = -1, self.queue(queue)
        while missing:
            page = await handle.browse(after=after, limit=_PAGE)
            if not page:
                raise InvalidRequest(f"queue {queue!r} holds no message with the id {min(missing)}")
            found.update(message.sequence for message in page if message.id in missing)
            missing.difference_update(message.id for message in page)
            after = page[-1].sequence
        return sorted(found)

    @property
    def damage(self) -> list[Damage]:
        """The last reports of stored messages that no longer match their checksum. They are kept aside, not deleted."""
        return self._caller.reports

    @property
    def transport(self) -> str | None:
        """How commands travel: `websocket`, `long_poll` or `poll`; None in-process, or while there is no connection."""
        transport: str | None = getattr(self._caller, "transport", None)
        return transport

    async def close(self) -> None:
        """Stop the listeners, write what is left and close. Once more does nothing."""
        for listener in self._listeners:
            await listener.stop()
        await self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
