from __future__ import annotations

import asyncio

from penstock.core.commands import Ack, Delivery, ListQueues, Receive, Send, Span
from penstock.server.clock import ManualClock
from penstock.server.shard import Call, Shard
from penstock.server.tasks import AsyncShard, in_order
from penstock.store.memory import MemoryStore


def kinds(calls: list[Call]) -> list[str]:
    return [type(call.command).__name__ for call in calls]


def test_sends_go_first_then_what_settles_then_receives() -> None:
    span = Span(0, 0, 1)
    commands = [Receive(queue="q"), Ack(queue="q", spans=[span]), Send(queue="q", bodies=[b"1"]), Receive(queue="q")]
    assert kinds(in_order([Call(command) for command in commands])) == ["Send", "Ack", "Receive", "Receive"]


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
