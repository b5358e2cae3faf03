"""Settings of one queue that are changed at two nodes at the same moment."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from penstock.cluster.routing.placement import shards_of
from penstock.core.commands import ChangeQueue, CreateQueue, DescribeQueue
from penstock.core.errors import QueueChanged
from penstock.core.queues.config import QueueConfig
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router_pair import SHARDS, Pair, pair

ROUNDS = 10


async def _tag(made: Pair, node: str, key: str) -> None:
    """As a front end does it that works a change out from what there is."""
    router = made.routers[node]
    for _ in range(100):
        tags = (await router.call(DescribeQueue(name="q"))).config.tags
        try:
            await router.call(ChangeQueue(name="q", changes={"tags": tags | {key: key}}, expected={"tags": tags}))
        except QueueChanged:
            continue
        return
    raise AssertionError("somebody else is always faster")


@pytest.mark.parametrize("partitions", [1, 4])
@in_loop
async def test_changes_that_are_worked_out_from_what_there_is_do_not_undo_each_other(
    tmp_path: Path, partitions: int
) -> None:
    async with pair(tmp_path) as made:
        await made.routers["a"].call(CreateQueue(name="q", config=QueueConfig(partitions=partitions)))
        keys = [f"{node}{number}" for number in range(ROUNDS) for node in "ab"]
        await asyncio.gather(*(_tag(made, key[0], key) for key in keys))
        info = await made.routers["a"].call(DescribeQueue(name="q"))
        assert set(info.config.tags) == set(keys)
        assert _configs(made, partitions) == [info.config] * partitions


@in_loop
async def test_partitions_agree_on_settings_that_two_nodes_have_changed(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        await made.routers["a"].call(CreateQueue(name="q", config=QueueConfig(partitions=4)))
        for first, second in itertools.pairwise(range(1, 20)):
            await asyncio.gather(
                made.routers["a"].call(ChangeQueue(name="q", changes={"lease_ms": 1_000 * first})),
                made.routers["b"].call(ChangeQueue(name="q", changes={"lease_ms": 1_000 * second, "delay_ms": first})),
            )
            configs = _configs(made, 4)
            assert len(set(map(repr, configs))) == 1, configs
            assert configs[0].delay_ms == first


@in_loop
async def test_a_change_from_settings_that_are_not_there_any_more_is_refused(tmp_path: Path) -> None:
    async with pair(tmp_path) as made:
        router = made.routers["a"]
        await router.call(CreateQueue(name="q", config=QueueConfig(lease_ms=5_000)))
        await router.call(ChangeQueue(name="q", changes={"lease_ms": 6_000}, expected={"lease_ms": 5_000}))
        with pytest.raises(QueueChanged, match="'q'"):
            await router.call(ChangeQueue(name="q", changes={"lease_ms": 7_000}, expected={"lease_ms": 5_000}))
        assert (await router.call(DescribeQueue(name="q"))).config.lease_ms == 6_000


def _configs(made: Pair, partitions: int) -> list[QueueConfig]:
    """What each partition has been told."""
    shards = shards_of("q", partitions, SHARDS)
    return [made.hosts[made.owners[shard]].served[shard].identity.queues["q"].config for shard in shards]
