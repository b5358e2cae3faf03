"""Seeds of the simulator: those that failed once, then a range. `make soak` runs many more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation.simulator import run_seed

SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "500"))
SEEDS_A_TEST = 25
REGRESSIONS = Path(__file__).parent / "seeds" / "regressions.txt"


def regression_seeds() -> list[int]:
    lines = [line.partition("#")[0].strip() for line in REGRESSIONS.read_text().splitlines()]
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", regression_seeds())
def test_a_seed_that_failed_once_holds_now(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_no_seed_loses_repeats_or_reorders_anything(first: int) -> None:
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["commits"] for count in counts) > SEEDS_A_TEST, "the seeds did nothing"


def test_the_same_seed_gives_the_same_life() -> None:
    assert run_seed(7) == run_seed(7)
