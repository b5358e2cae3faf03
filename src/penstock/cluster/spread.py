"""Commands for more than one shard: coroutines that ask each, and put the replies together.

A queue with several partitions. Its first partition is the one that counts: what it says of the queue is so. It is
created first and deleted first. A further partition that is missing although the queue is there (its creation was
interrupted) is created by whoever misses it; one that is left over from a queue that is gone is replaced when its name
is used again, because it has another id. So creating and deleting can be repeated, and nothing half done stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from penstock.cluster.base import shard_of_id
from penstock.cluster.placement import (
    PLACEMENTS,
    Split,
    hashed,
    home_of,
    merge_names,
    merge_redrives,
    merge_sent,
    merge_settled,
    merge_stats,
    shards_of,
    some_of,
    split_by_group,
    split_spans,
)
from penstock.cluster.routed import Routed
from penstock.core.commands import (
    MAIN,
    Ack,
    AckConsumer,
    AckSequences,
    AckUpTo,
    AlreadyDone,
    Browse,
    CancelRedrive,
    ChangeQueue,
    Command,
    CommitWork,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    EndSession,
    Extend,
    ExtendSequences,
    FindOffsets,
    GiveBack,
    Heartbeat,
    HoldForWork,
    LastMark,
    ListChunks,
    ListQueues,
    ListRedrives,
    OpenSession,
    PurgeBacklog,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    ReadRecords,
    RecallWork,
    Receive,
    Records,
    RedriveTask,
    Release,
    ReleaseSequences,
    Seen,
    Send,
    Sent,
    Settled,
    Span,
    StartRedrive,
)
from penstock.core.config import QueueConfig
from penstock.core.errors import (
    ConnectionLost,
    ConsumerNotFound,
    ForeignReceipt,
    InvalidRequest,
    PenstockError,
    QueueExists,
    QueueNotFound,
    SessionNotFound,
    StoreError,
)
from penstock.core.partition import PARTITION_SHIFT
from penstock.core.runs import merged_spans
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.cluster.router import Router

_SLICE_MS = 200
"""How long a receive from a queue with an at-most policy waits in one partition before it tries the next."""

Settle = Ack | Release | Extend | GiveBack
Sequences = AckSequences | ReleaseSequences | ExtendSequences
SEQUENCES = (AckSequences, ReleaseSequences, ExtendSequences)
_Command = TypeVar("_Command", bound=Command)


class SplitQueue(msgspec.Struct):
    """A queue with several partitions: where they are, and what is known of it."""

    name: str
    queue_id: int
    config: QueueConfig
    shards: list[int]
    channels: dict[str, int]


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


class Spread:
    """Does for a router what concerns several shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._turns = itertools.count()
        self._others: dict[type[Command], Callable[[Any], Any]] = {
            ListQueues: self._list_queues,
            ListRedrives: self._list_redrives,
            CancelRedrive: self._cancel_redrive,
            OpenSession: self._open_session,
            Heartbeat: self._heartbeat,
            EndSession: self._end_session,
            LastMark: self._last_mark,
            CommitWork: self._commit_work,
        }
        self._splits: dict[Split, Callable[[Any, SplitQueue], Any]] = {
            Split.EVERY: self._every,
            Split.DELETE: self._delete_queue,
            Split.SEND: self._send,
            Split.RECEIVE: self._receive,
            Split.SPANS: self._settle,
            Split.SEQUENCES: self._settle_sequences,
            Split.OFFSET: self._by_offset,
            Split.RECORDS: self._read_records,
            Split.BROWSE: self._browse,
        }

    async def do(self, command: Command) -> Any:
        """A command that is not about one queue."""
        return await self._others[type(command)](command)

    async def do_split(self, command: Command) -> Any:
        """A command about a queue with several partitions, or one that makes it."""
        if isinstance(command, CreateQueue):
            return await self._create_queue(command)
        placement = PLACEMENTS[type(command)]
        name = getattr(command, placement.field)
        try:
            split = await self.split_of(name)
        except QueueNotFound:
            if not isinstance(command, Send) or not command.create:
                raise
            with contextlib.suppress(QueueExists):  # somebody else was faster, and had another number of partitions
                await self._create_queue(CreateQueue(name=name, config=command.config, channels=command.channels))
            split = await self.split_of(name)
        if len(split.shards) == 1:
            return await self._router.ask(split.shards[0], command)
        return await self._splits[placement.split](command, split)

    # -- partitions --

    async def split_of(self, name: str) -> SplitQueue:
        """What is known of a queue; `QueueNotFound` if it is not there."""
        queue = self._router.catalog.find(name)
        if queue is None:
            await self._describe(name)
            queue = self._router.catalog.find(name)
            if queue is None:  # it has come here, and gone, meanwhile
                raise QueueNotFound(f"there is no queue {name!r}: create it, or send to it, first")
        shards = shards_of(name, queue.config.partitions, self._router.shards)
        channels = {each: channel.id for each, channel in queue.channels.items()}
        return SplitQueue(name, queue.id, queue.config, shards, channels)

    async def _describe(self, name: str) -> QueueInfo:
        info: QueueInfo = await self._router.ask(home_of(name, self._router.shards), DescribeQueue(name=name))
        self._router.catalog.note(info)
        return info

    async def ask(self, split: SplitQueue, partition: int, command: Command) -> Any:
        """The reply of one partition. If it is missing although the queue is there, it is made."""
        shard = split.shards[partition]
        try:
            return await self._router.ask(shard, msgspec.structs.replace(command))
        except QueueNotFound:
            self._router.catalog.forget(split.name)
            if partition == 0:
                raise
            await self._mend(split, partition)
            return await self._router.ask(shard, command)

    async def _mend(self, split: SplitQueue, partition: int) -> None:
        info = await self._describe(split.name)
        channels = tuple(info.channels)
        part = CreateQueue(name=info.name, config=info.config, channels=channels, part=(partition, info.queue_id))
        await self._router.ask(split.shards[partition], part)

    async def _ask_all(self, split: SplitQueue, command: Command, partitions: list[int] | None = None) -> list[Any]:
        """The replies of partitions (all), in their order; errors among them."""
        chosen = range(len(split.shards)) if partitions is None else partitions
        asked = [self.ask(split, partition, msgspec.structs.replace(command)) for partition in chosen]
        return await asyncio.gather(*asked, return_exceptions=True)

    async def _create_queue(self, command: CreateQueue) -> QueueInfo:
        shards = shards_of(command.name, command.config.partitions, self._router.shards)
        info: QueueInfo = await self._router.ask(shards[0], command)
        self._router.catalog.note(info)
        parts = [
            CreateQueue(name=info.name, config=info.config, channels=tuple(info.channels), part=(index, info.queue_id))
            for index in range(1, len(shards))
        ]
        await asyncio.gather(*(self._router.ask(shard, part) for shard, part in zip(shards[1:], parts, strict=True)))
        return info

    async def _delete_queue(self, command: DeleteQueue, split: SplitQueue) -> None:
        await self._router.ask(split.shards[0], command)
        self._router.catalog.forget(split.name)
        if command.unless_channels:
            try:
                await self._describe(split.name)
            except QueueNotFound:
                pass
            else:
                return
        rest = [self._router.ask(shard, DeleteQueue(name=split.name)) for shard in split.shards[1:]]
        for reply in await asyncio.gather(*rest, return_exceptions=True):
            if isinstance(reply, BaseException) and not isinstance(reply, QueueNotFound):
                raise reply

    async def _every(self, command: Command, split: SplitQueue) -> Any:
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
        replies = [first, *await asyncio.gather(*rest, return_exceptions=True)]
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
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
            told = [
                self.ask(split, number, ChangeQueue(name=split.name, changes=settings))
                for number in range(1, len(split.shards))
            ]
            for reply in await asyncio.gather(*told, return_exceptions=True):
                if isinstance(reply, BaseException):
                    raise reply
            now = await self._describe(split.name)
            if now.config == info.config:
                return info
            info = now

    async def _delete_consumer(self, command: DeleteConsumer, split: SplitQueue) -> None:
        replies = await self._ask_all(split, command)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, ConsumerNotFound):
                raise reply
        if all(isinstance(reply, ConsumerNotFound) for reply in replies):
            raise replies[0]

    # -- sending --

    async def _send(self, command: Send, split: SplitQueue) -> Sent:
        spare = self._spare(command, split)
        if command.groups is None:
            return await self._sent(split, spare, command)  # type: ignore[no-any-return]
        indexes = split_by_group(command.groups, len(split.shards), spare)
        if len(indexes) == 1:
            return await self._sent(split, next(iter(indexes)), command)  # type: ignore[no-any-return]
        sends = [self._sent(split, place, some_of(command, chosen)) for place, chosen in indexes.items()]
        replies = await asyncio.gather(*sends, return_exceptions=True)
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        parts = [(chosen, sent) for chosen, sent in zip(indexes.values(), replies, strict=True)]
        return merge_sent(len(command.bodies), parts)  # type: ignore[arg-type]

    def shard_for(self, command: Send) -> int | None:
        """The shard that takes a whole send to a queue with several partitions; None if that is not so simple."""
        config = self._router.catalog.config(command.queue)
        if config is None or command.groups is not None or config.partitions < 2:
            return None
        return self._spare_shard(command, shards_of(command.queue, config.partitions, self._router.shards))

    async def send_again(self, command: Send, shard: int) -> Any:
        """A send that was taken straight to a partition which is not there: it is made, if the queue is there."""
        try:
            split = await self.split_of(command.queue)
        except QueueNotFound:
            return await self.do_split(command)
        if len(split.shards) == 1 or shard not in split.shards:
            return await self.do_split(command)
        return await self._sent(split, split.shards.index(shard), command)

    async def _sent(self, split: SplitQueue, partition: int, command: Send) -> Any:
        """A further partition is never made by a send: it would not know its numbers."""
        if command.create:
            command = msgspec.structs.replace(command, create=False)
        return await self.ask(split, partition, command)

    def _spare(self, command: Send, split: SplitQueue) -> int:
        """Where messages without a group go."""
        return split.shards.index(self._spare_shard(command, split.shards))

    def _spare_shard(self, command: Send, shards: list[int]) -> int:
        """To a partition of this node, or to each in turn; a named command always to the same."""
        if command.once is not None:
            name = f"{command.once.client} {command.once.number}".encode(errors="replace")
            return shards[zlib.crc32(name) % len(shards)]
        near = [shard for shard in shards if shard in self._router.served]
        turn = next(self._turns)
        return near[turn % len(near)] if near else shards[turn % len(shards)]

    # -- receiving --

    async def _receive(self, command: Receive, split: SplitQueue) -> Delivery:
        split = await self._with_channel(split, command.channel)
        wait_ms = split.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        order = self._order(command, split)
        until_ms = self._router.now_ms() + wait_ms
        empty: Delivery | None = None
        for partition in order:
            empty = await self.ask(split, partition, msgspec.structs.replace(command, wait_ms=0, ticket=None))
            if empty is not None and empty.runs:
                return self._delivered(empty, split)
        if wait_ms and split.config.leases_are_durable:
            return await self._wait_in_turns(command, split, order, until_ms)
        if wait_ms:
            return await self._wait_everywhere(command, split, max(1, until_ms - self._router.now_ms()))
        assert empty is not None
        return self._delivered(empty, split)

    async def channel_of(self, name: str, channel: str) -> SplitQueue:
        """A queue with several partitions, which has this channel if it can have it."""
        return await self._with_channel(await self.split_of(name), channel)

    async def _with_channel(self, split: SplitQueue, channel: str) -> SplitQueue:
        """The main channel comes to be with the first receive: in all partitions, so that receipts agree."""
        if channel in split.channels:
            return split
        if channel == MAIN:
            await self._every(CreateChannel(queue=split.name, channel=MAIN), split)
        await self._describe(split.name)
        return await self.split_of(split.name)

    def _order(self, command: Receive, split: SplitQueue) -> list[int]:
        """Which partitions are asked first: those that are known to have messages; else each in its turn."""
        count = len(split.shards)
        if command.attempt_id is not None:
            start = hashed(command.attempt_id, count)
            return [(start + index) % count for index in range(count)]
        turn = next(self._turns)
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
                delivery: Delivery | None = await self.ask(
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
            part = msgspec.structs.replace(command, wait_ms=wait_ms, ticket=None)
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

    # -- settling --

    async def _settle(self, command: Settle, split: SplitQueue) -> Settled:
        spans = command.spans
        if not isinstance(command, GiveBack) and command.receipts:
            spans = [*spans, *self._spans_of(command, await self._with_channel(split, command.channel))]
        replies = []
        for partition, chosen in split_spans(spans).items():
            if not 0 <= partition < len(split.shards):
                raise InvalidRequest(f"queue {split.name!r} has no partition {partition}: these are not its messages")
            part = _with_spans(command, chosen)
            replies.append(self.ask(split, partition, part))
        if not replies:
            return await self.ask(split, 0, command)  # type: ignore[no-any-return]
        settled = await asyncio.gather(*replies, return_exceptions=True)
        for reply in settled:
            if isinstance(reply, BaseException):
                raise reply
        return merge_settled(settled)  # type: ignore[arg-type]

    def _spans_of(self, command: Ack | Release | Extend, split: SplitQueue) -> list[Span]:
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

    async def _settle_sequences(self, command: Sequences, split: SplitQueue) -> Settled:
        asked = []
        is_settling = not isinstance(command, ExtendSequences)
        for place, part in _by_partition(command, len(split.shards)):
            asked.append(self._settle_held(split, place, part) if is_settling else self.ask(split, place, part))
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
            settled: Settled = await self.ask(split, place, command)
            count = settled.count
        finally:
            subscriptions.settled(parts, count)
        return settled

    # -- reading by offset --

    async def _by_offset(self, command: AckUpTo | AckConsumer | FindOffsets | ListChunks, split: SplitQueue) -> Any:
        offset = command.after if isinstance(command, FindOffsets) else command.offset
        return await self.ask(split, self._partition(offset, split), command)

    @staticmethod
    def _partition(offset: int, split: SplitQueue) -> int:
        partition = offset >> PARTITION_SHIFT
        if not 0 <= partition < len(split.shards):
            raise InvalidRequest(f"offset is {offset}: queue {split.name!r} has {len(split.shards)} partitions")
        return partition

    async def _read_records(self, command: ReadRecords, split: SplitQueue) -> Records:
        if command.offset is not None or command.consumer is None:
            partition = self._partition(command.offset or 0, split)
            return await self.ask(split, partition, command)  # type: ignore[no-any-return]
        count, turn = len(split.shards), next(self._turns)
        records: Records | None = None
        for index in range(count):
            records = await self.ask(split, (turn + index) % count, command)
            if records is not None and records.runs:
                break
        assert records is not None
        return records

    async def _browse(self, command: Browse, split: SplitQueue) -> list[Seen]:
        found: list[Seen] = []
        first = max(0, command.after) >> PARTITION_SHIFT
        for partition in range(first, len(split.shards)):
            part = msgspec.structs.replace(command, limit=command.limit - len(found))
            found += await self.ask(split, partition, part)
            if len(found) >= command.limit:
                break
        return found

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
            config = await self._config(command.queue)
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
        config = await self._config(task.queue)
        if config is None or min(config.partitions, self._router.shards) == 1:
            return task
        others = [each for each in await self._list_redrives(ListRedrives(queue=task.queue)) if each.task != task.task]
        running = [each.task for each in others if each.status == "running"]
        rest = [self._router.ask(shard_of_id(number), CancelRedrive(task=number)) for number in running]
        return merge_redrives([task, *await asyncio.gather(*rest)])

    # -- sessions --

    async def _open_session(self, command: OpenSession) -> int:
        session = self._router.new_session(command)
        if command.ttl_ms is None and command.once is None:
            return session.number
        anchor = next(iter(self._router.served), 0)
        try:
            number = await self._router.ask(anchor, command)
        except BaseException:
            self._router.sessions.drop(session)
            raise
        known = self._router.sessions.anchored(anchor, number)
        if known is not None:
            self._router.sessions.drop(session)
            return known.number
        self._router.sessions.anchor(session, anchor, number)
        return session.number

    async def _heartbeat(self, command: Heartbeat) -> None:
        if not command.session:
            return
        session = self._router.sessions.get(command.session)
        places = list(session.at.items())
        replies = await asyncio.gather(
            *(self._router.ask(shard, Heartbeat(session=number)) for shard, number in places), return_exceptions=True
        )
        for (shard, _), reply in zip(places, replies, strict=True):
            if isinstance(reply, SessionNotFound):
                session.at.pop(shard, None)
                if shard == session.anchor:
                    self._router.sessions.drop(session)
                    raise SessionNotFound(f"session {session.number} has ended, or never was: open another one")
            elif isinstance(reply, BaseException):
                raise reply
        session.seen_ms = self._router.now_ms()

    async def _end_session(self, command: EndSession) -> int:
        session = self._router.sessions.get(command.session)
        self._router.sessions.drop(session)
        for opening in list(session.opening.values()):
            await asyncio.wait((opening,))
        ends = [
            self._router.ask(shard, EndSession(session=number, error=command.error))
            for shard, number in session.at.items()
        ]
        count = 0
        failure: BaseException | None = None
        for reply in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(reply, int):
                count += reply
            elif not isinstance(reply, SessionNotFound):
                failure = failure or reply
        if failure is not None:
            raise failure
        return count

    # -- units of work --

    async def _last_mark(self, command: LastMark) -> int:
        return await self._router.ask(home_of(command.name, self._router.shards), command)  # type: ignore[no-any-return]

    async def _commit_work(self, command: CommitWork) -> list[Sent] | AlreadyDone:
        """Commit where the mark is, or the first ack, or the first send; what is elsewhere goes by the outbox.

        What is acked elsewhere is held there first, so that it can still be acked when the outbox gets there.
        """
        acks: list[tuple[int, Ack]] = []
        for ack in command.acks:
            acks += await self._place_ack(ack)
        sends: list[tuple[int, Send]] = []
        places: list[list[tuple[list[int], int]]] = []
        for send in command.sends:
            parts = await self._place_send(send)
            places.append([(indexes, len(sends) + at) for at, (_, indexes, _) in enumerate(parts)])
            sends += [(shard, part) for shard, _, part in parts]
        shard = self._coordinator(command, [place for place, _ in [*acks, *sends]])
        whole = msgspec.structs.replace(
            command,
            acks=[ack for _, ack in acks],
            sends=[send for _, send in sends],
            ack_shards=[place for place, _ in acks],
            send_shards=[place for place, _ in sends],
        )
        away = [(place, ack) for place, ack in acks if place != shard]
        try:
            reply = await self._hold_and_commit(shard, whole, away)
        except (StoreError, ConnectionLost):  # perhaps it was done: what is held stays held
            raise
        except PenstockError:
            await self._let_go(away)
            raise
        if isinstance(reply, AlreadyDone) or command.check_only:
            await self._let_go(away)
            return reply
        return [_put_together(send, parts, reply) for send, parts in zip(command.sends, places, strict=True)]

    async def _hold_and_commit(
        self, shard: int, whole: CommitWork, away: list[tuple[int, Ack]]
    ) -> list[Sent] | AlreadyDone:
        assert whole.send_shards is not None
        sends = zip(whole.send_shards, whole.sends, strict=True)
        try:
            await self._hold(away)
            if whole.mark is None:
                await self._check([(place, send) for place, send in sends if place != shard])
        except PenstockError:
            reply: list[Sent] | AlreadyDone | None = None
            if whole.once is not None or whole.mark is not None:  # perhaps it was done, and comes again
                reply = await self._router.ask(shard, RecallWork(named=whole.once, mark=whole.mark))
            if reply is None:
                raise
            return reply
        return await self._router.ask(shard, whole)  # type: ignore[no-any-return]

    async def _let_go(self, acks: list[tuple[int, Ack]]) -> None:
        """The work was not done: what was held for it can be released. If that fails, the hold runs out."""
        freed = [self._router.ask(shard, HoldForWork(acks=[ack], let_go=True)) for shard, ack in acks]
        await asyncio.gather(*freed, return_exceptions=True)

    def _coordinator(self, command: CommitWork, places: list[int]) -> int:
        if command.mark is not None:
            return home_of(command.mark[0], self._router.shards)
        return places[0] if places else 0

    async def _hold(self, acks: list[tuple[int, Ack]]) -> None:
        by_shard: dict[int, list[Ack]] = {}
        for shard, ack in acks:
            by_shard.setdefault(shard, []).append(ack)
        held = [self._router.ask(shard, HoldForWork(acks=some)) for shard, some in by_shard.items()]
        for reply in await asyncio.gather(*held, return_exceptions=True):
            if isinstance(reply, BaseException):
                raise reply

    async def _check(self, sends: list[tuple[int, Send]]) -> None:
        """What a queue of another shard would not take is refused now. (Marked work was checked piece by piece.)"""
        by_shard: dict[int, list[Send]] = {}
        for shard, send in sends:
            by_shard.setdefault(shard, []).append(send)
        checks = [
            self._router.ask(shard, CommitWork(acks=[], sends=some, check_only=True))
            for shard, some in by_shard.items()
        ]
        for reply in await asyncio.gather(*checks, return_exceptions=True):
            if isinstance(reply, BaseException):
                raise reply

    async def _place_ack(self, ack: Ack) -> list[tuple[int, Ack]]:
        config = await self._config(ack.queue)
        if config is None or min(config.partitions, self._router.shards) == 1:
            return [(home_of(ack.queue, self._router.shards), ack)]
        split = await self._with_channel(await self.split_of(ack.queue), ack.channel)
        spans = [*ack.spans, *self._spans_of(ack, split)]
        parts = []
        for partition, chosen in split_spans(spans).items():
            if not 0 <= partition < len(split.shards):
                raise InvalidRequest(f"queue {split.name!r} has no partition {partition}: these are not its messages")
            parts.append((split.shards[partition], Ack(queue=ack.queue, channel=ack.channel, spans=chosen)))
        return parts

    async def _place_send(self, send: Send) -> list[tuple[int, list[int], Send]]:
        """Where the messages of a send go: shard, their indexes, the part of it."""
        config = await self._config(send.queue)
        count = len(send.bodies)
        if config is None and send.create and min(send.config.partitions, self._router.shards) > 1:
            info = await self._create_queue(CreateQueue(name=send.queue, config=send.config, channels=send.channels))
            config = info.config
        if config is None or min(config.partitions, self._router.shards) == 1:
            return [(home_of(send.queue, self._router.shards), list(range(count)), send)]
        split = await self.split_of(send.queue)
        spare = self._spare(send, split)
        if send.groups is None:
            return [(split.shards[spare], list(range(count)), send)]
        indexes = split_by_group(send.groups, len(split.shards), spare)
        return [(split.shards[place], chosen, some_of(send, chosen)) for place, chosen in indexes.items()]

    async def _config(self, name: str) -> QueueConfig | None:
        config = self._router.catalog.config(name)
        if config is None and self._router.unknown(name):
            try:
                config = (await self._describe(name)).config
            except PenstockError:
                return None
        return config


def _check_offsets(command: CreateChannel, split: SplitQueue) -> None:
    """A partition without an offset would start somewhere else, and nobody would notice."""
    partitions = sorted(offset >> PARTITION_SHIFT for offset in command.offsets)
    if partitions and partitions != list(range(len(split.shards))):
        raise InvalidRequest(
            f"the offsets are of the partitions {partitions}: queue {split.name!r} has {len(split.shards)}, and each "
            "needs one"
        )


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


def _put_together(send: Send, parts: list[tuple[list[int], int]], replies: list[Sent]) -> Sent:
    if len(parts) == 1:
        return replies[parts[0][1]]
    return merge_sent(len(send.bodies), [(indexes, replies[at]) for indexes, at in parts])
