"""Clients that go straight to the owners of their queues, while shards move and connections break."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.connecting import connect_async
from penstock.client.remote import routed as routed_module
from penstock.client.remote.address import TransportName
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.routing.placement import home_of
from penstock.core.errors import InvalidRequest, NotSent
from penstock.server.clock import SystemClock
from penstock.server.settings import parse
from penstock.server.shard import Shard
from penstock.store.memory import MemoryStore
from tests.client.serving import serve
from tests.cluster.links.linking import in_loop
from tests.cluster.nodes import SHARDS as KAFKA_SHARDS
from tests.cluster.nodes import ThreadNode, settings_text, thread_node
from tests.cluster.nodes import until as eventually
from tests.cluster.routing.routing import goes_to, routed, served_pair, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.shards import brokers
from tools.kafka import KafkaCluster


@pytest.fixture
def quick_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is asked for all the time."""
    monkeypatch.setattr(routed_module, "REFRESH_S", 0.1)


def _bodies(messages: Any) -> list[bytes]:
    return [bytes(message.body) for message in messages]


def _has(found: list[bytes], count: int) -> bool:
    return len(found) >= count


def _is_pushed_by(ps: Any, port: int) -> bool:
    """Whether a listener's messages come from one node, and no other."""
    pushing = [member.address.port for member in routed(ps)._members.values() if member._streams]
    return pushing == [port]


async def _drained(ps: Any, queue: str) -> list[bytes]:
    found: list[bytes] = []
    while batch := await ps.queue(queue).receive_batch(max=100, wait=0):
        found += batch.bodies
        await batch.ack()
    return found


