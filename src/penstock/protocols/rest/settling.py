"""From receipts to spans, channel by channel, and from refusals back to receipts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.commands import Refused, Settled, Span
from penstock.core.errors import ForeignReceipt, PenstockError
from penstock.server.shards import Names


class Holding(NamedTuple):
    """Messages of one channel that a caller holds, at most once each, with the receipts that say so."""

    queue: str
    channel: str
    receipts: dict[int, tuple[str, int]]
    """Sequence number -> receipt, attempt."""

    @property
    def spans(self) -> list[Span]:
        """As few spans as possible."""
        merged: list[Span] = []
        for sequence, (_, attempt) in sorted(self.receipts.items()):
            last = merged[-1] if merged else None
            if last is not None and last.last + 1 == sequence and last.attempt == attempt:
                merged[-1] = Span(last.first, sequence, attempt)
            else:
                merged.append(Span(sequence, sequence, attempt))
        return merged

    def refused(self, settled: Settled) -> list[tuple[str, PenstockError]]:
        """The receipts that were refused, and why."""
        return [(receipt, refusal.error) for refusal in settled.refused for receipt in self._within(refusal)]

    def _within(self, refusal: Refused) -> Iterable[str]:
        if refusal.last - refusal.first < len(self.receipts):
            numbers: Iterable[int] = range(refusal.first, refusal.last + 1)
        else:
            numbers = [number for number in self.receipts if refusal.first <= number <= refusal.last]
        return [self.receipts[number][0] for number in numbers if number in self.receipts]


class Sorted(NamedTuple):
    """Receipts, sorted by channel, and those that could not be read."""

    holdings: list[Holding]
    refused: list[tuple[str, PenstockError]]


def sort_receipts(broker: Names, texts: Iterable[str], queue: str | None, channel: str | None) -> Sorted:
    """Find out what receipts are for: of this queue and channel, if they are given.

    The same receipt twice counts once. Two receipts of one message, on different attempts, go into two holdings.
    """
    rounds: list[dict[tuple[str, str], Holding]] = []
    refused: list[tuple[str, PenstockError]] = []
    for text in dict.fromkeys(texts):
        try:
            owner, held_in, sequence, attempt = _opened(broker, text, queue, channel)
        except PenstockError as error:
            refused.append((text, error))
            continue
        for holdings in rounds:
            holding = holdings.setdefault((owner, held_in), Holding(owner, held_in, {}))
            if sequence not in holding.receipts:
                break
        else:
            holding = Holding(owner, held_in, {})
            rounds.append({(owner, held_in): holding})
        holding.receipts[sequence] = (text, attempt)
    return Sorted([holding for holdings in rounds for holding in holdings.values()], refused)


def _opened(broker: Names, text: str, queue: str | None, channel: str | None) -> tuple[str, str, int, int]:
    receipt = broker.open_receipt(text)
    owner = broker.queue_name(receipt.queue_id)
    held_in = broker.channel_name(receipt.queue_id, receipt.channel_id)
    if owner is None or held_in is None:
        raise ForeignReceipt("the receipt belongs to a queue or a channel that is gone")
    if queue is not None and owner != queue:
        raise ForeignReceipt(f"the receipt belongs to queue {owner!r}, and not to {queue!r}")
    if channel is not None and held_in != channel:
        raise ForeignReceipt(f"the receipt belongs to channel {held_in!r} of {owner!r}, and not to {channel!r}")
    return owner, held_in, receipt.sequence, receipt.attempt
