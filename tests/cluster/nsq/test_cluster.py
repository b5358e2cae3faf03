"""Several nodes, several lookup services, real processes, `kill -9`; clients are pynsq's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.cluster.nsq.cluster import Cluster, cluster, numbered
from tests.protocols.nsq.clients.pynsq import Reader, Writer, closing, until
from tests.protocols.nsq.clients.servers import until as until_now


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


@pytest.fixture
def four(started: Cluster) -> Cluster:
    """Tests share the processes, each with a topic of its own; one that another test left dead is started again."""
    for process in (*started.lookups, *started.nodes):
        if process.process.poll() is not None:
            process.start()  # type: ignore[attr-defined]
    return started


def reader(topic: str, *lookup_urls: str, channel: str = "ch") -> Reader:
    return Reader(topic, channel, lookupd_http_addresses=list(lookup_urls), max_in_flight=20)


async def publish(writer: Writer, topic: str, bodies: list[bytes]) -> None:
    for body in bodies:
        assert await writer.call("pub", topic, body) == b"OK"


def test_consumers_find_every_node_through_either_lookup(four: Cluster) -> None:
    for channel in ("one", "two"):
        four.create("found", channel)
    sent = numbered("first", 50) + numbered("second", 50)
    four.nodes[0].publish("found", *sent[:50])
    four.nodes[1].publish("found", *sent[50:])

    async def consume() -> None:
        first, second = (
            reader("found", url, channel=name) for url, name in zip(four.lookup_urls, ("one", "two"), strict=True)
        )
        async with closing(first, second):
            for each in (first, second):
                assert sorted(await each.got(100)) == sorted(sent)

    asyncio.run(consume())


def test_a_killed_lookup_stops_nobody_and_is_told_everything_when_it_is_back(four: Cluster) -> None:
    four.create("no-lookup", "ch")
    dead, alive = four.lookups

    async def scenario() -> None:
        writers = [Writer(node.tcp_address) for node in four.nodes]
        consumer = reader("no-lookup", *four.lookup_urls)
        async with closing(consumer, *writers):
            await until(lambda: len(consumer.reader.conns) == 2)
            for writer in writers:
                await writer.connected()
            dead.kill()
            for number, writer in enumerate(writers):
                await publish(writer, "no-lookup", numbered(f"without lookup, node {number}", 20))
            await consumer.got(40)
        newcomer = reader("no-lookup", four.lookup_urls[1])
        four.nodes[0].publish("no-lookup", b"for the newcomer 0")
        four.nodes[1].publish("no-lookup", b"for the newcomer 1")
        async with closing(newcomer):
            assert sorted(await newcomer.got(2)) == [b"for the newcomer 0", b"for the newcomer 1"]

    asyncio.run(scenario())
    four.nodes[1].post("/topic/create", topic="made-meanwhile")
    until_now(lambda: alive.producers("made-meanwhile") == {four.nodes[1].tcp_port})
    dead.start()
    until_now(lambda: dead.producers("no-lookup") == four.ports)
    until_now(lambda: dead.producers("made-meanwhile") == {four.nodes[1].tcp_port})
    assert dead.channels("no-lookup") == ["ch"]


def test_a_killed_node_stops_nobody_and_delivers_what_it_held_when_it_is_back(four: Cluster) -> None:
    four.create("no-node", "ch")
    dead, alive = four.nodes
    held = numbered("held", 100)
    dead.publish("no-node", *held)
    dead.kill()
    for lookup in four.lookups:
        until_now(lambda lookup=lookup: lookup.producers("no-node") == {alive.tcp_port})  # type: ignore[misc]

    async def scenario() -> None:
        consumer = reader("no-node", *four.lookup_urls)
        writer = Writer(alive.tcp_address)
        async with closing(consumer, writer):
            await writer.connected()
            await publish(writer, "no-node", numbered("meanwhile", 50))
            assert sorted(await consumer.got(50)) == sorted(numbered("meanwhile", 50))
            await asyncio.to_thread(dead.start)
            await until(lambda: set(held) <= set(consumer.bodies))
            await publish(writer, "no-node", [b"after"])
            await until(lambda: b"after" in consumer.bodies)

    asyncio.run(scenario())
    for lookup in four.lookups:
        until_now(lambda lookup=lookup: lookup.producers("no-node") == four.ports)  # type: ignore[misc]


def test_what_a_consumer_held_when_its_node_was_killed_comes_again(four: Cluster) -> None:
    four.create("leased", "ch")
    node = four.nodes[0]
    node.publish("leased", *numbered("held", 10))

    async def scenario() -> None:
        consumer = reader("leased", *four.lookup_urls)
        async with closing(consumer):
            with node.subscriber("leased", "ch", ready=4) as holder:
                holder.messages(4)
                await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            await until(lambda: set(numbered("held", 10)) <= set(consumer.bodies))

    asyncio.run(scenario())


def test_nothing_that_was_answered_is_lost_while_nodes_are_killed_under_traffic(four: Cluster) -> None:
    """Producers publish to whichever node answers, as NSQ's do; the consumer has to get every message that got OK."""
    four.create("traffic", "ch")
    answered: list[bytes] = []
    stop = asyncio.Event()

    async def produce(name: str) -> None:
        writer = Writer(*(node.tcp_address for node in four.nodes))
        async with closing(writer):
            number = 0
            while not stop.is_set():
                number += 1
                body = f"{name} {number}".encode()
                await until(lambda: writer.writer.conns)
                try:
                    async with asyncio.timeout(2):
                        if await writer.call("pub", "traffic", body) == b"OK":
                            answered.append(body)
                except Exception:  # whatever pynsq says of a connection that broke: it is not known to be published
                    await asyncio.sleep(0.05)

    async def scenario() -> None:
        consumer = reader("traffic", *four.lookup_urls)
        async with closing(consumer):
            producers = [asyncio.create_task(produce(f"producer{number}")) for number in range(3)]
            for node in four.nodes:
                await after(consumer, 300)
                await asyncio.to_thread(node.kill)
                await after(consumer, 300)
                await asyncio.to_thread(node.start)
                await until(lambda: len(consumer.reader.conns) == 2)
            stop.set()
            await asyncio.gather(*producers)
            await until(lambda: set(answered) <= set(consumer.bodies))

    async def after(consumer: Reader, more: int) -> None:
        """Producers and consumers go on: so many more come through."""
        wanted = len(consumer.messages) + more
        await until(lambda: len(consumer.messages) >= wanted)

    asyncio.run(scenario())
    assert len(answered) >= 1_000
