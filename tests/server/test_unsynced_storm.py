"""Queues that do not wait for the disk, in the turns of a real event loop: whatever comes, and whatever fails.

`test_unsynced_anything.py` drives a shard by hand, step by step. Here `AsyncShard` does, with its threads. Calls come
while others are on their way, are cancelled, hurry; commits take their time, fail, find the disk full.

- A message whose send was answered is handed to somebody.
- A number is one message's for ever.
- What a queue of the policy `consume_once` hands out is handed out once.
- Every call ends, and so does the shard.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from penstock.core import broker
from penstock.core.commands import (
    Ack,
    AddCredit,
    ChangeQueue,
    Command,
    CreateQueue,
    DeleteQueue,
    Delivery,
    OpenSession,
    Receive,
    Send,
    Span,
    Subscribe,
)
from penstock.core.errors import PenstockError, StoreError
from penstock.core.queues import reserve
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.changes import Changes
from penstock.server.shard import Call, Shard
from penstock.server.tasks import AsyncShard
from tests.clock import ManualClock
from tests.server.stores import TroubledStore

MOVES = 250
SAFE, ONCE, GONE = "safe", "once", "gone"
"""Queues: nothing confirmed may be lost; nothing may come twice; deleted and made again."""
IS_COMPILED = not str(broker.__file__).endswith(".py")
"""Then nothing can be put in the place of a broker's methods."""
UNSYNCED = QueueConfig(deliver_unsynced=True, lease_ms=1_000, max_receives=0)


class Bug(Exception):
    """What a broken broker raises."""


class Listener:
    """A subscriber that tells of each delivery, until its subscription is over."""

    def __init__(self, hear: Callable[[Delivery], None]) -> None:
        self._hear = hear
        self._taken: list[Delivery] = []
        self.number = 0
        self.is_over = False

    def take(self, delivery: Delivery) -> None:
        self._taken.append(delivery)

    def settle(self) -> None:
        taken, self._taken = self._taken, []
        for delivery in taken:
            self.is_over = self.is_over or delivery.error is not None
            self._hear(delivery)


