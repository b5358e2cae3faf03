"""Units of work: acks and sends that are done together, in one commit, or not at all.

Everything is checked first, so that nothing has happened when a unit is refused. What a unit has in other shards goes
into the outbox in the same commit; what it acks there was held for it before (`HoldForWork`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.core.commands import (
    Ack,
    AlreadyDone,
    CommitWork,
    ForwardedAcks,
    HoldForWork,
    LastMark,
    RecallWork,
    Send,
    Sent,
    Settled,
    Span,
)
from penstock.core.delivery.acknowledgement import holder_of_unit
from penstock.core.delivery.channel import Channel
from penstock.core.errors import (
    BatchTooLarge,
    InvalidRequest,
    MarkMoved,
    PenstockError,
    QueueNotFound,
    StoreError,
    WorkRefused,
)
from penstock.core.handlers.checks import check_lease, check_queue_id
from penstock.core.queues.config import (
    BATCH_BYTES_MAX,
    MARKED_BYTES_MAX,
    QueueConfig,
    config_for,
)
from penstock.core.queues.queue import Queue

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class UnitsOfWork:
    """Does units of work: all of one, or nothing."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _commit_work(self, command: CommitWork) -> list[Sent] | AlreadyDone:
        if command.mark is None:
            if command.stage:
                raise InvalidRequest("only work with a mark has a stage")
            return self._do_work(command)
        broker, marks = self.broker, self.broker.marks
        name, number = command.mark
        marks.check(name, number)
        if number <= marks.last(name):
            broker.must_commit = True  # what it tells of may still be on its way to the disk
            return AlreadyDone(name, marks.last(name))
        if command.mark_after is not None and command.mark_after != marks.last(name):
            broker.must_commit = True
            raise MarkMoved(
                f"the last number of {name!r} is {marks.last(name)}, and the work starts after "
                f"{command.mark_after}: nothing was done; continue after the last number"
            )
        if command.stage:
            broker.staging.find(command.stage)
        replies = self._do_work(command)
        if command.check_only:
            return replies
        if command.stage:
            broker.staging.commit(command.stage)
        marks.set(name, number, broker.now_ms, broker.write_buffer.changes)
        broker.must_commit = True
        return replies

    def _recall_work(self, command: RecallWork) -> list[Sent] | AlreadyDone | None:
        broker = self.broker
        broker.must_commit = True  # what it tells of may still be on its way to the disk
        if command.named is not None:
            known = broker.memory.recall(command.named, CommitWork(acks=[], sends=[]))
            if known is not None:
                return known[0]  # type: ignore[no-any-return]
        if command.mark is not None and command.mark[1] <= broker.marks.last(command.mark[0]):
            return AlreadyDone(command.mark[0], broker.marks.last(command.mark[0]))
        return None

    def _last_mark(self, command: LastMark) -> int:
        broker = self.broker
        broker.must_commit = True  # what it tells of may still be on its way to the disk
        if command.arrived and broker.outbox.has_since(broker.marks.done_ms(command.name)):
            return -1
        return broker.marks.last(command.name)

    def _do_work(self, command: CommitWork) -> list[Sent]:
        if self.broker.meta.shards == 1:
            self._check_acks(command.acks)
            self.check_sends(command.sends, _bytes_max(command))
            return [] if command.check_only else self._work(command.acks, command.sends)
        return self._do_work_over_shards(command)

    def _work(self, acks: list[Ack], sends: list[Send]) -> list[Sent]:
        for ack in acks:
            settled = self.broker.acknowledging.ack(ack)
            assert not settled.refused
        return [self.broker.sending.send(send) for send in sends]

    def _check_acks(self, acks: list[Ack]) -> None:
        """Raise if something that a unit of work has taken is not its own, or is held for one of another shard."""
        are_others = self.broker.meta.shards > 1
        for channel, spans in self._spans_by_channel(acks):
            for span in spans:
                if not channel.acknowledgement.can_ack(span) or (are_others and channel.acknowledgement.is_held(span)):
                    raise _not_its_own(channel.queue.name, span)

    def _spans_by_channel(self, acks: list[Ack]) -> list[tuple[Channel, list[Span]]]:
        """What a unit of work has taken; `WorkRefused` if that is anything twice."""
        spans_of: dict[Channel, list[Span]] = {}
        for ack in acks:
            channel = self.broker.find_channel(self.broker.find_queue(ack.queue), ack.channel)
            spans_of.setdefault(channel, []).extend(self.broker.acknowledging.spans_of(ack, channel))
        for channel, spans in spans_of.items():
            if any(one.last >= other.first for one, other in pairwise(sorted(spans))):
                raise WorkRefused(f"a message of queue {channel.queue.name!r} is taken twice in one unit of work")
        return list(spans_of.items())

    def check_sends(self, sends: list[Send], bytes_max: int) -> None:
        """Raise what is wrong with a unit of work's sends, before anything has happened."""
        broker = self.broker
        groups_of: dict[str, list[str | None]] = {}
        new: dict[str, QueueConfig] = {}  # the first send to a queue makes it
        size = 0
        for send in sends:
            queue = broker.queues.get(send.queue)
            if queue is None:
                broker.quarantine.refuse(send.queue)
            if send.of_queue:
                check_queue_id(queue, send.queue, send.of_queue)
            if queue is not None:
                broker.sending.check_whole(queue, send)
            elif not send.create:
                raise QueueNotFound(f"there is no queue {send.queue!r}: create it first")
            config = new.setdefault(send.queue, config_for(send.queue, send.config)) if queue is None else queue.config
            size += broker.sending.check(send, config)[0]
            groups_of.setdefault(send.queue, []).extend(send.groups or [])
        _check_work_size(size, bytes_max)
        for name, groups in groups_of.items():
            queue = broker.queues.get(name) or Queue(broker, 0, name, new[name], broker.now_ms)
            broker.sending.check_rate(queue, groups, count_them=False)

    # -- over several shards --

    def _do_work_over_shards(self, command: CommitWork) -> list[Sent]:
        """A unit of work of which this shard is the coordinator: what is elsewhere goes into the outbox."""
        here = self.broker.meta.shard
        ack_shards = self.shards_of(command.ack_shards, [ack.queue for ack in command.acks], "acks")
        send_shards = self.shards_of(command.send_shards, [send.queue for send in command.sends], "sends")
        acks = [ack for ack, shard in zip(command.acks, ack_shards, strict=True) if shard == here]
        sends = [send for send, shard in zip(command.sends, send_shards, strict=True) if shard == here]
        self._check_acks(acks)
        self.check_sends(sends, _bytes_max(command))
        sizes = [
            0 if shard == here else self.broker.sending.check_elsewhere(send)
            for send, shard in zip(command.sends, send_shards, strict=True)
        ]
        _check_work_size(sum(sizes), _bytes_max(command))
        if command.check_only:
            return []
        sent = iter(self._work(acks, sends))
        acks_at: dict[int, list[Ack]] = {}
        for ack, shard in zip(command.acks, ack_shards, strict=True):
            if shard != here:
                acks_at.setdefault(shard, []).append(ack)
        for shard, away in acks_at.items():
            self.broker.outbox.add(shard, ForwardedAcks(away))
        return [
            next(sent) if shard == here else self.broker.outbox.add_send(shard, send, size)
            for send, shard, size in zip(command.sends, send_shards, sizes, strict=True)
        ]

    def shards_of(self, given: list[int] | None, names: list[str], what: str) -> list[int]:
        """The shards of the parts of a unit of work."""
        if given is None:
            return [self.broker.shard_of(name) for name in names]
        shards = self.broker.meta.shards
        if len(given) != len(names) or not all(0 <= shard < shards for shard in given):
            raise InvalidRequest(f"{given} are not the shards of {len(names)} {what}: there are {shards}")
        return given

    def _hold_for_work(self, command: HoldForWork) -> Settled:
        check_lease(command.lease_ms)
        held, holder = self._spans_by_channel(command.acks), holder_of_unit(command.unit)
        if command.let_go:
            return Settled(
                sum(channel.acknowledgement.let_go(span, holder) for channel, spans in held for span in spans)
            )
        for channel, spans in held:
            for span in spans:
                if not channel.acknowledgement.can_hold(span, holder):
                    raise _not_its_own(channel.queue.name, span)
        for channel, spans in held:
            for span in spans:
                channel.acknowledgement.hold(span, self.broker.now_ms + command.lease_ms, holder)
        self.broker.must_commit = True
        return Settled(sum(span.messages for _, spans in held for span in spans))

    def ack_late(self, command: Ack) -> int:
        """Ack what was held for a unit of work. Returns how many messages are not its own any more."""
        try:
            refused = self.broker.acknowledging.ack(command).refused
        except StoreError:  # a read failed: it may not be too late
            raise
        except PenstockError:
            return sum(span.messages for span in command.spans) + len(command.receipts)
        return sum(each.last - each.first + 1 for each in refused)


def _not_its_own(queue: str, span: Span) -> WorkRefused:
    return WorkRefused(
        f"messages {span.first} to {span.last} of queue {queue!r} no longer belong to this unit of work "
        "(their lease ran out, or they were settled): nothing was done; receive them again"
    )


def _bytes_max(command: CommitWork) -> int:
    return BATCH_BYTES_MAX if command.mark is None else MARKED_BYTES_MAX


def _check_work_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise BatchTooLarge(f"{size} bytes are too many for one unit of work: put at most {bytes_max}")
