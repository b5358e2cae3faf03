"""Where a server is, and how it is talked to."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from penstock.core.errors import InvalidRequest

PORT = 9325
_HOST_AND_PORT = re.compile(r"[^/?#@]+:\d+")
"""An address without a scheme: it means `penstock://`."""
SCHEMES = {"penstock": (False, PORT), "penstocks": (True, PORT), "http": (False, 80), "https": (True, 443)}
"""Scheme -> whether it means TLS, and the port if none is given. A server prints its address as http or https."""

QUICK_HEARTBEAT_S = 1.5
QUICK_CONNECT_S = 3.0

TransportName = Literal["websocket", "long_poll", "poll"]
TRANSPORTS: tuple[TransportName, ...] = ("websocket", "long_poll", "poll")
"""From the best to the one that works everywhere."""

RoutingName = Literal["forward", "direct"]
ROUTINGS: tuple[RoutingName, ...] = ("forward", "direct")
"""Through one node of a cluster, which forwards; or to each queue's owner."""


def shown(url: str) -> str:
    """A URL as an error may show it: people try to put a password or a token there, and errors end up in logs.

    >>> shown("penstock://worker:s3cret@host:9325?token=s3cret"), shown("http://localhost")
    ("'penstock://...@host:9325?...'", "'http://localhost'")
    """
    return repr(re.sub(r"\?.*", "?...", re.sub(r"^([^/]*//)?.*@", r"\1...@", url, flags=re.DOTALL), flags=re.DOTALL))


@dataclass(frozen=True, slots=True)
class Address:
    """A server, or the first of several.

    >>> Address.parse("penstock://localhost")
    Address(host='localhost', port=9325, is_tls=False)
    >>> Address.parse("https://queues.example.com")
    Address(host='queues.example.com', port=443, is_tls=True)
    >>> Address.parse("localhost:9325")
    Address(host='localhost', port=9325, is_tls=False)
    >>> [str(server) for server in Address.parse("penstock://a:9325,b").servers]
    ['penstock://a:9325', 'penstock://b:9325']
    >>> Address.parse("ftp://localhost")
    Traceback (most recent call last):
        ...
    penstock.core.errors.InvalidRequest: 'ftp://localhost' is not the address of a server: write penstock://host...
    """

    host: str
    port: int
    is_tls: bool
    others: tuple[Address, ...] = field(default=(), compare=False, repr=False)
    """Servers of the same cluster, which do as well when this one cannot be reached."""
    ip: str = field(default="", compare=False, repr=False)
    """One of the addresses that the host's name stands for; "": any."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """The server that a URL names; the first one, if there are more, with commas between them."""
        scheme, mark, rest = (f"penstock://{url}" if _HOST_AND_PORT.fullmatch(url) else url).partition("://")
        names = rest.split(",") if mark and "@" not in rest else [rest]
        servers = [cls._one(f"{scheme}{mark}{name}", url) for name in names]
        return replace(servers[0], others=tuple(servers[1:]))

    @classmethod
    def _one(cls, one: str, url: str) -> Address:
        try:
            parts = urlsplit(one)
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError as error:
            reason = "write penstock://host:9325" if "@" in url else error  # which may say what stands before the @
            raise InvalidRequest(f"{shown(url)} is not the address of a server: {reason}") from None
        extra = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username or parts.password
        if parts.scheme not in SCHEMES or not parts.hostname or extra:
            raise InvalidRequest(
                f"{shown(url)} is not the address of a server: write penstock://host:9325 or http://host:9325, "
                "and no path; penstocks or https for TLS"
            )
        is_tls, usual_port = SCHEMES[parts.scheme]
        return cls(parts.hostname, usual_port if port is None else port, is_tls)

    @property
    def servers(self) -> tuple[Address, ...]:
        """All of them, each by itself."""
        return (replace(self, others=()), *self.others)

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL.

        >>> Address("::1", 9325, False).authority
        '[::1]:9325'
        """
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'penstocks' if self.is_tls else 'penstock'}://{self.authority}"


@dataclass(frozen=True, slots=True)
class Options:
    """How a client behaves. Times are seconds."""

    token: str | None = field(default=None, repr=False)
    name: str = ""
    """Whom the client stands for, in the history of failed deliveries."""
    transport: TransportName | None = None
    """Only this one; None: the best that works."""
    timeout: float = 60.0
    """How long a call waits for its answer, a lost connection and reconnecting included."""
    connect_timeout: float = 10.0
    """How long one attempt to connect may take."""
    retry_for: float | None = None
    """How long to try to reconnect; None: for ever."""
    backoff_max: float = 5.0
    """The longest pause between two attempts."""
    heartbeat: float = 10.0
    """How often a silent connection is asked whether it is alive; it has as long to answer. Where there is another
    server to go to, `QUICK_HEARTBEAT_S` at most."""
    prefetch: int | Mapping[str, int] = 0
    """Messages to have here before they are asked for; one number for every queue, or one for each."""
    routing: RoutingName = "forward"
    """Through one node, or straight to each queue's owner."""
    tls: ssl.SSLContext | None = None
    """How to trust a TLS server; None: as the system does."""
    busy_poll: float = 0.0
    """After something was sent or has come: how long to look for more before the loop falls asleep."""

    def quick(self) -> Options:
        """Options for one of several servers: when it does not answer, the next one is tried soon."""
        heartbeat = min(self.heartbeat, QUICK_HEARTBEAT_S)
        return replace(self, heartbeat=heartbeat, connect_timeout=min(self.connect_timeout, QUICK_CONNECT_S))

    def credit(self, queue: str) -> int:
        """How many messages of a queue are fetched ahead."""
        return self.prefetch if isinstance(self.prefetch, int) else self.prefetch.get(queue, 0)
