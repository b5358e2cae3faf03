"""Settling messages of a queue with several partitions: each partition gets what it has of them.

A sequence number says its partition, and so do spans and receipts. What a connection settles by sequence numbers goes
to the partitions at once, in the order in which it comes (`parts_of`, `Settlement`); the rest is done by coroutines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.cluster.partitions.queues import SplitQueue, SplitQueues
from penstock.cluster.routing.placement import merge_settled, shards_of, split_spans
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    Ack,
    AckSequences,
    Extend,
    ExtendSequences,
    GiveBack,
    Release,
    ReleaseSequences,
    Settled,
    Span,
)
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import ForeignReceipt, InvalidRequest
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

Settle = Ack | Release | Extend | GiveBack
Sequences = AckSequences | ReleaseSequences | ExtendSequences
SEQUENCES = (AckSequences, ReleaseSequences, ExtendSequences)


class Settlement:
    """Puts together what several partitions reply to a command that settles messages."""

    def __init__(self, call: Routed, parts: int, finish: Callable[[Routed], None]) -> None:
        self._call = call
        self._finish = finish
        self._left = parts
        self._settled: list[Settled] = []
        self._error: BaseException | None = None

    def add(self, part: Call) -> None:
        """A partition has answered."""
        self._left -= 1
        if part.error is None:
            self._settled.append(part.reply)
        else:
            self._error = self._error or part.error
        if not self._left:
            self._call.error = self._error
            self._call.reply = merge_settled(self._settled) if self._error is None else None
            self._finish(self._call)


class Settling:
    """Takes what settles messages to their partitions."""

    def __init__(self, router: Router, queues: SplitQueues) -> None:
        self._router = router
        self._queues = queues

    async def settle(self, command: Settle, split: SplitQueue) -> Settled:
        """By spans or receipts."""
        spans = command.spans
        if not isinstance(command, GiveBack) and command.receipts:
            spans = [*spans, *self.spans_of(command, await self._queues.with_channel(split, command.channel))]
        replies = []
        for partition, chosen in split_spans(spans).items():
            if not 0 <= partition < len(split.shards):
                raise InvalidRequest(f"queue {split.name!r} has no partition {partition}: these are not its messages")
            part = _with_spans(command, chosen)
            replies.append(self._queues.ask(split, partition, part))
        if not replies:
            return await self._queues.ask(split, 0, command)  # type: ignore[no-any-return]
        settled = await asyncio.gather(*replies, return_exceptions=True)
        for reply in settled:
            if isinstance(reply, BaseException):
                raise reply
        return merge_settled(settled)  # type: ignore[arg-type]

    def spans_of(self, command: Ack | Release | Extend, split: SplitQueue) -> list[Span]:
        """What receipts say; they name the channel by its number in the first partition."""
        opened = [self._router.catalog.open_receipt(text) for text in command.receipts]
        channel_id = split.channels.get(command.channel)
        for receipt in opened:
            if receipt.queue_id != split.queue_id:
                raise ForeignReceipt(f"the receipt belongs to another queue, and not to {split.name!r}")
            if receipt.channel_id != channel_id:
                raise ForeignReceipt(
                    f"the receipt belongs to another channel of {split.name!r}, and not to {command.channel!r}"
                )
        return merged_spans(Span(receipt.sequence, receipt.sequence, receipt.attempt) for receipt in opened)

    def parts_of(self, command: Sequences) -> list[tuple[int, Sequences]]:
        """The shards that have a command's messages, each with its part. Nothing: that is not so simple."""
        config = self._router.catalog.config(command.queue)
        if config is None:
            return []
        shards = shards_of(command.queue, config.partitions, self._router.shards)
        return [(shards[place], part) for place, part in _by_partition(command, len(shards))]

    async def settle_sequences(self, command: Sequences, split: SplitQueue) -> Settled:
        """By sequence numbers, if that could not be done at once."""
        asked = []
        is_settling = not isinstance(command, ExtendSequences)
        for place, part in _by_partition(command, len(split.shards)):
            asked.append(self._settle_held(split, place, part) if is_settling else self._queues.ask(split, place, part))
        settled = await asyncio.gather(*asked, return_exceptions=True)
        for reply in settled:
            if isinstance(reply, BaseException):
                raise reply
        return merge_settled(settled)  # type: ignore[arg-type]

    async def _settle_held(self, split: SplitQueue, place: int, command: Sequences) -> Settled:
        """Settle messages of one partition that a session holds: there is room for others then."""
        subscriptions = self._router.subscriptions
        parts = subscriptions.settling(command.session, split.shards[place])
        count = 0
        try:
            settled: Settled = await self._queues.ask(split, place, command)
            count = settled.count
        finally:
            subscriptions.settled(parts, count)
        return settled


def _by_partition(command: Sequences, count: int) -> list[tuple[int, Sequences]]:
    """What each partition has of a command's messages. What no partition can have is refused by the first."""
    if not len(command.sequences):
        return []
    partitions = command.sequences >> PARTITION_SHIFT
    first = int(partitions[0])
    if 0 <= first < count and bool((partitions == first).all()):
        return [(first, command)]
    return [
        (
            partition if 0 <= partition < count else 0,
            msgspec.structs.replace(command, sequences=command.sequences[partitions == partition]),
        )
        for partition in np.unique(partitions).tolist()
    ]


def _with_spans(command: Settle, spans: list[Span]) -> Settle:
    if isinstance(command, GiveBack):
        return msgspec.structs.replace(command, spans=spans)
    return msgspec.structs.replace(command, spans=spans, receipts=[])
