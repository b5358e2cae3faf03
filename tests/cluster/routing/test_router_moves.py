"""The router while shards move, links break, and nodes stop; and subscriptions and work over several shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from penstock.cluster.base import LinkBroken, ShardMoved, ShardUnserved
from penstock.cluster.routing.placement import home_of
from penstock.core.commands import (
    Ack,
    AckSequences,
    AddCredit,
    CancelWait,
    Command,
    CommitWork,
    CreateQueue,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    LastMark,
    Once,
    OpenSession,
    PauseChannel,
    PurgeQueue,
    QueueStats,
    Receive,
    Send,
    SetCredit,
    Subscribe,
)
from penstock.core.errors import MessageTooLarge, QueueNotFound, SessionNotFound, WorkRefused
from penstock.core.queues.config import QueueConfig
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard, ShardClosed
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.store.memory import MemoryStore
from tests.cluster.routing.test_router import SHARDS, bodies, names, run, spans, until
from tests.server.stores import Gate, TroubledStore
from tests.shards import ENTROPY, WatchedRouter, open_router
from tests.store.in_memory import twin_of


class World:
    """A router over three shards, of which one is here; shards can be moved."""

    def __init__(self, near: list[int], retry_timeout_s: float = 15.0) -> None:
        self.stores = [MemoryStore() for _ in range(SHARDS)]
        self.clock = SystemClock()
        self.router: WatchedRouter = open_router(
            lambda number: self.stores[number], self.clock, SHARDS, near=near, retry_timeout_s=retry_timeout_s
        )

    async def release(self, shard: int) -> None:
        """Nobody serves a shard."""
        host = self.router._host if shard in self.router.served else self.router.far
        await host.release(shard)  # type: ignore[attr-defined]

    def take(self, shard: int, *, here: bool) -> None:
        """Serve a shard again, and tell the router."""
        served = AsyncShard(Shard(lambda: self.stores[shard], self.clock, lambda: ENTROPY, shard, SHARDS))
        (self.router._host if here else self.router.far).add(shard, served)  # type: ignore[attr-defined]
        self.tell()

    def tell(self) -> None:
        router = self.router
        owner = {**dict.fromkeys(router.far.served, "there"), **dict.fromkeys(router.served, "here")}
        router.maps.change(*(owner.get(shard, "") for shard in range(SHARDS)))  # type: ignore[attr-defined]


@asynccontextmanager
async def world(*near: int, retry_timeout_s: float = 15.0) -> AsyncIterator[World]:
    made = World(list(near), retry_timeout_s)
    try:
        yield made
    finally:
        await made.router.close()


@run
async def test_commands_for_a_shard_that_nobody_serves_wait_until_somebody_does() -> None:
    async with world(0) as made:
        for shard in (0, 1):
            name = names()[shard]
            await made.router.call(CreateQueue(name=name))
            await made.release(shard)
            made.tell()
            sending = asyncio.create_task(made.router.call(Send(queue=name, bodies=[b"a"])))
            await asyncio.sleep(0.05)
            assert not sending.done()
            made.take(shard, here=shard == 1)  # the other way round than before
            assert (await sending).count == 1
            assert (await made.router.call(Receive(queue=name))).count == 1


@run
async def test_what_nobody_serves_for_too_long_is_refused_and_was_not_done() -> None:
    async with world(0, retry_timeout_s=0.1) as made:
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        await made.release(1)
        made.tell()
        with pytest.raises(ShardUnserved):
            await made.router.call(Send(queue=name, bodies=[b"a"]))
        made.take(1, here=False)
        assert (await made.router.call(QueueStats(name=name))).messages == 0


@run
async def test_a_receive_that_waits_moves_with_its_shard_and_keeps_its_time() -> None:
    async with world(0) as made:
        for shard, here in ((0, True), (1, False)):
            name = names()[shard]
            await made.router.call(CreateQueue(name=name))
            receiving = asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=30_000)))
            brief = asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=300)))
            queue = made.router.everywhere()[shard].identity.queues[name]
            await until(lambda queue=queue: len(queue.channels["main"].wait_queue) == 2)  # type: ignore[misc]
            await made.release(shard)
            made.tell()
            made.take(shard, here=not here)
            assert (await brief).count == 0
            await made.router.call(Send(queue=name, bodies=[b"a"]))
            assert (await receiving).count == 1


@run
async def test_a_receive_keeps_its_time_although_its_shard_is_looked_for_several_times() -> None:
    async with world(0) as made:
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        began_ms = made.clock.now_ms()
        receiving = asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=3_000)))
        await until(lambda: len(made.router.pending) == 1)
        await made.release(1)
        made.tell()
        await until(lambda: any(call.tries > 5 for call in made.router.remote_calls.displaced))
        made.take(1, here=False)
        assert (await receiving).count == 0
        assert 2_990 <= made.clock.now_ms() - began_ms < 20_000


@run
async def test_a_receive_of_a_connection_outlives_a_move_that_takes_several_tries() -> None:
    async with world(0) as made:
        name = names()[1]
        session = await made.router.call(OpenSession(name="a connection", bound=True))
        await made.router.call(Send(queue=name, bodies=[b"x"]))
        await made.router.call(Receive(queue=name, session=session))  # it is open in the shard now
        await made.release(1)
        made.tell()
        receiving = asyncio.create_task(made.router.call(Receive(queue=name, session=session, wait_ms=30_000)))
        await until(lambda: any(call.tries > 3 for call in made.router.remote_calls.displaced))
        made.take(1, here=False)  # whoever opens a shard ends the sessions that were connections
        assert bodies(await receiving) == [b"x"]


@run
async def test_a_receive_that_leaves_while_its_shard_moves_takes_nothing() -> None:
    async with world(0) as made:
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        await made.release(1)
        made.tell()
        answers: list[Call] = []
        call = made.router.submit(Receive(queue=name, wait_ms=30_000), answers.append)
        await asyncio.sleep(0.05)
        made.router.withdraw(call)
        made.take(1, here=False)
        await made.router.call(Send(queue=name, bodies=[b"a"]))
        assert (await made.router.call(Receive(queue=name))).count == 1
        assert not answers


@run
async def test_receives_at_another_node_that_were_given_up_are_forgotten() -> None:
    async with world(0) as made:
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        await made.router.call(CreateQueue(name="split", config=QueueConfig(partitions=SHARDS)))
        waiting = [
            asyncio.create_task(made.router.call(Receive(queue=queue, wait_ms=30_000))) for queue in (name, "split")
        ]
        await until(lambda: len(made.router.pending) == 1 + SHARDS)  # the split one is in two shards there
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: not made.router.pending)


@run
async def test_what_a_receive_that_has_moved_here_got_when_it_was_given_up_goes_back_once() -> None:
    async with world(0) as made:
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        leaving = asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=30_000)))
        await until(lambda: bool(made.router.pending))
        await made.release(1)
        store, gate = TroubledStore(), Gate()
        store.inner = made.stores[1]
        opened = Shard(store.open, made.clock, lambda: ENTROPY, 1, SHARDS)
        made.router._host.add(1, AsyncShard(opened, commit_in_thread=True))  # type: ignore[attr-defined]
        made.tell()
        line = opened.broker.queues[name].channels["main"].wait_queue
        await until(lambda: len(line) == 1)
        others = []
        for wait_ms in (30_000, 500):
            others.append(asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=wait_ms))))
            await until(lambda: len(line) == 1 + len(others))
        store.on_commit = gate.hold
        sending = asyncio.create_task(made.router.call(Send(queue=name, bodies=[b"a"])))
        await until(gate.reached.is_set)  # the first has it, and will hear of it after the commit
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gate.open()
        await sending
        assert [bodies(await each) for each in others] == [[b"a"], []]


class Breaking:
    """A place that does what it is told, and whose answers get lost."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.broken = 0
        """How many answers get lost from now on."""
        self.of_kind: type[Command] = Command
        self.before_it_breaks: Any = None
        """What somebody else does, after the command, and before its answer is lost."""

    def submit(
        self, shard: int, command: Any, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        def settled(call: Call) -> None:
            if self.broken and isinstance(command, self.of_kind):
                self.broken -= 1
                call.reply, call.error = None, LinkBroken("the link broke")
                if self.before_it_breaks is not None:
                    meanwhile, self.before_it_breaks = self.before_it_breaks, None
                    self._inner.submit(shard, meanwhile, lambda _: on_settled(call))
                    return
            on_settled(call)

        return self._inner.submit(shard, command, settled, caller)  # type: ignore[no-any-return]

    def withdraw(self, call: CallbackCall) -> None:
        self._inner.withdraw(call)


@run
async def test_only_what_may_be_done_twice_is_sent_again_when_a_link_breaks() -> None:
    async with world(0) as made:
        breaking = Breaking(made.router.far)
        made.router.remote_calls._remote = lambda _: breaking  # type: ignore[assignment]
        name = names()[1]
        await made.router.call(CreateQueue(name=name))
        breaking.broken = 1
        with pytest.raises(LinkBroken):
            await made.router.call(Send(queue=name, bodies=[b"a"]))
        breaking.broken = 1
        await made.router.call(Send(queue=name, bodies=[b"b"], once=Once("me", 1)))
        breaking.broken = 1
        assert (await made.router.call(QueueStats(name=name))).messages == 2


@run
async def test_a_purge_whose_answer_was_lost_spares_what_was_sent_meanwhile() -> None:
    async with world(0) as made:
        breaking = Breaking(made.router.far)
        made.router.remote_calls._remote = lambda _: breaking  # type: ignore[assignment]
        name = names()[1]
        await made.router.call(Send(queue=name, bodies=[b"old", b"older"]))
        breaking.broken, breaking.of_kind = 1, PurgeQueue
        breaking.before_it_breaks = Send(queue=name, bodies=[b"new"])
        assert await made.router.call(PurgeQueue(name=name)) == 2
        assert (await made.router.call(QueueStats(name=name))).messages == 1
        assert not made.router._unanswered, "the other node may forget the reply"


@run
async def test_a_pause_whose_answer_was_lost_does_not_undo_a_resume() -> None:
    async with world(0) as made:
        breaking = Breaking(made.router.far)
        made.router.remote_calls._remote = lambda _: breaking  # type: ignore[assignment]
        name = names()[1]
        await made.router.call(Send(queue=name, bodies=[b"x"]))
        breaking.broken, breaking.of_kind = 1, PauseChannel
        breaking.before_it_breaks = PauseChannel(queue=name, channel="main", paused=False)
        await made.router.call(PauseChannel(queue=name, channel="main"))
        assert not (await made.router.call(QueueStats(name=name))).channels["main"].paused


@run
async def test_sends_to_a_queue_that_is_not_known_yet_keep_their_order() -> None:
    async with world(0) as made:
        name = names()[2]
        await made.router.everywhere()[2].call(CreateQueue(name=name))
        await asyncio.gather(*(made.router.call(Send(queue=name, bodies=[b"%d" % number])) for number in range(20)))
        delivery = await made.router.call(Receive(queue=name, limit=100))
        assert bodies(delivery) == [b"%d" % number for number in range(20)]


@run
async def test_a_queue_made_elsewhere_can_be_used_at_once_and_one_that_went_is_gone() -> None:
    async with world(0) as made:
        name, router = names()[1], made.router
        assert router.unknown(name)
        await router.know(name)
        assert router.identity.queues.get(name) is None
        await router.everywhere()[1].call(CreateQueue(name=name))  # at another node
        await router.know(name)
        assert router.identity.queues[name].config == QueueConfig()
        assert not router.unknown(name) and router.unknown(name, now=True)
        await router.everywhere()[1].call(DeleteQueue(name=name))
        with pytest.raises(QueueNotFound):
            await router.call(Send(queue=name, bodies=[b"a"], create=False))
        assert router.identity.queues.get(name) is None


@run
async def test_the_queue_of_a_receipt_is_known_after_asking() -> None:
    async with world(0) as made:
        name, router = names()[1], made.router
        await router.everywhere()[1].call(Send(queue=name, bodies=[b"a"]))
        there = router.everywhere()[1].identity
        delivery = await router.everywhere()[1].call(Receive(queue=name))
        receipt = there.receipt(delivery.queue_id, delivery.channel_id, 0, 1)
        assert router.identity.queue_name(delivery.queue_id) is None
        await router.know(receipts=[receipt, "nonsense"])
        assert router.identity.queue_name(delivery.queue_id) == name
        assert router.identity.channel_name(delivery.queue_id, delivery.channel_id) == "main"


@run
async def test_a_router_that_closes_ends_every_wait_with_nothing_and_takes_nothing_more() -> None:
    made = World([0])
    for name in names():
        await made.router.call(CreateQueue(name=name))
    waits = [asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=60_000))) for name in names()]
    await made.router.call(CreateQueue(name="split", config=QueueConfig(partitions=3)))
    waits.append(asyncio.create_task(made.router.call(Receive(queue="split", wait_ms=60_000))))
    await asyncio.sleep(0.05)
    await made.router.close()
    assert await asyncio.gather(*waits) == [None] * 4
    with pytest.raises(ShardClosed):
        await made.router.call(Send(queue=names()[1], bodies=[b"a"]))


