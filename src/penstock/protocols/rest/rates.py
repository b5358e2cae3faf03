"""How often each caller may call: a token bucket each."""

from __future__ import annotations

_CALLERS_MAX = 10_000


class RateLimit:
    """So many calls a second for each caller, and so many at once after a pause.

    >>> limit = RateLimit(per_second=2.0, burst=1)
    >>> limit.wait_s("ann", 10.0), limit.wait_s("ann", 10.0), limit.wait_s("bob", 10.0), limit.wait_s("ann", 10.5)
    (0.0, 0.5, 0.0, 0.0)
    """

    __slots__ = ("_buckets", "_burst", "_per_second")

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[str, tuple[float, float]] = {}
        """Caller -> calls left, and when that was."""

    def wait_s(self, caller: str, now_s: float) -> float:
        """0 if the caller may call now, which is counted; else how long it should wait, which is not."""
        left, seen_s = self._buckets.get(caller, (float(self._burst), now_s))
        left = min(self._burst, left + (now_s - seen_s) * self._per_second)
        if left < 1:
            return (1 - left) / self._per_second
        if len(self._buckets) >= _CALLERS_MAX and caller not in self._buckets:
            self._buckets.clear()
        self._buckets[caller] = (left - 1, now_s)
        return 0.0
