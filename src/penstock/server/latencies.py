"""How long messages take from send to receive, and to ack: sampled, for the history.

Now and then a shard lets the core note what happens in one step, as it does for event records: four times a second on
average. All other steps cost nothing but the question. Looks that were not needed are saved, so that every message is
measured where there are few. When looks are scarce, chance decides at which step the next one is: a client that sends,
receives and acks in turn would else be looked at in the same of these steps for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.commands import MessageEvent

_SAMPLE_MS = 250
_SAVED_MAX = 40
"""Looks that are saved up: those of a point of the history."""
_NOTED_MAX = 2_000
"""Runs of messages whose latencies are kept, of one queue."""
_QUANTILES = (0.50, 0.95, 0.99)

Latencies = list[tuple[int, int]]
"""(milliseconds, how many messages took that long)."""


class LatencySampler:
    """Looks at one step of a shard now and then: how long messages took to be received, and to be acked."""

    __slots__ = ("_chance", "_spent_ms", "acked", "received")

    def __init__(self) -> None:
        self._spent_ms = 0
        """Looks are paid for up to this time."""
        self._chance = 1
        self.received: dict[str, Latencies] = {}
        self.acked: dict[str, Latencies] = {}

    def wants(self, now_ms: int) -> bool:
        """Whether the step that begins now shall be looked at."""
        saved_ms = now_ms - self._spent_ms
        if saved_ms < _SAMPLE_MS:
            self._spent_ms = min(self._spent_ms, now_ms)  # the clock may have been set back
            return False
        if saved_ms < _SAVED_MAX * _SAMPLE_MS // 2:
            self._chance = (self._chance * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            if self._chance & 0x30000:
                return False
        self._spent_ms = max(self._spent_ms, now_ms - _SAVED_MAX * _SAMPLE_MS) + _SAMPLE_MS
        return True

    def take(self, happened: Sequence[MessageEvent]) -> None:
        """What happened in that step. Where that is nothing, the look was free."""
        if not happened:
            self._spent_ms -= _SAMPLE_MS
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
