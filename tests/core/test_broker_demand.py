"""Demand: those who wait are served in the step in which something becomes ready, and fairly."""

from __future__ import annotations

import pytest

from penstock.core import commands as c
from penstock.core.errors import ChannelNotFound, InvalidRequest, QueueNotFound
from tests.core.driver import HOUR_MS, START_MS, BrokerDriver, bodies_of


def test_send_wakes_the_one_who_waits_in_the_same_step() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.wait("poll", 10)
    driver.send(b"a", b"b")
    assert driver.take_woken("poll") == [b"a", b"b"]
    assert driver.counts() == (0, 2, 0)


def test_wait_runs_out_with_an_empty_delivery_at_its_deadline() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.wait("poll", wait_ms=5_000)
    driver.advance(4_999)
    assert driver.woken == {}
    driver.advance(1)
    (delivery,) = driver.woken["poll"]
    assert (delivery.count, delivery.error) == (0, None)
    driver.send(b"a")
    assert driver.counts() == (1, 0, 0)


def test_queues_receive_wait_holds_unless_the_receive_says_otherwise() -> None:
    driver = BrokerDriver()
    driver.create(receive_wait_ms=3_000)
    assert driver.do(c.Receive(queue="q", ticket="poll")) is None
    assert driver.do(c.Receive(queue="q", ticket="other", wait_ms=0)).count == 0
    driver.advance(3_000)
    assert driver.woken["poll"][0].count == 0


def test_receive_without_a_ticket_does_not_wait() -> None:
    driver = BrokerDriver()
    driver.create()
    assert driver.do(c.Receive(queue="q", wait_ms=1_000)).count == 0


def test_first_come_first_served() -> None:
    driver = BrokerDriver()
    driver.create()
    for number in range(4):
        driver.wait(number)
    driver.send(b"a")
    driver.send(b"b", b"c")
    assert [driver.take_woken(number) for number in range(4)] == [[b"a"], [b"b"], [b"c"], []]


def test_little_is_shared_among_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create()
    for number in range(3):
        driver.wait(number, 10)
    driver.send(*(b"%d" % number for number in range(6)))
    assert [len(driver.take_woken(number)) for number in range(3)] == [2, 2, 2]


def test_expiry_release_and_due_time_wake_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.send(b"a")
    delivery = driver.receive(lease_ms=1_000)
    driver.wait("expiry")
    driver.advance(1_000)
    assert driver.take_woken("expiry") == [b"a"]
    driver.do(c.PurgeQueue(name="q"))
    driver.send(b"b")
    delivery = driver.receive()
    driver.wait("release")
    driver.release(delivery)
    assert driver.take_woken("release") == [b"b"]
    driver.send(b"c", delay_ms=1_000)
    driver.wait("due")
    driver.advance(1_000)
    assert driver.take_woken("due") == [b"c"]


def test_end_of_pause_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.do(c.PauseChannel(queue="q", channel="main"))
    driver.wait("poll")
    driver.send(b"a")
    assert driver.woken == {}
    driver.do(c.PauseChannel(queue="q", channel="main", paused=False))
    assert driver.take_woken("poll") == [b"a"]


def test_end_of_session_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    session = driver.do(c.OpenSession(name="worker"))
    driver.send(b"a")
    driver.receive(session=session)
    driver.wait("poll")
    driver.do(c.EndSession(session=session))
    assert driver.take_woken("poll") == [b"a"]


def test_ack_that_unblocks_a_fifo_group_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo")
    driver.send_fifo("a", b"1", b"2")
    delivery = driver.receive(1)
    driver.wait("poll")
    driver.ack(delivery)
    assert driver.take_woken("poll") == [b"2"]


def test_retention_that_unblocks_a_fifo_group_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create(kind="fifo", retention_ms=60_000)
    driver.send_fifo("a", b"1")
    driver.advance(50_000)
    driver.send_fifo("a", b"2")
    driver.receive(1, lease_ms=HOUR_MS)
    driver.wait("poll")
    driver.advance(10_000)
    assert driver.take_woken("poll") == [b"2"]


