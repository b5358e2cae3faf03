"""One client: bytes in, requests to the handler, one at a time; responses out, or a reason.

The package says how it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from penstock.protocols.http.exchange import (
    BLOCK_BYTES,
    PLAIN_TEXT,
    BodyLeft,
    BodyRefused,
    BodyStream,
    Exchange,
    Headers,
    Parts,
    Request,
    Upgraded,
)
from penstock.server.budget import (
    BUSY,
    CUT_OFF,
    GROWTH_BYTES,
    GROWTH_TIMEOUT_S,
    NO_ROOM,
    REFUSED,
    Pace,
    Share,
    room_for,
)

if TYPE_CHECKING:
    from penstock.protocols.http.server import HttpServer

log = logging.getLogger("penstock.http")

_NEVER: Final = math.inf
_now_s: Final = time.perf_counter
LINGER_S: Final = 2.0
"""How long a refused client may go on sending before it is cut off."""
_JOIN_BYTES_MAX: Final = 64 * 1024
"""Responses up to this size are written as one piece; larger ones as head and body, to save the copy."""

PUMPED_AT_ONCE: Final = 64
"""Requests of one connection that are handed out in one turn of the loop: a single read may hold thousands."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_METHODS: Final[dict[bytes, str]] = {
    name.encode(): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
}
_LENGTH_DIGITS_MAX: Final = 20
"""Of a length: more are zeros in front, and nobody's."""
_NO_BODY: Final = (204, 304)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_CLOSED_BY_CLIENT = getattr(select, "POLLRDHUP", 0)
"""Besides resets, which are always told. Where the system does not know it, the loop alone tells of the end."""

_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_LINGER: Final = 3
"""What a connection reads: nothing yet, a request's header, its body, or only what is thrown away."""


class _Rejection:
    """Why a connection ends early."""

    __slots__ = ("code", "reason", "status")

    def __init__(self, status: int, code: str, reason: str) -> None:
        self.status = status
        self.code = code
        self.reason = reason