@in_loop
async def test_commands_go_to_the_owner_of_their_queue(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        here, there = pair.queue_of("a"), pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            for queue in (here, there):
                await ps.create_queue(queue)
            await goes_to(ps, pair, there, "b")
            before = {name: pair.done(name) for name in "ab"}
            for queue in (here, there):
                for number in range(10):
                    await ps.queue(queue).send(b"%d" % number)
                assert await _drained(ps, queue) == [b"%d" % number for number in range(10)]
            for name in "ab":
                done = pair.done(name) - before[name]
                assert done["Send"] == 10 and done["Ack"] == done["Receive"] - 1, (name, done)
            assert sorted(await ps.queues()) == sorted([here, there])
            assert [address.port for address in routed(ps).nodes] == [pair.proxies[name].port for name in "ab"]


@in_loop
async def test_without_being_asked_the_client_has_one_connection(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        async with connect_async(pair.url("a")) as ps:
            await ps.create_queue(pair.queue_of("b"))
            await ps.queue(pair.queue_of("b")).send(b"x")
        assert pair.proxies["b"].connections == 0


@in_loop
async def test_a_queue_with_several_partitions_goes_through_the_first_node(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        split, whole = pair.queue_of("b"), pair.queue_of("b", 1)
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(split, partitions=2)
            await ps.create_queue(whole)
            await goes_to(ps, pair, whole, "b")
            for number in range(6):
                await ps.queue(split).send(b"%d" % number)
            assert routed(ps).owner(split).port == pair.proxies["a"].port
            assert sorted(await _drained(ps, split)) == [b"%d" % number for number in range(6)]
            assert "Send" not in pair.done("b")


@in_loop
async def test_a_queue_that_moves_is_followed_and_no_command_overtakes_another(
    tmp_path: Path, quick_maps: None
) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            sent: list[asyncio.Task[Any]] = []
            is_over = False

            async def send() -> None:
                while not is_over:
                    for _ in range(5):
                        sent.append(asyncio.create_task(ps.queue(queue).send(b"%d" % len(sent), group="g")))
                        sent.append(asyncio.create_task(ps.queue(queue).send(b"%d" % len(sent))))
                    await asyncio.sleep(0.002)

            sending = asyncio.create_task(send())
            for node in ("b", "a", "b"):
                if pair.owner_of(queue) != node:
                    await pair.move_queue(queue)
                await goes_to(ps, pair, queue, node)
            is_over = True
            await sending
            replies = await asyncio.gather(*sent)
            sequences = [reply.sequence for reply in replies]
            assert sequences == sorted(sequences)
            found = await _drained(ps, queue)
            assert sorted(found, key=int) == [b"%d" % number for number in range(len(sent))]


@in_loop
async def test_a_command_for_the_new_owner_waits_for_those_that_the_old_one_has_not_answered(
    tmp_path: Path, quick_maps: None
) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            pair.proxies["b"].free.clear()
            first = asyncio.create_task(ps.queue(queue).send(b"1"))
            await asyncio.sleep(0)
            await pair.move_queue(queue)
            newest = pair.maps["a"].current().version
            await until(lambda: _map_version(ps) == newest, "the new map")
            second = asyncio.create_task(ps.queue(queue).send(b"2"))
            await asyncio.wait((second,), timeout=0.3)  # time enough to overtake, if it could
            pair.proxies["b"].free.set()
            assert (await first).sequence < (await second).sequence
            assert await _drained(ps, queue) == [b"1", b"2"]
            assert routed(ps).owner(queue).port == pair.proxies["a"].port


def _map_version(ps: Any) -> int:
    partitions = routed(ps)._partitions
    return 0 if partitions is None else partitions.version


@in_loop
async def test_a_command_whose_answer_is_lost_is_done_once_at_the_new_owner(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            pair.proxies["b"].answers_lost = True
            sending = [asyncio.create_task(ps.queue(queue).send(b"%d" % number)) for number in range(5)]
            batch = asyncio.create_task(ps.queue(queue).send_many([b"5", b"6"]))
            await until(lambda: pair.done("b")["Send"] >= 2, "the sends' arrival")
            await pair.move_queue(queue)
            await pair.proxies["b"].cut()
            await asyncio.gather(*sending, batch)
            assert sorted(await _drained(ps, queue)) == [b"%d" % number for number in range(7)]
            assert pair.done("a")["Send"] >= 2, "they were sent again, at the other node"


@pytest.mark.parametrize("lost", ["a", "b"])
@in_loop
async def test_a_node_that_is_gone_is_done_without(tmp_path: Path, lost: str) -> None:
    """Whether it is the one that was named, or another."""
    async with served_pair(tmp_path) as pair:
        queues = [pair.queue_of("a"), pair.queue_of("b")]
        left = "b" if lost == "a" else "a"
        async with connect_async(pair.url("a"), routing="direct") as ps:
            for queue in queues:
                await ps.create_queue(queue)
            for queue, node in zip(queues, "ab", strict=True):
                await goes_to(ps, pair, queue, node)
            awaited = queues[lost == "b"]
            waiting = asyncio.create_task(ps.queue(awaited).receive(max=1, wait=50))
            await until(lambda: pair.receivers(awaited), "a wait")
            await pair.proxies[lost].stop()
            for queue in queues:
                await ps.queue(queue).send(b"after", attributes={"to": queue})
            assert _bodies(await waiting) == [b"after"]
            assert sorted(await ps.queues()) == sorted(queues)
            assert [address.port for address in routed(ps).nodes] == [pair.proxies[left].port]


@in_loop
async def test_a_node_that_cannot_be_reached_is_reached_through_the_first(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        await pair.proxies["b"].stop()
        async with connect_async(pair.url("a"), routing="direct") as ps:
            for number in range(20):
                await ps.queue(queue).send(b"%d" % number)
                await asyncio.sleep(0)
            assert len(await _drained(ps, queue)) == 20
            await pair.proxies["b"].start()
            routed(ps)._refresh_soon()
            await goes_to(ps, pair, queue, "b")


@in_loop
async def test_a_stranger_at_the_address_of_a_node_is_told_nothing(tmp_path: Path) -> None:
    """A node may say an address (0.0.0.0, say) at which the client finds somebody else."""
    stranger = await serve(Shard(MemoryStore, SystemClock(), lambda: bytes(range(64, 128))))
    try:
        async with served_pair(tmp_path) as pair:
            pair.proxies["b"].lead_to(stranger.port)
            queue = pair.queue_of("b")
            async with connect_async(pair.url("a"), routing="direct") as ps:
                await ps.create_queue(queue)
                while not routed(ps)._unreachable:
                    await ps.queue(queue).send(b"x")
                assert [address.port for address in routed(ps).nodes] == [pair.proxies["a"].port]
                assert pair.proxies["b"].connections
            assert not brokers(stranger.shard)[0].queues
    finally:
        await stranger.stop()


@in_loop
async def test_sessions_and_units_of_work_work(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        one, two = pair.queue_of("b"), pair.queue_of("a")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            for queue in (one, two):
                await ps.create_queue(queue)
            await goes_to(ps, pair, one, "b")
            await ps.queue(one).send_many([b"1", b"2", b"3"])
            async with await ps.session("worker") as session:
                held = await session.queue(one).receive(max=1, wait=0)
                assert _bodies(held) == [b"1"]
                await session.heartbeat()
            async with ps.unit_of_work() as work:
                taken = await work.take(one)
                assert taken is not None and bytes(taken.body) == b"1", "the end of the session has released it"
                work.put(two, b"from 1")
                work.put(one, b"4")
                await work.commit()
            async with ps.unit_of_work() as work:
                await work.take(one)
                work.put(two, b"never")
                await work.rollback()
            found = await ps.queue(two).receive(max=9, wait=10)
            assert _bodies(found) == [b"from 1"]
            assert sorted(await _drained(ps, one)) == [b"2", b"3", b"4"]


@in_loop
async def test_a_listener_follows_its_queue_and_is_handed_everything_once(tmp_path: Path, quick_maps: None) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            heard: list[bytes] = []

            async def handle(message: Any) -> None:
                heard.append(bytes(message.body))
                await asyncio.sleep(0)

            async with await ps.listen(queue, handle, workers=4):
                sent = 0
                for node in ("b", "a", "b"):
                    if pair.owner_of(queue) != node:
                        await pair.move_queue(queue)
                    await goes_to(ps, pair, queue, node)
                    for _ in range(50):
                        await ps.queue(queue).send(b"%d" % sent)
                        sent += 1
                    await until(partial(_has, heard, sent), f"all messages at {node}")
                    await until(partial(pair.is_empty, queue), "all acks")  # else the move may hand some out again
                    await until(partial(_is_pushed_by, ps, pair.proxies[node].port), f"a push by {node}")
            assert sorted(heard, key=int) == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("lost", ["a", "b"])
@in_loop
async def test_a_listener_whose_connection_is_lost_goes_on_through_another_node(tmp_path: Path, lost: str) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of(lost)
        left = "b" if lost == "a" else "a"
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, lost)
            heard: set[bytes] = set()

            async def handle(message: Any) -> None:
                heard.add(bytes(message.body))

            async with await ps.listen(queue, handle):
                await ps.queue(queue).send(b"before")
                await until(lambda: heard == {b"before"}, "the first message")
                await pair.proxies[lost].stop()
                await goes_to(ps, pair, queue, left)
                await ps.queue(queue).send(b"after")
                await until(lambda: heard == {b"before", b"after"}, "the second message")


@in_loop
async def test_closing_ends_waits_streams_and_connections(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            await goes_to(ps, pair, queue, "b")
            waiting = asyncio.create_task(ps.queue(queue).receive(max=1, wait=50))
            await until(partial(pair.receivers, queue), "a wait")
            given_up = asyncio.create_task(ps.queue(queue).receive(max=1, wait=50))
            await until(lambda: pair.receivers(queue) == 2, "another wait")
            given_up.cancel()
            await until(lambda: pair.receivers(queue) == 1, "the end of a wait that was given up")
        assert await waiting == []
        with pytest.raises(NotSent):
            await ps.queue(queue).send(b"too late")
        await until(lambda: not any(proxy._writers for proxy in pair.proxies.values()), "the end of all connections")


@in_loop
async def test_connecting_that_is_called_off_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never_tells(address: Any, options: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(routed_module, "fetch_partitions", never_tells)
    async with served_pair(tmp_path) as pair:

        async def connect() -> None:
            await connect_async(pair.url("a"), routing="direct")

        connecting = asyncio.create_task(connect())
        await asked.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
        await until(lambda: not pair.proxies["a"]._writers, "the end of the connection")


class _Hearer:
    """Has room for ten messages."""

    def take(self, delivery: Any) -> bool:
        return True

    def room(self) -> int:
        return 10

    def ask(self) -> None: ...


@in_loop
async def test_a_stream_that_goes_on_elsewhere_leaves_no_push_for_when_its_node_comes_back(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        queue = pair.queue_of("b")
        async with connect_async(pair.url("a"), routing="direct") as ps:
            await ps.create_queue(queue)
            caller = routed(ps)
            home = caller._home
            stream: Any = caller.open_stream(queue, "main", None, _Hearer())
            await pair.proxies["a"].stop()
            await until(lambda: not home.is_linked, "the loss of the first connection")
            stream.top_up()
            await goes_to(ps, pair, queue, "b")
            stream.top_up()
            await until(lambda: pair.receivers(queue), "a push")
            await pair.proxies["a"].start()
            await until(lambda: home.is_linked, "the first connection")
            await ps.queue(pair.queue_of("a")).send(b"x")
            assert pair.receivers(queue) == 1
            await stream.close()


@pytest.mark.parametrize("transport", ["websocket", "long_poll", "poll"])
@in_loop
async def test_nothing_is_lost_or_doubled_while_shards_move_and_connections_break(
    tmp_path: Path, quick_maps: None, transport: TransportName
) -> None:
    chance = random.Random(5)
    async with served_pair(tmp_path) as pair:
        queues = [pair.queue_of(owner, number) for owner in "ab" for number in range(2)]
        async with connect_async(pair.url("a"), routing="direct", transport=transport) as ps:
            for queue in queues:
                await ps.create_queue(queue)
            sent: dict[str, int] = dict.fromkeys(queues, 0)
            is_over = False

            async def send(queue: str) -> None:
                while not is_over:
                    await asyncio.gather(*(ps.queue(queue).send(b"%d" % (sent[queue] + each)) for each in range(3)))
                    sent[queue] += 3

            tasks = [asyncio.create_task(send(queue)) for queue in queues]
            for _ in range(25):
                await asyncio.sleep(0.02)
                deed = chance.choice(["move", "cut", "lose"])
                proxy = pair.proxies[chance.choice("ab")]
                if deed == "move":
                    await pair.move(chance.randrange(4))
                elif deed == "cut":
                    await proxy.cut()
                else:
                    proxy.answers_lost = True
                    await asyncio.sleep(0.01)
                    await proxy.cut()
                    proxy.answers_lost = False
            is_over = True
            await asyncio.gather(*tasks)
            for queue in queues:
                found = await _drained(ps, queue)
                assert sorted(found, key=int) == [b"%d" % number for number in range(sent[queue])], queue


def test_a_routing_that_is_none_is_refused() -> None:
    for url, options in [
        ("penstock://h?routing=magic", {}),
        ("penstock://h?speed=high", {}),
        ("penstock://h", {"routing": "magic"}),
        ("penstock://h", {"routing": "direct", "prefetch": 10}),
    ]:
        with pytest.raises(InvalidRequest):
            penstock.connect(url, **options)  # type: ignore[arg-type]


class Sending:
    """Sends numbered messages until they go where they should."""

    def __init__(self, ps: Any, queue: str) -> None:
        self._ps = ps
        self._queue = queue
        self.sent = 0

    def goes_to(self, node: ThreadNode) -> bool:
        """Send one more; whether it went straight to a node."""
        self._ps.queue(self._queue).send(b"%d" % self.sent)
        self.sent += 1
        return _url(node).endswith(f":{self._ps._caller._remote.owner(self._queue).port}")


def _url(node: ThreadNode) -> str:
    return node.node.maps.current().nodes[node.name].urls["http"]


@pytest.mark.parametrize("transport", ["websocket", "long_poll", "poll"])
def test_threads_follow_a_queue_from_node_to_node_of_a_cluster_on_kafka(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transport: TransportName,
) -> None:
    """Because of refusals alone: the map is not asked for otherwise."""
    monkeypatch.setattr(routed_module, "REFRESH_S", 3_600.0)
    name = unique_prefix("routing")
    with thread_node(kafka, name, "a", tmp_path) as a, thread_node(kafka, name, "b", tmp_path) as b:
        eventually(lambda: len(a.own_shards) == len(b.own_shards) == KAFKA_SHARDS // 2, "an even share")
        shard = b.own_shards[0]
        queue = next(each for each in map(str, range(99)) if home_of(each, KAFKA_SHARDS) == shard)
        wishes = Inspection(parse(settings_text(kafka, name, "cli", tmp_path, session_s=3.0)).kafka_options())
        heard: list[bytes] = []
        url = _url(a).replace("http", "penstock")
        with penstock.connect(url, routing="direct", transport=transport) as ps:
            ps.create_queue(queue)
            sending = Sending(ps, queue)
            with ps.listen(queue, lambda message: heard.append(bytes(message.body)), workers=2):
                for node in (b, a, b):
                    wishes.move(shard, node.name)
                    eventually(partial(sending.goes_to, node), f"commands at {node.name}")
                eventually(lambda: len(set(heard)) >= sending.sent, "all messages")
        assert set(heard) == {b"%d" % number for number in range(sending.sent)}
