"""The lookup service put together: `async with LookupService(settings) as ready`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from types import TracebackType

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.protocols.front_end import Admission, RequestObserver, hosts_of, url_of
from penstock.protocols.http import Exchange, HttpServer
from penstock.protocols.lookup.registry import ORDERS, Peer, Registry, TooManyNames
from penstock.protocols.lookup.server import LookupAnswer, LookupServer
from penstock.protocols.nsq.http_api import (
    Answer,
    ApiCall,
    ApiError,
    Arguments,
    Routes,
    find_route,
    refuse,
    refuse_request,
    respond,
)
from penstock.protocols.nsq.wire import NSQ_VERSION
from penstock.server.log import RequestLog
from penstock.server.metrics import CONTENT_TYPE, ProcessMetrics, RequestMeter, render
from penstock.server.node import Address, listening_failed
from penstock.server.settings import Settings

# What clients ask of a lookup service: nsqlookupd's HTTP API, in its 1.x format.
#
# `/lookup` takes one argument more: `order=depth`, `order=readers` or `order=round_robin`, with an optional `channel`
# whose depth and readers count.


_NEVER_NS = -6_795_364_578_871_345_152
"""Go's zero time in nanoseconds, as nsqlookupd shows it for what never happened."""


class LookupApi:
    """One method a path."""

    def __init__(self, registry: Registry, version: str) -> None:
        self._registry = registry
        self._version = version
        self._routes: Routes = {
            "/ping": {"GET": self.ping},
            "/info": {"GET": self.info},
            "/debug": {"GET": self.debug},
            "/lookup": {"GET": self.lookup},
            "/topics": {"GET": self.topics},
            "/channels": {"GET": self.channels},
            "/nodes": {"GET": self.nodes},
            "/topic/create": {"POST": self.create_topic},
            "/topic/delete": {"POST": self.delete_topic},
            "/topic/tombstone": {"POST": self.tombstone},
            "/channel/create": {"POST": self.create_channel},
            "/channel/delete": {"POST": self.delete_channel},
        }

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            route = find_route(self._routes, request)
            exchange.action = request.path
            respond(exchange, route(ApiCall(request, Arguments(request.query))))
        except TooManyNames:
            refuse(exchange, ApiError(503, "TOO_MANY_TOPICS"))
        except ApiError as error:
            refuse(exchange, error)

    def ping(self, call: ApiCall) -> Answer:
        return "OK"

    def info(self, call: ApiCall) -> Answer:
        return {"version": self._version}

    def topics(self, call: ApiCall) -> Answer:
        return {"topics": self._registry.topics()}

    def channels(self, call: ApiCall) -> Answer:
        """The channels of a topic; none for a topic that nobody knows."""
        return {"channels": self._registry.channels(call.arguments.needed("topic"))}

    def lookup(self, call: ApiCall) -> Answer:
        topic = call.arguments.needed("topic")
        order = call.arguments.text("order")
        if order is not None and order not in ORDERS:
            raise ApiError(400, "INVALID_ARG_ORDER")
        if not self._registry.has_topic(topic):
            raise ApiError(404, "TOPIC_NOT_FOUND")
        found = self._registry.producers(topic, time.monotonic(), order, call.arguments.text("channel"))
        return {"channels": self._registry.channels(topic), "producers": [_producer(peer) for peer in found]}

    def nodes(self, call: ApiCall) -> Answer:
        found = self._registry.nodes(time.monotonic())
        return {
            "producers": [_producer(peer) | {"tombstones": hidden, "topics": topics} for peer, topics, hidden in found]
        }

    def create_topic(self, call: ApiCall) -> Answer:
        """Make a topic known before any node has it."""
        self._registry.create(call.arguments.name("topic", "INVALID_ARG_TOPIC"))

    def delete_topic(self, call: ApiCall) -> Answer:
        self._registry.delete_topic(call.arguments.needed("topic"))

    def tombstone(self, call: ApiCall) -> Answer:
        """Hide one node's topic from lookups for a while."""
        arguments = call.arguments
        self._registry.tombstone(arguments.needed("topic"), arguments.needed("node"), time.monotonic())

    def create_channel(self, call: ApiCall) -> Answer:
        """Make a channel known before any node has it."""
        self._registry.create(*call.arguments.topic_and_channel())

    def delete_channel(self, call: ApiCall) -> Answer:
        if not self._registry.delete_channel(*call.arguments.topic_and_channel()):
            raise ApiError(404, "CHANNEL_NOT_FOUND")

    def debug(self, call: ApiCall) -> Answer:
        """Everything that is registered."""
        return {
            key: [_debugged(peer, hidden_s) for peer, hidden_s in holders]
            for key, holders in self._registry.registrations()
            if holders
        }


def _producer(peer: Peer) -> dict[str, Answer]:
    identity = peer.identity
    return {
        "remote_address": peer.remote_address,
        "hostname": identity.hostname,
        "broadcast_address": identity.broadcast_address,
        "tcp_port": identity.tcp_port,
        "http_port": identity.http_port,
        "version": identity.version,
    }


def _debugged(peer: Peer, hidden_s: float | None) -> dict[str, Answer]:
    described = _producer(peer)
    described["id"] = described.pop("remote_address")
    return described | {
        "last_update": _unix_ns(peer.seen_s),
        "tombstoned": hidden_s is not None,
        "tombstoned_at": _NEVER_NS if hidden_s is None else _unix_ns(hidden_s),
    }


def _unix_ns(steady_s: float) -> int:
    """A time of the steady clock as one of the wall's."""
    return time.time_ns() - round((time.monotonic() - steady_s) * 1e9)


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
        settings = self._settings.lookup
        flag, port = "--tcp-port", settings.tcp_port
        try:
            tcp_port = await self._nodes.start()
            flag, port = "--http-port", settings.http_port
            http_port = await self._http.start(host, port)
        except OSError as error:
            await self._stop()
            raise listening_failed("lookup", flag, host, port, error) from error
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
