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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Receive, Scope, Send

from penstock.core.commands import Delivery, Heartbeat
from penstock.core.commands import Receive as ReceiveCommand
from penstock.core.errors import (
    AccessDenied,
    BatchTooLarge,
    InvalidRequest,
    OverLimit,
    PenstockError,
    SessionNotFound,
)
from penstock.core.packed_error import pack_error
from penstock.protocols.rest.body import BodyLeft, read_body
from penstock.protocols.rest.problems import RestError
from penstock.protocols.websocket.admission import Headers, header_of, principal_of, refuse_pages
from penstock.protocols.websocket.conversation import admit, limits_of
from penstock.protocols.websocket.desk import Desk
from penstock.protocols.websocket.handles import session_number
from penstock.server.auth import Principal
from penstock.server.budget import SMALL_BYTES, UNKNOWN_BYTES_MAX, Share
from penstock.server.node import Services
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


_KEPT_MAX = 1_000
_NUMBER_LENGTH_MAX = 20
"""No request, and no session, has a number of more than 64 bits."""
_IDLE_TTLS = 2


class _Gone(Exception):
    """The client has hung up."""


class _Conversation:
    """What the server remembers of a client that polls, besides its session."""

    __slots__ = ("desks", "kept", "seen_s")

    def __init__(self) -> None:
        self.desks: list[Desk] = []
        """The desks of its requests in flight: a request may cancel another one's wait."""
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
    """The ASGI application behind `/v1/commands`."""

    def __init__(self, services: Services, version: str) -> None:
        self._services = services
        self._version = version
        self._conversations: dict[int, _Conversation] = {}
        """By session."""
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["method"] != "POST":
            await _respond(send, 405, b"POST a frame of commands\n", content_type=b"text/plain", allow=True)
            return
        try:
            with self._counted(), self._services.budget.share() as share:
                refuse_pages(self._services, scope["headers"])
                await self._converse(scope, receive, send, share)
        except PenstockError as error:
            status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 503)
            answer = (0, Kind.ERROR, pack_error(error))
            await _respond(send, status, encode_answers(self._services.shard.now_ms(), [answer]))
        except (_Gone, BodyLeft):
            return

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._in_flight >= self._services.settings.websocket.connections_max:
            raise OverLimit("too many requests are in flight: try again later")
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _body(self, headers: Headers, receive: Receive, share: Share, bytes_max: int) -> bytes:
        try:
            return await read_body(
                receive,
                header_of(headers, b"content-length"),
                share,
                bytes_max=bytes_max,
                seconds=self._services.settings.http.body_timeout_s,
                too_large=lambda limit: BatchTooLarge(f"a frame has at most {limit} bytes here"),
            )
        except RestError as error:
            raise OverLimit(str(error)) from None

    async def _converse(self, scope: Scope, receive: Receive, send: Send, share: Share) -> None:
        """Take a frame: of a stranger a small one, just large enough for a Hello."""
        headers = scope["headers"]
        peer = scope["client"][0] if scope.get("client") else ""
        handle = header_of(headers, SESSION_HEADER.encode())
        if handle is None:
            frame = await self._body(headers, receive, share, UNKNOWN_BYTES_MAX)
            ttl_ms = round(self._services.settings.websocket.session_ttl_s * 1_000)
            admitted = await admit(
                self._services, headers, frame, version=self._version, session_ttl_ms=ttl_ms, peer=peer
            )
            self._forget_the_idle()
            answer = (admitted.request, Kind.REPLY, admitted.welcome)
            await _respond(send, 200, encode_answers(self._services.shard.now_ms(), [answer]))
            return
        principal = principal_of(self._services, headers, None)
        session = self._session(principal, handle)
        await self._services.shard.call(Heartbeat(session=session))
        frame = await self._body(headers, receive, share, self._services.settings.websocket.frame_bytes_max)
        if len(frame) < SMALL_BYTES:
            share.let_go()  # who waits for room for an answer holds nothing that others wait for
        conversation = self._conversations.setdefault(session, _Conversation())
        conversation.seen_s = time.monotonic()
        conversation.confirm(header_of(headers, RECEIVED_HEADER.encode()) or "")
        await self._answer(principal, session, peer, frame, receive, send, conversation, share)

    def _forget_the_idle(self) -> None:
        oldest_s = time.monotonic() - _IDLE_TTLS * self._services.settings.websocket.session_ttl_s
        for session, conversation in list(self._conversations.items()):
            if conversation.seen_s < oldest_s and not conversation.desks:
                del self._conversations[session]

    def _session(self, principal: Principal, handle: str) -> int:
        if not handle.isdecimal() or len(handle) > _NUMBER_LENGTH_MAX:
            raise InvalidRequest(f"{SESSION_HEADER} is a number: the session of the Welcome")
        return session_number(self._services.shard.identity.meta.secret, principal, int(handle))

    async def _answer(
        self,
        principal: Principal,
        session: int,
        peer: str,
        frame: bytes,
        receive: Receive,
        send: Send,
        conversation: _Conversation,
        share: Share,
    ) -> None:
        answered = asyncio.Event()
        desk = Desk(
            self._services,
            principal,
            session,
            limits_of(self._services),
            answered.set,
            protocol="poll",
            peer=peer,
            desks=conversation.desks,
            share=share,
        )
        conversation.desks.append(desk)
        leaving = asyncio.ensure_future(_left(receive))
        try:
            self._take(desk, frame, conversation)
            while desk.in_flight and not leaving.done():
                answered.clear()
                waiting = asyncio.ensure_future(answered.wait())
                await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
            if leaving.done():
                raise _Gone
            conversation.keep(desk.answers, self._services.shard.identity)
            await _respond(send, 200, desk.take_frame())
        finally:
            leaving.cancel()
            desk.abandon()
            conversation.desks.remove(desk)

    def _take(self, desk: Desk, frame: bytes, conversation: _Conversation) -> None:
        requests, now_ms = decode_requests(frame), self._services.shard.now_ms()
        if conversation.kept:
            for number, command in list(requests):
                delivery = conversation.repeated(number, command, now_ms)
                if delivery is not None:
                    requests.remove((number, command))
                    desk.repeat(number, delivery)
        desk.take(requests)


async def _left(receive: Receive) -> None:
    """Until the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def _respond(
    send: Send, status: int, body: bytes, *, content_type: bytes = MEDIA_TYPE.encode(), allow: bool = False
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    if allow:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
