"""One formula for every pause before something is tried again."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.core.backoff import backoff

SIZES = st.floats(0.001, 1e6)


@given(st.integers(1, 10_000), SIZES, SIZES, st.floats(1.0, 10.0), st.floats(0.0, 1.0))
def test_a_pause_is_never_longer_than_the_cap_nor_shorter_than_jitter_allows(
    attempt: int, base: float, cap: float, factor: float, jitter: float
) -> None:
    found = backoff(attempt, base, cap, factor, jitter)
    assert 0 <= found <= cap
    assert found >= min(base, cap) * (1 - jitter) * 0.999


@given(st.integers(1, 10_000), SIZES, SIZES)
def test_pauses_grow(attempt: int, base: float, cap: float) -> None:
    assert backoff(attempt, base, cap) <= backoff(attempt + 1, base, cap)


def test_nobody_has_a_formula_of_his_own() -> None:
    grows = re.compile(r"\*\* *min\(|min\(2 \* |min\(.*\* (2|1\.5),|<< *min\(|\*= 2\b")
    root = Path(penstock.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}"
        for path in sorted(root.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if grows.search(line) and path.name != "backoff.py"
    ]
    assert not found, f"use penstock.core.backoff: {found}"
