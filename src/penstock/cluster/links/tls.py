"""TLS for links: both sides show a certificate of the cluster's own authority.

Whoever has a certificate that the authority has signed is a node: names and addresses are not compared, since nodes
come and go, and are reached by addresses. The secret is asked for as well, inside of TLS.

A node with TLS and one without cannot even tell each other so: the one waits for a greeting, the other for a handshake.
Who suspects it tries the other way, and looks at what comes back.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import NamedTuple

from penstock.server.settings import ClusterSettings, InvalidSettings
from penstock.wire.links import HEAD, MAGIC


class LinkTls(NamedTuple):
    """What a node needs for both ends of links."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def link_tls(settings: ClusterSettings) -> LinkTls | None:
    """What the settings say; None if links are not encrypted. `InvalidSettings` if the files cannot be used."""
    if settings.tls_certificate is None:
        return None
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
