"""One shard, or several behind a router: `PENSTOCK_TEST_SHARDS=3 pytest tests/protocols/sqs` runs a suite on three.

`PENSTOCK_TEST_CLUSTER=3` runs it on three nodes of a cluster on Kafka (`tests/clustered.py`).

What tests look at past the front ends, they look at through the functions here, so that it is there either way.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.base import ClusterMap, NodeAddress, ShardHost
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity
from penstock.cluster.ownership.forwarder import Forwarder
from penstock.cluster.routing.router import RETRY_TIMEOUT_S, Router
from penstock.core.broker import Broker
from penstock.server.clock import Clock, SystemClock
from penstock.server.node import Node
from penstock.server.shard import Shard, Tick
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard
from penstock.store.base import Store
from penstock.store.embedded import open_store
from penstock.store.memory import MEMORY, MemoryStore
from tests import clustered
from tests.clock import ManualClock
from tests.clustered import ClusterClock, LentRouter
from tests.ports import free_port

SHARDS = clustered.SHARDS if clustered.NODES else int(os.environ.get("PENSTOCK_TEST_SHARDS", "1"))
NEAR = os.environ.get("PENSTOCK_TEST_NEAR", "0")
"""The shards that are the node's own ("all": all of them); the others are another node's."""
ENTROPY = bytes(range(64))


one_shard_only = pytest.mark.skipif(
    SHARDS > 1, reason="by design not so with several shards: what goes to another one is on its way, or is shown there"
)


def not_for_clusters(reason: str) -> pytest.MarkDecorator:
    """For tests that look inside one process, or at one directory; the reason says at what."""
    return pytest.mark.skipif(clustered.NODES > 0, reason=f"not for clusters: {reason}")


class LoopThread:
    """An event loop in a thread; with a cluster that of one of its nodes, of each in turn."""

    def __init__(self) -> None:
        self._is_own = not clustered.NODES
        if self._is_own:
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
            self._thread.start()
        else:
            self.loop = clustered.cluster().next_home().loop

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=60)

    def close(self) -> None:
        """Cancel what still runs, as the end of a process does, and wait for it."""
        if self._is_own:
            self.run(_cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=10)


def run_in_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`; with a cluster, in the loop of one of its nodes."""
    thread = LoopThread()
    try:
        thread.run(coroutine)
    finally:
        thread.close()


def all_arrived() -> None:
    """With a cluster: until what shards have for each other is there, as dead letters. With one shard it always is."""
    if clustered.NODES:
        cluster = clustered.cluster()
        cluster.homes[0].run(cluster.tick())


def still_clock() -> ManualClock | ClusterClock:
    """A clock that stands still until it is told to go on."""
    return clustered.cluster().clock.stand_still() if clustered.NODES else ManualClock()


def stepping_clock() -> SteppingClock | ClusterClock:
    """A clock that runs, and can be set forward."""
    return clustered.cluster().clock.run() if clustered.NODES else SteppingClock()


class SteppingClock(SystemClock):
    """The system's clock, which tests can set forward."""

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def advance(self, seconds: float) -> None:
        self._ahead_ms += round(seconds * 1_000)


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


class FarHost(ShardHost):
    """The shards of another node."""


class LinkedHost(Link):
    """Another node's shards, behind a real link."""

    def __init__(self, far: FarHost) -> None:
        address = f"127.0.0.1:{free_port()}"
        super().__init__(address, LinkIdentity("test", "here"))
        self._server = LinkServer(far, LinkIdentity("test", "there"))
        self._starting = asyncio.get_running_loop().create_task(self._server.start(address))

    async def close(self) -> None:
        await self._starting
        await super().close()
        await self._server.close()


