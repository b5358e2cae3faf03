"""Messages of a queue with several partitions: sent, received, read and settled.

Sending. Messages of one group stay together: the group says the partition. What has no group goes to a partition of
this node, or to each in turn.

Receiving. A receive asks one partition after the other, and takes what the first one has. If none has anything, it
waits in all of them; with an at-most policy, in which a message that is handed out counts, in one after the other.

Settling. Each partition gets what it has of the messages. A sequence number says its partition, and so do spans and
receipts. What a connection settles by sequence numbers goes to the partitions at once, in the order in which it comes
(`parts_of`, `Acknowledgement`); the rest is done by coroutines.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from penstock.cluster.partitions.queues import SplitQueue, SplitQueues, all_of
from penstock.cluster.routing.placement import (
    hashed,
    merge_sent,
    merge_settled,
    shards_of,
    some_of,
    split_by_group,
    split_spans,
)
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    Ack,
    AckConsumer,
    AckSequences,
    AckUpTo,
    Browse,
    Changed,
    DeleteMessages,
    Delivery,
    Extend,
    ExtendSequences,
    FindOffsets,
    GiveBack,
    ListChunks,
    LookUp,
    Once,
    ReadRecords,
    Receive,
    Records,
    Release,
    ReleaseSequences,
    RescheduleMessages,
    Seen,
    Send,
    Sent,
    Settled,
    Span,
)
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import ForeignReceipt, InvalidRequest
from penstock.core.handlers.once import CLIENT_LENGTH_MAX
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router


Settle = Ack | Release | Extend | GiveBack
Sequences = AckSequences | ReleaseSequences | ExtendSequences
SEQUENCES = (AckSequences, ReleaseSequences, ExtendSequences)

_SLICE_MS = 200
"""How long a receive from a queue with an at-most policy waits in one partition before it tries the next."""


class SplitMessages:
    """Takes sends, receives, readers and what settles messages to partitions."""

    def __init__(self, router: Router, queues: SplitQueues) -> None:
        self._router = router
        self._queues = queues

    # -- sending --

    async def send(self, command: Send, split: SplitQueue) -> Sent:
        """Each message to its partition."""
        spare = self.spare(command, split)
        if command.groups is None:
            return await self.send_to(split, spare, command)  # type: ignore[no-any-return]
        indexes = split_by_group(command.groups, len(split.shards), spare)
        if len(indexes) == 1:
            return await self.send_to(split, next(iter(indexes)), command)  # type: ignore[no-any-return]
        if command.once is not None:
            command = msgspec.structs.replace(command, once=_named_in(split, command.once))
        sends = [self.send_to(split, place, some_of(command, chosen)) for place, chosen in indexes.items()]
        return merge_sent(len(command.bodies), list(zip(indexes.values(), await all_of(sends), strict=True)))

    def straight(self, command: Send) -> tuple[int, Send] | None:
        """The shard that takes a whole send to a queue with partitions, and how; None if that is not so simple."""
        queue = self._router.catalog.known(command.queue)
        if queue is None or command.groups is not None or queue.config.partitions < 2:
            return None
        shard = self._spare_shard(command, shards_of(command.queue, queue.config.partitions, self._router.shards))
        return shard, msgspec.structs.replace(command, create=False, of_queue=queue.id)

    async def send_to(self, split: SplitQueue, partition: int, command: Send) -> Any:
        """To one partition. A further partition is never made by a send: it would not know its numbers."""
        if command.create:
            command = msgspec.structs.replace(command, create=False)
        return await self._queues.ask(split, partition, command)

    def spare(self, command: Send, split: SplitQueue) -> int:
        """Where messages without a group go."""
        return split.shards.index(self._spare_shard(command, split.shards))

    def _spare_shard(self, command: Send, shards: list[int]) -> int:
        """To a partition of this node, or to each in turn; a named command always to the same."""
        if command.once is not None:
            name = f"{command.once.client} {command.once.number}".encode(errors="replace")
            return shards[zlib.crc32(name) % len(shards)]
        near = [shard for shard in shards if shard in self._router.served]
        turn = next(self._queues.turns)
        return near[turn % len(near)] if near else shards[turn % len(shards)]

    # -- receiving --

    async def receive(self, command: Receive, split: SplitQueue) -> Delivery:
        """What the first partition has that has anything; or wait for it."""
        split = await self._queues.with_channel(split, command.channel)
        wait_ms = split.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        order = self._order(command, split)
        until_ms = self._router.now_ms() + wait_ms
        empty: Delivery | None = None
        for partition in order:
            empty = await self._queues.ask(split, partition, msgspec.structs.replace(command, wait_ms=0, ticket=None))
            if empty is not None and empty.runs:
                return self._delivered(empty, split)
        if wait_ms and split.config.leases_are_durable:
            return await self._wait_in_turns(command, split, order, until_ms)
        if wait_ms:
            return await self._wait_everywhere(command, split, max(1, until_ms - self._router.now_ms()))
        assert empty is not None
        return self._delivered(empty, split)

    def _order(self, command: Receive, split: SplitQueue) -> list[int]:
        """Which partitions are asked first: those that are known to have messages; else each in its turn."""
        count = len(split.shards)
        if command.attempt_id is not None:
            start = hashed(command.attempt_id, count)
            return [(start + index) % count for index in range(count)]
        turn = next(self._queues.turns)
        order = [(turn + index) % count for index in range(count)]
        return sorted(order, key=lambda partition: not self._is_ready(split, partition, command.channel))

    def _is_ready(self, split: SplitQueue, partition: int, channel: str) -> bool:
        served = self._router.served.get(split.shards[partition])
        queue = None if served is None else served.identity.queues.get(split.name)
        found = None if queue is None else queue.channels.get(channel)
        return found is not None and found.ready > 0

    def _delivered(self, delivery: Delivery, split: SplitQueue) -> Delivery:
        """As the first partition would have it: receipts name the channel by its number there."""
        if delivery.error is not None:
            raise delivery.error
        delivery.channel_id = split.channels.get(delivery.channel, delivery.channel_id)
        return delivery

    async def _wait_in_turns(self, command: Receive, split: SplitQueue, order: list[int], until_ms: int) -> Delivery:
        """With an at-most policy a message that is handed out counts: there must be no second delivery to give back."""
        while True:
            for partition in order:
                left_ms = until_ms - self._router.now_ms()
                wait_ms = max(0, min(left_ms, _SLICE_MS))
                delivery: Delivery | None = await self._queues.ask(
                    split, partition, msgspec.structs.replace(command, wait_ms=wait_ms, ticket=None)
                )
                if delivery is None or delivery.runs or delivery.error is not None or left_ms <= 0:
                    return self._delivered(delivery or self._nothing(command, split), split)

    async def _wait_everywhere(self, command: Receive, split: SplitQueue, wait_ms: int) -> Delivery:
        """Wait in all partitions. The first that has messages is taken, and the others are withdrawn: what they have on
        their way goes back."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Routed | None] = loop.create_future()
        waits: list[Routed] = []
        left = len(split.shards)

        def settled(call: Any) -> None:
            nonlocal left
            left -= 1
            if answered.done():
                return
            if call.error is not None or (call.reply is not None and (call.reply.runs or call.reply.error)):
                answered.set_result(call)
            elif not left:
                answered.set_result(None)

        for shard in split.shards:
            part = msgspec.structs.replace(command, wait_ms=wait_ms, ticket=None, of_queue=split.queue_id)
            call = Routed(part, settled, self._router)
            waits.append(call)
            self._router.dispatch(call, shard)
        chosen: Routed | None = None
        try:
            chosen = await answered
        finally:
            for call in waits:
                if call is not chosen:
                    self._router.withdraw(call)
        if chosen is None:
            return self._nothing(command, split)
        return self._delivered(chosen.result(), split)

    def _nothing(self, command: Receive, split: SplitQueue) -> Delivery:
        now_ms = self._router.now_ms()
        channel_id = split.channels.get(command.channel, 0)
        return Delivery(split.name, split.queue_id, command.channel, channel_id, now_ms, now_ms)

    # -- reading by offset --

    async def by_offset(self, command: AckUpTo | AckConsumer | FindOffsets | ListChunks, split: SplitQueue) -> Any:
        """To the partition of the offset."""
        offset = command.after if isinstance(command, FindOffsets) else command.offset
        return await self._queues.ask(split, self._partition(offset, split), command)

    async def read_records(self, command: ReadRecords, split: SplitQueue) -> Records:
        """From the partition of the offset, or from the next in which the consumer has something to read."""
        if command.offset is not None or command.consumer is None:
            partition = self._partition(command.offset or 0, split)
            return await self._queues.ask(split, partition, command)  # type: ignore[no-any-return]
        count, turn = len(split.shards), next(self._queues.turns)
        records: Records | None = None
        for index in range(count):
            records = await self._queues.ask(split, (turn + index) % count, command)
            if records is not None and records.runs:
                break
        assert records is not None
        return records

    async def browse(self, command: Browse, split: SplitQueue) -> list[Seen]:
        """One partition after the other, in the order of the sequence numbers."""
        found: list[Seen] = []
        first = max(0, command.after) >> PARTITION_SHIFT
        for partition in range(first, len(split.shards)):
            part = msgspec.structs.replace(command, limit=command.limit - len(found))
            found += await self._queues.ask(split, partition, part)
            if len(found) >= command.limit:
                break
        return found

    async def by_numbers(self, command: LookUp | DeleteMessages | RescheduleMessages, split: SplitQueue) -> Any:
        """Each partition gets the sequence numbers that are its own."""
        parts: dict[int, list[int]] = {}
        for sequence in command.sequences:
            parts.setdefault(self._partition(sequence, split), []).append(sequence)
        asked = [
            self._queues.ask(split, partition, msgspec.structs.replace(command, sequences=sequences))
            for partition, sequences in parts.items()
        ]
        replies = await all_of(asked)
        if isinstance(command, LookUp):
            return [life for reply in replies for life in reply]
        missing = sorted(each for reply in replies for each in reply.missing)
        return Changed(sum(reply.count for reply in replies), missing)

    @staticmethod
    def _partition(offset: int, split: SplitQueue) -> int:
        partition = offset >> PARTITION_SHIFT
        if not 0 <= partition < len(split.shards):
            raise InvalidRequest(f"offset is {offset}: queue {split.name!r} has {len(split.shards)} partitions")
        return partition

    # -- settling --

    async def settle(self, command: Settle, split: SplitQueue) -> Settled:
        """By spans or receipts."""
        spans = command.spans
        if not isinstance(command, GiveBack) and command.receipts:
            spans = [*spans, *self.spans_of(command, await self._queues.with_channel(split, command.channel))]
        replies = []
        for partition, chosen in split_spans(spans).items():
            if not 0 <= partition < len(split.shards):
                raise InvalidRequest(f"queue {split.name!r} has no partition {partition}: these are not its messages")
            part = msgspec.structs.replace(command, spans=chosen)
            if not isinstance(part, GiveBack):
                part.receipts = []
            replies.append(self._queues.ask(split, partition, part))
        if not replies:
            return await self._queues.ask(split, 0, command)  # type: ignore[no-any-return]
        return merge_settled(await all_of(replies))

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
        is_acknowledging = not isinstance(command, ExtendSequences)
        for place, part in _by_partition(command, len(split.shards)):
            asked.append(
                self._settle_held(split, place, part) if is_acknowledging else self._queues.ask(split, place, part)
            )
        return merge_settled(await all_of(asked))

    async def _settle_held(self, split: SplitQueue, place: int, command: Sequences) -> Settled:
        """Settle messages of one partition that a session holds: there is room for others then."""
        subscriptions = self._router.subscriptions
        parts = subscriptions.acknowledging(command.session, split.shards[place])
        count = 0
        try:
            settled: Settled = await self._queues.ask(split, place, command)
            count = settled.count
        finally:
            subscriptions.settled(parts, count)
        return settled


class Acknowledgement:
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


def _named_in(split: SplitQueue, once: Once) -> Once:
    """A name for the parts of a send over several partitions, which holds for this queue.

    Which messages a partition gets depends on how many there are. So the same name may not be used for the next queue:
    a partition would take its part for done, and it was another one.
    """
    if not 1 <= len(once.client) <= CLIENT_LENGTH_MAX:
        return once  # let it be refused
    client = f"{once.client}@{split.queue_id}"
    if len(client) > CLIENT_LENGTH_MAX:
        client = hashlib.blake2b(client.encode(errors="replace"), digest_size=16).hexdigest()
    return once._replace(client=client)


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
