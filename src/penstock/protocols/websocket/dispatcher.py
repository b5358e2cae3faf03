"""The dispatcher: takes the commands of one client to the shard, and gathers the answers.

One dispatcher stands behind a websocket, another behind each request of a client that polls. Commands that came in one
frame go into one step; what that step answers is gathered in `answers` and leaves as one frame. No task waits for a
command: the shard calls back.

Answers may be large, and clients slow. So what asks for much claims room for its answer first (`server/budget.py`).
Until there is room, and until the client has read enough of what it asked for before, its further requests wait here
(`later`), and nothing more is read from the client.

When the client leaves, nothing that it was given may be lost. Waiting receives are withdrawn; deliveries that are still
here, and so have certainly not left, are given back; then the session ends, and what it holds is released. (With the
at-most policies the core counts a delivery that is given back all the same.)
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.core.commands import (
    COMMANDS,
    AddCredit,
    Browse,
    CancelRedrive,
    CancelWait,
    Command,
    CommitWork,
    CountQueues,
    CreateChannel,
    DeleteConsumer,
    Delivery,
    DescribeQueue,
    EndSession,
    FindOffsets,
    Heartbeat,
    LastMark,
    ListQueues,
    ListRedrives,
    ListSessions,
    NameQueue,
    Offsets,
    OpenSession,
    QueueStats,
    ReadRecords,
    Receive,
    Records,
    Seen,
    SetCredit,
    StartRedrive,
    Subscribe,
)
from penstock.core.errors import AccessDenied, InvalidRequest, OverLimit, PenstockError, SessionNotFound, Throttled
from penstock.core.handlers.once import Marks
from penstock.core.packed_error import pack_error
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.protocols.rest.caller import caller_of, rates_of
from penstock.protocols.rest.problems import code_of
from penstock.protocols.websocket.admission import session_handle, session_number
from penstock.server.audit import audit_of
from penstock.server.auth import ANYBODY, Principal, authorize, owned, restrict
from penstock.server.budget import BUSY, Share, asked_bytes
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMoved
from penstock.server.sessions import end_any_session, told_sessions
from penstock.server.shard import Call, ShardClosed, Tick, give_back
from penstock.server.shards import end_session
from penstock.server.tasks import CallbackCall
from penstock.wire.answers import Kind, Limits, Moved, encode_answers
from penstock.wire.packing import pack_reply
from penstock.wire.requests import INCOMING, AddPushCredit, Cancel, Hello, Route, StartPush, StopPush

_BAD_REQUEST, _SERVER_ERROR = 400, 500
_BROWSED_BYTES: Final = 4 * 1024 * 1024
_NOT_COUNTED: Final = frozenset({Cancel, AddPushCredit, StopPush, Heartbeat, EndSession, Route})
"""What keeps a conversation going, or ends something, is not limited by the rate."""
_LOCAL: Final = frozenset(
    kind for kind in COMMANDS if kind.traits.inside or kind.traits.has_messages or "session" in kind.__struct_fields__
)
"""What says something that the core takes differently: see `Dispatcher._localise`."""
_DEFAULTS: Final = {
    (kind, field.name): field.default
    for kind in COMMANDS
    for field in msgspec.structs.fields(kind)
    if field.name in kind.traits.inside
}
_CHANGES: Final = frozenset(kind for kind in COMMANDS if kind.traits.right == "admin") | {
    CreateChannel,
    DeleteConsumer,
    EndSession,
}
"""What the audit log tells: changes of queues, and of what others have."""
_AUDITED: Final = (
    *("channel", "consumer", "changes", "sequences", "target", "group", "paused", "due_ms", "task"),
    *("delay_ms", "shard", "session", "discard"),
)
"""What of a command the audit log tells, beside its queue."""
_NAMES_PER_STEP: Final = 1_000
"""However many names of queues a client asks for, the shard gives so many in a step."""
PUSH_ROOM_BYTES: Final = 4 * 1024 * 1024
"""What one push may have on its way to the client."""


class Open:
    """A request without an answer."""

    __slots__ = ("call", "command", "number", "started_s")

    def __init__(self, number: int, command: Command) -> None:
        self.number = number
        self.command = command
        self.started_s = time.perf_counter()
        self.call: CallbackCall | None = None


class Push:
    """A subscription: the shard's ticket for deliveries that nobody asks for one by one."""

    __slots__ = ("deliveries", "dispatcher", "early", "number", "room_bytes", "subscription")

    def __init__(self, dispatcher: Dispatcher, number: int) -> None:
        self.dispatcher = dispatcher
        self.number = number
        self.subscription = 0
        """0 until the shard has answered."""
        self.early: list[Open] = []
        """Credit for it that came before that: with many shards, messages may be there before the answer is."""
        self.deliveries: list[Delivery] = []
        self.room_bytes = PUSH_ROOM_BYTES
        """How much more the shard will hand out before it is told that the client reads."""

    def take(self, delivery: Delivery) -> None:
        """Keep a delivery until it may leave."""
        self.deliveries.append(delivery)

    def settle(self) -> None:
        """Everything taken may leave."""
        deliveries, self.deliveries = self.deliveries, []
        for delivery in deliveries:
            self.dispatcher.pushed(self, delivery)


