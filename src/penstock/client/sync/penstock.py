"""An open store: where every handle comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from penstock.client.content import Body, MessageLife, encode_body
from penstock.client.listening import ListenerSettings
from penstock.client.queue_settings import QueueSettings
from penstock.client.sync.caller import Caller
from penstock.client.sync.listener import Listener, run_together
from penstock.client.sync.queue import Queue, sequences_of
from penstock.client.sync.unit_of_work import UnitOfWork
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


class Session:
    """Messages that are received through a session belong to it. Leaving its block ends it."""

    __slots__ = ("_caller", "_number", "name")

    def __init__(self, caller: Caller, name: str, number: int) -> None:
        self._caller = caller
        self._number = number
        self.name = name

    def queue(self, name: str) -> Queue:
        """A handle on a queue. Its leases belong to this session."""
        return Queue(self._caller, name, self._number)

    def unit_of_work(self) -> UnitOfWork:
        """A unit of work. Its leases belong to this session."""
        return UnitOfWork(self._caller, self._number)

    def heartbeat(self) -> None:
        """Keep the session alive. A session with a `ttl` ends when no heartbeat comes for that long."""
        self._caller.call(Heartbeat(session=self._number))

    def end(self, *, error: str = "session ended") -> int:
        """Release everything that the session holds, in one commit. Returns the number of messages."""
        count: int = self._caller.call(EndSession(session=self._number, error=error))
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end()
        except SessionNotFound:
            return

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"


_FIRST_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.25


class Redrive:
    """A redrive that was started. It runs in the background, and continues after a restart."""

    __slots__ = ("_caller", "_queue", "_task")

    def __init__(self, caller: Caller, task: RedriveTask) -> None:
        self._caller = caller
        self._queue = task.queue
        self._task = task.task

    @property
    def number(self) -> int:
        """The task's number."""
        return self._task

    def progress(self) -> RedriveTask:
        """How far the redrive is."""
        tasks: list[RedriveTask] = self._caller.call(ListRedrives(queue=self._queue))
        for task in tasks:
            if task.task == self._task:
                return task
        raise TaskNotFound(f"there is no redrive {self._task} of queue {self._queue!r}")

    def cancel(self) -> RedriveTask:
        """Stop the redrive. Messages that were moved stay moved."""
        task: RedriveTask = self._caller.call(CancelRedrive(task=self._task))
        return task

    def wait(self, timeout: Seconds | None = None) -> RedriveTask:
        """Wait until the redrive is over, or the time is up. The `status` says which."""
        left_ms = length_ms(timeout, "timeout")
        looks = 0
        while True:
            task = self.progress()
            if task.status != "running" or (left_ms is not None and left_ms <= 0):
                return task
            looks += 1
            pause = backoff(looks, _FIRST_LOOK_SECONDS, _LOOK_SECONDS_MAX)
            self._caller.sleep(pause if left_ms is None else min(pause, left_ms / 1_000))
            left_ms = None if left_ms is None else left_ms - max(1, round(pause * 1_000))

    def __repr__(self) -> str:
        return f"<Redrive {self._task} of {self._queue!r}>"


_PAGE = 1_000


