"""Owned shards: they are opened, served and given up as the controller says. No Kafka: logs in memory that fence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.cluster.base import ShardHost, ShardMoved
from penstock.cluster.membership.ledger import ReleasedRecord, ServingRecord
from penstock.cluster.ownership.ownership import Ownership, read_claim
from penstock.core.commands import Receive, Send
from penstock.server.clock import SystemClock
from penstock.server.proof import steady_s
from penstock.store.errors import CommitFailed
from tests.cluster.ownership.fenced import Log, Topic
from tests.server.bare import bodies

RETRY_TIMEOUT_S = 60.0
PROOF_S = 0.2

Scenario = Callable[["Cluster"], Coroutine[Any, Any, None]]


class Member:
    """A node as far as ownership goes."""

    def __init__(self, name: str, topic: Topic, logs: dict[int, Log], handover_s: float) -> None:
        self.host = ShardHost()
        self.opened_s: list[float] = []
        self.ownership = Ownership(
            name,
            topic.ledger,
            self.host,
            topic.publish,
            lambda shard: logs[shard].open(),
            SystemClock(),
            handover_s=handover_s,
            proof_s=PROOF_S,
        )
        topic.readers.append(self.ownership.look)

    async def send(self, shard: int, body: bytes) -> None:
        await self.host.served[shard].call(Send(queue="q", bodies=[body]))

    async def receive(self, shard: int) -> list[bytes]:
        return bodies(await self.host.served[shard].call(Receive(queue="q", limit=10, wait_ms=0)))


class Cluster:
    """Some members, one topic, a log for each shard."""

    def __init__(self, handover_s: float = RETRY_TIMEOUT_S) -> None:
        self.topic = Topic(2)
        self.logs = {0: Log(), 1: Log()}
        self.a, self.b = (Member(name, self.topic, self.logs, handover_s) for name in "ab")

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(RETRY_TIMEOUT_S):
            while not is_so():
                await asyncio.sleep(0.005)

    async def served(self, member: Member, shard: int = 0) -> None:
        await self.until(lambda: shard in member.host.served)


def run(scenario: Scenario, **options: float) -> None:
    async def whole() -> None:
        cluster = Cluster(**options)
        try:
            await scenario(cluster)
        finally:
            await cluster.a.ownership.close()
            await cluster.b.ownership.close()

    asyncio.run(whole())


def test_a_shard_that_is_given_to_a_node_is_served_and_published() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"x")
        assert cluster.topic.ledger.server_of(0) == "a"
        assert [record.epoch for record in cluster.topic.of("serving") if isinstance(record, ServingRecord)] == [1]
        assert not cluster.b.host.served

    run(scenario)


def test_a_shard_moves_with_its_messages_and_is_released_before_it_is_opened() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"x")
        cluster.topic.decide(0, "b", 2, after="a")
        await cluster.served(cluster.b)
        assert await cluster.b.receive(0) == [b"x"]
        assert not cluster.a.host.served
        kinds = [key.partition("/")[0] for key, _ in cluster.topic.written]
        assert kinds.index("released") < len(kinds) - 1 - kinds[::-1].index("serving")
        assert cluster.logs[0].fence == 2

    run(scenario)


def test_who_waits_at_the_former_owner_is_told_that_the_shard_has_moved() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"x")
        await cluster.a.receive(0)
        waiting = asyncio.ensure_future(
            cluster.a.host.served[0].call(Receive(queue="q", limit=1, wait_ms=round(RETRY_TIMEOUT_S * 1_000)))
        )
        await asyncio.sleep(0)
        cluster.topic.decide(0, "b", 2, after="a")
        with pytest.raises(ShardMoved):
            await waiting

    run(scenario)


def test_without_a_release_in_writing_the_new_owner_waits_out_the_proof() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        cluster.topic.readers.remove(cluster.a.ownership.look)  # a stands still
        began_s = steady_s()
        cluster.topic.decide(0, "b", 2)
        await cluster.served(cluster.b)
        assert steady_s() - began_s >= PROOF_S

    run(scenario)


def test_who_lets_go_while_it_waits_does_not_spare_the_next_owner_the_wait() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"x")
        cluster.topic.readers.remove(cluster.a.ownership.look)  # a is slow to hear of it
        cluster.topic.decide(0, "b", 2)
        await cluster.until(lambda: cluster.b.ownership.owned_shards[0].served)
        cluster.topic.decide(0, "b", 3)
        await cluster.served(cluster.b)
        assert await cluster.b.receive(0) == [b"x"]
        with pytest.raises(CommitFailed):
            await cluster.a.receive(0)

    run(scenario)


def test_after_a_release_in_writing_nobody_waits() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        cluster.topic.decide(0, "b", 2, after="a")
        await cluster.served(cluster.b)
        owned_shard = cluster.b.ownership.owned_shards[0]
        assert owned_shard.claimed is not None
        assert owned_shard.claimed.is_clean

    run(scenario)


def test_a_former_owner_that_does_not_release_is_not_waited_for_without_end() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        cluster.topic.readers.remove(cluster.a.ownership.look)
        cluster.topic.decide(0, "b", 2, after="a")
        await cluster.served(cluster.b)

    run(scenario, handover_s=0.1)


def test_an_owner_that_was_fenced_neither_commits_nor_hands_out_and_lets_go() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"x")
        cluster.topic.readers.remove(cluster.a.ownership.look)
        cluster.topic.decide(0, "b", 2)
        await cluster.served(cluster.b)
        assert await cluster.b.receive(0) == [b"x"]
        zombie = cluster.a.host.served[0]
        with pytest.raises(CommitFailed):
            await zombie.call(Receive(queue="q", limit=1, wait_ms=0))
        with pytest.raises(ShardMoved):
            await zombie.call(Send(queue="q", bodies=[b"y"]))
        await cluster.until(lambda: not cluster.a.host.served)
        claim = read_claim(cluster.logs[0].kept)
        assert claim is not None
        assert (claim.node, claim.epoch, claim.is_released) == ("b", 2, False)

    run(scenario)


def test_a_shard_whose_commit_failed_is_given_up_and_opened_only_in_a_new_epoch() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        cluster.logs[0].fails = True
        with pytest.raises(CommitFailed):
            await cluster.a.send(0, b"x")
        await cluster.until(lambda: not cluster.a.ownership.owned_shards)
        released = cluster.topic.of("released")[-1]
        assert isinstance(released, ReleasedRecord)
        assert "nobody knows" in released.reason
        assert cluster.topic.ledger.owner_of(0) == ""
        cluster.logs[0].fails = False
        cluster.a.ownership.look()
        assert not cluster.a.ownership.owned_shards
        cluster.topic.decide(0, "a", 2)
        await cluster.served(cluster.a)
        await cluster.a.send(0, b"y")
        assert await cluster.a.receive(0) == [b"y"]

    run(scenario)


def test_a_shard_that_cannot_be_opened_is_given_back_to_the_controller() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.logs[0].refuses = True
        cluster.topic.decide(0, "a", 1)
        await cluster.until(lambda: cluster.topic.of("released"))
        assert cluster.topic.ledger.owner_of(0) == ""
        assert not cluster.topic.of("serving")

    run(scenario)


def test_an_owner_that_was_told_long_ago_finds_a_later_claim_and_lets_go() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "b", 5)
        await cluster.served(cluster.b)
        await cluster.b.send(0, b"x")
        cluster.topic.readers.remove(cluster.b.ownership.look)
        cluster.topic.decide(0, "a", 4)  # as a stale ledger would say
        await cluster.until(lambda: any(record.node == "a" for record in cluster.topic.of("released")))  # type: ignore[union-attr]
        assert not cluster.a.host.served

    run(scenario)


def test_closing_releases_every_shard_in_writing() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        cluster.topic.decide(1, "a", 1)
        await cluster.served(cluster.a, 0)
        await cluster.served(cluster.a, 1)
        await cluster.a.ownership.close()
        for log in cluster.logs.values():
            claim = read_claim(log.kept)
            assert claim is not None
            assert claim.is_released
        assert cluster.topic.ledger.map_for("a", 2).owners == ("", "")

    run(scenario)


def test_drained_says_when_no_shard_is_left() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 1)
        await cluster.served(cluster.a)
        assert not await cluster.a.ownership.drained(0.01)
        cluster.topic.decide(0, "b", 2, after="a")
        assert await cluster.a.ownership.drained(RETRY_TIMEOUT_S)

    run(scenario)


def test_who_serves_says_so_again_when_a_late_record_of_another_is_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cluster.ownership.ownership.REPEAT_S", 0.0)

    async def scenario(cluster: Cluster) -> None:
        cluster.topic.decide(0, "a", 2)
        await cluster.served(cluster.a)
        cluster.topic.publish("serving/0", None)
        await cluster.until(lambda: cluster.topic.ledger.server_of(0) == "a" or cluster.a.ownership.look())

    run(scenario)