class Dispatcher:
    """One client's commands, and its answers."""

    def __init__(
        self,
        services: Services,
        principal: Principal,
        session: int,
        limits: Limits,
        on_answer: Callable[[], None],
        *,
        protocol: str,
        peer: str = "",
        dispatchers: list[Dispatcher] | None = None,
        share: Share | None = None,
    ) -> None:
        self._services = services
        self._share = services.budget.share() if share is None else share
        self._claimed_bytes = 0
        """For answers of which some are still to come or to be sent."""
        self._granted_bytes = 0
        """For the first of those that wait."""
        self._pushed_bytes = 0
        """Of messages that were pushed, and have not left."""
        self._large_open = 0
        """Requests for much that are not answered."""
        self.later: deque[tuple[int, Command | InvalidRequest]] = deque()
        """Requests that wait until there is room for what one of them asks for: nothing more is read before."""
        self._shard = services.shard
        self._principal = principal
        self._session = session
        self._limits = limits
        self._on_answer = on_answer
        self._protocol = protocol
        self._peer = peer
        self._rates = rates_of(services)
        self._caller = caller_of(principal, peer)
        self._dispatchers = dispatchers
        """For a client that polls: the dispatchers of all its requests in flight. None: this is the only one."""
        self._open: dict[int, Open] = {}
        self._pushes: dict[int, Push] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._learning: dict[str, list[Open]] = {}
        """Queues that are asked for -> the requests that wait for that."""
        self._closed = False
        self._route_version = 0
        """The map by which the client has come here: what belongs elsewhere is refused. 0: it is forwarded."""
        self._moved: dict[str, int] = {}
        """Queues of which something was refused -> the newest map by which it was."""
        self.answers: list[tuple[int, int, Any]] = []
        """What waits to be sent: request, kind, value."""

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._open) + len(self.later)

    # -- requests --

    def take(self, requests: Sequence[tuple[int, Command | InvalidRequest]]) -> None:
        """Take requests to the shard. Each is answered, sooner or later."""
        if self.later:
            self.later.extend(requests)
            return
        for at, (number, command) in enumerate(requests):
            if isinstance(command, Command) and command.traits.has_messages and not self._has_room(command):
                self.later.extend(requests[at:])
                return
            try:
                self._take(number, command)
            except PenstockError as error:
                if not self._is_ours(error):
                    if isinstance(command, Command) and type(command) in _CHANGES:
                        self._audit(command, None, error)
                    self._answer(number, Kind.ERROR, pack_error(error))
                    self._note(type(command).__name__, command, error, 0.0)

    def _has_room(self, command: Any) -> bool:
        """Whether there is room for the answer to a command that may ask for much; else it is called back."""
        queue = self._shard.identity.queues.get(command.queue)
        bytes_max = self._services.settings.websocket.answer_bytes_max
        wanted_bytes = asked_bytes(queue, command.limit, bytes_max)
        if not wanted_bytes or queue is None:
            return True
        if isinstance(command, Receive) and (
            queue.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        ):
            return True  # it may wait for long, and answers with what came meanwhile
        if self._granted_bytes:
            self._claimed_bytes += self._granted_bytes
            self._granted_bytes = 0
            return True
        if self._claimed_bytes and self._claimed_bytes + wanted_bytes > bytes_max:
            if self._dispatchers is None:
                return False
            command.limit = 1  # who polls gets all its answers together
            return True
        if self._share.is_waiting:
            return False
        holds_something = self._share.held_bytes > 0
        if self._share.claim(wanted_bytes, self._room_came, self._find_no_room):
            self._claimed_bytes += wanted_bytes
            return True
        if self._dispatchers is None or not holds_something:
            return False
        self._share.withdraw()  # who holds a body, or answers, until all is answered must not wait for others who do
        command.limit = 1
        return True

    def _find_no_room(self) -> None:
        """The first of those that wait is answered without what it asked for; the others may ask for less."""
        number, command = self.later.popleft()
        error = Throttled(f"there is no room for the answer: {BUSY}")
        self._note(type(command).__name__, command, error, 0.0)
        self._answer(number, Kind.ERROR, pack_error(error))
        self._take_later()

    def _room_came(self) -> None:
        self._granted_bytes = self._share.wanted_bytes
        self._take_later()

    def _take_later(self) -> None:
        if self.later and not self._closed:
            requests, self.later = list(self.later), deque()
            self.take(requests)
            if not self.later:
                self._on_answer()

    def _take(self, number: int, command: Command | InvalidRequest) -> None:
        if isinstance(command, InvalidRequest):
            raise command
        if number in self._open or number in self._pushes:
            raise InvalidRequest(f"request {number} is not answered yet: use another number")
        if len(self._open) >= self._limits.requests_max:
            raise OverLimit(f"{self._limits.requests_max} requests are not answered yet: wait for some of them")
        if self._rates is not None and type(command) not in _NOT_COUNTED:
            self._rates.count(self._caller)
        kind: type[Command] = type(command)
        change = INCOMING.get(kind)
        if change is not None:
            command = change(command)
            kind = type(command)
        if self._principal is not ANYBODY:
            authorize(self._principal, command, self._shard.identity.tasks)
            restrict(self._principal, command)
            self._own_marks(command)
        if self._route_version and self._is_refused(number, command):
            return
        own = _OWN.get(kind)
        if own is not None:
            own(self, number, command)
            return
        if kind in _LOCAL:
            if isinstance(command, Receive | Browse) and (
                command.queue in self._learning or self._shard.unknown(command.queue)
            ):
                self._learn_first(number, command)
                return
            self._localise(command)
        self._submit(number, command)

    def _browse_in_steps(self, number: int, command: Browse) -> None:
        """Look for what contains something a few megabytes at a time, so that others get their turn."""
        request = self._open[number] = Open(number, command)
        self._large_open += 1
        found: list[Seen] = []

        def ask(step: Command, then: Callable[[Call], None]) -> None:
            def came(call: Call) -> None:
                try:
                    if call.error is not None or self._closed:
                        self._settled(request, call)
                    else:
                        then(call)
                except PenstockError as error:
                    call.error = error
                    self._settled(request, call)

            request.call = self._shard.submit(step, came)

        def look(after: int) -> None:
            def cut_came(call: Call) -> None:
                told: Offsets = call.reply
                end = told.end if command.end is None else min(told.end, command.end)
                cut = min(told.cut, end)

                def page_came(page: Call) -> None:
                    found.extend(page.reply)
                    if len(found) < command.limit and cut < end:
                        look(cut - 1)
                    elif len(found) < command.limit and command.end is None and told.partition + 1 < told.partitions:
                        look(((told.partition + 1) << PARTITION_SHIFT) - 1)
                    else:
                        page.reply = found[: command.limit]
                        self._settled(request, page)

                ask(msgspec.structs.replace(command, after=after, end=cut), page_came)

            ask(FindOffsets(queue=command.queue, after=after + 1, bytes_max=_BROWSED_BYTES), cut_came)

        look(command.after)

    def _own_marks(self, command: Command) -> None:
        """The marks that a command names are the caller's own: nobody marks somebody else's work as done."""
        if isinstance(command, CommitWork) and command.mark is not None:
            Marks.check(*command.mark)
            command.mark = owned(self._principal, command.mark[0]), command.mark[1]
        elif isinstance(command, LastMark):
            command.name = owned(self._principal, command.name)

    def _learn_first(self, number: int, command: Receive | Browse) -> None:
        """Ask for a queue of another node: how large its messages are says how many an answer may hold.

        What comes for the same queue meanwhile waits behind: nothing overtakes, and the queue is asked for once.
        """
        request = self._open[number] = Open(number, command)
        waiting = self._learning.get(command.queue)
        if waiting is not None:
            waiting.append(request)
            return
        self._learning[command.queue] = [request]
        try:
            self._shard.submit(DescribeQueue(name=command.queue), lambda _: self._learned(command.queue))
        except PenstockError:
            del self._learning[command.queue], self._open[number]
            raise

    def _learned(self, queue: str) -> None:
        for request in self._learning.pop(queue, ()):
            number, command = request.number, request.command
            if self._open.get(number) is not request:  # it was cancelled, or the client is gone
                continue
            del self._open[number]
            try:
                self._localise(command)
                self._submit(number, command)
            except PenstockError as error:
                self._answer(number, Kind.ERROR, pack_error(error))

    def repeat(self, number: int, delivery: Delivery) -> None:
        """Answer a receive with what it was given before: its rights were checked then."""
        self._answer(number, Kind.REPLY, delivery)

    def _localise(self, command: Command) -> None:
        """What a client says of sessions and sizes, as the core takes it."""
        for field in command.traits.inside:
            setattr(command, field, _DEFAULTS[type(command), field])
        bytes_max, broker = self._services.settings.websocket.answer_bytes_max, self._shard.identity
        if isinstance(command, Receive | Browse):  # as many messages, of average size, as one answer may hold
            queue, fitting = broker.queues.get(command.queue), self._limits.receive_max
            if queue is not None and queue.messages:
                fitting = bytes_max * queue.messages // max(1, queue.size)
            elif queue is not None and self._shard.unknown(command.queue, now=True):
                # another node's, and empty a moment ago
                fitting = bytes_max // queue.config.message_bytes_max
            command.limit = min(command.limit, self._limits.receive_max, max(1, fitting))
        elif isinstance(command, ReadRecords):
            command.limit = min(command.limit, self._limits.receive_max)
            command.bytes_max = min(command.bytes_max or bytes_max, bytes_max)
        if isinstance(command, Receive) and not command.session:
            command.session = self._session
        elif isinstance(command, Receive | Heartbeat | EndSession):
            command.session = session_number(broker.meta.secret, self._principal, command.session)
        elif isinstance(command, OpenSession):  # sessions outlive connections, and restarts
            sessions_max = self._services.settings.rest.sessions_max
            if len(broker.sessions) >= sessions_max:
                raise OverLimit(f"there are {sessions_max} sessions: end some first")

    def _submit(self, number: int, command: Command) -> None:
        if isinstance(command, Browse) and command.contains is not None:
            self._browse_in_steps(number, command)
            return
        request = Open(number, command)
        request.call = self._shard.submit(command, partial(self._settled, request))
        self._open[number] = request
        if command.traits.has_messages:
            self._large_open += 1

    def _settled(self, request: Open, call: Call) -> None:
        """The shard has answered a request."""
        request.call = None  # it knows this request, too: such a ring would be garbage to be looked for
        error, reply, command = call.error, call.reply, request.command
        if type(command) in _CHANGES:  # also of who has hung up
            self._audit(command, reply, error)
        if self._closed:
            return
        self._open.pop(request.number, None)
        if command.traits.has_messages:
            self._large_open -= 1
        seconds = time.perf_counter() - request.started_s
        if error is None and reply is None and isinstance(command, Receive):
            self._on_answer()  # the server stops: no answer; the client asks again, when there is a server again
        elif error is None:
            if isinstance(command, OpenSession):
                reply = session_handle(self._shard.identity.meta.secret, self._principal, reply)
            elif isinstance(command, ListRedrives) and self._principal is not ANYBODY:
                reply = [task for task in reply if self._principal.may(task.queue, QueueStats)]
            elif isinstance(command, NameQueue) and reply is not None and not self._principal.may_see(reply):
                reply = None
            self.answers.append((request.number, Kind.REPLY, reply))
            self._on_answer()
            self._services.meter.note(self._protocol, type(command).__name__, "ok", seconds)
        elif not self._is_ours(error):
            self._answer(request.number, Kind.ERROR, pack_error(error))
            self._note(type(command).__name__, command, error, seconds)

    def _audit(self, command: Command, reply: Any, error: BaseException | None) -> None:
        """A change of a queue as a whole, or of what others have, is written down, done or refused."""
        is_own = isinstance(command, EndSession) and command.shard is None
        is_dry = isinstance(command, StartRedrive) and command.check_only
        if is_own or is_dry or (error is not None and self._is_ours(error)):
            return
        outcome = "ok" if error is None else code_of(error) if isinstance(error, PenstockError) else "internal_error"
        scope = {"count": reply} if type(reply) is int and not isinstance(command, CreateChannel) else {}
        for name in _AUDITED:
            value = getattr(command, name, None)
            if value is not None:
                scope[name] = value
        if "delay_ms" in scope:  # instead of a time
            scope.pop("due_ms", None)
        kind = type(command).__name__
        audit_of(self._services).note(self._principal.name, self._peer, kind, command.about, scope, outcome)

    def _is_ours(self, error: BaseException) -> bool:
        """Whether the server's stop is all that is wrong: there is no answer then, and the client asks the next one."""
        return isinstance(error, ShardClosed) and self._services.is_stopping

    def _answer(self, number: int, kind: Kind, value: Any) -> None:
        self.answers.append((number, kind, value))
        self._on_answer()

    def _note(self, action: str, command: Any, error: BaseException, seconds: float) -> None:
        outcome = type(error).__name__
        known = isinstance(command, Command)
        self._services.meter.note(self._protocol, action if known else "unknown", outcome, seconds)
        status = _BAD_REQUEST if isinstance(error, PenstockError) else _SERVER_ERROR
        if self._services.request_log.wants(status):
            queue = getattr(command, "queue", getattr(command, "name", ""))
            self._services.request_log.note(
                self._protocol,
                status,
                seconds,
                peer=self._peer,
                principal=self._principal.name,
                action=action,
                queue=queue if isinstance(queue, str) else "",
                outcome=outcome,
            )

    # -- commands of the conversation --

    def _hello_again(self, number: int, command: Hello) -> None:
        raise InvalidRequest("Hello is the first request of a conversation, and comes once")

    def _set_route(self, number: int, command: Route) -> None:
        self._route_version = max(0, command.version)
        self._answer(number, Kind.REPLY, None)

    def _is_refused(self, number: int, command: Command) -> bool:
        """Whether a command belongs to another node; if so, the client is told where.

        Once one command about a queue is refused, so are all that the client sent before it has heard of that, whatever
        the map is by then: what comes later must not be done earlier.
        """
        maps, queue = self._services.partition_maps, command.about
        if maps is None or queue is None:
            return False
        known = maps.current()
        refused_version = self._moved.get(queue, 0)
        if self._route_version < refused_version:
            version = refused_version
        elif self._route_version < known.version and known.owner(queue) != known.own:
            version = self._moved[queue] = known.version
        else:
            if refused_version:
                del self._moved[queue]
            return False
        owner = known.owner(queue)
        self._answer(number, Kind.MOVED, Moved(version, owner, known.urls.get(owner, "")))
        self._services.meter.note(self._protocol, type(command).__name__, PartitionMoved.__name__, 0.0)
        return True

    def _cancel(self, number: int, command: Cancel) -> None:
        for dispatcher in self._dispatchers or [self]:
            dispatcher.end_wait(command.request)
        self._answer(number, Kind.REPLY, None)

    def end_wait(self, number: int) -> None:
        """A receive, if it is one of this dispatcher's, need not wait any longer."""
        request = self._open.get(number)
        if request is not None and isinstance(request.command, Receive):
            del self._open[number]
            if request.call is not None:
                self._large_open -= 1
                self._shard.withdraw(request.call)
            self._answer(number, Kind.REPLY, None)

    def _start_push(self, number: int, command: StartPush) -> None:
        if self._dispatchers is not None:
            raise InvalidRequest("nothing can be pushed to a client that polls: use a websocket")
        if not 0 <= command.credit <= self._limits.credit_max:
            raise InvalidRequest(f"credit is {command.credit}: it must be from 0 to {self._limits.credit_max}")
        if len(self._pushes) >= self._limits.requests_max:
            raise OverLimit(f"{self._limits.requests_max} pushes are open: stop some of them")
        push = self._pushes[number] = Push(self, number)
        subscribe = Subscribe(
            queue=command.queue,
            channel=command.channel,
            credit=command.credit,
            lease_ms=command.lease_ms,
            session=self._session,
            ticket=push,
            room_bytes=PUSH_ROOM_BYTES,
        )
        self._shard.submit(subscribe, lambda call: self._push_started(push, call))

    def _push_started(self, push: Push, call: Call) -> None:
        if self._closed:
            return
        if call.error is not None:
            self._pushes.pop(push.number, None)
            self._answer(push.number, Kind.ERROR, pack_error(call.error))
        else:
            push.subscription = call.reply.subscription
            self._answer(push.number, Kind.REPLY, None)
            self._give_room()
        early, push.early = push.early, []
        for request in early:
            assert isinstance(request.command, AddCredit)
            request.command.subscription = push.subscription  # 0, or one that was stopped: that is refused
            request.call = self._shard.submit(request.command, partial(self._settled, request))

    def pushed(self, push: Push, delivery: Delivery) -> None:
        """A delivery of a subscription may leave."""
        if self._closed or push.number not in self._pushes:
            if delivery.runs:
                self._give_back(delivery)
        elif delivery.error is not None:
            del self._pushes[push.number]
            self._answer(push.number, Kind.PUSH_ENDED, pack_error(delivery.error))
        else:
            nbytes = sum([run.nbytes for run in delivery.runs])
            push.room_bytes -= nbytes
            self._pushed_bytes += nbytes
            self._share.hold(nbytes)
            self._answer(push.number, Kind.PUSH, delivery)

    def _add_credit(self, number: int, command: AddPushCredit) -> None:
        push = self._pushes.get(command.push)
        if push is None:
            raise SessionNotFound(f"push {command.push} has ended, or never existed: start another one")
        if not 1 <= command.credit <= self._limits.credit_max:
            raise InvalidRequest(f"credit is {command.credit}: it must be from 1 to {self._limits.credit_max}")
        credit = AddCredit(subscription=push.subscription, credit=command.credit)
        if push.subscription:
            self._submit(number, credit)
        else:
            self._open[number] = request = Open(number, credit)
            push.early.append(request)

    def _stop_push(self, number: int, command: StopPush) -> None:
        push = self._pushes.pop(command.push, None)
        if push is None:
            self._answer(number, Kind.REPLY, None)
        else:
            self._submit(number, CancelWait(ticket=push))

    def _cancel_redrive(self, number: int, command: CancelRedrive) -> None:
        """A redrive is its queue's matter. Which queue that is may have to be asked for, if it is another node's."""
        if self._principal is ANYBODY or self._shard.identity.tasks.get(command.task) is not None:
            self._submit(number, command)
            return
        request = Open(number, command)

        def listed(call: Call) -> None:
            del self._open[number]
            tasks = call.reply if call.error is None else []
            task = next((each for each in tasks if each.task == command.task), None)
            if self._closed:
                return
            if task is not None and not self._principal.may(task.queue, CancelRedrive):
                call.error = AccessDenied(f"{self._principal.name} needs the right to admin queue {task.queue!r}")
            if call.error is not None:
                self._settled(request, call)
            else:
                self._submit(number, command)

        request.call = self._shard.submit(ListRedrives(), listed)
        self._open[number] = request

    def _list_queues(self, number: int, command: ListQueues) -> None:
        if command.limit < 1:
            raise InvalidRequest(f"limit is {command.limit}: it must be at least 1")
        if self._principal is ANYBODY and command.limit <= _NAMES_PER_STEP:
            self._submit(number, command)
        else:
            self._list_more(number, command, command.after, [])

    def _list_more(self, number: int, command: ListQueues, after: str, found: list[str]) -> None:
        """List page by page, until enough names are found that the caller may know of."""
        request = Open(number, command)
        limit = min(command.limit, _NAMES_PER_STEP)

        def page_came(call: Call) -> None:
            names = call.reply or []
            found.extend(name for name in names if self._principal.may(name, DescribeQueue))
            if call.error is None and len(names) == limit and len(found) < command.limit and not self._closed:
                self._list_more(number, command, names[-1], found)
                return
            call.reply = found[: command.limit] if call.error is None else None
            self._settled(request, call)

        page = ListQueues(prefix=command.prefix, after=after, limit=limit, dead_letters_to=command.dead_letters_to)
        request.call = self._shard.submit(page, page_came)
        self._open[number] = request

    def _list_sessions(self, number: int, command: ListSessions) -> None:
        self._ask(number, command, told_sessions(self._shard, self._principal, command))

    def _end_session(self, number: int, command: EndSession) -> None:
        if command.shard is None:
            self._localise(command)
            self._submit(number, command)
        else:
            ending = end_any_session(self._shard, self._principal, command.shard, command.session, command.once)
            self._ask(number, command, ending)

    def _ask(self, number: int, command: Command, asked: Coroutine[Any, Any, Any]) -> None:
        """Have a task ask what takes several questions to the shards. It is rare: an operator does it."""
        request = self._open[number] = Open(number, command)

        async def ask() -> None:
            call = Call(command)
            try:
                call.reply = await asked
            except Exception as error:  # the client has to hear of any
                call.error = error
            self._settled(request, call)

        asking = asyncio.get_running_loop().create_task(ask())
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    def _count_queues(self, number: int, command: CountQueues) -> None:
        if self._principal is ANYBODY:
            self._submit(number, command)
        else:
            self._count_more(number, command, command.after)

    def _count_more(self, number: int, command: CountQueues, after: str) -> None:
        """Count page by page, until there is a queue that the caller may read."""
        request = Open(number, command)

        def page_came(call: Call) -> None:
            page = call.reply or []
            found = [each for each in page if self._principal.may(each.name, QueueStats)]
            if call.error is None and page and not found and not self._closed:
                self._open.pop(number, None)
                self._count_more(number, command, page[-1].name)
                return
            call.reply = found
            self._settled(request, call)

        page = CountQueues(prefix=command.prefix, after=after, limit=command.limit)
        request.call = self._shard.submit(page, page_came)
        self._open[number] = request

    # -- answers --

    def take_frame(self) -> bytes:
        answers, self.answers = self.answers, []
        if len(answers) > 1:
            count = _fitting(answers, self._services.settings.websocket.answer_bytes_max)
            if count < len(answers) and self._dispatchers is None:
                answers, self.answers = answers[:count], answers[count:]
        packed: list[tuple[int, int, Any]] = []
        for number, kind, value in answers:
            key = self._shard.identity.receipt_key(value.queue_id) if isinstance(value, Delivery) else b""
            packed.append((number, kind, pack_reply(value, key)))
        frame = encode_answers(self._shard.now_ms(), packed)
        if self._claimed_bytes and not self._large_open and not self.answers:
            self._share.let_go(self._claimed_bytes)
            self._claimed_bytes = 0
        if self._pushed_bytes and not self.answers:
            self._share.let_go(self._pushed_bytes)
            self._pushed_bytes = 0
            self._give_room()
        if self.later:
            asyncio.get_running_loop().call_soon(self._take_later)
        return frame

    def _give_room(self) -> None:
        """What was pushed has left: more may come."""
        for push in self._pushes.values():
            if push.room_bytes <= PUSH_ROOM_BYTES // 2 and push.subscription:
                push.room_bytes = PUSH_ROOM_BYTES
                with contextlib.suppress(ShardClosed):
                    self._shard.submit(SetCredit(subscription=push.subscription, room_bytes=PUSH_ROOM_BYTES), _ignore)

    # -- the end --

    def close(self, error: str) -> None:
        """The client is gone. What has certainly not left goes back as if never handed out; the rest is released."""
        if self._closed:
            return
        self.abandon()
        try:
            self._shard.submit(Tick(), lambda _: end_session(self._shard, self._session, error))
        except ShardClosed:
            return

    def abandon(self) -> None:
        """Nobody waits for answers any more; the session goes on."""
        self._closed = True
        self.later.clear()
        self._share.withdraw()
        self._share.let_go(self._claimed_bytes + self._granted_bytes + self._pushed_bytes)
        self._claimed_bytes = self._granted_bytes = self._pushed_bytes = 0
        try:
            for request in self._open.values():
                if isinstance(request.command, Receive) and request.call is not None:
                    self._shard.withdraw(request.call)
            for push in self._pushes.values():
                self._shard.submit(CancelWait(ticket=push), _ignore)
            for _, _, value in self.answers:
                if isinstance(value, Delivery) and value.runs:
                    self._give_back(value)
        except ShardClosed:
            return
        finally:
            self.answers.clear()
            self._open.clear()
            self._pushes.clear()

    def _give_back(self, delivery: Delivery) -> None:
        try:
            self._shard.submit(give_back(delivery), _ignore)
        except ShardClosed:
            return


