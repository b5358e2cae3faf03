"""Messages that go on in another queue: dead letters, redriven ones, and those that another shard hands on.

The other queue may be in another shard, or have partitions there: then the messages go by the outbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import MAIN, ForwardedMessages
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.window import Entry
from penstock.core.queues.config import DAY_MS, QueueConfig, dead_letter_name
from penstock.core.queues.draft import Messages
from penstock.core.queues.origin import Origin
from penstock.core.queues.partition import partition_of
from penstock.core.queues.queue import Queue
from penstock.core.storage.chunk import Chunk
from penstock.core.transfer.inbox import REFUSED, refused_name

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class Moves:
    """Puts messages of a queue into another one."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def move(self, name: str, like: QueueConfig, messages: Messages, size: int, priority: int = 0) -> None:
        """Messages of a queue go on in another one: here, or by the outbox in the shard where that is.

        A queue that is not there is created, of the same kind, and keeps what it gets. What a queue in quarantine
        cannot take goes to the queue for what was refused.
        """
        name = self.able_to_take(name)
        shard = self.broker.shard_of(name)
        if shard != self.broker.meta.shard:
            config = self.config_for_moved(like)
            effect = ForwardedMessages(name, moved=True, priority=priority, due_ms=0, config=config)
            self.broker.outbox.add_messages(shard, effect, messages, size)
            return
        queue = self.broker.queues.get(name)
        if queue is None:
            queue = self.broker.catalog.add_queue(name, self.config_for_moved(like), (MAIN,))
        self.move_in(queue, messages, size, ForwardedMessages(name, moved=True, priority=priority, due_ms=0))

    def able_to_take(self, name: str) -> str:
        """The queue itself, or one for what it refuses: none of this shard that is in quarantine, or could be."""
        broker, stem = self.broker, name.removesuffix(REFUSED)
        for is_last in (False, True):
            is_here = name not in broker.queues and broker.shard_of(name) == broker.meta.shard
            if is_here and broker.quarantine.might_be(name):
                name = refused_name(stem, broker.quarantine.mark if is_last else "")
        return name

    def move_in(self, queue: Queue, messages: Messages, size: int, effect: ForwardedMessages) -> None:
        """Messages of another queue arrive in one of this shard."""
        own, away = self.divide(queue, messages, effect)
        if away:
            messages, size = own, own.size
        if len(messages):
            place = queue.place(0 if queue.is_fifo else effect.priority, 0, self.broker.now_ms)
            queue.append(messages, place, size, self.broker.now_ms)
        self.hand_on(queue, away, effect)

    def divide(
        self, queue: Queue, messages: Messages, effect: ForwardedMessages
    ) -> tuple[Messages, dict[int, Messages]]:
        """What of messages that arrive belongs to this partition of their queue, and what to which other shard.

        A group has one partition. Messages without a group stay where they came; so does what was sent to this very
        partition.
        """
        partitions = min(queue.config.partitions, self.broker.meta.shards)
        if partitions == 1 or messages.groups is None or effect.of_queue:
            return messages, {}
        meta = self.broker.meta
        first = partition_of(queue.name, meta.shards)
        by_shard: dict[int, list[int]] = {}
        for index, group in enumerate(messages.groups):
            partition = None if group is None else partition_of(group.decode(), partitions)
            shard = meta.shard if partition is None else (first + partition) % meta.shards
            by_shard.setdefault(shard, []).append(index)
        stays = by_shard.pop(meta.shard, [])
        if not by_shard:
            return messages, {}
        return messages.only(stays), {shard: messages.only(indexes) for shard, indexes in by_shard.items()}

    def hand_on(self, queue: Queue, away: dict[int, Messages], effect: ForwardedMessages) -> None:
        """Messages go on to other partitions of their queue."""
        for shard, part in away.items():
            there = msgspec.structs.replace(effect, create=False, of_queue=queue.id)
            self.broker.outbox.add_messages(shard, there, part, part.size)

    @staticmethod
    def config_for_moved(like: QueueConfig) -> QueueConfig:
        """The configuration of a queue that is created for messages of another one."""
        return QueueConfig(
            kind=like.kind, max_receives=0, retention_ms=14 * DAY_MS, message_bytes_max=like.message_bytes_max
        )

    def bury(
        self, channel: Channel, chunk: Chunk, first: int, stop: int, attempts: int, entry: Entry, priority: int
    ) -> None:
        """Send messages to the dead-letter queue, with the reasons."""
        queue = channel.queue
        name = queue.config.dead_letter or dead_letter_name(queue.name)
        low, high = first - chunk.base, stop - chunk.base
        origins: list[bytes | None] = []
        for index in range(low, high):
            sequence = chunk.base + index
            origins.append(
                self._origin(channel, chunk, index, attempts, priority, entry.failures_of(sequence, sequence))
            )
        bodies = chunk.body_list(low, high)
        attributes = [chunk.attributes(index) for index in range(low, high)]
        groups = [chunk.group(index) for index in range(low, high)]
        messages = Messages(
            bodies,
            attributes=attributes,
            groups=[None if group is None else group.encode() for group in groups],
            dedup_ids=[(chunk.dedup_id(index) or "").encode() or None for index in range(low, high)],
            origins=origins,
        )
        size = sum(map(len, bodies)) + sum(len(value or b"") for value in attributes)
        self.move(name, queue.config, messages, size)

    def _origin(
        self, channel: Channel, chunk: Chunk, index: int, attempts: int, priority: int, failures: list[Any]
    ) -> bytes:
        queue, sequence = channel.queue, chunk.base + index
        data = chunk.origin(index)
        earlier = None if data is None else Origin.decode(data)
        return Origin(
            id=self.broker.message_id(queue.id, sequence) if earlier is None else earlier.id,
            queue=queue.name,
            channel=channel.name,
            sequence=sequence,
            sent_ms=chunk.sent_ms if earlier is None else earlier.sent_ms,
            attempts=attempts,
            priority=priority,
            failures=failures if earlier is None else earlier.failures + failures,
        ).encode()
