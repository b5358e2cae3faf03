"""The REST front end: Starlette on uvicorn, in the node's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Iterator
from typing import Any

import uvicorn
from prometheus_client.core import Metric

from penstock.protocols.front_end import http_families, tls_context, url_of
from penstock.protocols.http import HttpCounters
from penstock.protocols.rest.app import RestApp
from penstock.protocols.rest.caller import Waits
from penstock.protocols.rest.connection import limited
from penstock.protocols.rest.endpoint import PROTOCOL
from penstock.protocols.websocket.routes import uvicorn_options
from penstock.server.descriptors import TLS_HANDSHAKE_S, backlog
from penstock.server.node import Address, Services
from penstock.server.partition_map import OneNode

_BACKLOG = 2_048


class _Uvicorn(uvicorn.Server):
    """Leaves the process's signals to the node, and no client more time for its handshake than other ports do."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on these sockets."""
        await super().startup([])
        self.started = False
        config = self.config
        make: Any = config.http_protocol_class
        for each in sockets or ():
            listening = await asyncio.get_running_loop().create_server(
                lambda: make(config=config, server_state=self.server_state, app_state=self.lifespan.state),
                sock=each,
                ssl=config.ssl,
                ssl_handshake_timeout=None if config.ssl is None else TLS_HANDSHAKE_S,
                backlog=config.backlog,
            )
            self.servers.append(listening)
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class RestFrontEnd:
    """Serves `RestApp` on the host of the settings and this port."""

    name = "http"

    def __init__(self, port: int, version: str) -> None:
        self._port = port
        self._version = version
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self._waits: Waits | None = None
        self._counters = HttpCounters()

    async def start(self, services: Services) -> Address:
        """Listen."""
        settings, limits = services.settings.server, services.settings.http
        tls = tls_context(settings)
        listener = services.listeners.get(self.name) or _listener(settings.host, self._port)
        port = int(listener.getsockname()[1])
        url = url_of(settings.host, port, tls is not None)
        if services.partition_maps is None:
            services.partition_maps = OneNode(url)
        app = RestApp(services, self._version)
        self._waits, self._counters = app.desk.waits, app.desk.counters
        config = uvicorn.Config(
            app.routes(),
            http=limited(limits, app.desk.counters, services.budget),
            timeout_keep_alive=max(1, round(limits.idle_timeout_s)),
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=backlog(_BACKLOG),
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=round(settings.stop_grace_s),
            **uvicorn_options(services),
        )
        config.load()
        config.ssl = tls
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0)
        services.metric_sources.append(self._families)
        return Address(settings.host, port, url)

    def _families(self) -> Iterable[Metric]:
        open_now = 0 if self._server is None else len(self._server.server_state.connections)
        return http_families(PROTOCOL, open_now, self._counters)

    def stop_accepting(self) -> None:
        """Health goes on being told until the store is closed: see `drain`."""

    async def settled(self, grace_s: float) -> bool:
        """Wait until only requests that wait for messages are in flight; False if that takes too long."""
        return self._waits is None or await self._waits.settled(grace_s)

    async def drain(self, grace_s: float) -> None:
        """Answer what is in flight, then close."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _listener(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle's algorithm on: 40 ms
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener
