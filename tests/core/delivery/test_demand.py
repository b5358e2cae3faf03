"""The wait queue: receivers that found nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.demand import Waiter, WaitQueue


def _line(*credits: int) -> WaitQueue:
    wait_queue = WaitQueue()
    for number, credit in enumerate(credits):
        wait_queue.join(Waiter(number, credit, None, 0))
    return wait_queue


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 200))
def test_everybody_gets_what_is_fair_and_nothing_is_kept_back(credits: list[int], ready: int) -> None:
    wait_queue, left = _line(*credits), ready
    for credit in credits:
        if not left:
            break
        waiting = len(wait_queue)
        waiter, share = wait_queue.next(left)
        assert waiter.credit == credit
        assert share == min(credit, -(-left // waiting))
        left -= share
    assert left == 0 or len(wait_queue) == 0


@given(st.integers(1, 8), st.integers(1, 200))
def test_shares_of_those_with_credit_enough_differ_by_one_at_most(waiting: int, ready: int) -> None:
    wait_queue, left, shares = _line(*[1_000] * waiting), ready, []
    while len(wait_queue) and left:
        _, share = wait_queue.next(left)
        shares.append(share)
        left -= share
    assert left == 0
    assert max(shares) - min(shares) <= 1


def test_whoever_waited_longest_is_next() -> None:
    wait_queue = _line(1, 1, 1)
    assert [wait_queue.next(1)[0].ticket for _ in range(3)] == [0, 1, 2]


def test_share_is_rounded_up_so_that_nothing_is_left_over() -> None:
    wait_queue = _line(10, 10, 10)
    assert wait_queue.next(7)[1] == 3
    assert wait_queue.next(4)[1] == 2
    assert wait_queue.next(2)[1] == 2


def test_credit_bounds_the_share() -> None:
    assert _line(2, 100).next(100)[1] == 2


def test_one_who_leaves_is_not_served_and_leaving_twice_is_fine() -> None:
    wait_queue = WaitQueue()
    first, second = Waiter("first", 1, None, 0), Waiter("second", 1, None, 0)
    wait_queue.join(first)
    wait_queue.join(second)
    wait_queue.leave(first)
    wait_queue.leave(first)
    assert wait_queue.next(1)[0] is second
    assert len(wait_queue) == 0


def test_one_joins_the_line_once() -> None:
    wait_queue, waiter = WaitQueue(), Waiter("one", 1, None, 0)
    wait_queue.join_once(waiter)
    wait_queue.join_once(waiter)
    assert len(wait_queue) == 1


def test_one_who_was_served_nothing_keeps_its_place() -> None:
    wait_queue = _line(1, 1)
    waiter, _ = wait_queue.next(1)
    wait_queue.join_first(waiter)
    assert [wait_queue.next(1)[0].ticket, wait_queue.next(1)[0].ticket] == [0, 1]
