"""FIN, REQ and TOUCH on a topic with several partitions: they go straight to the shards, and everything is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.cluster.routing.placement import shards_of
from penstock.cluster.routing.routed import Routed
from penstock.cluster.routing.subscriptions import Part
from penstock.core.commands import (
    AckSequences,
    Command,
    CreateChannel,
    CreateQueue,
    DeleteQueue,
    Delivery,
    ExtendSequences,
    OpenSession,
    ReleaseSequences,
    Send,
    Settled,
    Subscribe,
)
from penstock.core.errors import QueueNotFound
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.routing import until
from tests.cluster.routing.test_router_pair import SHARDS, Pair

TOPIC, CHANNEL = "topic", "ch"
EACH = 5
"""Messages in each partition."""


class Consumer:
    """Who takes everything, and settles it."""

    def __init__(self, pair: Pair, session: int) -> None:
        self._router = pair.routers["a"]
        self._session = session
        self._deliveries: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)

    def settle(self) -> None:
        """All of it may leave."""

    def held_in(self, *partitions: int) -> list[int]:
        """The messages that have come from these partitions."""
        runs = [run for delivery in self._deliveries for run in delivery.runs]
        sequences = [run.first + index for run in runs for index in range(run.count)]
        return [sequence for sequence in sequences if sequence >> PARTITION_SHIFT in partitions]

    def ack(self, sequences: list[int]) -> AckSequences:
        return AckSequences(
            queue=TOPIC, channel=CHANNEL, sequences=np.array(sequences, np.int64), session=self._session, durable=False
        )

    def release(self, sequences: list[int]) -> ReleaseSequences:
        return ReleaseSequences(
            queue=TOPIC,
            channel=CHANNEL,
            sequences=np.array(sequences, np.int64),
            session=self._session,
            delay_ms=60_000,
        )

    def extend(self, sequences: list[int]) -> ExtendSequences:
        return ExtendSequences(
            queue=TOPIC,
            channel=CHANNEL,
            sequences=np.array(sequences, np.int64),
            session=self._session,
            lease_ms=60_000,
        )

    def submit(self, command: Command) -> tuple[Routed, asyncio.Future[Settled]]:
        """The call, and its reply in time."""
        replied: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()

        def settled(call: Any) -> None:
            if call.error is None:
                replied.set_result(call.reply)
            else:
                replied.set_exception(call.error)

        call = self._router.submit(command, settled)
        assert isinstance(call, Routed)
        return call, replied

    @property
    def parts(self) -> list[Part]:
        (subscription,) = self._router.subscriptions._split[self._session]
        return subscription.parts


def refused(settled: Settled) -> int:
    return sum(each.last - each.first + 1 for each in settled.refused)


@asynccontextmanager
async def topic(directory: Path) -> AsyncIterator[Pair]:
    """Two nodes, and a topic with a partition in each shard."""
    pair = Pair(directory)
    await pair.start()
    try:
        await pair.routers["a"].call(CreateQueue(name=TOPIC, config=QueueConfig(partitions=SHARDS)))
        await pair.routers["a"].call(CreateChannel(queue=TOPIC, channel=CHANNEL))
        yield pair
    finally:
        await pair.stop()


@asynccontextmanager
async def consuming(directory: Path) -> AsyncIterator[tuple[Pair, Consumer]]:
    """A consumer at node a that holds every message of the topic."""
    async with topic(directory) as pair:
        router = pair.routers["a"]
        for shard in shards_of(TOPIC, SHARDS, SHARDS):
            await router.ask(shard, Send(queue=TOPIC, bodies=[b"message"] * EACH))
        consumer = await subscribed(pair, credit=2 * SHARDS * EACH)
        await until(lambda: len(consumer.held_in(*range(SHARDS))) == SHARDS * EACH, "every message")
        yield pair, consumer


async def subscribed(pair: Pair, credit: int, lease_ms: int | None = None) -> Consumer:
    """A consumer at node a."""
    router = pair.routers["a"]
    session = await router.call(OpenSession(name="consumer"))
    consumer = Consumer(pair, session)
    subscribe = Subscribe(
        queue=TOPIC,
        channel=CHANNEL,
        credit=credit,
        lease_ms=lease_ms,
        session=session,
        ticket=consumer,
        in_flight=True,
    )
    await router.call(subscribe)
    return consumer


@pytest.mark.parametrize("partitions", [(0,), (1,), (2, 3), (0, 1, 2, 3)])
@in_loop
async def test_messages_are_settled_without_a_task_and_counted(tmp_path: Path, partitions: tuple[int, ...]) -> None:
    async with consuming(tmp_path) as (_, consumer):
        acked = consumer.held_in(*partitions)
        tasks = asyncio.all_tasks()
        call, replied = consumer.submit(consumer.ack(acked[:-1]))
        assert call.task is None and asyncio.all_tasks() == tasks
        assert [part.acknowledging for part in consumer.parts] == [int(place in partitions) for place in range(SHARDS)]
        assert (await replied).count == len(acked) - 1
        left = [0 if place in partitions else EACH for place in range(SHARDS)]
        left[acked[-1] >> PARTITION_SHIFT] = 1
        assert [(part.acknowledging, part.held) for part in consumer.parts] == [(0, held) for held in left]
        again, replied = consumer.submit(consumer.release(acked))
        assert again.task is None
        settled = await replied
        assert (settled.count, refused(settled)) == (1, len(acked) - 1), "what was settled is held no more"
        left[acked[-1] >> PARTITION_SHIFT] = 0
        assert [(part.acknowledging, part.held) for part in consumer.parts] == [(0, held) for held in left]


@in_loop
async def test_what_a_connection_settles_next_does_not_overtake_what_goes_to_several_partitions(tmp_path: Path) -> None:
    async with consuming(tmp_path) as (_, consumer):
        first, *_ = consumer.held_in(0)
        _, touched = consumer.submit(consumer.extend([first, *consumer.held_in(1, 2)]))
        _, finished = consumer.submit(consumer.ack([first]))
        assert (await touched).count == 1 + 2 * EACH
        assert (await finished).count == 1


@in_loop
async def test_a_partition_that_is_missing_is_made_and_has_nothing_to_settle(tmp_path: Path) -> None:
    async with consuming(tmp_path) as (pair, consumer):
        router, shards = pair.routers["a"], shards_of(TOPIC, SHARDS, SHARDS)
        parts, lost, kept = consumer.parts, consumer.held_in(2), consumer.held_in(3)
        await router.ask(shards[2], DeleteQueue(name=TOPIC))
        _, replied = consumer.submit(consumer.ack([*lost, *kept]))
        settled = await replied
        assert (settled.count, refused(settled)) == (EACH, EACH)
        assert [part.acknowledging for part in parts] == [0] * SHARDS
        assert (await router.ask(shards[2], Send(queue=TOPIC, bodies=[b"one more"]))).count == 1


@in_loop
async def test_a_queue_that_is_gone_has_nothing_to_settle(tmp_path: Path) -> None:
    async with consuming(tmp_path) as (pair, consumer):
        parts = consumer.parts
        for shard in reversed(shards_of(TOPIC, SHARDS, SHARDS)):  # the first one would take the others along
            await pair.routers["a"].ask(shard, DeleteQueue(name=TOPIC))
        for partitions in ((1,), (0, 1)):
            _, replied = consumer.submit(consumer.ack(consumer.held_in(*partitions)))
            with pytest.raises(QueueNotFound):
                await replied
        assert [part.acknowledging for part in parts] == [0] * SHARDS
