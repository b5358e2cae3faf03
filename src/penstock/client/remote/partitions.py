"""Which node of a cluster has which queues, as the servers tell it (`/get_partitions`)."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import msgspec

from penstock.client.remote.address import Address, Options
from penstock.client.remote.http import HttpConnection
from penstock.client.remote.websocket import tls_of
from penstock.core.errors import NotSent
from penstock.core.partition import partition_of

_PATH = "/get_partitions"
_SCHEMES = {"http": False, "https": True}


class Partitions(msgspec.Struct, frozen=True):
    """One version of the map.

    >>> there = Partitions(7, ["a"], {"a": "http://one:9325"})
    >>> there.owner("orders", is_tls=False)
    Address(host='one', port=9325, is_tls=False)
    >>> there.owner("orders", is_tls=True) is None
    True
    """

    version: int
    owners: list[str]
    """The node that owns each partition."""
    nodes: dict[str, str]
    """The URL of each node."""

    def owner(self, queue: str, *, is_tls: bool) -> Address | None:
        """Where a queue's owner is reached; None if that is not known, or not by TLS where TLS is wanted."""
        try:
            node = self.owners[partition_of(queue, len(self.owners))]
        except (UnicodeEncodeError, ZeroDivisionError):
            return None
        return self._address(node, is_tls)

    def addresses(self, *, is_tls: bool) -> list[Address]:
        """Where nodes are reached."""
        found = [self._address(node, is_tls) for node in self.nodes]
        return [address for address in found if address is not None]

    def _address(self, node: str, is_tls: bool) -> Address | None:
        try:
            parts = urlsplit(self.nodes.get(node, ""))
            port = parts.port
        except ValueError:
            return None
        if parts.scheme not in _SCHEMES or not parts.hostname or port is None:
            return None
        if is_tls and not _SCHEMES[parts.scheme]:
            return None  # a token that was given for TLS does not leave without it
        return Address(parts.hostname, port, _SCHEMES[parts.scheme])


async def fetch_partitions(address: Address, options: Options) -> Partitions:
    """Ask a server for the map. `NotSent` if it does not tell."""
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection = await HttpConnection.open(address, tls_of(address, options))
            try:
                headers = {} if options.token is None else {"Authorization": f"Bearer {options.token}"}
                response = await connection.post(_PATH, headers, b"")
            finally:
                connection.close()
    except (OSError, TimeoutError) as error:
        raise NotSent(f"{address} does not tell where queues are: {error or 'no answer'}") from None
    if response.status != 200:
        raise NotSent(f"{address} does not tell where queues are: it answers {response.status}")
    try:
        return msgspec.json.decode(response.body, type=Partitions)
    except msgspec.MsgspecError as error:
        raise NotSent(f"{address} does not tell where queues are: {error}") from None
