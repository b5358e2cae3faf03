"""Commands of one connection stay in their order, whatever becomes of the shard on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.base import ShardMoved
from penstock.cluster.routing.placement import home_of
from penstock.core.commands import Command, CreateQueue, Once, QueueStats, Receive, Send
from penstock.core.errors import InvalidRequest
from penstock.core.queues.config import QueueConfig
from penstock.server.shard import Call
from penstock.server.tasks import CallbackCall
from tests.cluster.links.linking import in_loop
from tests.cluster.routing.test_router import bodies
from tests.cluster.routing.test_router_pair import NAMES, SHARDS, Pair, pair

SENDS = 600
BURST = 20


class Sender:
    """Sends numbered messages of one group, without waiting for answers; as a connection does."""

    def __init__(self, made: Pair, node: str) -> None:
        self._router = made.routers[node]
        self._node = node
        self.answers: dict[int, Any] = {}
        self.done = asyncio.Event()

    def send(self, number: int) -> None:
        command = Send(queue="q", bodies=[b"%s %d" % (self._node.encode(), number)], groups=[self._node], create=False)
        command.once = Once(self._node, number)

        def settled(call: Call) -> None:
            self.answers[number] = call.error or call.reply
            if len(self.answers) == SENDS:
                self.done.set()

        self._router.submit(command, settled, self)


@pytest.mark.parametrize("kind", ["standard", "fifo"])
@in_loop
async def test_sends_that_are_under_way_while_a_shard_moves_keep_their_order(tmp_path: Path, kind: str) -> None:
    chance = random.Random(7)
    async with pair(tmp_path) as made:
        config = QueueConfig(kind=kind, content_dedup=kind == "fifo")  # type: ignore[arg-type]
        await made.routers["a"].call(CreateQueue(name="q", config=config))
        senders = [Sender(made, node) for node in NAMES]
        for start in range(1, SENDS + 1, BURST):
            for number in range(start, start + BURST):
                for sender in senders:
                    sender.send(number)
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
            if chance.random() < 0.5:
                await made.move(home_of("q", SHARDS))
        await asyncio.wait_for(asyncio.gather(*(sender.done.wait() for sender in senders)), 60)
        for sender in senders:
            errors = [answer for answer in sender.answers.values() if isinstance(answer, BaseException)]
            assert not errors, errors[0]
            sequences = [sender.answers[number].sequence(0) for number in range(1, SENDS + 1)]
            assert sequences == sorted(sequences), "a later send was done before an earlier one"
        assert (await made.routers["a"].call(QueueStats(name="q"))).messages == 2 * SENDS


@in_loop
async def test_a_send_waits_for_those_before_it_that_another_node_has_not_answered(tmp_path: Path) -> None:
    """The link to the former owner stands, and nothing comes over it; the shard is elsewhere by now."""
    async with pair(tmp_path) as made:
        queue = next(f"q{number}" for number in range(99) if made.owners[home_of(f"q{number}", SHARDS)] == "b")
        shard, router = home_of(queue, SHARDS), made.routers["a"]
        await router.call(CreateQueue(name=queue))
        held: list[CallbackCall] = []
        link = made.links["b"]
        submit = link.submit

        def hold(_shard: int, command: Command, on_settled: Callable[[Call], None], _: object = None) -> CallbackCall:
            held.append(CallbackCall(command, on_settled))
            return held[-1]

        link.submit = hold  # type: ignore[method-assign, assignment]
        first = asyncio.create_task(router.call(Send(queue=queue, bodies=[b"1"], once=Once("me", 1))))
        while not held:
            await asyncio.sleep(0)
        link.submit = submit  # type: ignore[method-assign]
        await made.move(shard)
        second = asyncio.create_task(router.call(Send(queue=queue, bodies=[b"2"], once=Once("me", 2))))
        await asyncio.wait((second,), timeout=0.3)  # time enough to overtake, if it could
        assert not second.done()
        held[0].error = ShardMoved(shard)
        held[0].settle()
        assert (await first).sequence(0) < (await second).sequence(0)
        assert bodies(await router.call(Receive(queue=queue, limit=10))) == [b"1", b"2"]


@in_loop
async def test_a_line_does_not_follow_its_first_past_calls_that_another_node_has_not_answered(tmp_path: Path) -> None:
    """The first came back, was sent again, and is answered; the second is still with the former owner."""
    async with pair(tmp_path) as made:
        queue = next(f"q{number}" for number in range(99) if made.owners[home_of(f"q{number}", SHARDS)] == "b")
        shard, router = home_of(queue, SHARDS), made.routers["a"]
        await router.call(CreateQueue(name=queue))
        held: list[CallbackCall] = []

        def hold(_shard: int, command: Command, on_settled: Callable[[Call], None], _: object = None) -> CallbackCall:
            held.append(CallbackCall(command, on_settled))
            return held[-1]

        async def until_held(count: int) -> None:
            while len(held) < count:
                await asyncio.sleep(0.001)

        def send(number: int) -> asyncio.Task[Any]:
            return asyncio.create_task(
                router.call(Send(queue=queue, bodies=[b"%d" % number], once=Once("me", number), create=False))
            )

        made.links["b"].submit = hold  # type: ignore[method-assign, assignment]
        first, second = send(1), send(2)
        await until_held(2)
        held[0].error = ShardMoved(shard)
        held[0].settle()
        await until_held(3)  # sent again, alone: by the map it is there still
        third = send(3)
        await asyncio.sleep(0.01)
        await made.move(shard)
        held[2].error = InvalidRequest("no")
        held[2].settle()
        with pytest.raises(InvalidRequest):
            await first
        await asyncio.wait((third,), timeout=0.3)  # time enough to overtake, if it could
        assert not third.done()
        held[1].error = ShardMoved(shard)
        held[1].settle()
        assert (await second).sequence(0) < (await third).sequence(0)
