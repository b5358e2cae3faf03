"""One of the processes of `penstock serve --workers N`: a node with one shard, and the others behind Unix sockets.

The map never changes: worker i has shard i, in `data/shard-<i>`. A worker serves when all of them do.

A stop is in step with the other workers', since each may be asked by the others until the last of their requests is
answered: when a worker has answered its own, it says so to its parent, and closes its shard when the parent says that
all have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from penstock.cluster.base import ClusterMap, LinkBroken, NodeAddress, ShardHost, ShardMoved
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, LinkLimits
from penstock.cluster.links.wire import AskNode
from penstock.cluster.ownership.forwarder import Forwarder, forwarder_families
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.session_router import OF_SESSIONS, ROUTER, RouterPlace
from penstock.cluster.routing.sessions import RoutedSessions
from penstock.core.commands import Command, CreateQueue, DescribeQueue
from penstock.core.errors import QueueNotFound
from penstock.server.clock import Clock
from penstock.server.events import Recorder
from penstock.server.metrics import ProcessMetrics, Source
from penstock.server.node import Address, FrontEnd, Node
from penstock.server.settings import Settings, events_config
from penstock.server.shard import Call, Shard, Tick
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.base import Store
from penstock.store.embedded import open_store
from penstock.store.errors import StoreLocked

_Samples = list[tuple[str, dict[str, str], float]]


class _Family(msgspec.Struct, array_like=True):
    name: str
    documentation: str
    kind: str
    unit: str
    samples: _Samples


_decode = msgspec.msgpack.Decoder(list[_Family]).decode


def pack_families(families: Iterable[Metric]) -> bytes:
    """Families as they travel.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> packed = pack_families([GaugeMetricFamily("depth", "How deep.", value=3)])
    >>> [(family.name, family.samples[0].value) for family in unpack_families(packed)]
    [('depth', 3.0)]
    """
    return msgspec.msgpack.encode(
        [
            _Family(
                family.name,
                family.documentation,
                family.type,
                family.unit,
                [(sample.name, sample.labels, float(sample.value)) for sample in family.samples],
            )
            for family in families
        ]
    )


def unpack_families(packed: bytes) -> list[Metric]:
    """Families as another worker has packed them."""
    return [_unpacked(family) for family in _decode(packed)]


def _unpacked(family: _Family) -> Metric:
    made = Metric(family.name, family.documentation, family.kind, family.unit)
    made.samples = [Sample(name, labels, value) for name, labels, value in family.samples]
    return made


def labelled(families: Iterable[Metric], worker: int) -> list[Metric]:
    """The families, each sample with a label that says which worker counted it.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> labelled([GaugeMetricFamily("depth", "How deep.", value=3)], 2)[0].samples[0].labels
    {'worker': '2'}
    """
    found = list(families)
    for family in found:
        family.samples = [sample._replace(labels={**sample.labels, "worker": str(worker)}) for sample in family.samples]
    return found


def up_family() -> GaugeMetricFamily:
    """Where it is counted which workers answer."""
    return GaugeMetricFamily("penstock_worker_up", "Whether a worker answers.", labels=("worker",))


log = logging.getLogger("penstock.worker")

LOCK_TIMEOUT_S = 15.0
"""How long a worker waits for the one before it to let go of the shard."""
WORKER_POLL_S = 0.05
LINK_RETRY_TIMEOUT_S = 60.0
"""How long commands wait for another worker that is being started again."""
METRICS_S_MAX = 2.0
"""How long a worker waits for another one's metrics."""
SOCKET_PATH_MAX = 100
"""The system takes 107 bytes."""
CLUSTER = "workers"


def worker_name(index: int) -> str:
    """A worker's name.

    >>> worker_name(1)
    'worker-1'
    """
    return f"worker-{index}"


def shard_directory(data: Path, index: int) -> Path:
    """Where a worker keeps its shard."""
    return data / f"shard-{index}"


