from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import penstock
from penstock.core.commands import Command, Delivery, Heartbeat, OpenSession, Receive, Send, SetCredit, Subscribe
from penstock.server.shard import Call, Shard
from penstock.server.tasks import AsyncShard
from tests.client.adapter import ENTROPY, World
from tests.clock import ManualClock
from tests.server.bare import BareShard, bodies
from tests.server.stores import Gate, TroubledStore


class Unknown(Command):
    """A command that the broker does not know: a bug."""


def test_a_reply_leaves_only_after_its_commit(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    gate = Gate()
    store.on_commit = gate.hold
    sender = threading.Thread(target=ps.queue("orders").send, args=(b"x",))
    sender.start()
    assert gate.reached.wait(10)
    assert sender.is_alive()
    gate.open()
    sender.join(10)
    assert not sender.is_alive()


def test_calls_that_come_during_a_commit_share_the_next_one(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    before = store.commits
    gate = Gate()
    store.on_commit = gate.hold
    threads = [threading.Thread(target=ps.queue("orders").send, args=(b"x",)) for _ in range(20)]
    threads[0].start()
    assert gate.reached.wait(10)
    for thread in threads[1:]:
        thread.start()
    gathered = threading.Event()
    while _gathered(world) < 19:
        gathered.wait(0.001)
    gate.open()
    for thread in threads:
        thread.join(10)
    assert store.commits - before == 2
    assert ps.queue("orders").stats().messages == 20


def _gathered(world: World) -> int:
    driver = world._driver
    inner = getattr(driver, "_inner", driver)
    if world.ps.__class__.__name__ == "Driven" and not world.commit_in_thread:
        return len(world._loop.loop._ready)  # type: ignore[union-attr, attr-defined]
    return len(inner._inbox)


def test_leases_wait_a_little_for_a_commit_to_go_along_with(world: World, store: TroubledStore, ps: Any) -> None:
    ps.queue("orders").send_many([b"a", b"b"])
    before = store.commits
    ps.queue("orders").receive()
    assert store.commits == before
    world.advance(0.019)
    assert store.commits == before
    world.advance(0.001)
    assert store.commits == before + 1
    world.advance(1)
    assert store.commits == before + 1


def test_where_commits_cost_more_leases_wait_longer() -> None:
    store = TroubledStore()
    bare = BareShard(store, lazy_commit_ms=100)
    bare.do(Send("orders", [b"a"]))
    before = store.commits
    bare.do(Receive(queue="orders"))
    assert bare.shard.wake_at_ms() == bare.clock.now_ms() + 100
    bare.advance(0.099)
    assert store.commits == before
    bare.advance(0.001)
    assert store.commits == before + 1


def test_a_lease_that_must_not_be_forgotten_is_committed_before_it_is_told(store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders", policy="consume_once")
    ps.queue("orders").send(b"a")
    before = store.commits
    ps.queue("orders").receive()
    assert store.commits == before + 1


def test_a_bug_is_told_to_the_call_that_met_it_and_to_no_other(bare: BareShard) -> None:
    bare.do(Send(queue="orders", bodies=[b"before"]))
    one, bug, two = bare.run(Send(queue="orders", bodies=[b"1"]), Unknown(), Send(queue="orders", bodies=[b"2"]))
    assert isinstance(bug.error, KeyError)
    assert one.error is None and two.error is None
    assert bodies(bare.do(Receive(queue="orders", limit=9))) == [b"before", b"1", b"2"]


def test_a_bug_does_not_disturb_who_waits(world: World, ps: Any) -> None:
    ps.create_queue("orders")
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(ps.queue("orders").receive(wait=20)))
    receiver.start()
    world.wait_for_receivers("orders")
    with pytest.raises(KeyError):
        world.call(Unknown())
    ps.queue("orders").send(b"x")
    receiver.join(10)
    assert [message.body for message in received] == [b"x"]


class Subscriber:
    """A ticket that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.settled: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.taken.append(delivery)

    def settle(self) -> None:
        self.settled += self.taken
        self.taken = []


def test_a_subscription_is_pushed_what_its_credit_allows(world: World, ps: Any) -> None:
    ps.create_queue("orders")
    subscriber = Subscriber()
    subscription = world.call(Subscribe(queue="orders", credit=2, ticket=subscriber)).subscription
    ps.queue("orders").send_many([b"a", b"b", b"c"])
    assert sum(delivery.count for delivery in subscriber.settled) == 2
    world.call(SetCredit(subscription=subscription, credit=5))
    assert sum(delivery.count for delivery in subscriber.settled) == 3


def test_a_subscription_hears_of_it_when_the_shard_lost_its_state(world: World, store: TroubledStore, ps: Any) -> None:
    ps.create_queue("orders")
    subscriber = Subscriber()
    world.call(Subscribe(queue="orders", credit=2, ticket=subscriber))
    store.fail_next(kept=False)
    with pytest.raises(penstock.CommitFailed):
        ps.queue("orders").send(b"lost")
    assert [type(delivery.error) for delivery in subscriber.settled] == [penstock.CommitFailed]


def test_connections_of_a_process_that_crashed_end_although_the_first_step_fails() -> None:
    """Ends that were not committed yet must not be forgotten with the broker that was about to."""
    store = TroubledStore()
    crashed = BareShard(store)
    session = crashed.do(OpenSession(name="client", bound=True))
    crashed.do(Send(queue="orders", bodies=[b"a"]))
    crashed.do(Receive(queue="orders", limit=1, session=session))
    crashed.advance(1)
    bare = BareShard(store)
    (bug,) = bare.run(Unknown())
    assert isinstance(bug.error, KeyError)
    assert bodies(bare.do(Receive(queue="orders", limit=1))) == [b"a"]


def test_a_connection_of_this_process_outlives_a_bug(bare: BareShard) -> None:
    session = bare.do(OpenSession(name="client", bound=True))
    bare.run(Unknown())
    assert bare.do(Heartbeat(session=session)) is None


def test_one_who_fails_to_take_its_answer_does_not_stop_the_shard(store: TroubledStore) -> None:
    async def run() -> None:
        shard = AsyncShard(Shard(store.open, ManualClock(), lambda: ENTROPY))

        def fail(call: Call) -> None:
            raise RuntimeError("a bug of a front end")

        async with asyncio.timeout(10):
            shard.submit(Send(queue="orders", bodies=[b"1"]), fail)
            await shard.call(Send(queue="orders", bodies=[b"2"]))
            assert bodies(await shard.call(Receive(queue="orders", limit=9, wait_ms=0))) == [b"1", b"2"]
            await shard.close()

    asyncio.run(run())
