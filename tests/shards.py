"""One shard, or several behind a router: `PENSTOCK_TEST_SHARDS=3 pytest tests/protocols/sqs` runs a suite on three.

What tests look at past the front ends, they look at through the functions here, so that it is there either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.cluster.base import ClusterMap, NodeAddress, Place
from penstock.cluster.host import ShardHost
from penstock.cluster.router import Router
from penstock.core.broker import Broker
from penstock.server.clock import Clock
from penstock.server.shard import Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard
from penstock.store.base import Store

SHARDS = int(os.environ.get("PENSTOCK_TEST_SHARDS", "1"))
ENTROPY = bytes(range(64))


class FixedMaps:
    """A map that changes when a test says so."""

    def __init__(self, owners: tuple[str, ...], own: str = "here") -> None:
        self._listeners: list[Callable[[ClusterMap], None]] = []
        self._map = ClusterMap(1, own, owners, {name: NodeAddress("") for name in {*owners, own} if name})

    def current(self) -> ClusterMap:
        return self._map

    def on_change(self, listener: Callable[[ClusterMap], None]) -> None:
        self._listeners.append(listener)

    def change(self, *owners: str) -> None:
        old = self._map
        nodes = {name: NodeAddress("") for name in {*owners, old.own} if name}
        self._map = ClusterMap(old.version + 1, old.own, owners, nodes)
        for listener in self._listeners:
            listener(self._map)


def nowhere(name: str) -> Place:
    raise AssertionError(f"there is no node {name!r} here")


def open_shards(
    open_store: Callable[[int], Store], clock: Clock, *, commit_in_thread: bool = False, shards: int = SHARDS
) -> Shards:
    """The shards that a front end is to serve: as many as the environment says. In the loop."""
    if shards == 1:
        shard = Shard(lambda: open_store(0), clock, lambda: ENTROPY)
        return AsyncShard(shard, commit_in_thread=commit_in_thread)
    return open_router(open_store, clock, shards, commit_in_thread=commit_in_thread)


def open_router(
    open_store: Callable[[int], Store], clock: Clock, shards: int = 3, *, commit_in_thread: bool = False
) -> Router:
    """Several shards of this process, behind a router."""
    host = ShardHost()
    for number in range(shards):
        shard = Shard(lambda number=number: open_store(number), clock, lambda: ENTROPY, number, shards)  # type: ignore[misc]
        host.add(number, AsyncShard(shard, commit_in_thread=commit_in_thread))
    return Router(host, nowhere, FixedMaps(("here",) * shards), shards, ENTROPY, clock)


def brokers(shards: Any) -> list[Broker]:
    """The brokers behind."""
    if isinstance(shards, Router):
        return [served.identity for served in shards.served.values()]
    return [shards.identity]


def waiting(shards: Any, queue: str, channel: str = "main") -> int:
    """How many receives wait for messages of a queue."""
    found = [broker.queues[queue] for broker in brokers(shards) if queue in broker.queues]
    return max(len(each.channels[channel].line) for each in found)
