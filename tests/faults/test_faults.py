"""Clients and servers that are cut off and killed in the middle of everything: a few seeds of what `make soak` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.promises import PromiseBroken, Promises
from tests.faults.world import World

SEEDS = int(os.environ.get("PENSTOCK_FAULT_SEEDS", "3"))
FAULTS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_faults_lose_nothing_double_nothing_and_leave_nothing_half_done(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    world.run(FAULTS)
    for what in ("sent", "came through", "in line", "orders"):
        assert world.counts[what] > 0, f"the client did nothing: {world.counts}"


def promises(*more: str) -> Promises:
    promised = Promises()
    lines = ["S 1 2 3", "s 1 2", "n 3", "T once 4", "H once 4", "T twice 5", "H twice 5", "H twice 5"]
    promised.read([*lines, *more])
    return promised


def test_kept_promises_are_accepted() -> None:
    promises().check(out=[1], in_line=[2], waiting=[], orders=[6, 7], effects=[7, 6])


@pytest.mark.parametrize(
    ("out", "orders", "effects", "broken"),
    [
        ([1], [], [], "lost"),
        ([1, 2, 2], [], [], "twice"),
        ([1, 2, 3], [], [], "certainly not sent"),
        ([1, 2, 9], [], [], "nobody sent"),
        ([1, 2], [6], [], "without effect"),
        ([1, 2], [6], [6, 6], "happened twice"),
        ([1, 2], [], [6], "without order"),
    ],
)
def test_a_broken_promise_is_noticed(out: list[int], orders: list[int], effects: list[int], broken: str) -> None:
    with pytest.raises(PromiseBroken, match=broken):
        promises().check(out, [], [], orders, effects)


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("H once 4", "more than 1 times from once"),
        ("H twice 5", "more than 2 times from twice"),
        ("H once 8", "nobody sent these to once"),
        ("X Traceback", "reports"),
    ],
)
def test_a_line_too_much_is_noticed(line: str, broken: str) -> None:
    with pytest.raises(PromiseBroken, match=broken):
        promises(line).check([1, 2], [], [], [], [])


def test_what_was_not_drained_is_noticed() -> None:
    with pytest.raises(PromiseBroken, match="not drained"):
        promises().check([1, 2], [], [3], [], [])


def test_a_group_out_of_order_is_noticed() -> None:
    promised = promises("S 12 15", "s 12 15")
    promised.check([1, 2], [12, 15], [], [], [])
    with pytest.raises(PromiseBroken, match="group 0 is out of order"):
        promised.check([1, 2], [15, 12], [], [], [])
