"""Deliveries that did not come to their client go back at once, also if their shard is another node's by then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.core.commands import CreateQueue, OpenSession, Receive, Send, Subscribe
from penstock.core.delivery.channel import Channel
from penstock.core.queues.config import QueueConfig
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import bodies, until
from tests.cluster.routing.test_router_moves import Ticket
from tests.cluster.routing.test_router_pair import Pair, pair
from tests.cluster.routing.test_sessions_moving import queue_of

LEASE_MS = 3_600_000
COUNT = 40
BODY = bytes(500_000)


def channel_of(made: Pair, name: str, shard: int) -> Channel:
    """A queue's channel, as the owner of its shard has it now."""
    return made.hosts[made.owners[shard]].served[shard].identity.queues[name].channels["main"]


@pytest.mark.parametrize("way", ["push", "receive"])
@in_loop
async def test_what_was_not_written_goes_back_to_the_next_owner_when_the_link_breaks(tmp_path: Path, way: str) -> None:
    """Node a reads nothing, so what node b hands out for its client stays at node b, and then the shard moves."""
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router = made.routers["a"]
        await router.call(CreateQueue(name=name, config=QueueConfig(lease_ms=LEASE_MS)))
        session = await router.call(OpenSession(name="a connection", bound=True))
        if way == "push":
            await router.call(Subscribe(queue=name, credit=COUNT, session=session, ticket=Ticket(), in_flight=True))
        connection, (guest,) = made.links["b"]._connection, made.servers["b"].peer_links
        assert connection is not None
        waiting = [
            asyncio.create_task(router.call(Receive(queue=name, session=session, wait_ms=60_000)))
            for _ in range(COUNT if way == "receive" else 0)
        ]
        await until(lambda: len(channel_of(made, name, shard).wait_queue) == (COUNT if way == "receive" else 1))
        connection._transport.pause_reading()
        for _ in range(COUNT):
            await made.routers["b"].call(Send(queue=name, bodies=[BODY]))
        await until(lambda: guest.is_paused and channel_of(made, name, shard).ready == 0)
        unwritten = sum(bool(item[2].runs) for item in guest._answers.items)
        assert unwritten
        for task in waiting:
            task.cancel()  # nobody asks again
        await asyncio.gather(*waiting, return_exceptions=True)
        await made.move(shard)
        assert channel_of(made, name, shard).ready == 0, "what they hold went along"
        guest.abort()
        await until(lambda: channel_of(made, name, shard).ready >= unwritten)


@in_loop
async def test_what_comes_for_a_receive_that_was_given_up_goes_back_to_the_next_owner(tmp_path: Path) -> None:
    """The answer is on its way to node a when the shard moves, and the client leaves."""
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        router = made.routers["a"]
        await router.call(CreateQueue(name=name, config=QueueConfig(lease_ms=LEASE_MS)))
        await router.call(Send(queue=name, bodies=[b"x"]))
        connection, (guest,) = made.links["b"]._connection, made.servers["b"].peer_links
        assert connection is not None
        connection._transport.pause_reading()
        receiving = asyncio.create_task(router.call(Receive(queue=name)))
        await until(lambda: channel_of(made, name, shard).ready == 0 and not guest._answers.items)
        await made.move(shard)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        connection._transport.resume_reading()
        delivery = await made.routers["b"].call(Receive(queue=name, wait_ms=60_000))
        assert bodies(delivery) == [b"x"]
        assert delivery.runs[0].attempt == 1
