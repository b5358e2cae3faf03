"""One websocket: a session, its requests and its pushes.

The reader takes frames as they come and hands their requests to the dispatcher. The writer sleeps until the dispatcher
has answers, and sends all of them as one frame. Most frames come and go without either of them, the short way (see
`connection.py`), as long as the client reads; what does not fit is left to the two.

A client that does not read keeps the writer waiting: its answers gather here, no more of its requests are read, its
pushes run out of credit; after `read_timeout_s` the connection is closed.

Close codes: 1000 the client said goodbye; 1003 a frame of text; 1007 a frame that cannot be read; 1008 not admitted, or
too slow; 1009 a frame too large; 1011 a bug: answers were lost; 1012 the server stops; 1013 too many connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from penstock.core.errors import AccessDenied, PenstockError
from penstock.core.packed_error import pack_error
from penstock.protocols.http import PLAIN_TEXT, Exchange, Terms
from penstock.protocols.rest.endpoint import EndpointContext, Parameters, not_found
from penstock.protocols.websocket.admission import Admitted, admit, limits_of, refuse_pages
from penstock.protocols.websocket.connection import Connection
from penstock.protocols.websocket.dispatcher import Dispatcher
from penstock.server.node import Services
from penstock.wire.answers import Kind, encode_answers
from penstock.wire.requests import BadFrame, decode_requests

log = logging.getLogger("penstock.websocket")

NORMAL, TEXT, UNREADABLE, REFUSED, FAILED, BUSY = 1000, 1003, 1007, 1008, 1011, 1013
_HELLO_TIMEOUT_S = 10.0
_UNREAD_MAX = 1_000
_PAUSE_S = 0.01
_LARGE_BYTES = 64 * 1024
"""A frame from which on an empty one follows: that one waits until the large one is nearly gone, and so notices a
client that does not read, although there is nothing else to send."""


class Closing(Exception):
    """The connection ends, with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class WebsocketEndpoint:
    """What is at `/v1/ws`."""

    def __init__(self, context: EndpointContext, version: str) -> None:
        self._context = context
        self._services = context.services
        self._version = version
        self._connections = 0
        self._flushes = Flushes()

    def check_header(self, exchange: Exchange, parameters: Parameters) -> Terms | None:
        """Requests for websockets have no bodies."""
        return None

    def handle(self, exchange: Exchange, parameters: Parameters) -> None:
        """Open a websocket, or say why not.

        Nothing is compressed: bodies are the users' own, and mostly do not shrink.
        """
        request = exchange.request
        if not request.is_upgrade:
            self._context.fail(exchange, not_found(exchange))
            return
        try:
            refuse_pages(self._services, request.headers)
        except AccessDenied as error:
            exchange.respond(403, PLAIN_TEXT, f"{error}\n".encode())
            return
        settings = self._services.settings.websocket
        if self._connections >= settings.connections_max:
            exchange.respond(503, PLAIN_TEXT, b"there are too many connections: try again later\n")
            return
        asked = Request(request.raw_target.decode("latin-1"), Headers(request.headers))
        response = ServerProtocol().accept(asked)
        if response.status_code != 101:
            headers = [("upgrade", "websocket"), *PLAIN_TEXT] if response.status_code == 426 else PLAIN_TEXT
            exchange.respond(response.status_code, headers, bytes(response.body or b""))
            return
        self._connections += 1
        serve = partial(self._serve, request.headers, request.peer)
        exchange.upgrade(partial(Connection, settings, self._services.budget, response.serialize(), serve))

    async def _serve(self, headers: Mapping[str, str], peer: str, connection: Connection) -> None:
        try:
            await Conversation(self._services, self._version, self._flushes, connection, headers, peer).run()
        finally:
            self._connections -= 1


class Flushes:
    """Conversations that have answers. All are written in the loop's next turn, each as one frame; or now."""

    def __init__(self) -> None:
        self._planned: list[Conversation] = []

    def plan(self, conversation: Conversation) -> None:
        if not self._planned:
            asyncio.get_running_loop().call_soon(self.flush)
        self._planned.append(conversation)

    def flush(self) -> None:
        planned, self._planned = self._planned, []
        for conversation in planned:
            try:
                conversation.flush()
            except Exception:  # a bug in one of them must not keep the others from their answers
                log.exception("answers could not be written")
                conversation.give_up()


