"""Which hosts may be called for a subscription: `[sns] http_targets`.

Whoever may subscribe makes the server call a URL of his choice. So the server calls nobody but its own machine
(loopback addresses), unless a host is listed: by its name, by a pattern of names (`*.example.org`), by an address or a
network, or `*` for all. A name that is not listed is let through if every address that it stands for may be called. The
address that was checked is the one that is called.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.0/8", "::1")
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
    (True, True, False)
    """

    def __init__(self, listed: Iterable[str]) -> None:
        self._all = False
        self._names: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for each in (*_LOOPBACK, *listed):
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
        found = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return self._all or any(found.version == each.version and found in each for each in self._networks)

    async def resolve(self, endpoint: Endpoint) -> str:
        """The address to call; `NotAllowed` if there is none that may be called."""
        try:
            ipaddress.ip_address(endpoint.host)
        except ValueError:
            pass
        else:
            if not self.allows_address(endpoint.host):
                raise NotAllowed(f"{endpoint.host} is not in [sns] http_targets")
            return endpoint.host
        by_name = self.allows_name(endpoint.host)
        found = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for _, _, _, _, address in found]
        if not by_name and not all(self.allows_address(each) for each in addresses):
            raise NotAllowed(f"{endpoint.host} is not in [sns] http_targets")
        return addresses[0]
