"""What clients ask of a lookup service: nsqlookupd's HTTP API, in its 1.x format.

`/lookup` takes one argument more: `order=depth`, `order=readers` or `order=round_robin`, with an optional `channel`
whose depth and readers count.
"""

from __future__ import annotations

import time

from penstock.protocols.http import Exchange
from penstock.protocols.lookup.registry import ORDERS, Peer, Registry, TooManyNames
from penstock.protocols.nsq.http_api import (
    Answer,
    ApiCall,
    ApiError,
    Arguments,
    Routes,
    find_route,
    refuse,
    respond,
)

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
        """Answer a request."""
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
        """The service is there."""
        return "OK"

    def info(self, call: ApiCall) -> Answer:
        """Which service it is."""
        return {"version": self._version}

    def topics(self, call: ApiCall) -> Answer:
        """Every topic."""
        return {"topics": self._registry.topics()}

    def channels(self, call: ApiCall) -> Answer:
        """The channels of a topic; none for a topic that nobody knows."""
        return {"channels": self._registry.channels(call.arguments.needed("topic"))}

    def lookup(self, call: ApiCall) -> Answer:
        """Where a topic is."""
        topic = call.arguments.needed("topic")
        order = call.arguments.text("order")
        if order is not None and order not in ORDERS:
            raise ApiError(400, "INVALID_ARG_ORDER")
        if not self._registry.has_topic(topic):
            raise ApiError(404, "TOPIC_NOT_FOUND")
        found = self._registry.producers(topic, time.monotonic(), order, call.arguments.text("channel"))
        return {"channels": self._registry.channels(topic), "producers": [_producer(peer) for peer in found]}

    def nodes(self, call: ApiCall) -> Answer:
        """Every node, with its topics."""
        found = self._registry.nodes(time.monotonic())
        return {
            "producers": [_producer(peer) | {"tombstones": hidden, "topics": topics} for peer, topics, hidden in found]
        }

    def create_topic(self, call: ApiCall) -> Answer:
        """Make a topic known before any node has it."""
        self._registry.create(call.arguments.name("topic", "INVALID_ARG_TOPIC"))

    def delete_topic(self, call: ApiCall) -> Answer:
        """Forget a topic, and its channels."""
        self._registry.delete_topic(call.arguments.needed("topic"))

    def tombstone(self, call: ApiCall) -> Answer:
        """Hide one node's topic from lookups for a while."""
        arguments = call.arguments
        self._registry.tombstone(arguments.needed("topic"), arguments.needed("node"), time.monotonic())

    def create_channel(self, call: ApiCall) -> Answer:
        """Make a channel known before any node has it."""
        self._registry.create(*call.arguments.topic_and_channel())

    def delete_channel(self, call: ApiCall) -> Answer:
        """Forget a channel."""
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