def test_ack_that_makes_room_in_flight_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create(in_flight_max=2)
    driver.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    driver.send(b"1", b"2", b"3")
    (delivery,) = driver.woken.pop("push")
    assert bodies_of(delivery) == [b"1", b"2"]
    driver.ack(delivery)
    assert driver.take_woken("push") == [b"3"]


def test_more_room_in_flight_wakes_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create(in_flight_max=1)
    driver.do(c.Subscribe(queue="q", credit=10, ticket="push"))
    driver.send(b"1", b"2")
    assert driver.take_woken("push") == [b"1"]
    driver.change(in_flight_max=2)
    assert driver.take_woken("push") == [b"2"]


def test_deleted_queue_and_deleted_channel_answer_those_who_wait() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    driver.wait("main")
    driver.wait("tap", channel="tap")
    driver.do(c.DeleteChannel(queue="q", channel="tap"))
    assert isinstance(driver.woken["tap"][0].error, ChannelNotFound)
    driver.do(c.DeleteQueue(name="q"))
    assert isinstance(driver.woken["main"][0].error, QueueNotFound)


def test_cancelled_wait_takes_nothing() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.wait("poll")
    driver.do(c.CancelWait(ticket="poll"))
    driver.send(b"a")
    driver.advance(HOUR_MS)
    assert driver.woken == {}
    assert driver.counts() == (1, 0, 0)


def test_waiting_receiver_takes_its_lease_from_the_moment_it_is_served() -> None:
    driver = BrokerDriver()
    driver.create()
    driver.wait("poll", lease_ms=1_000)
    driver.advance(5_000)
    driver.send(b"a")
    (delivery,) = driver.woken["poll"]
    assert (delivery.received_ms, delivery.deadline_ms) == (START_MS + 5_000, START_MS + 6_000)


# -- standing credit --


def test_subscription_is_pushed_to_while_it_has_credit() -> None:
    driver = BrokerDriver()
    driver.send(b"1", b"2")
    number = driver.do(c.Subscribe(queue="q", credit=3, ticket="push")).subscription
    assert driver.take_woken("push") == [b"1", b"2"]
    driver.send(b"3", b"4")
    assert driver.take_woken("push") == [b"3"]
    driver.do(c.AddCredit(subscription=number, credit=1))
    assert driver.take_woken("push") == [b"4"]
    driver.send(b"5")
    assert driver.take_woken("push") == []
    driver.do(c.SetCredit(subscription=number, credit=5))
    assert driver.take_woken("push") == [b"5"]


def test_subscription_without_credit_is_paused() -> None:
    driver = BrokerDriver()
    driver.create()
    number = driver.do(c.Subscribe(queue="q", credit=5, ticket="push")).subscription
    driver.do(c.SetCredit(subscription=number, credit=0))
    driver.send(b"a")
    assert driver.woken == {}
    with pytest.raises(InvalidRequest):
        driver.do(c.SetCredit(subscription=number, credit=-1))


def test_subscriptions_share_what_comes_evenly() -> None:
    driver = BrokerDriver()
    driver.create()
    for number in range(4):
        driver.do(c.Subscribe(queue="q", credit=1_000, ticket=number))
    for number in range(40):
        driver.send(b"%d" % number)
    assert [len(driver.take_woken(number)) for number in range(4)] == [10, 10, 10, 10]


def test_next_deadline_is_the_earliest_of_all() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a", delay_ms=9_000)
    assert driver.broker.next_deadline() == START_MS + 9_000
    driver.wait("poll", wait_ms=8_000)
    assert driver.broker.next_deadline() == START_MS + 8_000
    driver.send(b"b")
    driver.send(b"c")
    driver.receive(lease_ms=7_000)
    assert driver.broker.next_deadline() == START_MS + 7_000


def test_idle_broker_with_nothing_to_come_asks_for_nothing() -> None:
    driver = BrokerDriver()
    driver.create(retention_ms=None)
    driver.send(b"a")
    assert driver.broker.next_deadline() is None
