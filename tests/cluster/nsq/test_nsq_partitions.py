"""NSQ on two nodes: topics have a partition at each, publishing stays where it is, and who reads gets everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from penstock.cluster.routing.placement import home_of
from penstock.cluster.routing.router import Router
from penstock.core.commands import (
    AckSequences,
    Command,
    CreateQueue,
    DescribeQueue,
    GiveBack,
    PurgeChannel,
    QueueStats,
    SetCredit,
)
from penstock.core.queues.config import QueueConfig
from penstock.protocols.nsq.server import NsqFrontEnd
from penstock.protocols.nsq.stats import read_loads
from penstock.protocols.nsq.topics import Topics
from penstock.server.auth import Credentials
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter
from penstock.server.node import Services
from penstock.server.settings import LogSettings, Settings, parse
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.routing import until
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair
from tests.protocols.nsq.clients.wire import Connection, Message, fin, req, touch

MESSAGES = 20


class NsqPair(Pair):
    """A pair with NSQ's TCP side at both nodes."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        super().__init__(directory)
        self._settings = settings
        self._front_ends = {name: NsqFrontEnd(0) for name in NAMES}
        self.services: dict[str, Services] = {}
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        await super().start()
        for name in NAMES:
            services = self.services[name] = Services(
                shard=self.routers[name],
                settings=self._settings,
                credentials=Credentials(),
                meter=RequestMeter(),
                request_log=RequestLog(LogSettings(requests="none")),
                metric_sources=[],
            )
            self.ports[name] = (await self._front_ends[name].start(services)).port

    async def stop(self) -> None:
        for name in NAMES:
            self.services[name].is_stopping = True
            await self._front_ends[name].drain(0)
        await super().stop()

    def connect(self, name: str) -> Connection:
        return Connection(("127.0.0.1", self.ports[name]))

    def topics(self, name: str) -> Topics:
        return Topics.of(self.services[name])

    def depths(self, topic: str) -> dict[str, int]:
        """How many messages of a topic each node has, as lookup services are told."""
        return {name: dict(read_loads(self.topics(name)))[topic].depth for name in NAMES}

    def left(self, topic: str) -> dict[str, int]:
        """How many messages of a topic each node has that are not done."""
        return {name: self.routers[name].identity.local_queues[topic].messages for name in NAMES}


@asynccontextmanager
async def nsq_pair(directory: Path, settings: str = "") -> AsyncIterator[NsqPair]:
    made = NsqPair(directory, parse(settings))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def _publish(pair: NsqPair, name: str, count: int = MESSAGES) -> None:
    with pair.connect(name) as client:
        for number in range(count):
            client.publish("topic", b"%s %d" % (name.encode(), number))


def _consume(pair: NsqPair, name: str, count: int, ready: int) -> list[bytes]:
    with pair.connect(name) as client:
        client.subscribe("topic", "ch", ready=ready)
        return [_take(client) for _ in range(count)]


def _take(client: Connection) -> bytes:
    message = client.message()
    client.send(fin(message))
    return message.body