def _fitting(answers: list[tuple[int, int, Any]], bytes_max: int) -> int:
    """How many answers fit into a frame of about this size; one in any case."""
    for count, (_, _, value) in enumerate(answers):
        if isinstance(value, Delivery | Records):
            bytes_max -= sum(int(run.chunk.offsets[run.stop] - run.chunk.offsets[run.start]) for run in value.runs)
        elif isinstance(value, list) and value and isinstance(value[0], Seen):
            bytes_max -= sum(int(one.chunk.offsets[one.index + 1] - one.chunk.offsets[one.index]) for one in value)
        if bytes_max < 0 and count:
            return count
    return len(answers)


def _ignore(_call: Call) -> None:
    """Nobody waits for this."""


_OWN: dict[type[Command], Callable[[Dispatcher, int, Any], None]] = {
    Cancel: Dispatcher._cancel,
    StartPush: Dispatcher._start_push,
    AddPushCredit: Dispatcher._add_credit,
    StopPush: Dispatcher._stop_push,
    ListQueues: Dispatcher._list_queues,
    CountQueues: Dispatcher._count_queues,
    ListSessions: Dispatcher._list_sessions,
    EndSession: Dispatcher._end_session,
    CancelRedrive: Dispatcher._cancel_redrive,
    Hello: Dispatcher._hello_again,
    Route: Dispatcher._set_route,
}
"""What a dispatcher does by itself, or in its own way."""
