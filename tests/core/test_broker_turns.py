"""Turns: what fails cannot keep back what was never delivered, nor what fails less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import commands as c
from penstock.core.delivery.channel import _TURN_AND_SAVED, Channel
from penstock.core.queues.config import Backoff
from tests.core.driver import Desk, attempts_of, bodies_of, calls_of, sequences_of, spans_of


def _desk(**settings: object) -> Desk:
    desk = Desk()
    desk.create(**{"max_receives": 0, "backoff": Backoff("none")} | settings)
    return desk


def _work(desk: Desk, receives: int) -> list[bytes]:
    """One at a time: `bad` fails and may come again at once, the rest is done. Returns all that was received."""
    got: list[bytes] = []
    for _ in range(receives):
        delivery = desk.receive(1)
        got += bodies_of(delivery)
        if bodies_of(delivery)[:1] == [b"bad"]:
            desk.extend(delivery, 0)
        elif delivery.count:
            desk.ack(delivery)
    return got


def test_a_message_that_fails_comes_again_in_place_once_and_then_by_turns_with_the_others() -> None:
    desk = _desk()
    desk.send(b"bad", b"1", b"2", b"3")
    assert _work(desk, 9) == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3", b"bad", b"bad"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1, max_size=40))
def test_whatever_fails_every_other_receive_is_of_a_message_that_was_never_delivered(
    messages: list[tuple[bool, int]],
) -> None:
    desk = _desk()
    for is_bad, priority in messages:
        desk.send(b"bad" if is_bad else b"good", priority=priority)
    was_again = False
    fresh = len(messages)
    while fresh:
        delivery = desk.receive(1)
        is_again = attempts_of(delivery) != [1]
        assert not (was_again and is_again), "twice in a row, with messages that were never delivered waiting"
        was_again = is_again
        fresh -= not is_again
        if bodies_of(delivery) == [b"bad"]:
            desk.release(delivery, delay_ms=0)
        else:
            desk.ack(delivery)


def test_many_that_fail_leave_the_others_half_of_the_receives() -> None:
    desk = _desk()
    desk.send(*[b"bad"] * 100, *[b"good"] * 100)
    _work(desk, 200)  # each of the bad ones twice: at first, and again in place
    assert _work(desk, 200).count(b"good") == 100


def test_a_message_of_high_priority_that_fails_does_not_starve_a_low_one() -> None:
    desk = _desk()
    desk.send(b"bad", priority=9)
    desk.send(b"1", b"2", b"3")
    assert _work(desk, 7) == [b"bad", b"bad", b"1", b"bad", b"2", b"bad", b"3"]


def test_what_failed_at_a_low_priority_does_not_go_before_what_is_new_at_a_high_one() -> None:
    desk = _desk()
    desk.send(b"bad")
    _work(desk, 3)
    desk.send(b"1", b"2", b"3", priority=5)
    assert _work(desk, 5) == [b"1", b"2", b"3", b"bad", b"bad"]


def test_of_those_that_fail_the_one_with_the_fewest_deliveries_is_next_at_whatever_priority() -> None:
    desk = _desk()
    desk.send(b"bad a", priority=9)
    desk.send(b"bad b", b"bad c")
    got = []
    for _ in range(12):
        delivery = desk.receive(1)
        got += bodies_of(delivery)
        desk.release(delivery, delay_ms=0)
    assert {body: got.count(body) for body in set(got)} == {b"bad a": 4, b"bad b": 4, b"bad c": 4}


@pytest.mark.parametrize("limit", [2, 3, 10, 11])
def test_a_batch_gives_half_of_its_places_to_what_was_never_delivered(limit: int) -> None:
    desk = _desk()
    desk.send(*[b"bad"] * 50, *[b"good"] * 200)
    desk.release(desk.receive(50), delay_ms=0)
    good = received = 0
    for _ in range(10):
        delivery = desk.receive(limit)
        good += bodies_of(delivery).count(b"good")
        received += delivery.count
        bad = [c.Span(*span) for span in spans_of(delivery) if span.attempt > 1]
        desk.do(c.Release(queue="q", spans=bad, delay_ms=0))
    assert received == 10 * limit
    assert good == received // 2


def test_a_batch_is_full_although_only_failed_messages_are_left() -> None:
    desk = _desk()
    desk.send(*[b"bad"] * 9, b"good")
    desk.release(desk.receive(9), delay_ms=0)
    assert sorted(bodies_of(desk.receive(10))) == [b"bad"] * 9 + [b"good"]


def test_a_subscriber_with_room_for_little_gets_both_kinds_by_turns() -> None:
    desk = _desk()
    desk.send(*[b"bad"] * 20, *[b"good"] * 20)
    desk.release(desk.receive(20), delay_ms=0)
    number = desk.do(c.Subscribe(queue="q", channel="main", credit=100, ticket="t", room_bytes=0)).subscription
    got: list[bytes] = []
    for _ in range(20):
        desk.do(c.SetCredit(subscription=number, room_bytes=1))
        got += desk.take_woken("t")
    assert got == [b"bad", b"good"] * 10


_Sent = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 40))
"""How often a message failed, its priority, how long it is."""


@given(st.lists(_Sent, min_size=1, max_size=40), st.integers(1, 1_000), st.booleans())
def test_where_bytes_are_counted_the_same_are_handed_out_as_one_by_one(
    messages: list[tuple[int, int, int]], room_bytes: int, owes_fresh: bool
) -> None:
    def prepared() -> Desk:
        desk = _desk()
        desk.checks = False
        for failed in (3, 2, 1, 0):
            for times, priority, length in messages:
                if times == failed:
                    desk.send(b"x" * length, priority=priority)
            if failed and any(times >= failed for times, _, _ in messages):
                desk.fail(1)
        desk.broker.queues["q"].channels["main"].owes_fresh = owes_fresh
        return desk

    desk = prepared()
    desk.do(c.Subscribe(queue="q", credit=1_000, ticket="t", room_bytes=room_bytes))
    pushed = [each for delivery in desk.woken["t"] for each in sequences_of(delivery)]
    turn = desk.broker.queues["q"].channels["main"].owes_fresh
    desk = prepared()
    one_by_one = [sequence for _ in pushed for sequence in sequences_of(desk.receive(1))]
    assert sorted(pushed) == sorted(one_by_one)
    assert turn == desk.broker.queues["q"].channels["main"].owes_fresh


@pytest.mark.parametrize("failed, priority", [(1, 5), (1, 0), (1_000, 0), (2_000, 0)])
def test_bytes_are_counted_for_many_messages_at_a_time(failed: int, priority: int) -> None:
    desk = _desk()
    desk.checks = False
    desk.send(*[b"bad"] * failed)
    desk.release(desk.receive(failed), delay_ms=0)
    if failed < 2_000:
        desk.send(*[b"good"] * (2_000 - failed), priority=priority)
    number = desk.do(c.Subscribe(queue="q", credit=0, ticket="t", room_bytes=1_000_000)).subscription
    calls = calls_of(lambda: desk.do(c.SetCredit(subscription=number, credit=1_000)))
    assert sum(delivery.count for delivery in desk.woken["t"]) == 1_000
    assert calls < 10_000


def test_whose_turn_it_is_outlives_a_restart() -> None:
    desk = _desk()
    desk.send(b"bad", b"1", b"2")
    got = []
    for _ in range(5):
        got += _work(desk, 1)
        desk.reopen()
    assert got == [b"bad", b"bad", b"1", b"bad", b"2"]


def test_a_channel_that_was_stored_before_turns_were_kept_is_read() -> None:
    desk = _desk()
    channel = desk.broker.queues["q"].channels["main"]
    channel.save()
    data = desk.broker.shelf.changes.records[channel._record_key]
    assert data is not None
    before = Channel.restore(desk.broker.queues["q"], channel.id, data[: -_TURN_AND_SAVED.size])
    assert (before.name, before.owes_fresh) == ("main", False)


def test_groups_of_a_fair_queue_take_turns_with_what_fails() -> None:
    desk = _desk()
    desk.send(b"bad", b"1", b"2", group="noisy")
    desk.send(b"3", group="quiet")
    assert _work(desk, 7) == [b"bad", b"bad", b"3", b"bad", b"1", b"bad", b"2"]


def test_a_message_of_a_fair_queue_that_was_given_back_is_handed_out_once() -> None:
    desk = _desk()
    desk.send(b"1", b"2", group="a")
    desk.send(b"gone", delay_ms=1)
    delivery = desk.receive(1)
    desk.do(c.GiveBack(queue="q", spans=spans_of(delivery)))
    desk.broker.queues["q"].channels["main"].handout.reset_indexes()
    assert bodies_of(desk.receive(9)) == [b"1", b"2"]


def test_order_within_a_fifo_group_holds_whatever_fails() -> None:
    desk = _desk(kind="fifo")
    desk.send_fifo("a", b"bad", b"behind")
    for _ in range(4):
        delivery = desk.receive(10)
        assert bodies_of(delivery) == [b"bad", b"behind"]
        desk.release(delivery, delay_ms=0)


def _fifo_desk(*groups: str, **settings: object) -> Desk:
    desk = _desk(kind="fifo", **settings)
    for group in groups:
        desk.send_fifo(group, f"{group}1".encode(), f"{group}2".encode())
    return desk


def _work_by_group(desk: Desk, receives: int) -> list[bytes]:
    """One at a time: messages of groups that begin with `bad` fail, and may come again at once; the rest is done."""
    got: list[bytes] = []
    for _ in range(receives):
        delivery = desk.receive(1)
        got += bodies_of(delivery)
        if bodies_of(delivery)[0].startswith(b"bad"):
            desk.extend(delivery, 0)
        else:
            desk.ack(delivery)
    return got


def test_a_fifo_group_that_fails_leaves_the_others_every_other_receive() -> None:
    desk = _fifo_desk("bad", "a", "b")
    assert _work_by_group(desk, 9) == [b"bad1", b"bad1", b"a1", b"bad1", b"a2", b"bad1", b"b1", b"bad1", b"b2"]


def test_of_fifo_groups_that_fail_the_one_with_the_fewest_deliveries_is_next() -> None:
    desk = _fifo_desk("bad-x", "bad-y", "bad-z")
    got = _work_by_group(desk, 12)
    assert {body: got.count(body) for body in set(got)} == {b"bad-x1": 4, b"bad-y1": 4, b"bad-z1": 4}


def test_whose_turn_it_is_among_fifo_groups_outlives_a_restart() -> None:
    desk = _fifo_desk("bad", "a")
    got = []
    for _ in range(5):
        got += _work_by_group(desk, 1)
        desk.reopen()
    assert got == [b"bad1", b"bad1", b"a1", b"bad1", b"a2"]


def test_a_batch_gives_half_of_its_places_to_fifo_groups_that_did_not_fail() -> None:
    desk = _desk(kind="fifo")
    desk.send_fifo("bad", *[b"bad%d" % number for number in range(10)])
    desk.extend(desk.receive(10), 0)
    for group in "abc":
        desk.send_fifo(group, *[f"{group}{number}".encode() for number in range(2)])
    assert bodies_of(desk.receive(8)) == [b"bad0", b"bad1", b"bad2", b"bad3", b"a0", b"a1", b"b0", b"b1"]


def test_a_batch_of_a_fifo_queue_is_full_although_the_group_that_failed_has_most() -> None:
    desk = _desk(kind="fifo")
    desk.send_fifo("bad", *[b"bad%d" % number for number in range(6)])
    desk.extend(desk.receive(6), 0)
    desk.send_fifo("a", b"a0")
    bodies = bodies_of(desk.receive(6))
    assert sorted(bodies) == [b"a0", *(b"bad%d" % number for number in range(5))]
    assert [body for body in bodies if body != b"a0"] == [b"bad%d" % number for number in range(5)]


@given(st.lists(st.sampled_from(["bad-x", "bad-y", "a", "b", "c"]), min_size=1, max_size=20))
def test_whatever_fifo_groups_fail_the_others_get_half_of_the_receives(groups: list[str]) -> None:
    desk = _desk(kind="fifo")
    for number, group in enumerate(groups):
        desk.send_fifo(group, f"{group} {number}".encode())
    healthy = [f"{group} {number}".encode() for number, group in enumerate(groups) if not group.startswith("bad")]
    # each of the bad heads is new once, and then there is one for each of the others
    receives = 2 * (len(healthy) + len({group for group in groups if group.startswith("bad")}))
    done = _work_by_group(desk, receives if len(healthy) < len(groups) else len(healthy))
    for group in "abc":
        ours = [body for body in healthy if body.startswith(group.encode())]
        assert [body for body in done if body.startswith(group.encode()) and b"bad" not in body] == ours
