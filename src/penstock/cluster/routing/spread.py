"""Commands for more than one shard: coroutines that ask each, and put the replies together.

A coroutine has the name of the command that it does. Those for queues with several partitions are elsewhere: what is
known of the partitions, and what goes to all of them (`split_queues.py`), sending (`split_sending.py`), receiving and
reading (`split_receiving.py`), settling (`split_settling.py`). So are units of work (`work.py`) and sessions
(`sessions.py`).

A queue may be deleted and made again while this node still knows the old one, with other partitions. A partition
refuses what is meant for another queue (`QueueReplaced`). The queue is looked at again then, and the command repeated
as a whole; what had gone to the old queue is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cluster.base import shard_of_id
from penstock.cluster.catalog import LOOKS_MAX
from penstock.cluster.partitions.queues import OF_MESSAGES, SplitQueue, SplitQueues, meant_for
from penstock.cluster.partitions.receiving import Receiving
from penstock.cluster.partitions.sending import Sending
from penstock.cluster.partitions.settling import Settling
from penstock.cluster.routing.placement import merge_names, merge_redrives, shards_of
from penstock.cluster.routing.work import Work
from penstock.core.commands import (
    COMMANDS,
    CancelRedrive,
    Command,
    CreateQueue,
    ListQueues,
    ListRedrives,
    RedriveTask,
    Send,
    handlers_of,
)
from penstock.core.errors import QueueExists, QueueNotFound, QueueReplaced
from penstock.core.traits import Home, Split

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router

_ELSEWHERE = frozenset({Home.QUEUE, Home.SUBSCRIPTION, Home.SHARD})
"""What says where the commands go that are no matter of `Spread.do`."""


class Spread:
    """Does for a router what concerns several shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.queues = SplitQueues(router)
        self.sending = Sending(router, self.queues)
        self.settling = Settling(router, self.queues)
        receiving = Receiving(router, self.queues)
        work = Work(router, self.queues, self.sending, self.settling)
        others = (kind for kind in COMMANDS if kind.traits.home not in _ELSEWHERE)
        self._others = handlers_of(others, (self, router.session_calls, work))
        self._splits: dict[Split, Callable[[Any, SplitQueue], Any]] = {
            Split.EVERY: self.queues.every,
            Split.DELETE: self.queues.delete_queue,
            Split.SEND: self.sending.send,
            Split.RECEIVE: receiving.receive,
            Split.SPANS: self.settling.settle,
            Split.SEQUENCES: self.settling.settle_sequences,
            Split.OFFSET: receiving.by_offset,
            Split.RECORDS: receiving.read_records,
            Split.BROWSE: receiving.browse,
        }

    async def do(self, command: Command) -> Any:
        """A command that is not about one queue."""
        return await self._others[type(command)](command)

    async def do_split(self, command: Command) -> Any:
        """A command about a queue with several partitions, or one that makes it."""
        if isinstance(command, CreateQueue):
            return await self.queues.create_queue(command)
        how = command.traits.split
        name = getattr(command, command.traits.queue)
        looks = 0
        while True:
            split = await self._split_for(command, name)
            try:
                return await self._do_with(command, split, how)
            except QueueReplaced:
                self._router.catalog.forget(name)
                looks += 1
                if looks == LOOKS_MAX or how in OF_MESSAGES:
                    raise

    async def _split_for(self, command: Command, name: str) -> SplitQueue:
        """The queue of a command. A send may make it."""
        try:
            return await self.queues.split_of(name)
        except QueueNotFound:
            if not isinstance(command, Send) or not command.create:
                raise
        with contextlib.suppress(QueueExists):  # somebody else was faster, and had another number of partitions
            await self.queues.create_queue(CreateQueue(name=name, config=command.config, channels=command.channels))
        return await self.queues.split_of(name)

    async def _do_with(self, command: Command, split: SplitQueue, how: Split) -> Any:
        if len(split.shards) == 1:
            return await self._router.ask(split.shards[0], meant_for(split, command))
        return await self._splits[how](command, split)

    async def send_again(self, command: Send, shard: int) -> Any:
        """A send that was taken straight to a partition which is not there: it is made, if the queue is there."""
        try:
            split = await self.queues.split_of(command.queue)
        except QueueNotFound:
            return await self.do_split(command)
        if len(split.shards) == 1 or shard not in split.shards or command.groups is not None:
            return await self.do_split(command)
        try:
            return await self.sending.send_to(split, split.shards.index(shard), command)
        except QueueReplaced:
            return await self.do_split(command)

    # -- all shards --

    async def _list_queues(self, command: ListQueues) -> list[str]:
        if command.limit < 1:
            return []
        pages = await asyncio.gather(
            *(self._router.ask(shard, msgspec.structs.replace(command)) for shard in range(self._router.shards))
        )
        return merge_names(pages, command.limit)

    async def _list_redrives(self, command: ListRedrives) -> list[RedriveTask]:
        shards: list[int] = list(range(self._router.shards))
        if command.queue is not None:
            config = await self.queues.config(command.queue)
            shards = shards_of(command.queue, 1 if config is None else config.partitions, self._router.shards)
        lists = await asyncio.gather(*(self._router.ask(shard, ListRedrives(queue=command.queue)) for shard in shards))
        tasks: list[RedriveTask] = [task for some in lists for task in some]
        for task in tasks:
            self._router.catalog.note_task(task)
        return sorted(tasks, key=lambda task: (-task.started_ms, -task.task))

    async def _cancel_redrive(self, command: CancelRedrive) -> RedriveTask:
        shard = shard_of_id(command.task)
        if not 0 <= shard < self._router.shards:
            shard = 0  # there is no such task: let it say so
        task: RedriveTask = await self._router.ask(shard, command)
        config = await self.queues.config(task.queue)
        if config is None or min(config.partitions, self._router.shards) == 1:
            return task
        others = [each for each in await self._list_redrives(ListRedrives(queue=task.queue)) if each.task != task.task]
        running = [each.task for each in others if each.status == "running"]
        rest = [self._router.ask(shard_of_id(number), CancelRedrive(task=number)) for number in running]
        return merge_redrives([task, *await asyncio.gather(*rest)])
