"""How long to wait before something is tried again: one formula, for everybody who does."""

from __future__ import annotations

_STEPS_MAX = 60
"""Growing on would not matter: nobody's cap is so far from his base."""


def backoff(attempt: int, base: float, cap: float, factor: float = 2.0, jitter: float = 0.0) -> float:
    """The pause after the `attempt`-th failure in a row (from 1), in the unit of `base` and `cap`.

    It grows by `factor` each time. `jitter` is the part of it that is taken off, so that many who failed together do
    not come back together: a random number from 0 to 1 ("full jitter"), half of one, or nothing.

    >>> [backoff(attempt, 0.1, 1.0) for attempt in (1, 2, 3, 99)], backoff(3, 1.0, 60.0, jitter=0.5)
    ([0.1, 0.2, 0.4, 1.0], 2.0)
    """
    return min(cap, base * factor ** min(attempt - 1, _STEPS_MAX)) * (1.0 - jitter)