class HttpConnection:
    """One client. Made by `HttpServer`; handlers see it through their exchanges only.

    An asyncio protocol by its methods, and not by its base: a class with a base from elsewhere cannot be compiled into
    one whose attributes are quick to reach, and loops ask for the methods alone.
    """

    __slots__ = (
        "_answers",
        "_body",
        "_body_bytes",
        "_body_bytes_max",
        "_drained",
        "_expects_continue",
        "_fed_bytes",
        "_header_checked",
        "_headers",
        "_in_flight",
        "_is_closing",
        "_is_eof",
        "_is_header_unchecked",
        "_is_known",
        "_is_partly_answered",
        "_is_pump_due",
        "_is_pumping",
        "_is_read_paused",
        "_is_streamed",
        "_is_tls",
        "_is_write_paused",
        "_names",
        "_pace",
        "_parser",
        "_peer",
        "_reading",
        "_rejection",
        "_server",
        "_share",
        "_stream",
        "_target",
        "_transport",
        "_unread_bytes",
        "_unsent",
        "_upgrade_rest",
        "_waiting",
        "_written_bytes",
        "deadline",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._peer = ""
        self._is_tls = False
        self._reading = _IDLE
        self._target = b""
        self._names = server.names
        self._headers: dict[str, str] = {}
        self._unread_bytes = 0
        """Of headers that nobody reads."""
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        """So many of it have come."""
        self._body_bytes_max = 0
        self._is_streamed = False
        self._expects_continue = False
        self._header_checked: Exchange | None = None
        """The request whose body is being read, if the header check has let it in."""
        self._stream: BodyStream | None = None
        """The body of the request in flight, if that gets it as it comes."""
        self._upgrade_rest: bytes | None = None
        """What came behind a request for another protocol, which is the last one here; None without such a request."""
        self._fed_bytes = 0
        """Read since the last complete request, header or piece of a body."""
        self._waiting: list[Exchange] = []
        """Complete requests."""
        self._in_flight: Exchange | None = None
        self._is_partly_answered = False
        self._drained: asyncio.Future[None] | None = None
        """For who writes an answer part by part, until the client has read."""
        self._rejection: _Rejection | None = None
        self._is_eof = False
        self._is_closing = False
        self._is_pumping = False
        self._is_pump_due = False
        """The loop calls `_go_on` in its next turn."""
        self._is_read_paused = False
        self._is_write_paused = False
        self._unsent: list[bytes] = []
        """Responses that are written when this turn's work is done."""
        self._share = server.budget.share()
        """For requests. Of the budget for unauthenticated clients, while it has to be read who the client is."""
        self._answers = server.budget.share()
        """For responses that the client does not read."""
        self._is_known = False
        """The client has proven who it is, with something that its requests have in them."""
        self._pace: Pace | None = None
        """Of a body that did not come at once."""
        self._is_header_unchecked = False
        """Nobody has looked at the head of the request that is being read: its body is not read on before."""
        self._written_bytes = 0
        """Of a response that is being written: the transport keeps it whole until its last byte is gone."""
        self.deadline = _NEVER
        """When the sweep has to look after this connection."""

    # -- the transport's calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = str(address[0]) if isinstance(address, tuple) else ""
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        room, is_admitted = room_for(transport), self._server.admit(self)
        if room == CUT_OFF:
            self._server.count_rejection(503)
            self.leave()
        elif room == REFUSED:
            self._reject(503, "too_many_connections", NO_ROOM)
            self._pump()
        elif is_admitted:
            self._parser = httptools.HttpRequestParser(self)
            self.deadline = self._server.now + self._server.limits.idle_timeout_s
        elif self._server.is_draining:  # it was accepted in the moment in which the server stopped listening
            self._reject(503, "stopping", "the server is being stopped: try again")
            self._pump()
        else:
            reason = "too many connections: try again later, or raise connections_max"
            self._reject(503, "too_many_connections", reason)
            self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._transport = None
        self._parser = None
        self._waiting.clear()
        self._body = b""
        if self._pace is not None:
            self._end_pace()
        self._share.close()
        self._answers.close()
        self.deadline = _NEVER
        self._server.forget(self)
        self._wake_writer()
        if self._stream is not None:
            self._stream.fail(BodyLeft())
            self._stream = None
        if self._in_flight is not None:
            self._abandon(self._in_flight)

    def data_received(self, data: bytes) -> None:
        """Parse, then hand out what is complete."""
        parser = self._parser
        if parser is None:
            self._throw_away()
            return
        if self._rejection is not None:
            return
        if self._upgrade_rest is not None:
            self._upgrade_rest += data
            return
        was_reading = self._reading
        self._fed_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._meet_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(400, "malformed_request", f"this is not HTTP: {error}")
        if self._reading != _IDLE and self._fed_bytes > self._server.limits.header_bytes_max:
            part = "header" if self._reading == _HEAD else "trailer"
            reason = f"the {part} is larger than {self._server.limits.header_bytes_max} bytes"
            self._reject(431, "header_too_large", reason)
        elif self._reading == _BODY and not self._is_rejected:
            self._admit_body()
        if self._waiting or self._is_rejected:
            self._pump()
        elif self._reading != was_reading and self._in_flight is None:
            self._set_deadline()

    @property
    def _is_rejected(self) -> bool:
        """Asked anew each time: compiled, an attribute that was None in a function is taken for None until its end."""
        return self._rejection is not None

    def _throw_away(self) -> None:
        """What a refused client still sends is read, a little at a time."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not self._is_read_paused:
            self._is_read_paused = True
            transport.pause_reading()
            self._server.budget.linger(self._read_more)

    def _read_more(self) -> None:
        transport = self._transport
        self._is_read_paused = False
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def eof_received(self) -> bool:
        """The client sends no more. What is in flight is answered, unless it waits."""
        self._is_eof = True
        if self._in_flight is not None and self._in_flight.on_abandoned is not None:
            self._abandon(self._in_flight)
            self._reject_stopped()
        elif self._reading in (_HEAD, _BODY):
            self._reject(408, "request_timeout", "the request ended before it was complete")
        elif self._reading == _LINGER:
            return False
        self._pump()
        return self._in_flight is not None or bool(self._waiting)

    def pause_writing(self) -> None:
        """The client does not read: no further request is begun, and its time runs."""
        self._is_write_paused = True
        if self._transport is not None:
            self._answers.hold(max(self._transport.get_write_buffer_size(), self._written_bytes))
        self.deadline = self._server.now + self._server.limits.body_timeout_s

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._answers.let_go()
        self._wake_writer()
        if self._reading == _LINGER:
            self.deadline = self._server.now + LINGER_S
            return
        self._set_deadline()
        self._pump()

    # -- the parser's calls --

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._reading = _HEAD
        self._target = b""
        self._headers = {}
        self._unread_bytes = 0
        self._body = b""
        self._body_bytes = 0
        self._body_bytes_max = self._server.limits.body_bytes_max
        self._is_streamed = False
        self._expects_continue = False
        self._is_header_unchecked = True

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """A header; after the body (a trailer) it is passed over."""
        if self._reading != _HEAD:
            return
        key = self._names.get(name)
        if key is None:
            key = self._server.name_of(name)
        if not key:
            self._unread_bytes += len(name) + 4 + (0 if value is None else len(value))
            return
        text = "" if value is None else value.decode("latin-1").rstrip(" \t")
        headers = self._headers
        known = len(headers)
        first = headers.setdefault(key, text)
        if len(headers) == known:
            if key == "host":
                self._reject(400, "malformed_request", "there is more than one Host header")
            headers[key] = f"{first}, {text}"
            self._unread_bytes += len(name) + 2

    def on_headers_complete(self) -> None:
        """Check what can be checked before the body comes."""
        headers = self._headers
        limits = self._server.limits
        self._reading = _BODY
        if self._fed_bytes > limits.header_bytes_max and self._header_bytes() > limits.header_bytes_max:
            self._reject(431, "header_too_large", f"the header is larger than {limits.header_bytes_max} bytes")
        elif "host" not in headers and self._parser.get_http_version() != "1.0":
            self._reject(400, "malformed_request", "the Host header is missing")
        elif len(headers.get("content-length", "")) > _LENGTH_DIGITS_MAX or (
            self._server.check_header is None and self._announced_bytes() > self._body_bytes_max
        ):
            self._reject_body()
        elif "expect" in headers:
            self._expects_continue = True
            if headers["expect"].lower() != "100-continue":
                reason = "the only expectation that can be met is 100-continue"
                self._reject(417, "expectation_failed", reason)
        self._fed_bytes = 0

    def on_body(self, piece: bytes) -> None:
        self._fed_bytes = 0
        if self._rejection is not None:
            return
        self._body_bytes += len(piece)
        if self._body_bytes > self._body_bytes_max:
            self._reject_body()
        elif self._stream is not None and not self._stream.is_complete:
            self._stream.feed(piece)
            if self._stream.is_full and self._pace is not None:
                self._pace.stop()  # it is the handler that is waited for
        elif not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        if self._pace is not None:
            self._end_pace()
        if self._rejection is not None:
            return
        self._reading = _IDLE
        self._fed_bytes = 0
        if self._stream is not None and not self._stream.is_complete:
            self._stream.end()
            return
        body = self._body
        exchange = self._header_checked
        if exchange is None:
            exchange = self._new_exchange()
        else:
            self._header_checked = None
        exchange.request.body = bytes(body) if isinstance(body, bytearray) else body
        self._waiting.append(exchange)
        self._body = b""

    # -- requests, one after the other --

    def _pump(self) -> None:
        """Hand out waiting requests until one stays in flight; then see to what is left."""
        if self._is_pumping:
            return
        self._is_pumping = True
        left, budget = PUMPED_AT_ONCE, self._server.budget
        while self._waiting and self._in_flight is None and not self._is_closing and not self._is_write_paused:
            if budget.held_bytes >= budget.bytes_max and not self._share.held_bytes and not self._is_welcome():
                break
            if not left:
                self._pump_soon()
                break
            left -= 1
            self._handle(self._waiting.pop(0))
        self._is_pumping = False
        if self._in_flight is None and not self._waiting and not self._is_closing:
            if self._reading == _BODY and not self._is_rejected:
                self._admit_body()
            if self._rejection is not None:
                self._say_why(self._rejection)
            elif self._reading == _IDLE and (self._is_eof or self._server.is_draining) and self._in_flight is None:
                self._close()
        self._apply_backpressure()

    def _pump_soon(self) -> None:
        """It is the others' turn, and that of what was answered: it is written before more is."""
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_pump_due = False
        self._pump()

    def _handle(self, exchange: Exchange) -> None:
        server = self._server
        self._in_flight = exchange
        self.deadline = _NEVER
        server.counters.requests += 1
        exchange.started_s = _now_s()
        try:
            if server.refuses is None or not server.refuses(exchange):
                server.handler(exchange)
        except Exception:
            log.exception("the handler of %s %s failed", exchange.request.method, exchange.request.path)
            exchange.outcome = "InternalFailure"
            exchange.respond(500, PLAIN_TEXT, b"internal failure: the server's log says more\n")

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Write the response to the request in flight, and go on. For `Exchange.respond`."""
        keeps_alive = self._keeps_alive(exchange)
        framing = "" if status in _NO_BODY else f"content-length: {len(body)}\r\n"
        self._write(exchange, status, self._head(status, headers, framing, keeps_alive, exchange), body, keeps_alive)

    def _keeps_alive(self, exchange: Exchange) -> bool:
        """Whether the connection stays open after this answer. It cannot if the rest of a body is still to come."""
        is_last = self._is_eof and not self._waiting and self._rejection is None
        is_read = self._stream is None or self._stream.is_complete
        return exchange.keeps_alive and is_read and not self._server.is_draining and not is_last

    def answer_well(self, exchange: Exchange, lines: str, body: bytes) -> None:
        server = self._server
        request = exchange.request
        if not exchange.keeps_alive or server.is_draining or self._is_eof or "connection" in request.headers:
            pairs = [_pair(line) for line in lines.splitlines()]
            self.answer(exchange, 200, pairs, body)
            return
        head = f"{server.ok_lines}{lines}content-length: {len(body)}\r\n\r\n".encode("ascii")
        if len(body) > _JOIN_BYTES_MAX or request.method == "HEAD":
            self._write(exchange, 200, head, body, True)
            return
        self._end_exchange(exchange)
        if not self._unsent:  # as `_put`, which costs a call
            server.to_flush.append(self)
            if len(server.to_flush) == 1:
                asyncio.get_running_loop().call_soon(_flush, server.to_flush)
        self._unsent.append(head + body)
        self._after_response(exchange, 200, True)

    async def answer_in_parts(
        self, exchange: Exchange, status: int, headers: Headers, parts: Parts, nbytes: int | None
    ) -> bool:
        """As `answer`, part by part, as fast as the client reads. For `Exchange.respond_in_parts`."""
        is_chunked = nbytes is None and not exchange.request.is_old
        keeps_alive = self._keeps_alive(exchange) and (is_chunked or nbytes is not None)
        framing = "transfer-encoding: chunked\r\n" if is_chunked else ""
        if nbytes is not None:
            framing = f"content-length: {nbytes}\r\n"
        exchange.on_abandoned = None
        self._is_partly_answered = True
        self._put(self._head(status, headers, framing, keeps_alive, exchange))
        if exchange.request.method != "HEAD":
            try:
                if isinstance(parts, AsyncGenerator):
                    async with aclosing(parts):
                        async for part in parts:
                            if exchange.is_gone:
                                return False
                            await self._put_part(part, is_chunked)
                else:
                    for part in parts:
                        if exchange.is_gone:
                            return False
                        await self._put_part(part, is_chunked)
            except BaseException:  # the client has to see that something is missing
                self.leave()
                raise
            if is_chunked:
                self._put(b"0\r\n\r\n")
        if exchange.is_gone:
            return False
        self._end_exchange(exchange)
        self._after_response(exchange, status, keeps_alive)
        return True

    async def _put_part(self, part: Any, is_chunked: bool) -> None:
        if len(part):
            self._write_part(part, is_chunked)
        if self._is_write_paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _write_part(self, part: Any, is_chunked: bool) -> None:
        self.flush()
        transport = self._transport
        assert transport is not None
        self._written_bytes = len(part)
        if is_chunked:
            transport.writelines((b"%x\r\n" % len(part), part, b"\r\n"))
        else:
            transport.write(part)
        self._written_bytes = 0

    def _wake_writer(self) -> None:
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def _end_exchange(self, exchange: Exchange) -> None:
        assert exchange is self._in_flight
        exchange.connection = exchange.on_abandoned = None
        self._in_flight = None
        self._is_partly_answered = False
        self._stream = None
        if exchange.is_known:
            self._is_known = True
        if self._share.held_bytes:
            self._let_go_of_requests()

    def _write(self, exchange: Exchange, status: int, head: bytes, body: bytes, keeps_alive: bool) -> None:
        transport = self._transport
        assert transport is not None
        self._end_exchange(exchange)
        if exchange.request.method == "HEAD":
            self._put(head)
        elif len(body) <= _JOIN_BYTES_MAX:
            self._put(head + body)
        elif not transport.is_closing():
            self.flush()
            self._written_bytes = len(body)
            transport.writelines((head, body))
            self._written_bytes = 0
        self._after_response(exchange, status, keeps_alive)

    def _after_response(self, exchange: Exchange, status: int, keeps_alive: bool) -> None:
        if self._server.observer is not None:
            try:
                self._server.observer(exchange, status)
            except Exception:  # not the client's
                log.exception("the observer failed")
        if not keeps_alive:
            self._close_after_response()
            return
        if self._reading == _IDLE and not self._is_write_paused and not self._share.is_waiting:
            self.deadline = self._server.idle_until  # most: `_set_deadline` costs a call
        else:
            self._set_deadline()
        if (self._waiting or self._rejection is not None or self._is_read_paused) and not self._is_pumping:
            self._pump()

    def _put(self, data: bytes) -> None:
        """Write in the loop's next turn: with the responses of others, one right after the other (see the package)."""
        if not self._unsent:
            self._server.to_flush.append(self)
            if len(self._server.to_flush) == 1:
                asyncio.get_running_loop().call_soon(_flush, self._server.to_flush)
        self._unsent.append(data)

    def flush(self) -> None:
        _flush([self])

    def has_hung_up(self) -> bool:
        """Ask the kernel whether the client has closed; give up the request in flight if so. For `Exchange.respond`.

        A request, the end of its client and what it waits for may come in the same turn of the loop: the response is
        ready then before the loop hears of the end.
        """
        assert self._transport is not None
        assert self._in_flight is not None
        if not self._transport.is_closing():
            poller = select.poll()
            poller.register(self._transport.get_extra_info("socket").fileno(), _CLOSED_BY_CLIENT)
            if not poller.poll(0):
                return False
        self._end_exchange(self._in_flight)
        self._server.counters.abandoned += 1
        self._reject_stopped()
        if self._is_eof:  # the loop has told of it, and does so once
            self._pump()
        elif self._is_read_paused:  # the end is behind what is to be read
            self._read_more()
        return True

    def hand_claim(self, share: Share) -> None:
        """What is held for the body of the request in flight is another share's. For `Exchange.hand_claim`."""
        share.hold(self._share.held_bytes)
        self._share.let_go()

    def is_open(self) -> bool:
        """Whether nothing has closed the connection yet. For `Exchange.is_gone`."""
        return self._transport is not None and not self._transport.is_closing()

    def _head(
        self, status: int, headers: Headers, framing: str, keeps_alive: bool, exchange: Exchange | None = None
    ) -> bytes:
        if exchange is not None and exchange.headers:
            headers = [*headers, *exchange.headers]
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            lines = "".join([f"{_one_line(name)}: {_one_line(value)}\r\n" for name, value in headers])
        if not keeps_alive:
            lines += "connection: close\r\n"
        elif exchange is not None and "connection" in exchange.request.headers:
            lines += "connection: keep-alive\r\n"
        status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        head = f"{status_line}{self._server.date_line}{lines}{framing}\r\n"
        return head.encode("latin-1", "replace")

    def _abandon(self, exchange: Exchange) -> None:
        callback = exchange.on_abandoned
        exchange.unheard = self._server.unheard
        self._end_exchange(exchange)
        self._server.counters.abandoned += 1
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("giving up %r failed", exchange.request)

    # -- limits --

    def expire(self) -> None:
        self.deadline = _NEVER
        if self._is_write_paused or self._reading == _LINGER:
            self.leave()
        elif self._share.is_waiting:
            self._share.withdraw()
            self._reject(503, "no_room", BUSY)
            self._waiting.clear()
            self._pump()
        elif self._reading == _HEAD:
            self._reject(
                408, "header_timeout", f"the header took longer than {self._server.limits.header_timeout_s:g} s"
            )
            self._pump()
        elif self._reading == _BODY:
            self._reject(408, "body_timeout", f"the body took longer than {self._server.limits.body_timeout_s:g} s")
            self._pump()
        else:
            self._close()

    def _come_too_slowly(self) -> None:
        assert self._pace is not None
        self._reject(408, "body_timeout", self._pace.reason)
        self._pump()

    def _set_deadline(self) -> None:
        if self._is_write_paused:
            self.deadline = min(self.deadline, self._server.now + self._server.limits.body_timeout_s)
            return
        if self._in_flight is not None:
            self.deadline = _NEVER
            return
        if self._share.is_waiting:
            self.deadline = self._server.now + self._server.budget.room_timeout_s
            return
        if self._reading == _IDLE:
            self.deadline = self._server.idle_until
            return
        limits = self._server.limits
        if self._reading == _HEAD:
            self.deadline = self._server.now + limits.header_timeout_s
        elif self._reading == _BODY:
            self.deadline = self._server.now + limits.body_timeout_s

    def _header_bytes(self) -> int:
        return (
            len(self._target)
            + self._unread_bytes
            + sum(len(name) + len(value) + 4 for name, value in self._headers.items())
        )

    def _apply_backpressure(self) -> None:
        """Do not read from one who pipelines too much, or is to be refused; read again when the line is short."""
        is_full = not self._is_closing and (
            self._rejection is not None
            or len(self._waiting) > self._server.limits.pipelined_max
            or self._share.is_waiting
            or self._upgrade_rest is not None
            or (self._stream is not None and self._stream.is_full)
            or (self._is_header_unchecked and self._reading == _BODY)
        )
        if is_full == self._is_read_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_read_paused = is_full
        if is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _admit_body(self) -> None:
        """A body has begun, and its rest is still to come: read on if its client is known, and when there is room."""
        if self._stream is not None or (self._is_header_unchecked and not self._check_header()):
            self._apply_backpressure()
            return
        announced = self._announced_bytes()
        if announced > self._body_bytes_max or self._body_bytes > self._body_bytes_max:
            self._reject_body()
            return
        wanted = BLOCK_BYTES if self._is_streamed else announced
        held = self._share.held_bytes
        if not wanted and self._body_bytes >= held:
            wanted = self._body_bytes + GROWTH_BYTES
        if self._share.is_waiting:
            return
        if wanted <= held or self._share.claim(wanted - held, self._room_came):
            self._read_body()
        else:
            if self._pace is not None:
                self._pace.stop()
            self.deadline = self._server.now + (GROWTH_TIMEOUT_S if held else self._server.budget.room_timeout_s)
            self._apply_backpressure()

    def _read_body(self) -> None:
        """There is room: the client may send, at its pace, and a handler that wants its body as it comes begins."""
        if self._pace is None:
            self._pace = Pace(self._server.budget, lambda: self._body_bytes, self._come_too_slowly)
        self._pace.start()
        if self._expects_continue:
            self._expects_continue = False
            if not self._body_bytes:
                self._put(_CONTINUE)
        exchange = self._header_checked
        if self._is_streamed and exchange is not None:
            self._header_checked = None
            self._stream = exchange.request.stream = BodyStream(self._block_taken)
            if self._body:
                self._stream.feed(bytes(self._body))
                self._body = b""
            self._handle(exchange)
        self._apply_backpressure()

    def _block_taken(self) -> None:
        """The handler has taken what there was of its body."""
        if self._pace is not None:
            self._pace.start()
        self._apply_backpressure()

    def _check_header(self) -> bool:
        """Show a request to the header check, in its turn. False if it is refused, or its turn is still to come."""
        if self._in_flight is not None or self._waiting:
            return False
        self._is_header_unchecked = False
        if self._server.check_header is None:
            return True
        exchange = self._in_flight = self._new_exchange()
        keeps_alive, exchange.keeps_alive = exchange.keeps_alive, False
        exchange.started_s = _now_s()
        refuses = self._server.refuses
        terms = None if refuses is not None and refuses(exchange) else self._server.check_header(exchange)
        if exchange.is_abandoned:
            return False
        self._in_flight = None
        exchange.keeps_alive = keeps_alive
        self._header_checked = exchange
        if exchange.is_known is False and not self._is_known:
            self._share.close()
            self._share = self._server.budget.unauthenticated.share()
        self._body_bytes_max = self._server.limits.body_bytes_max if terms is None else terms.bytes_max
        self._is_streamed = terms is not None and terms.is_streamed
        return True

    def _announced_bytes(self) -> int:
        """The length of the body that is being read; 0 if it is not told. (Whatever is no number is no HTTP.)"""
        return int(self._headers.get("content-length", "0"))

    def _new_exchange(self) -> Exchange:
        """For the request that is being read, as far as its header goes."""
        parser, headers = self._parser, self._headers
        method: bytes = parser.get_method()
        keeps_alive: bool = parser.should_keep_alive()
        text = _METHODS.get(method) or method.decode("latin-1")
        request = Request(text, self._target, headers, b"", self._peer, self._is_tls)
        if not keeps_alive or "connection" in headers:
            request.is_old = parser.get_http_version() == "1.0"
        return Exchange(self, request, keeps_alive)

    def _is_welcome(self) -> bool:
        """Whether a request may be handed out now; else it is, when answers of others have been read."""
        if self._share.is_waiting:
            return False
        self.deadline = self._server.now + self._server.budget.room_timeout_s
        return self._share.claim(0, self._room_came)

    def _let_go_of_requests(self) -> None:
        """What was claimed for bodies is not needed any more, if none is left."""
        if not self._waiting and self._reading == _IDLE:
            self._share.close()
            if self._share.budget is not self._server.budget:
                self._share = self._server.budget.share()

    def _room_came(self) -> None:
        if self._transport is not None:
            self._set_deadline()
            self._pump()

    def _meet_upgrades(self, rest: memoryview) -> None:
        """A request asks for another protocol. A websocket, where there is one, is the last thing that is asked for.

        Any other offer is passed over, and so are those that come right behind it. The parser took each for complete,
        without its body, and stopped: a new one reads it without the offer.
        """
        while not self._is_rejected:
            exchange = self._waiting.pop()
            if self._is_websocket(exchange.request):
                exchange.request.is_upgrade = True
                exchange.keeps_alive = False
                self._upgrade_rest = bytes(rest)
                self._waiting.append(exchange)
                return
            method = self._parser.get_method()
            if method == b"CONNECT":
                self._reject(405, "method_not_allowed", "this is not a proxy")
                return
            self._parser = httptools.HttpRequestParser(self)
            lines = [f"{name}: {value}\r\n" for name, value in self._headers.items() if name != "upgrade"]
            head = method + b" " + self._target + b" HTTP/1.1\r\n" + "".join(lines).encode("latin-1") + b"\r\n"
            self._fed_bytes += len(head) + len(rest)
            try:
                self._parser.feed_data(head)
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except httptools.HttpParserError as error:
                self._reject(400, "malformed_request", f"this is not HTTP: {error}")

    def _is_websocket(self, request: Request) -> bool:
        headers = request.headers
        if request.path not in self._server.websockets or headers.get("upgrade", "").lower() != "websocket":
            return False
        if self._announced_bytes() or "transfer-encoding" in headers:
            self._reject(400, "malformed_request", "a request for a websocket has no body")
            return False
        return request.method == "GET"

    def upgrade(self, exchange: Exchange, make: Callable[[Callable[[Upgraded], None]], Upgraded]) -> None:
        """Hand the connection over, with what has come already. For `Exchange.upgrade`."""
        self.flush()
        transport, rest = self._transport, self._upgrade_rest
        assert transport is not None and rest is not None
        self._is_closing = True
        self._end_exchange(exchange)
        self._transport = self._parser = None
        self._share.close()
        self._answers.close()
        self.deadline = _NEVER
        protocol = make(self._server.forget_upgraded)
        self._server.hand_over(self, protocol)
        transport.set_protocol(cast(asyncio.BaseProtocol, protocol))
        if self._is_read_paused:
            transport.resume_reading()
        protocol.take_over(transport, rest)
        if self._is_write_paused:
            protocol.pause_writing()

    # -- ends --

    def _reject(self, status: int, code: str, reason: str) -> None:
        """End the connection with a reason, as soon as nothing is in flight. The first reason stands."""
        if self._rejection is None and not self._is_closing:
            self._rejection = _Rejection(status, code, reason)
            self._body = b""
            if self._pace is not None:
                self._end_pace()
            if self._stream is not None:  # the handler hears it, and answers
                self._stream.fail(BodyRefused(status, code, reason))

    def _end_pace(self) -> None:
        assert self._pace is not None
        self._pace.stop()
        self._pace = None  # they know each other

    def _reject_body(self) -> None:
        self._reject(413, "body_too_large", f"the body is larger than {self._body_bytes_max} bytes")

    def _reject_stopped(self) -> None:
        self._waiting.clear()
        reason = "the client stopped sending while its request waited: taken to have hung up"
        self._reject(400, "malformed_request", reason)

    def _say_why(self, rejection: _Rejection) -> None:
        transport = self._transport
        if transport is None or self._is_closing:
            return
        headers, body = self._server.render(rejection.status, rejection.code, rejection.reason)
        self._server.count_rejection(rejection.status)
        self._is_closing = True
        self._parser = None
        self._share.close()
        self._put(self._head(rejection.status, headers, f"content-length: {len(body)}\r\n", False) + body)
        self._close_after_response()

    def _close_after_response(self) -> None:
        """Close for writing; for reading a moment later, or when the client has closed as well."""
        self.flush()
        transport = self._transport
        can_half_close = transport is not None and transport.can_write_eof()
        if transport is None or self._is_eof or (self._rejection is None and not can_half_close):
            self._close()
            return
        self._is_closing = True
        self._parser = None
        self._reading = _LINGER
        limits = self._server.limits
        self.deadline = self._server.now + (limits.body_timeout_s if self._is_write_paused else LINGER_S)
        if can_half_close and not transport.is_closing():
            transport.write_eof()

    def _close(self) -> None:
        self.flush()
        self._is_closing = True
        self._parser = None
        if self._transport is not None:
            self.deadline = self._server.now + self._server.limits.body_timeout_s
            self._reading = _LINGER
            self._transport.close()

    # -- for the server's stop --

    @property
    def is_busy(self) -> bool:
        """Whether there is something to be answered that does not wait."""
        if self._in_flight is not None:
            return self._in_flight.on_abandoned is None
        return bool(self._waiting) or self._reading in (_HEAD, _BODY)

    @property
    def is_owed(self) -> bool:
        """Whether some response has not left yet, or may still have to be made."""
        unsent = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return bool(self._unsent) or unsent or self._in_flight is not None or not self._is_closing

    def leave(self) -> None:
        """Close at once, whatever the client still sends or has not read."""
        if self._transport is not None:
            self._transport.abort()

    def begin_drain(self) -> None:
        """Close if there is nothing to be answered."""
        if self._in_flight is None and not self._waiting and self._reading == _IDLE and not self._is_closing:
            self._close()

    def end_drain(self) -> None:
        """No more patience: whatever is in flight hears that the server stops."""
        if self._is_partly_answered:
            self.leave()
        if self._in_flight is not None:
            self._abandon(self._in_flight)
        self._waiting.clear()
        self._reject(503, "stopping", "the server stops")
        self._pump()


def _flush(connections: list[HttpConnection]) -> None:
    """Write what these have to write, one right after the other; none is left in the list."""
    for connection in connections:
        pieces, connection._unsent = connection._unsent, []
        transport = connection._transport
        if not pieces or transport is None or transport.is_closing():
            continue
        try:
            transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except Exception:  # the others' responses are to be written all the same
            log.exception("a response could not be written")
    connections.clear()


def _pair(line: str) -> tuple[str, str]:
    """A header's name and value.

    >>> _pair("content-type: text/plain")
    ('content-type', 'text/plain')
    """
    name, _, value = line.partition(": ")
    return name, value


def _one_line(text: str) -> str:
    """Nobody writes a header of his own by way of a value."""
    return " ".join(text.splitlines())
