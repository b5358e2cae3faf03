"""Two nodes in one loop: shards behind a real socket, and a link to them."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from penstock.cluster.base import Place, ShardHost
from penstock.cluster.links.link import Link
from penstock.cluster.links.server import LinkServer
from penstock.cluster.links.settings import LinkIdentity, LinkLimits
from penstock.core.commands import Command, Delivery
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.memory import MemoryStore

RETRY_TIMEOUT_S = 60.0
SHARDS = 3
ENTROPY = bytes(range(64))
SECRET = b"the cluster's secret"


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, in the kind of loop that servers have."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*arguments, **named), 2 * RETRY_TIMEOUT_S))

    return run


class Asked:
    """A command at a place, to be awaited."""

    def __init__(self, place: Place, shard: int, command: Command) -> None:
        self.place = place
        self.settled = asyncio.Event()
        self.times = 0
        self.call: CallbackCall = place.submit(shard, command, self._note)
        assert not self.times, "settled within submit"

    def _note(self, _call: Call) -> None:
        self.times += 1
        self.settled.set()

    async def result(self) -> Any:
        await asyncio.wait_for(self.settled.wait(), RETRY_TIMEOUT_S)
        assert self.times == 1
        return self.call.result()

    def withdraw(self) -> None:
        self.place.withdraw(self.call)


async def ask(place: Place, command: Command, shard: int = 0) -> Any:
    """A command's reply; its error raised."""
    return await Asked(place, shard, command).result()


def make_shard(shard: int) -> AsyncShard:
    """A shard in memory."""
    store = MemoryStore()
    return AsyncShard(Shard(lambda: store, SystemClock(), lambda: ENTROPY, shard, SHARDS))


def make_host() -> ShardHost:
    """A host with all the shards."""
    host = ShardHost()
    for shard in range(SHARDS):
        host.add(shard, make_shard(shard))
    return host


class Linked:
    """A host, a server before it, and a link to that."""

    def __init__(self, host: ShardHost, server: LinkServer, link: Link) -> None:
        self.host = host
        self.server = server
        self.link = link

    async def ask(self, command: Command, shard: int = 0) -> Any:
        return await ask(self.link, command, shard)

    def asked(self, command: Command, shard: int = 0) -> Asked:
        return Asked(self.link, shard, command)

    def waiting(self, queue: str, shard: int = 0) -> int:
        """How many receives and subscriptions wait for messages of a queue."""
        return len(self.host.served[shard].shard.broker.queues[queue].channels["main"].wait_queue)


def identity(node: str, secret: bytes = SECRET) -> LinkIdentity:
    return LinkIdentity("test", node, secret)


@asynccontextmanager
async def linked(
    address: str = "127.0.0.1:0", limits: LinkLimits | None = None, server_limits: LinkLimits | None = None
) -> AsyncIterator[Linked]:
    """Shards of node b, linked to from node a."""
    host = make_host()
    server = LinkServer(host, identity("b"), server_limits or limits)
    link = Link(await server.start(address), identity("a"), limits)
    try:
        yield Linked(host, server, link)
    finally:
        await link.close()
        await server.close()
        await host.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that comes by itself."""
    deadline_s = time.monotonic() + RETRY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came"
        await asyncio.sleep(0.002)


def bodies(delivery: Delivery) -> list[bytes]:
    return [body for run in delivery.runs for body in run.chunk.body_list(run.start, run.stop)]


class Subscriber:
    """A ticket that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.deliveries: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.taken.append(delivery)

    def settle(self) -> None:
        self.deliveries += self.taken
        self.taken = []

    @property
    def bodies(self) -> list[bytes]:
        return [body for delivery in self.deliveries for body in bodies(delivery)]

    @property
    def error(self) -> BaseException | None:
        return self.deliveries[-1].error if self.deliveries else None
