"""Turns: what fails cannot keep back what was never delivered, nor what fails less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.delivery.channel import _TURN_AND_SAVED, Channel
from penstock.core.queues.config import Backoff
from tests.core.driver import BrokerDriver, attempts_of, bodies_of, calls_of, sequences_of


def _driver(**settings: object) -> BrokerDriver:
    driver = BrokerDriver()
    driver.create(**{"max_receives": 0, "backoff": Backoff("none")} | settings)
    return driver


def _work(driver: BrokerDriver, receives: int) -> list[bytes]:
    """One at a time: `bad` fails and may come again at once, the rest is done. Returns all that was received."""
    got: list[bytes] = []
    for _ in range(receives):
        delivery = driver.receive(1)
        got += bodies_of(delivery)
        if bodies_of(delivery)[:1] == [b"bad"]:
            driver.extend(delivery, 0)
        elif delivery.count:
            driver.ack(delivery)
    return got


def test_a_message_that_fails_comes_again_in_place_once_and_then_by_turns_with_the_others() -> None:
    driver = _driver()
    driver.send(b"bad", b"1", b"2", b"3")
    assert _work(driver, 9) == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3", b"bad", b"bad"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=40))
def test_whatever_fails_every_other_receive_is_of_a_message_that_was_never_delivered(
    messages: list[tuple[bool, int]],
) -> None:
    driver = _driver()
    for is_bad, priority in messages:
        driver.send(b"bad" if is_bad else b"good", priority=priority)
    was_again = False
    fresh = len(messages)
    while fresh:
        delivery = driver.receive(1)
        is_again = attempts_of(delivery) != [1]
        assert not (was_again and is_again), "twice in a row, with messages that were never delivered waiting"
        was_again = is_again
        fresh -= not is_again
        if bodies_of(delivery) == [b"bad"]:
            driver.release(delivery, delay_ms=0)
        else:
            driver.ack(delivery)


def test_many_that_fail_leave_the_others_half_of_the_receives() -> None:
    driver = _driver()
    driver.send(*[b"bad"] * 100, *[b"good"] * 100)
    _work(driver, 200)  # each of the bad ones twice: at first, and again in place
    assert _work(driver, 200).count(b"good") == 100


def test_a_message_of_high_priority_that_fails_does_not_starve_a_low_one() -> None:
    driver = _driver()
    driver.send(b"bad", priority=9)
    driver.send(b"1", b"2", b"3")
    assert _work(driver, 7) == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3"]


def test_what_failed_at_a_low_priority_does_not_go_before_what_is_new_at_a_high_one() -> None:
    driver = _driver()
    driver.send(b"bad")
    _work(driver, 3)
    driver.send(b"1", b"2", b"3", priority=5)
    assert _work(driver, 5) == [b"1", b"2", b"3", b"bad", b"bad"]


def test_of_those_that_fail_the_one_with_the_fewest_deliveries_is_next_at_whatever_priority() -> None:
    driver = _driver()
    driver.send(b"bad a", priority=9)
    driver.send(b"bad b", b"bad c")
    got = []
    for _ in range(12):
        delivery = driver.receive(1)
        got += bodies_of(delivery)
        driver.release(delivery, delay_ms=0)
    assert {body: got.count(body) for body in set(got)} == {b"bad a": 4, b"bad b": 4, b"bad c": 4}


@pytest.mark.parametrize("limit", [2, 3, 10, 11])
def test_a_batch_gives_half_of_its_places_to_what_was_never_delivered(limit: int) -> None:
    driver = _driver()
    driver.send(*[b"bad"] * 50, *[b"good"] * 200)
    driver.release(driver.receive(50), delay_ms=0)
    good = received = 0
    for _ in range(10):
        delivery = driver.receive(limit)
        good += bodies_of(delivery).count(b"good")
        received += delivery.count
        bad = [c.Span(*span) for span in delivery.spans() if span.attempt > 1]
        driver.do(c.Release(queue="q", spans=bad, delay_ms=0))
    assert received == 10 * limit
    assert good == received // 2


def test_a_batch_is_full_although_only_failed_messages_are_left() -> None:
    driver = _driver()
    driver.send(*[b"bad"] * 9, b"good")
    driver.release(driver.receive(9), delay_ms=0)
    assert sorted(bodies_of(driver.receive(10))) == [b"bad"] * 9 + [b"good"]


def test_a_subscriber_with_room_for_little_gets_both_kinds_by_turns() -> None:
    driver = _driver()
    driver.send(*[b"bad"] * 20, *[b"good"] * 20)
    driver.release(driver.receive(20), delay_ms=0)
    number = driver.do(c.Subscribe(queue="q", channel="main", credit=100, ticket="t", room_bytes=0)).subscription
    got: list[bytes] = []
    for _ in range(20):
        driver.do(c.SetCredit(subscription=number, room_bytes=1))
        got += driver.take_woken("t")
    assert got == [b"bad", b"good"] * 10


_Sent = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 40))
"""How often a message failed, its priority, how long it is."""


@given(st.lists(_Sent, min_size=1, max_size=40), st.integers(1, 1_000), st.booleans())
def test_where_bytes_are_counted_the_same_are_handed_out_as_one_by_one(
    messages: list[tuple[int, int, int]], room_bytes: int, owes_fresh: bool
) -> None:
    def prepared() -> BrokerDriver:
        driver = _driver()
        driver.checks = False
        for failed in (3, 2, 1, 0):
            for times, priority, length in messages:
                if times == failed:
                    driver.send(b"x" * length, priority=priority)
            if failed and any(times >= failed for times, _, _ in messages):
                driver.fail(1)
        driver.broker.queues["q"].channels["main"].owes_fresh = owes_fresh
        return driver

    driver = prepared()
    driver.do(c.Subscribe(queue="q", credit=1_000, ticket="t", room_bytes=room_bytes))
    pushed = [each for delivery in driver.woken["t"] for each in sequences_of(delivery)]
    turn = driver.broker.queues["q"].channels["main"].owes_fresh
    driver = prepared()
    one_by_one = [sequence for _ in pushed for sequence in sequences_of(driver.receive(1))]
    assert sorted(pushed) == sorted(one_by_one)
    assert turn == driver.broker.queues["q"].channels["main"].owes_fresh


@pytest.mark.parametrize("failed, priority", [(1, 5), (1, 0), (1_000, 0), (2_000, 0)])
def test_bytes_are_counted_for_many_messages_at_a_time(failed: int, priority: int) -> None:
    driver = _driver()
    driver.checks = False
    driver.send(*[b"bad"] * failed)
    driver.release(driver.receive(failed), delay_ms=0)
    if failed < 2_000:
        driver.send(*[b"good"] * (2_000 - failed), priority=priority)
    number = driver.do(c.Subscribe(queue="q", credit=0, ticket="t", room_bytes=1_000_000)).subscription
    calls = calls_of(lambda: driver.do(c.SetCredit(subscription=number, credit=1_000)))
    assert sum(delivery.count for delivery in driver.woken["t"]) == 1_000
    assert calls < 10_000


def test_whose_turn_it_is_outlives_a_restart() -> None:
    driver = _driver()
    driver.send(b"bad", b"1", b"2")
    got = []
    for _ in range(5):
        got += _work(driver, 1)
        driver.reopen()
    assert got == [b"bad", b"bad", b"1", b"bad", b"2"]


def test_a_channel_that_was_stored_before_turns_were_kept_is_read() -> None:
    driver = _driver()
    channel = driver.broker.queues["q"].channels["main"]
    channel.save()
    data = driver.broker.write_buffer.changes.records[channel._record_key]
    assert data is not None
    before = Channel.restore(driver.broker.queues["q"], channel.id, data[: -_TURN_AND_SAVED.size])
    assert (before.name, before.owes_fresh) == ("main", False)


def test_groups_of_a_fair_queue_take_turns_with_what_fails() -> None:
    driver = _driver()
    driver.send(b"bad", b"1", b"2", group="noisy")
    driver.send(b"3", group="quiet")
    assert _work(driver, 7) == [b"bad", b"bad", b"3", b"bad", b"1", b"bad", b"2"]


def test_a_message_of_a_fair_queue_that_was_given_back_is_handed_out_once() -> None:
    driver = _driver()
    driver.send(b"1", b"2", group="a")
    driver.send(b"gone", delay_ms=1)
    delivery = driver.receive(1)
    driver.do(c.GiveBack(queue="q", spans=delivery.spans()))
    driver.broker.queues["q"].channels["main"].dispatch.reset_indexes()
    assert bodies_of(driver.receive(9)) == [b"1", b"2"]


def test_order_within_a_fifo_group_holds_whatever_fails() -> None:
    driver = _driver(kind="fifo")
    driver.send_fifo("a", b"bad", b"behind")
    for _ in range(4):
        delivery = driver.receive(10)
        assert bodies_of(delivery) == [b"bad", b"behind"]
        driver.release(delivery, delay_ms=0)


def _fifo_desk(*groups: str, **settings: object) -> BrokerDriver:
    driver = _driver(kind="fifo", **settings)
    for group in groups:
        driver.send_fifo(group, f"{group}1".encode(), f"{group}2".encode())
    return driver


def _work_by_group(driver: BrokerDriver, receives: int) -> list[bytes]:
    """One at a time: messages of groups that begin with `bad` fail, and may come again at once; the rest is done."""
    got: list[bytes] = []
    for _ in range(receives):
        delivery = driver.receive(1)
        got += bodies_of(delivery)
        if bodies_of(delivery)[0].startswith(b"bad"):
            driver.extend(delivery, 0)
        else:
            driver.ack(delivery)
    return got


def test_a_fifo_group_that_fails_leaves_the_others_every_other_receive() -> None:
    driver = _fifo_desk("bad", "a", "b")
    assert _work_by_group(driver, 9) == [b"bad1", b"bad1", b"a1", b"bad1", b"a2", b"bad1", b"b1", b"bad1", b"b2"]


def test_of_fifo_groups_that_fail_the_one_with_the_fewest_deliveries_is_next() -> None:
    driver = _fifo_desk("bad-x", "bad-y", "bad-z")
    got = _work_by_group(driver, 12)
    assert {body: got.count(body) for body in set(got)} == {b"bad-x1": 4, b"bad-y1": 4, b"bad-z1": 4}


def test_whose_turn_it_is_among_fifo_groups_outlives_a_restart() -> None:
    driver = _fifo_desk("bad", "a")
    got = []
    for _ in range(5):
        got += _work_by_group(driver, 1)
        driver.reopen()
    assert got == [b"bad1", b"bad1", b"a1", b"bad1", b"a2"]


def test_a_batch_gives_half_of_its_places_to_fifo_groups_that_did_not_fail() -> None:
    driver = _driver(kind="fifo")
    driver.send_fifo("bad", *[b"bad%d" % number for number in range(10)])
    driver.extend(driver.receive(10), 0)
    for group in "abc":
        driver.send_fifo(group, *[f"{group}{number}".encode() for number in range(2)])
    assert bodies_of(driver.receive(8)) == [b"a0", b"a1", b"b0", b"b1", b"bad0", b"bad1", b"bad2", b"bad3"]


def test_a_batch_of_a_fifo_queue_is_full_although_the_group_that_failed_has_most() -> None:
    driver = _driver(kind="fifo")
    driver.send_fifo("bad", *[b"bad%d" % number for number in range(6)])
    driver.extend(driver.receive(6), 0)
    driver.send_fifo("a", b"a0")
    bodies = bodies_of(driver.receive(6))
    assert sorted(bodies) == [b"a0", *(b"bad%d" % number for number in range(5))]
    assert [body for body in bodies if body != b"a0"] == [b"bad%d" % number for number in range(5)]


@given(st.lists(st.sampled_from(["bad-x", "bad-y", "a", "b", "c"]), min_size=1, max_size=20))
def test_whatever_fifo_groups_fail_the_others_get_half_of_the_receives(groups: list[str]) -> None:
    driver = _driver(kind="fifo")
    for number, group in enumerate(groups):
        driver.send_fifo(group, f"{group} {number}".encode())
    healthy = [f"{group} {number}".encode() for number, group in enumerate(groups) if not group.startswith("bad")]
    # each of the bad heads is new once, and then there is one for each of the others
    receives = 2 * (len(healthy) + len({group for group in groups if group.startswith("bad")}))
    done = _work_by_group(driver, receives if len(healthy) < len(groups) else len(healthy))
    for group in "abc":
        ours = [body for body in healthy if body.startswith(group.encode())]
        assert [body for body in done if body.startswith(group.encode()) and b"bad" not in body] == ours
