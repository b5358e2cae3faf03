"""How often each caller may call: a token bucket each. REST and the websocket count together."""

from __future__ import annotations

import time

from penstock.core.errors import RateLimited
from penstock.server.auth import Principal
from penstock.server.node import Services

_CALLERS_MAX = 10_000
_SHARED = "rates"


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

    def count(self, caller: str) -> None:
        """Count a call of now; `RateLimited` if it is one too many."""
        wait_s = self.wait_s(caller, time.monotonic())
        if wait_s:
            raise RateLimited(f"too many requests: wait {wait_s:.3f} s")


def rates_of(services: Services) -> RateLimit | None:
    """What everything on REST's port counts with: `[rest] requests_per_second`. None: callers are not limited."""
    settings = services.settings.rest
    if settings.requests_per_second is None:
        return None
    limit = services.extras.setdefault(_SHARED, RateLimit(settings.requests_per_second, settings.requests_burst))
    assert isinstance(limit, RateLimit)
    return limit


def caller_of(principal: Principal, peer: str) -> str:
    """Who is counted: a principal, wherever it calls from; without credentials, an address."""
    return principal.name if principal.access_key else peer
