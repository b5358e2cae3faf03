"""Steps that fail, and messages that leave before their step is on the disk: what counts, and what is undone."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.queues.reserve import AHEAD
from tests.core.driver import Desk, bodies_of


def subscribed(desk: Desk, ticket: str, credit: int = 10, **fields: object) -> int:
    reply: c.Subscribed = desk.do(c.Subscribe(queue="q", ticket=ticket, credit=credit, **fields))  # type: ignore[arg-type]
    return reply.subscription


def adopted(desk: Desk, *tickets: str) -> set[str]:
    """The broker is thrown away with its step; another one goes on from the store."""
    lost = desk.broker
    desk.broker = desk.opened_anew()
    return desk.broker.adopt(lost, tickets)


def push(desk: Desk, *bodies: bytes) -> None:
    """A step with a send that is not committed; the subscriptions got their messages all the same."""
    desk.step(c.Send(queue="q", bodies=list(bodies)), commit=False)


def test_a_subscription_goes_on_with_the_credit_that_it_had_before_the_lost_step() -> None:
    desk = Desk()
    desk.create()
    subscribed(desk, "t", credit=3)
    desk.broker.settled()
    push(desk, b"a", b"b")
    assert desk.take_woken("t") == [b"a", b"b"]
    assert adopted(desk, "t") == {"t"}
    desk.send(b"a", b"b", b"c", b"d")
    assert desk.take_woken("t") == [b"a", b"b", b"c"], "the step was lost, and what it pushed with it"


def test_what_has_left_early_counts_although_its_step_is_lost() -> None:
    desk = Desk()
    desk.create()
    subscribed(desk, "t", credit=3, room_bytes=100)
    desk.broker.settled()
    push(desk, b"a", b"b")
    (delivery,) = desk.woken.pop("t")
    desk.broker.left_early("t", delivery)
    desk.broker.left_early("somebody else", delivery)
    adopted(desk, "t")
    desk.send(b"c", b"d")
    assert desk.take_woken("t") == [b"c"], "of three, two are gone"


def test_while_a_step_is_written_both_it_and_the_next_one_can_be_undone() -> None:
    desk = Desk()
    desk.create()
    subscribed(desk, "t", credit=4)
    desk.broker.settled()
    push(desk, b"a")
    desk.broker.set_aside()
    push(desk, b"b")
    adopted(desk, "t")
    desk.woken.clear()
    desk.send(b"1", b"2", b"3", b"4", b"5")
    assert desk.take_woken("t") == [b"1", b"2", b"3", b"4"]


def test_a_step_that_went_well_is_not_undone_with_the_next_one() -> None:
    desk = Desk()
    desk.create()
    subscribed(desk, "t", credit=4)
    desk.broker.settled()
    desk.send(b"a")
    desk.broker.set_aside()
    push(desk, b"b")
    desk.broker.settled()
    desk.woken.clear()
    adopted(desk, "t")
    desk.send(b"1", b"2", b"3", b"4")
    assert desk.take_woken("t") == [b"1", b"2", b"3"]


def test_subscriptions_whose_channel_session_or_listener_is_gone_are_over() -> None:
    desk = Desk()
    desk.create(channels=("main", "tap"))
    session = desk.do(c.OpenSession(name="s"))
    subscribed(desk, "listens")
    subscribed(desk, "left")
    subscribed(desk, "limited", session=session, in_flight=True)
    lost = desk.broker
    desk.step(c.CreateChannel(queue="q", channel="new"), commit=False)
    desk.step(c.Subscribe(queue="q", channel="new", ticket="on a new channel", credit=1), commit=False)
    uncommitted = desk.step(c.OpenSession(name="lost"), commit=False)[0]
    desk.step(c.Subscribe(queue="q", ticket="of a new session", credit=1, session=uncommitted), commit=False)
    found = adopted(desk, "listens", "limited", "on a new channel", "of a new session")
    assert found == {"listens", "limited"}
    assert lost is not desk.broker


def test_a_subscription_with_a_limit_counts_what_its_session_holds_in_the_store() -> None:
    desk = Desk()
    desk.create()
    session = desk.do(c.OpenSession(name="s"))
    number = subscribed(desk, "t", credit=2, session=session, in_flight=True)
    desk.send(b"a")
    assert desk.broker.held(number) == 1
    desk.broker.settled()
    adopted(desk, "t")
    assert desk.broker.held(number) == 1
    desk.send(b"b", b"c")
    desk.take_woken("t")
    assert desk.broker.held(number) == 2
    assert desk.broker.held(0) == 0


# -- numbers that are set aside --


def unsynced() -> Desk:
    desk = Desk()
    desk.broker.delivers_unsynced = True
    desk.create(deliver_unsynced=True)
    return desk


def delivered(desk: Desk, *bodies: bytes) -> c.Delivery:
    push(desk, *bodies)
    (delivery,) = desk.woken.pop("t")
    return delivery


def test_a_message_may_leave_early_once_its_number_is_set_aside_on_the_disk() -> None:
    desk = unsynced()
    subscribed(desk, "t", credit=100)
    delivery = delivered(desk, b"a")
    assert desk.broker.may_leave_early(delivery)
    desk.broker.queues["q"].reserve = None
    assert not desk.broker.may_leave_early(delivery), "nothing is set aside"


def test_without_the_setting_no_message_leaves_early() -> None:
    desk = Desk()
    desk.broker.delivers_unsynced = True
    desk.create()
    subscribed(desk, "t")
    assert not desk.broker.may_leave_early(delivered(desk, b"a"))


def test_a_number_that_may_have_left_is_not_given_twice_after_a_crash() -> None:
    desk = unsynced()
    sent = desk.send(b"a")
    again = desk.opened_anew()
    again.skip_reserves()
    reply = again.handle(c.Send(queue="q", bodies=[b"b"]), desk.now_ms)
    assert reply.first >= sent.first + AHEAD // 2


def test_an_orderly_end_takes_the_numbers_back() -> None:
    desk = unsynced()
    sent = desk.send(b"a")
    desk.broker.release_reserves()
    desk.commit()
    again = Broker.open(desk.store, desk.now_ms, b"")
    again.skip_reserves()
    assert again.handle(c.Send(queue="q", bodies=[b"b"]), desk.now_ms).first == sent.first + 1


def test_a_queue_that_is_told_not_to_deliver_early_takes_its_numbers_back() -> None:
    desk = unsynced()
    desk.send(b"a")
    desk.change(deliver_unsynced=False)
    desk.send(b"b")
    assert desk.broker.queues["q"].reserve is None
    assert bodies_of(desk.receive(2)) == [b"a", b"b"]
