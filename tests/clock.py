"""Time that a test lets pass."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is told to go on.

    >>> clock = ManualClock(1_000)
    >>> clock.advance_ms(500)
    >>> clock.now_ms()
    1500
    """

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance_ms(self, passed_ms: int) -> None:
        """Let time pass. A shard notices at its next step: `tick()` makes one."""
        self._now_ms += passed_ms
