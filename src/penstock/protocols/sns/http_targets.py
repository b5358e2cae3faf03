"""Which hosts may be called for a subscription: `[sns] http_targets`.

Whoever may subscribe makes the server call a URL of his choice. So the server calls only hosts that are listed: by
name, by a pattern of names (`*.example.org`), by an address or a network, or `*` for all. A server that serves its own
machine only, to everybody there (no credentials), also calls loopback addresses: whoever can ask for it could call them
himself. A name that is not listed is let through if every address that it stands for may be called. The address that
was checked is the one that is called.

The server never calls its own ports, listed or not: a notification that is a request to the same server has no end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class NotAllowed(Exception):
    """The host may not be called."""


class Endpoint(NamedTuple):
    """A URL, taken apart."""

    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """As the header Host has it."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return shown if self.port == _PORTS["https" if self.is_tls else "http"] else f"{shown}:{self.port}"


def read_endpoint(url: str) -> Endpoint | None:
    """The parts of an HTTP(S) URL; None if it is none, or has a password in it.

    >>> read_endpoint("https://hooks.example.org/a?b=c")
    Endpoint(is_tls=True, host='hooks.example.org', port=443, path='/a?b=c')
    >>> read_endpoint("ftp://x"), read_endpoint("http://me:secret@x/"), read_endpoint("http://x:99999/")
    (None, None, None)
    """
    if any(letter <= " " or letter == "\x7f" for letter in url) or not url.isascii():
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.password is not None:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme], path)


class HttpTargets:
    """The hosts that may be called.

    >>> targets = HttpTargets(["*.example.org", "10.0.0.0/8"])
    >>> targets.allows_name("hooks.example.org"), targets.allows_name("example.com")
    (True, False)
    >>> targets.allows_address("10.1.2.3"), targets.allows_address("127.0.0.1"), targets.allows_address("192.0.2.1")
    (True, False, False)
    >>> HttpTargets([], loopback=True).allows_address("127.0.0.1")
    True
    """

    def __init__(
        self, listed: Iterable[str], *, loopback: bool = False, own_ports: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._loopback = loopback
        self._own_ports = own_ports
        self._all = False
        self._names: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for each in listed:
            if each == "*":
                self._all = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(each, strict=False))
            except ValueError:
                self._names.append(each.lower().rstrip("."))

    def allows_name(self, host: str) -> bool:
        """Whether a host is listed by its name."""
        name = host.lower().rstrip(".")
        return self._all or any(
            name.endswith(each[1:]) if each.startswith("*.") else name == each for each in self._names
        )

    def allows_address(self, address: str) -> bool:
        """Whether an address is listed."""
        found = _address(address)
        return (
            self._all
            or (self._loopback and found.is_loopback)
            or any(found.version == each.version and found in each for each in self._networks)
        )

    async def resolve(self, endpoint: Endpoint) -> str:
        """The address to call; `NotAllowed` if there is none that may be called."""
        try:
            ipaddress.ip_address(endpoint.host)
        except ValueError:
            pass
        else:
            if not self.allows_address(endpoint.host):
                raise NotAllowed(f"{endpoint.host} is not in [sns] http_targets")
            return self._not_our_own(endpoint.host, endpoint.port)
        by_name = self.allows_name(endpoint.host)
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for _, _, _, _, address in found]
        if not by_name and not all(self.allows_address(each) for each in addresses):
            raise NotAllowed(f"{endpoint.host} is not in [sns] http_targets")
        return self._not_our_own(addresses[0], endpoint.port)

    def _not_our_own(self, address: str, port: int) -> str:
        if _address(address).is_loopback:
            self.check_peer(address, address, port)
        return address

    def check_peer(self, local: str, peer: str, port: int) -> None:
        """Raise `NotAllowed` for a port of this server: who connects to his own machine has the address of his peer."""
        if local == peer and port in self._own_ports():
            raise NotAllowed(f"{peer}:{port} is this server itself")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found
