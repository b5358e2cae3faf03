from __future__ import annotations

import asyncio

from penstock.core.commands import (
    Ack,
    AddCredit,
    Command,
    Delivery,
    ListQueues,
    OpenSession,
    Receive,
    Send,
    Settled,
    Span,
    Subscribe,
)
from penstock.server.shard import Call, Shard
from penstock.server.tasks import AsyncShard, in_order
from penstock.store.memory import MemoryStore
from tests.clock import ManualClock
from tests.server.stores import TroubledStore
from tests.server.test_subscriptions import Subscriber


def kinds(calls: list[Call]) -> list[str]:
    return [type(call.command).__name__ for call in calls]


def test_credit_goes_first_then_sends_then_what_settles_then_receives() -> None:
    commands: list[Command] = [
        Receive(queue="q"),
        Ack(queue="q", spans=[Span(0, 0, 1)]),
        Send(queue="q", bodies=[b"1"]),
        AddCredit(subscription=1, credit=1),
        Receive(queue="q"),
    ]
    ordered = ["AddCredit", "Send", "Ack", "Receive", "Receive"]
    assert kinds(in_order([Call(command) for command in commands])) == ordered


def test_calls_of_one_kind_keep_their_order() -> None:
    calls = [Call(Send(queue="q", bodies=[str(number).encode()])) for number in range(20)]
    assert in_order(calls) == calls


def test_a_step_with_other_commands_keeps_its_order() -> None:
    calls = [Call(Receive(queue="q")), Call(ListQueues()), Call(Send(queue="q", bodies=[b"1"]))]
    assert in_order(calls) == calls


def test_sends_and_receives_of_one_step_share_a_chunk() -> None:
    async def sent_and_received() -> list[Delivery]:
        store = MemoryStore()
        shard = AsyncShard(Shard(lambda: store, ManualClock(), lambda: bytes(64)))
        await shard.call(Send(queue="q", bodies=[b"0"]))
        calls = []
        for number in range(1, 11):
            calls.append(shard.call(Receive(queue="q", limit=10 if number == 1 else 1)))
            calls.append(shard.call(Send(queue="q", bodies=[str(number).encode()])))
        replies = await asyncio.gather(*calls)
        await shard.close()
        return [reply for reply in replies if isinstance(reply, Delivery)]

    deliveries = asyncio.run(sent_and_received())
    assert [run.chunk.count for delivery in deliveries for run in delivery.runs][:2] == [1, 10]
    assert sum(delivery.count for delivery in deliveries) == 11


def test_what_credit_brings_does_not_wait_for_the_commit_of_an_ack_that_came_with_it() -> None:
    asyncio.run(_credit_and_ack())


async def _credit_and_ack() -> None:
    store, subscriber = TroubledStore(), Subscriber()
    shard = AsyncShard(Shard(store.open, ManualClock(), lambda: bytes(64)))
    await shard.call(Send(queue="q", bodies=[b"1", b"2", b"3"]))
    session = await shard.call(OpenSession(name="client", bound=True))
    subscription = (await shard.call(Subscribe(queue="q", session=session, ticket=subscriber, credit=1))).subscription
    first = subscriber.deliveries[0].runs[0].chunk.base
    had_at_commit: list[int] = []
    store.on_commit = lambda changes: had_at_commit.append(sum(each.count for each in subscriber.deliveries))
    credit, ack = AddCredit(subscription=subscription, credit=1), Ack(queue="q", spans=[Span(first, first, 1)])
    settled, _ = await asyncio.gather(shard.call(ack), shard.call(credit))
    assert settled.count == 1
    assert had_at_commit == [2], "one commit, and the message was there before it"
    credit, send = AddCredit(subscription=subscription, credit=9), Send(queue="q", bodies=[b"4"])
    await asyncio.gather(shard.call(credit), shard.call(send))
    assert had_at_commit == [2, 3], "what is new was not there before its commit"
    assert subscriber.bodies() == [b"1", b"2", b"3", b"4"]
    await shard.close()


def test_an_ack_that_nobody_is_in_a_hurry_for_is_committed_with_what_comes_next() -> None:
    asyncio.run(_patient_acks(commit_in_thread=False))


def test_it_is_so_with_commits_in_a_thread() -> None:
    asyncio.run(_patient_acks(commit_in_thread=True))


async def _patient_acks(*, commit_in_thread: bool) -> None:
    store, subscriber = TroubledStore(), Subscriber()
    shard = AsyncShard(Shard(store.open, ManualClock(), lambda: bytes(64)), commit_in_thread=commit_in_thread)
    await shard.call(Send(queue="q", bodies=[b"1", b"2", b"3", b"4"]))
    session = await shard.call(OpenSession(name="client", bound=True))
    subscription = (await shard.call(Subscribe(queue="q", session=session, ticket=subscriber, credit=1))).subscription
    commits = store.commits

    def ack(sequence: int) -> asyncio.Task[Settled]:
        command = Ack(queue="q", spans=[Span(sequence, sequence, 1)], patient=True)
        return asyncio.create_task(shard.call(command))

    waiting = ack(0)
    await shard.call(AddCredit(subscription=subscription, credit=3))
    assert subscriber.bodies() == [b"1", b"2", b"3", b"4"]
    assert (waiting.done(), store.commits) == (False, commits), "credit does not take it along"
    await shard.call(Send(queue="q", bodies=[b"5"]))
    assert (await waiting).count == 1
    assert store.commits == commits + 1, "one commit for both"

    assert (await ack(1)).count == 1, "nothing else comes: it has waited long enough"
    assert store.commits == commits + 2

    waiting = ack(2)
    await asyncio.sleep(0)
    await shard.close()
    assert (await waiting).count == 1, "the shard closes: there is no next time"
