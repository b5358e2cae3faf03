"""One process that serves a directory with several shards, as `penstock serve --workers N` of earlier builds made them.

To clients it is one node. Each shard commits for itself, and what units of work, dead letters and topics do in other
shards goes through the outbox, as in a cluster. Nothing goes over links.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prometheus_client.core import Metric

from penstock.cluster.base import ClusterMap, NodeAddress, ShardHost
from penstock.cluster.ownership.forwarder import Forwarder, forwarder_families
from penstock.cluster.routing.router import Router
from penstock.server.clock import Clock
from penstock.server.node import FrontEnd, Node
from penstock.server.settings import Settings
from penstock.server.shard import Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard
from penstock.store.embedded import StoreOpener
from penstock.store.layout import CLUSTER_NAME
from penstock.store.lock import DirectoryLock, refuse_incomplete
from penstock.store.sharded import ClusterFile, read_cluster_file, shard_directory

HERE = "here"


class OneNodeMap:
    """Every shard is here."""

    def __init__(self, shards: int) -> None:
        self._map = ClusterMap(1, HERE, (HERE,) * shards, {HERE: NodeAddress("")})

    def current(self) -> ClusterMap:
        return self._map

    def on_change(self, listener: Callable[[ClusterMap], None]) -> None:
        """Nothing ever changes."""


class ShardedNode(Node):
    """A node that has all shards of its directory."""

    def __init__(
        self, settings: Settings, front_ends: Sequence[FrontEnd], version: str, *, clock: Clock | None = None
    ) -> None:
        super().__init__(settings, front_ends, version, clock=clock)
        self._opened = contextlib.AsyncExitStack()
        self._forwarders: dict[int, Forwarder] = {}
        self._router: Router

    async def _open_shards(self) -> Shards:
        try:
            return await self._open_all(Path(self._settings.server.data))
        except BaseException:
            await self._opened.aclose()
            raise

    async def _open_all(self, data: Path) -> Router:
        self._opened.callback(DirectoryLock(data).release)
        refuse_incomplete(data)
        found = read_cluster_file(data / CLUSTER_NAME)
        host = ShardHost()
        self._opened.push_async_callback(host.close)
        for number in range(found.shards):
            shard = await asyncio.to_thread(self._open_shard, data, found, number)
            self._recording.append(shard)
            host.add(number, AsyncShard(shard, commit_in_thread=self._settings.server.commit_in_thread))
        self._router = Router(host, _nobody, OneNodeMap(found.shards), found.shards, found.entropy, self._clock)
        for number, served in host.served.items():
            forwarder = self._forwarders[number] = Forwarder(served, self._router.submit_to)
            forwarder.start()
            self._opened.push_async_callback(forwarder.stop)
        return self._router

    def _open_shard(self, data: Path, found: ClusterFile, number: int) -> Shard:
        return Shard(
            StoreOpener(shard_directory(data, number)), self._clock, lambda: found.entropy, number, found.shards
        )

    async def stop(self) -> None:
        """Stop as any node does, then close every shard."""
        try:
            await super().stop()
        finally:
            await self._opened.aclose()

    def _store_metrics(self) -> Iterable[Metric]:
        yield from super()._store_metrics()
        yield from self._router.families()
        yield from forwarder_families({number: each.stats() for number, each in self._forwarders.items()})


def _nobody(name: str) -> ShardHost:
    raise AssertionError(f"there is no other node, and {name!r} was asked for")
