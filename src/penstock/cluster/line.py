"""Calls that wait for a shard, in the order in which they came: so that none overtakes another.

A line stands before a shard as soon as one call came back because the shard has moved, or because calls before are with
another node that has not answered. Whatever comes for that shard then joins the line (receives do not: nothing depends
on their order). The first in the line is sent alone. When it is answered, the shard is served, and all others follow.
"""

from __future__ import annotations

import asyncio
from bisect import insort

from penstock.cluster.routed import Routed


class Line:
    """The line before one shard."""

    __slots__ = ("calls", "probe", "timer", "tries")

    def __init__(self) -> None:
        self.calls: list[Routed] = []
        self.probe: Routed | None = None
        """The one that was sent to see whether the shard is served."""
        self.timer: asyncio.TimerHandle | None = None
        self.tries = 0

    def join(self, call: Routed) -> None:
        """Stand where it belongs: behind all that came before it."""
        if call is self.probe:
            self.probe = None
        insort(self.calls, call, key=lambda each: each.order)

    def stop(self) -> None:
        """Do not look any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
