"""What all connections may hold together: room is claimed in order, nobody waits for ever, and nothing is forgotten."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.budget import Budget, NoRoom, Share, asked_bytes

BYTES_MAX = 1_000
BODIES_MAX = 750


def test_who_finds_no_room_is_called_when_there_is_some() -> None:
    async def main() -> None:
        budget, came = Budget(BYTES_MAX), asyncio.Event()
        one, two = budget.share(), budget.share()
        assert one.claim(700, came.set)
        assert not two.claim(100, came.set)
        one.let_go(600)
        await asyncio.wait_for(came.wait(), 1)
        assert (one.held_bytes, two.held_bytes, budget.held_bytes) == (100, 100, 200)

    asyncio.run(main())


def test_small_claims_do_not_overtake_a_large_one() -> None:
    async def main() -> None:
        budget, order = Budget(BYTES_MAX), []
        first, large, small = budget.share(), budget.share(), budget.share()
        assert first.claim(500, print)
        assert not large.claim(600, lambda: order.append("large"))
        assert not small.claim(1, lambda: order.append("small"))
        first.let_go()
        await asyncio.sleep(0)
        assert order == ["large", "small"]

    asyncio.run(main())


def test_a_claim_that_is_larger_than_the_budget_is_granted_when_nobody_else_holds_anything() -> None:
    async def main() -> None:
        budget, came = Budget(BYTES_MAX), asyncio.Event()
        one, two = budget.share(), budget.share()
        assert one.claim(1, came.set)
        assert not two.claim(5 * BYTES_MAX, came.set)
        one.close()
        await asyncio.wait_for(came.wait(), 1)
        assert budget.held_bytes == 5 * BYTES_MAX

    asyncio.run(main())


def test_bodies_that_wait_keep_nobody_from_beginning() -> None:
    budget = Budget(BYTES_MAX)
    assert budget.share().claim(BODIES_MAX, print)
    assert not budget.share().claim(1, print)
    assert budget.share().claim(0, print)


def test_answers_that_nobody_reads_keep_requests_from_beginning_until_they_are_read() -> None:
    async def main() -> None:
        budget, came = Budget(BYTES_MAX), asyncio.Event()
        unread, next_one = budget.share(), budget.share()
        unread.hold(BYTES_MAX)
        assert budget.is_full
        assert not next_one.claim(0, came.set)
        unread.let_go(1)
        await asyncio.wait_for(came.wait(), 1)

    asyncio.run(main())


def test_who_waits_for_too_long_is_told_and_leaves_no_trace() -> None:
    async def main() -> None:
        budget = Budget(BYTES_MAX)
        one, two = budget.share(), budget.share()
        one.hold(BODIES_MAX)
        with pytest.raises(NoRoom):
            await two.claimed(100, 0.01)
        one.close()
        await asyncio.sleep(0)
        assert budget.held_bytes == 0
        assert not two.is_waiting

    asyncio.run(main())


def test_who_goes_between_the_grant_and_its_turn_holds_nothing() -> None:
    async def main() -> None:
        budget = Budget(BYTES_MAX)
        one, two = budget.share(), budget.share()
        one.hold(BODIES_MAX)
        assert not two.claim(100, lambda: pytest.fail("it has gone"))
        one.close()
        two.close()
        await asyncio.sleep(0)
        assert budget.held_bytes == 0

    asyncio.run(main())


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["claim", "let_go", "withdraw", "close"]), st.integers(0, 2_000)),
        max_size=60,
    )
)
def test_nothing_is_forgotten_and_everybody_gets_a_turn(steps: list[tuple[int, str, int]]) -> None:
    async def main() -> None:
        budget = Budget(BYTES_MAX)
        shares = [budget.share() for _ in range(5)]
        for number, step, nbytes in steps:
            share = shares[number]
            if step == "claim" and not share.is_waiting:
                share.claim(nbytes, lambda: None)
            elif step == "let_go":
                share.let_go(nbytes)
            elif step == "withdraw":
                share.withdraw()
            elif step == "close":
                share.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert budget.held_bytes == sum(each.held_bytes for each in shares)
            holders = [each for each in shares if each.held_bytes]
            assert budget.held_bytes <= BODIES_MAX or len(holders) == 1
            waiting = [each for each in shares if each.is_waiting]
            assert not waiting or holders, "somebody waits, and for nobody"
        for share in shares:
            await _finish(share, shares)
        assert budget.held_bytes == 0

    asyncio.run(main())


async def _finish(share: Share, shares: list[Share]) -> None:
    """Whoever holds something gets done, or is refused if it waits for more: so this one's turn comes."""
    for _ in range(10):
        for each in shares:
            if each.held_bytes:
                each.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not share.is_waiting
    share.close()


class _Queue:
    messages = 10
    size = 10_000_000


@pytest.mark.parametrize(
    ("count", "bytes_max", "expected"),
    [(1, 10**9, 1_000_000), (5, 10**9, 5_000_000), (100, 10**9, 10_000_000), (100, 3_000_000, 3_000_000), (0, 1, 0)],
)
def test_an_answer_is_as_large_as_its_messages_are_on_average(count: int, bytes_max: int, expected: int) -> None:
    assert asked_bytes(_Queue(), count, bytes_max) == expected
    assert asked_bytes(None, count, bytes_max) == 0