class Penstock:
    """A store of queues. Close it, or use it as a context manager."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._listeners: list[Listener] = []

    def queue(self, name: str) -> Queue:
        """A handle on a queue. Nothing is created until the first write."""
        return Queue(self._caller, name)

    def create_queue(self, name: str, *, channels: Iterable[str] = (MAIN,), **settings: Unpack[QueueSettings]) -> Queue:
        """Create a queue with these settings. If it exists with the same ones, that is fine; otherwise `QueueExists`.

        `channels` are the channels that it has from the start. Without any, messages are kept for the first channel
        that is created.
        """
        config = config_of(name, settings)
        self._caller.call(CreateQueue(name=name, config=config, channels=tuple(channels)))
        return Queue(self._caller, name)

    def queues(self, prefix: str = "", *, dead_letters_to: str | None = None) -> list[str]:
        """The names of queues that start with `prefix`, in order; or of those with a given dead-letter queue."""
        names: list[str] = []
        while True:
            after = names[-1] if names else ""
            command = ListQueues(prefix=prefix, after=after, limit=_PAGE, dead_letters_to=dead_letters_to)
            page: list[str] = self._caller.call(command)
            names += page
            if len(page) < _PAGE:
                return names

    def stats(self, prefix: str = "") -> list[Stats]:
        """Exact counts of all queues whose names start with `prefix`, and of their channels, in order of the names."""
        found: list[Stats] = []
        while True:
            after = found[-1].name if found else ""
            page: list[Stats] = self._caller.call(CountQueues(prefix=prefix, after=after))
            found += page
            if not page:
                return found

    def session(self, name: str, *, ttl: Seconds | None = None) -> Session:
        """Start a session. With a `ttl`, it ends by itself when no heartbeat comes for that long."""
        number: int = self._caller.call(OpenSession(name=name, ttl_ms=length_ms(ttl, "ttl")))
        return Session(self._caller, name, number)

    def sessions(self, queue: str | None = None, *, limit: int = 1_000) -> list[SessionInfo]:
        """Who holds messages of a queue or of all queues, since when and until when. Those that hold most come first.

        These are connections, and sessions that clients opened. For one queue, session number 0 stands for messages
        that are held without a session. You see only queues that you may read. To see sessions that hold no messages,
        you need the right to read all queues.

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
        told: list[SessionInfo] = self._caller.call(ListSessions(queue=queue, limit=limit))
        return sorted(told, key=lambda each: (each.session != 0, -each.held))

    def end_session(self, session: str) -> int:
        """End any client's session, by its id in `sessions()`. The messages that it holds are ready for others at once.

        That needs the right `admin` on every queue whose messages it holds, or on all queues if it holds none. Returns
        the number of messages that were released. Raises `SessionNotFound` if the session has ended.
        """
        named = session_named(session)
        if named is None:
            raise InvalidRequest(f"session {session!r} is not a session id: ids look like 0-17, see sessions()")
        shard, number = named
        count: int = self._caller.call(EndSession(session=number, shard=shard))
        return count

    def unit_of_work(self) -> UnitOfWork:
        """A unit of work: takes and puts that happen together or not at all."""
        return UnitOfWork(self._caller)

    def listen(self, queue: str, handler: Callable[..., Any], **settings: Unpack[ListenerSettings]) -> Listener:
        """Call `handler(message)`, or `handler(message, tx)`, with each message of a queue, by `workers` workers.

        When the handler returns, one commit acknowledges its message and sends what it put into `tx`, a unit of work.
        When it raises, nothing is sent, and the message goes back with the error. `policy`, `consume_times` and
        `backoff` change the queue. `stop()` the listener, or use it as a context manager.
        """
        return self._declared(queue, handler, settings).start()

    def listener(self, queue: str, **settings: Unpack[ListenerSettings]) -> Callable[[Callable[..., Any]], Listener]:
        """A decorator that makes a listener of a handler. Start it with `start`, a `with` block or `run_listeners`."""
        if not isinstance(queue, str):
            raise InvalidRequest("the decorator needs the name of a queue: write @ps.listener('orders')")
        return lambda handler: self._declared(queue, handler, settings)

    def run_listeners(self, *, timeout: Seconds | None = 30) -> bool:
        """Start every listener that was declared here, and stop all when SIGTERM or SIGINT comes.

        `request_stop` of one listener stops the others too. Returns True if every handler finished in time.
        """
        return run_together(self._listeners, timeout)

    def _declared(self, queue: str, handler: Callable[..., Any], settings: ListenerSettings) -> Listener:
        listener = Listener(self._caller, queue, handler, **settings)
        self._listeners = [each for each in self._listeners if each.state != "stopped"]
        self._listeners.append(listener)
        return listener

    def redrive(
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
    ) -> Redrive:
        """Move messages of a dead-letter queue back to the queues that they came from, or to the queue `to`.

        Without conditions, all of them are moved. `ids`: only these ids or sequence numbers. `contains`: only messages
        whose body contains this. `error`: only messages with this text in one of their errors. `group`: only messages
        whose last error is of this group. `rate`: at most so many a second. With `discard` they are deleted instead.
        """
        command = StartRedrive(
            queue=queue,
            target=to,
            sequences=None if ids is None else sequences_of(self._caller, queue, ids),
            contains=None if contains is None else encode_body(contains),
            error=error,
            per_second=rate,
            group=group,
            discard=discard,
        )
        task: RedriveTask = self._caller.call(command)
        return Redrive(self._caller, task)

    def redrives(self, queue: str | None = None) -> list[RedriveTask]:
        """The redrives of a queue, or all of them, the newest first."""
        tasks: list[RedriveTask] = self._caller.call(ListRedrives(queue=queue))
        return tasks

    def find_message(self, message_id: str) -> MessageLife:
        """A message by its id alone, in its queue or among its dead letters, with everything that is known about it.

        Raises `MessageNotFound` if it is done in every channel or was deleted, and `InvalidRequest` if this is no id.
        """
        name: str | None = self._caller.call(NameQueue(queue_id=0))  # the connection knows the realm then
        opened = open_message_id(self._caller.identity.realm, message_id)
        if opened is not None:
            name = self._caller.call(NameQueue(queue_id=opened[0]))
        if opened is None:
            raise InvalidRequest(no_message_id(message_id))
        if name is None:
            raise MessageNotFound(f"there is no message {message_id!r}: its queue is gone, or never existed")
        found: list[Life] = self._caller.call(LookUp(queue=name, sequences=[opened[1]]))
        if found and not found[0].is_done:
            return MessageLife(self._caller.identity, found[0])
        info = self.queue(name).info()
        for place in (info.config.dead_letter or dead_letter_name(name), name):  # a redrive brings it back, renumbered
            try:
                return self.queue(place).look_up(message_id)
            except (AccessDenied, QueueNotFound, MessageNotFound):
                continue
        raise MessageNotFound(gone(message_id, name, opened[1]))

    @property
    def damage(self) -> list[Damage]:
        """The latest reports of stored messages that do not match their checksum. They are quarantined, not deleted."""
        return self._caller.reports

    @property
    def transport(self) -> str | None:
        """The transport in use: `websocket`, `long_poll` or `poll`. None in process, or without a connection."""
        transport: str | None = getattr(self._caller, "transport", None)
        return transport

    def close(self) -> None:
        """Stop the listeners, write what is left, and close. A second call does nothing."""
        for listener in self._listeners:
            listener.stop()
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
