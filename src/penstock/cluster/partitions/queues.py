"""Queues with several partitions: where they are, and what is done to all of them.

A queue's first partition is the one that counts: what it says of the queue is so. It is created first and deleted last.
A further partition that is missing although the queue is there (its creation was interrupted) is created by whoever
misses it; one that is left over from a queue that is gone is replaced when its name is used again, because it has
another id. So creating and deleting can be repeated, and nothing half done stays.

A queue may be deleted and made again while this node still knows the old one, with other partitions. So what depends on
their number says which queue it is meant for (`of_queue`), and a partition of any other refuses it (`QueueReplaced`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.cluster.routing.placement import home_of, merge_redrives, merge_stats, shards_of
from penstock.core.commands import (
    MAIN,
    ChangeQueue,
    Command,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteQueue,
    DescribeQueue,
    PurgeBacklog,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    StartRedrive,
)
from penstock.core.errors import ConsumerNotFound, InvalidRequest, PenstockError, QueueNotFound, QueueReplaced
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.core.traits import Split

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

OF_MESSAGES = frozenset({Split.SPANS, Split.SEQUENCES})
"""Commands about certain messages, which say their partition. If their queue is gone, the next one has not got them."""

_Command = TypeVar("_Command", bound=Command)


class SplitQueue(msgspec.Struct):
    """A queue with several partitions: where they are, and what is known of it."""

    name: str
    queue_id: int
    config: QueueConfig
    shards: list[int]
    channels: dict[str, int]


class SplitQueues:
    """Asks the partitions of queues, and makes those that are missing."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.turns = itertools.count()
        """For what goes to each partition in its turn."""

    # -- what is known --

    async def split_of(self, name: str) -> SplitQueue:
        """What is known of a queue; `QueueNotFound` if it is not there."""
        queue = self._router.catalog.find(name)
        if queue is None:
            await self.describe(name)
            queue = self._router.catalog.find(name)
            if queue is None:  # it has come here, and gone, meanwhile
                raise QueueNotFound.of(name)
        shards = shards_of(name, queue.config.partitions, self._router.shards)
        channels = {each: channel.id for each, channel in queue.channels.items()}
        return SplitQueue(name, queue.id, queue.config, shards, channels)

    async def describe(self, name: str) -> QueueInfo:
        """What the first partition says of a queue; the catalog hears of it."""
        info: QueueInfo = await self._router.ask(home_of(name, self._router.shards), DescribeQueue(name=name))
        self._router.catalog.note(info)
        return info

    async def config(self, name: str) -> QueueConfig | None:
        """A queue's configuration as far as it never changes; None if there is no such queue, or nobody says."""
        config = self._router.catalog.config(name)
        if config is None and self._router.unknown(name):
            try:
                config = (await self.describe(name)).config
            except PenstockError:
                return None
        return config

    async def channel_of(self, name: str, channel: str) -> SplitQueue:
        """A queue with several partitions, which has this channel if it can have it."""
        return await self.with_channel(await self.split_of(name), channel)

    async def with_channel(self, split: SplitQueue, channel: str) -> SplitQueue:
        """The main channel comes to be with the first receive: in all partitions, so that receipts agree."""
        if channel in split.channels:
            return split
        if channel == MAIN:
            await self.every(CreateChannel(queue=split.name, channel=MAIN), split)
        await self.describe(split.name)
        return await self.split_of(split.name)

    async def look_again(self, name: str) -> None:
        """A queue is not as it was, or a partition of it is missing."""
        self._router.catalog.forget(name)
        with contextlib.suppress(QueueNotFound):
            info = await self.describe(name)
            count = min(info.config.partitions, self._router.shards)
            if count > 1:
                await self.create_parts(info, range(1, count))

    # -- asking --

    async def ask(self, split: SplitQueue, partition: int, command: Command) -> Any:
        """The reply of one partition. If it is missing although the queue is there, it is made."""
        shard = split.shards[partition]
        try:
            return await self._router.ask(shard, meant_for(split, command))
        except QueueNotFound:
            self._router.catalog.forget(split.name)
            if partition == 0:
                raise
            info = await self.describe(split.name)
            if info.queue_id != split.queue_id:
                raise QueueReplaced(f"queue {split.name!r} was created again meanwhile: look at it again") from None
            if not await self.create_parts(info, [partition]):
                raise QueueReplaced(f"queue {split.name!r} was deleted meanwhile: look at it again") from None
            return await self._router.ask(shard, meant_for(split, command))

    # -- making and deleting --

    async def create_queue(self, command: CreateQueue) -> QueueInfo:
        """Make a queue, its first partition first."""
        shards = shards_of(command.name, command.config.partitions, self._router.shards)
        info: QueueInfo = await self._router.ask(shards[0], command)
        self._router.catalog.note(info)
        if len(shards) > 1:
            await self.create_parts(info, range(1, len(shards)))
        return info

    async def create_parts(self, info: QueueInfo, partitions: Iterable[int]) -> bool:
        """Make further partitions, if they are missing. Returns whether the queue is there still.

        If it was deleted meanwhile, perhaps before they were made, nobody else takes them away.
        """
        shards = shards_of(info.name, info.config.partitions, self._router.shards)
        chosen = list(partitions)
        parts = [
            CreateQueue(name=info.name, config=info.config, channels=tuple(info.channels), part=(each, info.queue_id))
            for each in chosen
        ]
        asked = [self._router.ask(shards[each], part) for each, part in zip(chosen, parts, strict=True)]
        made = await asyncio.gather(*asked, return_exceptions=True)
        is_there = await self._is_there(info)
        if not is_there:
            late = DeleteQueue(name=info.name, of_queue=info.queue_id)
            rest = [self._router.ask(shards[partition], msgspec.structs.replace(late)) for partition in chosen]
            made += await asyncio.gather(*rest, return_exceptions=True)
        for reply in made:
            if isinstance(reply, BaseException) and not (isinstance(reply, QueueNotFound) and not is_there):
                raise reply
        return is_there

    async def _is_there(self, info: QueueInfo) -> bool:
        try:
            return (await self.describe(info.name)).queue_id == info.queue_id
        except QueueNotFound:
            self._router.catalog.forget(info.name)
            return False

    async def delete_queue(self, command: DeleteQueue, split: SplitQueue) -> None:
        """The further partitions go first: while one cannot be reached, the queue is there, and nobody makes another.

        The first partition takes along what somebody who missed one has made again meanwhile: a little later, so that
        is done here, too.
        """
        if not command.unless_channels:
            await self._delete_parts(split)
        await self._router.ask(split.shards[0], meant_for(split, command))
        self._router.catalog.forget(split.name)
        if command.unless_channels:
            with contextlib.suppress(QueueNotFound):
                if (await self.describe(split.name)).queue_id == split.queue_id:
                    return
        await self._delete_parts(split)

    async def _delete_parts(self, split: SplitQueue) -> None:
        part = DeleteQueue(name=split.name, of_queue=split.queue_id)
        await all_of(
            [self._router.ask(shard, msgspec.structs.replace(part)) for shard in split.shards[1:]], QueueNotFound
        )

    # -- to every partition --

    async def every(self, command: Command, split: SplitQueue) -> Any:
        """To every partition: the first one first, because what it refuses is refused."""
        if isinstance(command, DeleteConsumer):
            return await self._delete_consumer(command, split)
        if isinstance(command, ChangeQueue):
            return await self._change_queue(command, split)
        if isinstance(command, CreateChannel):
            _check_offsets(command, split)
        first = await self.ask(split, 0, _part_of(command, 0))
        if isinstance(first, QueueInfo):
            self._router.catalog.note(first)
        elif isinstance(command, CreateChannel | DeleteChannel):
            self._router.catalog.forget(split.name)
        rest = [self.ask(split, number, _part_of(command, number)) for number in range(1, len(split.shards))]
        replies = [first, *await all_of(rest)]
        if isinstance(command, QueueStats):
            return merge_stats(replies)
        if isinstance(command, StartRedrive):
            return merge_redrives(replies)
        if isinstance(command, PurgeQueue | PurgeBacklog | PurgeChannel):
            return sum(replies)
        return first

    async def _change_queue(self, command: ChangeQueue, split: SplitQueue) -> QueueInfo:
        """The first partition decides; the others are told what it has now, until that is what they were told.

        So partitions agree in the end, also if two nodes change the queue at the same time.
        """
        info: QueueInfo = await self.ask(split, 0, command)
        while True:
            self._router.catalog.note(info)
            settings = msgspec.structs.asdict(info.config)
            told = ChangeQueue(name=split.name, changes=settings)
            await all_of(self.ask(split, number, told) for number in range(1, len(split.shards)))
            now = await self.describe(split.name)
            if now.config == info.config:
                return info
            info = now

    async def _delete_consumer(self, command: DeleteConsumer, split: SplitQueue) -> None:
        asked = [self.ask(split, partition, command) for partition in range(len(split.shards))]
        replies = await all_of(asked, ConsumerNotFound)
        if all(isinstance(reply, ConsumerNotFound) for reply in replies):
            raise replies[0]


async def all_of(asked: Iterable[Awaitable[Any]], *passed_over: type[Exception]) -> list[Any]:
    """The replies of all, when the last has come. The first error is raised, but for those that are passed over."""
    replies = await asyncio.gather(*asked, return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException) and not isinstance(reply, passed_over):
            raise reply
    return replies


def _check_offsets(command: CreateChannel, split: SplitQueue) -> None:
    """A partition without an offset would start somewhere else, and nobody would notice."""
    partitions = sorted(offset >> PARTITION_SHIFT for offset in command.offsets)
    if partitions and partitions != list(range(len(split.shards))):
        raise InvalidRequest(
            f"the offsets are of the partitions {partitions}: queue {split.name!r} has {len(split.shards)}, and each "
            "needs one"
        )


def meant_for(split: SplitQueue, command: _Command) -> _Command:
    """A copy of a command, which says for which queue it is if the number of partitions matters to it."""
    of_queue = 0 if command.traits.split in OF_MESSAGES else split.queue_id
    return msgspec.structs.replace(command, of_queue=of_queue)


def _part_of(command: _Command, partition: int) -> _Command:
    """A command for all partitions, as one of them takes it: numbers of messages are those of one partition."""
    if isinstance(command, CreateChannel):
        offsets = command.offsets if command.offset is None else (command.offset,)
        own = [offset for offset in offsets if offset >> PARTITION_SHIFT == partition]
        return msgspec.structs.replace(command, offset=own[0] if own else None, offsets=())
    if isinstance(command, StartRedrive) and command.sequences is not None:
        own = [sequence for sequence in command.sequences if sequence >> PARTITION_SHIFT == partition]
        return msgspec.structs.replace(command, sequences=own)
    return msgspec.structs.replace(command)
