"""One request at work: who calls, what it asks the shards, and its answer.

How it works. An action is a function that checks a request and *asks* for its command: `context.ask(command, answer)`
submits the command, and when it is settled, in the same turn of the loop as its commit, `answer` makes the result of
its reply, and that goes out. No task, no future and no coroutine is made on this way, with credentials or without, with
one shard or with many.

Actions on queues themselves (create, change, list) take several commands one after the other. They are coroutines that
await `ask(command)`, and nothing else; the context drives them the same way. A test can drive one by hand:

    coroutine = service.CreateQueue(context, request)
    command = coroutine.send(None)

An action that meets a queue which is not known here raises `UnknownQueue`. The context has it asked for, or created
where the server is told so, and begins the action again.

A context whose client hangs up while it waits for messages is abandoned: its receive is withdrawn from the shard, and
messages that were on their way to it go back.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.core.commands import Command, Receive
from penstock.core.errors import AccessDenied, PenstockError
from penstock.protocols.http import Exchange
from penstock.protocols.sqs import json_wire, query_wire
from penstock.protocols.sqs.errors import (
    ACCESS_DENIED,
    INTERNAL_FAILURE,
    SERVICE_UNAVAILABLE,
    SqsError,
    from_core,
    no_such_queue,
)
from penstock.protocols.sqs.shapes import Shape
from penstock.server.auth import Principal
from penstock.server.budget import AT_ONCE_S, BUSY, Share, asked_bytes
from penstock.server.shard import Call
from penstock.server.shards import Shards
from penstock.server.tasks import CallbackCall

if TYPE_CHECKING:
    from penstock.protocols.sqs.actions import Action
    from penstock.protocols.sqs.server import SqsFrontEnd

log = logging.getLogger("penstock.sqs")

ANSWER_COPIES = 2
"""While an answer is made, its messages are there twice: as they are stored, and as they are sent."""

Asked = Command
"""What a coroutine hands out."""


class Pending:
    """The answer comes later: a command is on its way."""


PENDING: Final = Pending()
Answer = Shape | Pending | None
"""What an action returns: its result, or that it has asked."""


class UnknownQueue(Exception):
    """An action needs a queue that is not known here, or not yet."""

    def __init__(self, name: str, may_create: bool) -> None:
        super().__init__(name)
        self.name = name
        self.may_create = may_create


@types.coroutine
def ask(command: Command) -> Generator[Asked, Any, Any]:
    """The reply to a command, or its error raised."""
    call: Call = yield command
    return call.result()


def replies_of(calls: list[Call]) -> list[Any]:
    """The replies of calls, in their order; an error of the core stands in the place of its reply."""
    return [call.error if isinstance(call.error, PenstockError) else call.result() for call in calls]


class RequestContext:
    """A request at work."""

    __slots__ = (
        "_action",
        "_answer",
        "_call",
        "_coroutine",
        "_exchange",
        "_front",
        "_is_json",
        "_request",
        "_shares",
        "path_url",
        "principal",
        "queue",
        "scope",
        "trace_header",
    )

    def __init__(
        self,
        exchange: Exchange,
        front: SqsFrontEnd,
        principal: Principal,
        action: Action,
        request: Any,
        *,
        is_json: bool,
    ) -> None:
        path = exchange.request.path
        self.principal = principal
        scopes = front.service.scopes
        self.scope = scopes.of_caller(exchange.request, principal.account) if scopes.are_many else scopes.default
        """The account and the region of the caller."""
        self.path_url = None if path == "/" else path
        """The request's own path, if that is the address of a queue."""
        self.trace_header = exchange.request.headers.get("x-amzn-trace-id")
        """What X-Ray follows a request by; messages that it sends carry it on."""
        self.queue = ""
        """The queue that the request is about, once it is known."""
        self._exchange = exchange
        self._front = front
        self._action = action
        self._request = request
        self._is_json = is_json
        """By AWS JSON 1.0; if not, by the Query protocol."""
        self._answer: Callable[[Any], Answer]
        self._coroutine: Coroutine[Asked, Any, Answer] | None = None
        self._shares: tuple[Share, ...] = ()
        """For an answer that may be large: what it takes of all there is, and of what is made in a turn."""
        self._call: CallbackCall | None = None
        """A receive, which has to be undone if the client goes."""
        exchange.action = action.name

    def url(self, name: str) -> str:
        """A queue's URL, for this context."""
        return self._front.service.arns.url(self._front.base_url(self._exchange.request), name)

    def begin(self) -> None:
        """Run the action until it has asked, or to its end. Never raises."""
        try:
            try:
                result = self._action.run(self, self._request)
            except UnknownQueue as unknown:
                result = self._begin_again(unknown)
            if result is PENDING:
                return
            if isinstance(result, Coroutine):
                self._coroutine = result
                self._go_on(None)
            else:
                self._succeed(result)
        except Exception as error:
            self._refuse(error)

    async def _begin_again(self, unknown: UnknownQueue) -> Answer:
        """Have the queue made known, then run the action."""
        await self._front.service.make_known(unknown.name, unknown.may_create)
        try:
            result = self._action.run(self, self._request)
        except UnknownQueue:
            raise no_such_queue() from None
        assert not isinstance(result, Coroutine), "actions of several steps look for their queues themselves"
        return result

    # -- asking --

    def ask(self, command: Command, answer: Callable[[Any], Answer]) -> Pending:
        """Take a command through a step; `answer` makes the result of its reply."""
        self._answer = answer
        self._front.shard.submit(command, self._settled, self._exchange.client)
        return PENDING

    def ask_all(self, commands: Sequence[Command], answer: Callable[[list[Any]], Answer]) -> Pending:
        """As `ask`, for commands that go through one step. The error of one among several stands in the place of its
        reply; the error of a single one is the answer.
        """
        if len(commands) == 1:
            return self.ask(commands[0], lambda reply: answer([reply]))
        Together(commands, self._front.shard, lambda calls: self._end(lambda: answer(replies_of(calls))))
        return PENDING

    def receive(self, command: Receive, answer: Callable[[Any], Answer]) -> Pending:
        """As `ask`, for messages. There has to be room for them: among what all hold, and then among what is made in a
        turn. They go back if the client is gone.
        """
        self._answer = answer
        budget = self._front.budget
        nbytes = asked_bytes(self._front.shard.identity.queues.get(command.queue), command.limit, budget.bytes_max)
        if not nbytes:
            self._receive(command)
            return PENDING
        room, turn = self._shares = (budget.share(), budget.making.share())

        def make() -> None:
            if turn.claim(nbytes, lambda: self._receive(command), self._give_up):
                self._receive(command)
            else:
                self._exchange.on_abandoned = self._abandon

        if room.claim(ANSWER_COPIES * nbytes, make, self._give_up):
            make()
        else:
            self._exchange.on_abandoned = self._abandon
        return PENDING

    def _give_up(self) -> None:
        self._refuse(SqsError(SERVICE_UNAVAILABLE, f"There is no room for the answer: {BUSY}."))

    def _receive(self, command: Receive) -> None:
        try:
            self._call = self._front.shard.submit(command, self._settled)
        except PenstockError as error:
            self._refuse(error)
            return
        if command.wait_ms:
            self._exchange.on_abandoned = self._abandon
            if self._shares:  # if there is nothing now, there will not be much when something comes
                asyncio.get_running_loop().call_later(AT_ONCE_S, self._let_go)

    def _settled(self, call: Call) -> None:
        """The command has its reply. Never raises: others are waiting, too."""
        try:
            if call.error is not None:
                raise call.error
            self._succeed(self._answer(call.reply))
        except Exception as error:
            self._refuse(error)

    def _end(self, answer: Callable[[], Answer]) -> None:
        try:
            self._succeed(answer())
        except Exception as error:
            self._refuse(error)

    def _go_on(self, answer: Call | None) -> None:
        """Give the coroutine what it waits for, and see what it wants next. Never raises: others are waiting, too."""
        assert self._coroutine is not None
        try:
            try:
                asked = self._coroutine.send(answer)
            except StopIteration as done:
                if done.value is not PENDING:
                    self._succeed(done.value)
                return
            self._front.shard.submit(asked, self._go_on, self._exchange.client)
        except Exception as error:
            self._refuse(error)

    def _abandon(self) -> None:
        """The client has hung up while it waited."""
        if self._call is not None:
            self._front.shard.withdraw(self._call)
        self._let_go()

    def _let_go(self) -> None:
        """What the answer takes from now on is the connection's."""
        for share in self._shares:
            share.close()

    def tell_redrive(self, source: str, target: str) -> None:
        """Both queues have been looked for: the logs name a redrive by its source."""
        self.queue = source
        self._exchange.scope = {"target": target}

    # -- answering --

    def _succeed(self, result: Any) -> None:
        exchange = self._exchange
        exchange.outcome = "ok"
        exchange.queue = self.queue
        exchange.principal = self.principal.name
        if self._is_json:
            body = (
                b"" if result is None else json_wire.encode(result)
            )  # AWS sends nothing where there is nothing to say
            is_heard = exchange.respond_well(f"{json_wire.OK_LINES}{exchange.request_id}\r\n", body)
        else:
            is_heard = query_wire.respond(exchange, self._action.name, result)
        if not is_heard and self._call is not None:
            self._front.shard.withdraw(self._call)
        self._call = None  # the call knows this context: together they would keep its messages until they are found
        if self._shares:
            self._let_go()

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, SqsError):
            refusal = error
        elif isinstance(error, AccessDenied):
            refusal = SqsError(ACCESS_DENIED, f"Access to the resource {self.url(self.queue)} is denied.")
        elif isinstance(error, PenstockError):
            refusal = from_core(error)
        else:
            log.error("%s failed", self._action.name, exc_info=error)
            refusal = SqsError(INTERNAL_FAILURE, "The request failed on the server's side: its log says more.")
        self._exchange.queue = self.queue
        self._exchange.principal = self.principal.name
        (json_wire if self._is_json else query_wire).respond_error(self._exchange, refusal)
        self._let_go()


class Together:
    """Several commands that go through the same step; whoever asked goes on when the last is settled."""

    __slots__ = ("_calls", "_go_on", "_left")

    def __init__(self, commands: Sequence[Any], shard: Shards, go_on: Callable[[list[Call]], None]) -> None:
        self._go_on = go_on
        self._left = len(commands)
        self._calls: list[Call] = [shard.submit(command, self._settled) for command in commands]

    def _settled(self, _call: Call) -> None:
        self._left -= 1
        if not self._left:
            self._go_on(self._calls)
