"""Commands over plain HTTP: `POST /v1/commands`, for who cannot have a websocket.

The body is a frame of requests, as a websocket's; the response is a frame of answers, and comes when every request is
answered. A receive may wait: that is a long poll. If its client goes away meanwhile, the receive is withdrawn; a
delivery that could not be written any more is given back.

The first request of a conversation is a `Hello`, alone in its body; the `penstock-session` header of the others says
which conversation they belong to. Its session ends when no request comes for `session_ttl_s`. Each request is a sign of
life.

A response may get lost on its way, and the server cannot know. So deliveries are kept here until the client says that
it has got them (`penstock-received`, with its next request). Until then the same receive, by its number, gets the same
delivery again, on the same attempt. (Not of a queue that promises *at most* so many deliveries: there a message that
may have been seen counts as seen, as it does when a websocket breaks.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from penstock.core.commands import Delivery, Heartbeat
from penstock.core.commands import Receive as ReceiveCommand
from penstock.core.errors import AccessDenied, BatchTooLarge, InvalidRequest, OverLimit, PenstockError, SessionNotFound
from penstock.core.packed_error import pack_error
from penstock.protocols.http import Exchange, Terms
from penstock.protocols.rest.endpoint import EndpointContext, Parameters, not_allowed
from penstock.protocols.websocket.admission import admit, limits_of, principal_of, refuse_pages, session_number
from penstock.protocols.websocket.dispatcher import Dispatcher
from penstock.server.auth import Principal
from penstock.server.budget import SMALL_BYTES, UNKNOWN_BYTES_MAX, Share
from penstock.server.shards import Names
from penstock.wire.answers import Kind, encode_answers
from penstock.wire.requests import MEDIA_TYPE, RECEIVED_HEADER, SESSION_HEADER, decode_requests

_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (
    (AccessDenied, 401),
    (SessionNotFound, 404),
    (BatchTooLarge, 413),
    (OverLimit, 503),
    (InvalidRequest, 400),
)


log = logging.getLogger("penstock.websocket")

_HEADERS = (("content-type", MEDIA_TYPE),)
_KEPT_MAX = 1_000
_NUMBER_LENGTH_MAX = 20
"""No request, and no session, has a number of more than 64 bits."""
_IDLE_TTLS = 2


class _Conversation:
    """What the server remembers of a client that polls, besides its session."""

    __slots__ = ("dispatchers", "kept", "seen_s")

    def __init__(self) -> None:
        self.dispatchers: list[Dispatcher] = []
        """The dispatchers of its requests in flight: a request may cancel another one's wait."""
        self.kept: dict[int, Delivery] = {}
        """Receives -> deliveries that may not have arrived."""
        self.seen_s = 0.0

    def confirm(self, numbers: str) -> None:
        """These receives have got their answers."""
        for number in map(str.strip, numbers.split(",")):
            if number.isdecimal() and len(number) <= _NUMBER_LENGTH_MAX:
                self.kept.pop(int(number), None)

    def repeated(self, number: int, command: object, now_ms: int) -> Delivery | None:
        """What this receive was given before, if it is still worth anything."""
        delivery = self.kept.get(number) if isinstance(command, ReceiveCommand) else None
        return delivery if delivery is not None and delivery.deadline_ms > now_ms else None

    def keep(self, answers: list[tuple[int, int, Any]], broker: Names) -> None:
        """These leave now, and may get lost."""
        for number, _, value in answers:
            if isinstance(value, Delivery) and value.runs:
                queue = broker.queues.get(value.queue)
                if queue is not None and not queue.config.leases_are_durable:
                    self.kept[number] = value
        while len(self.kept) > _KEPT_MAX:
            del self.kept[next(iter(self.kept))]


