"""What nodes tell Prometheus of queues: each of those in its own shards, so that their sum is what there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.cluster.links import server as link_server
from penstock.cluster.links.wire import Numbered
from penstock.core.commands import CreateQueue, ListQueues, QueueStats, Receive, Send, TallyQueues
from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import QueueConfig
from penstock.server.auth import ANYBODY
from penstock.server.tally import Tally
from tests.cluster.links.linking import RETRY_TIMEOUT_S, in_loop
from tests.cluster.routing.routing import ServedPair, served_pair
from tests.cluster.routing.test_router_pair import NAMES


async def told(pair: ServedPair, node: str) -> dict[str, float]:
    """The messages of each queue, as a node's metrics have them."""

    def ask() -> str:
        with urlopen(f"http://127.0.0.1:{pair.proxies[node].port}/metrics", timeout=RETRY_TIMEOUT_S) as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(ask)).splitlines()
    prefix = 'penstock_queue_messages{queue="'
    return {
        line.removeprefix(prefix).partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(prefix)
    }


@in_loop
async def test_each_node_tells_of_the_queues_that_it_has(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        mine = {name: pair.queue_of(name) for name in NAMES}
        for queue in mine.values():
            await pair.routers["a"].call(Send(queue=queue, bodies=[b"x", b"y"]))
        for name in NAMES:
            assert await told(pair, name) == {mine[name]: 2.0}
        await pair.move_queue(mine["a"])
        assert await told(pair, "a") == {}
        assert await told(pair, "b") == {mine["a"]: 2.0, mine["b"]: 2.0}


@in_loop
async def test_each_node_tells_of_the_partitions_that_it_has(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        await pair.routers["a"].call(CreateQueue(name="wide", config=QueueConfig(partitions=4)))
        for number in range(40):
            await pair.routers["a"].call(Send(queue="wide", bodies=[b"x"], groups=[f"g{number}"]))
        found = Counter[str]()
        for name in NAMES:
            of_node = await told(pair, name)
            assert 0 < of_node["wide"] < 40
            found.update({queue: int(count) for queue, count in of_node.items()})
        assert found["wide"] == 40


@in_loop
async def test_a_node_counts_what_it_hands_on_to_others(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        here, there = pair.queue_of("a"), pair.queue_of("b")
        router = pair.routers["a"]
        for queue in (here, there):
            await router.call(Send(queue=queue, bodies=[b"x", b"y"]))
            await router.call(QueueStats(name=queue))
        (family,) = router.families()
        counts = {sample.labels["command"]: sample.value for sample in family.samples}
        assert (counts["Send"], counts["QueueStats"]) == (1, 1)
        assert "Send" not in pair.forwarded("b")


async def tallied(pair: ServedPair, node: str, *, local: bool) -> Tally:
    tally = Tally(shown_max=1)
    await tally.take(pair.routers[node], ANYBODY, local=local)
    return tally


async def fill(pair: ServedPair) -> dict[str, int]:
    """Queues with one partition and with several; some messages are leased. What it comes to."""
    router = pair.routers["a"]
    for number in range(12):
        name = f"q{number}"
        await router.call(CreateQueue(name=name, config=QueueConfig(partitions=1 + number % 3)))
        for group in range(number):
            await router.call(Send(queue=name, bodies=[b"xy"], groups=[f"g{group}"]))
        await router.call(Receive(queue=name, limit=1, wait_ms=0))
    return {"messages": 66, "bytes": 132, "quarantined": 0, "ready": 55, "leased": 11, "delayed": 0, "sent": 66}


@in_loop
async def test_any_node_adds_up_all_queues_and_counts_each_once(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        expected = await fill(pair)
        for name in NAMES:
            tally = await tallied(pair, name, local=False)
            assert {count: tally.counts[count] for count in expected} == expected
            assert tally.queues == len(await pair.routers[name].call(ListQueues())) == 12
            assert (tally.shown(), tally.not_shown) == (["q11"], 11), "its partitions are added up"


@in_loop
async def test_what_the_nodes_have_themselves_adds_up_to_all(tmp_path: Path) -> None:
    async with served_pair(tmp_path) as pair:
        expected = await fill(pair)
        of_nodes = [await tallied(pair, name, local=True) for name in NAMES]
        assert all(0 < tally.queues < 12 for tally in of_nodes)
        assert {count: sum(tally.counts[count] for tally in of_nodes) for count in expected} == expected
        assert not pair.forwarded("a")["TallyQueues"]


@in_loop
async def test_a_node_of_an_earlier_version_is_asked_for_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read the newer command, and says so."""
    decode = link_server.decode_commands  # type: ignore[attr-defined]

    def as_before(payload: bytes) -> tuple[list[Numbered], list[int]]:
        numbered, withdrawn = decode(payload)
        for index, (number, shard, command, caller) in enumerate(numbered):
            if isinstance(command, TallyQueues):
                numbered[index] = (number, shard, InvalidRequest("there is no command 'TallyQueues'"), caller)
        return numbered, withdrawn

    monkeypatch.setattr(link_server, "decode_commands", as_before)
    async with served_pair(tmp_path) as pair:
        mine = {name: pair.queue_of(name) for name in NAMES}
        for queue in mine.values():
            await pair.routers["a"].call(Send(queue=queue, bodies=[b"x", b"y"]))
        tally = await tallied(pair, "a", local=False)
        assert (tally.queues, tally.counts["messages"], tally.counts["ready"]) == (2, 4, 4)
