"""Runs of sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import Span


def neighbours(sequences: list[int]) -> Iterator[tuple[int, int]]:
    """Cut sequence numbers, in the order they come, into runs (first, stop) of rising neighbours.

    >>> list(neighbours([4, 5, 9, 1, 2]))
    [(4, 6), (9, 10), (1, 3)]
    """
    start = 0
    for at in range(1, len(sequences) + 1):
        if at == len(sequences) or sequences[at] != sequences[at - 1] + 1:
            yield sequences[start], sequences[at - 1] + 1
            start = at


def cut(mask: NDArray[np.bool_], first: int) -> list[tuple[bool, int, int]]:
    """Runs of equal values of a mask, as (value, first, stop) with the numbers starting at `first`.

    >>> cut(np.array([True, True, False]), 10)
    [(True, 10, 12), (False, 12, 13)]
    """
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    return [(bool(mask[low]), first + low, first + high) for low, high in pairwise(edges)]


def gaps(first: int, stop: int, parts: list[tuple[Any, int, int]]) -> list[tuple[int, int]]:
    """What of [first, stop) none of the parts covers.

    >>> gaps(0, 10, [(None, 2, 4)])
    [(0, 2), (4, 10)]
    """
    left = []
    for _, low, high in parts:
        if first < low:
            left.append((first, low))
        first = high
    if first < stop:
        left.append((first, stop))
    return left


def merged_spans(spans: Iterable[Span]) -> list[Span]:
    """Neighbours with the same attempt become one.

    >>> merged_spans([Span(3, 3, 1), Span(1, 2, 1), Span(4, 4, 2)])
    [Span(first=1, last=3, attempt=1), Span(first=4, last=4, attempt=2)]
    """
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].last + 1 == span.first and merged[-1].attempt == span.attempt:
            merged[-1] = Span(merged[-1].first, span.last, span.attempt)
        else:
            merged.append(span)
    return merged