@in_loop
async def test_what_is_published_at_a_node_is_stored_there(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        await asyncio.to_thread(_publish, pair, "a")
        info = await pair.routers["a"].call(DescribeQueue(name="topic"))
        assert info.config.partitions == 2, "as few as it takes for both nodes"
        assert pair.depths("topic") == {"a": MESSAGES, "b": 0}
        await asyncio.to_thread(_publish, pair, "b", 7)
        assert pair.depths("topic") == {"a": MESSAGES, "b": 7}
        assert (await pair.topics("b").stats("topic")).sent == 7
        assert (await pair.routers["b"].call(QueueStats(name="topic"))).messages == MESSAGES + 7


@in_loop
async def test_a_client_of_one_node_gets_the_messages_of_all(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        for name in NAMES:
            await asyncio.to_thread(_publish, pair, name)
        expected = sorted(b"%s %d" % (name.encode(), number) for name in NAMES for number in range(MESSAGES))
        assert sorted(await asyncio.to_thread(_consume, pair, "b", 2 * MESSAGES, 1)) == expected
        await until(lambda: pair.left("topic") == {"a": 0, "b": 0}, "the last FIN")
        for name in NAMES:
            assert (await pair.topics(name).stats("topic")).channels["ch"].acked == MESSAGES


@in_loop
async def test_a_client_that_takes_one_message_at_a_time_never_has_two(tmp_path: Path) -> None:
    """It watches both partitions while there is nothing. Then there is much, in both."""
    async with nsq_pair(tmp_path) as pair:
        for name in NAMES:
            await pair.topics(name).create_topic("topic")
        client = await asyncio.to_thread(lambda: pair.connect("a").subscribe("topic", "ch", ready=1))
        try:
            await until(lambda: _watches(pair), "watching")
            for name in NAMES:
                await asyncio.to_thread(_publish, pair, name)
            seen: list[bytes] = []
            for _ in range(2 * MESSAGES):
                message = await asyncio.to_thread(client.message)
                stats = await pair.routers["a"].call(QueueStats(name="topic"))
                assert stats.channels["ch"].leased <= 2, "one at the client, and one that is about to go back"
                more = await asyncio.to_thread(client.arriving, 0.005)
                assert not more, "it has one in flight, and wants no more"
                assert message.attempts == 1, "what went back was never there"
                seen.append(message.body)
                client.send(fin(message))
            assert len(set(seen)) == 2 * MESSAGES
            await until(lambda: _watches(pair), "watching again")
        finally:
            client.close()


def _watches(pair: NsqPair) -> bool:
    """Whether the only client has credit in every partition."""
    subscriptions: Any = pair.routers["a"].subscriptions
    return [all(part.credit for part in each.parts) for each in subscriptions._subscriptions.values()] == [True]


@in_loop
async def test_a_client_that_holds_messages_gets_as_many_as_it_allows_wherever_they_are(tmp_path: Path) -> None:
    """Shares of the credit follow the messages: who works in batches would wait for ever otherwise."""
    async with nsq_pair(tmp_path) as pair:
        await asyncio.to_thread(_publish, pair, "a", 50)
        await asyncio.to_thread(_publish, pair, "b", 9)

        def hold() -> list[bytes]:
            with pair.connect("b") as client:
                client.subscribe("topic", "ch", ready=40)
                held = client.messages(40)
                assert client.is_silent(), "that is all that it may have"
                client.send(*(fin(message) for message in held))
                return [message.body for message in held + client.messages(19)]

        assert len(set(await asyncio.to_thread(hold))) == 59


@in_loop
async def test_a_lower_rdy_counts_what_is_in_flight_wherever_it_is(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        await asyncio.to_thread(_publish, pair, "b", 20)

        def lower() -> None:
            with pair.connect("a").subscribe("topic", "ch", ready=5) as client:
                held = client.messages(5)
                client.send(b"RDY 2\n", *map(fin, held[:3]))
                assert client.is_silent(), "two are in flight"
                client.send(fin(held[3]))
                client.message()
                assert client.is_silent(), "two again"

        await asyncio.to_thread(lower)


@pytest.mark.parametrize("seed", range(3))
@in_loop
async def test_in_flight_stays_within_rdy_whatever_is_settled_how(tmp_path: Path, seed: int) -> None:
    """FIN and REQ in any mixture, of messages of both nodes, while others publish and RDY grows."""
    rng, count = random.Random(seed), 200
    finished: set[bytes] = set()

    def work(pair: NsqPair) -> None:
        held: list[Message] = []
        ready, published = 2, 0
        with pair.connect("a").subscribe("topic", "ch", ready=ready) as client:
            while len(finished) < 2 * count:
                if published < count and rng.random() < 0.3:
                    for name in NAMES:
                        with pair.connect(name) as writer:
                            for number in range(published, published + 20):
                                writer.publish("topic", b"%s %d" % (name.encode(), number))
                    published += 20
                if not held and 2 * published > len(finished):
                    held.append(client.message())
                held += client.arriving(0.002)
                assert len(held) <= ready
                assert not finished.intersection(message.body for message in held)
                rng.shuffle(held)
                chosen = [held.pop() for _ in range(rng.randrange(len(held) + 1))]
                commands = [rng.choice([fin, fin, req])(message) for message in chosen]
                finished.update(
                    message.body for message, line in zip(chosen, commands, strict=True) if line.startswith(b"FIN")
                )
                client.send(*commands)
                if rng.random() < 0.05:
                    ready += 1
                    client.send(b"RDY %d\n" % ready)
            assert client.is_silent()

    async with nsq_pair(tmp_path) as pair:
        await pair.topics("a").create_topic("topic")
        await asyncio.to_thread(work, pair)
        await until(lambda: pair.left("topic") == {"a": 0, "b": 0}, "the last FIN")


@in_loop
async def test_a_client_that_waits_gets_a_message_of_another_node_at_once(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        await pair.topics("a").create_topic("topic")
        client = await asyncio.to_thread(lambda: pair.connect("a").subscribe("topic", "ch", ready=1))
        try:
            await until(lambda: _watches(pair), "watching")
            for number in range(5):
                await asyncio.to_thread(_publish, pair, NAMES[number % 2], 1)
                assert await asyncio.to_thread(_take, client) == b"%s 0" % NAMES[number % 2].encode()
        finally:
            client.close()


def topics_at(pair: NsqPair, node: str) -> dict[str, list[str]]:
    """The topics that have messages at a node, with their channels."""
    queues = pair.topics(node).shard.identity.local_queues
    return {topic: list(queue.channels) for topic, queue in queues.items()}


@in_loop
async def test_a_topic_is_told_of_at_every_node_that_has_a_partition_of_it(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        heard: dict[str, list[tuple[str, str, str | None]]] = {name: [] for name in NAMES}
        for name in NAMES:
            pair.topics(name).listeners.append(lambda *event, to=heard[name]: to.append(event))
        await pair.topics("a").create_topic("topic")
        await pair.topics("a").create_channel("topic", "ch")
        for name in NAMES:
            assert topics_at(pair, name) == {"topic": ["ch"]}
            assert heard[name] == [("queue created", "topic", None), ("channel created", "topic", "ch")]
        moved = (home_of("topic", SHARDS) + 1) % SHARDS
        former = pair.owners[moved]
        await pair.move(moved)
        assert topics_at(pair, former) == {}
        assert heard[former][2:] == [("channel deleted", "topic", "ch"), ("queue deleted", "topic", None)]
        other = pair.owners[moved]
        assert topics_at(pair, other) == {"topic": ["ch"]} and len(heard[other]) == 2, "it has both, and had one"
        await pair.topics(former).delete_topic("topic")
        assert heard[other][2:] == [("channel deleted", "topic", "ch"), ("queue deleted", "topic", None)]


@in_loop
async def test_the_setting_says_how_many_partitions_there_are(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path, "[nsq]\ntopic_partitions = 1") as pair:
        for name in NAMES:
            await asyncio.to_thread(_publish, pair, name, 3)
        info = await pair.routers["a"].call(DescribeQueue(name="topic"))
        assert (info.config.partitions, info.messages) == (1, 6)


@in_loop
async def test_a_topic_that_another_made_keeps_its_partitions(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        await pair.routers["a"].call(CreateQueue(name="topic", config=QueueConfig(partitions=1), channels=()))
        for name in NAMES:
            await asyncio.to_thread(_publish, pair, name, 3)
        info = await pair.routers["a"].call(DescribeQueue(name="topic"))
        assert (info.config.partitions, info.messages) == (1, 6)


@in_loop
async def test_a_message_whose_time_has_run_out_comes_again_from_wherever_it_is(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        assert await _time_out(pair) == {b"a 0", b"b 0"}


@pytest.mark.parametrize("seed", [2, 5])
@in_loop
async def test_it_comes_again_if_answers_are_late_as_well(tmp_path: Path, seed: int) -> None:
    """As on a busy machine: something is on its way all the time, and what is held has to be found out even so."""
    rng, ask = random.Random(seed), Router.ask

    async def ask_late(router: Router, shard: int, command: Command) -> Any:
        reply = await ask(router, shard, command)
        if isinstance(command, SetCredit | GiveBack | AckSequences):
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.02, 0.15, 0.4]))
        return reply

    with patch.object(Router, "ask", ask_late):
        async with nsq_pair(tmp_path) as pair:
            assert await _time_out(pair) == {b"a 0", b"b 0"}


async def _time_out(pair: NsqPair) -> set[bytes]:
    """What comes a second time after nothing was done with it, of one message in each partition."""
    for name in NAMES:
        await asyncio.to_thread(_publish, pair, name, 1)

    def work() -> set[bytes]:
        again: set[bytes] = set()
        with pair.connect("a") as client:
            client.identify(msg_timeout=2_000)
            client.subscribe("topic", "ch", ready=1)
            while len(again) < len(NAMES):
                message = client.message()
                if message.attempts > 1:
                    again.add(message.body)
                    client.send(fin(message))
        return again

    return await asyncio.to_thread(work)


@in_loop
async def test_after_cls_nothing_comes_any_more(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path) as pair:
        for name in NAMES:
            await asyncio.to_thread(_publish, pair, name, 5)

        def close() -> bool:
            with pair.connect("a") as client:
                client.subscribe("topic", "ch", ready=3)
                held = client.messages(3)
                assert client.ask(b"CLS\n") == b"CLOSE_WAIT"
                client.send(*map(fin, held[:2]), touch(held[2]), req(held[2]), b"RDY 10\n", b"NOP\n")
                return client.is_silent()

        assert await asyncio.to_thread(close)


@in_loop
async def test_who_held_a_message_of_a_channel_that_was_emptied_elsewhere_is_served_on(tmp_path: Path) -> None:
    """Its node is not told that the message is gone, and must not wait until its lease would have run out."""
    async with nsq_pair(tmp_path) as pair:
        await asyncio.to_thread(_publish, pair, "b", 1)

        def hold() -> Connection:
            client = pair.connect("a")
            client.identify(msg_timeout=300_000)
            client.subscribe("topic", "ch", ready=1)
            assert client.message().body == b"b 0"
            return client

        client = await asyncio.to_thread(hold)
        try:
            await pair.routers["b"].call(PurgeChannel(queue="topic", channel="ch"))
            await asyncio.to_thread(_publish, pair, "a", 1)
            assert await asyncio.to_thread(_take, client) == b"a 0"
        finally:
            client.close()
