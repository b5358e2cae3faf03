"""Receives from a queue with several partitions, and reading it by offset.

A receive asks one partition after the other, and takes what the first one has. If none has anything, it waits in all of
them; with an at-most policy, in which a message that is handed out counts, in one after the other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.partitions.queues import SplitQueue, SplitQueues
from penstock.cluster.routing.placement import hashed
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    AckConsumer,
    AckUpTo,
    Browse,
    Delivery,
    FindOffsets,
    ListChunks,
    ReadRecords,
    Receive,
    Records,
    Seen,
)
from penstock.core.errors import InvalidRequest
from penstock.core.queues.partition import PARTITION_SHIFT

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

_SLICE_MS = 200
"""How long a receive from a queue with an at-most policy waits in one partition before it tries the next."""


class Receiving:
    """Takes receives and readers to partitions."""

    def __init__(self, router: Router, queues: SplitQueues) -> None:
        self._router = router
        self._queues = queues

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

    @staticmethod
    def _partition(offset: int, split: SplitQueue) -> int:
        partition = offset >> PARTITION_SHIFT
        if not 0 <= partition < len(split.shards):
            raise InvalidRequest(f"offset is {offset}: queue {split.name!r} has {len(split.shards)} partitions")
        return partition
