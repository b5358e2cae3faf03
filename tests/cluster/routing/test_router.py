"""The router, over several shards of one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock.cluster.base import NodeAddress
from penstock.cluster.links.wire import SETTINGS_SINCE
from penstock.cluster.routing.placement import home_of
from penstock.cluster.routing.router import Router
from penstock.core.commands import (
    Ack,
    AckConsumer,
    Browse,
    CancelRedrive,
    ChangeQueue,
    CreateQueue,
    DeleteConsumer,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    EndSession,
    Extend,
    Heartbeat,
    ListQueues,
    ListRedrives,
    OpenSession,
    QueueStats,
    ReadRecords,
    Receive,
    Send,
    Span,
    StartRedrive,
)
from penstock.core.errors import (
    ConsumerNotFound,
    ForeignReceipt,
    InvalidConfig,
    InvalidName,
    QueueNotFound,
    SessionNotFound,
)
from penstock.core.queues.config import QueueConfig
from penstock.store.memory import MemoryStore
from tests.clock import ManualClock
from tests.shards import open_router

SHARDS = 3


@asynccontextmanager
async def routing(shards: int = SHARDS) -> AsyncIterator[Router]:
    stores = [MemoryStore() for _ in range(shards)]
    router = open_router(lambda number: stores[number], ManualClock(), shards)
    try:
        yield router
    finally:
        await router.close()


def names(shards: int = SHARDS) -> list[str]:
    """A queue name for each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < shards:
        found.setdefault(home_of(f"queue-{number}", shards), f"queue-{number}")
        number += 1
    return [found[shard] for shard in range(shards)]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def sync() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    sync.__name__ = test.__name__
    return sync


@run
async def test_queues_live_where_their_names_say_and_are_listed_together() -> None:
    async with routing() as router:
        for name in names():
            await router.call(CreateQueue(name=name))
            await router.call(Send(queue=name, bodies=[name.encode()]))
        for shard, name in enumerate(names()):
            assert list(router.served[shard].identity.queues) == [name]
            delivery = await router.call(Receive(queue=name))
            assert delivery.runs[0].chunk.body(0) == name.encode()
        assert await router.call(ListQueues()) == sorted(names())
        assert await router.call(ListQueues(limit=2)) == sorted(names())[:2]
        assert await router.call(ListQueues(after=sorted(names())[0])) == sorted(names())[1:]


@run
async def test_a_receive_that_waits_gets_what_comes_and_one_that_leaves_gives_back() -> None:
    async with routing() as router:
        name = names()[1]
        await router.call(CreateQueue(name=name))
        receiving = asyncio.create_task(router.call(Receive(queue=name, wait_ms=10_000)))
        await asyncio.sleep(0)
        await router.call(Send(queue=name, bodies=[b"a"]))
        assert (await receiving).count == 1
        leaving = asyncio.create_task(router.call(Receive(queue=name, wait_ms=10_000)))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await router.call(Send(queue=name, bodies=[b"b"]))
        assert (await router.call(Receive(queue=name))).count == 1


@run
async def test_a_session_is_one_over_all_shards() -> None:
    async with routing() as router:
        session = await router.call(OpenSession(name="me", ttl_ms=1_000))
        for name in names():
            await router.call(Send(queue=name, bodies=[b"a", b"b"]))
            assert (await router.call(Receive(queue=name, session=session, limit=2))).count == 2
        await router.call(Heartbeat(session=session))
        assert await router.call(EndSession(session=session)) == 2 * SHARDS
        for name in names():
            assert (await router.call(Receive(queue=name, limit=2))).count == 2
        with pytest.raises(SessionNotFound):
            await router.call(Receive(queue=names()[0], session=session))


# -- several partitions ------------------------------------------------------------------------------------------------

SPLIT = QueueConfig(partitions=3)


@run
async def test_a_queue_with_partitions_is_one_queue() -> None:
    async with routing() as router:
        info = await router.call(CreateQueue(name="q", config=SPLIT))
        assert [served.identity.queues["q"].id for served in router.served.values()] == [info.queue_id] * 3
        for number in range(30):
            await router.call(Send(queue="q", bodies=[b"%d" % number]))
        assert all(served.identity.queues["q"].messages for served in router.served.values())
        assert (await router.call(QueueStats(name="q"))).messages == 30
        assert await router.call(ListQueues()) == ["q"]
        found: list[bytes] = []
        while (delivery := await router.call(Receive(queue="q", limit=100))).runs:
            found += bodies(delivery)
            assert (await router.call(Ack(queue="q", spans=spans(delivery)))).count == delivery.count
        assert sorted(found, key=int) == [b"%d" % number for number in range(30)]
        assert (await router.call(QueueStats(name="q"))).messages == 0
        await router.call(DeleteQueue(name="q"))
        assert not any(served.identity.queues for served in router.served.values())


