"""The lookup services that this node registers with, and the nodes and topics that they know: for people who look.

NSQ's side of the node keeps the connections, and shares them as `extras["lookup"]`. What the other nodes have is asked
of the first lookup service that answers, over its HTTP port, as nsqadmin does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.shapes import Result

SHARED = "lookup"
_PATIENCE_S = 3.0
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class LookupServiceState(Result, omit_defaults=False):
    """A lookup service that this node registers with."""

    address: str
    connected: bool
    version: str | None
    """null: it does not answer."""


class LookupNode(Result, omit_defaults=False):
    """A node, as a lookup service knows it."""

    name: str
    address: str
    tcp_port: int
    http_port: int
    version: str
    topics: list[str]
    """The topics that the caller may see."""


class LookupState(Result, omit_defaults=False):
    """Lookup services, and the nodes that register with them."""

    services: list[LookupServiceState]
    nodes: list[LookupNode]


class _Producer(msgspec.Struct):
    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topics: list[str] = []


class _Nodes(msgspec.Struct):
    producers: list[_Producer] = []


class _Peer(Protocol):
    @property
    def address(self) -> str: ...

    @property
    def info(self) -> Any: ...


class _Registration(Protocol):
    @property
    def peers(self) -> Sequence[_Peer]: ...


class Lookups(Resource):
    """Lookup services."""

    tag = "server"

    @operation("GET", "/v1/lookup", live_s=5)
    async def lookup_state(self, caller: Caller) -> LookupState:
        """Show the lookup services that this node registers with, and the nodes and topics that they know."""
        found: _Registration | None = self.services.extras.get(SHARED)
        peers = () if found is None else found.peers
        services = [
            LookupServiceState(
                address=peer.address,
                connected=peer.info is not None,
                version=None if peer.info is None else peer.info.version,
            )
            for peer in peers
        ]
        for peer in peers:
            if peer.info is not None:
                try:
                    host = peer.address.rpartition(":")[0].strip("[]")
                    known = await asyncio.wait_for(_nodes_of(host, peer.info.http_port), _PATIENCE_S)
                except (OSError, TimeoutError, ValueError, OverflowError, RecursionError, msgspec.DecodeError):
                    continue  # it may have told any port, and answer anything
                return LookupState(services=services, nodes=[_shown(each, caller) for each in known])
        return LookupState(services=services, nodes=[])


async def _nodes_of(host: str, port: int) -> list[_Producer]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(f"GET /nodes HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError("the lookup service has no list of nodes")
        body = bytearray()
        while len(body) < _ANSWER_BYTES_MAX and (piece := await reader.read(65_536)):
            body += piece
        return msgspec.json.decode(bytes(body), type=_Nodes).producers
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("the lookup service does not answer in HTTP") from error
    finally:
        writer.close()


def _shown(node: _Producer, caller: Caller) -> LookupNode:
    return LookupNode(
        name=node.hostname or node.broadcast_address,
        address=node.broadcast_address,
        tcp_port=node.tcp_port,
        http_port=node.http_port,
        version=node.version,
        topics=[topic for topic in node.topics if caller.principal.may_see(topic)],
    )
