"""Steps that fail, and messages that leave before their step is on the disk: what counts, and what is undone."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.queues.reserve import AHEAD
from tests.core.driver import BrokerDriver, bodies_of


def subscribed(driver: BrokerDriver, ticket: str, credit: int = 10, **fields: object) -> int:
    reply: c.Subscribed = driver.do(c.Subscribe(queue="q", ticket=ticket, credit=credit, **fields))  # type: ignore[arg-type]
    return reply.subscription


def adopted(driver: BrokerDriver, *tickets: str) -> set[str]:
    """The broker is thrown away with its step; another one goes on from the store."""
    lost = driver.broker
    driver.broker = driver.opened_anew()
    return driver.broker.adopt(lost, tickets)


def push(driver: BrokerDriver, *bodies: bytes) -> None:
    """A step with a send that is not committed; the subscriptions got their messages all the same."""
    driver.step(c.Send(queue="q", bodies=list(bodies)), commit=False)


def test_a_subscription_goes_on_with_the_credit_that_it_had_before_the_lost_step() -> None:
    driver = BrokerDriver()
    driver.create()
    subscribed(driver, "t", credit=3)
    driver.broker.receiving.settled()
    push(driver, b"a", b"b")
    assert driver.take_woken("t") == [b"a", b"b"]
    assert adopted(driver, "t") == {"t"}
    driver.send(b"a", b"b", b"c", b"d")
    assert driver.take_woken("t") == [b"a", b"b", b"c"], "the step was lost, and what it pushed with it"


def test_what_has_left_early_counts_although_its_step_is_lost() -> None:
    driver = BrokerDriver()
    driver.create()
    subscribed(driver, "t", credit=3, room_bytes=100)
    driver.broker.receiving.settled()
    push(driver, b"a", b"b")
    (delivery,) = driver.woken.pop("t")
    driver.broker.left_early("t", delivery)
    driver.broker.left_early("somebody else", delivery)
    adopted(driver, "t")
    driver.send(b"c", b"d")
    assert driver.take_woken("t") == [b"c"], "of three, two are gone"


def test_while_a_step_is_written_both_it_and_the_next_one_can_be_undone() -> None:
    driver = BrokerDriver()
    driver.create()
    subscribed(driver, "t", credit=4)
    driver.broker.receiving.settled()
    push(driver, b"a")
    driver.broker.set_aside()
    push(driver, b"b")
    adopted(driver, "t")
    driver.woken.clear()
    driver.send(b"1", b"2", b"3", b"4", b"5")
    assert driver.take_woken("t") == [b"1", b"2", b"3", b"4"]


def test_a_step_that_went_well_is_not_undone_with_the_next_one() -> None:
    driver = BrokerDriver()
    driver.create()
    subscribed(driver, "t", credit=4)
    driver.broker.receiving.settled()
    driver.send(b"a")
    driver.broker.set_aside()
    push(driver, b"b")
    driver.broker.receiving.settled()
    driver.woken.clear()
    adopted(driver, "t")
    driver.send(b"1", b"2", b"3", b"4")
    assert driver.take_woken("t") == [b"1", b"2", b"3"]


def test_subscriptions_whose_channel_session_or_listener_is_gone_are_over() -> None:
    driver = BrokerDriver()
    driver.create(channels=("main", "tap"))
    session = driver.do(c.OpenSession(name="s"))
    subscribed(driver, "listens")
    subscribed(driver, "left")
    subscribed(driver, "limited", session=session, in_flight=True)
    lost = driver.broker
    driver.step(c.CreateChannel(queue="q", channel="new"), commit=False)
    driver.step(c.Subscribe(queue="q", channel="new", ticket="on a new channel", credit=1), commit=False)
    uncommitted = driver.step(c.OpenSession(name="lost"), commit=False)[0]
    driver.step(c.Subscribe(queue="q", ticket="of a new session", credit=1, session=uncommitted), commit=False)
    found = adopted(driver, "listens", "limited", "on a new channel", "of a new session")
    assert found == {"listens", "limited"}
    assert lost is not driver.broker


def test_a_subscription_with_a_limit_counts_what_its_session_holds_in_the_store() -> None:
    driver = BrokerDriver()
    driver.create()
    session = driver.do(c.OpenSession(name="s"))
    number = subscribed(driver, "t", credit=2, session=session, in_flight=True)
    driver.send(b"a")
    assert driver.broker.held(number) == 1
    driver.broker.receiving.settled()
    adopted(driver, "t")
    assert driver.broker.held(number) == 1
    driver.send(b"b", b"c")
    driver.take_woken("t")
    assert driver.broker.held(number) == 2
    assert driver.broker.held(0) == 0


# -- numbers that are set aside --


def unsynced() -> BrokerDriver:
    driver = BrokerDriver()
    driver.broker.delivers_unsynced = True
    driver.create(deliver_unsynced=True)
    return driver


def delivered(driver: BrokerDriver, *bodies: bytes) -> c.Delivery:
    push(driver, *bodies)
    (delivery,) = driver.woken.pop("t")
    return delivery


def test_a_message_may_leave_early_once_its_number_is_set_aside_on_the_disk() -> None:
    driver = unsynced()
    subscribed(driver, "t", credit=100)
    delivery = delivered(driver, b"a")
    assert driver.broker.may_leave_early(delivery)
    driver.broker.queues["q"].reserve = None
    assert not driver.broker.may_leave_early(delivery), "nothing is set aside"


def test_without_the_setting_no_message_leaves_early() -> None:
    driver = BrokerDriver()
    driver.broker.delivers_unsynced = True
    driver.create()
    subscribed(driver, "t")
    assert not driver.broker.may_leave_early(delivered(driver, b"a"))


def test_a_number_that_may_have_left_is_not_given_twice_after_a_crash() -> None:
    driver = unsynced()
    sent = driver.send(b"a")
    again = driver.opened_anew()
    again.skip_reserves()
    reply = again.handle(c.Send(queue="q", bodies=[b"b"]), driver.now_ms)
    assert reply.first >= sent.first + AHEAD // 2


def test_an_orderly_end_takes_the_numbers_back() -> None:
    driver = unsynced()
    sent = driver.send(b"a")
    driver.broker.release_reserves()
    driver.commit()
    again = Broker.open(driver.store, driver.now_ms, b"")
    again.skip_reserves()
    assert again.handle(c.Send(queue="q", bodies=[b"b"]), driver.now_ms).first == sent.first + 1


def test_a_queue_that_is_told_not_to_deliver_early_takes_its_numbers_back() -> None:
    driver = unsynced()
    driver.send(b"a")
    driver.change(deliver_unsynced=False)
    driver.send(b"b")
    assert driver.broker.queues["q"].reserve is None
    assert bodies_of(driver.receive(2)) == [b"a", b"b"]
