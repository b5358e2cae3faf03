"""An open store: where every handle comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.listener import AsyncListener, run_together
from penstock.client.aio.queue import AsyncQueue, sequences_of
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.content import Body, MessageLife, encode_body
from penstock.client.listening import ListenerSettings
from penstock.client.queue_settings import QueueSettings
from penstock.client.times import Seconds, config_of, length_ms
from penstock.core.backoff import backoff
from penstock.core.commands import (
    MAIN,
    CancelRedrive,
    CountQueues,
    CreateQueue,
    Damage,
    EndSession,
    Heartbeat,
    Life,
    ListQueues,
    ListRedrives,
    ListSessions,
    LookUp,
    NameQueue,
    OpenSession,
    RedriveTask,
    SessionInfo,
    StartRedrive,
    Stats,
    session_named,
)
from penstock.core.delivery.receipt import gone, no_message_id, open_message_id
from penstock.core.errors import (
    AccessDenied,
    InvalidRequest,
    MessageNotFound,
    QueueNotFound,
    SessionNotFound,
    TaskNotFound,
)
from penstock.core.queues.config import dead_letter_name


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

    async def create_queue(
        self, name: str, *, channels: Iterable[str] = (MAIN,), **settings: Unpack[QueueSettings]
    ) -> AsyncQueue:
        """Create a queue with these settings. Once more with the same is fine; with others it is `QueueExists`.

        `channels` are those it has from the start. Without any, messages are kept for the first one that comes.
        """
        config = config_of(name, settings)
        await self._caller.call(CreateQueue(name=name, config=config, channels=tuple(channels)))
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

    async def stats(self, prefix: str = "") -> list[Stats]:
        """Exact counts of all queues whose names start so, and of each of their channels, in order: few questions."""
        found: list[Stats] = []
        while True:
            after = found[-1].name if found else ""
            page: list[Stats] = await self._caller.call(CountQueues(prefix=prefix, after=after))
            found += page
            if not page:
                return found

    async def session(self, name: str, *, ttl: Seconds | None = None) -> AsyncSession:
        """Start a session. With `ttl` it ends by itself when no heartbeat comes for so long."""
        number: int = await self._caller.call(OpenSession(name=name, ttl_ms=length_ms(ttl, "ttl")))
        return AsyncSession(self._caller, name, number)

    async def sessions(self, queue: str | None = None, *, limit: int = 1_000) -> list[SessionInfo]:
        """Who holds messages, since when and until when: those that hold most first. Of a queue, or of all.

        A session is a client's own, or a connection. With a queue, what is held without one comes as number 0. You see
        the queues that you may read; sessions that hold nothing are seen by who may read all.

        >>> import penstock
        >>> with penstock.open(":memory:") as ps:
        ...     sent = ps.queue("orders").send(b"tea")
        ...     message = ps.session("worker-1").queue("orders").receive()
        ...     for each in ps.sessions():
        ...         print(each.id, each.name, each.held, [lease.queue for lease in each.leases])
        ...     ps.end_session("0-1")
        0-1 worker-1 1 ['orders']
        1
        """
        told: list[SessionInfo] = await self._caller.call(ListSessions(queue=queue, limit=limit))
        return sorted(told, key=lambda each: (each.session != 0, -each.held))

    async def end_session(self, session: str) -> int:
        """End a session, whosever it is, by its id in `sessions()`: what it holds is ready for others at once.

        That needs the right to administer every queue of which it holds messages, or all, if it holds none. Returns
        how many messages were released; `SessionNotFound` if the session has ended.
        """
        named = session_named(session)
        if named is None:
            raise InvalidRequest(f"session {session!r} is not a session id: ids look like 0-17, see sessions()")
        shard, number = named
        count: int = await self._caller.call(EndSession(session=number, shard=shard))
        return count

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
        group: str | None = None,
        discard: bool = False,
    ) -> AsyncRedrive:
        """Move messages of a dead-letter queue to where they came from, or to the queue `to`; or delete them.

        All of them; or those with these `ids` (or sequence numbers), those whose body holds `contains`, those one of
        whose errors holds `error`, those whose last error is of the kind `group`. `rate`: so many a second at most.
        With `discard` they are deleted.
        """
        command = StartRedrive(
            queue=queue,
            target=to,
            sequences=None if ids is None else await sequences_of(self._caller, queue, ids),
            contains=None if contains is None else encode_body(contains),
            error=error,
            per_second=rate,
            group=group,
            discard=discard,
        )
        task: RedriveTask = await self._caller.call(command)
        return AsyncRedrive(self._caller, task)

    async def redrives(self, queue: str | None = None) -> list[RedriveTask]:
        """Redrives of a queue, or all, the newest first."""
        tasks: list[RedriveTask] = await self._caller.call(ListRedrives(queue=queue))
        return tasks

    async def find_message(self, message_id: str) -> MessageLife:
        """A message by its id alone, with all that is known of it: in its queue, or among its dead letters.

        `MessageNotFound` if it is done in every channel, or gone; `InvalidRequest` if this is no id.
        """
        name: str | None = await self._caller.call(NameQueue(queue_id=0))  # the connection knows the realm then
        opened = open_message_id(self._caller.identity.realm, message_id)
        if opened is not None:
            name = await self._caller.call(NameQueue(queue_id=opened[0]))
        if opened is None:
            raise InvalidRequest(no_message_id(message_id))
        if name is None:
            raise MessageNotFound(f"there is no message {message_id!r}: its queue is gone, or never existed")
        found: list[Life] = await self._caller.call(LookUp(queue=name, sequences=[opened[1]]))
        if found and not found[0].is_done:
            return MessageLife(self._caller.identity, found[0])
        info = await self.queue(name).info()
        for place in (info.config.dead_letter or dead_letter_name(name), name):  # a redrive brings it back, renumbered
            try:
                return await self.queue(place).look_up(message_id)
            except (AccessDenied, QueueNotFound, MessageNotFound):
                continue
        raise MessageNotFound(gone(message_id, name, opened[1]))

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