def bodies(delivery: Delivery) -> list[bytes]:
    return [body for run in delivery.runs for body in run.chunk.body_list(run.start, run.stop)]


def spans(delivery: Delivery) -> list[Span]:
    return [span for run in delivery.runs for span in run.spans()]


@run
async def test_groups_stay_in_one_partition_in_their_order() -> None:
    async with routing() as router:
        fifo = QueueConfig(kind="fifo", partitions=3)
        groups = [f"g{number % 7}" for number in range(70)]
        sent = await router.call(
            Send(
                queue="q.fifo",
                bodies=[b"%d" % number for number in range(70)],
                groups=list(groups),
                dedup_ids=[str(number) for number in range(70)],
                config=fifo,
            )
        )
        assert sent.count == 70 and len(set(sent.sequences)) == 70
        again = await router.call(Send(queue="q.fifo", bodies=[b"7"], groups=["g0"], dedup_ids=["7"], config=fifo))
        assert again.duplicates == [0] and again.first == sent.sequences[7]
        found: dict[int, list[int]] = {}
        while (delivery := await router.call(Receive(queue="q.fifo", limit=5))).runs:
            for body in bodies(delivery):
                found.setdefault(int(body) % 7, []).append(int(body))
            await router.call(Ack(queue="q.fifo", spans=spans(delivery)))
        assert found == {group: list(range(group, 70, 7)) for group in range(7)}


@run
async def test_a_wait_stands_in_all_partitions_and_takes_one_delivery_only() -> None:
    async with routing() as router:
        await router.call(CreateQueue(name="q", config=SPLIT))
        for _ in range(10):
            receiving = asyncio.create_task(router.call(Receive(queue="q", wait_ms=10_000)))
            await until(lambda: waiting(router) == 3)
            sends = [router.call(Send(queue="q", bodies=[b"a"])) for _ in range(3)]
            await asyncio.gather(*sends)
            delivery = await receiving
            assert delivery.count == 1
            await until(lambda: waiting(router) == 0)
            await router.call(Ack(queue="q", spans=spans(delivery)))
            for _ in range(2):
                rest = await router.call(Receive(queue="q", wait_ms=10_000))
                assert rest.runs[0].spans()[0].attempt == 1  # what was given back does not count
                await router.call(Ack(queue="q", spans=spans(rest)))
        assert (await router.call(QueueStats(name="q"))).messages == 0


def waiting(router: Router) -> int:
    queues = [served.identity.queues["q"] for served in router.served.values()]
    return sum(len(queue.channels["main"].wait_queue) for queue in queues)


