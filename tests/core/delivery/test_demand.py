"""The line of those who wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.delivery.demand import Line, Waiter


def _line(*credits: int) -> Line:
    line = Line()
    for number, credit in enumerate(credits):
        line.join(Waiter(number, credit, None, 0))
    return line


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 200))
def test_everybody_gets_what_is_fair_and_nothing_is_kept_back(credits: list[int], ready: int) -> None:
    line, left = _line(*credits), ready
    for credit in credits:
        if not left:
            break
        waiting = len(line)
        waiter, share = line.next(left)
        assert waiter.credit == credit
        assert share == min(credit, -(-left // waiting))
        left -= share
    assert left == 0 or len(line) == 0


@given(st.integers(1, 8), st.integers(1, 200))
def test_shares_of_those_with_credit_enough_differ_by_one_at_most(waiting: int, ready: int) -> None:
    line, left, shares = _line(*[1_000] * waiting), ready, []
    while len(line) and left:
        _, share = line.next(left)
        shares.append(share)
        left -= share
    assert left == 0
    assert max(shares) - min(shares) <= 1


def test_whoever_waited_longest_is_next() -> None:
    line = _line(1, 1, 1)
    assert [line.next(1)[0].ticket for _ in range(3)] == [0, 1, 2]


def test_share_is_rounded_up_so_that_nothing_is_left_over() -> None:
    line = _line(10, 10, 10)
    assert line.next(7)[1] == 3
    assert line.next(4)[1] == 2
    assert line.next(2)[1] == 2


def test_credit_bounds_the_share() -> None:
    assert _line(2, 100).next(100)[1] == 2


def test_one_who_leaves_is_not_served_and_leaving_twice_is_fine() -> None:
    line = Line()
    first, second = Waiter("first", 1, None, 0), Waiter("second", 1, None, 0)
    line.join(first)
    line.join(second)
    line.leave(first)
    line.leave(first)
    assert line.next(1)[0] is second
    assert len(line) == 0


def test_one_joins_the_line_once() -> None:
    line, waiter = Line(), Waiter("one", 1, None, 0)
    line.join_once(waiter)
    line.join_once(waiter)
    assert len(line) == 1


def test_one_who_was_served_nothing_keeps_its_place() -> None:
    line = _line(1, 1)
    waiter, _ = line.next(1)
    line.join_first(waiter)
    assert [line.next(1)[0].ticket, line.next(1)[0].ticket] == [0, 1]
