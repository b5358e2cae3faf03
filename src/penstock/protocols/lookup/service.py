"""The lookup service put together: `async with LookupService(settings) as ready`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from types import TracebackType

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.protocols.front_end import Admission, RequestObserver, url_of
from penstock.protocols.hosts import hosts_of
from penstock.protocols.http import Exchange, HttpServer
from penstock.protocols.lookup.http import LookupApi
from penstock.protocols.lookup.registry import Registry
from penstock.protocols.lookup.server import LookupAnswer, LookupServer
from penstock.protocols.nsq.http_api import refuse_request
from penstock.protocols.nsq.names import NSQ_VERSION
from penstock.server.log import RequestLog
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, RequestMeter, render
from penstock.server.node import Address
from penstock.server.settings import InvalidSettings, Settings

_STOP_GRACE_S = 2.0


class LookupReady(msgspec.Struct, frozen=True):
    """What the service says when it serves: the content of `--ready-file`."""

    version: str
    pid: int
    listening: dict[str, Address]

    def line(self) -> str:
        """For people: a single line."""
        where = ", ".join(f"{name} {address.url}" for name, address in self.listening.items())
        return f"penstock lookup {self.version} ready: {where}"


class LookupService:
    """Nodes on one port, clients on the other; nothing is kept on disk: nodes tell it again."""

    def __init__(self, settings: Settings, version: str) -> None:
        self._settings = settings
        self._version = version
        lookup = settings.lookup
        self.registry = Registry(
            lookup.inactive_producer_timeout_s, lookup.tombstone_lifetime_s, names_max=lookup.names_max
        )
        self._nodes = LookupServer(lookup, self.registry)
        self._api = LookupApi(self.registry, NSQ_VERSION)
        self._meter = RequestMeter()
        self._process = ProcessMetrics()
        self._request_log = RequestLog(settings.log)
        observer = RequestObserver("lookup", self._meter, self._request_log)
        settings.server.check_hosts()
        refuses = Admission(hosts_of(settings), refuse_request).refuses
        self._http = HttpServer(self._handle, settings.http, observer.note, refuses=refuses)

    async def __aenter__(self) -> LookupReady:
        host = self._settings.lookup.host
        try:
            tcp_port = await self._nodes.start()
            http_port = await self._http.start(host, self._settings.lookup.http_port)
        except OSError as error:
            await self._stop()
            raise InvalidSettings(f"lookup cannot listen: {error}") from error
        hostname = socket.gethostname()
        broadcast = self._settings.lookup.broadcast_address or reachable_host(host)
        self._nodes.introduce(LookupAnswer(tcp_port, http_port, NSQ_VERSION, broadcast, hostname))
        listening = {
            "lookup": Address(host, tcp_port, url_of(host, tcp_port, False).replace("http", "tcp", 1)),
            "lookup-http": Address(host, http_port, url_of(host, http_port, False)),
        }
        return LookupReady(self._version, os.getpid(), listening)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        self._http.stop_accepting()
        self._nodes.stop()
        await self._http.drain(_STOP_GRACE_S)
        self._request_log.flush()

    def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        if request.path == "/metrics" and request.method == "GET":
            exchange.action = request.path
            sources = [self._families, self._meter.families, self._process.families]
            exchange.respond(200, (("content-type", CONTENT_TYPE),), render(sources))
        else:
            self._api.handle(exchange)

    def _families(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("penstock_lookup_nodes", "Nodes connected.", value=self.registry.peer_count)
        yield GaugeMetricFamily("penstock_lookup_names", "Topics and channels known.", value=self.registry.name_count)
        yield GaugeMetricFamily(
            "penstock_lookup_connections_open", "Connections of nodes.", value=self._nodes.connections_open
        )


def reachable_host(host: str) -> str:
    """The name under which others reach what listens on this host: the machine's, if it listens everywhere.

    >>> reachable_host("10.1.2.3"), reachable_host("0.0.0.0") == socket.gethostname()
    ('10.1.2.3', True)
    """
    return socket.gethostname() if host in ("", "0.0.0.0", "::") else host
