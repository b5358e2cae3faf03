"""What both ends of a link are given: who a node is, how much a link takes, and addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from typing import NamedTuple

import msgspec

from penstock.server.settings import ClusterSettings, InvalidSettings, check_files
from penstock.wire.links import HEAD, MAGIC

BEATS_PER_SILENCE = 6
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


def limits_within(silence_s: float, retry_timeout_s: float = LinkLimits.retry_timeout_s) -> LinkLimits:
    """Limits of links that are broken when the other node was silent for so long.

    >>> limits_within(3.0).beat_s, limits_within(3.0).silent_beats
    (0.5, 6)
    """
    beat_s = silence_s / BEATS_PER_SILENCE
    return LinkLimits(retry_timeout_s=retry_timeout_s, beat_s=beat_s, silent_beats=BEATS_PER_SILENCE)


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT in its parts.

    >>> split_address("10.0.0.7:4170"), split_address("[::1]:4170")
    (('10.0.0.7', 4170), ('::1', 4170))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSettings(f"{address!r} is not the address of a link: write HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def require_secret(address: str, secret: bytes) -> None:
    """Links that leave the machine need a secret: `InvalidSettings` without one.

    >>> require_secret("127.0.0.1:4170", b"")
    """
    if not secret and not _is_loopback(split_address(address)[0]):
        raise InvalidSettings(f"a link at {address} can be reached from other machines: it needs the cluster's secret")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# TLS for links: both sides show a certificate of the cluster's own authority.
#
# Whoever has a certificate that the authority has signed is a node: names and addresses are not compared, since nodes
# come and go, and are reached by addresses. The secret is asked for as well, inside of TLS.
#
# A node with TLS and one without cannot even tell each other so: the one waits for a greeting, the other for a
# handshake. Who suspects it tries the other way, and looks at what comes back.


class LinkTls(NamedTuple):
    """What a node needs for both ends of links."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def link_tls(settings: ClusterSettings) -> LinkTls | None:
    """What the settings say; None if links are not encrypted. `InvalidSettings` if the files cannot be used."""
    if settings.tls_certificate is None:
        return None
    check_files(settings, "[cluster]", "tls_certificate", "tls_key", "tls_ca")
    made = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
            context.load_verify_locations(settings.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(f"[cluster] tls_certificate, tls_key and tls_ca cannot be used: {error}") from None
        made.append(context)
    return LinkTls(*made)


async def speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Whether somebody answers there in TLS. Who that is does not matter: nothing is said, and nothing believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def greets_openly(host: str, port: int, timeout_s: float) -> bool:
    """Whether a node greets there without TLS."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            return (await reader.readexactly(HEAD.size + len(MAGIC))).endswith(MAGIC)
    except (OSError, EOFError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
