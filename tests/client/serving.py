"""A real server for the client's tests: websocket and polled commands, over a shard whose clock may stand still."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from penstock import __version__
from penstock.protocols.http import HttpServer
from penstock.protocols.rest.app import RestFrontEnd
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
        request_log: RequestLog | None = None,
        port: int = 0,
        sockets: bool = True,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self.shard = shard
        self.settings = settings or Settings()
        if certificate is not None:
            tls = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
            server = msgspec.structs.replace(self.settings.server, **tls)
            self.settings = msgspec.structs.replace(self.settings, server=server)
        self.services = Services(
            shard=shard,
            settings=self.settings,
            credentials=credentials or Credentials(),
            meter=RequestMeter(),
            request_log=request_log or RequestLog(LogSettings(requests="none")),
            metric_sources=[],
        )
        self._reserved = socket.socket()  # the port is known, and nobody else's, before it starts
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", port))
        self.port: int = self._reserved.getsockname()[1]
        self._front = RestFrontEnd(self.port, __version__)
        if not sockets:
            self._front.websockets = frozenset()

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

    @property
    def http(self) -> HttpServer:
        assert self._front._server is not None
        return self._front._server

    async def start(self) -> None:
        self._reserved.close()
        await self._front.start(self.services)

    async def stop(self) -> None:
        """In the order of a node: the store closes, then the connections."""
        self.services.is_stopping = True
        await self.shard.close()
        await self._front.drain(1.0)
        self._reserved.close()


async def serve(shard: Shard | Shards, **options: Any) -> Server:
    """A server that listens."""
    server = Server(AsyncShard(shard) if isinstance(shard, Shard) else shard, **options)
    await server.start()
    return server
