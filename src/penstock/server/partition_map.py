"""Which node owns which partition. Clients that route themselves fetch the map, and come again when its version grows.

A queue lives in the partition of its name (`core/queues/partition.py`), a partition with one node. A server that stands
alone owns all there is: `OneNode`. A cluster puts its own `PartitionMaps` in the place of it.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from penstock.core.errors import PenstockError
from penstock.core.queues.partition import partition_of


class PartitionMoved(PenstockError):
    """Another node owns the queue: ask there, and fetch the map again if its version is newer than yours."""

    def __init__(self, queue: str, map_version: int, owner: str, url: str) -> None:
        super().__init__(f"queue {queue!r} belongs to node {owner!r} at {url}: fetch the map again, and ask there")
        self.map_version = map_version
        self.owner = owner
        self.url = url


class PartitionMap(msgspec.Struct, frozen=True):
    """One version of the map.

    >>> there = PartitionMap(7, "b", ("a",), {"a": "http://a:9325", "b": "http://b:9325"})
    >>> there.owner("orders")
    'a'
    >>> there.check("orders")
    Traceback (most recent call last):
        ...
    penstock.server.partition_map.PartitionMoved: queue 'orders' belongs to node 'a' at http://a:9325: ...
    """

    version: int
    own: str
    """This node's name."""
    owners: tuple[str, ...]
    """The node that owns each partition."""
    urls: dict[str, str]
    """Where each node is reached."""

    def owner(self, queue: str) -> str:
        return self.owners[partition_of(queue, len(self.owners))]

    def check(self, queue: str) -> None:
        """Raise `PartitionMoved` if the queue is not this node's."""
        owner = self.owner(queue)
        if owner != self.own:
            raise PartitionMoved(queue, self.version, owner, self.urls[owner])


class PartitionMaps(Protocol):
    """Knows the map as it is now."""

    def current(self) -> PartitionMap:
        """The newest version."""


class Steering(Protocol):
    """A cluster as people see it, and what they wish for it."""

    def nodes(self) -> list[dict[str, Any]]:
        """A row for each node."""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each shard."""

    def move(self, shard: int, node: str | None) -> None:
        """Wish for a shard to be at a node, and to stay there; with None, to be where the controller wants it."""

    def drain(self, node: str) -> None:
        """Wish for a node to be empty."""

    def undrain(self, node: str) -> None:
        """Let a node have shards again."""

    async def written(self) -> None:
        """Wait until the last wish is kept."""


class OneNode:
    """The map of a server that stands alone: one partition, its own, and no second version."""

    def __init__(self, url: str) -> None:
        self._map = PartitionMap(1, "0", ("0",), {"0": url})

    def current(self) -> PartitionMap:
        """The only version."""
        return self._map
