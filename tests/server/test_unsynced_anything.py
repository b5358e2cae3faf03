"""Whatever comes, in whatever order, and whatever fails: what holds for queues that do not wait for the disk.

A shard is driven as `AsyncShard` drives it, but by hand, so that commits end when the schedule says so.

- A message whose send was answered is there until it is acked, or has been.
- A number is one message's for ever, also if that was taken back.
- What was acked is not pushed again.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.commands import Ack, Command, CreateQueue, Delivery, OpenSession, Send, Span, Subscribe
from penstock.core.queues import reserve
from penstock.core.queues.config import QueueConfig
from penstock.server.shard import FULL_PAUSE_MS, Call, Shard, Step
from penstock.server.tasks import _AHEAD, in_order
from tests.clock import ManualClock
from tests.server.stores import TroubledStore
from tests.server.test_subscriptions import Subscriber

LEASE_MS = 10_000


class World:
    """A shard, its store, a client that sends and one that listens."""

    def __init__(self) -> None:
        self.store = TroubledStore()
        self.clock = ManualClock()
        self.bodies = 0
        self.inbox: list[Call] = []
        self.writing: Step | None = None
        self.ahead: Step | None = None
        self.owner: dict[int, bytes] = {}
        """Whose a number is."""
        self.confirmed: set[bytes] = set()
        self.in_hand: dict[tuple[int, int], bytes] = {}
        """(number, attempt) -> what the listener has and has not acked."""
        self.acked: set[bytes] = set()
        self.perhaps_acked: set[bytes] = set()
        """The answer was an error: nobody knows."""
        self.lost = False
        """Whether the subscription is over, and another one is needed."""
        self._open()
        self.call(CreateQueue(name="q", config=QueueConfig(deliver_unsynced=True, lease_ms=LEASE_MS, max_receives=0)))
        self.settle()
        self.subscribe()

    def _open(self) -> None:
        self.shard = Shard(self.store.open, self.clock, lambda: bytes(64))
        self.shard.deliver_unsynced()
        self.subscriber = Subscriber()

    # -- what a driver does --

    def call(self, command: Command) -> Call:
        call = Call(command)
        self.inbox.append(call)
        return call

    def step(self) -> None:
        if self.writing is not None:
            self._run_ahead()
            return
        step = Step(in_order(self.inbox))
        self.inbox = []
        self.shard.run(step)
        if step.is_apart:
            self._write(step)
        else:
            self._answer(step)

    def _run_ahead(self) -> None:
        calls = in_order(self.inbox)
        sends = [call for call in calls if type(call.command) in _AHEAD]
        if calls is self.inbox or not sends or not self.shard.can_run_ahead:
            return
        self.inbox = [call for call in calls if call not in sends]
        self.ahead = self.ahead or Step([])
        self.shard.run_ahead(self.ahead, sends)
        self._pass_on(self.ahead)

    def _write(self, step: Step) -> None:
        self._pass_on(step)
        self.writing = step
        self.shard.set_aside(step)

    def _pass_on(self, step: Step) -> None:
        early, step.early = step.early, []
        for ticket, delivery in early:
            ticket.take(delivery)
        self._hear()

    def written(self) -> None:
        step, ahead, self.writing, self.ahead = self.writing, self.ahead, None, None
        if step is None:
            return
        goes_on = self.shard.written(step, self.shard.write(step), ahead)
        self._answer(step)
        if ahead is not None and goes_on:
            calls, self.inbox = in_order(self.inbox), []
            self.shard.run_ahead(ahead, calls)
            if self.shard.end_ahead(ahead):
                self._write(ahead)
            else:
                self._answer(ahead)

    def settle(self) -> None:
        """Until nothing is left to do."""
        while self.inbox or self.writing is not None:
            self.step()
            self.written()

    def crash(self) -> None:
        """The process is gone, and what was being written with it."""
        self.inbox, self.writing, self.ahead = [], None, None
        self._open()
        self.subscribe()

    # -- what the clients do --

    def subscribe(self) -> None:
        self.settle()
        opened = self.call(OpenSession(name="listener", bound=True))
        self.settle()
        subscribed = self.call(
            Subscribe(queue="q", session=opened.reply or 0, ticket=self.subscriber, credit=1_000_000)
        )
        self.settle()
        self.lost = self.lost or subscribed.error is not None

    def send(self) -> None:
        self.bodies += 1
        self.call(Send(queue="q", bodies=[str(self.bodies).encode()]))

    def ack(self) -> None:
        for number, attempt in self.in_hand:
            self.call(Ack(queue="q", spans=[Span(number, number, attempt)]))

    def _answer(self, step: Step) -> None:
        for ticket in step.answered:
            if isinstance(ticket, Call):
                self._take_answer(ticket)
        self._hear()

    def _take_answer(self, call: Call) -> None:
        command = call.command
        if isinstance(command, Send) and call.error is None:
            self._own(call.reply.first, command.bodies[0])
            self.confirmed.add(command.bodies[0])
        elif isinstance(command, Ack):
            (span,) = command.spans
            if call.error is not None:
                self.perhaps_acked.add(self.owner[span.first])
            elif (body := self.in_hand.pop((span.first, span.attempt), None)) and not call.reply.refused:
                self.acked.add(body)

    def _hear(self) -> None:
        is_over = False
        for delivery in self.subscriber.deliveries:
            is_over = is_over or delivery.error is not None
            self._take(delivery)
        self.subscriber.deliveries.clear()
        if is_over:  # a commit has failed: the client subscribes again, in a session of its own
            self.subscriber = Subscriber()
            self.lost = True

    def _take(self, delivery: Delivery) -> None:
        for run in delivery.runs:
            for first, last, attempt in run.spans():
                for number in range(first, last + 1):
                    body = run.chunk.body(number - run.chunk.base)
                    self._own(number, body)
                    assert body not in self.acked, "it was acked, and comes again"
                    self.in_hand[number, attempt] = body

    def _own(self, number: int, body: bytes) -> None:
        assert self.owner.setdefault(number, body) == body, "a number was given twice"

    def finish(self) -> None:
        """The disk is well again: everything that was confirmed is acked in the end."""
        self.store.fail_nothing()
        self.store.full = False
        self.clock.advance_ms(FULL_PAUSE_MS)
        for _ in range(3):
            self.settle()
            if self.lost:
                self.lost = False
                self.subscribe()
            self.clock.advance_ms(2 * LEASE_MS)
            self.step()
            self.settle()
            self.ack()
            self.settle()
        assert self.confirmed <= self.acked | self.perhaps_acked, "a message whose send was answered is gone"


MOVES = [
    "send",
    "send",
    "send",
    "step",
    "step",
    "written",
    "ack",
    "fail",
    "fail, kept",
    "full",
    "crash",
    "time",
    "again",
]


@pytest.fixture(autouse=True, scope="module")
def few_numbers_at_a_time() -> Iterator[None]:
    """So that messages come near the end of what is set aside, and go beyond it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reserve, "AHEAD", 4)
        yield


def play(moves: list[str]) -> World:
    world = World()
    for move in moves:
        if move in ("send", "step", "written", "ack", "crash"):
            getattr(world, move)()
        elif move.startswith("fail"):
            world.store.fail_next(kept=move == "fail, kept")
        elif move == "full":
            world.store.full = not world.store.full
        elif move == "time":
            world.clock.advance_ms(LEASE_MS // 4)
        elif world.lost:
            world.lost = False
            world.subscribe()
    world.finish()
    return world


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(MOVES), max_size=40))
def test_nothing_confirmed_is_lost_and_no_number_is_given_twice(moves: list[str]) -> None:
    play(moves)


def test_the_schedules_let_messages_leave_before_they_are_written() -> None:
    world = World()
    world.send()
    world.step()
    assert world.in_hand and not world.confirmed
    world.send()
    world.step()
    assert len(world.in_hand) == 2 and not world.confirmed, "it ran ahead"
    world.written()
    assert len(world.confirmed) == 1
    world.crash()
    assert set(world.owner) == {0, 1}
    world.send()
    world.settle()
    assert min(set(world.owner) - {0, 1}) > 1
    world.finish()
