"""Demand: those who wait are served in the step in which something becomes ready, and fairly."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import ChannelNotFound, InvalidRequest, QueueNotFound
from tests.core.driver import HOUR_MS, START_MS, Desk, bodies_of


def test_send_wakes_the_one_who_waits_in_the_same_step() -> None:
    desk = Desk()
    desk.create()
    desk.wait("poll", 10)
    desk.send(b"a", b"b")
    assert desk.take_woken("poll") == [b"a", b"b"]
    assert desk.counts() == (0, 2, 0)


def test_wait_runs_out_with_an_empty_delivery_at_its_deadline() -> None:
    desk = Desk()
    desk.create()
    desk.wait("poll", wait_ms=5_000)
    desk.advance(4_999)
    assert desk.woken == {}
    desk.advance(1)
    (delivery,) = desk.woken["poll"]
    assert (delivery.count, delivery.error) == (0, None)
    desk.send(b"a")
    assert desk.counts() == (1, 0, 0)


def test_queues_receive_wait_holds_unless_the_receive_says_otherwise() -> None:
    desk = Desk()
    desk.create(receive_wait_ms=3_000)
    assert desk.do(c.Receive(queue="q", ticket="poll")) is None
    assert desk.do(c.Receive(queue="q", ticket="other", wait_ms=0)).count == 0
    desk.advance(3_000)
    assert desk.woken["poll"][0].count == 0


def test_receive_without_a_ticket_does_not_wait() -> None:
    desk = Desk()
    desk.create()
    assert desk.do(c.Receive(queue="q", wait_ms=1_000)).count == 0


def test_first_come_first_served() -> None:
    desk = Desk()
    desk.create()
    for number in range(4):
        desk.wait(number)
    desk.send(b"a")
    desk.send(b"b", b"c")
    assert [desk.take_woken(number) for number in range(4)] == [[b"a"], [b"b"], [b"c"], []]


def test_little_is_shared_among_those_who_wait() -> None:
    desk = Desk()
    desk.create()
    for number in range(3):
        desk.wait(number, 10)
    desk.send(*(b"%d" % number for number in range(6)))
    assert [len(desk.take_woken(number)) for number in range(3)] == [2, 2, 2]


def test_expiry_release_and_due_time_wake_those_who_wait() -> None:
    desk = Desk()
    desk.send(b"a")
    delivery = desk.receive(lease_ms=1_000)
    desk.wait("expiry")
    desk.advance(1_000)
    assert desk.take_woken("expiry") == [b"a"]
    desk.do(c.PurgeQueue(name="q"))
    desk.send(b"b")
    delivery = desk.receive()
    desk.wait("release")
    desk.release(delivery)
    assert desk.take_woken("release") == [b"b"]
    desk.send(b"c", delay_ms=1_000)
    desk.wait("due")
    desk.advance(1_000)
    assert desk.take_woken("due") == [b"c"]


def test_end_of_pause_wakes_those_who_wait() -> None:
    desk = Desk()
    desk.create()
    desk.do(c.PauseChannel(queue="q", channel="main"))
    desk.wait("poll")
    desk.send(b"a")
    assert desk.woken == {}
    desk.do(c.PauseChannel(queue="q", channel="main", paused=False))
    assert desk.take_woken("poll") == [b"a"]


def test_end_of_session_wakes_those_who_wait() -> None:
    desk = Desk()
    session = desk.do(c.OpenSession(name="worker"))
    desk.send(b"a")
    desk.receive(session=session)
    desk.wait("poll")
    desk.do(c.EndSession(session=session))
    assert desk.take_woken("poll") == [b"a"]


def test_ack_that_unblocks_a_fifo_group_wakes_those_who_wait() -> None:
    desk = Desk()
    desk.create(kind="fifo")
    desk.send_fifo("a", b"1", b"2")
    delivery = desk.receive(1)
    desk.wait("poll")
    desk.ack(delivery)
    assert desk.take_woken("poll") == [b"2"]


def test_retention_that_unblocks_a_fifo_group_wakes_those_who_wait() -> None:
    desk = Desk()
    desk.create(kind="fifo", retention_ms=60_000)
    desk.send_fifo("a", b"1")
    desk.advance(50_000)
    desk.send_fifo("a", b"2")
    desk.receive(1, lease_ms=HOUR_MS)
    desk.wait("poll")
    desk.advance(10_000)
    assert desk.take_woken("poll") == [b"2"]


def test_ack_that_makes_room_in_flight_wakes_those_who_wait() -> None:
    desk = Desk()
    desk.create(in_flight_max=2)
    desk.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    desk.send(b"1", b"2", b"3")
    (delivery,) = desk.woken.pop("push")
    assert bodies_of(delivery) == [b"1", b"2"]
    desk.ack(delivery)
    assert desk.take_woken("push") == [b"3"]


def test_more_room_in_flight_wakes_those_who_wait() -> None:
    desk = Desk()
    desk.create(in_flight_max=1)
    desk.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    desk.send(b"1", b"2")
    assert desk.take_woken("push") == [b"1"]
    desk.change(in_flight_max=2)
    assert desk.take_woken("push") == [b"2"]


def test_deleted_queue_and_deleted_channel_answer_those_who_wait() -> None:
    desk = Desk()
    desk.create(channels=("main", "tap"))
    desk.wait("main")
    desk.wait("tap", channel="tap")
    desk.do(c.DeleteChannel(queue="q", channel="tap"))
    assert isinstance(desk.woken["tap"][0].error, ChannelNotFound)
    desk.do(c.DeleteQueue(name="q"))
    assert isinstance(desk.woken["main"][0].error, QueueNotFound)


def test_cancelled_wait_takes_nothing() -> None:
    desk = Desk()
    desk.create()
    desk.wait("poll")
    desk.do(c.CancelWait(ticket="poll"))
    desk.send(b"a")
    desk.advance(HOUR_MS)
    assert desk.woken == {}
    assert desk.counts() == (1, 0, 0)


def test_waiting_receiver_takes_its_lease_from_the_moment_it_is_served() -> None:
    desk = Desk()
    desk.create()
    desk.wait("poll", lease_ms=1_000)
    desk.advance(5_000)
    desk.send(b"a")
    (delivery,) = desk.woken["poll"]
    assert (delivery.received_ms, delivery.deadline_ms) == (START_MS + 5_000, START_MS + 6_000)


# -- standing credit --


def test_subscription_is_pushed_to_while_it_has_credit() -> None:
    desk = Desk()
    desk.send(b"1", b"2")
    number = desk.do(c.Subscribe(queue="q", credit=3, ticket="push")).subscription
    assert desk.take_woken("push") == [b"1", b"2"]
    desk.send(b"3", b"4")
    assert desk.take_woken("push") == [b"3"]
    desk.do(c.AddCredit(subscription=number, credit=1))
    assert desk.take_woken("push") == [b"4"]
    desk.send(b"5")
    assert desk.take_woken("push") == []
    desk.do(c.SetCredit(subscription=number, credit=5))
    assert desk.take_woken("push") == [b"5"]


def test_subscription_without_credit_is_paused() -> None:
    desk = Desk()
    desk.create()
    number = desk.do(c.Subscribe(queue="q", credit=5, ticket="push")).subscription
    desk.do(c.SetCredit(subscription=number, credit=0))
    desk.send(b"a")
    assert desk.woken == {}
    with pytest.raises(InvalidRequest):
        desk.do(c.SetCredit(subscription=number, credit=-1))


def test_subscriptions_share_what_comes_evenly() -> None:
    desk = Desk()
    desk.create()
    for number in range(4):
        desk.do(c.Subscribe(queue="q", credit=1_000, ticket=number))
    for number in range(40):
        desk.send(b"%d" % number)
    assert [len(desk.take_woken(number)) for number in range(4)] == [10, 10, 10, 10]


def test_next_deadline_is_the_earliest_of_all() -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"a", delay_ms=9_000)
    assert desk.broker.next_deadline() == START_MS + 9_000
    desk.wait("poll", wait_ms=8_000)
    assert desk.broker.next_deadline() == START_MS + 8_000
    desk.send(b"b")
    desk.send(b"c")
    desk.receive(lease_ms=7_000)
    assert desk.broker.next_deadline() == START_MS + 7_000


def test_idle_broker_with_nothing_to_come_asks_for_nothing() -> None:
    desk = Desk()
    desk.create(retention_ms=None)
    desk.send(b"a")
    assert desk.broker.next_deadline() is None
