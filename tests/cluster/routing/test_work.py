"""Units of work over several shards that come again, because their answers were lost."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cluster.ownership.forwarder import Forwarder
from penstock.core.commands import (
    Ack,
    AlreadyDone,
    CommitWork,
    CreateQueue,
    Once,
    QueueStats,
    Receive,
    Release,
    Send,
    Sent,
    StageWork,
)
from penstock.core.errors import StageNotFound, WorkRefused
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.chunk import PackedBodies
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import names, run, spans
from tests.cluster.routing.test_router_moves import World, world


async def take(made: World) -> list[Ack]:
    """A message from a queue of each shard."""
    for name in names():
        await made.router.call(Send(queue=name, bodies=[b"in"]))
    taken = [await made.router.call(Receive(queue=name)) for name in names()]
    return [Ack(queue=name, spans=spans(delivery)) for name, delivery in zip(names(), taken, strict=True)]


@run
async def test_a_unit_of_work_that_was_done_and_comes_again_gets_the_answer_of_the_first_time() -> None:
    async with world(0) as made:
        acks, sends = await take(made), [Send(queue=f"{names()[0]}-out", bodies=[b"out"])]
        first: list[Sent] = await made.router.call(CommitWork(acks=acks, sends=sends, once=Once("me", 1)))
        await made.router.tick()
        assert await made.router.call(CommitWork(acks=acks, sends=sends, once=Once("me", 1))) == first
        await made.router.tick()
        assert (await made.router.call(QueueStats(name=sends[0].queue))).messages == 1


@run
async def test_marked_work_that_was_done_and_comes_again_is_already_done() -> None:
    async with world(0) as made:
        acks = await take(made)
        await made.router.call(CommitWork(acks=acks, sends=[], mark=("stream", 3)))
        await made.router.tick()
        again = await made.router.call(CommitWork(acks=acks, sends=[], mark=("stream", 3)))
        assert again == AlreadyDone("stream", 3)


@run
async def test_a_unit_of_work_with_a_name_that_was_not_done_is_refused_and_can_be_tried_again() -> None:
    async with world(0) as made:
        acks = await take(made)
        await made.router.call(acks[1])
        for once in (Once("me", 1), None):
            with pytest.raises(WorkRefused):
                await made.router.call(CommitWork(acks=acks, sends=[], once=once))
        with pytest.raises(WorkRefused):
            await made.router.call(CommitWork(acks=acks, sends=[], mark=("stream", 3)))
        rest = [acks[0], acks[2]]
        assert await made.router.call(CommitWork(acks=rest, sends=[], once=Once("me", 1))) == []
        await made.router.tick()
        for name in names():
            assert (await made.router.call(QueueStats(name=name))).messages == 0


@run
async def test_staged_work_for_queues_of_every_shard_arrives_whole_or_not_at_all() -> None:
    async with world(0) as made:
        wide = CreateQueue(name="wide", config=QueueConfig(partitions=3))
        for command in (wide, *(CreateQueue(name=name) for name in names())):
            await made.router.call(command)
        sends = [Send(queue=name, bodies=PackedBodies.even(b"x" * 9_000, 1)) for name in (*names(), "wide")]
        sends.append(Send(queue="wide", bodies=PackedBodies.even(b"y" * 900, 1), groups=[str(at) for at in range(900)]))
        sends.append(Send(queue="new", bodies=[b"created by it"]))
        first = await made.router.call(StageWork(name="stream", sends=sends))
        stage = await made.router.call(StageWork(name="stream", sends=sends))
        await made.router.call(StageWork(name="stream", sends=[], stage=first.stage, drop=True))
        for name in (*names(), "wide"):
            assert (await made.router.call(QueueStats(name=name))).messages == 0
        work = CommitWork(acks=[], sends=[], mark=("stream", 3), stage=stage.stage)
        assert await made.router.call(work) == []
        assert await made.router.call(work) == AlreadyDone("stream", 3)
        await made.router.tick()
        for name, messages in (*((name, 9_000) for name in names()), ("wide", 9_900), ("new", 1)):
            assert (await made.router.call(QueueStats(name=name))).messages == messages
        with pytest.raises(StageNotFound):
            work.mark = ("stream", 4)
            await made.router.call(work)


@run
async def test_what_was_held_for_refused_work_can_be_released_at_once() -> None:
    async with world(0) as made:
        acks = await take(made)
        await made.router.call(acks[2])
        work = CommitWork(acks=acks[:2], sends=[], check_only=True)
        assert await made.router.call(work) == []
        with pytest.raises(WorkRefused):
            await made.router.call(CommitWork(acks=acks, sends=[]))
        for ack in acks[:2]:
            assert (await made.router.call(Release(queue=ack.queue, spans=ack.spans))).count == 1


@run
async def test_committed_work_cannot_be_rolled_back_while_its_acks_are_on_their_way() -> None:
    async with world(0) as made:
        acks = await take(made)
        await made.router.call(CommitWork(acks=acks, sends=[]))
        for ack in acks:
            assert (await made.router.call(Release(queue=ack.queue, spans=ack.spans))).count == 0
        await made.router.tick()
        for name in names():
            assert (await made.router.call(QueueStats(name=name))).messages == 0


@run
async def test_marked_work_that_comes_again_lets_go_of_nothing_while_its_acks_are_on_their_way() -> None:
    async with world(0) as made:
        acks = await take(made)
        for forwarder in made.router.forwarders:
            await forwarder.stop()
        work = CommitWork(acks=acks, sends=[], mark=("stream", 3))
        await made.router.call(work)
        assert await made.router.call(work) == AlreadyDone("stream", 3)
        for ack in acks:
            assert (await made.router.call(Release(queue=ack.queue, spans=ack.spans))).count == 0
        made.router.forwarders = [Forwarder(served, made.router.submit_to) for served in made.router.everywhere()]
        for forwarder in made.router.forwarders:
            forwarder.start()
        await made.router.tick()
        for name in names():
            assert (await made.router.call(QueueStats(name=name))).messages == 0


@pytest.mark.parametrize("is_named", [True, False])
@in_loop
async def test_two_clients_that_have_a_message_on_the_same_attempt_do_not_both_do_their_work_with_it(
    is_named: bool,
) -> None:
    """As after a crash before the first one's lease was written: the message was handed out again."""
    async with world(0) as made:
        task, token, other = await take(made)
        await made.router.call(Send(queue=task.queue, bodies=[b"another"]))
        another = Ack(queue=task.queue, spans=spans(await made.router.call(Receive(queue=task.queue))))
        units = [
            CommitWork(acks=acks, sends=[], once=Once("me", number) if is_named else None)
            for number, acks in enumerate(([task, token], [another, token], [token, other]), start=1)
        ]
        done = await asyncio.gather(*map(made.router.call, units), return_exceptions=True)
        assert [isinstance(each, WorkRefused) for each in done] == [False, True, True], done
        await made.router.tick()
        for ack in another, other:
            assert (await made.router.call(Release(queue=ack.queue, spans=ack.spans))).count == 1
        assert (await made.router.call(QueueStats(name=token.queue))).messages == 0