class Storm:
    """A shard, and what clients know of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = TroubledStore()
        self.store.on_commit = self._take_time
        self.clock = ManualClock()
        self.shard = AsyncShard(
            Shard(self.store.open, self.clock, lambda: bytes(64)), commit_in_thread=self.rng.random() < 0.5
        )
        self.sent = 0
        self.owners: dict[tuple[int, int], bytes] = {}
        self.confirmed: set[bytes] = set()
        self.heard: set[bytes] = set()
        self.listeners: dict[str, Listener] = {}
        self.calls: set[asyncio.Task[Any]] = set()
        self.hurried = 0
        self.faults: list[str] = []
        """What must not be. Noted, not raised: a shard goes on when somebody cannot take what it passes on."""

    def _take_time(self, _changes: Changes) -> None:
        time.sleep(self.rng.choice((0, 0, 0.0005, 0.003)))

    # -- what clients do --

    def begin(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Something that may fail in the ways in which calls fail, and in no other."""

        async def guarded() -> None:
            try:
                await work(*arguments)
            except (PenstockError, Bug):
                return

        self.calls.add(asyncio.create_task(guarded()))

    def body(self) -> bytes:
        self.sent += 1
        return b"<%d>" % self.sent

    async def send(self, queue: str) -> None:
        body = self.body()
        await self.shard.call(Send(queue=queue, bodies=[body]))
        self._note_sent(queue, body)

    def step_now(self, queue: str) -> None:
        """As a websocket's connection sends."""
        body = self.body()

        def settled(call: Call) -> None:
            if call.error is None:
                self._note_sent(queue, body)

        self.shard.submit(Send(queue=queue, bodies=[body]), settled)
        self.hurried += self.shard.step_now()

    def _note_sent(self, queue: str, body: bytes) -> None:
        if queue == SAFE:
            self.confirmed.add(body)

    async def receive(self, queue: str) -> None:
        wait_ms = self.rng.choice((0, 50, 500))
        self.hear(await self.shard.call(Receive(queue=queue, wait_ms=wait_ms, limit=2)))

    async def listen(self, queue: str) -> None:
        known = self.listeners.get(queue)
        if known is not None and not known.is_over:
            return
        listener = self.listeners[queue] = Listener(self.hear)
        try:
            session = await self.shard.call(OpenSession(name="listener", bound=True))
            subscribe = Subscribe(queue=queue, session=session, ticket=listener, credit=50)
            listener.number = (await self.shard.call(subscribe)).subscription
        except PenstockError:
            listener.is_over = True
            raise

    def hear(self, delivery: Delivery) -> None:
        for run in delivery.runs:
            for index in range(run.start, run.stop):
                number, body = (delivery.queue_id, run.chunk.base + index), run.chunk.body(index)
                if self.owners.setdefault(number, body) != body:
                    self.faults.append(f"number {number} was given twice")
                if delivery.queue == ONCE and body in self.heard:
                    self.faults.append(f"{body!r} was to be handed out once")
                self.heard.add(body)
            if delivery.queue == SAFE and self.rng.random() < 0.7:
                spans = [Span(*span) for span in run.spans()]
                self.begin(self.shard.call, Ack(queue=SAFE, spans=spans, patient=self.rng.random() < 0.5))

    async def make_again(self) -> None:
        await self.shard.call(DeleteQueue(name=GONE))
        await self.shard.call(CreateQueue(name=GONE, config=UNSYNCED))

    # -- what befalls them --

    def break_broker(self) -> None:
        """Once, in the middle of whatever comes next."""
        if IS_COMPILED:
            return
        broken, name = self.shard.shard.broker, self.rng.choice(("handle", "finish"))
        error = self.rng.choice((StoreError, Bug))

        def fail(*_arguments: Any) -> None:
            delattr(broken, name)
            raise error("broken")

        setattr(broken, name, fail)

    def cancel_one(self) -> None:
        if self.calls:
            self.rng.choice(sorted(self.calls, key=id)).cancel()

    async def move(self) -> None:
        rng, chance = self.rng, self.rng.random()
        any_queue = rng.choice((SAFE, SAFE, ONCE, GONE))
        if chance < 0.25:
            self.begin(self.send, any_queue)
        elif chance < 0.4:
            self.step_now(any_queue)
        elif chance < 0.47:
            self.begin(self.receive, any_queue)
        elif chance < 0.57:
            self.begin(self.listen, any_queue)
        elif chance < 0.6:
            self.begin(self.shard.call, ChangeQueue(name=SAFE, changes={"deliver_unsynced": rng.random() < 0.7}))
        elif chance < 0.62:
            self.begin(self.make_again)
        elif chance < 0.65:
            self.cancel_one()
        elif chance < 0.67:
            self.store.fail_next(kept=rng.random() < 0.5)
        elif chance < 0.69:
            self.store.full = not self.store.full
        elif chance < 0.73:
            self.clock.advance_ms(rng.choice((30, 300, 700, 1_500)))
        elif chance < 0.76:
            listener = self.listeners.get(SAFE)
            if listener is not None and listener.number and not listener.is_over:
                self.begin(self.shard.call, AddCredit(subscription=listener.number, credit=20))
        elif chance < 0.77:
            self.break_broker()
        else:
            for _ in range(rng.choice((1, 1, 2, 5))):
                await asyncio.sleep(rng.choice((0, 0, 0.0003, 0.002)))

    # -- the end --

    async def calm(self) -> None:
        """The disk is well again: everything that was confirmed is heard in the end, and every call ends."""
        self.store.full = False
        self.store.fail_nothing()
        self.store.on_commit = lambda changes: None
        if not IS_COMPILED:
            for name in ("handle", "finish"):
                vars(self.shard.shard.broker).pop(name, None)
        async with asyncio.timeout(30):
            while self.calls:
                _, self.calls = await self._wait_for(self.calls)
            while not self.confirmed <= self.heard:
                self.clock.advance_ms(3_000)
                self.hear(await self.shard.call(Receive(queue=SAFE, wait_ms=0, limit=100)))
            await self.shard.close()
        assert not self.faults

    async def _wait_for(self, calls: set[asyncio.Task[Any]]) -> tuple[set[asyncio.Task[Any]], set[asyncio.Task[Any]]]:
        self.clock.advance_ms(1_000)
        await self.shard.tick()
        done, waiting = await asyncio.wait(calls, timeout=0.1)
        for call in done:
            if not call.cancelled():
                call.result()
        return done, waiting | (self.calls - calls)


async def rage(seed: int) -> Storm:
    storm = Storm(seed)
    commands: list[Command] = [
        CreateQueue(name=SAFE, config=UNSYNCED),
        CreateQueue(name=ONCE, config=QueueConfig(policy="consume_once")),
        CreateQueue(name=GONE, config=UNSYNCED),
    ]
    for command in commands:
        await storm.shard.call(command)
    for _ in range(MOVES):
        await storm.move()
    await storm.calm()
    return storm


@pytest.fixture(autouse=True)
def few_numbers_at_a_time() -> Iterator[None]:
    """So that messages come near the end of what is set aside, and go beyond it; and no log of a thousand failures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserve, "AHEAD", 8)
        logging.disable(logging.CRITICAL)
        yield
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_confirmed_is_lost_and_no_number_is_given_twice_in_any_storm(seed: int) -> None:
    asyncio.run(rage(seed))


def test_storms_let_messages_hurry() -> None:
    assert sum(asyncio.run(rage(seed)).hurried for seed in range(1_000, 1_005)) > 0
