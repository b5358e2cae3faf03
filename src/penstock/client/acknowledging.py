"""Settling: from refusals to errors."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from penstock.core.commands import Settled, Span
from penstock.core.delivery.runs import merged_spans as merged_spans
from penstock.core.errors import PenstockError


def check_settled(settled: Settled) -> int:
    """How many messages were settled; or the first refusal, raised. The others were settled all the same."""
    if not settled.refused:
        return settled.count
    refused = settled.refused
    count = sum(refusal.last - refusal.first + 1 for refusal in refused)
    error = refused[0].error
    if count == 1 and settled.count == 0:
        raise copy(error)  # the one in the reply must not have a traceback, which leads to the reply
    raise _summary(error, count, settled.count + count)


def _summary(error: PenstockError, refused: int, total: int) -> PenstockError:
    summary = type(error)(f"{refused} of {total} messages were refused, the others settled; the first: {error}")
    summary.__cause__ = error
    return summary


def spans_of(places: Iterable[tuple[int, int]]) -> list[Span]:
    """Messages, each by its sequence number and its attempt, as commands name them: neighbours become one span.

    >>> spans_of([(3, 1), (1, 1), (2, 1), (4, 2)])
    [Span(first=1, last=3, attempt=1), Span(first=4, last=4, attempt=2)]
    """
    spans: list[list[int]] = []
    for sequence, attempt in sorted(places):
        if spans and spans[-1][1] + 1 == sequence and spans[-1][2] == attempt:
            spans[-1][1] = sequence
        else:
            spans.append([sequence, sequence, attempt])
    return [Span(first, last, attempt) for first, last, attempt in spans]
