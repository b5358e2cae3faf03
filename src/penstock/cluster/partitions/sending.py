"""Sends to a queue with several partitions.

Messages of one group stay together: the group says the partition. What has no group goes to a partition of this node,
or to each in turn.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.partitions.queues import SplitQueue, SplitQueues
from penstock.cluster.routing.placement import merge_sent, shards_of, some_of, split_by_group
from penstock.core.commands import Once, Send, Sent
from penstock.core.handlers.once import CLIENT_LENGTH_MAX

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router


class Sending:
    """Takes sends to partitions."""

    def __init__(self, router: Router, queues: SplitQueues) -> None:
        self._router = router
        self._queues = queues

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
        replies = await asyncio.gather(*sends, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        parts = [(chosen, sent) for chosen, sent in zip(indexes.values(), replies, strict=True)]
        return merge_sent(len(command.bodies), parts)  # type: ignore[arg-type]

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
