"""uvicorn's connections, with limits that it does not have: on headers, on connections, on clients that do not read.

Who pipelines is answered one request after the other, as long as it reads the answers. What it sends beyond
`pipelined_max` requests is not parsed before some of them are answered, and nothing is read meanwhile. Answers that it
does not read count among what all connections hold together (`penstock.server.budget`).

A request finds its connection's transport in its scope: whether the client is still there (`Caller.is_gone`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.protocols.hosts import host_of_target
from penstock.protocols.http import HttpCounters
from penstock.protocols.rest.caller import TRANSPORT
from penstock.protocols.rest.problems import CONTENT_TYPE, RestError, problem_of
from penstock.server.budget import Budget
from penstock.server.descriptors import FITS, NO_ROOM, room_for
from penstock.server.settings import HttpLimits

_REFUSALS: dict[int | str, RestError] = {
    error.status: error
    for error in (
        RestError(400, "malformed_request", "this is not HTTP as the server knows it"),
        RestError(408, "header_timeout", "the request's header took too long"),
        RestError(431, "header_too_large", "the request's header is too large: put less into the URL, or use a body"),
        RestError(503, "too_many_connections", "there are as many connections as there may be: come again later"),
    )
}
_REFUSALS[NO_ROOM] = RestError(503, "too_many_connections", NO_ROOM)
"""By the status; and one more that has a status of another."""


def _refusal(error: RestError) -> bytes:
    problem = problem_of(error)
    body = msgspec.json.encode(problem)
    line = f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {CONTENT_TYPE.decode()}\r\n"
    return f"{line}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


_SLICE_BYTES = 16 * 1024
"""How much is parsed at a time: a single read may hold thousands of requests."""


def limited(limits: HttpLimits, counters: HttpCounters, budget: Budget) -> type[HttpToolsProtocol]:
    """The class of connections that keep to these limits, and are counted there."""

    class LimitedConnection(HttpToolsProtocol):
        """One connection."""

        _header_bytes = 0
        _fed_bytes = 0
        """Read since the last complete request, header or piece of a body: the parser keeps a header until it ends."""
        _unparsed = b""
        _is_owed = False
        """An answer is complete, and the next request has not begun, because the client does not read."""
        _is_lingering = False
        _rest_timer: asyncio.TimerHandle | None = None
        """While the rest of a body is thrown away, whose request is answered."""
        _header_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _running: RequestResponseCycle | None = None
        """The request that is being answered: others may have come behind it."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._unread = budget.share()
            counters.connections += 1
            if room_for(transport) != FITS:
                self._refuse(NO_ROOM)
                return
            if len(self.connections) > limits.connections_max:
                self._refuse(503)
                return
            self.timeout_keep_alive_task = self.loop.call_later(limits.idle_timeout_s, transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._stop_write_timer()
            if self._running is not None and not self._running.response_complete:
                self._running.disconnected = True
                self._running.message_event.set()
            self._stop_rest_timer()
            self._unparsed = b""
            self.pipeline.clear()
            self._unread.close()
            super().connection_lost(exc)

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self._running = cycle
            super()._start_asgi_task(cycle, app)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread.hold(self.transport.get_write_buffer_size())
            self._write_timer = self.loop.call_later(limits.body_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            self._stop_write_timer()
            self._unread.let_go()
            super().resume_writing()
            if self._is_owed:
                self._is_owed = False
                self.on_response_complete()

        def on_response_complete(self) -> None:
            if self.flow.write_paused and self.pipeline:
                self._is_owed = True
                return
            super().on_response_complete()
            if self.cycle.more_body and self.cycle.response_complete and self._rest_timer is None:
                self._rest_timer = self.loop.call_later(limits.body_timeout_s, self.transport.abort)
            if self._unparsed:
                self.loop.call_soon(self._parse)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._rest_timer is None:
                self._start_timer()
            elif not self._is_lingering:
                self._is_lingering = True
                self.flow.pause_reading()
                budget.linger(self._read_on)
            if self._unparsed or len(data) > _SLICE_BYTES:
                self._unparsed += data
                self._parse()
            else:
                self._feed(data)

        def _feed(self, data: bytes) -> None:
            self._fed_bytes += len(data)
            super().data_received(data)
            if self._fed_bytes > limits.header_bytes_max:
                self._refuse(431)

        def _read_on(self) -> None:
            self._is_lingering = False
            if not self.transport.is_closing():
                self.flow.resume_reading()

        def _parse(self) -> None:
            data, at = self._unparsed, 0
            self._unparsed = b""
            while at < len(data) and len(self.pipeline) < limits.pipelined_max and not self.transport.is_closing():
                self._feed(data[at : at + _SLICE_BYTES])
                at += _SLICE_BYTES
                upgraded = self.transport.get_protocol()
                if upgraded is not self:
                    if at < len(data):
                        cast("asyncio.Protocol", upgraded).data_received(data[at:])
                    return
            if at < len(data) and not self.transport.is_closing():
                self._unparsed = data[at:]
                self.flow.pause_reading()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._start_timer()
            self._header_bytes = self._fed_bytes = 0
            scope: Any = self.scope
            scope[TRANSPORT] = self.transport

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._stop_timer()
            self._fed_bytes = 0
            if not self.url.startswith(b"/"):
                self._name_host_of_target()
            if not self.transport.is_closing():
                super().on_headers_complete()

        def _name_host_of_target(self) -> None:
            """A target that is a whole URL names a host, which counts as much as the header's."""
            host = (b"host", host_of_target(self.url).encode("latin-1"))
            if host not in self.headers:
                self.headers.append(host)

        def on_body(self, body: bytes) -> None:
            self._fed_bytes = 0
            if self.cycle is not None:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._fed_bytes = 0
            if self._rest_timer is not None:
                self._stop_rest_timer()
                self._unset_keepalive_if_required()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            if self.cycle is not None:
                super().on_message_complete()

        def _count(self, size: int) -> None:
            self._header_bytes += size
            if self._header_bytes > limits.header_bytes_max:
                self._refuse(431)

        def _start_timer(self) -> None:
            """A header begins; behind a request that is not answered yet it has the time of that one as well."""
            if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
                self._unset_keepalive_if_required()
                self._header_timer = self.loop.call_later(limits.header_timeout_s, self._refuse, 408)

        def _stop_timer(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _stop_write_timer(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _stop_rest_timer(self) -> None:
            if self._rest_timer is not None:
                self._rest_timer.cancel()
                self._rest_timer = None

        def _refuse(self, why: int | str) -> None:
            self._stop_timer()
            if self.transport.is_closing():
                return
            error = _REFUSALS[why]
            counters.rejections[error.status] = counters.rejections.get(error.status, 0) + 1
            self.transport.write(_refusal(error))
            self.transport.close()

    return LimitedConnection
