"""Commands for more than one shard: coroutines that ask each, and put the replies together.

A coroutine has the name of the command that it does. Those for queues with several partitions are in
`cluster/partitions/`: what is known of the partitions, and what goes to all of them (`queues.py`); sending, receiving
and settling (`messages.py`). Those for sessions are in `sessions.py`.

A queue may be deleted and made again while this node still knows the old one, with other partitions. A partition
refuses what is meant for another queue (`QueueReplaced`). The queue is looked at again then, and the command repeated
as a whole; what had gone to the old queue is gone with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from penstock.cluster.base import shard_of_id
from penstock.cluster.catalog import LOOKS_MAX
from penstock.cluster.links.wire import SETTINGS_SINCE
from penstock.cluster.partitions.messages import SEQUENCES, Acknowledgement, Sequences, SplitMessages
from penstock.cluster.partitions.queues import OF_MESSAGES, SplitQueue, SplitQueues, all_of, meant_for
from penstock.cluster.routing.placement import (
    home_of,
    merge_names,
    merge_redrives,
    merge_sent,
    shards_of,
    some_of,
    split_by_group,
    split_spans,
)
from penstock.cluster.routing.routed import Routed
from penstock.core.commands import (
    COMMANDS,
    Ack,
    AlreadyDone,
    CancelRedrive,
    ChangeQueue,
    Command,
    CommitWork,
    CountQueues,
    CreateQueue,
    DescribeQueue,
    ExtendSequences,
    HoldForWork,
    LastMark,
    ListQueues,
    ListRedrives,
    NameQueue,
    QueueStats,
    RecallWork,
    Receive,
    RedriveTask,
    Send,
    Sent,
    Staged,
    StageWork,
    Stats,
    Subscribe,
    handlers_of,
)
from penstock.core.errors import (
    ConnectionLost,
    InvalidConfig,
    InvalidRequest,
    PenstockError,
    QueueDamaged,
    QueueExists,
    QueueNotFound,
    QueueReplaced,
    StoreError,
)
from penstock.core.traits import Home, Split
from penstock.server.shard import Call

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router


_ELSEWHERE = frozenset({Home.QUEUE, Home.SUBSCRIPTION, Home.SHARD})
"""What says where the commands go that are no matter of `ScatterGather.do`."""


class ScatterGather:
    """Does for a router what concerns several shards."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.queues = SplitQueues(router)
        self.messages = SplitMessages(router, self.queues)
        work = Work(router, self.queues, self.messages)
        others = (kind for kind in COMMANDS if kind.traits.home not in _ELSEWHERE)
        self._others = handlers_of(others, (self, router.session_calls, work))
        self._splits: dict[Split, Callable[[Any, SplitQueue], Any]] = {
            Split.EVERY: self.queues.every,
            Split.DELETE: self.queues.delete_queue,
            Split.SEND: self.messages.send,
            Split.RECEIVE: self.messages.receive,
            Split.SPANS: self.messages.settle,
            Split.SEQUENCES: self.messages.settle_sequences,
            Split.OFFSET: self.messages.by_offset,
            Split.RECORDS: self.messages.read_records,
            Split.BROWSE: self.messages.browse,
            Split.NUMBERS: self.messages.by_numbers,
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
                if len(split.shards) == 1:
                    return await self._router.ask(split.shards[0], meant_for(split, command))
                return await self._splits[how](command, split)
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

    async def send_again(self, command: Send, shard: int) -> Any:
        """A send that was taken straight to a partition which is not there: it is made, if the queue is there."""
        try:
            split = await self.queues.split_of(command.queue)
        except QueueNotFound:
            return await self.do_split(command)
        if len(split.shards) == 1 or shard not in split.shards or command.groups is not None:
            return await self.do_split(command)
        try:
            return await self.messages.send_to(split, split.shards.index(shard), command)
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

    async def _count_queues(self, command: CountQueues) -> list[Stats]:
        names = await self._list_queues(ListQueues(prefix=command.prefix, after=command.after, limit=command.limit))
        counted = await asyncio.gather(
            *(self._router.call(QueueStats(name=name)) for name in names), return_exceptions=True
        )
        for each in counted:
            if isinstance(each, BaseException) and not isinstance(each, QueueNotFound | QueueDamaged):
                raise each
        return [each for each in counted if isinstance(each, Stats)]

    async def _name_queue(self, command: NameQueue) -> str | None:
        return await self._router.name_of(command.queue_id)

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


# -- units of work -----------------------------------------------------------------------------------------------------


class Work:
    """Commits units of work over several shards.

    A unit is committed in one shard: where its mark is, or its first ack, or its first send. What it does in other
    shards goes into that shard's outbox in the same commit, and is done by the forwarder (`forwarder.py`).
    """

    def __init__(self, router: Router, queues: SplitQueues, messages: SplitMessages) -> None:
        self._router = router
        self._queues = queues
        self._messages = messages

    async def last_mark(self, command: LastMark) -> int:
        """The shard of the mark's name knows."""
        return await self._router.ask(home_of(command.name, self._router.shards), command)  # type: ignore[no-any-return]

    async def stage_work(self, command: StageWork) -> Staged:
        """Write sends where the mark is, until the work is committed there."""
        looks = 0
        while True:
            sends: list[tuple[int, Send]] = []
            for send in command.sends:
                sends += [(shard, part) for shard, _, part in await self._place_send(send)]
            placed = msgspec.structs.replace(
                command, sends=[send for _, send in sends], send_shards=[shard for shard, _ in sends]
            )
            try:
                return await self._router.ask(  # type: ignore[no-any-return]
                    home_of(command.name, self._router.shards), placed
                )
            except QueueReplaced:  # nothing was done
                looks += 1
                if looks == LOOKS_MAX:
                    raise
            for name in dict.fromkeys(send.queue for send in command.sends):
                await self._queues.look_again(name)

    async def commit_work(self, command: CommitWork) -> list[Sent] | AlreadyDone:
        """Do it whole, or not at all. If a queue is not as it was, nothing was done, and it is tried again."""
        looks, unit = 0, _unit_of(command)
        while True:
            try:
                return await self._try_work(command, unit)
            except QueueReplaced:  # nothing was done
                looks += 1
                if looks == LOOKS_MAX:
                    raise
            names = [*(ack.queue for ack in command.acks), *(send.queue for send in command.sends)]
            for name in dict.fromkeys(names):
                await self._queues.look_again(name)

    async def _try_work(self, command: CommitWork, unit: int) -> list[Sent] | AlreadyDone:
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
        if command.mark is not None:
            shard = home_of(command.mark[0], self._router.shards)
        else:
            shard = next((place for place, _ in [*acks, *sends]), 0)
        whole = msgspec.structs.replace(
            command,
            acks=[ack for _, ack in acks],
            sends=[send for _, send in sends],
            ack_shards=[place for place, _ in acks],
            send_shards=[place for place, _ in sends],
        )
        away = [(place, ack) for place, ack in acks if place != shard]
        try:
            reply = await self._hold_and_commit(shard, whole, away, unit)
        except (StoreError, ConnectionLost):  # perhaps it was done: what is held stays held
            raise
        except PenstockError:
            await self._let_go(away, unit)
            raise
        if isinstance(reply, AlreadyDone):
            return reply  # its acks may be on their way: what is held stays held
        if command.check_only:
            await self._let_go(away, unit)
            return reply
        return [_put_together(send, parts, reply) for send, parts in zip(command.sends, places, strict=True)]

    async def _hold_and_commit(
        self, shard: int, whole: CommitWork, away: list[tuple[int, Ack]], unit: int
    ) -> list[Sent] | AlreadyDone:
        assert whole.send_shards is not None
        sends = zip(whole.send_shards, whole.sends, strict=True)
        try:
            await self._hold(away, unit)
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

    async def _let_go(self, acks: list[tuple[int, Ack]], unit: int) -> None:
        """The work was not done: what was held for it can be released. If that fails, the hold runs out."""
        freed = [self._router.ask(shard, HoldForWork(acks=[ack], let_go=True, unit=unit)) for shard, ack in acks]
        await asyncio.gather(*freed, return_exceptions=True)

    async def _hold(self, acks: list[tuple[int, Ack]], unit: int) -> None:
        by_shard: dict[int, list[Ack]] = {}
        for shard, ack in acks:
            by_shard.setdefault(shard, []).append(ack)
        held = [self._router.ask(shard, HoldForWork(acks=some, unit=unit)) for shard, some in by_shard.items()]
        await all_of(held)

    async def _check(self, sends: list[tuple[int, Send]]) -> None:
        """What a queue of another shard would not take is refused now. (Marked work was checked piece by piece.)"""
        by_shard: dict[int, list[Send]] = {}
        for shard, send in sends:
            by_shard.setdefault(shard, []).append(send)
        checks = [
            self._router.ask(shard, CommitWork(acks=[], sends=some, check_only=True))
            for shard, some in by_shard.items()
        ]
        await all_of(checks)

    # -- where its parts go --

    async def _place_ack(self, ack: Ack) -> list[tuple[int, Ack]]:
        config = await self._queues.config(ack.queue)
        if config is None or min(config.partitions, self._router.shards) == 1:
            return [(home_of(ack.queue, self._router.shards), ack)]
        split = await self._queues.with_channel(await self._queues.split_of(ack.queue), ack.channel)
        spans = [*ack.spans, *self._messages.spans_of(ack, split)]
        parts = []
        for partition, chosen in split_spans(spans).items():
            if not 0 <= partition < len(split.shards):
                raise InvalidRequest(f"queue {split.name!r} has no partition {partition}: these are not its messages")
            parts.append((split.shards[partition], Ack(queue=ack.queue, channel=ack.channel, spans=chosen)))
        return parts

    async def _place_send(self, send: Send) -> list[tuple[int, list[int], Send]]:
        """Where the messages of a send go: shard, their indexes, the part of it."""
        config = await self._queues.config(send.queue)
        count = len(send.bodies)
        if config is None and send.create and min(send.config.partitions, self._router.shards) > 1:
            info = await self._queues.create_queue(
                CreateQueue(name=send.queue, config=send.config, channels=send.channels)
            )
            config = info.config
        if config is None or min(config.partitions, self._router.shards) == 1:
            # If the queue has more partitions by now, groups belong elsewhere.
            known = None if send.groups is None else self._router.catalog.known(send.queue)
            whole = send if known is None else msgspec.structs.replace(send, of_queue=known.id)
            return [(home_of(send.queue, self._router.shards), list(range(count)), whole)]
        split = await self._queues.split_of(send.queue)
        # a further partition is never made by a send: it would not know its numbers
        send = msgspec.structs.replace(send, create=False, of_queue=split.queue_id)
        spare = self._messages.spare(send, split)
        if send.groups is None:
            return [(split.shards[spare], list(range(count)), send)]
        indexes = split_by_group(send.groups, len(split.shards), spare)
        return [(split.shards[place], chosen, some_of(send, chosen)) for place, chosen in indexes.items()]


def _unit_of(command: CommitWork) -> int:
    """A number for a unit of work, the same whenever it is tried, by whichever node."""
    name = command.mark or (command.once and (command.once.client, command.once.number))
    return crc32(repr(name).encode()) if name else random.getrandbits(32)


def _put_together(send: Send, parts: list[tuple[list[int], int]], replies: list[Sent]) -> Sent:
    if len(parts) == 1:
        return replies[parts[0][1]]
    return merge_sent(len(send.bodies), [(indexes, replies[at]) for indexes, at in parts])


# -- calls about one queue ---------------------------------------------------------------------------------------------

_UNASKED: frozenset[Split] = frozenset({Split.FIRST, Split.CREATE})
"""For these it does not matter how many partitions the queue has."""


class QueueCalls:
    """Starts a router's calls about queues, if they do not go into a shard of this process right away.

        whole      to the queue's shard: the queue has one partition, or only the first one is asked
        straight   a send without groups, and what settles messages by their numbers: to the shards of the partitions
        split      all else about a queue with several partitions: a coroutine asks them (`ScatterGather`)

    Who knows how many partitions a queue has? Its first partition. Here it is looked up, for a queue elsewhere it is
    asked for (once, and then remembered); commands that come meanwhile wait for the answer, in their order.

    What is remembered may be of a queue that is gone. So a call to which the number of partitions matters says which
    queue it is meant for, and keeps its command as it came (`Routed.whole`): when it is refused, it takes the long way.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._shards = router.shards
        self._served = router.served
        self._catalog = router.catalog
        self._asking: dict[str, list[Routed]] = {}
        """Calls that wait until it is known how many partitions their queue has."""

    def asking(self) -> list[Routed]:
        """Those calls."""
        return [call for calls in self._asking.values() for call in calls]

    def start(self, call: Routed, name: str) -> None:
        """A command about one queue."""
        command = call.command
        if SETTINGS_SINCE and isinstance(command, CreateQueue | ChangeQueue):
            refusal = self._too_early(command)
            if refusal is not None:
                self._router.fail_soon(call, refusal)
                return
        traits = command.traits
        if isinstance(command, DescribeQueue) and command.queue_id:
            call.is_noted = True
            self._router.dispatch(call, shard_of_id(command.queue_id) % self._shards)
            return
        if name in self._asking and traits.split not in _UNASKED:
            self._ask_first(call, name)  # behind those who came before
            return
        is_near = home_of(name, self._shards) in self._served
        # For what changes all partitions, how many there are is asked for, and not remembered: it comes seldom.
        is_asked_for = traits.administers and traits.split not in _UNASKED
        config = None if is_asked_for and not is_near else self._catalog.config(name)
        if config is None and isinstance(command, Send | CreateQueue):
            if command.config.partitions > 1 and self._shards > 1:
                self._start_split(call)
                return
            if is_near:
                self._start_whole(call, name)
                return
        if config is None and traits.split not in _UNASKED and not is_near:
            self._ask_first(call, name)
        elif config is not None and config.partitions > 1 and traits.split is not Split.FIRST and self._shards > 1:
            self._start_split(call)
        else:
            self._start_whole(call, name)

    def _too_early(self, command: CreateQueue | ChangeQueue) -> InvalidConfig | None:
        """What is wrong with a setting that some node is too old for."""
        given = command.changes if isinstance(command, ChangeQueue) else msgspec.to_builtins(command.config)
        for setting, version in SETTINGS_SINCE.items():
            if setting in given:
                earlier = self._router.maps.current().earlier_than(version)
                if earlier:
                    return InvalidConfig(f"{setting} cannot be set before node {earlier!r} is upgraded")
        return None

    def _ask_first(self, call: Routed, name: str) -> None:
        """Wait until it is known how many partitions the queue has; in the order of coming."""
        waiting = self._asking.get(name)
        if waiting is not None:
            waiting.append(call)
            return
        self._asking[name] = [call]
        asked = Routed(DescribeQueue(name=name), lambda answer: self._was_asked(name, answer), self._router)
        asked.is_noted = True
        self._router.dispatch(asked, home_of(name, self._shards))

    def _was_asked(self, name: str, answer: Call) -> None:
        waiting = self._asking.pop(name, [])
        error = answer.error
        is_split = error is None and answer.reply.config.partitions > 1 and self._shards > 1
        for call in waiting:
            if call.is_over:
                continue
            if error is not None and not isinstance(error, QueueNotFound):
                call.error = error
                self._router.finish(call)
            elif is_split:
                self._start_split(call)
            else:
                self._start_whole(call, name)

    def _start_whole(self, call: Routed, name: str) -> None:
        """The queue has one partition."""
        command = call.command
        if isinstance(command, Subscribe):
            self._router.subscriptions.subscribe(call, is_split=False)
            return
        call.is_noted = command.traits.is_noted
        if isinstance(command, Receive) or (isinstance(command, Send) and command.groups is not None):
            # If the queue has several partitions by now, it is refused, and takes the long way.
            call.whole = command
            known = self._catalog.known(command.queue)
            if known is not None:
                call.command = msgspec.structs.replace(command, of_queue=known.id)
        self._router.dispatch(call, home_of(name, self._shards))

    def _start_split(self, call: Routed) -> None:
        """The queue has several partitions, or will have."""
        command = call.command
        if isinstance(command, Subscribe):
            self._router.subscriptions.subscribe(call, is_split=True)
        elif (
            isinstance(command, Send)
            and (straight := self._router.scatter_gather.messages.straight(command)) is not None
        ):
            call.whole = command
            shard, call.command = straight
            self._router.dispatch(call, shard)
        elif isinstance(command, SEQUENCES) and (parts := self._router.scatter_gather.messages.parts_of(command)):
            # Each part goes to its shard at once: what a connection settles next must not overtake it.
            if len(parts) == 1:
                self._settle_part(call, *parts[0])
                return
            together = Acknowledgement(call, len(parts), self._router.finish)
            for shard, part in parts:
                self._settle_part(Routed(part, together.add, self._router, call.caller), shard, part)
        else:
            self._router.run(call, self._router.scatter_gather.do_split(command))

    def _settle_part(self, call: Routed, shard: int, command: Sequences) -> None:
        call.whole = command
        if not isinstance(command, ExtendSequences):
            call.parts = self._router.subscriptions.acknowledging(command.session, shard)
            call.is_noted = bool(call.parts)
        self._router.dispatch(call, shard)

    def take_the_long_way(self, call: Routed, whole: Command) -> None:
        """Its partition is not there, or the queue is another one by now: a coroutine looks at it again."""
        call.whole = call.error = call.served = call.place = None
        if isinstance(whole, Send):
            self._router.run(call, self._router.scatter_gather.send_again(whole, call.shard))
            return
        if isinstance(whole, Receive):
            self._router.run(call, self._router.scatter_gather.do_split(whole))
            return
        assert isinstance(whole, SEQUENCES)
        whole.session = call.session or whole.session  # it had the shard's number
        self._router.tell_settled(call)
        self._router.run(call, self._router.scatter_gather.do_split(whole))
