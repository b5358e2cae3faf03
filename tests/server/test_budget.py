"""What all connections may hold together: room is claimed in order, nobody waits for ever, and nothing is forgotten."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.budget import Budget, NoRoom, Pace, Share, asked_bytes

BYTES_MAX = 1_000
BODIES_MAX = 750
CLAIMS_MAX = 875
SHORT = 15


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


def test_long_claims_are_granted_in_their_order() -> None:
    async def main() -> None:
        budget, order = Budget(BYTES_MAX), []
        first, large, smaller = budget.share(), budget.share(), budget.share()
        assert first.claim(500, print)
        assert not large.claim(600, lambda: order.append("large"))
        assert not smaller.claim(50, lambda: order.append("smaller"))
        first.let_go()
        await asyncio.sleep(0)
        assert order == ["large", "smaller"]

    asyncio.run(main())


def test_short_claims_do_not_wait_behind_a_long_one() -> None:
    budget = Budget(BYTES_MAX)
    assert budget.share().claim(BODIES_MAX, print)
    for _ in range(2):
        assert not budget.share().claim(5 * BYTES_MAX, print)
    granted = [budget.share().claim(SHORT, print) for _ in range(20)]
    assert sum(granted) == BYTES_MAX // 8 // SHORT, "an eighth is theirs"


def test_a_stream_of_short_claims_keeps_no_long_one_from_its_turn() -> None:
    async def main() -> None:
        budget, came = Budget(BYTES_MAX), asyncio.Event()
        short = [budget.share() for _ in range(200)]
        granted = [share for share in short if share.claim(SHORT, print)]
        assert len(granted) == BODIES_MAX // SHORT, "nobody else wants the room"
        long = budget.share()
        assert not long.claim(BODIES_MAX, came.set)
        for share in granted:
            share.let_go()
            budget.share().claim(SHORT, print)  # one goes, the next one comes
            await asyncio.sleep(0)
        await asyncio.wait_for(came.wait(), 1)

    asyncio.run(main())


def test_what_others_hold_a_little_of_keeps_no_claim_above_three_quarters_waiting() -> None:
    budget = Budget(BYTES_MAX)
    budget.share().hold(BYTES_MAX // 4)
    assert budget.share().claim(BODIES_MAX + 1, print)


def test_what_grows_by_short_claims_is_long() -> None:
    budget = Budget(BYTES_MAX)
    growing = budget.share()
    while growing.claim(SHORT, print):
        assert budget.held_bytes <= BODIES_MAX
    assert budget.share().claim(SHORT, print), "it has not taken what is for short ones"


def test_who_waits_is_called_when_it_was_for_too_long_and_others_go_on() -> None:
    async def main() -> None:
        budget, late, came = Budget(BYTES_MAX, room_timeout_s=0.02), asyncio.Event(), asyncio.Event()
        holder, large, next_one = budget.share(), budget.share(), budget.share()
        assert holder.claim(500, print)
        assert not large.claim(600, lambda: pytest.fail("there was no room"), late.set)
        assert not next_one.claim(200, came.set)
        await asyncio.wait_for(late.wait(), 1)
        await asyncio.wait_for(came.wait(), 1)
        assert not large.is_waiting
        assert budget.held_bytes == 700

    asyncio.run(main())


def test_a_body_has_to_come_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.budget.PACE_S", 0.05)

    async def main() -> None:
        received, late = 0, asyncio.Event()
        pace = Pace(Budget(BYTES_MAX, body_bytes_per_s_min=1_000), lambda: received, late.set)
        pace.start()
        for _ in range(10):
            received += 1_000
            await asyncio.sleep(0.01)
        assert not late.is_set(), "faster than it has to be"
        await asyncio.wait_for(late.wait(), 5)
        late.clear()
        pace.start()
        pace.stop()
        await asyncio.sleep(0.1)
        assert not late.is_set()

    asyncio.run(main())


def test_a_claim_that_is_larger_than_the_budget_is_granted_when_others_hold_little() -> None:
    async def main() -> None:
        budget, came = Budget(BYTES_MAX), asyncio.Event()
        one, two = budget.share(), budget.share()
        assert one.claim(BYTES_MAX // 2, came.set)
        assert not two.claim(5 * BYTES_MAX, came.set)
        one.close()
        await asyncio.wait_for(came.wait(), 1)
        assert budget.held_bytes == 5 * BYTES_MAX

    asyncio.run(main())


def test_bodies_that_wait_keep_nobody_from_beginning() -> None:
    budget = Budget(BYTES_MAX)
    assert budget.share().claim(BODIES_MAX, print)
    while budget.share().claim(SHORT, print):
        pass
    assert not budget.share().claim(100, print)
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
            others_bytes = budget.held_bytes - max((each.held_bytes for each in holders), default=0)
            assert budget.held_bytes <= CLAIMS_MAX or others_bytes <= BYTES_MAX // 4 + BYTES_MAX // 8
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
