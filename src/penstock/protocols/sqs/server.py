"""A request's way in and out: which protocol, who calls, which action; then the action, and its answer.

How it works. `SqsFrontEnd.handle` gets an exchange from the HTTP server and begins a *visit*: the action's coroutine,
driven right here. When the coroutine asks for a command, the visit submits it to the shard; when the call is settled,
in the same turn of the loop as the commit, the visit goes on where it was. No task and no future is made for a request.

Clients that wait for each response before they ask again, as SDKs do, are named to the shard: those who come together
share their commits (`server/siblings.py`). Receives need no commit, and are not waited for.

A visit whose client hangs up while it waits for messages is abandoned: its receive is withdrawn from the shard, and
messages that were on their way to it go back.

What is called most, in its common form, takes a shorter way, without a coroutine (`quick.py`).

The protocol is JSON if the header `X-Amz-Target` is there, and Query if not. The path is `/`, or a queue's URL.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from penstock.core.commands import Receive
from penstock.core.errors import PenstockError
from penstock.protocols.http import Exchange, Handler, Request
from penstock.protocols.sqs import json_wire, query_wire
from penstock.protocols.sqs.actions import Action, Service, actions_of
from penstock.protocols.sqs.errors import (
    ACCESS_DENIED,
    INTERNAL_FAILURE,
    METHOD_NOT_ALLOWED,
    MISDIRECTED_REQUEST,
    SERVICE_UNAVAILABLE,
    UNKNOWN_OPERATION,
    SqsError,
    from_core,
)
from penstock.protocols.sqs.names import base_url
from penstock.protocols.sqs.plain import is_plain
from penstock.protocols.sqs.quick import Quick
from penstock.protocols.sqs.service import Answer, Asked, Caller, Numbered
from penstock.protocols.sqs.sigv4 import is_signed_by_head, verify
from penstock.server.auth import ANYBODY, Credentials
from penstock.server.budget import AT_ONCE_S, BUSY, Budget, Share, asked_bytes
from penstock.server.settings import ServerSettings, SqsSettings
from penstock.server.shard import Call
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard, CallbackCall

log = logging.getLogger("penstock.sqs")

_ADDRESSES_REMEMBERED_MAX = 100
ANSWER_COPIES = 2
"""While an answer is made, its messages are there twice: as they are stored, and as they are sent."""


class SqsFrontEnd:
    """Answers SQS requests from a shard. `handle` is the HTTP server's handler."""

    def __init__(
        self, shard: Shards, settings: SqsSettings, credentials: Credentials, budget: Budget | None = None
    ) -> None:
        self.shard = shard
        self._budget = budget or Budget(ServerSettings().buffer_bytes_max)
        self.service = Service(shard, settings)
        self._credentials = credentials
        self._account = settings.account
        self._actions = actions_of(self.service)
        self._targets = {json_wire.TARGET_PREFIX + name: action for name, action in self._actions.items()}
        self._base_urls: dict[tuple[str | None, bool, str | None], str] = {}
        entropy = os.urandom(10).hex()
        self._ids = Numbered(f"{entropy[:8]}-{entropy[8:12]}-4{entropy[12:15]}-8{entropy[15:18]}-")
        self._last_id = 0
        if isinstance(shard, AsyncShard) and not credentials.are_required:
            for name, way in Quick(self.service, shard).actions.items():
                self._actions[name].quick = way

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        self._last_id += 1
        exchange.request_id = self._ids.text(self._last_id)
        request = exchange.request
        target = request.headers.get("x-amz-target")
        if target is None and not _is_json(request):
            self._handle_query(exchange, request)
            return
        try:
            action = self._targets.get(target or "")
            if action is None:
                raise SqsError(UNKNOWN_OPERATION, f"The operation {target or ''} is not one of SQS's.")
            if request.method != "POST":
                raise SqsError(METHOD_NOT_ALLOWED, "The JSON protocol needs POST.")
            body, quick = request.body, action.quick
            has_plain_text = is_plain(body)
            caller = self._caller(exchange, has_plain_text) if quick is None else None
            decoded = action.decoder.decode(body)
            if quick is not None and has_plain_text and quick(exchange, decoded):
                return
        except SqsError as error:
            json_wire.respond_error(exchange, error)
        except PenstockError as error:
            json_wire.respond_error(exchange, from_core(error))
        else:
            caller = caller or self._caller(exchange, has_plain_text)
            JsonVisit(exchange, self.shard, self._budget).begin(action, caller, decoded)

    def _handle_query(self, exchange: Exchange, request: Request) -> None:
        visit = QueryVisit(exchange, self.shard, self._budget)
        try:
            caller = self._caller(exchange)
            fields = _form(request)
            if request.method == "GET" and not self._credentials.are_required and _may_be_a_page(request):
                raise SqsError(ACCESS_DENIED, "A browser may not call actions with GET here: use POST.")
            action = self._actions.get(fields.get("Action", ""))
            if action is None:
                raise SqsError(
                    UNKNOWN_OPERATION,
                    f"The action {fields['Action']} is not valid for this endpoint."
                    if fields.get("Action")
                    else "The request must contain the parameter Action.",
                )
            visit.begin(action, caller, query_wire.decode(fields, action.request))
        except SqsError as error:
            visit.fail(error)

    def _caller(self, exchange: Exchange, has_plain_text: bool = False) -> Caller:
        request, principal = exchange.request, ANYBODY
        path = request.path
        path_url = None if path == "/" else path
        if self._credentials.are_required:
            principal = verify(request, self._credentials, int(time.time() * 1_000))
            exchange.is_known = True
        return Caller(self._base_url(request), principal, path_url, has_plain_text)

    def _base_url(self, request: Request) -> str:
        headers = request.headers
        key = (headers.get("host"), request.is_tls, headers.get("x-forwarded-proto"))
        known = self._base_urls.get(key)
        if known is None:
            if len(self._base_urls) >= _ADDRESSES_REMEMBERED_MAX:
                self._base_urls.clear()
            known = self._base_urls[key] = base_url(request, self._account)
        return known


