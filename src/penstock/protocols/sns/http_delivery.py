"""From a topic to an HTTP(S) endpoint: one POST for each message, tried again by the delivery policy.

How it works. Messages are received from the subscription's channel, up to `_AT_ONCE` at a time, and posted side by
side. Those that arrived are acked. Those that did not are released, and wait in the channel for as long as the policy
says: how often a message was tried is kept by the channel, and survives a crash. After the last try a message goes to
the dead-letter queue of the subscription, in one commit with its ack. So it arrives at least once, and not in order.

Which hosts may be called (`[sns] http_targets`). Whoever may subscribe makes the server call a URL of his choice. So
the server calls only hosts that are listed: by name, by a pattern of names (`*.example.org`), by an address or a
network, or `*` for all. A server that serves its own machine only, to everybody there (no credentials), also calls
loopback addresses: whoever can ask for it could call them himself. A name that is not listed is let through if every
address that it stands for may be called. The address that was checked is the one that is called.

The server never calls its own ports, listed or not: a notification that is a request to the same server has no end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.server.settings import SnsSettings

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
        name = host.lower().rstrip(".")
        return self._all or any(
            name.endswith(each[1:]) if each.startswith("*.") else name == each for each in self._names
        )

    def allows_address(self, address: str) -> bool:
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


AT_ONCE = 20
_HEADER_BYTES_MAX = 32 * 1024
_BODY_BYTES_MAX = 64 * 1024
"""A response that is longer is not read to its end, and its connection is closed."""
_IDLE_MAX = 4
_IDLE_S_MAX = 4.0
AGENT = "Amazon Simple Notification Service Agent"


class Failed(Exception):
    """An endpoint did not take a message. `is_final`: it is not tried again."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class _Connection:
    """One connection to an endpoint; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.used_s = 0.0

    async def post(self, head: bytes, body: bytes) -> tuple[int, bool]:
        """Send a request. Returns the status, and whether the connection can take another one."""
        self._writer.write(head + body)
        await self._writer.drain()
        while True:
            answer = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = answer.decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise Failed("the response is not HTTP")
            status = int(rest[:3])
            if status >= 200:  # what comes before is not the answer
                break
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length", "0" if status in (204, 304) else "")
        keep = (
            version == "HTTP/1.1"
            and "close" not in headers.get("connection", "").lower()
            and "transfer-encoding" not in headers
            and length.isdigit()
            and int(length) <= _BODY_BYTES_MAX
        )
        if keep:
            await self._reader.readexactly(int(length))
        self.used_s = time.monotonic()
        return status, keep

    @property
    def is_fresh(self) -> bool:
        """Whether the other side has probably kept it open."""
        return not self._reader.at_eof() and time.monotonic() - self.used_s < _IDLE_S_MAX

    def close(self) -> None:
        self._writer.close()


class HttpPoster:
    """Posts to the endpoints that may be called, and keeps some connections for the next message."""

    def __init__(self, settings: SnsSettings, targets: HttpTargets) -> None:
        self.targets = targets
        self._timeout_s = settings.http_timeout_s
        self._authority = settings.http_ca
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[Endpoint, list[_Connection]] = {}

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._authority)
        return self._tls

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> None:
        """Post a message; `Failed` if the endpoint does not say that it has it. Redirects are not followed."""
        endpoint = read_endpoint(url)
        if endpoint is None:
            raise Failed("the endpoint is not a URL", is_final=True)
        lines = [f"POST {endpoint.path} HTTP/1.1", f"Host: {endpoint.authority}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"User-Agent: {AGENT}", "Accept-Encoding: identity", "Connection: Keep-Alive", "", ""]
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._posted(endpoint, "\r\n".join(lines).encode("latin-1"), body)
        except NotAllowed as error:
            raise Failed(str(error), is_final=True) from None
        except TimeoutError:
            raise Failed(f"no response within {self._timeout_s:g} seconds") from None
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise Failed(f"{type(error).__name__}: {error}") from None
        if not 200 <= status < 300:
            raise Failed(f"the endpoint answered {status}", is_final=status < 500 and status != 429)

    async def _posted(self, endpoint: Endpoint, head: bytes, body: bytes) -> int:
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if not connection.is_fresh:
                connection.close()
                continue
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # it was closed meanwhile: a new one
                return await self._posted_over(connection, endpoint, head, body)
        address = await self.targets.resolve(endpoint)
        reader, writer = await asyncio.open_connection(
            address,
            endpoint.port,
            ssl=self._context() if endpoint.is_tls else None,
            server_hostname=endpoint.host if endpoint.is_tls else None,
            limit=_HEADER_BYTES_MAX,
        )
        local, peer = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
        try:
            self.targets.check_peer(local, peer, endpoint.port)
        except NotAllowed:
            writer.close()
            raise
        return await self._posted_over(_Connection(reader, writer), endpoint, head, body)

    async def _posted_over(self, connection: _Connection, endpoint: Endpoint, head: bytes, body: bytes) -> int:
        keep = False
        try:
            status, keep = await connection.post(head, body)
        finally:
            idle = self._idle.setdefault(endpoint, [])
            if keep and len(idle) < _IDLE_MAX:
                idle.append(connection)
                asyncio.get_running_loop().call_later(_IDLE_S_MAX, self._let_go, endpoint, connection)
            else:
                connection.close()
            if not idle:
                del self._idle[endpoint]
        return status

    def _let_go(self, endpoint: Endpoint, connection: _Connection) -> None:
        """Close a connection that nobody has used for long: its endpoint may never be called again."""
        idle = self._idle.get(endpoint, [])
        if connection in idle and not connection.is_fresh:
            idle.remove(connection)
            connection.close()
            if not idle:
                del self._idle[endpoint]


class Pace:
    """Lets so many through a second; any number if there is no limit."""

    def __init__(self) -> None:
        self._next_s = 0.0

    async def turn(self, per_second: int | None) -> None:
        if per_second is None:
            return
        now_s = time.monotonic()
        at_s = max(now_s, self._next_s)
        self._next_s = at_s + 1 / per_second
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)


def headers_of(kind: str, message_id: str, arn: str, content_type: str, *, is_raw: bool = False) -> dict[str, str]:
    """The headers of a message, as SNS sends them. `arn` is the subscription's.

    >>> headers_of("Notification", "1", "arn:aws:sns:r:a:news:7", "text/plain")["x-amz-sns-topic-arn"]
    'arn:aws:sns:r:a:news'
    """
    named: dict[str, Any] = {
        "x-amz-sns-message-type": kind,
        "x-amz-sns-message-id": message_id,
        "x-amz-sns-topic-arn": arn.rpartition(":")[0],
        "x-amz-sns-subscription-arn": None if kind == "SubscriptionConfirmation" else arn,
        "x-amz-sns-rawdelivery": "true" if is_raw else None,
        "Content-Type": content_type,
    }
    return {name: value for name, value in named.items() if value is not None}
