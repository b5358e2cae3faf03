"""Pauses between attempts to connect: longer each time, and random, so that many clients do not come back at once."""

from __future__ import annotations

import random

_FIRST_S = 0.1


def pause_s(attempt: int, longest_s: float, rng: random.Random) -> float:
    """How long to wait after the `attempt`-th failure (from 1): anything up to a bound that doubles ("full jitter").

    >>> rng = random.Random(1)
    >>> all(pause_s(attempt, 5.0, rng) <= min(5.0, 0.1 * 2 ** (attempt - 1)) for attempt in range(1, 99))
    True
    """
    return rng.uniform(0, min(longest_s, _FIRST_S * (1 << min(attempt - 1, 30))))
