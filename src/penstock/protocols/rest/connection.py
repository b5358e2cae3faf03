"""uvicorn's connections, with the limits that it does not have: sizes and times of headers, and connections at most.

A request finds its connection's transport in its scope: whether the client is still there (`Caller.is_gone`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.protocols.rest.caller import TRANSPORT
from penstock.server.settings import HttpLimits

_REASONS = {
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}


def limited(limits: HttpLimits) -> type[HttpToolsProtocol]:
    """The class of connections that keep to these limits."""

    class LimitedConnection(HttpToolsProtocol):
        """One connection."""

        _header_bytes = 0
        _header_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections_max:
                self._refuse(503)
                return
            self.timeout_keep_alive_task = self.loop.call_later(limits.idle_timeout_s, transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
                self._header_timer = self.loop.call_later(limits.header_timeout_s, self._refuse, 408)
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._header_bytes = 0
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
            if not self.transport.is_closing():
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if self.cycle is not None:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if self.cycle is not None:
                super().on_message_complete()

        def _count(self, size: int) -> None:
            self._header_bytes += size
            if self._header_bytes > limits.header_bytes_max:
                self._refuse(431)

        def _stop_timer(self) -> None:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None

        def _refuse(self, status: int) -> None:
            self._stop_timer()
            if self.transport.is_closing():
                return
            line = f"HTTP/1.1 {status} ".encode() + _REASONS[status]
            self.transport.write(line + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    return LimitedConnection
