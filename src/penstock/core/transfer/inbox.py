"""Doing what other shards want done: the receiving end of their outboxes.

Every outbox has a mark here: the number of its last entry that was done. A batch of entries says after which number it
starts; it is done only if the mark is there, and moves the mark, in one commit. So a batch that comes twice, too late
or out of turn does nothing, and is told where the mark is.

No entry may hold up those behind it, and none may be lost. So a batch is never refused for what is in it:

- Messages that were moved (dead letters, redriven ones) are taken as they are. A FIFO queue takes only those with a
  group.
- Messages of a unit of work are checked as any send is, but for the queue's rate: the unit is committed already.
- What a queue does not take (it is not there and not to be created, the messages are too large for it, or of the wrong
  kind) goes to the queue named `<queue>.refused`, a standard queue, which is created when needed. The messages'
  history says why; a redrive of that queue tries them again. If that one is in quarantine, too, there is another.
- An ack that comes too late, because the lease is over and somebody else was handed the message, is counted.

Messages for a partition of a queue that was deleted and made again meanwhile are sent on, once: to the first partition
of the queue that has its name now, which knows how many there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.core.commands import (
    MAIN,
    Failure,
    ForwardedAcks,
    ForwardedDelete,
    ForwardedMessages,
    OutboxEntry,
    Send,
    Taken,
    TakeOutbox,
)
from penstock.core.errors import InvalidRequest, PenstockError, QueueNotFound, QueueReplaced, StoreError
from penstock.core.queues.config import MESSAGE_BYTES_CEILING, NAME_LENGTH_MAX, QueueConfig
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX, Messages
from penstock.core.queues.origin import Origin
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk, PackedBodies, Section

if TYPE_CHECKING:
    from penstock.core.broker import Broker

REFUSED = ".refused"
_SOURCE_LENGTH_MAX = 64


def refused_name(queue: str, mark: str = "") -> str:
    """The name of the queue for what a queue did not take from another shard. `mark` is that of a quarantine.

    >>> refused_name("orders"), refused_name("orders", ".beside-7")
    ('orders.refused', 'orders.beside-7.refused')
    """
    ending = mark + REFUSED
    if len(queue) + len(ending) > NAME_LENGTH_MAX:
        digest = hashlib.sha256(queue.encode()).hexdigest()[:12]
        queue = f"{queue[: NAME_LENGTH_MAX - len(ending) - 20]}.{digest}"
    return queue + ending


def take(broker: Broker, command: TakeOutbox) -> Taken:
    """Do a batch of entries, if it is next."""
    if not 1 <= len(command.source) <= _SOURCE_LENGTH_MAX or command.up_to <= command.after:
        raise InvalidRequest(f"no entries of outbox {command.source[:64]!r} are after {command.after}")
    # Whatever is told must be in the store: the other side forgets its entries for it.
    broker.must_commit = True
    last = broker.marks.last_of_outbox(command.source)
    if command.after != last:
        return Taken(last, False)
    arrived = [(entry, _messages(entry)) for entry in command.entries]  # a damaged one raises, before anything is done
    taken = Taken(command.up_to, True)
    for entry, messages in arrived:
        if isinstance(entry.effect, ForwardedAcks):
            taken.stale += sum(broker.work.ack_late(ack) for ack in entry.effect.acks)
        elif isinstance(entry.effect, ForwardedDelete):
            broker.catalog.delete_part(entry.effect.queue, entry.effect.queue_id)
        elif messages is not None:
            sequence = entry.number * CHUNK_MESSAGES_MAX
            taken.refused += _take_messages(broker, _Letter(command.source, sequence, entry.effect, messages))
    broker.marks.set_outbox(command.source, command.up_to, broker.now_ms, broker.write_buffer.changes)
    return taken


class _Letter:
    """Messages that have arrived."""

    __slots__ = ("effect", "messages", "sequence", "size", "source")

    def __init__(self, source: str, sequence: int, effect: ForwardedMessages, messages: Messages) -> None:
        self.source = source
        self.sequence = sequence
        """The first message's number among all that were ever in that outbox for this shard."""
        self.effect = effect
        self.messages = messages
        self.size = messages.size

    def one_by_one(self) -> Iterator[_Letter]:
        """The messages, each for itself."""
        for index in range(len(self.messages)):
            yield _Letter(self.source, self.sequence + index, self.effect, self.messages.only([index]))


def _messages(entry: OutboxEntry) -> Messages | None:
    """The messages of an entry, with their bodies in one piece."""
    if not entry.chunk:
        return None
    chunk = Chunk.decode(entry.chunk)
    attributes, groups, dedup_ids, origins = (
        None if (column := chunk.column(section)) is None else column.values()
        for section in (Section.ATTRIBUTES, Section.GROUPS, Section.DEDUP_IDS, Section.ORIGINS)
    )
    bodies = PackedBodies(bytes(chunk.bodies), chunk.offsets)
    return Messages(bodies, attributes=attributes, groups=groups, dedup_ids=dedup_ids, origins=origins)


def _take_messages(broker: Broker, letter: _Letter) -> int:
    """Put messages where they belong. Returns how many were refused there."""
    try:
        if letter.effect.moved:
            _move_in(broker, letter.effect, letter.messages, letter.size)
        else:
            _send_in(broker, letter.effect, letter.messages)
        return 0
    except QueueReplaced as error:
        return _send_on(broker, letter, str(error))
    except StoreError:  # nothing is wrong with the messages
        raise
    except PenstockError as error:
        if len(letter.messages) > 1:  # some of them may be taken
            return sum(_take_messages(broker, each) for each in letter.one_by_one())
        _put_aside(broker, letter, str(error))
        return 1


def _send_in(broker: Broker, effect: ForwardedMessages, messages: Messages) -> None:
    queue = broker.queues.get(effect.queue)
    if queue is None or effect.of_queue:
        broker.sending.send_forwarded(_send(effect, messages))
        return
    own, away = broker.moves.divide(queue, messages, effect)
    if len(own):  # first, because it may be refused
        broker.sending.send_forwarded(_send(effect, own))
    broker.moves.hand_on(queue, away, effect)


def _send_on(broker: Broker, letter: _Letter, reason: str) -> int:
    """Messages whose queue is not there any more go to the first partition of the one that has its name."""
    if letter.effect.sent_on:
        for each in letter.one_by_one():
            _put_aside(broker, each, reason)
        return len(letter.messages)
    effect = msgspec.structs.replace(letter.effect, of_queue=0, sent_on=True)
    shard = broker.home_of(effect.queue)
    if shard == broker.meta.shard:
        return _take_messages(broker, _Letter(letter.source, letter.sequence, effect, letter.messages))
    broker.outbox.add_messages(shard, effect, letter.messages, letter.size)
    return 0


def _send(effect: ForwardedMessages, messages: Messages) -> Send:
    return Send(
        queue=effect.queue,
        bodies=messages.bodies,
        attributes=messages.attributes,
        groups=_decoded(messages.groups),
        dedup_ids=_decoded(messages.dedup_ids),
        origins=messages.origins,
        priority=effect.priority,
        due_ms=effect.due_ms,
        create=effect.create,
        channels=effect.channels,
        config=effect.config,
        of_queue=effect.of_queue,
    )


def _decoded(values: list[bytes | None] | None) -> list[str | None] | None:
    return None if values is None else [None if value is None else value.decode() for value in values]


def _move_in(broker: Broker, effect: ForwardedMessages, messages: Messages, size: int) -> None:
    queue = broker.queues.get(effect.queue)
    if queue is None:
        broker.quarantine.refuse(effect.queue)
    if effect.of_queue and (queue is None or queue.id != effect.of_queue):
        raise QueueReplaced(f"queue {effect.queue!r} is not the one that the messages were for")
    if queue is None:
        if not effect.create:
            raise QueueNotFound(f"there is no queue {effect.queue!r}: create it first")
        queue = broker.catalog.add_queue(effect.queue, effect.config, effect.channels)
    if queue.is_fifo and (messages.groups is None or not all(messages.groups)):
        _need_groups(effect.queue, messages)
    broker.moves.move_in(queue, messages, size, effect)


def _need_groups(name: str, messages: Messages) -> None:
    """Nothing that was refused once may be refused again; what comes from elsewhere may."""
    if not name.endswith(REFUSED):
        raise InvalidRequest(
            f"queue {name!r} is FIFO, and the messages come from a queue that is not: they have no group"
        )
    messages.groups = [group or b"refused" for group in messages.groups or [None] * len(messages)]


def _put_aside(broker: Broker, letter: _Letter, reason: str) -> None:
    """A message that its queue did not take goes to the one for such, in whatever shard that is."""
    messages = letter.messages
    messages.origins = [_origin(broker, letter, reason)]
    config = broker.moves.config_for_moved(QueueConfig(message_bytes_max=MESSAGE_BYTES_CEILING))
    name = broker.moves.able_to_take(refused_name(letter.effect.queue))
    effect = ForwardedMessages(name, True, due_ms=0, config=config)
    shard = broker.shard_of(effect.queue)
    if shard == broker.meta.shard:
        _move_in(broker, effect, messages, letter.size)
    else:
        broker.outbox.add_messages(shard, effect, messages, letter.size)


def _origin(broker: Broker, letter: _Letter, reason: str) -> bytes:
    """A message's history with the reason. One that was in no queue so far gets its identity here."""
    now_ms = broker.now_ms
    data = None if letter.messages.origins is None else letter.messages.origins[0]
    if data is not None:
        earlier = Origin.decode(data)
        failure = Failure(earlier.sequence, earlier.sequence, earlier.attempts, now_ms, now_ms, "", reason)
        return msgspec.structs.replace(earlier, failures=[*earlier.failures, failure]).encode()
    way = hashlib.blake2b(f"{letter.source} {broker.meta.shard}".encode(), digest_size=7).digest()
    failure = Failure(0, 0, 0, now_ms, now_ms, "", reason)
    identity = broker.message_id(keys.OUTBOX_QUEUES | int.from_bytes(way, "big"), letter.sequence)
    return Origin(identity, letter.effect.queue, MAIN, 0, now_ms, 0, letter.effect.priority, [failure]).encode()
