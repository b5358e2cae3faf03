"""A real server for the client's tests: websocket and polled commands, over a shard whose clock may stand still."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import uvicorn
from starlette.applications import Starlette

from penstock.protocols import websocket
from penstock.protocols.websocket.routes import uvicorn_options
from penstock.server.auth import Credentials
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter
from penstock.server.node import Services
from penstock.server.settings import LogSettings, Settings
from penstock.server.shard import Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard


class Server:
    """Serves a shard on a free port of the loopback. Everything happens in the loop that started it."""

    def __init__(
        self,
        shard: Shards,
        *,
        settings: Settings | None = None,
        credentials: Credentials | None = None,
        port: int = 0,
        sockets: bool = True,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self._tls = {} if certificate is None else {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        self._sockets = sockets
        self.shard = shard
        self.settings = settings or Settings()
        self.services = Services(
            shard=shard,
            settings=self.settings,
            credentials=credentials or Credentials(),
            meter=RequestMeter(),
            request_log=RequestLog(LogSettings(requests="none")),
            metric_sources=[],
        )
        self.listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sends small parts at once only if it says so
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("127.0.0.1", port))
        self.port: int = self.listener.getsockname()[1]
        self._uvicorn: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    def answered(self) -> dict[tuple[str, str, str], int]:
        """How many requests were answered, by protocol, action and outcome. From any thread."""
        while True:
            try:
                families = list(self.services.meter.families())
            except RuntimeError:  # a first request of its kind was answered while we looked
                continue
            return {
                (sample.labels["protocol"], sample.labels["action"], sample.labels["outcome"]): int(sample.value)
                for family in families
                for sample in family.samples
                if sample.name == "penstock_requests_total"
            }

    async def start(self) -> None:
        options = uvicorn_options(self.services)
        config = uvicorn.Config(
            Starlette(routes=websocket.routes(self.services)),
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            **self._tls,
            **(options if self._sockets else {"ws": "none"}),
        )
        config.load()
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._uvicorn.startup(sockets=[self.listener])

    async def stop(self) -> None:
        """In the order of a node: the store closes, then the connections."""
        assert self._uvicorn is not None
        self.services.is_stopping = True
        await self.shard.close()
        await self._hang_up(self._uvicorn)

    async def _hang_up(self, server: uvicorn.Server) -> None:
        """As uvicorn's own shutdown, which only looks ten times a second whether it is done."""
        for each in server.servers:
            each.close()
        self.listener.close()
        state, deadline = server.server_state, time.monotonic() + 2
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)


async def serve(shard: Shard | Shards, **options: Any) -> Server:
    """A server that listens."""
    server = Server(AsyncShard(shard) if isinstance(shard, Shard) else shard, **options)
    await server.start()
    return server
