"""Credit that is given while a shard moves: the client's own subscription has it afterwards, and all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.cluster.base import ShardMoved
from penstock.core.commands import AckSequences, AddCredit, CreateQueue, OpenSession, Send, SetCredit, Subscribe
from penstock.core.queues.config import QueueConfig
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import until
from tests.cluster.routing.test_router_moves import Ticket
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair, other_than, pair
from tests.cluster.routing.test_sessions_moving import queue_of, sequences


class Client:
    """A client with a subscription."""

    def __init__(self, made: Pair, node: str, queue: str) -> None:
        self.router = made.routers[node]
        self.queue = queue
        self.ticket = Ticket()
        self.session = self.subscription = 0

    async def subscribe(self, credit: int, *, in_flight: bool, room_bytes: int | None = None) -> None:
        self.session = await self.router.call(OpenSession(name="a connection", bound=True))
        command = Subscribe(
            queue=self.queue,
            credit=credit,
            session=self.session,
            ticket=self.ticket,
            in_flight=in_flight,
            room_bytes=room_bytes,
        )
        self.subscription = (await self.router.call(command)).subscription

    async def send(self, body: bytes) -> None:
        await self.router.call(Send(queue=self.queue, bodies=[body]))

    async def has(self, count: int) -> None:
        await until(lambda: len(self.ticket.bodies) == count)

    async def ack_all(self) -> None:
        for delivery in self.ticket.taken:
            command = AckSequences(
                queue=self.queue, channel="main", sequences=sequences(delivery), session=self.session
            )
            await self.router.call(command)


@pytest.mark.parametrize("kind", [AddCredit, SetCredit])
@pytest.mark.parametrize("owner", NAMES)
@in_loop
async def test_credit_that_is_given_while_nobody_serves_the_shard_counts(
    tmp_path: Path, owner: str, kind: type[AddCredit | SetCredit]
) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, owner)
        client = Client(made, "a", name)
        await client.router.call(CreateQueue(name=name))
        await client.subscribe(1, in_flight=False)
        await client.send(b"1")
        await client.has(1)
        await made.release(shard)
        await until(lambda: shard in client.router.remote_calls.lines)  # it is about to subscribe anew
        giving = asyncio.create_task(client.router.call(kind(subscription=client.subscription, credit=2)))
        await asyncio.sleep(0.01)
        made.owners[shard] = other_than(owner)
        made.open(shard)
        made.tell()
        await giving
        for number in range(2, 5):
            await client.send(b"%d" % number)
        await client.has(3)
        await asyncio.sleep(0.05)
        assert client.ticket.bodies == [b"1", b"2", b"3"], "more than there is credit for"


@in_loop
async def test_credit_is_shared_out_while_a_partition_moves(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        client = Client(made, "a", "split")
        await client.router.call(CreateQueue(name="split", config=QueueConfig(partitions=3)))
        await client.subscribe(0, in_flight=False)
        shards = [shard for shard in range(SHARDS) if made.owners[shard] == "b"]
        for shard in shards:
            await made.release(shard)
        await until(lambda: any(shard in client.router.remote_calls.lines for shard in shards))
        giving = asyncio.create_task(client.router.call(AddCredit(subscription=client.subscription, credit=9)))
        await asyncio.sleep(0.01)
        for shard in shards:
            made.owners[shard] = "a"
            made.open(shard)
        made.tell()
        await giving
        for _ in range(12):
            await client.send(b"x")
        await client.has(9)


@in_loop
async def test_a_client_that_reads_again_while_its_shard_moves_gets_messages(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "a")
        client = Client(made, "a", name)
        await client.router.call(CreateQueue(name=name))
        await client.subscribe(30, in_flight=True, room_bytes=0)
        await made.release(shard)
        await until(lambda: shard in client.router.remote_calls.lines)
        await client.router.call(SetCredit(subscription=client.subscription, room_bytes=1_000))
        made.owners[shard] = "b"
        made.open(shard)
        made.tell()
        for _ in range(9):
            await client.send(b"x")
        await client.has(9)


@in_loop
async def test_credit_that_comes_late_is_not_given_to_somebody_else(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        name, shard = queue_of(made, "b")
        one, other = Client(made, "b", name), Client(made, "a", name)
        await one.router.call(CreateQueue(name=name))
        await one.subscribe(1, in_flight=True)
        await other.subscribe(1, in_flight=True)
        await made.forwarders.pop(shard).stop()
        served = made.hosts["b"]._served.pop(shard)  # it has calls to answer before it tells who waits
        sending = asyncio.create_task(one.send(b"1"))
        await until(lambda: shard in one.router.remote_calls.lines)
        pausing = asyncio.create_task(one.router.call(SetCredit(subscription=one.subscription, credit=0)))
        await asyncio.sleep(0)
        await served.close(ShardMoved(shard))
        made.owners[shard] = "a"
        made.open(shard)
        made.tell()
        await asyncio.gather(sending, pausing)
        await other.has(1)
        await other.ack_all()
        await other.send(b"2")
        await other.has(2)
        assert not one.ticket.bodies


@in_loop
async def test_messages_on_their_way_count_against_the_credit_of_their_partition(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        client = Client(made, "a", "split")
        await client.router.call(CreateQueue(name="split", config=QueueConfig(partitions=2)))
        await client.subscribe(10, in_flight=False)
        connection = made.links["b"]._connection
        assert connection is not None
        connection._transport.pause_reading()
        for node in NAMES:  # to the partition of that node
            for _ in range(20):
                await made.routers[node].call(Send(queue="split", bodies=[b"x"]))
        await client.has(5)
        giving = asyncio.create_task(client.router.call(AddCredit(subscription=client.subscription, credit=2)))
        await asyncio.sleep(0.05)
        connection._transport.resume_reading()
        await giving
        await until(lambda: len(client.ticket.bodies) >= 12)
        await asyncio.sleep(0.3)
        assert len(client.ticket.bodies) == 12, "more than there is credit for"


@in_loop
async def test_a_subscription_that_got_more_than_it_has_credit_for_moves_with_its_shard(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        client = Client(made, "a", "split")
        await client.router.call(CreateQueue(name="split", config=QueueConfig(partitions=2)))
        await client.subscribe(2, in_flight=False)
        (subscription,) = client.router.subscriptions._subscriptions.values()
        far = next(part for part in subscription.parts if made.owners[part.shard] == "b")
        far.credit, number = -5, far.number
        await asyncio.sleep(0.01)
        await made.move(far.shard)
        await until(lambda: far.number not in (0, number) or bool(client.ticket.errors))
        assert not client.ticket.errors
