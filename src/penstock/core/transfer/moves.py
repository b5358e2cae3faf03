"""Messages that go on in another queue: dead letters, redriven ones, and those that another shard hands on.

The other queue may be in another shard, or have partitions there: then the messages go by the outbox.

Redrive: moving messages of a (dead-letter) queue back to where they came from, or elsewhere.

A redrive is a task that works in small steps, each in one commit with what it moves and how far it is; so it keeps to
its rate, can be watched and cancelled, and goes on after a restart without losing or doubling anything.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import MAIN, CancelRedrive, ForwardedMessages, ListRedrives, RedriveTask, Seen, StartRedrive
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.states import State
from penstock.core.delivery.window import Entry
from penstock.core.errors import ChunkDamaged, InvalidRequest, PenstockError, StoreError, TaskNotFound
from penstock.core.handlers.checks import clean
from penstock.core.queues.config import DAY_MS, QueueConfig, check_name, dead_letter_name, kind_of
from penstock.core.queues.draft import Messages
from penstock.core.queues.origin import Origin, error_group, failures_of
from penstock.core.queues.partition import partition_of
from penstock.core.queues.position import offset_after
from penstock.core.queues.queue import Queue
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import Kind
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


STEP_MS = 50
BURST_MS = 1_000
"""How much of its rate a redrive may make up for at once."""
_STEP_MESSAGES = 200
"""Each is moved by itself, which takes about 0.1 ms: others want their turn."""
_STEP_BYTES = 4 * 1024 * 1024
_LOOK_MESSAGES = 100


class Redrives:
    """Starts, cancels and lists redrives, and moves their messages."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _start_redrive(self, command: StartRedrive) -> RedriveTask:
        broker = self.broker
        queue = broker.find_queue(command.queue, command.of_queue)
        if command.target is not None:
            check_name(command.target, "queue")
            if command.target == command.queue:
                raise InvalidRequest(f"queue {command.queue!r} cannot be redriven to itself: name another target")
            if command.target not in broker.queues and kind_of(command.target) == "fifo" and not queue.is_fifo:
                raise InvalidRequest(
                    f"queue {command.target!r} is FIFO by its name, and the messages of {queue.name!r} have no order: "
                    "name a target that does not end with .fifo"
                )
        if command.per_second is not None and command.per_second < 1:
            raise InvalidRequest(f"per_second is {command.per_second}: it must be at least 1")
        if command.error is not None and clean(command.error) != command.error:
            raise InvalidRequest(f"an error to look for must be valid text; {command.error[:50]!r} is not")
        if any(task.queue == queue.name and task.status == "running" for task in broker.tasks.values()):
            raise InvalidRequest(f"a redrive of queue {queue.name!r} is running: cancel it, or wait for it, first")
        if command.discard and command.target is not None:
            raise InvalidRequest("give discard or a target, not both")
        if command.target is None and not command.discard:
            self._check_has_dead_letters(queue)
        channel = queue.channels.get(MAIN) if command.check_only else broker.receiving.channel_to_receive(queue, MAIN)
        task = RedriveTask(
            task=0 if command.check_only else broker.meta.next_task,
            queue=queue.name,
            target=command.target,
            status="dry_run" if command.check_only else "running",
            moved=0,
            skipped=0,
            to_move=(0 if channel is None else channel.ready) if command.sequences is None else len(command.sequences),
            started_ms=broker.now_ms,
            sequences=command.sequences,
            contains=command.contains,
            match_error=command.error,
            per_second=command.per_second,
            end=queue.next_sequence if command.until_ms is None else queue.first_from(command.until_ms + 1),
            paced_ms=broker.now_ms - STEP_MS,
            match_group=command.group,
            discard=command.discard,
            origins=command.origins,
        )
        if command.check_only:
            return task
        broker.meta.next_task += 1
        broker.save_meta()
        broker.tasks[task.task] = task
        self._save(task)
        broker.schedule(broker.now_ms, "redrive", task)
        broker.must_commit = True
        return msgspec.structs.replace(task)

    def _check_has_dead_letters(self, queue: Queue) -> None:
        """Without a target, messages go back to where they failed: those of other queues came from nowhere.

        Queues of other shards may have their dead letters here. So with several shards an empty queue passes, and a
        queue of several partitions.
        """
        broker = self.broker
        if broker.catalog.has_dead_letters_of_others(queue.name):
            return
        try:
            seen = queue.browse(queue.channels.get(MAIN), -1, _LOOK_MESSAGES, (State.READY,), None)
        except ChunkDamaged:
            return
        if any(each.chunk.origin(each.index) is not None for each in seen):
            return
        if broker.meta.shards > 1 and (not seen or queue.config.partitions > 1):
            return
        own = queue.config.dead_letter or dead_letter_name(queue.name)
        where = f"Those of {queue.name!r} are in {own!r}." if own in broker.queues else f"{queue.name!r} has none."
        raise InvalidRequest(
            f"queue {queue.name!r} is not a dead-letter queue: no queue has its dead letters there. {where} "
            "With a target, messages of any queue can be moved."
        )

    def _cancel_redrive(self, command: CancelRedrive) -> RedriveTask:
        task = self.broker.tasks.get(command.task)
        if task is None:
            raise TaskNotFound(f"there is no redrive {command.task}")
        if task.status == "running":
            task.status = "cancelled"
            self._save(task)
            self.broker.must_commit = True
        return msgspec.structs.replace(task)

    def _list_redrives(self, command: ListRedrives) -> list[RedriveTask]:
        found = [task for task in self.broker.tasks.values() if command.queue in (None, task.queue)]
        return [msgspec.structs.replace(task) for task in sorted(found, key=lambda task: -task.task)]

    def step(self, task: RedriveTask, _detail: Any, _time_ms: int) -> None:
        """Move the next few messages of a task: its time has come."""
        if task.status != "running":
            return
        now_ms = self.broker.now_ms
        queue = self.broker.queues.get(task.queue)
        if queue is None or MAIN not in queue.channels:
            is_damaged = queue is None and self.broker.quarantine.might_be(task.queue)
            _end(task, "failed", f"queue {task.queue!r} is {'in quarantine' if is_damaged else 'gone'}")
        else:
            try:
                self._move_some(task, queue, queue.channels[MAIN], now_ms)
            except StoreError:  # a read failed, perhaps in the middle of a message's move
                raise
            except PenstockError as error:
                _end(task, "failed", str(error))
        self._save(task)
        if task.status == "running":
            has_rest = task.per_second is None or _allowance(task, now_ms) >= _STEP_MESSAGES
            self.broker.schedule(now_ms + (1 if has_rest else STEP_MS), "redrive", task)

    def queue_deleted(self, name: str) -> None:
        """A queue is gone: so are its redrives, and a new queue of that name has nothing to do with them."""
        for task in self.broker.tasks.values():
            if task.queue == name and task.status == "running":
                _end(task, "failed", f"queue {name!r} was deleted")
                self._save(task)

    def restore(self, number: int, data: bytes) -> None:
        """Take a task back from its record."""
        task = self.broker.tasks[number] = msgspec.msgpack.decode(data, type=RedriveTask)
        if task.paced_ms > self.broker.now_ms:  # the clock was ahead
            task.paced_ms = self.broker.now_ms
            self._save(task)
        if task.status == "running":
            self.broker.schedule(self.broker.now_ms, "redrive", task)

    def _save(self, task: RedriveTask) -> None:
        self.broker.write_buffer.changes.put_record(keys.record(Kind.TASK, task.task), msgspec.msgpack.encode(task))

    def _move_some(self, task: RedriveTask, queue: Queue, channel: Channel, now_ms: int) -> None:
        limit = _allowance(task, now_ms)
        if limit <= 0:
            return
        cut = offset_after(queue, task.cursor + 1, _STEP_BYTES)  # however few fit, others get their turn
        try:
            found = queue.browse(channel, task.cursor, limit, (State.READY,), task.contains, cut)
        except ChunkDamaged:
            return  # quarantined and reported: the next step goes on behind it
        selected = None if task.sequences is None else set(task.sequences)
        moved_before = task.moved
        for seen in found:
            if seen.sequence >= task.end:
                _end(task, "done")
                break
            task.cursor = seen.sequence
            wanted = (selected is None or seen.sequence in selected) and is_wanted(
                seen, task.match_error, task.match_group, task.origins
            )
            if wanted and self._move(task, queue, channel, seen, now_ms):
                task.moved += 1
            else:
                task.skipped += 1
        if task.per_second is not None:
            task.paced_ms += -(-(task.moved - moved_before) * 1_000 // task.per_second)
        if len(found) < limit:
            task.cursor = max(task.cursor, cut - 1)
            if cut >= min(task.end, queue.next_sequence):
                _end(task, "done")

    def _move(self, task: RedriveTask, queue: Queue, channel: Channel, seen: Seen, now_ms: int) -> bool:
        chunk, index = seen.chunk, seen.index
        origin = origin_of(seen)
        target = task.target or (None if origin is None else origin.queue)
        if not task.discard and (target is None or target == queue.name):
            return False
        for lane in list(channel.windows):
            if channel.state_of(seen.sequence, lane)[0] == State.READY and channel.settle_moved(
                seen.sequence, lane, now_ms
            ):
                break
        else:
            return False
        if task.discard:
            return True
        assert target is not None
        if origin is None:
            origin = Origin(
                self.broker.message_id(queue.id, seen.sequence),
                queue.name,
                MAIN,
                seen.sequence,
                chunk.sent_ms,
                seen.attempts,
                0,
                [],
            )
        body, attributes, group = chunk.body(index), chunk.attributes(index), chunk.group(index)
        messages = Messages(
            [body],
            attributes=[attributes],
            groups=[(group or "").encode() or None],
            dedup_ids=[(chunk.dedup_id(index) or "").encode() or None],
            origins=[origin.encode()],
        )
        self.broker.moves.move(target, queue.config, messages, len(body) + len(attributes or b""), origin.priority)
        return True


def _end(task: RedriveTask, status: str, error: str = "") -> None:
    task.status, task.error = status, error


def _allowance(task: RedriveTask, now_ms: int) -> int:
    """How many messages may be moved now. A standstill gives nobody the right to hurry afterwards."""
    if task.per_second is None:
        return _STEP_MESSAGES
    task.paced_ms = max(task.paced_ms, now_ms - BURST_MS)
    return min(_STEP_MESSAGES, (now_ms - task.paced_ms) * task.per_second // 1_000)


def origin_of(seen: Seen) -> Origin | None:
    """Where a message failed, if it did."""
    data = seen.chunk.origin(seen.index)
    return None if data is None else Origin.decode(data)


def is_wanted(seen: Seen, error: str | None, group: str | None, origins: list[str] | None) -> bool:
    """Whether a message has failed with such an error, its last one is of that kind, and it failed in such a queue."""
    if error is None and group is None and origins is None:
        return True
    origin = origin_of(seen)
    if origins is not None and (origin is None or not any(fnmatchcase(origin.queue, each) for each in origins)):
        return False
    if group is not None:
        failures = failures_of(origin, seen.failures, seen.sequence)
        if not failures or error_group(failures[-1].error) != group:
            return False
    return error is None or (origin is not None and any(error in failure.error for failure in origin.failures))
