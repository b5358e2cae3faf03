"""What nodes tell Prometheus of queues: each of those in its own shards, so that their sum is what there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from urllib.request import urlopen

from penstock.core.commands import CreateQueue, QueueStats, Send
from penstock.core.config import QueueConfig
from tests.cluster.linking import PATIENCE_S, in_loop
from tests.cluster.routing import ServedPair, served_pair
from tests.cluster.test_router_pair import NAMES


async def told(pair: ServedPair, node: str) -> dict[str, float]:
    """The messages of each queue, as a node's metrics have them."""

    def ask() -> str:
        with urlopen(f"http://127.0.0.1:{pair.proxies[node].port}/metrics", timeout=PATIENCE_S) as answer:
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
