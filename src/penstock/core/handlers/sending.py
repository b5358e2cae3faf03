"""Sending: what can be wrong with a send, duplicates, and the way into a queue."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.commands import Send, Sent
from penstock.core.errors import (
    BatchTooLarge,
    InvalidRequest,
    MessageTooLarge,
    QueueNotFound,
    QueueReplaced,
    Throttled,
)
from penstock.core.handlers.checks import check_queue_id, check_text
from penstock.core.queues.config import (
    BATCH_BYTES_MAX,
    DELAY_MS_MAX,
    MESSAGE_BYTES_CEILING,
    PRIORITY_MAX,
    QueueConfig,
    check_name,
    config_for,
    out_of_range,
)
from penstock.core.queues.draft import Messages
from penstock.core.queues.queue import NORMAL_PLACES, Queue
from penstock.core.storage.chunk import PackedBodies

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_fields_of: Final = msgspec.structs.astuple
_BARE_MAX: Final = 16
"""Up to so many bodies are looked at one by one."""
_BARE_FROM: Final = Send.__struct_fields__.index("attributes")
_BARE_TO: Final = Send.__struct_fields__.index("due_ms") + 1
_BARE: Final = _fields_of(Send(queue="", bodies=[]))[_BARE_FROM:_BARE_TO]
"""What a send says besides queue and bodies when it says nothing."""

_ANY_QUEUE = QueueConfig(message_bytes_max=MESSAGE_BYTES_CEILING)
"""What is not right for this one is right for no queue: all that is known of a send to another shard."""


class Sending:
    """Checks what is sent, and appends it to its queue."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def send(self, command: Send, forwarded: bool = False) -> Sent:
        """Append messages to a queue, which is created if need be."""
        queue = self.broker.queues.get(command.queue)
        if queue is None:
            self.broker.quarantine.refuse(command.queue)
        if command.of_queue:
            check_queue_id(queue, command.queue, command.of_queue)
        if queue is None and not command.create:
            check_name(command.queue, "queue")
            raise QueueNotFound(f"there is no queue {command.queue!r}: create it first")
        if queue is not None:
            sent = self._send_bare(queue, command)
            if sent is not None:
                return sent
            if not forwarded:
                self.check_whole(queue, command)
        config = config_for(command.queue, command.config) if queue is None else queue.config
        size = self.check(command, config)
        if queue is None:
            queue = self.broker.catalog.add_queue(command.queue, config, command.channels)
        if config.throughput_per_second is not None and not forwarded:
            self.check_rate(queue, command.groups or [], count_them=True)
        return self._append(queue, command, size)

    def _send_bare(self, queue: Queue, command: Send) -> Sent | None:
        """A send of bodies and nothing else, to a queue that takes them as they are: most are. None if it is not one.

        It does what `check` and `_append` do, without asking a dozen times for what is not there.
        """
        bodies: Any = command.bodies
        if type(bodies) is not list or not 0 < len(bodies) <= _BARE_MAX or not queue.takes_bare:
            return None
        said: tuple[Any, ...] = _fields_of(command)
        if said[_BARE_FROM:_BARE_TO] != _BARE:
            return None
        size = 0
        for body in bodies:
            if type(body) is not bytes:
                return None
            size += len(body)
        if size > queue.bare_bytes_max:
            return None
        now_ms = self.broker.now_ms
        first = queue.append(Messages(bodies), NORMAL_PLACES[0], size, now_ms)
        return Sent(queue.id, first, len(bodies))

    def check_whole(self, queue: Queue, command: Send) -> None:
        """Every group has its partition: who did not know that there are several has to look at the queue again."""
        is_split = min(queue.config.partitions, self.broker.meta.shards) > 1
        if is_split and command.groups is not None and not command.of_queue:
            raise QueueReplaced(
                f"queue {queue.name!r} has several partitions, which the sender did not know: nothing was done"
            )

    def send_forwarded(self, command: Send) -> Sent:
        """Do a send that was committed in another shard: the queue's rate cannot keep it out any more."""
        return self.send(command, forwarded=True)

    def check(self, command: Send, config: QueueConfig) -> tuple[int, bytes | None]:
        """Raise what is wrong with a send, before anything has happened. Returns its size, and the bodies joined."""
        if command.queue not in self.broker.queues:
            check_name(command.queue, "queue")
            for channel in command.channels:
                check_name(channel, "channel")
        return self.check_messages(command, config, self.broker.now_ms)

    def check_elsewhere(self, command: Send) -> int:
        """Raise what no queue of another shard would take. Returns its size."""
        return self.check(command, _ANY_QUEUE)[0]

    @classmethod
    def check_messages(cls, command: Send, config: QueueConfig, now_ms: int) -> tuple[int, bytes | None]:
        """Raise what is wrong with the messages of a send, whatever queues there are."""
        count = len(command.bodies)
        if not count:
            raise InvalidRequest("nothing to send: give at least one message")
        for name in ("attributes", "groups", "dedup_ids", "origins"):
            values = getattr(command, name)
            if values is not None and len(values) != count:
                raise InvalidRequest(f"{len(values)} {name} were given for {count} messages: give one for each")
        if not 0 <= command.priority <= PRIORITY_MAX:
            raise InvalidRequest(f"priority is {command.priority}: it must be from 0 to {PRIORITY_MAX}")
        if command.delay_ms is not None and not 0 <= command.delay_ms <= DELAY_MS_MAX:
            raise InvalidRequest(out_of_range("delay_ms", command.delay_ms, 0, DELAY_MS_MAX))
        if command.due_ms is not None and command.due_ms > now_ms + DELAY_MS_MAX:
            raise InvalidRequest(f"due is {command.due_ms / 1_000:.15g}: it must be within a hundred years")
        if config.is_fifo:
            cls._check_fifo(command, config)
        if command.groups or command.dedup_ids:
            for what, texts in (("group", command.groups), ("dedup id", command.dedup_ids)):
                for text in texts or ():
                    if text is not None:
                        check_text(text, what)
        return cls._check_sizes(command, config)

    @staticmethod
    def _check_fifo(command: Send, config: QueueConfig) -> None:
        if command.priority:
            raise InvalidRequest(f"queue {command.queue!r} is FIFO: its messages have no priority")
        needed = []
        if command.groups is None or not all(command.groups):
            needed.append("a group")
        if not config.content_dedup and (command.dedup_ids is None or not all(command.dedup_ids)):
            needed.append("a dedup id (unless the queue has content_dedup)")
        if needed:
            raise InvalidRequest(f"queue {command.queue!r} is FIFO: every message needs {' and '.join(needed)}")

    @staticmethod
    def _check_sizes(command: Send, config: QueueConfig) -> tuple[int, bytes | None]:
        bodies, attributes = command.bodies, command.attributes
        if isinstance(bodies, PackedBodies):
            joined, size = bodies.data, len(bodies.data)
            if attributes is None and size <= BATCH_BYTES_MAX and bodies.longest() <= config.message_bytes_max:
                return size, joined
        elif len(bodies) == 1:
            joined, size = bodies[0], len(bodies[0])
        else:
            joined = b"".join(bodies)
            size = len(joined)
        if attributes is not None:
            size += sum(len(value) for value in attributes if value is not None)
        limit = config.message_bytes_max
        if size > limit:
            if size > BATCH_BYTES_MAX and len(bodies) > 1:
                raise BatchTooLarge(f"{size} bytes are too many for one call: send at most {BATCH_BYTES_MAX} at a time")
            for index, body in enumerate(bodies):
                length = len(body) + len((attributes[index] if attributes else None) or b"")
                if length > limit:
                    raise MessageTooLarge(
                        f"message {index} has {length} bytes with its attributes, and queue {command.queue!r} takes "
                        f"{limit}: send a reference to it instead, or raise message_bytes_max"
                    )
        return size, joined

    def _append(self, queue: Queue, command: Send, checked: tuple[int, bytes | None]) -> Sent:
        size, joined = checked
        config, now_ms = queue.config, self.broker.now_ms
        delay_ms = config.delay_ms if command.delay_ms is None else command.delay_ms
        due_ms = command.due_ms if command.due_ms is not None else now_ms + delay_ms
        place = queue.place(command.priority, due_ms, now_ms)
        if command.groups is None and command.dedup_ids is None and due_ms <= now_ms and not config.is_fifo:
            plain = Messages(command.bodies, attributes=command.attributes, origins=command.origins, joined=joined)
            return Sent(queue.id, queue.append(plain, place, size, now_ms), len(plain.bodies))
        messages = Messages(
            command.bodies,
            attributes=command.attributes,
            groups=None
            if command.groups is None
            else [None if each is None else each.encode() for each in command.groups],
            dedup_ids=None
            if command.dedup_ids is None
            else [None if each is None else each.encode() for each in command.dedup_ids],
            origins=command.origins,
            due_ms=[due_ms] * len(command.bodies) if due_ms > now_ms else None,
            joined=joined,
        )
        if config.is_fifo or command.dedup_ids is not None:
            return self._append_once(queue, command, messages, place)
        first = queue.append(messages, place, size, now_ms)
        return Sent(queue.id, first, len(messages))

    def check_rate(self, queue: Queue, groups: list[str | None], *, count_them: bool) -> None:
        """`Throttled` if a queue takes no more messages of these groups now."""
        over = queue.throttled(groups, self.broker.now_ms, count_them=count_them)
        if over is not None:
            limit = queue.config.throughput_per_second
            raise Throttled(f"{over} takes {limit} messages a second: try again later")

    def _append_once(self, queue: Queue, command: Send, messages: Messages, place: Any) -> Sent:
        """Append what is not a duplicate."""
        dedup_keys = self._dedup_keys(queue, command, messages)
        if queue.is_fifo:
            messages.dedup_ids = [None if key is None else key[1].encode() for key in dedup_keys]
        sequences: list[int] = []
        duplicates: list[int] = []
        fresh: list[int] = []
        next_sequence = queue.next_sequence
        for index, key in enumerate(dedup_keys):
            known = None if key is None else queue.dedup.find(key, self.broker.now_ms)
            if known is not None:
                sequences.append(known)
                duplicates.append(index)
                continue
            if key is not None:
                queue.dedup.remember(key, next_sequence, self.broker.now_ms)
            sequences.append(next_sequence)
            fresh.append(index)
            next_sequence += 1
        queue.watch_dedup()
        queue.touch()
        self.broker.must_commit = True
        if fresh:
            kept = messages if len(fresh) == len(messages) else messages.only(fresh)
            size = sum(map(len, kept.bodies)) + sum(len(value or b"") for value in kept.attributes or ())
            first = queue.append(kept, place, size, self.broker.now_ms)
            assert first + len(fresh) == next_sequence
        return Sent(queue.id, sequences[0], len(messages), sequences, duplicates)

    @staticmethod
    def _dedup_keys(queue: Queue, command: Send, messages: Messages) -> list[tuple[str | None, str] | None]:
        by_group = queue.config.dedup_scope == "group"
        groups = command.groups or [None] * len(messages)
        found: list[tuple[str | None, str] | None] = []
        for index, group in enumerate(groups):
            name = None if command.dedup_ids is None else command.dedup_ids[index]
            if name is None and queue.config.content_dedup:
                name = hashlib.sha256(messages.bodies[index]).hexdigest()
            found.append(None if name is None else (group if by_group else None, name))
        return found
