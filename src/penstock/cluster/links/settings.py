"""What both ends of a link are given: who a node is, how much a link takes, and addresses."""

from __future__ import annotations

import ipaddress
import os

import msgspec

from penstock.cluster.links.tls import LinkTls
from penstock.server.settings import InvalidSettings

Process = tuple[str, bytes]
"""A node's name, and which process of that name."""


def holder_of(process: Process) -> str:
    """As a shard knows the process that has a session's connection."""
    return f"{process[0]} {process[1].hex()}"


def process_of(holder: str) -> Process:
    """The process that has a session's connection.

    >>> process_of(holder_of(("n1", b"\\x07")))
    ('n1', b'\\x07')
    """
    node, _, incarnation = holder.rpartition(" ")
    return node, bytes.fromhex(incarnation)


class LinkIdentity(msgspec.Struct, frozen=True):
    """How a node introduces itself to others of its cluster."""

    cluster: str
    node: str
    secret: bytes = b""
    """What all nodes of the cluster know; empty: nothing, which is enough on one machine."""
    incarnation: bytes = msgspec.field(default_factory=lambda: os.urandom(16))
    tls: LinkTls | None = None
    """How links over TCP are encrypted; None: they are not."""

    @property
    def process(self) -> Process:
        """Which process of which node this is."""
        return self.node, self.incarnation

    def __repr__(self) -> str:
        return f"LinkIdentity({self.cluster!r}, {self.node!r})"


class LinkLimits(msgspec.Struct, frozen=True):
    """How much a link takes, and how long it waits."""

    frame_bytes_max: int = 320 * 1024 * 1024
    """Of the largest message, and a little more."""
    in_flight_max: int = 16_384
    """Commands without a reply, waiting receives not counted; beyond, the server reads no further."""
    receives_max: int = 200_000
    """Receives without a reply; beyond, they are refused."""
    outbox_max: int = 200_000
    """Commands that are not written; beyond, they are refused."""
    retry_timeout_s: float = 10.0
    """How long a command waits for the link to be connected."""
    handshake_s: float = 5.0
    beat_s: float = 2.0
    silent_beats: int = 5
    backoff_s: float = 0.05
    backoff_max_s: float = 1.0
    session_grace_s: float = 10.0
    """Sessions that are connections end so long after their node's last link broke."""
    connections_max: int = 10_000


def split_address(address: str) -> tuple[str, int] | str:
    """HOST:PORT in its parts; or the path of a Unix socket.

    >>> split_address("10.0.0.7:4170"), split_address("[::1]:4170"), split_address("/run/links/0")
    (('10.0.0.7', 4170), ('::1', 4170), '/run/links/0')
    """
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon:
        return address
    if not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettings(f"{address!r} is no address of a link: it is HOST:PORT, or the path of a Unix socket")
    return host.removeprefix("[").removesuffix("]"), int(port)


def require_secret(address: str, secret: bytes) -> None:
    """Links that leave the machine need a secret: `InvalidSettings` without one.

    >>> require_secret("127.0.0.1:4170", b"")
    """
    where = split_address(address)
    if not secret and not isinstance(where, str) and not _is_loopback(where[0]):
        raise InvalidSettings(f"a link at {address} can be reached by others: it needs a secret, the cluster's own")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
