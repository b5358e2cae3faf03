"""A shard that another process can take over hands nothing out without a proof that it is still the owner."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.core.commands import (
    Ack,
    Command,
    CreateQueue,
    Delivery,
    OpenSession,
    ReadRecords,
    Receive,
    Send,
    Subscribe,
)
from penstock.core.errors import PenstockError
from penstock.server.proof import PROOF_S, Proof
from penstock.server.shard import Call, Shard, Step
from penstock.server.tasks import AsyncShard
from penstock.store.errors import CommitFailed, StoreDamaged
from tests.client.adapter import ENTROPY
from tests.clock import ManualClock
from tests.server.bare import bodies, spans
from tests.server.stores import TroubledStore


class Moved(PenstockError):
    """The test's own word for it."""


class Proven:
    """A shard with a proof, whose steady clock a test sets."""

    def __init__(self, store: TroubledStore | None = None) -> None:
        self.store = store or TroubledStore()
        self.clock = ManualClock()
        self.steady_s = 100.0
        self.losses: list[Exception] = []
        self.proof = Proof(lambda: Moved("look elsewhere"), self.losses.append, now_s=lambda: self.steady_s)
        self.shard = Shard(self.store.open, self.clock, lambda: ENTROPY, proof=self.proof)

    def pass_s(self, seconds: float) -> None:
        self.steady_s += seconds
        self.clock.advance_ms(round(seconds * 1_000))

    def start(self, command: Command) -> tuple[Call, Step]:
        call = Call(command)
        step = Step([call])
        self.shard.begin(step)
        return call, step

    def step(self, *commands: Command) -> list[Call]:
        calls = [Call(command) for command in commands]
        self.shard.run(Step(list(calls)))
        return calls

    def do(self, command: Command) -> Any:
        return self.step(command)[0].result()

    def send(self, *wanted: bytes) -> None:
        self.do(Send(queue="orders", bodies=list(wanted)))


@pytest.fixture
def proven() -> Proven:
    return Proven()


def receive(wait_ms: int = 0) -> Receive:
    return Receive(queue="orders", limit=10, wait_ms=wait_ms)


def test_a_step_hands_out_without_a_commit_while_the_last_one_is_young(proven: Proven) -> None:
    proven.send(b"a")
    commits = proven.store.commits
    proven.pass_s(PROOF_S - 0.01)
    assert bodies(proven.do(receive())) == [b"a"]
    assert proven.store.commits == commits


def test_a_step_that_hands_out_commits_first_when_the_last_commit_is_old(proven: Proven) -> None:
    proven.send(b"a")
    commits = proven.store.commits
    proven.pass_s(PROOF_S)
    assert bodies(proven.do(receive())) == [b"a"]
    assert proven.store.commits == commits + 1


def test_a_commit_proves_from_when_it_began(proven: Proven) -> None:
    proven.send(b"a")

    def take_long(changes: object) -> None:
        proven.steady_s += PROOF_S / 2

    proven.store.on_commit = take_long
    proven.send(b"b")
    proven.store.on_commit = lambda changes: None
    commits = proven.store.commits
    proven.pass_s(PROOF_S / 2)
    assert bodies(proven.do(receive())) == [b"a", b"b"]
    assert proven.store.commits == commits + 1


def test_a_step_that_hands_out_nothing_proves_nothing(proven: Proven) -> None:
    proven.do(CreateQueue(name="orders"))
    commits = proven.store.commits
    proven.pass_s(60)
    assert not proven.do(receive()).runs
    assert proven.store.commits == commits


def test_records_read_by_offset_need_a_proof_as_well(proven: Proven) -> None:
    proven.send(b"a")
    proven.pass_s(PROOF_S)
    proven.store.fail_next(kept=False)
    call = proven.step(ReadRecords(queue="orders", offset=0, limit=1))[0]
    assert isinstance(call.error, CommitFailed)
    assert call.reply is None


def test_an_owner_that_was_fenced_hands_out_nothing_and_is_not_opened_again(proven: Proven) -> None:
    proven.send(b"a")
    proven.pass_s(PROOF_S)
    proven.store.fail_next(kept=False, error=CommitFailed("fenced"))
    call = proven.step(receive())[0]
    assert isinstance(call.error, CommitFailed)
    assert call.reply is None
    assert [str(error) for error in proven.losses] == ["fenced"]
    for command in (receive(), Send(queue="orders", bodies=[b"b"])):
        assert isinstance(proven.step(command)[0].error, Moved)
    assert proven.store.opened == 1
    assert len(proven.losses) == 1


