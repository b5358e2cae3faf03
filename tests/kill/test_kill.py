"""`kill -9` of a working process loses nothing that was acknowledged, and brings back nothing that was done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kill.killer import Killer, PromiseBroken, Promises

KILLS = int(os.environ.get("PENSTOCK_KILLS", "50"))
KILLS_A_DIRECTORY = 10


@pytest.mark.parametrize("seed", range(KILLS // KILLS_A_DIRECTORY))
def test_a_killed_process_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    killer = Killer(tmp_path, seed)
    for _ in range(KILLS_A_DIRECTORY):
        killer.kill_once()
    assert killer.counts["sent"] > 0, "the process did nothing"
    assert killer.counts["done"] > 0, "the process did nothing"
    assert killer.counts["settled in another life"] > 0, "nothing was settled after a crash"


def promises() -> Promises:
    promised = Promises()
    promised.read(["S 1 2 3 4", "s 1 2 3", "A 1", "a 1", "M 2", "m 2", "F g 4", "f g 4"])
    return promised


def test_kept_promises_are_accepted() -> None:
    promises().check(waiting={3}, moved=[2])


@pytest.mark.parametrize(
    ("waiting", "moved", "broken"),
    [
        (set(), [2], "lost"),
        ({1, 3}, [2], "back"),
        ({3}, [], "gone"),
        ({2, 3}, [2], "still there"),
        ({3}, [2, 2], "twice"),
        ({3}, [2, 1], "without being asked"),
        ({3, 9}, [2], "nobody sent"),
    ],
)
def test_a_broken_promise_is_noticed(waiting: set[int], moved: list[int], broken: str) -> None:
    with pytest.raises(PromiseBroken, match=broken):
        promises().check(waiting, moved)


def test_a_receipt_that_a_crash_has_made_worthless_is_noticed() -> None:
    promised = Promises()
    promised.read(["S 1 2", "s 1 2", "R 1 abc", "R 2 def", "A 2", "a 2"])
    assert promised.held == {1: "abc"}
    with pytest.raises(PromiseBroken, match="refused after it: 1"):
        promised.read(["A 1", "x 1"])


def test_a_group_out_of_order_is_noticed() -> None:
    with pytest.raises(PromiseBroken, match="was done after"):
        promises().read(["F g 3", "f g 3"])
