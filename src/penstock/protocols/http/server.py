"""Listens, keeps the time of all connections, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, cast

from penstock.protocols.http.connection import LINGER_S, HttpConnection
from penstock.protocols.http.exchange import Handler, HeaderCheck, Observer, Refusal, Render, Upgraded, render_plainly
from penstock.server.budget import TLS_HANDSHAKE_S, Budget, backlog
from penstock.server.settings import HttpLimits, ServerSettings

log = logging.getLogger("penstock.http")

_SWEEP_S_MAX = 1.0
_BACKLOG = 4_096
_NAMES_KEPT = 512
_NAME_BYTES_KEPT = 64


class HttpCounters:
    """What happened since the start."""

    __slots__ = ("abandoned", "connections", "rejections", "requests")

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.abandoned = 0
        """Requests whose clients hung up before the response."""
        self.rejections: dict[int, int] = {}
        """By status: what the server refused before a handler saw it."""


class HttpServer:
    """Listens, and keeps the connections in order. All in one event loop.

    Headers that the handler never reads may be named (`unread`): they are checked and counted as all others, and not
    kept. `check_header` is given requests whose bodies do not come at once, without them: it answers those that no body
    can make right, and may say how large the bodies of the others may be. Those are read on then. A request that
    `refuses` has answered is shown to neither.

    A request for a websocket at one of the paths in `websockets` is given to the handler, in its turn, as all others.
    """

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits | None = None,
        observer: Observer | None = None,
        unread: frozenset[str] = frozenset(),
        budget: Budget | None = None,
        check_header: HeaderCheck | None = None,
        render: Render = render_plainly,
        websockets: frozenset[str] = frozenset(),
        refuses: Refusal | None = None,
        unheard: Observer | None = None,
    ) -> None:
        self.handler = handler
        self.unheard = unheard
        """Told of answers that nobody waited for."""
        self.refuses = refuses
        self.limits = limits or HttpLimits()
        self.observer = observer
        self.counters = HttpCounters()
        self.budget = budget or Budget(ServerSettings().buffer_bytes_max)
        self.check_header = check_header
        self.render = render
        self.websockets = websockets
        self.names: dict[bytes, str] = {}
        """Headers' names as clients write them -> in lower case, or "" if the handler does not read them."""
        self._unread = unread
        self.to_flush: list[HttpConnection] = []
        """They have something to write when what this turn of the loop has to do is done."""
        self.is_draining = False
        self.date_line = ""
        """The Date header, as of the last sweep."""
        self.ok_lines = ""
        """The status line of a response that went well, and its Date header."""
        self.now = 0.0
        """The loop's time, as of the last sweep: exact enough for timeouts."""
        self.idle_until = 0.0
        """The deadline of who is idle from now on."""
        self._connections: set[HttpConnection] = set()
        self._upgraded: set[Upgraded] = set()
        self._listener: Any = None
        """An asyncio server: its sockets are a tuple or a list, as the loop has it."""
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    async def start(self, host: str, port: int, ssl: ssl.SSLContext | None = None) -> int:
        """Listen. Port 0 picks a free one; returns the port."""
        port = await self.listen(host, port, ssl)
        await self.serve()
        return port

    async def listen(self, host: str, port: int, ssl: ssl.SSLContext | None = None) -> int:
        """As `start`; but nobody is served before `serve`."""
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"ssl": ssl, "backlog": backlog(_BACKLOG), "start_serving": False}
        if ssl is not None:
            options["ssl_handshake_timeout"] = TLS_HANDSHAKE_S
        options["family"] = socket.AF_UNSPEC
        self._listener = await loop.create_server(self._make_connection, host, port, **options)
        return int(self._listener.sockets[0].getsockname()[1])

    async def serve(self) -> None:
        """Let clients in."""
        self._sweep()
        await self._listener.start_serving()

    def _make_connection(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, HttpConnection(self))

    @property
    def connections_open(self) -> int:
        return len(self._connections) + len(self._upgraded)

    @property
    def in_flight(self) -> int:
        """Requests that are to be answered and do not wait for anything."""
        return sum(connection.is_busy for connection in self._connections)

    def stop_accepting(self) -> None:
        """Listen no more; close who is idle. Every further response ends its connection."""
        self.is_draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.begin_drain()

    async def settled(self, grace_s: float) -> bool:
        """After `stop_accepting`: wait until only long polls are in flight. False if that takes too long."""
        return await self._until(lambda: self.in_flight == 0, grace_s)

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, answer what is in flight, close. Who is left after the grace hears 503."""
        self.stop_accepting()
        for upgraded in list(self._upgraded):
            upgraded.shut_down()
        if not await self._until(self._nobody_is_owed, grace_s):
            for connection in list(self._connections):
                connection.end_drain()
            await self._until(self._nobody_is_owed, LINGER_S)
        for connection in list(self._connections):
            connection.leave()
        for upgraded in list(self._upgraded):
            upgraded.leave()
        await self._until(lambda: not self.connections_open, LINGER_S)
        if self._timer is not None:
            self._timer.cancel()

    def _nobody_is_owed(self) -> bool:
        return not self._upgraded and not any(connection.is_owed for connection in self._connections)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left_s, 0.05))
        return True

    # -- for the connections --

    def name_of(self, name: bytes) -> str:
        """A header's name in lower case; "" for one that the handler does not read. The common ones are remembered."""
        text = name.lower().decode("latin-1")
        if text in self._unread:
            text = ""
        if len(self.names) < _NAMES_KEPT and len(name) <= _NAME_BYTES_KEPT:
            self.names[name] = text
        return text

    def admit(self, connection: HttpConnection) -> bool:
        """Note a new connection; False if it is one too many."""
        self._connections.add(connection)
        self.counters.connections += 1
        return self.connections_open <= self.limits.connections_max and not self.is_draining

    def hand_over(self, connection: HttpConnection, upgraded: Upgraded) -> None:
        """The connection speaks another protocol from now on, which tells when it is closed."""
        self._connections.discard(connection)
        self._upgraded.add(upgraded)

    def forget(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        self._changed.set()

    def forget_upgraded(self, upgraded: Upgraded) -> None:
        """As `forget`, of one that speaks another protocol."""
        self._upgraded.discard(upgraded)
        self._changed.set()

    def count_rejection(self, status: int) -> None:
        """A connection was ended with this status before a handler saw a request."""
        self.counters.rejections[status] = self.counters.rejections.get(status, 0) + 1

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        limits = self.limits
        self.now = now = loop.time()
        self.idle_until = now + limits.idle_timeout_s
        self.date_line = f"date: {formatdate(usegmt=True)}\r\n"
        self.ok_lines = f"HTTP/1.1 200 OK\r\n{self.date_line}"
        for connection in [each for each in self._connections if each.deadline <= now]:
            connection.expire()
        shortest_s = min(limits.header_timeout_s, limits.body_timeout_s, limits.idle_timeout_s)
        self._timer = loop.call_later(min(_SWEEP_S_MAX, shortest_s / 4), self._sweep)
