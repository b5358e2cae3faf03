"""The HTTP side of NSQ as a front end of a node; and, with it, the registration with lookup services.

It starts after the TCP side, and is the first to know both ports: so it is the one who tells the lookup services.
"""

from __future__ import annotations

import socket

import msgspec

from penstock.protocols.http import Exchange, Handler, HttpLimits
from penstock.protocols.http_front_end import HttpFrontEnd
from penstock.protocols.lookup.registry import Identity
from penstock.protocols.lookup.service import reachable_host
from penstock.protocols.nsq.http import NsqHttp
from penstock.protocols.nsq.http_api import refuse_request
from penstock.protocols.nsq.names import NSQ_VERSION, is_name
from penstock.protocols.nsq.registration import LookupRegistration
from penstock.protocols.nsq.server import TCP_ADDRESS
from penstock.protocols.nsq.stats import read_loads
from penstock.protocols.nsq.topics import Topics
from penstock.server.node import Address, Services


class NsqHttpFrontEnd(HttpFrontEnd):
    """Serves nsqd's HTTP API, and keeps the lookup services informed."""

    def __init__(self, port: int) -> None:
        super().__init__("nsq-http", port, self._make, refuse_request, lambda _: self._screen)
        self._api: NsqHttp | None = None
        self._registration: LookupRegistration | None = None

    def _make(self, services: Services) -> Handler:
        topics = Topics.of(services)
        settings = services.settings.nsq
        self._registration = LookupRegistration(Identity(), lambda: read_loads(topics), settings.lookup_heartbeat_s)
        topics.listeners.append(self._heard)
        self._api = NsqHttp(services, topics, self._registration)
        return self._api.handle

    def _screen(self, exchange: Exchange) -> None:
        assert self._api is not None
        self._api.screen(exchange)

    async def start(self, services: Services) -> Address:
        """Listen, then tell the lookup services."""
        address = await super().start(services)
        assert self._api is not None
        assert self._registration is not None
        tcp: Address | None = services.extras.get(TCP_ADDRESS)
        self._api.http_port = address.port
        self._api.tcp_port = services.settings.server.nsq_tcp_port if tcp is None else tcp.port
        self._registration.identity = identity_of(services, self._api.tcp_port, address.port)
        self._registration.start(services.settings.nsq.lookup)
        return address

    def pages_are_refused(self, services: Services) -> bool:
        """Always: a browser that was given a password once sends it along with any page's requests."""
        return True

    def limits(self, services: Services) -> HttpLimits:
        """Bodies may be as large as NSQ's, and a little larger: so that who sends too much hears nsqd's words."""
        limits = services.settings.http
        body_bytes_max = max(limits.body_bytes_max, services.settings.nsq.body_bytes_max + 1024 * 1024)
        return msgspec.structs.replace(limits, body_bytes_max=body_bytes_max)

    def stop_accepting(self) -> None:
        """Leave the lookup services first, so that they send nobody here any more."""
        if self._registration is not None:
            self._registration.stop()
        super().stop_accepting()

    def _heard(self, event: str, topic: str, channel: str | None) -> None:
        if self._registration is not None and is_name(topic) and (channel is None or is_name(channel)):
            self._registration.note(topic, channel, is_there=event.endswith("created"))


def identity_of(services: Services, tcp_port: int, http_port: int) -> Identity:
    """How this node introduces itself: where its clients reach it."""
    settings = services.settings.nsq
    return Identity(
        broadcast_address=settings.broadcast_address or reachable_host(services.settings.server.host),
        tcp_port=settings.broadcast_tcp_port or tcp_port,
        http_port=settings.broadcast_http_port or http_port,
        version=NSQ_VERSION,
        hostname=socket.gethostname(),
    )
