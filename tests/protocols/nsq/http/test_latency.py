from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.nsq.stats import LatencyWindow, result_of

HALF_S = 300.0
QUANTILES = (0.5, 0.95, 0.99, 1.0)


def exact(latencies_ms: Sequence[float], quantile: float) -> float:
    """The smallest value that this share of all does not exceed, in nanoseconds."""
    rank = max(1, int(np.ceil(quantile * len(latencies_ms))))
    return sorted(latencies_ms)[rank - 1] * 1e6


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200))
def test_percentiles_are_within_a_bucket_of_the_exact_ones(latencies_ms: list[int]) -> None:
    window = LatencyWindow(QUANTILES)
    for latency_ms in latencies_ms:
        window.note(latency_ms, 1, now_s=0.0)
    result = window.result(now_s=0.0)
    assert result.count == len(latencies_ms)
    assert result.percentiles is not None
    for found in result.percentiles:
        assert found.value == pytest.approx(exact(latencies_ms, found.quantile), rel=0.023)


@given(st.lists(st.tuples(st.floats(0.0, 1e12), st.integers(1, 50)), max_size=30))
def test_a_run_noted_at_once_counts_as_its_messages_one_by_one(runs: list[tuple[float, int]]) -> None:
    together, one_by_one = LatencyWindow(QUANTILES), LatencyWindow(QUANTILES)
    for latency_ms, count in runs:
        together.note(latency_ms, count, now_s=0.0)
        for _ in range(count):
            one_by_one.note(latency_ms, 1, now_s=0.0)
    assert together.counts(0.0).tolist() == one_by_one.counts(0.0).tolist()


def test_what_is_older_than_the_window_is_forgotten_by_halves() -> None:
    window = LatencyWindow(QUANTILES, window_s=2 * HALF_S)
    window.note(1.0, 10, now_s=0.0)
    window.note(1.0, 1, now_s=HALF_S + 1)
    assert window.result(HALF_S * 2 - 1).count == 11
    assert window.result(HALF_S * 2 + 1).count == 1
    assert window.result(HALF_S * 9).count == 0


def test_a_silent_window_is_forgotten_whole() -> None:
    window = LatencyWindow(QUANTILES, window_s=2 * HALF_S)
    window.note(1.0, 10, now_s=0.0)
    assert window.result(HALF_S * 5).count == 0
    window.note(1.0, 3, now_s=HALF_S * 5)
    assert window.result(HALF_S * 5).count == 3


def test_nothing_is_kept_when_no_percentiles_are_wanted() -> None:
    window = LatencyWindow([])
    window.note(1.0, 10, now_s=0.0)
    assert window.result(0.0).percentiles is None
    assert window.counts(0.0).sum() == 0


def test_negative_times_of_a_clock_that_was_set_back_count_as_none() -> None:
    window = LatencyWindow([0.5])
    for latency_ms in (-5.0, -3.0, 0.0):
        window.note(latency_ms, 1, now_s=0.0)
    result = window.result(0.0)
    assert result.percentiles is not None
    assert (result.count, result.percentiles[0].value) == (3, 0.0)


def test_a_topic_has_the_latencies_of_all_its_channels() -> None:
    fast, slow = LatencyWindow([0.5]), LatencyWindow([0.5])
    fast.note(1.0, 10, now_s=0.0)
    slow.note(1_000.0, 30, now_s=0.0)
    result = result_of([fast, slow], [0.5], now_s=0.0)
    assert result.count == 40
    assert result.percentiles is not None
    assert result.percentiles[0].value == pytest.approx(1e9, rel=0.023)
