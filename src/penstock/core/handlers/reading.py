"""Reading without leases: by offset, with or without a name, and looking at what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.commands import (
    MAIN,
    NOT_DUE_MAX,
    AckConsumer,
    AckUpTo,
    Browse,
    ChunkList,
    DeleteConsumer,
    FindOffsets,
    ListChunks,
    Offsets,
    ReadRecords,
    Records,
    Seen,
)
from penstock.core.errors import ConsumerNotFound, InvalidRequest, RewindRefused
from penstock.core.handlers.checks import check_limit, check_offset
from penstock.core.queues import position
from penstock.core.queues.config import check_name

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class Reading:
    """What is done for who reads a queue without taking anything."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _read_records(self, command: ReadRecords) -> Records:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        offset = command.offset
        if command.consumer is not None:
            check_name(command.consumer, "consumer")
            consumer = queue.consumers.get(command.consumer)
            if consumer is not None:
                queue.consumer_seen(command.consumer, self.broker.now_ms)
            if offset is None:
                offset = 0 if consumer is None else consumer.offset
        if offset is not None and offset < 0:
            raise InvalidRequest(f"offset is {offset}: it must not be negative")
        check_limit(command.limit)
        if command.bytes_max is not None and command.bytes_max < 1:
            raise InvalidRequest(f"bytes_max is {command.bytes_max}: it must be at least 1")
        runs, next_offset = queue.read(offset or 0, command.limit, command.end, command.bytes_max)
        return Records(queue.name, queue.id, runs, next_offset, queue.next_sequence)

    def _find_offsets(self, command: FindOffsets) -> Offsets:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        queue.seal()
        end = queue.next_sequence
        cut = end if command.bytes_max is None else position.offset_after(queue, command.after, command.bytes_max)
        at_times = [queue.first_from(time_ms) for time_ms in command.times_ms]
        partitions = min(queue.config.partitions, self.broker.meta.shards)
        first = position.first_offset(queue)
        after_ms = position.sent_after(queue, command.after)
        not_due = position.not_due(queue, NOT_DUE_MAX)
        return Offsets(queue.name, queue.id, first, end, at_times, cut, partitions, after_ms, not_due)

    def _list_chunks(self, command: ListChunks) -> ChunkList:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        check_limit(command.limit)
        self.broker.must_commit = True  # what it tells of may still be on its way to the disk
        found = position.chunks_between(queue, command.offset, command.end, command.limit)
        next_offset = found[-1].base + found[-1].messages if found else command.offset
        return ChunkList(queue.name, queue.id, [key.packed for key in found], next_offset, self.broker.meta.shard)

    def _browse(self, command: Browse) -> list[Seen]:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        channel = queue.channels.get(command.channel)
        if channel is None and command.channel != MAIN:
            self.broker.find_channel(queue, command.channel)  # raises; looking at the main channel does not create it
        if command.limit < 1:
            raise InvalidRequest(f"limit is {command.limit}: it must be at least 1")
        return queue.browse(channel, command.after, command.limit, command.states, command.contains, command.end)

    def _ack_consumer(self, command: AckConsumer) -> int:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        check_name(command.consumer, "consumer")
        check_offset(queue, command.offset)
        consumer = queue.consumers.get(command.consumer)
        if consumer is not None and command.offset < consumer.offset and not command.allow_rewind:
            raise RewindRefused(
                f"consumer {command.consumer!r} of queue {queue.name!r} is at offset {consumer.offset}, and "
                f"{command.offset} is before it: to move it back, set allow_rewind"
            )
        queue.consumer_moved(command.consumer, command.offset, self.broker.now_ms)
        self.broker.must_commit = True
        return command.offset

    def _delete_consumer(self, command: DeleteConsumer) -> None:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        if command.consumer not in queue.consumers:
            raise ConsumerNotFound(f"queue {queue.name!r} has no consumer {command.consumer!r}")
        queue.delete_consumer(command.consumer)
        self.broker.must_commit = True

    def _ack_up_to(self, command: AckUpTo) -> int:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        channel = self.broker.find_channel(queue, command.channel)
        check_offset(queue, command.offset)
        self.broker.must_commit = True
        return position.ack_up_to(channel, command.offset, self.broker.now_ms)