# -- subscriptions -----------------------------------------------------------------------------------------------------


class Ticket:
    """Who subscribes."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.errors: list[Any] = []

    def take(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self.errors.append(delivery.error)
        else:
            self.taken.append(delivery)

    def settle(self) -> None:
        pass

    @property
    def bodies(self) -> list[bytes]:
        return [body for delivery in self.taken for body in bodies(delivery)]


@run
async def test_a_subscription_moves_with_its_shard_and_keeps_its_credit() -> None:
    async with world(0) as made:
        for shard, here in ((0, True), (1, False)):
            name, router, ticket = names()[shard], made.router, Ticket()
            await router.call(CreateQueue(name=name))
            session = await router.call(OpenSession(name="me", bound=True))
            subscribed = await router.call(Subscribe(queue=name, credit=3, session=session, ticket=ticket))
            await router.call(Send(queue=name, bodies=[b"0"]))
            await until(lambda ticket=ticket: len(ticket.bodies) == 1)  # type: ignore[misc]
            await made.release(shard)
            made.tell()
            made.take(shard, here=not here)
            await router.call(Send(queue=name, bodies=[b"1", b"2", b"3"]))
            # The first one comes again: its session was a connection to the shard as it was before.
            await until(lambda ticket=ticket: len(ticket.bodies) == 3)  # type: ignore[misc]
            await router.call(AddCredit(subscription=subscribed.subscription, credit=10))
            await until(lambda ticket=ticket: len(ticket.bodies) == 5)  # type: ignore[misc]
            assert sorted(ticket.bodies) == [b"0", b"0", b"1", b"2", b"3"] and not ticket.errors
            await router.call(CancelWait(ticket=ticket))
            with pytest.raises(SessionNotFound):
                await router.call(AddCredit(subscription=subscribed.subscription, credit=1))


@run
async def test_a_subscription_to_partitions_never_has_more_in_flight_than_its_credit() -> None:
    async with world(0) as made:
        router, ticket = made.router, Ticket()
        await router.call(CreateQueue(name="q", config=QueueConfig(partitions=3)))
        session = await router.call(OpenSession(name="me", bound=True))
        for number in range(12):
            await router.call(Send(queue="q", bodies=[b"%d" % number], once=Once("me", number)))
        assert all(served.identity.queues["q"].messages for served in router.everywhere())
        command = Subscribe(queue="q", credit=0, session=session, ticket=ticket, in_flight=True, lease_ms=60_000)
        subscribed = await router.call(command)
        await router.call(SetCredit(subscription=subscribed.subscription, credit=2))
        settled = 0
        while settled < 12:
            await until(lambda settled=settled: len(ticket.bodies) > settled)  # type: ignore[misc]
            assert len(ticket.bodies) - settled <= 2
            for delivery in ticket.taken:
                sequences = np.concatenate([np.arange(run.first, run.first + run.count) for run in delivery.runs])
                ack = AckSequences(queue="q", channel="main", sequences=sequences, session=session)
                settled += (await router.call(ack)).count
            held = [served.identity.queues["q"].channels["main"].leased for served in router.everywhere()]
            assert sum(held) <= 2
        assert sorted(ticket.bodies, key=int) == [b"%d" % number for number in range(12)]


# -- units of work -----------------------------------------------------------------------------------------------------


@run
async def test_a_unit_of_work_over_shards_is_done_as_a_whole() -> None:
    async with world(0) as made:
        router = made.router
        for name in names():
            await router.call(Send(queue=name, bodies=[b"in"]))
        taken = [await router.call(Receive(queue=name)) for name in names()]
        acks = [Ack(queue=name, spans=spans(delivery)) for name, delivery in zip(names(), taken, strict=True)]
        sends = [Send(queue=f"{name}-out", bodies=[b"out"]) for name in names()]
        await router.call(CommitWork(acks=acks, sends=sends, mark=("mine", 7)))
        assert await router.call(LastMark(name="mine")) == 7
        await router.tick()
        for name in names():
            assert (await router.call(QueueStats(name=name))).messages == 0
            assert bodies(await router.call(Receive(queue=f"{name}-out"))) == [b"out"]


@run
async def test_a_unit_of_work_whose_message_is_gone_in_another_shard_does_nothing() -> None:
    async with world(0) as made:
        router = made.router
        for name in names():
            await router.call(Send(queue=name, bodies=[b"in"]))
        taken = [await router.call(Receive(queue=name)) for name in names()]
        await router.call(Ack(queue=names()[2], spans=spans(taken[2])))
        acks = [Ack(queue=name, spans=spans(delivery)) for name, delivery in zip(names(), taken, strict=True)]
        with pytest.raises(WorkRefused):
            await router.call(CommitWork(acks=acks, sends=[Send(queue="out", bodies=[b"out"])]))
        large = Send(queue=names()[1], bodies=[bytes(2_000_000)])
        with pytest.raises(MessageTooLarge):
            await router.call(CommitWork(acks=acks[:1], sends=[large]))
        await router.tick()
        with pytest.raises(QueueNotFound):
            await router.call(DescribeQueue(name="out"))
        assert (await router.call(Ack(queue=names()[0], spans=spans(taken[0])))).count == 1


@run
async def test_work_takes_from_and_puts_into_queues_with_partitions() -> None:
    async with world(0) as made:
        router = made.router
        split = QueueConfig(partitions=3)
        for name in ("in", "out"):
            await router.call(CreateQueue(name=name, config=split))
        for number in range(6):
            await router.call(Send(queue="in", bodies=[b"%d" % number], once=Once("me", number)))
        taken = []
        while (delivery := await router.call(Receive(queue="in", limit=10))).runs:
            taken += spans(delivery)
        groups: list[str | None] = [f"g{number}" for number in range(9)]
        send = Send(queue="out", bodies=[b"%d" % number for number in range(9)], groups=groups)
        (sent,) = await router.call(CommitWork(acks=[Ack(queue="in", spans=taken)], sends=[send]))
        assert sent.count == 9
        await router.tick()
        assert (await router.call(QueueStats(name="in"))).messages == 0
        assert (await router.call(QueueStats(name="out"))).messages == 9
        for served in router.everywhere():  # each group is where a send would have put it
            queue = served.identity.queues["out"]
            assert queue.messages == sum(router_partition(group) == served.shard.number for group in groups)


def router_partition(group: str | None) -> int:
    from penstock.core.queues.partition import partition_of

    assert group is not None
    return (home_of("out", SHARDS) + partition_of(group, 3)) % SHARDS


def test_a_shard_that_moved_says_where_to_look() -> None:
    assert "look at the map" in str(ShardMoved(3))


@run
async def test_nobody_overtakes_those_who_wait_until_their_queue_is_known() -> None:
    async with world(0) as there:
        name = next(name for name in names() if home_of(name, SHARDS) == 1)
        await there.router.call(CreateQueue(name=name))
        there.router.catalog.forget(name)
        sent: dict[bytes, Call] = {}

        def send(body: bytes) -> None:
            there.router.submit(Send(queue=name, bodies=[body]), lambda call: sent.update({body: call}))

        there.router.submit(DescribeQueue(name=name), lambda _: send(b"later"))
        send(b"sooner")
        await until(lambda: len(sent) == 2)
        assert sent[b"sooner"].result().first < sent[b"later"].result().first


@run
async def test_what_was_given_back_before_a_crash_is_not_taken_from_who_has_it_after_the_crash() -> None:
    """The crash took the first lease, which was not written yet: the second one is on the same attempt."""
    async with world(0) as made:
        name = names()[1]
        await made.router.call(Send(queue=name, bodies=[b"a"]))
        written = twin_of(made.stores[1])
        delivery = await made.router.call(Receive(queue=name))
        await made.release(1)
        made.stores[1] = written
        made.tell()
        made.router.give_back(delivery)
        receiving = asyncio.create_task(made.router.call(Receive(queue=name, wait_ms=30_000)))
        await until(lambda: bool(made.router.remote_calls.displaced and made.router.remote_calls.lines))
        made.take(1, here=False)
        assert bodies(await receiving) == [b"a"]
        await until(lambda: not made.router.remote_calls.lines)
        await made.router.call(QueueStats(name=name))
        assert (await made.router.call(Receive(queue=name))).count == 0, "a second client has it, too"
