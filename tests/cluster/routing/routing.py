"""Two nodes in one loop, each with its REST and websocket front end behind a proxy that can lose answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.remote.routed import RoutedCaller
from penstock.cluster.routing.placement import home_of
from penstock.protocols.rest.app import RestFrontEnd
from penstock.server.auth import Credentials
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMap
from penstock.server.settings import LogSettings, Settings
from tests.client.lossy import LossyProxy
from tests.cluster.links.linking import RETRY_TIMEOUT_S
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair


class HoldingProxy(LossyProxy):
    """A proxy at which requests can be held up."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.free = asyncio.Event()
        self.free.set()

    def lead_to(self, port: int) -> None:
        """Connections go to another server from now on."""
        self._to = port

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        await super()._pass(reader if is_answer else _Held(reader, self.free), writer, is_answer)  # type: ignore[arg-type]


class _Held:
    """A reader whose bytes are held up."""

    def __init__(self, reader: asyncio.StreamReader, free: asyncio.Event) -> None:
        self._reader = reader
        self._free = free

    async def read(self, count: int) -> bytes:
        data = await self._reader.read(count)
        await self._free.wait()
        return data


class ServedPair(Pair):
    """A pair that clients can connect to: at each node's proxy."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.front_ends = {name: RestFrontEnd(0, __version__) for name in NAMES}
        self.services: dict[str, Services] = {}
        self.proxies: dict[str, HoldingProxy] = {}

    async def start(self) -> None:
        await super().start()
        for name in NAMES:
            services = self.services[name] = Services(
                shard=self.routers[name],
                settings=Settings(),
                credentials=Credentials(),
                meter=RequestMeter(),
                request_log=RequestLog(LogSettings(requests="none")),
                metric_sources=[],
            )
            services.partition_maps = _Maps(self, name)
            address = await self.front_ends[name].start(services)
            self.proxies[name] = HoldingProxy(address.port)
            await self.proxies[name].start()

    async def stop(self) -> None:
        for name in NAMES:
            await self.proxies[name].stop()
            self.services[name].is_stopping = True
            await self.front_ends[name].drain(0)
        await super().stop()

    def url(self, name: str) -> str:
        return self.proxies[name].url

    def outcomes(self, name: str) -> Counter[tuple[str, str]]:
        """How many commands of each kind clients have brought to a node, and what became of them."""
        found: Counter[tuple[str, str]] = Counter()
        for family in self.services[name].meter.families():
            for sample in family.samples:
                if sample.name == "penstock_requests_total":
                    found[sample.labels["action"], sample.labels["outcome"]] += int(sample.value)
        return found

    def done(self, name: str) -> Counter[str]:
        """How many commands of each kind clients have brought to a node, by websocket or polling."""
        found: Counter[str] = Counter()
        for (action, _), count in self.outcomes(name).items():
            found[action] += count
        return found

    def forwarded(self, name: str) -> Counter[str]:
        """How many commands of each kind a node has handed on to the other."""
        return Counter({kind.__name__: count for kind, count in self.routers[name].forwarded.items()})

    def queue_of(self, owner: str, number: int = 0) -> str:
        """The name of a queue that a node owns now."""
        found = [name for name in (f"q{each}" for each in range(100)) if self.owners[home_of(name, SHARDS)] == owner]
        return found[number]

    def owner_of(self, queue: str) -> str:
        return self.owners[home_of(queue, SHARDS)]

    def receivers(self, queue: str) -> int:
        """How many receives wait."""
        shard = home_of(queue, SHARDS)
        broker = self.hosts[self.owners[shard]].served[shard].identity
        return len(broker.queues[queue].channels["main"].wait_queue)

    def is_empty(self, queue: str) -> bool:
        """Whether everything in a queue is acknowledged."""
        shard = home_of(queue, SHARDS)
        return not self.hosts[self.owners[shard]].served[shard].identity.queues[queue].messages

    async def move_queue(self, queue: str) -> None:
        await self.move(home_of(queue, SHARDS))


class _Maps:
    def __init__(self, pair: ServedPair, own: str) -> None:
        self._pair = pair
        self._own = own

    def current(self) -> PartitionMap:
        found = self._pair.maps[self._own].current()
        urls = {name: f"http://127.0.0.1:{proxy.port}" for name, proxy in self._pair.proxies.items()}
        return PartitionMap(found.version, self._own, tuple(owner or self._own for owner in found.owners), urls)


@asynccontextmanager
async def served_pair(directory: Path) -> AsyncIterator[ServedPair]:
    made = ServedPair(directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def routed(ps: AsyncPenstock) -> RoutedCaller:
    caller: Any = ps._caller
    assert isinstance(caller, RoutedCaller)
    return caller


async def until(is_so: Callable[[], Any], what: str = "it") -> None:
    deadline_s = asyncio.get_running_loop().time() + RETRY_TIMEOUT_S
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline_s, f"{what} did not come about"
        await asyncio.sleep(0.005)


async def goes_to(ps: AsyncPenstock, pair: ServedPair, queue: str, node: str) -> None:
    """Wait until commands about a queue go to a node."""
    port = pair.proxies[node].port
    deadline_s = asyncio.get_running_loop().time() + RETRY_TIMEOUT_S
    while routed(ps).owner(queue).port != port:
        assert asyncio.get_running_loop().time() < deadline_s, f"{queue} does not go to {node}"
        await ps.queue(queue).stats()
        await asyncio.sleep(0.005)