class LinkDirectory:
    """Where the workers' sockets are. Paths of sockets must be short: a long one is taken by way of /proc."""

    def __init__(self, data: Path) -> None:
        self._path = data / "links"
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._descriptor: int | None = None
        if len(os.fsencode(self._path)) > SOCKET_PATH_MAX - len("/worker-999"):
            self._descriptor = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def address(self, index: int) -> str:
        """The path of a worker's socket, for this process."""
        where = self._path if self._descriptor is None else Path(f"/proc/self/fd/{self._descriptor}")
        return str(where / worker_name(index))

    def close(self) -> None:
        """Nothing is done with the sockets any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class StaticMaps:
    """A map that never changes."""

    def __init__(self, found: ClusterMap) -> None:
        self._map = found

    def current(self) -> ClusterMap:
        """The only version."""
        return self._map

    def on_change(self, listener: Callable[[ClusterMap], None]) -> None:
        """Nothing ever changes."""


class WorkerNode(Node):
    """A node with shard `index` of `workers`."""

    def __init__(
        self,
        settings: Settings,
        front_ends: Sequence[FrontEnd],
        version: str,
        *,
        index: int,
        workers: int,
        entropy: bytes,
        secret: bytes,
        listeners: Mapping[str, socket.socket],
        all_settled: Callable[[], Awaitable[None]],
        clock: Clock | None = None,
    ) -> None:
        super().__init__(settings, front_ends, version, clock=clock)
        self._listeners = listeners
        self._index = index
        self._workers = workers
        self._entropy = entropy
        self._identity = LinkIdentity(CLUSTER, worker_name(index), secret)
        self._all_settled = all_settled
        self._links: dict[str, Link] = {}
        self._opened = contextlib.AsyncExitStack()
        self._opened_once = False
        self._process = ProcessMetrics()
        self._forwarder: Forwarder | None = None
        self._router: Router

    async def _open_shards(self) -> Shards:
        """Open this worker's shard, and wait for the other workers to have opened theirs."""
        try:
            return await self._open_all()
        except BaseException:
            await self._opened.aclose()
            raise

    async def _open_all(self) -> Router:
        directory = LinkDirectory(Path(self._settings.server.data))
        self._opened.callback(directory.close)
        shard = await asyncio.to_thread(
            Shard, self._open_store, self._clock, lambda: self._entropy, self._index, self._workers
        )
        self._recording = [shard]
        served = AsyncShard(shard, commit_in_thread=self._settings.server.commit_in_thread)
        self._opened.push_async_callback(served.close)
        host = ShardHost()
        host.add(self._index, served)
        place = RouterPlace(host)
        server = LinkServer(place, self._identity)
        server.answer = lambda asked: pack_families(self._own_families())
        own = directory.address(self._index)
        Path(own).unlink(missing_ok=True)
        await server.start(own)
        self._opened.push_async_callback(server.close)
        self._opened.push_async_callback(self._close_links)
        names = [worker_name(each) for each in range(self._workers)]
        nodes = {name: NodeAddress(directory.address(each)) for each, name in enumerate(names)}
        maps = StaticMaps(ClusterMap(1, names[self._index], tuple(names), nodes))
        limits = LinkLimits(retry_timeout_s=LINK_RETRY_TIMEOUT_S)
        for name in names:
            if name != names[self._index]:
                self._links[name] = Link(nodes[name].link, self._identity, limits)
        router = _Router(
            self._index, self._all_settled, host, self._links, maps, self._workers, self._entropy, self._clock
        )
        place.router = self._router = router
        await self._until_all_serve()
        self._forwarder = Forwarder(served, router.submit_to)
        self._forwarder.start()
        self._opened.push_async_callback(self._forwarder.stop)
        return router

    async def _listen(self) -> dict[str, Address]:
        self.services.gather_metrics = self._gather_metrics
        self.services.metric_sources.append(self._router.families)
        return await super()._listen()

    # -- metrics --

    def _own_families(self) -> Iterable[Metric]:
        sources = [] if self._services is None else self._services.metric_sources
        return [
            family for source in (*sources, self._forwarder_families, self._process.families) for family in source()
        ]

    def _forwarder_families(self) -> Iterable[Metric]:
        return () if self._forwarder is None else forwarder_families({self._index: self._forwarder.stats()})

    async def _gather_metrics(self) -> list[Source]:
        """What every worker counts, whichever was asked. One that does not answer is down."""
        asked = [asyncio.wait_for(self._ask_for_metrics(index), METRICS_S_MAX) for index in range(self._workers)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        up = up_family()
        told: list[Metric] = [up]
        for index, answer in enumerate(answers):
            is_up = not isinstance(answer, BaseException)
            up.add_metric((str(index),), is_up)
            if not isinstance(answer, BaseException):
                told += labelled(answer, index)
        return [lambda: told]

    async def _ask_for_metrics(self, index: int) -> list[Metric]:
        if index == self._index:
            return list(self._own_families())
        call = await _ask(self._links[worker_name(index)], index, AskNode(what="metrics"))
        return unpack_families(call.result())

    # -- starting and stopping --

    async def _until_all_serve(self) -> None:
        for number in range(self._workers):
            link = self._links.get(worker_name(number))
            while link is not None and not await _serves(link, number):
                await asyncio.sleep(WORKER_POLL_S)

    async def _close_links(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def stop(self) -> None:
        """Stop as any node does, then leave the other workers."""
        try:
            await super().stop()
        finally:
            await self._opened.aclose()

    def _open_store(self) -> Store:
        """Also called by the shard when it has to open the store again.

        At first the worker before this one may still be at it.
        """
        directory = shard_directory(Path(self._settings.server.data), self._index)
        deadline_s = time.monotonic() + (0 if self._opened_once else LOCK_TIMEOUT_S)
        while True:
            try:
                self._store = open_store(directory)
            except StoreLocked:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(WORKER_POLL_S)
            else:
                self._opened_once = True
                return self._store

    async def _record(self) -> None:
        """Every worker writes the events of its own queues to its own partition of the events queue."""
        events = self._settings.events
        config = events_config(events).changed({"partitions": self._workers})
        try:
            await self.services.shard.call(DescribeQueue(name=events.queue))
        except QueueNotFound:
            await self.services.shard.call(CreateQueue(name=events.queue, config=config, channels=()))
        for shard in self._recording:
            flush_ms = max(1, round(events.flush_s * 1_000))
            shard.record(Recorder(events.queue, config, sample=events.sample, flush_ms=flush_ms))


class _Router(Router):
    """Knows of the other workers, which serve the same address.

    A client's next connection may end at another worker, where its session is not known: so a session's number says
    whose it is, and its commands go there. It closes when the other workers are ready for it.
    """

    def __init__(
        self,
        index: int,
        all_settled: Callable[[], Awaitable[None]],
        host: ShardHost,
        links: Mapping[str, Link],
        maps: StaticMaps,
        shards: int,
        entropy: bytes,
        clock: Clock,
    ) -> None:
        start = random.getrandbits(31) // shards * shards + index
        super().__init__(host, links.__getitem__, maps, shards, entropy, clock, sessions=RoutedSessions(start, shards))
        self._index = index
        self._links = links
        self._all_settled = all_settled

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        """Take a command to where it belongs."""
        if isinstance(command, OF_SESSIONS) and command.session and command.session % self.shards != self._index:
            return self._owner_of(command.session).submit(ROUTER, command, on_settled, caller)
        return super().submit(command, on_settled, caller)

    def withdraw(self, call: CallbackCall) -> None:
        if call.shard == ROUTER and isinstance(call.command, OF_SESSIONS):
            self._owner_of(call.command.session).withdraw(call)
        else:
            super().withdraw(call)

    def partitions_for(self, name: str) -> int:
        """How many partitions a queue needs for every node to have one: all workers are one node."""
        return 1

    def _owner_of(self, session: int) -> Link:
        return self._links[worker_name(session % self.shards)]

    async def close(self) -> None:
        """Wait until no other worker has anything to ask, then close."""
        await self._all_settled()
        await super().close()


async def _ask(link: Link, shard: int, command: Command) -> Call:
    settled: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
    link.submit(shard, command, lambda call: None if settled.done() else settled.set_result(call))
    return await settled


async def _serves(link: Link, shard: int) -> bool:
    """Whether another worker has opened its shard."""
    call = await _ask(link, shard, Tick())
    if isinstance(call.error, ShardMoved | LinkBroken):
        return False
    call.result()
    return True