def refuse_request(exchange: Exchange, status: int, code: str, reason: str) -> None:
    """Answer a request that is not let in, in the protocol that it came by."""
    _refuse(exchange, SqsError(MISDIRECTED_REQUEST if status == MISDIRECTED_REQUEST.status else ACCESS_DENIED, reason))


def screen(credentials: Credentials) -> Handler:
    """Answers requests without their bodies, as far as those cannot help: nobody has signed them, or no one we know.

    So a stranger is not read from. Whoever names an access key that is there may still be one: that shows when the body
    is there, unless the header has its checksum.
    """

    def look(exchange: Exchange) -> None:
        if not credentials.are_required:
            return
        try:
            exchange.is_known = is_signed_by_head(exchange.request, credentials, int(time.time() * 1_000))
        except SqsError as error:
            _refuse(exchange, error)

    return look


def _refuse(exchange: Exchange, error: SqsError) -> None:
    request, exchange.request_id = exchange.request, str(uuid.uuid4())
    if "x-amz-target" in request.headers or _is_json(request):
        json_wire.respond_error(exchange, error)
    else:
        query_wire.respond_error(exchange, error)


def _is_json(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("application/x-amz-json")


def _may_be_a_page(request: Request) -> bool:
    """Whether a web page may have made a browser ask, as with an image that it shows.

    Browsers say who made them ask (`Sec-Fetch-Site`, see `front_end`), but not to a server on another machine that has
    no TLS. They always say which languages they like, and SDKs never do.
    """
    return "accept-language" in request.headers and "sec-fetch-site" not in request.headers


def _form(request: Request) -> dict[str, str]:
    """The fields of a Query request: of its URL's query, and of its body."""
    if request.method not in ("GET", "POST"):
        raise SqsError(METHOD_NOT_ALLOWED, f"The method is {request.method}; use POST or GET.")
    fields = query_wire.parse_form(request.query) if request.query else {}
    if request.method == "POST" and request.body:
        fields |= query_wire.parse_form(request.body.decode("latin-1"))
    return fields


class Visit(ABC):
    """An action at work for one exchange."""

    __slots__ = ("_action", "_budget", "_call", "_caller", "_coroutine", "_exchange", "_shard", "_shares")

    def __init__(self, exchange: Exchange, shard: Shards, budget: Budget) -> None:
        self._exchange = exchange
        self._shard = shard
        self._budget = budget
        self._shares: tuple[Share, ...] = ()
        """For an answer that may be large: what it takes of all there is, and of what is made in a turn."""
        self._action: Action
        self._caller: Caller | None = None
        self._coroutine: Coroutine[Asked, Any, Answer]
        self._call: CallbackCall | None = None
        """A receive, which has to be undone if the client goes."""

    def begin(self, action: Action, caller: Caller, request: Any) -> None:
        """Run the action up to its first question, or to its end."""
        self._action = action
        self._caller = caller
        self._exchange.action = action.name
        self._coroutine = action.run(caller, request)
        self._go_on(None)

    def _go_on(self, answer: Call | list[Call] | None) -> None:
        """Give the coroutine what it waits for, and see what it wants next. Never raises: others are waiting, too."""
        try:
            try:
                asked = self._coroutine.send(answer)
            except StopIteration as done:
                self._succeed(done.value)
            else:
                self._submit(asked)
        except SqsError as error:
            self.fail(error)
        except PenstockError as error:
            self.fail(from_core(error))
        except Exception:
            log.exception("%s failed", self._action.name)
            self.fail(SqsError(INTERNAL_FAILURE, "The request failed on the server's side: its log says more."))

    def _submit(self, asked: Asked) -> None:
        if isinstance(asked, tuple):
            Together(asked, self._shard, self._go_on)
        elif type(asked) is Receive:
            self._make_room(asked)
        else:
            self._shard.submit(asked, self._go_on, self._exchange.client)

    def _make_room(self, asked: Receive) -> None:
        """Receive when there is room for the answer: among what all hold, and then among what is made in a turn."""
        nbytes = asked_bytes(self._shard.identity.queues.get(asked.queue), asked.limit, self._budget.bytes_max)
        if not nbytes:
            self._receive(asked)
            return
        room, turn = self._shares = (self._budget.share(), self._budget.making.share())

        def make() -> None:
            if turn.claim(nbytes, lambda: self._receive(asked), self._give_up):
                self._receive(asked)
            else:
                self._exchange.on_abandoned = self._abandon

        if room.claim(ANSWER_COPIES * nbytes, make, self._give_up):
            make()
        else:
            self._exchange.on_abandoned = self._abandon

    def _give_up(self) -> None:
        """There was no room for the answer."""
        self._coroutine.close()
        self.fail(SqsError(SERVICE_UNAVAILABLE, f"There is no room for the answer: {BUSY}."))

    def _receive(self, asked: Receive) -> None:
        try:
            self._call = self._shard.submit(asked, self._go_on)
        except PenstockError as error:
            self.fail(from_core(error))
            return
        if asked.wait_ms:
            self._exchange.on_abandoned = self._abandon
            if self._shares:  # if there is nothing now, there will not be much when something comes
                asyncio.get_running_loop().call_later(AT_ONCE_S, self._let_go)

    def _abandon(self) -> None:
        """The client has hung up while it waited."""
        self._coroutine.close()
        if self._call is not None:
            self._shard.withdraw(self._call)
        self._let_go()

    def _succeed(self, result: Answer) -> None:
        self._label("ok")
        if not self._respond(result) and self._call is not None:
            self._shard.withdraw(self._call)
        self._call = None  # the call knows this visit: together they would keep its messages until they are found
        self._let_go()

    def _let_go(self) -> None:
        """What the answer takes from now on is the connection's."""
        for share in self._shares:
            share.close()

    def _label(self, outcome: str) -> None:
        """For the log and the metrics."""
        exchange, caller = self._exchange, self._caller
        exchange.outcome = outcome
        if caller is not None:
            exchange.queue = caller.queue
            exchange.principal = caller.principal.name

    @abstractmethod
    def _respond(self, result: Answer) -> bool:
        """Answer with a result; False if the client is gone."""

    @abstractmethod
    def fail(self, error: SqsError) -> None:
        """Answer with an error."""


class JsonVisit(Visit):
    """A visit by AWS JSON 1.0."""

    __slots__ = ()

    def _respond(self, result: Answer) -> bool:
        exchange = self._exchange
        if result is None:
            body = json_wire.EMPTY
        elif isinstance(result, bytes):
            body = result
        else:
            body = json_wire.encode(result)
        return json_wire.respond(exchange, body)

    def fail(self, error: SqsError) -> None:
        """Answer with an error."""
        self._label(error.kind.code)
        json_wire.respond_error(self._exchange, error)
        self._let_go()


class QueryVisit(Visit):
    """A visit by the Query protocol."""

    __slots__ = ()

    def _respond(self, result: Answer) -> bool:
        exchange = self._exchange
        assert not isinstance(result, bytes), "only callers by JSON are plain"
        body = query_wire.encode(self._action.name, result, exchange.request_id)
        return exchange.respond(200, (query_wire.CONTENT_TYPE, ("x-amzn-requestid", exchange.request_id)), body)

    def fail(self, error: SqsError) -> None:
        """Answer with an error."""
        self._label(error.kind.code)
        query_wire.respond_error(self._exchange, error)
        self._let_go()


class Together:
    """Several commands that go through the same step; whoever asked goes on when the last is settled."""

    __slots__ = ("_calls", "_go_on", "_left")

    def __init__(self, commands: tuple[Any, ...], shard: Shards, go_on: Any) -> None:
        self._go_on = go_on
        self._left = len(commands)
        self._calls: list[Call] = [shard.submit(command, self._settled) for command in commands]

    def _settled(self, _call: Call) -> None:
        self._left -= 1
        if not self._left:
            self._go_on(self._calls)