class Conversation:
    """A connection that was accepted."""

    def __init__(
        self,
        services: Services,
        version: str,
        flushes: Flushes,
        connection: Connection,
        headers: Mapping[str, str],
        peer: str,
    ) -> None:
        self._services = services
        self._version = version
        self._flushes = flushes
        self._connection = connection
        self._headers = headers
        self._peer = peer
        self._answered = asyncio.Event()
        self._is_writing = False
        """The writer has a frame in hand: nothing may overtake it."""
        self._is_flush_planned = False
        self._is_large = False
        """A large frame was written, and an empty one has to follow."""
        self._dispatcher: Dispatcher | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._closing: Closing | None = None
        """What the writer wants the connection to end with."""
        self._settings = services.settings.websocket

    async def run(self) -> None:
        """Until one side ends it."""
        try:
            admitted = await self._admitted()
            if admitted is not None:
                self._connection.admit()
                await self._serve(admitted)
        except Closing as closing:
            self._connection.close(closing.code, closing.reason)
        except OSError:
            return

    async def _admitted(self) -> Admitted | None:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                frame = _frame_in(await self._connection.receive())
        except TimeoutError:
            raise Closing(REFUSED, f"no Hello came within {_HELLO_TIMEOUT_S:g} s") from None
        if frame is None:
            return None
        try:
            return await admit(
                self._services,
                self._headers,
                frame,
                version=self._version,
                session_ttl_ms=0,
                peer=self._peer,
            )
        except BadFrame as error:
            raise Closing(UNREADABLE, str(error)) from None
        except PenstockError as error:
            status = 401 if isinstance(error, AccessDenied) else 400
            if self._services.request_log.wants(status):  # whoever tries tokens is seen
                self._services.request_log.note(
                    "websocket", status, 0.0, peer=self._peer, action="Hello", outcome=type(error).__name__
                )
            await self._write(encode_answers(self._services.shard.now_ms(), [(0, Kind.ERROR, pack_error(error))]))
            raise Closing(REFUSED, str(error)) from None

    async def _serve(self, admitted: Admitted) -> None:
        dispatcher = Dispatcher(
            self._services,
            admitted.principal,
            admitted.session,
            limits_of(self._services),
            self._on_answer,
            protocol="websocket",
            peer=self._peer,
            share=self._connection.answers,
        )
        self._dispatcher = dispatcher
        reading = self._reading = asyncio.current_task()
        assert reading is not None
        writing = asyncio.create_task(self._keep_writing(dispatcher, reading))
        try:
            dispatcher.answers.append((admitted.request, Kind.REPLY, admitted.welcome))
            self._answered.set()
            await self._keep_reading(dispatcher, reading)
        except asyncio.CancelledError:
            if self._closing is None:
                raise
            reading.uncancel()
            raise self._closing from None
        finally:
            self._connection.hear = None
            writing.cancel()
            dispatcher.close("the connection ended")

    async def _keep_reading(self, dispatcher: Dispatcher, reading: asyncio.Task[Any]) -> None:
        def hear(frame: bytes) -> None:
            try:
                dispatcher.take(decode_requests(frame))
                if self._services.shard.step_now():
                    self._flushes.flush()
            except BadFrame as error:
                self._end_with(Closing(UNREADABLE, str(error)), reading)
            if dispatcher.later or len(dispatcher.answers) > _UNREAD_MAX:
                self._connection.hear = None

        while True:
            self._connection.hear = hear
            frame = _frame_in(await self._connection.receive())
            if frame is None:
                return
            try:
                dispatcher.take(decode_requests(frame))
            except BadFrame as error:
                raise Closing(UNREADABLE, str(error)) from None
            if dispatcher.later or len(dispatcher.answers) > _UNREAD_MAX:
                self._connection.hear = None
                await self._caught_up(dispatcher)

    async def _caught_up(self, dispatcher: Dispatcher) -> None:
        """A client that does not read what it is answered is not read from."""
        while dispatcher.answers or dispatcher.later:
            await asyncio.sleep(_PAUSE_S)
            if self._connection.is_over:
                return

    def give_up(self) -> None:
        """Its answers are lost: the client has to connect again, and to ask again."""
        if self._reading is not None:
            self._end_with(Closing(FAILED, "the server has failed to answer: connect again"), self._reading)

    def _end_with(self, closing: Closing, reading: asyncio.Task[Any]) -> None:
        if self._closing is None:
            self._connection.hear = None
            self._closing = closing
            reading.cancel()

    def _on_answer(self) -> None:
        """The dispatcher has an answer: write it, with all that come in this turn of the loop."""
        if self._is_writing:
            self._answered.set()
        elif not self._is_flush_planned:
            self._is_flush_planned = True
            self._flushes.plan(self)

    def flush(self) -> None:
        """Write what is answered, if the client reads."""
        self._is_flush_planned = False
        connection, dispatcher = self._connection, self._dispatcher
        assert dispatcher is not None
        if self._is_writing or self._answered.is_set() or not connection.can_write:
            self._answered.set()
        elif dispatcher.answers:
            frame = dispatcher.take_frame()
            connection.write(frame)
            if len(frame) >= _LARGE_BYTES or dispatcher.answers:
                self._is_large = True
                self._answered.set()

    async def _keep_writing(self, dispatcher: Dispatcher, reading: asyncio.Task[Any]) -> None:
        try:
            while True:
                await self._answered.wait()
                self._answered.clear()
                self._is_writing = True
                if dispatcher.answers:
                    await self._writable()
                    frame = dispatcher.take_frame()
                    await self._write(frame)
                    if dispatcher.answers:
                        self._answered.set()
                    self._is_large = self._is_large or len(frame) >= _LARGE_BYTES
                if self._is_large:
                    self._is_large = False
                    await self._write(encode_answers(self._services.shard.now_ms(), []))
                self._is_writing = False
        except Closing as closing:
            self._end_with(closing, reading)
        except OSError:
            self._end_with(Closing(NORMAL, "the client is gone"), reading)

    async def _writable(self) -> None:
        """Until the client has read enough of what was written before: answers take less room before they are made."""
        if not self._connection.writable.is_set():
            async with self._reading_in_time():
                await self._connection.writable.wait()

    async def _write(self, frame: bytes) -> None:
        if self._connection.can_write:
            self._connection.write(frame)
            return
        async with self._reading_in_time():
            await self._connection.send(frame)

    @contextlib.asynccontextmanager
    async def _reading_in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                yield
        except TimeoutError:
            raise Closing(REFUSED, f"answers were not read for {self._settings.read_timeout_s:g} s") from None


def _frame_in(message: bytes | str | None) -> bytes | None:
    if isinstance(message, str):
        raise Closing(TEXT, "frames are binary: MessagePack")
    return message
