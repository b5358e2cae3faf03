"""Settling: from refusals to errors."""

from __future__ import annotations

from copy import copy

from penstock.core.commands import Settled
from penstock.core.errors import PenstockError
from penstock.core.runs import merged_spans as merged_spans


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
