"""NSQ over TCP as a front end of a node: the listener, and what its connections share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.errors import PenstockError
from penstock.protocols.front_end import tls_context
from penstock.protocols.nsq.connection import Connection
from penstock.protocols.nsq.topics import Topics
from penstock.server.budget import FITS, backlog, room_for
from penstock.server.node import Address, Services
from penstock.server.settings import NsqSettings

log = logging.getLogger("penstock.nsq")

BACKLOG = 1_024
TCP_ADDRESS = "nsq-tcp"
"""Where `Services.extras` keeps the `Address` of the listener, for the HTTP side."""
_POLL_S = 0.01


class Endpoint:
    """What the connections of one listener share."""

    def __init__(self, services: Services) -> None:
        self.topics = Topics.of(services)
        self.settings: NsqSettings = services.settings.nsq
        self.credentials = services.credentials
        self.budget = services.budget
        self.tls: ssl.SSLContext | None = tls_context(services.settings.server)
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.accepted = 0
        self.refused = 0
        self.delivered = 0
        self._shard = services.shard

    def admit(self, connection: Connection, transport: asyncio.BaseTransport) -> bool:
        """Whether one more connection fits."""
        if room_for(transport) != FITS:
            self.refused += 1
            return False
        if len(self.connections) >= self.settings.connections_max:
            self.refused += 1
            log.warning("%d clients are connected, which is the limit: a new one was refused", len(self.connections))
            return False
        self.accepted += 1
        self.connections.add(connection)
        return True

    def dismiss(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def time_s(self) -> float:
        """The time, in seconds since 1970."""
        return self._shard.now_ms() / 1_000

    @cached_property
    def _random(self) -> np.random.Generator:
        """Made for the first client that wants a sample: a server that has none starts without `numpy.random`."""
        return np.random.default_rng()

    def sample(self, count: int, rate: int) -> NDArray[np.bool_]:
        """Which of so many messages a client gets that wants `rate` of a hundred (nsqd gives it one more)."""
        kept: NDArray[np.bool_] = self._random.integers(0, 100, count) <= rate
        return kept


class NsqFrontEnd:
    """Serves NSQ's protocol V2 on the host of the settings and this port."""

    name = "nsq"

    def __init__(self, port: int) -> None:
        self._port = port
        self._endpoint: Endpoint | None = None
        self._server: asyncio.Server | None = None

    async def start(self, services: Services) -> Address:
        """Delete what was ephemeral, then listen."""
        endpoint = self._endpoint = Endpoint(services)
        await endpoint.topics.clean()
        host = services.settings.server.host
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(endpoint), host, self._port, backlog=backlog(BACKLOG)
        )
        port = self._server.sockets[0].getsockname()[1]
        services.metric_sources.append(self._families)
        address = Address(host, port, f"nsq://{f'[{host}]' if ':' in host else host}:{port}")
        services.extras[TCP_ADDRESS] = address
        return address

    def take_limits(self, services: Services) -> None:
        """Connections look at the settings themselves."""

    def stop_accepting(self) -> None:
        """Take no new connections; close each as soon as its commands are answered."""
        assert self._server is not None and self._endpoint is not None
        self._server.close()
        for connection in list(self._endpoint.connections):
            connection.stop()

    async def settled(self, grace_s: float) -> bool:
        """Wait until every connection is closed, and its session has ended; False if that takes too long."""
        assert self._endpoint is not None
        deadline_s = self._endpoint.loop.time() + grace_s
        while self._endpoint.connections:
            if self._endpoint.loop.time() > deadline_s:
                return False
            await asyncio.sleep(_POLL_S)
        with contextlib.suppress(PenstockError):  # a store that takes no more commands is no reason not to stop
            await self._endpoint.topics.shard.tick()
        return True

    async def drain(self, grace_s: float) -> None:
        """The store is closed: nobody can be answered any more."""
        assert self._endpoint is not None
        for connection in list(self._endpoint.connections):
            connection.abort()

    def _families(self) -> Iterable[Metric]:
        return () if self._endpoint is None else _families(self._endpoint)


def _families(endpoint: Endpoint) -> Iterator[Metric]:
    yield GaugeMetricFamily("penstock_nsq_connections_open", "Connections now.", value=len(endpoint.connections))
    yield CounterMetricFamily("penstock_nsq_connections", "Connections accepted.", value=endpoint.accepted)
    yield CounterMetricFamily("penstock_nsq_refusals", "Connections over the limit.", value=endpoint.refused)
    yield CounterMetricFamily(
        "penstock_nsq_messages_delivered", "Messages pushed to clients.", value=endpoint.delivered
    )
