"""Subscriptions and the shard: they outlive a broker that is replaced, and hear of it when they cannot."""

from __future__ import annotations

import os

from penstock.core.commands import (
    AddCredit,
    Command,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    Delivery,
    EndSession,
    OpenSession,
    Send,
    SetCredit,
    Subscribe,
)
from penstock.core.errors import StoreError
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard, Step
from tests.server.stores import TroubledStore


class Subscriber:
    """A ticket that keeps what it is given."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def settle(self) -> None:
        """All is kept already."""

    def bodies(self) -> list[bytes]:
        runs = [run for delivery in self.deliveries for run in delivery.runs]
        self.deliveries.clear()
        return [body for run in runs for body in run.chunk.body_list(run.start, run.stop)]


class Bench:
    """A shard over a troubled store, with a subscriber that may hold five messages, or be pushed five."""

    def __init__(self, *, in_flight: bool = True) -> None:
        self.store = TroubledStore()
        self.shard = Shard(self.store.open, SystemClock(), lambda: os.urandom(64))
        self.subscriber = Subscriber()
        self.do(CreateQueue(name="q"))
        session = self.do(OpenSession(name="client", bound=True)).reply
        subscribe = Subscribe(queue="q", session=session, ticket=self.subscriber, credit=5, in_flight=in_flight)
        self.number = self.do(subscribe).reply.subscription

    def do(self, command: Command) -> Call:
        call = Call(command)
        self.shard.run(Step([call]))
        return call

    def send(self, *bodies: bytes) -> Call:
        return self.do(Send(queue="q", bodies=list(bodies)))


def test_a_subscription_outlives_a_full_disk() -> None:
    bench = Bench()
    bench.send(b"a", b"b")
    assert bench.subscriber.bodies() == [b"a", b"b"]
    bench.store.full = True
    assert bench.send(b"c").error is not None
    assert bench.shard.broker.held(bench.number) == 2
    bench.store.full = False
    bench.shard._full_until_ms = 1  # the pause is over
    assert bench.send(b"c", b"d", b"e", b"f", b"g").error is None
    assert bench.subscriber.bodies() == [b"c", b"d", b"e"]
    bench.do(SetCredit(subscription=bench.number, credit=6))
    assert bench.subscriber.bodies() == [b"f"]


def test_what_a_full_disk_kept_from_a_subscription_costs_it_no_credit() -> None:
    bench = Bench(in_flight=False)
    bench.store.full = True
    assert bench.send(b"a", b"b", b"c", b"d", b"e").error is not None
    assert bench.subscriber.bodies() == []
    bench.store.full = False
    bench.shard._full_until_ms = 1  # the pause is over
    assert bench.send(b"a", b"b", b"c", b"d", b"e", b"f").error is None
    assert bench.subscriber.bodies() == [b"a", b"b", b"c", b"d", b"e"]


def test_what_a_full_disk_kept_from_a_subscription_is_not_on_its_way() -> None:
    bench = Bench(in_flight=False)
    bench.store.full = True
    assert bench.send(b"a", b"b", b"c").error is not None
    bench.store.full = False
    bench.shard._full_until_ms = 1  # the pause is over
    bench.do(SetCredit(subscription=bench.number, credit=2, arrived=0))
    bench.send(b"a", b"b", b"c")
    assert bench.subscriber.bodies() == [b"a", b"b"]


def test_credit_in_a_step_that_is_done_again_counts_once() -> None:
    bench = Bench(in_flight=False)
    credit = Call(AddCredit(subscription=bench.number, credit=2))
    bug = Call(Send(queue="q", bodies=[1]))  # type: ignore[list-item]
    bench.shard.run(Step([credit, bug]))
    assert credit.error is None
    bench.send(*(b"%d" % number for number in range(10)))
    assert len(bench.subscriber.bodies()) == 7


def test_a_subscription_outlives_a_command_with_a_bug() -> None:
    bench = Bench()
    call = bench.do(Send(queue="q", bodies=[1]))  # type: ignore[list-item]
    assert isinstance(call.error, TypeError)
    bench.send(b"a")
    assert bench.subscriber.bodies() == [b"a"]


def test_a_subscription_whose_queue_is_gone_with_the_broker_hears_of_it() -> None:
    bench = Bench()
    bug, delete = Call(Send(queue="q", bodies=[1])), Call(DeleteQueue(name="q"))  # type: ignore[list-item]
    bench.shard.run(Step([delete, bug]))
    assert isinstance(bug.error, TypeError)
    assert any(delivery.error is not None for delivery in bench.subscriber.deliveries)


def test_a_failed_commit_ends_subscriptions_and_they_hear_of_it() -> None:
    bench = Bench()
    bench.store.fail_next(kept=False)
    assert isinstance(bench.send(b"a").error, StoreError)
    (delivery,) = bench.subscriber.deliveries
    assert isinstance(delivery.error, StoreError)


def test_sessions_of_connections_end_when_another_process_opens_the_store() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.shard.close()
    again = Shard(bench.store.open, SystemClock(), lambda: os.urandom(64))
    assert again.broker.sessions == {}
    assert again.broker.queues["q"].channels["main"].ready == 1


def test_the_shard_keeps_nothing_of_a_subscriber_whose_session_or_queue_is_gone() -> None:
    for end in (EndSession(session=1), DeleteQueue(name="q"), DeleteChannel(queue="q", channel="main")):
        bench = Bench()
        assert bench.shard._subscribers == {bench.subscriber}
        bench.do(end)
        assert bench.subscriber.deliveries[-1].error is not None
        assert bench.shard._subscribers == set()
