"""Subscriptions that limit what is in flight, in messages and bytes; settling by session; sessions of connections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.errors import InvalidRequest
from penstock.core.storage.chunk import PackedBodies
from tests.core.driver import START_MS, BrokerDriver


class Subscriber:
    """A session with a subscription to channel `ch` of queue `q` that limits what it holds."""

    def __init__(
        self, driver: BrokerDriver, credit: int, *, room_bytes: int | None = None, lease_ms: int = 30_000
    ) -> None:
        self.driver = driver
        self.session = driver.do(c.OpenSession(name="client", bound=True))
        self.ticket = f"ticket {self.session}"
        self.number = driver.do(
            c.Subscribe(
                queue="q",
                channel="ch",
                credit=credit,
                session=self.session,
                ticket=self.ticket,
                in_flight=True,
                room_bytes=room_bytes,
                lease_ms=lease_ms,
            )
        ).subscription

    def got(self) -> list[int]:
        """The sequence numbers that it was pushed since the last time."""
        runs = [run for delivery in self.driver.woken.pop(self.ticket, []) for run in delivery.runs]
        return [sequence for run in runs for sequence in range(run.first, run.first + run.count)]

    def settle(self, kind: type[c.Command], sequences: list[int], **fields: Any) -> c.Settled:
        numbers = np.array(sequences, dtype=np.int64)
        settled: c.Settled = self.driver.do(
            kind(queue="q", channel="ch", sequences=numbers, session=self.session, **fields)  # type: ignore[call-arg]
        )
        return settled

    def finish(self, *sequences: int) -> c.Settled:
        return self.settle(c.AckSequences, list(sequences))

    def requeue(self, *sequences: int, delay_ms: int = 0) -> c.Settled:
        return self.settle(c.ReleaseSequences, list(sequences), delay_ms=delay_ms)

    @property
    def held(self) -> int:
        return self.driver.broker.held(self.number)


def desk_with(messages: int, **config: Any) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(channels=("ch",), max_receives=0, **config)
    if messages:
        driver.send(*[b"%d" % number for number in range(messages)])
    return driver


def test_no_more_is_pushed_than_the_session_may_hold() -> None:
    subscriber = Subscriber(desk_with(10), credit=3)
    assert subscriber.got() == [0, 1, 2]
    subscriber.driver.send(b"x")
    assert subscriber.got() == []
    assert subscriber.held == 3


def test_every_message_that_is_done_makes_room_for_another_in_the_same_step() -> None:
    subscriber = Subscriber(desk_with(10), credit=3)
    subscriber.got()
    assert subscriber.finish(1).count == 1
    assert subscriber.got() == [3]
    assert subscriber.finish(0, 2, 3).count == 3
    assert subscriber.got() == [4, 5, 6]


def test_a_requeued_message_makes_room_and_comes_again_with_one_attempt_more() -> None:
    subscriber = Subscriber(desk_with(1), credit=1)
    subscriber.got()
    subscriber.requeue(0)
    (delivery,) = subscriber.driver.woken[subscriber.ticket]
    assert (delivery.runs[0].first, delivery.runs[0].attempt) == (0, 2)
    assert subscriber.held == 1


def test_a_message_requeued_with_a_delay_comes_when_it_is_over() -> None:
    subscriber = Subscriber(desk_with(1), credit=1)
    subscriber.got()
    subscriber.requeue(0, delay_ms=500)
    assert subscriber.held == 0
    subscriber.driver.advance(499)
    assert subscriber.got() == []
    subscriber.driver.advance(1)
    assert subscriber.got() == [0]


def test_a_lease_that_runs_out_makes_room_and_is_counted() -> None:
    subscriber = Subscriber(desk_with(5), credit=2, lease_ms=1_000)
    assert subscriber.got() == [0, 1]
    subscriber.driver.advance(1_000)
    assert subscriber.got() == [0, 2]
    assert subscriber.held == 2
    assert subscriber.driver.do(c.QueueStats(name="q")).channels["ch"].expired == 2


def test_less_credit_than_is_held_pushes_nothing_until_enough_is_done() -> None:
    subscriber = Subscriber(desk_with(10), credit=4)
    subscriber.got()
    subscriber.driver.do(c.SetCredit(subscription=subscriber.number, credit=2))
    subscriber.finish(0, 1)
    assert subscriber.got() == []
    subscriber.finish(2)
    assert subscriber.got() == [4]


def test_credit_that_is_added_raises_the_limit() -> None:
    subscriber = Subscriber(desk_with(10), credit=1)
    subscriber.driver.do(c.AddCredit(subscription=subscriber.number, credit=2))
    assert subscriber.got() == [0, 1, 2]


def test_acknowledging_by_span_makes_room_as_well() -> None:
    subscriber = Subscriber(desk_with(10), credit=2)
    subscriber.got()
    subscriber.driver.do(c.Ack(queue="q", channel="ch", spans=[c.Span(0, 0, 1)]))
    assert subscriber.got() == [2]


def test_acknowledging_messages_that_were_sent_one_by_one_makes_room_for_as_many() -> None:
    driver = desk_with(0)
    subscriber = Subscriber(driver, credit=3)
    for number in range(7):
        driver.send(b"%d" % number)
    assert subscriber.got() == [0, 1, 2]
    assert driver.do(c.Ack(queue="q", channel="ch", spans=[c.Span(0, 1, 1)])).count == 2
    assert (subscriber.got(), subscriber.held) == ([3, 4], 3)
    assert driver.do(c.Ack(queue="q", channel="ch", spans=[c.Span(2, 4, 1)])).count == 3
    assert (subscriber.got(), subscriber.held) == ([5, 6], 2)


def test_purging_the_channel_makes_room() -> None:
    subscriber = Subscriber(desk_with(10), credit=2)
    subscriber.got()
    subscriber.driver.do(c.PurgeChannel(queue="q", channel="ch"))
    assert subscriber.held == 0
    subscriber.driver.send(b"x", b"y", b"z")
    assert subscriber.got() == [10, 11]


def test_only_the_session_that_holds_a_message_can_settle_it() -> None:
    driver = desk_with(4)
    one, other = Subscriber(driver, credit=2), Subscriber(driver, credit=2)
    assert (one.got(), other.got()) == ([0, 1], [2, 3])
    settled = one.finish(1, 2, 99)
    assert settled.count == 1
    assert [(each.first, each.last) for each in settled.refused] == [(2, 2), (99, 99)]
    assert other.finish(2, 3).count == 2


def test_sequences_may_come_in_any_order_and_more_than_once() -> None:
    subscriber = Subscriber(desk_with(6), credit=6)
    assert subscriber.finish(5, 0, 3, 0, 5).count == 3
    assert subscriber.held == 3


def test_an_ack_says_when_the_messages_were_sent() -> None:
    driver = desk_with(2)
    driver.now_ms += 50
    driver.send(b"later")
    subscriber = Subscriber(driver, credit=3)
    assert subscriber.finish(0, 1, 2).sent == [(START_MS, 2), (START_MS + 50, 1)]


def test_an_ack_that_nobody_is_told_of_waits_for_no_commit() -> None:
    subscriber = Subscriber(desk_with(2), credit=2)
    broker = subscriber.driver.broker
    for durable, must_commit in ((False, False), (True, True)):
        ack = c.AckSequences(
            queue="q",
            channel="ch",
            sequences=np.array([int(durable)]),
            session=subscriber.session,
            durable=durable,
        )
        assert broker.handle(ack, subscriber.driver.now_ms).count == 1
        assert broker.must_commit == must_commit
    subscriber.driver.commit()


def test_touching_a_run_extends_it_but_not_past_the_most_that_it_may_be_held() -> None:
    subscriber = Subscriber(desk_with(3), credit=3, lease_ms=1_000)
    driver = subscriber.driver
    driver.advance(900)
    touched = subscriber.settle(c.ExtendSequences, [0, 1, 7], lease_ms=1_000, held_ms_max=1_500)
    assert touched.count == 2
    assert [each.first for each in touched.refused] == [7]
    driver.woken.clear()
    driver.advance(100)
    assert subscriber.got() == [2]
    driver.advance(499)
    assert subscriber.got() == []
    driver.advance(1)
    assert subscriber.got() == [0, 1]


def test_no_more_bytes_are_pushed_than_there_is_room_for_give_or_take_the_last_run() -> None:
    driver = BrokerDriver()
    driver.create(channels=("ch",))
    for _ in range(10):
        driver.send(bytes(100))
    subscriber = Subscriber(driver, credit=100, room_bytes=250)
    assert subscriber.got() == [0, 1, 2]
    driver.send(bytes(100))
    assert subscriber.got() == []
    driver.do(c.SetCredit(subscription=subscriber.number, room_bytes=1))
    assert subscriber.got() == [3]
    driver.do(c.SetCredit(subscription=subscriber.number, room_bytes=0))
    subscriber.finish(0)
    assert subscriber.got() == []


def test_a_limit_needs_a_session_and_a_session_has_one_such_subscription() -> None:
    subscriber = Subscriber(desk_with(0), credit=1)
    for session in (0, subscriber.session):
        with pytest.raises(InvalidRequest, match="needs a session"):
            subscriber.driver.do(c.Subscribe(queue="q", channel="ch", session=session, ticket="x", in_flight=True))


def test_one_who_has_room_is_not_starved_by_one_who_has_none() -> None:
    driver = desk_with(2)
    full, free = Subscriber(driver, credit=2), Subscriber(driver, credit=2)
    full.got()
    driver.send(b"x", b"y")
    assert free.got() == [2, 3]


def test_a_client_that_goes_leaves_its_messages_to_the_others_at_once() -> None:
    driver = desk_with(2)
    gone, stays = Subscriber(driver, credit=2), Subscriber(driver, credit=2)
    assert gone.got() == [0, 1]
    assert driver.do(c.EndSession(session=gone.session)) == 2
    assert stays.got() == [0, 1]


def test_sessions_of_connections_end_when_the_store_is_opened_again_and_others_do_not() -> None:
    driver = desk_with(4)
    subscriber = Subscriber(driver, credit=2)
    lasting = driver.do(c.OpenSession(name="rest", ttl_ms=60_000))
    assert driver.receive(1, channel="ch", session=lasting).count == 1
    driver.reopen()
    assert driver.broker.end_bound_sessions() == 1
    driver.step()
    assert set(driver.broker.sessions) == {lasting}
    stats = driver.do(c.QueueStats(name="q")).channels["ch"]
    assert (stats.ready, stats.leased) == (3, 1)
    assert subscriber.session not in driver.broker.sessions


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["finish", "requeue", "expire", "send", "credit"]), st.integers(0, 6))))
def test_what_is_held_is_always_what_was_pushed_and_not_settled(steps: list[tuple[str, int]]) -> None:
    driver = desk_with(8)
    subscriber = Subscriber(driver, credit=3, lease_ms=1_000)
    limit, held = 3, set(subscriber.got())
    for what, number in steps:
        some = sorted(held)[:number]
        if what == "finish" and some:
            assert subscriber.finish(*some).count == len(some)
            held -= set(some)
        elif what == "requeue" and some:
            assert subscriber.requeue(*some).count == len(some)
            held -= set(some)
        elif what == "expire":
            driver.advance(1_000)
            held.clear()
        elif what == "send":
            driver.send(*[b"x"] * (number + 1))
        elif what == "credit":
            driver.do(c.SetCredit(subscription=subscriber.number, credit=number))
            limit = number
        pushed = subscriber.got()
        assert len(pushed) == len(set(pushed))
        held |= set(pushed)
        assert subscriber.held == len(held)
        assert not pushed or len(held) <= limit
        assert driver.counts(channel="ch")[1] == len(held)


# -- packed bodies -----------------------------------------------------------------------------------------------------


def test_packed_bodies_arrive_as_others_do_alone_and_beside_each_other() -> None:
    driver = BrokerDriver()
    driver.create()
    uneven = PackedBodies(b"abbccc", np.array([0, 1, 3, 6], dtype=np.int32))
    even = PackedBodies.even(b"xxyy", 2)
    for sends in ([uneven], [even], [uneven, even, uneven], [even, [b"plain"], uneven]):
        driver.step(*[c.Send(queue="q", bodies=bodies) for bodies in sends])
        expected = [body for bodies in sends for body in bodies]
        delivery = driver.receive(100)
        assert [body for run in delivery.runs for body in run.chunk.body_list(run.start, run.stop)] == expected
        driver.ack(delivery)


def test_more_packed_bodies_than_a_chunk_holds_arrive_in_order() -> None:
    driver = BrokerDriver()
    driver.create()
    bodies = [b"%d" % number for number in range(10_000)]
    offsets = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    sent = driver.do(c.Send(queue="q", bodies=PackedBodies(b"".join(bodies), offsets)))
    assert (sent.first, sent.count) == (0, 10_000)
    delivery = driver.receive(10_000)
    assert [body for run in delivery.runs for body in run.chunk.body_list(run.start, run.stop)] == bodies


def test_packed_bodies_that_are_too_large_are_refused() -> None:
    driver = BrokerDriver()
    driver.create(message_bytes_max=2)
    with pytest.raises(InvalidRequest, match="message 1 has 3 bytes"):
        driver.do(c.Send(queue="q", bodies=PackedBodies(b"aabbb", np.array([0, 2, 5], dtype=np.int32))))
    driver.do(c.Send(queue="q", bodies=PackedBodies.even(b"aabb", 2)))


def test_a_queue_made_by_a_send_gets_the_configuration_that_the_send_gives() -> None:
    driver = BrokerDriver()
    config = driver.create("other", lease_ms=7).config
    driver.do(c.Send(queue="new", bodies=[b"x"], channels=(), config=config))
    info = driver.do(c.DescribeQueue(name="new"))
    assert (info.config.lease_ms, info.channels) == (7, [])
