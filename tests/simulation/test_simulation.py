"""Seeds of the simulator: those that failed once, then a range. `make soak` runs many more."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.core.broker import Broker
from penstock.core.storage.changes import Changes
from tests.simulation.engines import Fault, Kept, MemoryEngine
from tests.simulation.model import Violation
from tests.simulation.simulator import (
    OPERATING_SEEDS,
    PUSHING_SEEDS,
    RECALLING_SEEDS,
    REPEATING_SEEDS,
    RESTARTING_SEEDS,
    STAGING_SEEDS,
    WHOLE_SEEDS,
    Simulator,
    run_seed,
)

SEEDS = int(os.environ.get("PENSTOCK_TEST_SEEDS", "500"))
SEEDS_A_TEST = 25
REGRESSIONS = Path(__file__).parent / "seeds" / "regressions.txt"


def regression_seeds() -> list[int]:
    lines = [line.partition("#")[0].strip() for line in REGRESSIONS.read_text().splitlines()]
    return [int(line) for line in lines if line]


@pytest.mark.parametrize("seed", regression_seeds())
def test_a_seed_that_failed_once_holds_now(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("first", range(0, SEEDS // 2, SEEDS_A_TEST))
def test_no_seed_loses_repeats_or_reorders_anything(first: int) -> None:
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["commits"] for count in counts) > SEEDS_A_TEST, "the seeds did nothing"


@pytest.mark.parametrize("first", range(0, SEEDS // 2, SEEDS_A_TEST))
def test_no_seed_breaks_a_rule_when_clients_do_all_that_there_is(first: int) -> None:
    first += WHOLE_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["messages acked lazily"] for count in counts), "no ack was lazy"
    assert sum(count["marked work"] for count in counts), "no work was marked"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, SEEDS_A_TEST))
def test_no_seed_pushes_more_than_a_session_may_hold(first: int) -> None:
    first += PUSHING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["commits"] for count in counts) > SEEDS_A_TEST, "the seeds did nothing"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, SEEDS_A_TEST))
def test_no_seed_does_a_named_command_twice(first: int) -> None:
    first += REPEATING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["commands repeated"] for count in counts) > SEEDS_A_TEST, "nothing was repeated"


@pytest.mark.parametrize("first", range(0, SEEDS // 5, SEEDS_A_TEST))
def test_no_seed_brings_back_what_its_last_receiver_acked(first: int) -> None:
    first += RECALLING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["forgotten deliveries settled"] for count in counts), "nothing was settled that a crash forgot"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, SEEDS_A_TEST))
def test_no_seed_keeps_what_the_dead_held_or_waits_for_a_clock_that_was_ahead(first: int) -> None:
    first += RESTARTING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["leases of the dead"] for count in counts) > SEEDS_A_TEST, "nobody died with a lease"
    assert sum(count["clock went back over a restart"] for count in counts), "no clock went back"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, SEEDS_A_TEST))
def test_no_seed_shows_a_part_of_what_was_staged(first: int) -> None:
    first += STAGING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["stages committed"] for count in counts) > SEEDS_A_TEST, "nothing that was staged was committed"


@pytest.mark.parametrize("first", range(0, SEEDS // 10, SEEDS_A_TEST))
def test_no_seed_loses_what_an_operator_did_not_delete(first: int) -> None:
    first += OPERATING_SEEDS
    counts = [run_seed(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(count["dead letters deleted"] for count in counts), "nothing was deleted"
    assert sum(count["redrives elsewhere"] for count in counts), "nothing went elsewhere"


def test_the_same_seed_gives_the_same_life() -> None:
    assert run_seed(7) == run_seed(7)


class ForgetfulEngine(MemoryEngine):
    """Says that the last commit before a crash was kept, and loses it."""

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> Kept:
        return Kept.AFTER if fault is Fault.AFTER else super().suffer(fault, changes, rng)


def test_a_store_that_loses_a_commit_is_found_out() -> None:
    with pytest.raises(Violation, match="the reopened state is not the committed one"):
        for seed in range(20):
            Simulator(seed, ForgetfulEngine()).run()


def test_a_broker_that_answers_before_the_commit_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(broker: Broker, now_ms: int) -> None:
        honest(broker, now_ms)
        broker.must_commit = False

    honest = Broker.finish
    monkeypatch.setattr(Broker, "finish", finish)
    with pytest.raises(Violation, match="without a commit"):
        for seed in range(5):
            run_seed(seed)
