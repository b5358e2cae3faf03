"""Settling: from receipts to spans, and from refusals to errors."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.identity import Identity
from penstock.core.commands import Settled, Span
from penstock.core.errors import ForeignReceipt, PenstockError


def spans_of_receipts(identity: Identity, queue: str, channel: str, receipts: Iterable[str]) -> list[Span]:
    """The messages that receipts stand for, as few spans as possible. `ForeignReceipt` for one of another queue."""
    opened = [identity.open_receipt(receipt) for receipt in receipts]
    for receipt in opened:
        owner = identity.queue_name(receipt.queue_id)
        if owner != queue:
            whose = "a queue that is gone" if owner is None else f"queue {owner!r}"
            raise ForeignReceipt(f"the receipt belongs to {whose}, and not to {queue!r}")
        held_by = identity.channel_name(receipt.queue_id, receipt.channel_id)
        if held_by != channel:
            whose = "a channel that is gone" if held_by is None else f"channel {held_by!r}"
            raise ForeignReceipt(f"the receipt belongs to {whose} of {queue!r}, and not to {channel!r}")
    return merged_spans(Span(receipt.sequence, receipt.sequence, receipt.attempt) for receipt in opened)


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


def check_settled(settled: Settled) -> int:
    """How many messages were settled; or the first refusal, raised. The others were settled all the same."""
    if not settled.refused:
        return settled.count
    refused = settled.refused
    count = sum(refusal.last - refusal.first + 1 for refusal in refused)
    error = refused[0].error
    if count == 1 and settled.count == 0:
        raise error
    raise _summary(error, count, settled.count + count)


def _summary(error: PenstockError, refused: int, total: int) -> PenstockError:
    summary = type(error)(f"{refused} of {total} messages were refused, the others settled; the first: {error}")
    summary.__cause__ = error
    return summary
