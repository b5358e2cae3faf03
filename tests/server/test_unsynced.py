"""Queues with `deliver_unsynced`: pushed while the send is being written, and no number given twice whatever fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.core.broker import Broker
from penstock.core.commands import (
    Ack,
    AddCredit,
    ChangeQueue,
    Command,
    CreateQueue,
    DeleteQueue,
    OpenSession,
    QueueStats,
    Receive,
    Send,
    Sent,
    Span,
    Subscribe,
)
from penstock.core.errors import InvalidConfig, StoreError
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.reserve import AHEAD
from penstock.server.shard import APART_MS, FULL_PAUSE_MS, Call, Shard
from penstock.server.tasks import AsyncShard
from penstock.store.errors import CommitFailed, DiskFull
from tests.clock import ManualClock
from tests.server.stores import Gate, TroubledStore
from tests.server.test_subscriptions import Subscriber

UNSYNCED = QueueConfig(deliver_unsynced=True)


class Bench:
    """A shard over a troubled store, with a subscriber to the queue `q`, which does not wait for the disk."""

    def __init__(self, store: TroubledStore, *, commit_in_thread: bool = False) -> None:
        self.store = store
        self.clock = ManualClock()
        self.shard = AsyncShard(Shard(store.open, self.clock, lambda: bytes(64)), commit_in_thread=commit_in_thread)
        self.subscriber = Subscriber()
        self.subscription = 0

    async def subscribe(self, credit: int = 100, config: QueueConfig = UNSYNCED) -> None:
        await self.shard.call(CreateQueue(name="q", config=config))
        session = await self.shard.call(OpenSession(name="client", bound=True))
        subscribe = Subscribe(queue="q", session=session, ticket=self.subscriber, credit=credit)
        self.subscription = (await self.shard.call(subscribe)).subscription

    def begin(self, command: Command) -> asyncio.Task[Any]:
        return asyncio.create_task(self.shard.call(command))

    def send(self, body: bytes, queue: str = "q") -> asyncio.Task[Sent]:
        return self.begin(Send(queue=queue, bodies=[body]))

    def hold_commits(self) -> Gate:
        gate = Gate()
        self.store.on_commit = gate.hold
        return gate

    async def held_up(self) -> tuple[Gate, list[asyncio.Task[Sent]]]:
        """A message has left, and what holds up its commit; and its send."""
        gate = self.hold_commits()
        sent = self.send(b"a")
        assert await self.pushed(1) == [b"a"]
        await self.reached(gate)
        return gate, [sent]

    async def subscribe_to(self, queue: str, config: QueueConfig, credit: int) -> Subscriber:
        """Another subscriber, to another queue."""
        subscriber = Subscriber()
        await self.shard.call(CreateQueue(name=queue, config=config))
        session = await self.shard.call(OpenSession(name="other", bound=True))
        await self.shard.call(Subscribe(queue=queue, session=session, ticket=subscriber, credit=credit))
        return subscriber

    async def reached(self, gate: Gate) -> None:
        await asyncio.to_thread(gate.reached.wait, 10)

    async def pushed(self, count: int) -> list[bytes]:
        """So many bodies, as soon as they are there."""
        async with asyncio.timeout(10):
            while sum(delivery.count for delivery in self.subscriber.deliveries) < count:
                await asyncio.sleep(0)
        return self.subscriber.bodies()

    async def turns(self) -> None:
        """Let whatever can happen without the disk happen."""
        for _ in range(20):
            await asyncio.sleep(0)


Scenario = Callable[[Bench], Awaitable[None]]


def run(scenario: Scenario, *, commit_in_thread: bool = False) -> None:
    async def whole() -> None:
        bench = Bench(TroubledStore(), commit_in_thread=commit_in_thread)
        await scenario(bench)
        await bench.shard.close()

    asyncio.run(whole())


# -- what leaves when --


@pytest.mark.parametrize("commit_in_thread", [False, True])
def test_a_push_leaves_before_the_commit_and_the_answer_after_it(commit_in_thread: bool) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        gate = bench.hold_commits()
        sent = bench.send(b"a")
        assert await bench.pushed(1) == [b"a"]
        await bench.reached(gate)
        await bench.turns()
        assert not sent.done()
        gate.open()
        assert (await sent).first == 0

    run(scenario, commit_in_thread=commit_in_thread)


def test_by_default_nothing_leaves_before_the_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(config=QueueConfig())
        gate = bench.hold_commits()
        sent = bench.send(b"a")
        await bench.reached(gate)
        await bench.turns()
        assert bench.subscriber.bodies() == []
        gate.open()
        await sent
        assert bench.subscriber.bodies() == [b"a"]

    run(scenario, commit_in_thread=True)


def test_who_asks_for_messages_gets_them_after_the_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.shard.call(CreateQueue(name="q", config=UNSYNCED))
        received = bench.begin(Receive(queue="q", wait_ms=20_000))
        await bench.turns()
        gate = bench.hold_commits()
        sent = bench.send(b"a")
        await bench.reached(gate)
        assert not received.done()
        gate.open()
        assert (await received).count == 1
        await sent

    run(scenario, commit_in_thread=True)


def test_what_is_sent_while_the_disk_stands_still_is_pushed_and_shares_one_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=2)
        commits = bench.store.commits
        gate, sends = await bench.held_up()
        for body in (b"b", b"c"):
            sends.append(bench.send(body))
            await bench.turns()
        assert bench.subscriber.bodies() == [b"b"], "there is no credit for more"
        credit = bench.begin(AddCredit(subscription=bench.subscription, credit=10))
        assert await bench.pushed(1) == [b"c"]
        assert not any(task.done() for task in (*sends, credit))
        gate.open()
        assert [(await sent).first for sent in sends] == [0, 1, 2]
        await credit
        assert bench.store.commits == commits + 2

    run(scenario)


def test_what_settles_waits_for_its_turn_and_gets_it_although_sends_go_on() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        gate, sends = await bench.held_up()
        ack = bench.begin(Ack(queue="q", spans=[Span(0, 0, 1)]))
        received = bench.begin(Receive(queue="q", wait_ms=0))
        for _ in range(5):
            sends.append(bench.send(b"more"))
            assert await bench.pushed(1) == [b"more"]
        assert not ack.done() and not received.done()
        sends.append(bench.send(b"still more"))
        gate.open()
        assert (await ack).count == 1
        assert (await received).count <= 1, "what was sent last, if that came with it"
        assert [(await sent).first for sent in sends] == list(range(7))

    run(scenario)


def test_other_commands_keep_their_order_with_the_sends_around_them() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"b"))
        deleted = bench.begin(DeleteQueue(name="q"))
        sends.append(bench.send(b"c"))
        await bench.turns()
        assert bench.subscriber.bodies() == []
        gate.open()
        assert [(await sent).first for sent in sends] == [0, 1, 0], "the last one is the first of another queue"
        await deleted

    run(scenario)


def test_acks_that_come_with_a_send_do_not_hold_it_up() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        commits = bench.store.commits
        ack, sent = bench.begin(Ack(queue="q", spans=[Span(0, 0, 1)])), bench.send(b"b")
        assert (await sent).first == 1
        assert (await ack).count == 1
        assert bench.store.commits == commits + 2, "the ack was not looked at before the message had left"

    run(scenario)


def test_messages_of_other_queues_do_not_leave_early_when_they_run_ahead() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        other = await bench.subscribe_to("safe", QueueConfig(), credit=9)
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"safe", queue="safe"))
        await bench.turns()
        assert other.bodies() == []
        gate.open()
        await asyncio.gather(*sends)
        assert other.bodies() == [b"safe"]

    run(scenario)


def test_closing_waits_for_what_is_being_written() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"b"))
        await bench.pushed(1)
        closing = asyncio.create_task(bench.shard.close())
        await bench.turns()
        assert not closing.done()
        gate.open()
        await closing
        assert [(await sent).first for sent in sends] == [0, 1]

    run(scenario)


def test_nothing_leaves_early_any_more_when_the_setting_is_taken_back() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        await bench.shard.call(ChangeQueue(name="q", changes={"deliver_unsynced": False}))
        bench.subscriber.bodies()
        had: list[list[bytes]] = []
        bench.store.on_commit = lambda changes: had.append(bench.subscriber.bodies())
        await bench.send(b"b")
        assert had == [[]]
        assert bench.subscriber.bodies() == [b"b"]

    run(scenario)


@pytest.mark.parametrize("settings", [{"kind": "fifo"}, {"policy": "consume_once"}, {"policy": "consume_times"}])
def test_it_is_refused_where_it_would_break_a_promise(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="deliver_unsynced is a setting of standard queues"):
        QueueConfig().changed({"deliver_unsynced": True, **settings})


# -- what fails --


@pytest.mark.parametrize("ahead", [False, True])
def test_a_number_that_has_left_is_never_given_to_another_message(ahead: bool) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        gate, sends = await bench.held_up()
        if ahead:
            sends.append(bench.send(b"lost, too"))
            await bench.pushed(1)
        bench.store.fail_next(kept=False)
        gate.open()
        for sent in sends:
            with pytest.raises(CommitFailed):
                await sent
        after = await bench.send(b"after")
        assert after.first >= AHEAD
        await bench.subscribe()  # who subscribes is told when a commit fails
        assert await bench.pushed(1) == [b"after"]
        late = await bench.shard.call(Ack(queue="q", spans=[Span(0, 0, 1), Span(1, 1, 1)]))
        assert late.count == 0
        assert (await bench.shard.call(QueueStats(name="q"))).channels["main"].leased == 1

    run(scenario)


def test_what_a_failed_commit_kept_after_all_can_be_acked_by_who_has_it() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        bench.store.fail_next(kept=True)
        with pytest.raises(CommitFailed):
            await bench.send(b"kept")
        assert await bench.pushed(1) == [b"kept"]
        assert (await bench.shard.call(Ack(queue="q", spans=[Span(0, 0, 1)]))).count == 1
        assert bench.subscriber.bodies() == [], "it came once"

    run(scenario)


def test_a_full_disk_refuses_the_sends_and_the_subscription_goes_on() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=3)
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"b"))
        await bench.pushed(1)
        bench.store.full = True
        gate.open()
        for sent in sends:
            with pytest.raises(DiskFull):
                await sent
        bench.store.full = False
        bench.clock.advance_ms(FULL_PAUSE_MS)
        assert (await bench.send(b"c")).first >= AHEAD
        assert await bench.pushed(1) == [b"c"]
        await bench.send(b"d")
        assert bench.subscriber.bodies() == [], "what has left has used up its credit"

    run(scenario)


def test_a_push_that_did_not_leave_costs_no_credit_when_the_disk_is_full() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=2)
        safe = await bench.subscribe_to("safe", QueueConfig(), credit=1)
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"safe", queue="safe"))
        await bench.turns()
        bench.store.full = True
        gate.open()
        await asyncio.gather(*sends, return_exceptions=True)
        bench.store.full = False
        bench.clock.advance_ms(FULL_PAUSE_MS)
        await bench.send(b"safe again", queue="safe")
        assert safe.bodies() == [b"safe again"]

    run(scenario)


def test_a_step_that_ran_ahead_and_failed_is_done_again(caplog: pytest.LogCaptureFixture) -> None:
    async def fill(store: TroubledStore) -> None:
        bench = Bench(store)
        await bench.shard.call(CreateQueue(name="q", config=UNSYNCED))
        await bench.send(b"old")
        await bench.shard.close()

    async def go_on(store: TroubledStore) -> None:
        bench = Bench(store)  # which has nothing in memory of what is there
        await bench.subscribe(credit=0)
        other = await bench.subscribe_to("other", UNSYNCED, credit=9)
        gate = bench.hold_commits()
        sends = [bench.send(b"a", queue="other")]
        await bench.reached(gate)
        assert other.bodies() == [b"a"]
        store.unreadable = StoreError("the disk cannot be read")
        credit = bench.begin(AddCredit(subscription=bench.subscription, credit=9))
        sends.append(bench.send(b"new"))
        await bench.turns()
        received = bench.begin(Receive(queue="other", wait_ms=20_000))
        sends.append(bench.send(b"b", queue="other"))
        await bench.turns()
        assert (bench.subscriber.bodies(), other.bodies()) == ([], []), "nothing leaves that is to be done again"
        store.unreadable = None
        gate.open()
        assert [(await sent).count for sent in sends] == [1, 1, 1]
        await credit
        assert await bench.pushed(2) == [b"old", b"new"]
        got = other.bodies()
        if received.done():
            got += [body for run in (await received).runs for body in run.chunk.body_list(run.start, run.stop)]
        assert got == [b"b"], "to one of the two"
        await bench.shard.close()
        await received

    store = TroubledStore()
    asyncio.run(fill(store))
    with caplog.at_level(logging.CRITICAL, "penstock.shard"):
        asyncio.run(go_on(store))


# -- what does not even wait for the next turn --


class Answers(list[Call]):
    """The calls that were answered."""

    def send(self, bench: Bench, body: bytes, queue: str = "q") -> None:
        bench.shard.submit(Send(queue=queue, bodies=[body]), self.append)

    async def come(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self) < count:
                await asyncio.sleep(0)
        assert [call.error for call in self] == [None] * len(self)


def test_a_message_that_comes_alone_is_pushed_in_the_same_turn_and_answered_after_its_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        assert bench.subscriber.bodies() == [b"a"]
        gate, answers = bench.hold_commits(), Answers()
        answers.send(bench, b"b")
        assert bench.shard.step_now()
        assert bench.subscriber.bodies() == [b"b"]
        await bench.reached(gate)
        await bench.turns()
        assert not answers
        answers.send(bench, b"c")
        assert bench.shard.step_now(), "also while another one is being written"
        assert bench.subscriber.bodies() == [b"c"]
        gate.open()
        await answers.come(2)
        assert [call.reply.first for call in answers] == [1, 2]

    run(scenario)


def test_a_message_does_not_wait_for_acks_that_wait_for_company_and_they_are_not_forgotten() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        await bench.send(b"b")
        bench.subscriber.bodies()
        answers = Answers()
        for number in range(2):
            bench.shard.submit(Ack(queue="q", spans=[Span(number, number, 1)], patient=True), answers.append)
        answers.send(bench, b"c")
        assert bench.shard.step_now()
        assert bench.subscriber.bodies() == [b"c"]
        await answers.come(3)
        assert [call.reply.count for call in answers] == [1, 1, 1]
        assert (await bench.shard.call(QueueStats(name="q"))).messages == 1

    run(scenario)


def test_acks_whose_time_is_up_are_not_put_off_by_messages_that_hurry() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        answers, ack, sent = Answers(), Answers(), 0
        bench.shard.submit(Ack(queue="q", spans=[Span(0, 0, 1)], patient=True), ack.append)
        async with asyncio.timeout(10):
            while not ack:  # one who sends and sends
                answers.send(bench, b"more")
                bench.shard.step_now()
                sent += 1
                await asyncio.sleep(0)
        await answers.come(sent)

    run(scenario)


def test_messages_that_come_together_go_through_one_step() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        bench.subscriber.bodies()
        answers = Answers()
        answers.send(bench, b"b")
        answers.send(bench, b"c")
        assert not bench.shard.step_now()
        await bench.turns()
        assert [delivery.count for delivery in bench.subscriber.deliveries] == [2]
        await answers.come(2)

    run(scenario)


def test_only_one_message_a_turn_is_in_a_hurry_and_what_follows_shares_a_step() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        bench.subscriber.bodies()
        answers = Answers()
        for number in range(5):
            answers.send(bench, b"%d" % number)
            assert bench.shard.step_now() == (number == 0)
        await answers.come(5)
        assert [delivery.count for delivery in bench.subscriber.deliveries] == [1, 4]
        answers.send(bench, b"next")
        assert bench.shard.step_now()
        await answers.come(6)

    run(scenario)


def test_what_hurries_is_no_part_of_the_step_that_is_about_to_be_written(breaking: pytest.MonkeyPatch) -> None:
    """It is done again if what runs ahead fails, and must not be there already."""

    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.send(b"a")
        bench.subscriber.bodies()
        answers = Answers()

        def come_between() -> None:
            answers.send(bench, b"c")
            assert not bench.shard.step_now(), "the changes of the step before are still the broker's"

        gate = bench.hold_commits()
        answers.send(bench, b"b")
        asyncio.get_running_loop().call_soon(come_between)  # after the step, and before it is given to the thread
        await bench.reached(gate)
        broker = bench.shard.shard.broker
        finish, calls = broker.finish, [1]

        def fail_once(now_ms: int) -> None:
            if calls:
                calls.pop()
                raise StoreError("it cannot be read")
            finish(now_ms)

        breaking.setattr(broker, "finish", fail_once)
        answers.send(bench, b"d")
        await bench.turns()
        gate.open()
        await answers.come(3)
        assert (await bench.shard.call(QueueStats(name="q"))).messages == 4

    run(scenario)


def test_nothing_is_in_a_hurry_that_has_to_wait_for_its_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(CreateQueue(name="safe"))
        answers = Answers()
        answers.send(bench, b"a")
        assert not bench.shard.step_now(), "nobody has got anything so far"
        await answers.come(1)
        answers.send(bench, b"b", queue="safe")
        assert not bench.shard.step_now()
        await answers.come(2)
        bench.clock.advance_ms(APART_MS)
        answers.send(bench, b"c")
        assert not bench.shard.step_now(), "it is a while since anybody got anything"
        await answers.come(3)

    run(scenario)


def test_nothing_is_in_a_hurry_while_another_step_is_committed_in_its_thread() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(CreateQueue(name="safe"))
        answers = Answers()
        answers.send(bench, b"a")
        await answers.come(1)
        bench.clock.advance_ms(APART_MS)
        gate = bench.hold_commits()
        answers.send(bench, b"safe", queue="safe")
        await bench.reached(gate)
        bench.clock.advance_ms(-1)  # as if something had left in this moment
        answers.send(bench, b"b")
        assert not bench.shard.step_now()
        await bench.turns()
        assert bench.subscriber.bodies() == [b"a"]
        gate.open()
        await answers.come(3)
        assert bench.subscriber.bodies() == [b"b"]

    run(scenario, commit_in_thread=True)


# -- one step after the other --


def test_a_call_that_comes_as_a_step_is_written_shares_no_step_with_another_one() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(CreateQueue(name="safe"))
        gate, (sent,) = await bench.held_up()
        bench.clock.advance_ms(5 * APART_MS)
        one, two = asyncio.Event(), asyncio.Event()
        answers: list[Call] = []

        def answered(event: asyncio.Event) -> Callable[[Call], None]:
            return lambda call: (answers.append(call), event.set())  # type: ignore[func-returns-value]

        second = Gate()
        bench.store.on_commit = second.hold
        gate.open()
        time.sleep(0.1)  # the step is written, and nobody was told yet; then a call comes in the same turn
        bench.shard.submit(Send(queue="safe", bodies=[b"1"]), answered(one))
        await sent
        await bench.reached(second)
        bench.shard.submit(Send(queue="safe", bodies=[b"2"]), answered(two))
        await bench.turns()
        bench.store.full = True
        bench.store.on_commit = lambda changes: setattr(bench.store, "full", False)
        second.open()
        await asyncio.gather(one.wait(), two.wait())
        kinds = {type(call.error) for call in answers}
        assert kinds <= {DiskFull, type(None)}
        confirmed = sum(call.error is None for call in answers)
        assert (await bench.shard.call(QueueStats(name="safe"))).messages == confirmed

    run(scenario, commit_in_thread=True)


def test_what_runs_ahead_is_no_part_of_the_step_that_is_written_next(breaking: pytest.MonkeyPatch) -> None:
    """It is done again if it fails, and must not be there already."""

    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(CreateQueue(name="once", config=QueueConfig(policy="consume_once")))
        loop, gate = asyncio.get_running_loop(), bench.hold_commits()
        got: list[Call] = []
        done = asyncio.Event()

        def fail(*_: Any) -> None:
            raise StoreError("the disk cannot be read")

        def fail_and_send() -> None:
            breaking.setattr(bench.shard.shard.broker, "finish", fail)
            send = Send(queue="once", bodies=[b"S"])
            bench.shard.submit(send, lambda call: (got.append(call), done.set()))  # type: ignore[func-returns-value]

        def answered(_: Call) -> None:
            loop.call_soon(fail_and_send)
            bench.shard.submit(Send(queue="q", bodies=[b"x"]), lambda _: None)

        bench.shard.submit(Send(queue="q", bodies=[b"a"]), answered)
        await bench.pushed(1)
        await bench.reached(gate)
        ahead = bench.send(b"b")
        await bench.pushed(1)
        bench.store.on_commit = lambda changes: None
        gate.open()
        await ahead
        await asyncio.wait_for(done.wait(), 5)
        assert got[0].error is None
        assert (await bench.shard.call(QueueStats(name="once"))).messages == 1

    run(scenario)


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_one_who_sends_and_sends_does_not_starve_the_others(is_subscribed: bool) -> None:
    async def scenario(bench: Bench) -> None:
        if is_subscribed:
            await bench.subscribe(credit=1_000_000)
        else:
            await bench.shard.call(CreateQueue(name="q", config=UNSYNCED))
        await bench.send(b"0")
        sent, is_over = 0, False

        async def send_on() -> None:
            nonlocal sent
            while not is_over and sent < 300:
                await bench.shard.call(Send(queue="q", bodies=[b"x"]))
                sent += 1

        sending = asyncio.create_task(send_on())
        while sent < 5:
            await asyncio.sleep(0)
        before = sent
        await bench.begin(Ack(queue="q", spans=[Span(0, 0, 1)]) if is_subscribed else Receive(queue="q", wait_ms=0))
        after, is_over = sent, True
        await sending
        assert after - before < 10

    run(scenario)


def test_credit_that_came_with_what_has_left_is_not_given_twice_when_the_disk_is_full() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=1)
        gate, sends = await bench.held_up()
        sends.append(bench.send(b"b"))
        await bench.turns()
        credit = bench.begin(AddCredit(subscription=bench.subscription, credit=3))
        assert await bench.pushed(1) == [b"b"]
        bench.store.full = True
        gate.open()
        for sent in sends:
            with pytest.raises(DiskFull):
                await sent
        await credit
        bench.store.full = False
        bench.store.on_commit = lambda changes: None
        bench.clock.advance_ms(FULL_PAUSE_MS)
        for number in range(8):
            await bench.send(str(number).encode())
        assert len(bench.subscriber.bodies()) == 2

    run(scenario)


def test_a_subscription_is_answered_before_it_is_pushed_anything() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(CreateQueue(name="waiting", config=UNSYNCED))
        await bench.send(b"one", queue="waiting")
        session = await bench.shard.call(OpenSession(name="late", bound=True))
        order: list[str] = []

        class Late(Subscriber):
            def settle(self) -> None:
                order.append("pushed")

        gate, sends = await bench.held_up()
        sends.append(bench.send(b"b"))
        await bench.pushed(1)  # it ran ahead, and the subscription goes with it
        subscribe = Subscribe(queue="waiting", session=session, ticket=Late(), credit=9)
        bench.shard.submit(subscribe, lambda _: order.append("answered"))
        await bench.turns()
        gate.open()
        await asyncio.gather(*sends)
        async with asyncio.timeout(10):
            while len(order) < 2:
                await asyncio.sleep(0)
        assert order == ["answered", "pushed"]

    run(scenario)


# -- over a restart --


def test_after_a_crash_numbers_go_on_behind_those_that_were_set_aside() -> None:
    async def crash(store: TroubledStore) -> None:
        bench = Bench(store)
        await bench.subscribe()
        assert (await bench.send(b"a")).first == 0

    async def after(store: TroubledStore) -> int:
        bench = Bench(store)
        first = (await bench.send(b"b")).first
        await bench.shard.close()
        return first

    store = TroubledStore()
    asyncio.run(crash(store))
    reader = Broker.open(store, 0, b"", None)
    assert reader.queues["q"].next_sequence == 1, "who only reads must not skip what is still to come"
    assert asyncio.run(after(store)) == AHEAD
    assert asyncio.run(after(store)) == AHEAD + 1, "it was closed in order, and nothing is skipped"


def test_numbers_are_set_aside_again_before_they_run_out() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=1_000_000)
        had_at_commit: list[int] = []
        bench.store.on_commit = lambda changes: had_at_commit.append(
            sum(delivery.count for delivery in bench.subscriber.deliveries)
        )
        for number in range(3):
            await bench.begin(Send(queue="q", bodies=[b""] * (AHEAD // 2 - 1)))
            await bench.send(b"last")
            assert len(bench.subscriber.bodies()) == AHEAD // 2
            assert had_at_commit == [AHEAD // 2 - 1, AHEAD // 2], number
            had_at_commit.clear()

    run(scenario)


def test_a_message_beyond_what_was_set_aside_waits_for_its_commit() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe(credit=1_000_000)
        had_at_commit: list[int] = []
        bench.store.on_commit = lambda changes: had_at_commit.append(
            sum(delivery.count for delivery in bench.subscriber.deliveries)
        )
        await bench.begin(Send(queue="q", bodies=[b""] * (AHEAD + 1)))
        assert had_at_commit == [0]
        assert len(bench.subscriber.bodies()) == AHEAD + 1

    run(scenario)


def test_a_queue_that_its_first_send_makes_is_on_the_disk_before_anything_leaves() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.subscribe()
        await bench.shard.call(DeleteQueue(name="q"))
        assert not list(bench.store.scan(b"\x12")), "nothing is left of what was set aside"
        gate = bench.hold_commits()
        bench.subscriber = Subscriber()
        session = await asyncio.wait_for(_ended(bench, gate), 10)
        assert session > 0

    async def _ended(bench: Bench, gate: Gate) -> int:
        opening = bench.begin(OpenSession(name="client", bound=True))
        gate.open()
        session: int = await opening
        gate = bench.hold_commits()
        tasks = [
            bench.begin(CreateQueue(name="q", config=UNSYNCED)),
            bench.begin(Subscribe(queue="q", session=session, ticket=bench.subscriber, credit=9)),
            bench.send(b"a"),
        ]
        await bench.reached(gate)
        assert bench.subscriber.bodies() == []
        gate.open()
        await asyncio.gather(*tasks)
        assert bench.subscriber.bodies() == [b"a"]
        return session

    run(scenario, commit_in_thread=True)
