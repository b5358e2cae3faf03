"""A hundred nodes: the real controller decides, and real owners follow; only Kafka is not there."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping

from penstock.cluster.membership.kafka import kafka_controller
from penstock.cluster.membership.ledger import NodeRecord, Record
from penstock.store.journal.kafka_options import KafkaOptions
from tests.cluster.ownership.fenced import Log, Topic
from tests.cluster.ownership.test_ownership import RETRY_TIMEOUT_S, Member

NODES, SHARDS, KILLED = 100, 200, 10


class Hundred:
    """Nodes that have joined, and the controller of them."""

    def __init__(self) -> None:
        self.topic = Topic(SHARDS)
        logs = {shard: Log() for shard in range(SHARDS)}
        self.members = {f"n{at:02}": Member(f"n{at:02}", self.topic, logs, RETRY_TIMEOUT_S) for at in range(NODES)}
        readers, self.topic.readers = self.topic.readers, []
        for name in self.members:
            self.topic.publish(f"node/{name}", NodeRecord(incarnation="1", link="127.0.0.1:9"))
        self.topic.readers = readers
        options = KafkaOptions("127.0.0.1:9", "nobody", "nobody")
        self.controller = kafka_controller(options, "n00", self.topic.ledger, 10.0, cool_down_s=0.0)
        self.controller._write = self._write  # type: ignore[method-assign]
        self.alive = set(self.members)
        self.decisions = 0

    def _write(self, records: Mapping[str, Record]) -> None:
        self.decisions += 1
        for key, record in records.items():
            self.topic.publish(key, record)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Have the controller look again and again, with everybody heard who is alive."""
        async with asyncio.timeout(RETRY_TIMEOUT_S * 2):
            while not is_so():
                now_s = time.monotonic()
                for name in self.alive:
                    self.controller.liveness.heard(name, now_s)
                self.controller._decide(now_s)
                await asyncio.sleep(0.02)

    def is_settled(self) -> bool:
        ledger = self.topic.ledger
        servers = [ledger.server_of(shard) for shard in range(SHARDS)]
        return all(ledger.is_settled(shard) for shard in range(SHARDS)) and self.alive.issuperset(servers)


def test_a_hundred_nodes_share_shards_and_take_over_what_dead_ones_had() -> None:
    async def main() -> None:
        hundred = Hundred()
        try:
            await hundred.until(hundred.is_settled)
            counts = Counter(hundred.topic.ledger.server_of(shard) for shard in range(SHARDS))
            assert set(counts.values()) == {SHARDS // NODES}
            for shard in range(SHARDS):
                assert [name for name, it in hundred.members.items() if shard in it.host.served] == [
                    hundred.topic.ledger.server_of(shard)
                ]
            killed = set(random.Random(7).sample(sorted(hundred.alive - {"n00"}), KILLED))
            for name in killed:
                hundred.topic.readers.remove(hundred.members[name].ownership.look)
            hundred.alive -= killed
            hundred.controller.liveness.dead_links = frozenset(killed)
            orphans = {shard for shard in range(SHARDS) if hundred.topic.ledger.server_of(shard) in killed}
            before, decided = dict(hundred.topic.ledger.shards), hundred.decisions
            await hundred.until(hundred.is_settled)
            moved = {shard for shard, record in hundred.topic.ledger.shards.items() if record != before[shard]}
            assert moved == orphans, "nothing else moves"
            assert hundred.decisions - decided <= 2, "all of them at once"
            assert max(Counter(hundred.topic.ledger.server_of(shard) for shard in range(SHARDS)).values()) <= 3
        finally:
            for member in hundred.members.values():
                await member.ownership.close()

    asyncio.run(main())
