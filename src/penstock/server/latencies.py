"""How long messages take from send to receive, and to ack: sampled, for the history.

Four times a second a shard lets the core note what happens in one step, as it does for event records. All other steps
cost nothing but the question.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.core.commands import MessageEvent

_SAMPLE_MS = 250
_NOTED_MAX = 2_000
"""Runs of messages whose latencies are kept, of one queue."""
_QUANTILES = (0.50, 0.95, 0.99)

Latencies = list[tuple[int, int]]
"""(milliseconds, how many messages took that long)."""


class LatencySampler:
    """Looks at one step of a shard now and then: how long messages took to be received, and to be acked."""

    __slots__ = ("_next_ms", "acked", "received")

    def __init__(self) -> None:
        self._next_ms = 0
        self.received: dict[str, Latencies] = {}
        self.acked: dict[str, Latencies] = {}

    def wants(self, now_ms: int) -> bool:
        """Whether the step that begins now shall be looked at."""
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + _SAMPLE_MS
        return True

    def take(self, happened: Iterable[MessageEvent]) -> None:
        """What happened in that step."""
        for event in happened:
            found = self.received if event.what == "received" else self.acked if event.what == "acked" else None
            if found is not None and event.sent_ms:
                noted = found.setdefault(event.queue, [])
                if len(noted) < _NOTED_MAX:
                    noted.append((max(0, event.at_ms - event.sent_ms), event.messages))

    def drain(self) -> tuple[dict[str, Latencies], dict[str, Latencies]]:
        """Everything since the last time, of receives and of acks."""
        found = self.received, self.acked
        self.received, self.acked = {}, {}
        return found


def percentiles(latencies: Latencies) -> list[float]:
    """Seconds within which half, 95 and 99 in a hundred of the messages came; NaN without any.

    >>> percentiles([(10, 98), (5_000, 2)])
    [0.01, 0.01, 5.0]
    """
    if not latencies:
        return [float("nan")] * len(_QUANTILES)
    ordered = np.array(sorted(latencies), np.int64)
    reached = np.cumsum(ordered[:, 1])
    ranks = [max(1, int(np.ceil(each * reached[-1]))) for each in _QUANTILES]
    return [float(ordered[int(np.searchsorted(reached, rank)), 0]) / 1_000 for rank in ranks]