class CommandsEndpoint:
    """What is at `/v1/commands`."""

    def __init__(self, context: EndpointContext, version: str) -> None:
        self._context = context
        self._services = context.services
        self._version = version
        self._conversations: dict[int, _Conversation] = {}
        """By session."""
        self._in_flight = 0

    def check_header(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """Of a stranger a small frame is read, just large enough for a Hello."""
        try:
            return Terms(self._enter(exchange))
        except PenstockError as error:
            self._fail(exchange, error)
            return None

    def _enter(self, exchange: Exchange) -> int:
        """How large a frame the client may send; `PenstockError` if none."""
        headers, settings = exchange.request.headers, self._services.settings.websocket
        refuse_pages(self._services, headers)
        if self._in_flight >= settings.connections_max:
            raise OverLimit("too many requests are in flight: try again later")
        if SESSION_HEADER not in headers:
            return UNKNOWN_BYTES_MAX
        principal_of(self._services, headers, None, exchange.request.peer)
        return settings.frame_bytes_max

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        if exchange.request.method != "POST":
            self._context.fail(exchange, not_allowed(("POST",)))
            return
        try:
            bytes_max = self._enter(exchange)
            if len(exchange.request.body) > bytes_max:
                raise BatchTooLarge(f"a frame has at most {bytes_max} bytes here")
        except PenstockError as error:
            self._fail(exchange, error)
        else:
            self._context.run(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        self._in_flight += 1
        try:
            with self._services.budget.share() as share:
                exchange.hand_claim(share)
                if len(exchange.request.body) < SMALL_BYTES:
                    share.let_go()  # who waits for room for an answer holds nothing that others wait for
                await self._converse(exchange, share)
        except PenstockError as error:
            self._fail(exchange, error)
        except Exception:
            log.exception("a frame of commands failed")
            self._fail(exchange, PenstockError("the server has failed to answer: its log says more"))
        finally:
            self._in_flight -= 1

    def _fail(self, exchange: Exchange, error: PenstockError) -> None:
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 503)
        self._respond(exchange, status, [(0, Kind.ERROR, pack_error(error))])

    def _respond(self, exchange: Exchange, status: int, answers: list[tuple[int, int, Any]]) -> None:
        exchange.respond(status, _HEADERS, encode_answers(self._services.shard.now_ms(), answers))

    async def _converse(self, exchange: Exchange, share: Share) -> None:
        request = exchange.request
        headers, handle = request.headers, request.headers.get(SESSION_HEADER)
        if handle is None:
            ttl_ms = round(self._services.settings.websocket.session_ttl_s * 1_000)
            admitted = await admit(
                self._services,
                headers,
                request.body,
                version=self._version,
                session_ttl_ms=ttl_ms,
                peer=request.peer,
            )
            self._forget_the_idle()
            self._respond(exchange, 200, [(admitted.request, Kind.REPLY, admitted.welcome)])
            return
        principal = principal_of(self._services, headers, None, exchange.request.peer)
        session = self._session(principal, handle)
        await self._services.shard.call(Heartbeat(session=session))
        conversation = self._conversations.setdefault(session, _Conversation())
        conversation.seen_s = time.monotonic()
        conversation.confirm(headers.get(RECEIVED_HEADER, ""))
        await self._answer(principal, session, exchange, conversation, share)

    def _forget_the_idle(self) -> None:
        oldest_s = time.monotonic() - _IDLE_TTLS * self._services.settings.websocket.session_ttl_s
        for session, conversation in list(self._conversations.items()):
            if conversation.seen_s < oldest_s and not conversation.dispatchers:
                del self._conversations[session]

    def _session(self, principal: Principal, handle: str) -> int:
        if not handle.isdecimal() or len(handle) > _NUMBER_LENGTH_MAX:
            raise InvalidRequest(f"{SESSION_HEADER} is a number: the session of the Welcome")
        return session_number(self._services.shard.identity.meta.secret, principal, int(handle))

    async def _answer(
        self, principal: Principal, session: int, exchange: Exchange, conversation: _Conversation, share: Share
    ) -> None:
        answered = asyncio.Event()
        dispatcher = Dispatcher(
            self._services,
            principal,
            session,
            limits_of(self._services),
            answered.set,
            protocol="poll",
            peer=exchange.request.peer,
            dispatchers=conversation.dispatchers,
            share=share,
        )
        conversation.dispatchers.append(dispatcher)
        try:
            if exchange.has_hung_up():
                return
            exchange.on_abandoned = answered.set
            self._take(dispatcher, exchange.request.body, conversation)
            while dispatcher.in_flight and not exchange.is_abandoned:
                answered.clear()
                await answered.wait()
            if not exchange.has_hung_up():
                conversation.keep(dispatcher.answers, self._services.shard.identity)
                exchange.respond(200, _HEADERS, dispatcher.take_frame())
        finally:
            dispatcher.abandon()
            conversation.dispatchers.remove(dispatcher)

    def _take(self, dispatcher: Dispatcher, frame: bytes, conversation: _Conversation) -> None:
        requests, now_ms = decode_requests(frame), self._services.shard.now_ms()
        if conversation.kept:
            for number, command in list(requests):
                delivery = conversation.repeated(number, command, now_ms)
                if delivery is not None:
                    requests.remove((number, command))
                    dispatcher.repeat(number, delivery)
        dispatcher.take(requests)