class WatchedRouter(Router):
    """A router, with what tests look at past it."""

    far: FarHost
    forwarders: list[Forwarder]
    linked: LinkedHost | None

    def everywhere(self) -> list[AsyncShard]:
        """Every shard in its order, here or there."""
        both = {**self.served, **self.far.served}
        return [both[number] for number in sorted(both)]

    async def tick(self) -> None:
        """A step in every shard; what they have for each other arrives as well."""
        await super().tick()
        await asyncio.gather(*(served.call(Tick()) for served in self.far.served.values()))
        while any(served.identity.outbox_targets() for served in self.everywhere()):
            await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.gather(*(forwarder.stop() for forwarder in self.forwarders))
        await super().close()
        if self.linked is not None:
            await self.linked.close()
        await self.far.close()


def open_shards(
    open_store: Callable[[int], Store], clock: Clock, *, commit_in_thread: bool = False, shards: int = SHARDS
) -> Shards:
    """The shards that a front end is to serve: as many as the environment says. In the loop."""
    if clustered.NODES:
        cluster = clustered.cluster()
        return LentRouter(cluster, cluster.home_here())
    if shards == 1:
        shard = Shard(lambda: open_store(0), clock, lambda: ENTROPY)
        return AsyncShard(shard, commit_in_thread=commit_in_thread)
    near = None if NEAR == "all" else [int(number) for number in NEAR.split(",")]
    return open_router(open_store, clock, shards, near=near, commit_in_thread=commit_in_thread, links=True)


def open_router(
    open_store: Callable[[int], Store],
    clock: Clock,
    shards: int = 3,
    *,
    near: Collection[int] | None = None,
    commit_in_thread: bool = False,
    retry_timeout_s: float = RETRY_TIMEOUT_S,
    links: bool = False,
) -> WatchedRouter:
    """Several shards behind a router: those in `near` (all) here, the others there, perhaps behind a real link."""
    host, far = ShardHost(), FarHost()
    for number in range(shards):
        shard = Shard(partial(open_store, number), clock, lambda: ENTROPY, number, shards)
        here = near is None or number in near
        (host if here else far).add(number, AsyncShard(shard, commit_in_thread=commit_in_thread))
    owners = tuple("here" if number in host.served else "there" for number in range(shards))
    place = LinkedHost(far) if links else far
    router = WatchedRouter(
        host, lambda _: place, FixedMaps(owners), shards, ENTROPY, clock, retry_timeout_s=retry_timeout_s
    )
    router.far = far
    router.linked = place if isinstance(place, LinkedHost) else None
    router.forwarders = [Forwarder(served, router.submit_to) for served in router.everywhere()]
    for forwarder in router.forwarders:
        forwarder.start()
    return router


def brokers(shards: Any) -> list[Broker]:
    """The brokers behind."""
    if isinstance(shards, WatchedRouter | LentRouter):
        return [served.identity for served in shards.everywhere()]
    return [shards.identity]


def waiting(shards: Any, queue: str, channel: str = "main") -> int:
    """How many receives wait for messages of a queue."""
    found = [broker.queues[queue] for broker in brokers(shards) if queue in broker.queues]
    return max(len(each.channels[channel].wait_queue) for each in found)


def stores_in(directory: Path) -> Callable[[int], Store]:
    """A directory for each shard, within one."""
    if SHARDS == 1:
        return lambda _: open_store(directory)
    return lambda number: open_store(directory / f"shard-{number}")


class ShardedNode(Node):
    """A node with as many shards as the environment says."""

    async def _open_shards(self) -> Shards:
        if SHARDS == 1:
            return await super()._open_shards()
        data = self._settings.server.data
        memories: dict[int, Store] = {}
        stores = stores_in(Path(data))
        shards = open_shards(
            (lambda number: memories.setdefault(number, MemoryStore())) if data == MEMORY else stores,
            self._clock,
            commit_in_thread=self._settings.server.commit_in_thread,
        )
        assert isinstance(shards, WatchedRouter | LentRouter)
        self._recording = [served.shard for served in shards.everywhere()]
        return shards
