"""The REST front end: Starlette on uvicorn, in the node's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from penstock.protocols.front_end import tls_context, url_of
from penstock.protocols.rest.app import RestApp
from penstock.server.node import Address, Services


class _Uvicorn(uvicorn.Server):
    """Leaves the process's signals to the node."""

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

    async def start(self, services: Services) -> Address:
        """Listen."""
        settings = services.settings.server
        tls = tls_context(settings)
        config = uvicorn.Config(
            RestApp(services, self._version).routes(),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(settings.stop_grace_s),
            limit_concurrency=services.settings.http.connections_max,
            ws="websockets-sansio",
            ws_max_size=services.settings.websocket.frame_bytes_max,
            ws_ping_interval=services.settings.websocket.heartbeat_s,
            ws_ping_timeout=services.settings.websocket.heartbeat_s,
            ws_per_message_deflate=False,
        )
        config.load()
        config.ssl = tls
        listener = _listener(settings.host, self._port)
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0)
        port = int(listener.getsockname()[1])
        return Address(settings.host, port, url_of(settings.host, port, tls is not None))

    def stop_accepting(self) -> None:
        """Health goes on being told until the store is closed: see `drain`."""

    async def settled(self, grace_s: float) -> bool:
        """Nothing here is worth waiting for."""
        return True

    async def drain(self, grace_s: float) -> None:
        """Answer what is in flight, then close."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


def _listener(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener
