"""Queues and channels: how they come, change, pause, are emptied, and go.

A queue may have partitions in several shards. The first one is the queue: it gives the id, and its end is the end of
the others. A further partition is made here by a command with `part`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from penstock.core.commands import (
    CatalogEvent,
    ChangeQueue,
    CountQueues,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    DescribeQueue,
    ForwardedDelete,
    ListQueues,
    PauseChannel,
    PauseQueue,
    PurgeBacklog,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    QueueTally,
    Stats,
    TallyQueues,
)
from penstock.core.errors import (
    ChannelNotFound,
    InvalidConfig,
    InvalidRequest,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    QueueReplaced,
)
from penstock.core.handlers.checks import check_offset
from penstock.core.queues import position
from penstock.core.queues.config import UNCHANGEABLE, QueueConfig, check_name, config_for, dead_letter_name, kind_of
from penstock.core.queues.partition import PARTITION_SHIFT, SHARD_SHIFT
from penstock.core.queues.queue import Queue
from penstock.core.storage import keys

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_COUNTED_MAX = 1_000
"""Queues whose exact counts one command may ask for."""


class Catalog:
    """Makes, changes, describes and deletes queues and channels."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.names: list[str] = []
        """Of all queues, in order, so that a page of them costs what is on it."""
        self._buried: dict[str, set[str]] = {}
        """Dead-letter queue -> the queues whose dead letters go there, but for the one that it is named after."""

    # -- queues come and change --

    def _create_queue(self, command: CreateQueue) -> QueueInfo:
        check_name(command.name, "queue")
        for channel in command.channels:
            check_name(channel, "channel")
        existing = self.broker.queues.get(command.name)
        if existing is None:
            self.broker.quarantine.refuse(command.name)
        is_new = existing is None and command.part is None
        config = config_for(command.name, command.config) if is_new else command.config
        config.check()
        if command.part is not None:
            return self._create_part(command, existing, *command.part)
        if existing is not None:
            if existing.config.is_fifo:  # else it is from a time when a standard queue could have such a name
                config = config_for(command.name, config)
            if existing.config != config:
                different = [
                    name.removesuffix("_ms")
                    for name in config.__struct_fields__
                    if getattr(config, name) != getattr(existing.config, name)
                ]
                raise QueueExists(
                    f"queue {command.name!r} exists with other settings; different: {', '.join(different)}. "
                    "Change the settings of the queue instead of creating it"
                )
            return existing.info()
        self._check_dead_letter(command.name, config)
        return self.add_queue(command.name, config, command.channels).info()

    def _create_part(self, command: CreateQueue, existing: Queue | None, partition: int, queue_id: int) -> QueueInfo:
        """A further partition has the id of the first one, and numbers its messages so that they say where they are."""
        if not 0 < partition < command.config.partitions:
            raise InvalidRequest(
                f"queue {command.name!r} has {command.config.partitions} partitions, and no {partition}"
            )
        if existing is not None and existing.id != queue_id:
            if queue_id < existing.id and existing.id >> SHARD_SHIFT == queue_id >> SHARD_SHIFT:
                # Ids of one shard count up: what belongs to an older queue came too late, and must not replace a newer.
                raise QueueReplaced(
                    f"queue {command.name!r} was created again meanwhile: this partition is not part of it"
                )
            self._delete_queue(DeleteQueue(name=command.name))
            existing = None
        if existing is None:
            existing = self.add_queue(command.name, command.config, command.channels, (partition, queue_id))
        return existing.info()

    def add_queue(
        self, name: str, config: QueueConfig, channels: tuple[str, ...], part: tuple[int, int] | None = None
    ) -> Queue:
        """Create a queue that is not there; with `part`, as this partition of the queue with this id."""
        broker = self.broker
        broker.quarantine.refuse(name)
        if part is None:
            queue = Queue(broker, broker.meta.next_queue, name, config, broker.now_ms)
            broker.meta.next_queue += 1
            broker.save_meta()
        else:
            queue = Queue(broker, part[1], name, config, broker.now_ms)
            queue.next_sequence = part[0] << PARTITION_SHIFT
            queue.touch()
        broker.queues[name] = broker.queues_by_id[queue.id] = queue
        insort(self.names, name)
        self._bury(queue, True)
        queue.save_config()
        broker.events.append(CatalogEvent("queue created", name))
        for channel in channels:
            queue.add_channel(channel, "head", broker.now_ms)
        broker.must_commit = True
        return queue

    def _check_dead_letter(self, name: str, config: QueueConfig) -> None:
        target = config.dead_letter
        if target is None:
            return
        if target == name:
            raise InvalidConfig(f"queue {name!r} cannot be its own dead-letter queue: name another one")
        existing = self.broker.queues.get(target)
        kind = kind_of(target, config.kind if config.is_fifo else None) if existing is None else existing.config.kind
        if kind != config.kind:
            raise InvalidConfig(
                f"the dead-letter queue {target!r} of the {config.kind} queue {name!r} is a {kind} queue: "
                "both must be of the same kind"
            )

    def _change_queue(self, command: ChangeQueue) -> QueueInfo:
        broker = self.broker
        queue = broker.find_queue(command.name, command.of_queue)
        for name in UNCHANGEABLE & set(command.changes):
            if command.changes[name] != getattr(queue.config, name):
                raise InvalidConfig(f"{name} of queue {queue.name!r} cannot be changed: create another queue")
        if command.expected is not None and queue.config.changed(command.expected) != queue.config:
            raise QueueChanged(f"queue {queue.name!r} was changed meanwhile: look at its settings, and change it again")
        config = queue.config.changed(command.changes)
        if config.dead_letter != queue.config.dead_letter:
            self._check_dead_letter(queue.name, config)
        queue.seal()
        self._bury(queue, False)
        queue.configure(config)
        self._bury(queue, True)
        queue.changed_ms = broker.now_ms
        queue.save_config()
        queue.restart_retention()
        queue.watch_consumers(broker.now_ms)
        for channel in queue.channels.values():
            broker.woke(channel)
        broker.must_commit = True
        return queue.info()

    # -- queues go --

    def _delete_queue(self, command: DeleteQueue) -> None:
        broker = self.broker
        queue = broker.find_queue(command.name, command.of_queue)
        if command.unless_channels and queue.channels:
            return
        queue.seal()
        for channel in list(queue.channels.values()):
            broker.receiving.dismiss(channel, QueueNotFound(f"queue {queue.name!r} was deleted"))
            channel.purge(queue.next_sequence)
            channel.count()
            broker.dirty_channels.pop(channel, None)
        queue.count_out()
        broker.staging.drop_of(queue)
        broker.write_buffer.drop_chunks(queue.id)
        for kind in keys.OF_A_QUEUE:
            broker.write_buffer.changes.drop(keys.record(kind, queue.id))
        broker.dirty_queues.pop(queue, None)
        broker.drafts.pop(queue, None)
        broker.events += [CatalogEvent("channel deleted", queue.name, name) for name in queue.channels]
        broker.events.append(CatalogEvent("queue deleted", queue.name))
        del broker.queues[queue.name], broker.queues_by_id[queue.id]
        del self.names[bisect_left(self.names, queue.name)]
        self._bury(queue, False)
        broker.redrives.queue_deleted(queue.name)
        self._delete_parts(queue)
        broker.must_commit = True

    def _delete_parts(self, queue: Queue) -> None:
        """The first partition takes the others along, in the same commit: none is left behind, whoever crashes."""
        meta = self.broker.meta
        if queue.id >> SHARD_SHIFT == meta.shard:
            for partition in range(1, min(queue.config.partitions, meta.shards)):
                self.broker.outbox.add((meta.shard + partition) % meta.shards, ForwardedDelete(queue.name, queue.id))

    def delete_part(self, name: str, queue_id: int) -> None:
        """The queue with this id was deleted: so is its partition here, if that is still there."""
        queue = self.broker.queues.get(name)
        if queue is not None and queue.id == queue_id:
            self._delete_queue(DeleteQueue(name=name))

    # -- looking, pausing, emptying --

    def _purge_queue(self, command: PurgeQueue) -> int:
        self.broker.must_commit = True
        return self.broker.find_queue(command.name, command.of_queue).purge()

    def _purge_backlog(self, command: PurgeBacklog) -> int:
        self.broker.must_commit = True
        return self.broker.find_queue(command.queue, command.of_queue).purge_backlog()

    def _pause_queue(self, command: PauseQueue) -> None:
        self.broker.find_queue(command.queue, command.of_queue).pause(command.paused, self.broker.now_ms)
        self.broker.must_commit = True

    def _describe_queue(self, command: DescribeQueue) -> QueueInfo:
        if command.queue_id:
            queue = self.broker.queues_by_id.get(command.queue_id)
            if queue is None:
                self.broker.quarantine.refuse_id(command.queue_id)
                raise QueueNotFound(f"there is no queue with the id {command.queue_id}")
            return queue.info()
        return self.broker.find_queue(command.name).info()

    def _list_queues(self, command: ListQueues) -> list[str]:
        shard, queues = self.broker.meta.shard, self.broker.queues
        if command.dead_letters_to is None:
            names = self._names_after(command.after, command.prefix)
        else:
            buried = self._buried.get(command.dead_letters_to, set()) | {_named_after(command.dead_letters_to)}
            names = (
                name
                for name in sorted(buried)
                if name > command.after
                and name.startswith(command.prefix)
                and self._buries_in(name) == command.dead_letters_to
            )
        ids = ((name, queues[name].id) for name in names)
        if command.dead_letters_to is None:  # those in quarantine are listed, too
            ids = merge(ids, self._in_quarantine(command.after, command.prefix))
        own = (name for name, queue_id in ids if queue_id >> SHARD_SHIFT == shard)
        return list(islice(own, max(0, command.limit)))  # further partitions of others' queues are not named twice

    def _in_quarantine(self, after: str, prefix: str) -> list[tuple[str, int]]:
        """Names and ids of queues that are damaged, in order."""
        return sorted(each for each in self.broker.quarantine.named if each[0] > after and each[0].startswith(prefix))

    def _names_after(self, after: str, prefix: str = "") -> Iterator[str]:
        """Names of queues, in order, that come after one and start with a prefix."""
        names = self.names
        for at in range(max(bisect_right(names, after), bisect_left(names, prefix)), len(names)):
            name = names[at]
            if not name.startswith(prefix):
                return
            yield name

    def has_dead_letters_of_others(self, name: str) -> bool:
        """Whether a queue of this shard has its dead letters in the one of this name."""
        return name in self._buried or self._buries_in(_named_after(name)) == name

    def _buries_in(self, name: str) -> str | None:
        """Where the dead letters of a queue go; None if there can be none, or no such queue."""
        queue = self.broker.queues.get(name)
        if queue is None or not queue.config.receives_max:
            return None
        return queue.config.dead_letter or dead_letter_name(name)

    def _bury(self, queue: Queue, there: bool) -> None:
        """A queue has come, or gets another configuration; not `there`: what was known of it is over."""
        target = queue.config.dead_letter or dead_letter_name(queue.name)
        if _named_after(target) == queue.name:
            return
        if there:
            self._buried.setdefault(target, set()).add(queue.name)
        elif target in self._buried:
            self._buried[target].discard(queue.name)
            if not self._buried[target]:
                del self._buried[target]

    def restored(self) -> None:
        """All queues are back."""
        self.names = sorted(self.broker.queues)
        for queue in self.broker.queues.values():
            self._bury(queue, True)

    def _count_queues(self, command: CountQueues) -> list[Stats]:
        if not 1 <= command.limit <= _COUNTED_MAX:
            raise InvalidRequest(f"limit is {command.limit}: it must be from 1 to {_COUNTED_MAX}")
        names = self._list_queues(ListQueues(prefix=command.prefix, after=command.after, limit=command.limit))
        return [self.broker.queues[name].stats() for name in names if name in self.broker.queues]

    def _tally_queues(self, command: TallyQueues) -> list[QueueTally]:
        if command.limit < 1:
            raise InvalidRequest(f"limit is {command.limit}: it must be at least 1")
        queues = self.broker.queues
        return [queues[name].tally() for name in islice(self._names_after(command.after), command.limit)]

    def _queue_stats(self, command: QueueStats) -> Stats:
        return self.broker.find_queue(command.name, command.of_queue).stats()

    # -- channels --

    def _create_channel(self, command: CreateChannel) -> int:
        broker = self.broker
        queue = broker.find_queue(command.queue, command.of_queue)
        existing = queue.channels.get(command.channel)
        if existing is not None:
            return existing.id
        check_name(command.channel, "channel")
        if command.start not in ("head", "tail", "first") and not isinstance(command.start, int):
            raise InvalidRequest(
                f"start is {command.start!r}: it must be 'head', 'tail', 'first', or a time in milliseconds"
            )
        if command.offsets:
            raise InvalidRequest(f"there are {len(command.offsets)} offsets: queue {queue.name!r} has one partition")
        broker.must_commit = True
        if command.offset is None:
            return queue.add_channel(command.channel, command.start, broker.now_ms).id
        check_offset(queue, command.offset)
        queue.seal()
        first = position.chunk_start(queue, command.offset)
        channel = queue.add_channel(command.channel, command.start, broker.now_ms, first=first)
        position.ack_up_to(channel, command.offset, broker.now_ms)
        channel.acked = 0
        return channel.id

    def _delete_channel(self, command: DeleteChannel) -> None:
        broker = self.broker
        queue = broker.find_queue(command.queue, command.of_queue)
        channel = broker.find_channel(queue, command.channel)
        if command.unless_subscribed and broker.receiving.has_waiters(channel):
            return
        broker.receiving.dismiss(
            channel, ChannelNotFound(f"channel {channel.name!r} of queue {queue.name!r} was deleted")
        )
        queue.seal()
        queue.delete_channel(channel)
        if command.purge_last and not queue.channels and not queue.consumers:
            queue.purge()
        broker.must_commit = True

    def _pause_channel(self, command: PauseChannel) -> None:
        broker = self.broker
        channel = broker.find_channel(broker.find_queue(command.queue, command.of_queue), command.channel)
        channel.paused = command.paused
        channel.touch()
        broker.must_commit = True
        broker.woke(channel)

    def _purge_channel(self, command: PurgeChannel) -> int:
        broker = self.broker
        queue = broker.find_queue(command.queue, command.of_queue)
        channel = broker.find_channel(queue, command.channel)
        queue.seal()
        count = channel.purge(queue.shown_to)
        queue.sweep()
        broker.must_commit = True
        return count


def _named_after(target: str) -> str:
    """The queue that has this one for its dead letters if neither says otherwise, and its name is not very long.

    >>> _named_after("orders.dead"), _named_after("orders.dead.fifo")
    ('orders', 'orders.fifo')
    """
    return f"{target[:-10]}.fifo" if target.endswith(".dead.fifo") else target.removesuffix(".dead")