async def until(claim: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if claim():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come true")


@run
async def test_a_partition_that_is_missing_is_made_by_whoever_misses_it() -> None:
    async with routing() as router:
        await router.call(CreateQueue(name="q", config=SPLIT))
        missing = next(number for number, served in router.served.items() if number != home_of("q", SHARDS))
        await router.served[missing].call(DeleteQueue(name="q"))
        for number in range(9):
            await router.call(Send(queue="q", bodies=[b"%d" % number]))
        assert router.served[missing].identity.queues["q"].messages
        assert (await router.call(QueueStats(name="q"))).messages == 9


@run
async def test_partitions_of_a_queue_that_is_gone_are_not_those_of_the_next_one() -> None:
    async with routing() as router:
        await router.call(CreateQueue(name="q", config=SPLIT))
        for _ in range(9):
            await router.call(Send(queue="q", bodies=[b"old"]))
        await router.served[home_of("q", SHARDS)].call(DeleteQueue(name="q"))  # and no further
        with pytest.raises(QueueNotFound):
            await router.call(DescribeQueue(name="q"))
        assert await router.call(ListQueues()) == []
        await router.call(CreateQueue(name="q", config=SPLIT))
        assert (await router.call(QueueStats(name="q"))).messages == 0


@run
async def test_names_that_nothing_can_have_are_refused_as_ever() -> None:
    async with routing() as router:
        for command in (Send(queue="\ud800", bodies=[b"a"]), CreateQueue(name="\ud800")):
            with pytest.raises(InvalidName):
                await router.call(command)
        await router.call(CreateQueue(name="q", config=SPLIT))
        with pytest.raises(InvalidName):
            await router.call(Send(queue="q", bodies=[b"a"], groups=["\ud800"]))


@run
async def test_dead_letters_in_partitions_are_redriven_as_one_and_stopped_as_one() -> None:
    async with routing() as router:
        await router.call(CreateQueue(name="dead", config=SPLIT))
        for number in range(12):
            await router.call(Send(queue="dead", bodies=[b"%d" % number]))
        task = await router.call(StartRedrive(queue="dead", target="back", per_second=1))
        assert task.to_move == 12
        assert len(await router.call(ListRedrives(queue="dead"))) == 3
        await router.call(CancelRedrive(task=task.task))
        assert {each.status for each in await router.call(ListRedrives(queue="dead"))} == {"cancelled"}
        await router.call(StartRedrive(queue="dead", target="back"))
        await router.tick()
        assert (await router.call(QueueStats(name="back"))).messages == 12


@run
async def test_a_consumer_reads_every_partition_and_an_offset_says_its_partition() -> None:
    async with routing() as router:
        await router.call(CreateQueue(name="q", config=SPLIT))
        for number in range(12):
            await router.call(Send(queue="q", bodies=[b"%d" % number]))
        found: list[bytes] = []
        for _ in range(20):
            records = await router.call(ReadRecords(queue="q", consumer="c", limit=2))
            if records.runs:
                found += [body for run in records.runs for body in run.chunk.body_list(run.start, run.stop)]
                await router.call(AckConsumer(queue="q", consumer="c", offset=records.next_offset))
        assert sorted(found, key=int) == [b"%d" % number for number in range(12)]
        seen = await router.call(Browse(queue="q", limit=5))
        more = await router.call(Browse(queue="q", limit=100, after=seen[-1].sequence))
        assert len(seen) == 5 and len(more) == 7
        assert [each.sequence for each in [*seen, *more]] == sorted(each.sequence for each in [*seen, *more])
        await router.call(DeleteConsumer(queue="q", consumer="c"))
        with pytest.raises(ConsumerNotFound):
            await router.call(DeleteConsumer(queue="q", consumer="c"))


@run
async def test_receipts_of_all_partitions_settle_and_those_of_another_queue_do_not() -> None:
    async with routing() as router:
        for name in ("q", "other"):
            await router.call(CreateQueue(name=name, config=SPLIT, channels=()))
            for number in range(6):
                await router.call(Send(queue=name, bodies=[b"%d" % number], channels=()))
        receipts: dict[str, list[str]] = {"q": [], "other": []}
        for name, found in receipts.items():
            while (delivery := await router.call(Receive(queue=name, limit=10))).runs:
                for span in spans(delivery):
                    found += [
                        router.identity.receipt(delivery.queue_id, delivery.channel_id, sequence, span.attempt)
                        for sequence in range(span.first, span.last + 1)
                    ]
        assert (await router.call(Extend(queue="q", spans=[], receipts=receipts["q"], lease_ms=60_000))).count == 6
        with pytest.raises(ForeignReceipt):
            await router.call(Ack(queue="q", receipts=receipts["other"]))
        assert (await router.call(Ack(queue="q", receipts=receipts["q"]))).count == 6
        assert len((await router.call(Ack(queue="q", receipts=receipts["q"]))).refused) >= 1


@run
async def test_a_setting_that_some_node_does_not_know_yet_cannot_be_set() -> None:
    async with routing() as router:
        here, known = names()[0], router.maps.current()
        nodes = {**known.nodes, "old": NodeAddress("h:1", newest=2)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(SETTINGS_SINCE, "lease_ms", 3)
            await router.call(CreateQueue(name=here, config=QueueConfig(lease_ms=1_000)))
            patch.setattr(router.maps, "_map", msgspec.structs.replace(known, nodes=nodes))
            with pytest.raises(InvalidConfig, match="lease_ms cannot be set before node 'old' is upgraded"):
                await router.call(ChangeQueue(name=here, changes={"lease_ms": 2_000}))
            with pytest.raises(InvalidConfig, match="lease_ms cannot be set before node 'old' is upgraded"):
                await router.call(CreateQueue(name=names()[1], config=QueueConfig(lease_ms=2_000)))
            await router.call(ChangeQueue(name=here, changes={"delay_ms": 2_000}))
            await router.call(CreateQueue(name=names()[1]))
