"""Clients of NSQ at a node that has nothing of their topic: its statistics show them all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.cluster.routing.placement import home_of
from penstock.protocols.nsq.stats import Latencies, StatsReport, TopicDocument
from tests.cluster.links.linking import in_loop
from tests.cluster.nsq.test_nsq_partitions import NsqPair, nsq_pair
from tests.cluster.routing.routing import until
from tests.cluster.routing.test_router_pair import NAMES, SHARDS


async def shown(pair: NsqPair, name: str, topic: str = "") -> list[TopicDocument] | None:
    topics = pair.topics(name)
    report = StatsReport(topics, Latencies(topics), with_clients=True, topic=topic, channel="")
    if not report.has_topic(lambda _: True):
        return None
    return [each async for run in report.topics(lambda _: True) for each in run]


@in_loop
async def test_a_client_is_shown_at_its_node_although_another_one_has_the_topic(tmp_path: Path) -> None:
    async with nsq_pair(tmp_path, "[nsq]\ntopic_partitions = 1") as pair:
        owner = pair.owners[home_of("topic", SHARDS)]
        other = next(name for name in NAMES if name != owner)
        await pair.topics(owner).publish("topic", [b"x"] * 3)
        assert await shown(pair, other) == []
        assert await shown(pair, other, "topic") is None
        client = await asyncio.to_thread(lambda: pair.connect(other).subscribe("topic", "ch", ready=1))
        try:
            for asked in ("", "topic"):
                (document,) = await shown(pair, other, asked) or []
                (channel,) = document.channels
                assert (document.topic_name, document.depth, document.message_count) == ("topic", 0, 0)
                assert (channel.channel_name, channel.depth, channel.client_count) == ("ch", 0, 1)
                assert channel.clients is not None and len(channel.clients) == 1
            (document,) = await shown(pair, owner) or []
            assert (document.message_count, document.channels[0].client_count) == (3, 0)
        finally:
            client.close()
        await until(lambda: not pair.topics(other).subscribed(), "the client's end")
        assert await shown(pair, other) == []
