"""Units of work over several shards.

A unit is committed in one shard: where its mark is, or its first ack, or its first send. What it does in other shards
goes into that shard's outbox in the same commit, and is done by the forwarder (`forwarder.py`). What it acks elsewhere
is held there first, so that it can still be acked when the outbox gets there.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from penstock.cluster.catalog import LOOKS_MAX
from penstock.cluster.partitions.queues import SplitQueues
from penstock.cluster.partitions.sending import Sending
from penstock.cluster.partitions.settling import Settling
from penstock.cluster.routing.placement import home_of, merge_sent, some_of, split_by_group, split_spans
from penstock.core.commands import (
    Ack,
    AlreadyDone,
    CommitWork,
    CreateQueue,
    HoldForWork,
    LastMark,
    RecallWork,
    Send,
    Sent,
)
from penstock.core.errors import ConnectionLost, InvalidRequest, PenstockError, QueueReplaced, StoreError

if TYPE_CHECKING:
    from penstock.cluster.routing.router import Router


class Work:
    """Commits units of work."""

    def __init__(self, router: Router, queues: SplitQueues, sending: Sending, settling: Settling) -> None:
        self._router = router
        self._queues = queues
        self._sending = sending
        self._settling = settling

    async def last_mark(self, command: LastMark) -> int:
        """The shard of the mark's name knows."""
        return await self._router.ask(home_of(command.name, self._router.shards), command)  # type: ignore[no-any-return]

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

    def _coordinator(self, command: CommitWork, places: list[int]) -> int:
        if command.mark is not None:
            return home_of(command.mark[0], self._router.shards)
        return places[0] if places else 0

    async def _hold(self, acks: list[tuple[int, Ack]], unit: int) -> None:
        by_shard: dict[int, list[Ack]] = {}
        for shard, ack in acks:
            by_shard.setdefault(shard, []).append(ack)
        held = [self._router.ask(shard, HoldForWork(acks=some, unit=unit)) for shard, some in by_shard.items()]
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

    # -- where its parts go --

    async def _place_ack(self, ack: Ack) -> list[tuple[int, Ack]]:
        config = await self._queues.config(ack.queue)
        if config is None or min(config.partitions, self._router.shards) == 1:
            return [(home_of(ack.queue, self._router.shards), ack)]
        split = await self._queues.with_channel(await self._queues.split_of(ack.queue), ack.channel)
        spans = [*ack.spans, *self._settling.spans_of(ack, split)]
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
            return [(home_of(send.queue, self._router.shards), list(range(count)), self._whole(send))]
        split = await self._queues.split_of(send.queue)
        # a further partition is never made by a send: it would not know its numbers
        send = msgspec.structs.replace(send, create=False, of_queue=split.queue_id)
        spare = self._sending.spare(send, split)
        if send.groups is None:
            return [(split.shards[spare], list(range(count)), send)]
        indexes = split_by_group(send.groups, len(split.shards), spare)
        return [(split.shards[place], chosen, some_of(send, chosen)) for place, chosen in indexes.items()]

    def _whole(self, send: Send) -> Send:
        """A send to a queue with one partition: if it has more by now, groups belong elsewhere."""
        queue = None if send.groups is None else self._router.catalog.known(send.queue)
        return send if queue is None else msgspec.structs.replace(send, of_queue=queue.id)


def _unit_of(command: CommitWork) -> int:
    """A number for a unit of work, the same whenever it is tried, by whichever node."""
    name = command.mark or (command.once and (command.once.client, command.once.number))
    return crc32(repr(name).encode()) if name else random.getrandbits(32)


def _put_together(send: Send, parts: list[tuple[list[int], int]], replies: list[Sent]) -> Sent:
    if len(parts) == 1:
        return replies[parts[0][1]]
    return merge_sent(len(send.bodies), [(indexes, replies[at]) for indexes, at in parts])
