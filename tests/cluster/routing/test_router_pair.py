"""Two nodes in one loop, each with a router, a host and a real link to the other, while shards go to and fro."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.cluster.base import ClusterMap, LinkBroken, NodeAddress, ShardHost
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, LinkLimits, holder_of
from penstock.cluster.ownership.forwarder import Forwarder
from penstock.cluster.routing.router import Router
from penstock.cluster.routing.session_router import RouterPlace, SessionRouter
from penstock.core.commands import (
    Ack,
    CommitWork,
    CreateQueue,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    ListQueues,
    Once,
    OpenSession,
    QueueStats,
    Receive,
    Send,
    Subscribe,
)
from penstock.core.errors import QueueNotFound
from penstock.core.queues.config import QueueConfig
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.store.memory import MemoryStore
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import bodies, spans, until
from tests.cluster.routing.test_router_moves import Ticket
from tests.shards import ENTROPY, FixedMaps
from tools.servers import free_ports

SHARDS = 4
NAMES = ("a", "b")


def other_than(name: str) -> str:
    """The other node."""
    return NAMES[name == "a"]


class Pair:
    """Two nodes and who owns what."""

    def __init__(self, directory: Path, limits: LinkLimits | None = None) -> None:
        self.stores = [MemoryStore() for _ in range(SHARDS)]
        self.clock = SystemClock()
        self.owners = [NAMES[shard % 2] for shard in range(SHARDS)]
        self.hosts = {name: ShardHost() for name in NAMES}
        self.maps = {name: FixedMaps(tuple(self.owners), name) for name in NAMES}
        self.places = {name: RouterPlace(self.hosts[name]) for name in NAMES}
        self.identities = {name: LinkIdentity("pair", name) for name in NAMES}
        self.servers = {name: LinkServer(self.places[name], self.identities[name], limits) for name in NAMES}
        self.directory = directory
        self.addresses = dict(zip(NAMES, map("127.0.0.1:{}".format, free_ports(len(NAMES))), strict=True))
        self.links = {name: Link(self.addresses[name], self.identities[other_than(name)]) for name in NAMES}
        self.routers: dict[str, Router] = {}
        self.forwarders: dict[int, Forwarder] = {}

    async def start(self) -> None:
        for name in NAMES:
            await self.servers[name].start(self.addresses[name])
            self.links[other_than(name)].remote_calls = self.places[name]
            holder = holder_of(self.identities[name].process)
            self.places[name].router = self.routers[name] = SessionRouter(
                name, self.hosts[name], self.links.__getitem__, self.maps[name], SHARDS, ENTROPY, self.clock, holder
            )
        for shard in range(SHARDS):
            self.open(shard)
        self.tell()

    def open(self, shard: int, *, in_order: bool = True) -> None:
        opened = Shard(lambda: self.stores[shard], self.clock, lambda: ENTROPY, shard, SHARDS, was_handed_over=in_order)
        served, name = AsyncShard(opened), self.owners[shard]
        self.servers[name].take_over(shard, opened.broker.sessions)
        self.hosts[name].add(shard, served)
        self.forwarders[shard] = Forwarder(served, self.routers[name].submit_to)
        self.forwarders[shard].start()

    async def move(self, shard: int, *, in_order: bool = True) -> None:
        """In good order, as a drain does it; or as if the former owner had not been heard from."""
        to = other_than(self.owners[shard])
        await self.release(shard)
        await asyncio.sleep(0)
        self.owners[shard] = to
        self.open(shard, in_order=in_order)
        self.tell()

    async def release(self, shard: int) -> None:
        """Nobody serves it from now on."""
        await self.forwarders.pop(shard).stop()
        await self.hosts[self.owners[shard]].release(shard)
        self.owners[shard] = ""
        self.tell()

    def tell(self) -> None:
        for maps in self.maps.values():
            maps.change(*self.owners)

    async def stop(self) -> None:
        for forwarder in self.forwarders.values():
            await forwarder.stop()
        for name in NAMES:
            await self.routers[name].close()
        for name in NAMES:
            await self.links[name].close()
            await self.servers[name].close()


@asynccontextmanager
async def pair(directory: Path, limits: LinkLimits | None = None) -> AsyncIterator[Pair]:
    made = Pair(directory, limits)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@in_loop
async def test_what_is_made_at_one_node_is_there_at_the_other_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        a, b = made.routers["a"], made.routers["b"]
        for number in range(2 * SHARDS):
            name, config = f"q{number}", QueueConfig(partitions=1 + number % 3)
            await a.call(CreateQueue(name=name, config=config))
            assert (await b.call(DescribeQueue(name=name))).config == config
            waiting = asyncio.create_task(b.call(Receive(queue=name, wait_ms=30_000)))
            await a.call(Send(queue=name, bodies=[b"hello"], create=False))
            delivery = await waiting
            assert bodies(delivery) == [b"hello"]
            assert (await a.call(Ack(queue=name, spans=spans(delivery)))).count == 1
        assert await b.call(ListQueues()) == sorted(f"q{number}" for number in range(2 * SHARDS))
        for number in range(2 * SHARDS):
            await b.call(DeleteQueue(name=f"q{number}"))
            with pytest.raises(QueueNotFound):
                await a.call(Send(queue=f"q{number}", bodies=[b"x"], create=False))
        assert await a.call(ListQueues()) == []


@in_loop
async def test_a_subscription_at_one_node_gets_what_is_sent_at_the_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        a, b = made.routers["a"], made.routers["b"]
        for number in range(SHARDS):
            name, ticket = f"q{number}", Ticket()
            await a.call(CreateQueue(name=name))
            session = await b.call(OpenSession(name="b's client", bound=True))
            await b.call(Subscribe(queue=name, credit=10, session=session, ticket=ticket))
            await a.call(Send(queue=name, bodies=[b"1", b"2"]))
            await until(lambda ticket=ticket: ticket.bodies == [b"1", b"2"])  # type: ignore[misc]


DISTURBANCES = 12
"""How often shards move, or links are cut; messages are sent meanwhile."""
QUEUES = {
    "one": QueueConfig(),
    "two": QueueConfig(),
    "split": QueueConfig(partitions=4),
    "ordered": QueueConfig(kind="fifo", partitions=4, content_dedup=True),
    "out": QueueConfig(),
}


class Traffic:
    """Sends, receives and works through both nodes, and keeps books."""

    def __init__(self, made: Pair, seed: int) -> None:
        self.made = made
        self.random = random.Random(seed)
        self.sent: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        self.got: dict[str, list[bytes]] = {name: [] for name in QUEUES}
        self.is_disturbed = True
        self.is_sending = True
        self.is_working = True
        """Whether more may come to `out`."""

    def router(self) -> Router:
        return self.made.routers[self.random.choice(NAMES)]

    async def send(self, queue: str, sender: int) -> None:
        for number in itertools.count():
            if not self.is_disturbed:
                return
            body = b"%s %d %d" % (queue.encode(), sender, number)
            groups: list[str | None] | None = [f"g{sender}"] if queue == "ordered" else None
            await self.router().call(Send(queue=queue, bodies=[body], groups=groups, create=False))
            self.sent[queue].append(body)

    async def receive(self, queue: str) -> None:
        while self._may_get_more(queue):
            wait_ms = self.random.choice((0, 20))
            delivery: Delivery = await self.router().call(Receive(queue=queue, limit=7, wait_ms=wait_ms))
            if not delivery.runs:
                await asyncio.sleep(0.001)
                continue
            self.got[queue] += bodies(delivery)
            await self._settle(queue, delivery)

    def _may_get_more(self, queue: str) -> bool:
        still = self.is_working if queue == "out" else self.is_sending
        return still or len(self.got[queue]) < len(self.sent[queue])

    async def _settle(self, queue: str, delivery: Delivery) -> None:
        """Every queue but two is acked one by one; from those, work goes to `out`."""
        ack = Ack(queue=queue, spans=spans(delivery))
        if queue in ("two", "split"):
            copies = bodies(delivery)
            await self.router().call(
                CommitWork(acks=[ack], sends=[Send(queue="out", bodies=list(copies), create=False)])
            )
            self.sent["out"] += copies
            return
        settled = await self.router().call(ack)
        assert (settled.count, settled.refused) == (delivery.count, [])

    async def disturb(self) -> None:
        for _ in range(DISTURBANCES):
            await self.made.move(self.random.randrange(SHARDS))
            await asyncio.sleep(self.random.random() * 0.02)
        self.is_disturbed = False


@pytest.mark.parametrize("seed", [1, 2, 3])
@in_loop
async def test_shards_that_move_lose_repeat_and_disorder_nothing(tmp_path: Path, seed: int) -> None:
    async with pair(tmp_path) as made:
        for name, config in QUEUES.items():
            await made.routers["a"].call(CreateQueue(name=name, config=config))
        traffic = Traffic(made, seed)
        receivers = [asyncio.create_task(traffic.receive(queue)) for queue in QUEUES]
        sources = [queue for queue in QUEUES if queue != "out"]
        sending = [traffic.send(queue, sender) for queue in sources for sender in range(2)]
        await asyncio.gather(traffic.disturb(), *sending)
        traffic.is_sending = False
        await asyncio.gather(*receivers[:-1])
        traffic.is_working = False
        await receivers[-1]
        for queue in QUEUES:
            assert sorted(traffic.got[queue]) == sorted(traffic.sent[queue]), queue
            assert (await made.routers["b"].call(QueueStats(name=queue))).messages == 0
        for sender in range(2):
            mine = [body for body in traffic.got["ordered"] if body.split()[1] == b"%d" % sender]
            assert mine == [b"ordered %d %d" % (sender, number) for number in range(len(mine))]


class BrokenTraffic(Traffic):
    """The same while links break: sends are named, and what is lost on its way comes again when its lease is over."""

    async def send(self, queue: str, sender: int) -> None:
        for number in itertools.count():
            if not self.is_disturbed:
                return
            body = b"%s %d %d" % (queue.encode(), sender, number)
            once = Once(f"{queue} {sender}", number, number)
            await self.router().call(Send(queue=queue, bodies=[body], create=False, once=once))
            self.sent[queue].append(body)
            await asyncio.sleep(0)

    async def receive(self, queue: str) -> None:
        while self.is_sending or (await self.made.routers["a"].call(QueueStats(name=queue))).messages:
            delivery: Delivery = await self.router().call(Receive(queue=queue, limit=7, wait_ms=50))
            self.got[queue] += bodies(delivery)
            with contextlib.suppress(LinkBroken):  # then it was acked, or it comes again
                await self.router().call(Ack(queue=queue, spans=spans(delivery)))

    async def disturb(self) -> None:
        cuts = 0
        while cuts < DISTURBANCES:
            for guest in list(self.made.servers[self.random.choice(NAMES)].peer_links):
                guest.abort()
                cuts += 1
            if self.random.random() < 0.2:
                await self.made.move(self.random.randrange(SHARDS))
            await asyncio.sleep(self.random.random() * 0.03)
        self.is_disturbed = False


@pytest.mark.parametrize("seed", [1, 2])
@in_loop
async def test_links_that_break_lose_nothing_and_do_named_sends_once(tmp_path: Path, seed: int) -> None:
    queues = {"one": QueueConfig(lease_ms=400), "split": QueueConfig(lease_ms=400, partitions=4, max_receives=0)}
    async with pair(tmp_path) as made:
        for name, config in queues.items():
            await made.routers["a"].call(CreateQueue(name=name, config=config.changed({"max_receives": 0})))
        traffic = BrokenTraffic(made, seed)
        receivers = [asyncio.create_task(traffic.receive(queue)) for queue in queues]
        sending = [traffic.send(queue, sender) for queue in queues for sender in range(2)]
        await asyncio.gather(traffic.disturb(), *sending)
        traffic.is_sending = False
        await asyncio.gather(*receivers)
        for queue in queues:
            assert set(traffic.got[queue]) == set(traffic.sent[queue])
            assert (await made.routers["b"].call(QueueStats(name=queue))).sent == len(traffic.sent[queue])


def test_the_map_of_a_pair_names_both() -> None:
    assert ClusterMap(1, "a", NAMES, {name: NodeAddress("") for name in NAMES}).own_shards == [0]
