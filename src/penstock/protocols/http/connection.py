"""One client: bytes in, requests to the handler, one at a time; responses out, or a reason.

The package says how it works.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import httptools

from penstock.protocols.http.exchange import PLAIN_TEXT, Exchange, Headers
from penstock.protocols.http.request import Request
from penstock.server.budget import BUSY, GROWTH_BYTES, GROWTH_TIMEOUT_S, Pace
from penstock.server.descriptors import CUT_OFF, NO_ROOM, REFUSED, room_for

if TYPE_CHECKING:
    from penstock.protocols.http.server import HttpServer

log = logging.getLogger("penstock.http")

_now_s: Final = time.perf_counter
_NEVER: Final = math.inf
LINGER_S: Final = 2.0
"""How long a refused client may go on sending before it is cut off."""
_JOIN_BYTES_MAX: Final = 64 * 1024
"""Responses up to this size are written as one piece; larger ones as head and body, to save the copy."""

PUMPED_AT_ONCE: Final = 64
"""Requests of one connection that are handed out in one turn of the loop: a single read may hold thousands."""

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_METHODS: Final[dict[bytes, str]] = {
    name.encode(): name for name in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS")
}
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

    __slots__ = ("reason", "status")

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason


class HttpConnection:
    """One client. Made by `HttpServer`; handlers see it through their exchanges only.

    An asyncio protocol by its methods, and not by its base: a class with a base from elsewhere cannot be compiled into
    one whose attributes are quick to reach, and loops ask for the methods alone.
    """

    __slots__ = (
        "_answers",
        "_body",
        "_fed_bytes",
        "_headers",
        "_in_flight",
        "_is_closing",
        "_is_eof",
        "_is_known",
        "_is_pump_due",
        "_is_pumping",
        "_is_read_paused",
        "_is_tls",
        "_is_unscreened",
        "_is_write_paused",
        "_last_keeps_alive",
        "_names",
        "_pace",
        "_parser",
        "_peer",
        "_reading",
        "_rejection",
        "_server",
        "_share",
        "_target",
        "_transport",
        "_unread_bytes",
        "_unsent",
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
        self._fed_bytes = 0
        """Read since the last complete request, header or piece of a body."""
        self._waiting: list[tuple[Request, bool]] = []
        """Complete requests, and whether the connection stays open after each."""
        self._in_flight: Exchange | None = None
        self._last_keeps_alive = True
        """Of the request in flight."""
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
        """For requests. Of the strangers' budget, while it has to be read who the client is."""
        self._answers = server.budget.share()
        """For responses that the client does not read."""
        self._is_known = False
        """The client has proven who it is, with something that its requests have in them."""
        self._pace: Pace | None = None
        """Of a body that did not come at once."""
        self._is_unscreened = False
        """Nobody has looked at the head of the request that is being read."""
        self._written_bytes = 0
        """Of a response that is being written: the transport keeps it whole until its last byte is gone."""
        self.deadline = _NEVER
        """When the sweep has to look after this connection."""

    # -- the transport's calls --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or refuse if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = str(address[0]) if isinstance(address, tuple) else ""
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        room, is_admitted = room_for(transport), self._server.admit(self)
        if room == CUT_OFF:
            self._server.count_rejection(503)
            self.leave()
        elif room == REFUSED:
            self._reject(503, NO_ROOM)
            self._pump()
        elif is_admitted:
            self._parser = httptools.HttpRequestParser(self)
            self.deadline = self._server.now + self._server.limits.idle_timeout_s
        else:
            self._reject(503, "too many connections: try again later, or raise connections_max")
            self._pump()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone, or we are."""
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
        was_reading = self._reading
        self._fed_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrades(memoryview(data)[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._reject(400, f"this is not HTTP: {error}")
        if self._reading != _IDLE and self._fed_bytes > self._server.limits.header_bytes_max:
            part = "header" if self._reading == _HEAD else "trailer"
            self._reject(431, f"the {part} is larger than {self._server.limits.header_bytes_max} bytes")
        elif self._reading == _BODY and self._rejection is None:
            self._make_room()
        if self._waiting or self._rejection is not None:
            self._pump()
        elif self._reading != was_reading and self._in_flight is None:
            self._set_deadline()

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
            self._reject(400, "the request ended before it was complete")
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
        """The client reads again."""
        self._is_write_paused = False
        self._answers.let_go()
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
        self._is_unscreened = self._server.screen is not None

    def on_url(self, piece: bytes) -> None:
        """A piece of the target."""
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
                self._reject(400, "there is more than one Host header")
            headers[key] = f"{first}, {text}"

    def on_headers_complete(self) -> None:
        """Check what can be checked before the body comes."""
        headers = self._headers
        limits = self._server.limits
        self._reading = _BODY
        if self._fed_bytes > limits.header_bytes_max and self._header_bytes() > limits.header_bytes_max:
            self._reject(431, f"the header is larger than {limits.header_bytes_max} bytes")
        elif "host" not in headers and self._parser.get_http_version() != "1.0":
            self._reject(400, "the Host header is missing")
        elif int(headers.get("content-length", 0)) > limits.body_bytes_max:
            self._reject_body()
        elif "expect" in headers:
            self._meet_expectation(headers["expect"])
        self._fed_bytes = 0

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._fed_bytes = 0
        if self._rejection is not None:
            return
        if not self._body:
            self._body = piece
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece
        if len(self._body) > self._server.limits.body_bytes_max:
            self._reject_body()

    def on_message_complete(self) -> None:
        """A request is there."""
        if self._pace is not None:
            self._end_pace()
        if self._rejection is not None:
            return
        body = self._body
        request = self._request(bytes(body) if isinstance(body, bytearray) else body)
        self._waiting.append((request, self._parser.should_keep_alive()))
        self._reading = _IDLE
        self._fed_bytes = 0
        self._body = b""

    # -- requests, one after the other --

    def _pump(self) -> None:
        """Hand out waiting requests until one stays in flight; then see to what is left."""
        if self._is_pumping:
            return
        self._is_pumping = True
        left = PUMPED_AT_ONCE
        while self._waiting and self._in_flight is None and not self._is_closing and not self._is_write_paused:
            if self._server.budget.is_full and not self._share.held_bytes and not self._is_welcome():
                break
            if not left:
                self._pump_soon()
                break
            left -= 1
            request, self._last_keeps_alive = self._waiting.pop(0)
            self._handle(request)
        self._is_pumping = False
        if self._in_flight is None and not self._waiting and not self._is_closing:
            if self._rejection is not None:
                self._say_why(self._rejection)
            elif self._is_eof or (self._server.is_draining and self._reading == _IDLE):
                self._close()
            elif self._is_unscreened and self._reading == _BODY:
                self._make_room()
        self._mind_reading()

    def _pump_soon(self) -> None:
        """It is the others' turn, and that of what was answered: it is written before more is."""
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_pump_due = False
        self._pump()

    def _handle(self, request: Request) -> None:
        exchange = self._in_flight = Exchange(self, request, _now_s())
        self.deadline = _NEVER
        self._server.counters.requests += 1
        try:
            self._server.handler(exchange)
        except Exception:
            log.exception("the handler of %s %s failed", request.method, request.path)
            exchange.outcome = "InternalFailure"
            exchange.respond(500, PLAIN_TEXT, b"internal failure: the server's log says more\n")

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Write the response to the request in flight, and go on. For `Exchange.respond`."""
        is_last = self._is_eof and not self._waiting and self._rejection is None
        keeps_alive = self._last_keeps_alive and not self._server.is_draining and not is_last
        head = self._head(status, headers, len(body), keeps_alive, exchange.request)
        self._write(exchange, status, head, body, keeps_alive)

    def answer_well(self, exchange: Exchange, lines: str, body: bytes) -> None:
        """As `answer` with 200, for header lines that are ASCII, and known to be as they have to be."""
        server = self._server
        request = exchange.request
        if not self._last_keeps_alive or server.is_draining or self._is_eof or "connection" in request.headers:
            pairs = [_pair(line) for line in lines.splitlines()]
            self.answer(exchange, 200, pairs, body)
            return
        head = f"{server.ok_lines}{lines}content-length: {len(body)}\r\n\r\n".encode("ascii")
        self._write(exchange, 200, head, body, True)

    def _write(self, exchange: Exchange, status: int, head: bytes, body: bytes, keeps_alive: bool) -> None:
        assert exchange is self._in_flight
        transport = self._transport
        assert transport is not None
        exchange.end()
        self._in_flight = None
        if exchange.is_known:
            self._is_known = True
        if self._share.held_bytes:
            self._let_go_of_requests()
        if exchange.request.method == "HEAD":
            self._put(head)
        elif len(body) <= _JOIN_BYTES_MAX:
            self._put(head + body)
        elif not transport.is_closing():
            self.flush()
            self._written_bytes = len(body)
            transport.writelines((head, body))
            self._written_bytes = 0
        if self._server.observer is not None:
            self._server.observe(exchange, status)
        if not keeps_alive:
            self._close_after_response()
            return
        self._set_deadline()
        if (self._waiting or self._rejection is not None or self._is_read_paused) and not self._is_pumping:
            self._pump()

    def _put(self, data: bytes) -> None:
        """Write soon: with the responses of others, one right after the other (see the package)."""
        if not self._unsent:
            self._server.flush_soon(self)
        self._unsent.append(data)

    def flush(self) -> None:
        """Write what is there to be written."""
        if not self._unsent:
            return
        pieces, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

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
        self._in_flight.end()
        self._in_flight = None
        self._server.counters.abandoned += 1
        self._reject_stopped()
        return True

    def _head(
        self, status: int, headers: Headers, body_bytes: int, keeps_alive: bool, request: Request | None = None
    ) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
            lines = "".join([f"{_one_line(name)}: {_one_line(value)}\r\n" for name, value in headers])
        if not keeps_alive:
            lines += "connection: close\r\n"
        elif request is not None and "connection" in request.headers:
            lines += "connection: keep-alive\r\n"
        status_line = _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        head = f"{status_line}{self._server.date_line}{lines}content-length: {body_bytes}\r\n\r\n"
        return head.encode("latin-1", "replace")

    def _abandon(self, exchange: Exchange) -> None:
        callback = exchange.on_abandoned
        exchange.end()
        self._in_flight = None
        if self._share.held_bytes:
            self._let_go_of_requests()
        self._server.counters.abandoned += 1
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("giving up %r failed", exchange.request)

    # -- limits --

    def expire(self) -> None:
        """The deadline has passed."""
        self.deadline = _NEVER
        if self._is_write_paused or self._reading == _LINGER:
            self.leave()
        elif self._share.is_waiting:
            self._share.withdraw()
            self._reject(503, BUSY)
            self._waiting.clear()
            self._pump()
        elif self._reading == _HEAD:
            self._reject(408, f"the header took longer than {self._server.limits.header_timeout_s:g} s")
            self._pump()
        elif self._reading == _BODY:
            self._reject(408, f"the body took longer than {self._server.limits.body_timeout_s:g} s")
            self._pump()
        else:
            self._close()

    def _come_too_slowly(self) -> None:
        assert self._pace is not None
        self._reject(408, self._pace.reason)
        self._pump()

    def _set_deadline(self) -> None:
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

    def _mind_reading(self) -> None:
        """Do not read from one who pipelines too much, or is to be refused; read again when the line is short."""
        is_full = not self._is_closing and (
            self._rejection is not None
            or len(self._waiting) > self._server.limits.pipelined_max
            or self._share.is_waiting
            or (self._is_unscreened and self._reading == _BODY)
        )
        if is_full == self._is_read_paused or self._transport is None or self._transport.is_closing():
            return
        self._is_read_paused = is_full
        if is_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _make_room(self) -> None:
        """A body has begun, and its rest is still to come: read on if its client is known, and when there is room."""
        if self._is_unscreened and not self._screen():
            self._mind_reading()
            return
        wanted = int(self._headers.get("content-length", 0))
        held = self._share.held_bytes
        if not wanted and len(self._body) >= held:
            wanted = len(self._body) + GROWTH_BYTES
        if wanted <= held or self._share.is_waiting:
            return
        if self._share.claim(wanted - held, self._room_came):
            self._watch_pace()
        else:
            if self._pace is not None:
                self._pace.stop()
            self.deadline = self._server.now + (GROWTH_TIMEOUT_S if held else self._server.budget.room_timeout_s)
            self._mind_reading()

    def _screen(self) -> bool:
        """Show a request to the screen, in its turn. False if it is refused, or its turn is still to come."""
        if self._in_flight is not None or self._waiting:
            return False
        assert self._server.screen is not None
        self._is_unscreened = False
        exchange = self._in_flight = Exchange(self, self._request(b""), _now_s())
        kept_alive, self._last_keeps_alive = self._last_keeps_alive, False
        self._server.screen(exchange)
        if exchange.is_abandoned:
            return False
        self._in_flight = None
        self._last_keeps_alive = kept_alive
        exchange.end()
        if exchange.is_known is False and not self._is_known:
            self._share.close()
            self._share = self._server.budget.strangers.share()
        return True

    def _request(self, body: bytes) -> Request:
        method: bytes = self._parser.get_method()
        text = _METHODS.get(method) or method.decode("latin-1")
        return Request(text, self._target, self._headers, body, self._peer, self._is_tls)

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

    def _watch_pace(self) -> None:
        if self._pace is None:
            self._pace = Pace(self._server.budget, lambda: len(self._body), self._come_too_slowly)
        self._pace.start()

    def _room_came(self) -> None:
        if self._transport is not None:
            if self._share.wanted_bytes:
                self._watch_pace()
            self._set_deadline()
            self._pump()

    def _meet_expectation(self, expected: str) -> None:
        if expected.lower() != "100-continue":
            self._reject(417, "the only expectation that can be met is 100-continue")
        elif self._in_flight is None and not self._waiting and self._transport is not None:
            self._put(_CONTINUE)

    def _ignore_upgrades(self, rest: memoryview) -> None:
        """Take requests that offer another protocol for what they are: one, and those that come right behind it.

        The parser took each for complete, without its body, and stopped: a new one reads it without the offer.
        """
        while self._rejection is None:
            method = self._parser.get_method()
            self._waiting.pop()
            if method == b"CONNECT":
                self._reject(405, "this is not a proxy")
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
                self._reject(400, f"this is not HTTP: {error}")

    # -- ends --

    def _reject(self, status: int, reason: str) -> None:
        """End the connection with a reason, as soon as nothing is in flight. The first reason stands."""
        if self._rejection is None and not self._is_closing:
            self._rejection = _Rejection(status, reason)
            self._body = b""
            if self._pace is not None:
                self._end_pace()

    def _end_pace(self) -> None:
        assert self._pace is not None
        self._pace.stop()
        self._pace = None  # they know each other

    def _reject_body(self) -> None:
        self._reject(413, f"the body is larger than {self._server.limits.body_bytes_max} bytes")

    def _reject_stopped(self) -> None:
        self._waiting.clear()
        self._reject(400, "the client stopped sending while its request waited: taken to have hung up")

    def _say_why(self, rejection: _Rejection) -> None:
        transport = self._transport
        if transport is None or self._is_closing:
            return
        body = f"{rejection.reason}\n".encode()
        self._server.count_rejection(rejection.status)
        self._is_closing = True
        self._parser = None
        self._share.close()
        self._put(self._head(rejection.status, PLAIN_TEXT, len(body), False) + body)
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
        if self._in_flight is not None:
            self._abandon(self._in_flight)
        self._waiting.clear()
        self._reject(503, "the server stops")
        self._pump()


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