def test_who_waits_in_a_shard_that_is_lost_is_told_to_look_elsewhere(proven: Proven) -> None:
    proven.do(CreateQueue(name="orders"))
    waiting = proven.step(receive(wait_ms=60_000))[0]
    proven.store.fail_next(kept=False)
    proven.step(Send(queue="orders", bodies=[b"a"]))
    assert waiting.error is None
    assert proven.shard.wake_at_ms() == 0
    proven.step()
    assert isinstance(waiting.error, Moved)


def test_a_pause_between_the_commit_and_the_reply_withholds_the_messages(proven: Proven) -> None:
    proven.send(b"a")
    proven.pass_s(PROOF_S)
    call, step = proven.start(receive())
    assert step.changes is not None
    proven.shard.commit(step)
    assert not step.answered
    proven.pass_s(PROOF_S)
    proven.shard.finish(step)
    assert step.answered == [call]
    assert isinstance(call.error, Moved)
    assert call.reply is None
    assert proven.proof.withheld == 1
    assert proven.shard.wake_at_ms() == 0


def test_withheld_messages_go_back_and_count_no_attempt_if_the_shard_is_still_ours(proven: Proven) -> None:
    proven.send(b"a")
    proven.pass_s(PROOF_S)
    _, step = proven.start(receive())
    proven.shard.commit(step)
    proven.pass_s(PROOF_S)
    proven.shard.finish(step)
    delivery: Delivery = proven.do(receive())
    assert bodies(delivery) == [b"a"]
    assert [int(attempt) for run in delivery.runs for attempt in run.attempts] == [1]
    assert not proven.do(Ack(queue="orders", spans=spans(delivery))).refused


def test_a_waiting_receive_is_woken_with_messages_only_under_a_proof(proven: Proven) -> None:
    proven.do(CreateQueue(name="orders"))
    waiting = proven.step(receive(wait_ms=60_000))[0]
    _, step = proven.start(Send(queue="orders", bodies=[b"a"]))
    proven.shard.commit(step)
    proven.pass_s(PROOF_S)
    proven.shard.finish(step)
    assert waiting in step.answered
    assert isinstance(waiting.error, Moved)
    proven.step()
    assert bodies(proven.do(receive())) == [b"a"]


class Pushed:
    """A subscriber."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def settle(self) -> None:
        """Nothing to do."""


def test_a_subscription_whose_messages_were_withheld_ends_with_an_error(proven: Proven) -> None:
    proven.do(CreateQueue(name="orders"))
    session = proven.do(OpenSession(name="s"))
    pushed = Pushed()
    proven.do(Subscribe(queue="orders", channel="main", session=session, credit=10, ticket=pushed))
    _, step = proven.start(Send(queue="orders", bodies=[b"a"]))
    proven.shard.commit(step)
    proven.pass_s(PROOF_S)
    proven.shard.finish(step)
    assert [type(delivery.error) for delivery in pushed.deliveries] == [Moved]
    proven.send(b"b")
    assert len(pushed.deliveries) == 1
    assert bodies(proven.do(receive())) == [b"a", b"b"]


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_driver_for_tasks_finishes_every_step(in_thread: bool) -> None:
    async def scenario() -> None:
        proven = Proven()
        shard = AsyncShard(proven.shard, commit_in_thread=in_thread)
        waiting = asyncio.ensure_future(shard.call(Receive(queue="orders", limit=1, wait_ms=60_000)))
        await shard.call(Send(queue="orders", bodies=[b"a"]))
        assert bodies(await waiting) == [b"a"]
        proven.store.fail_next(kept=False)
        with pytest.raises(CommitFailed):
            await shard.call(Send(queue="orders", bodies=[b"b"]))
        with pytest.raises(Moved):
            await shard.call(Send(queue="orders", bodies=[b"b"]))
        await shard.close()

    asyncio.run(scenario())


def test_a_shard_whose_cache_is_damaged_is_given_up_before_anything_is_skipped(proven: Proven) -> None:
    proven.send(b"a")
    proven.send(b"b")
    proven = Proven(proven.store)
    proven.store.unreadable = StoreDamaged("the table is damaged")
    with pytest.raises(StoreDamaged):
        proven.do(receive())
    assert len(proven.losses) == 1
    proven.store.unreadable = None
    with pytest.raises(Moved):
        proven.do(receive())
    assert bodies(Proven(proven.store).do(receive())) == [b"a", b"b"]
