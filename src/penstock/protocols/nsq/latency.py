"""How long messages take from being sent to being finished: percentiles over a sliding window.

How it works. Times go into a histogram whose buckets grow with the time: sixteen to each doubling, so that a bucket's
middle is at most 2.2 % off. There are two histograms, each for half of the window. The older one is thrown away when a
half has passed; so an answer covers between a half and the whole of the window, as nsqd's does. To note a run of
messages is one addition to one bucket: its size does not matter, and neither does the number of
messages for the memory, which is 2 x 3 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_PER_DOUBLING = 16
_DOUBLINGS = 45
"""2**45 ms is a thousand years."""
_BUCKETS = _PER_DOUBLING * _DOUBLINGS + 1
"""The first bucket holds what took less than half a millisecond: the store's times are whole milliseconds."""
_MS_NS = 1_000_000
_FLOOR_MS = 0.5


class Percentile(msgspec.Struct, frozen=True):
    """One of the percentiles of a result; `value` in nanoseconds, as nsqd gives it."""

    quantile: float
    value: float


class LatencyResult(msgspec.Struct, frozen=True):
    """What `/stats` shows; `percentiles` is None when none are configured."""

    count: int = 0
    percentiles: list[Percentile] | None = None


class LatencyWindow:
    """The latencies of one channel.

    >>> window = LatencyWindow([0.5, 0.99], window_s=600)
    >>> window.note(10.0, count=98, now_s=0.0)
    >>> window.note(5_000.0, count=2, now_s=1.0)
    >>> result = window.result(now_s=1.0)
    >>> result.count, [round(each.value / 1e6) for each in result.percentiles]
    (100, [10, 4978])
    """

    __slots__ = ("_half_s", "_newer", "_older", "_turns_s", "percentiles")

    def __init__(self, percentiles: Sequence[float], window_s: float = 600.0) -> None:
        self.percentiles = tuple(percentiles)
        self._half_s = window_s / 2
        self._newer: NDArray[np.uint32] | None = None
        self._older: NDArray[np.uint32] | None = None
        self._turns_s = 0.0
        """When the newer half becomes the older one. The halves are made when there is something to note."""

    def note(self, latency_ms: float, count: int, now_s: float) -> None:
        """This many messages took this long."""
        if self.percentiles:
            self._current(now_s)[_bucket(latency_ms)] += count

    def result(self, now_s: float) -> LatencyResult:
        """The percentiles now."""
        return result_of([self], self.percentiles, now_s)

    def counts(self, now_s: float) -> NDArray[np.uint64]:
        """Messages in each bucket, over the window."""
        self._turn(now_s)
        total = np.zeros(_BUCKETS, np.uint64)
        for half in (self._newer, self._older):
            if half is not None:
                total += half
        return total

    def _current(self, now_s: float) -> NDArray[np.uint32]:
        self._turn(now_s)
        if self._newer is None:
            self._newer = np.zeros(_BUCKETS, np.uint32)
            self._turns_s = now_s + self._half_s
        return self._newer

    def _turn(self, now_s: float) -> None:
        """Throw away what is out of the window."""
        if now_s < self._turns_s:
            return
        is_recent = now_s < self._turns_s + self._half_s
        self._older = self._newer if is_recent else None
        self._newer = None
        if self._older is not None:
            self._turns_s += self._half_s
            self._newer = np.zeros(_BUCKETS, np.uint32)


def result_of(windows: Iterable[LatencyWindow], percentiles: Sequence[float], now_s: float) -> LatencyResult:
    """The percentiles of several windows together: those of a topic, out of its channels'.

    >>> result_of([], [0.5], now_s=0.0)
    LatencyResult(count=0, percentiles=[Percentile(quantile=0.5, value=0.0)])
    >>> result_of([], [], now_s=0.0)
    LatencyResult(count=0, percentiles=None)
    """
    if not percentiles:
        return LatencyResult()
    total = sum((window.counts(now_s) for window in windows), np.zeros(_BUCKETS, np.uint64))
    reached = np.cumsum(total)
    count = int(reached[-1])
    return LatencyResult(count, [Percentile(each, _value_ns(reached, each)) for each in percentiles])


def _value_ns(reached: NDArray[np.uint64], quantile: float) -> float:
    count = int(reached[-1])
    if not count:
        return 0.0
    rank = max(1, int(np.ceil(quantile * count)))
    return _middle_ms(int(np.searchsorted(reached, rank))) * _MS_NS


def _bucket(latency_ms: float) -> int:
    if latency_ms < _FLOOR_MS:
        return 0
    return min(int(np.log2(latency_ms / _FLOOR_MS) * _PER_DOUBLING) + 1, _BUCKETS - 1)


def _middle_ms(bucket: int) -> float:
    """The geometric middle of a bucket."""
    return 0.0 if bucket == 0 else float(_FLOOR_MS * 2 ** ((bucket - 0.5) / _PER_DOUBLING))
