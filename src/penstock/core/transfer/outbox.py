"""The outbox: what commits of this shard want done in other shards.

How it works. A commit that has an effect in another shard (dead letters, redriven messages, the sends and acks of a
unit of work, the end of a queue with several partitions) writes it down here, as an *entry* for that shard, together
with whatever caused it. The entries for one shard are numbered. Somebody outside (`cluster/ownership/forwarder.py`)
reads them in order, has the other shard do them (`TakeOutbox`, see `inbox`), and says which may be forgotten. The other
shard remembers up to which number it has done them, in the same commit, so each is done once however often it comes.

    entry       record (OUTBOX, target, number)         what is to be done
                chunk  (outbox of the target, number)   the messages, if there are any
    counters    record (OUTBOX_TARGET, target)          first entry that is left, next number

Nothing but the counters is kept in memory. Messages that go to one queue within one step make one entry, as they would
make one chunk; entries are sealed before the step's changes are taken. An entry is in the store before anybody can read
it, since it always makes its step a durable one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import (
    Ack,
    Damage,
    ForwardedAcks,
    ForwardedDelete,
    ForwardedMessages,
    OutboxEntry,
    Send,
    Sent,
)
from penstock.core.errors import ChunkDamaged
from penstock.core.handlers.checks import known_fields
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX, CHUNK_SIZE_MAX, Draft, Messages, Place
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind
from penstock.core.storage.records import OutboxRecord, OutboxTarget, SegmentRecord
from penstock.core.storage.segments import Segment

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_ACK_LENGTH = {"Ack": 1 + len(Ack.__struct_fields__)}

_ENTRIES_MAX = 1_000
"""How many entries one read gets at most."""
_NOWHERE = Place(0)


class Outbox:
    """The entries for every other shard."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.write_buffer = broker.write_buffer
        self.fresh: set[int] = set()
        """The shards for which there are entries that nobody was told of."""
        self._targets: dict[int, OutboxTarget] = {}
        self.drafts: dict[int, tuple[ForwardedMessages, Draft]] = {}
        self._oldest_ms: dict[int, int] = {}
        """When the first entry that is left was made, for each shard that there are any for."""
        self._damaged: set[tuple[int, int]] = set()

    # -- entries come --

    def add_messages(self, target: int, effect: ForwardedMessages, messages: Messages, size: int) -> None:
        """Messages are to go to a queue in another shard."""
        self.broker.must_commit = True
        now_ms = self.broker.now_ms
        fits = len(messages) <= CHUNK_MESSAGES_MAX and (size <= CHUNK_SIZE_MAX or len(messages) == 1)
        for part, part_size in ((messages, size),) if fits else messages.parts():
            known, draft = self.drafts.get(target, (None, None))
            if draft is not None and known == effect and draft.takes(_NOWHERE, now_ms, len(part), part_size):
                draft.add(part, part_size)
            else:
                self._seal(target)
                self.drafts[target] = (effect, Draft(_NOWHERE, 0, now_ms, part, part_size))

    def add_send(self, target: int, send: Send, size: int) -> Sent:
        """A send of a unit of work is to be done in another shard."""
        self.add_messages(target, *forwarded(send, self.broker.now_ms), size)
        return Sent(0, -1, len(send.bodies))

    def publish(self, target: int, stage: int, effects: list[tuple[ForwardedMessages, int]]) -> None:
        """Messages that were staged, a chunk for each of the effects, are to go to another shard."""
        self.broker.must_commit = True
        self._seal(target)
        first = self._targets.get(target, OutboxTarget()).next
        for effect, messages in effects:
            self._write(target, OutboxRecord(self.broker.now_ms, effect, messages), None)
        record = SegmentRecord(stage, len(effects), self.broker.now_ms, len(effects))
        self.write_buffer.segments.add(Segment(keys.OUTBOX_QUEUES | target, 0, first, record))

    def add(self, target: int, effect: ForwardedAcks | ForwardedDelete) -> None:
        """Something is to be done in another shard that is no sending of messages."""
        self.broker.must_commit = True
        self._seal(target)
        self._write(target, OutboxRecord(self.broker.now_ms, effect), None)

    def seal(self) -> None:
        """Make entries of all that has come."""
        for target in list(self.drafts):
            self._seal(target)

    def _seal(self, target: int) -> None:
        effect, draft = self.drafts.pop(target, (None, None))
        if effect is not None and draft is not None:
            self._write(target, OutboxRecord(draft.sent_ms, effect, draft.count), draft.seal())

    def _write(self, target: int, record: OutboxRecord, chunk: Chunk | None) -> None:
        counters = self._targets.setdefault(target, OutboxTarget())
        number = counters.next
        counters.next += 1
        self._save(target)
        self._oldest_ms.setdefault(target, record.made_ms)
        changes = self.write_buffer.changes
        changes.put_record(keys.outbox_record(target, number), msgspec.msgpack.encode(record))
        if chunk is not None:
            changes.put_chunk(keys.outbox_chunk(target, number), chunk)
        self.fresh.add(target)

    def _save(self, target: int) -> None:
        data = msgspec.msgpack.encode(self._targets[target])
        self.write_buffer.changes.put_record(keys.record(Kind.OUTBOX_TARGET, target), data)

    # -- entries go --

    def read(self, target: int, after: int, limit_bytes: int) -> list[OutboxEntry]:
        """Entries for a shard after a number, in order."""
        self._seal(target)
        counters = self._targets.get(target, OutboxTarget())
        first = max(after + 1, counters.first)
        entries: list[OutboxEntry] = []
        size = 0
        for number in range(first, min(counters.next, first + _ENTRIES_MAX)):
            entry, length = self._read(target, number)
            if entries and size + length > limit_bytes:
                break
            entries.append(entry)
            size += length
        return entries

    def _read(self, target: int, number: int) -> tuple[OutboxEntry, int]:
        record, length = self._read_record(target, number)
        entry = OutboxEntry(number, record.made_ms, record.effect)
        if isinstance(record.effect, ForwardedMessages):
            entry.chunk = self._read_chunk(target, number, record.effect)
        return entry, length + len(entry.chunk)

    def _read_chunk(self, target: int, number: int, effect: ForwardedMessages) -> bytes:
        """The messages; nothing, and a report, if they are damaged: what comes after them must not wait for ever."""
        try:
            stored = self.write_buffer.read_stored(keys.outbox_chunk(target, number))
            Chunk.decode(stored)
            return stored
        except ChunkDamaged as damage:
            if (target, number) not in self._damaged:
                self._damaged.add((target, number))
                reason = f"on their way to shard {target}, in outbox entry {number}: {damage}"
                self.broker.reports.append(Damage(effect.queue, 0, 0, reason))
            return b""

    def forget(self, target: int, up_to: int) -> int:
        """Entries are done. Returns how many are left. A damaged chunk stays in the store."""
        counters = self._targets.get(target)
        if counters is None:
            return 0
        changes = self.write_buffer.changes
        stop = min(up_to + 1, counters.next)
        for number in range(counters.first, stop):
            changes.delete_record(keys.outbox_record(target, number))
            if (target, number) not in self._damaged:
                self.write_buffer.delete(ChunkKey.unpack(keys.outbox_chunk(target, number)))
        if stop > counters.first:
            counters.first = stop
            self._save(target)
            self._look_at_first(target)
        return counters.next - counters.first

    def _look_at_first(self, target: int) -> None:
        counters = self._targets[target]
        self._oldest_ms.pop(target, None)
        if counters.first < counters.next:
            self._oldest_ms[target] = self._read_record(target, counters.first)[0].made_ms

    def _read_record(self, target: int, number: int) -> tuple[OutboxRecord, int]:
        data = self.write_buffer.read_record(keys.outbox_record(target, number))
        try:
            return msgspec.msgpack.decode(data, type=OutboxRecord), len(data)
        except msgspec.ValidationError:  # a later build's
            record = msgspec.msgpack.decode(data)
            kind, acks, *_ = record[1]
            if kind != "acks":
                raise
            record[1] = (kind, [known_fields(ack, _ACK_LENGTH) for ack in acks])
            return msgspec.convert(record, OutboxRecord), len(data)

    # -- what is known of them --

    def waiting(self) -> dict[int, int]:
        """How many entries there are for each shard, where there are any."""
        found = {target: each.next - each.first for target, each in self._targets.items()}
        return {target: count for target, count in found.items() if count}

    def oldest_ms(self, target: int) -> int | None:
        """When the oldest entry for a shard was made."""
        return self._oldest_ms.get(target)

    def has_since(self, time_ms: int) -> bool:
        """Whether an entry is left that was made up to this time."""
        return bool(self.drafts) or any(made_ms <= time_ms for made_ms in self._oldest_ms.values())

    def first(self, target: int) -> int:
        """The number of the first entry for a shard that is left, or of the next one that comes."""
        return self._targets.get(target, OutboxTarget()).first

    def restore(self, target: int, data: bytes) -> None:
        """Take the counters for a shard back from their record."""
        counters = self._targets[target] = msgspec.msgpack.decode(data, type=OutboxTarget)
        if counters.next > counters.first:
            self.fresh.add(target)
            self._look_at_first(target)

    def snapshot(self) -> dict[str, Any]:
        """All that is stored of it, comparable."""
        self.seal()
        return {str(target): (each.first, each.next) for target, each in sorted(self._targets.items())}


def forwarded(send: Send, now_ms: int) -> tuple[ForwardedMessages, Messages]:
    """What a send says of its messages, and these."""
    due_ms = send.due_ms
    if due_ms is None and send.delay_ms is not None:
        due_ms = now_ms + send.delay_ms
    effect = ForwardedMessages(
        send.queue, False, send.priority, due_ms, send.create, send.channels, send.config, send.of_queue
    )
    messages = Messages(
        send.bodies,
        attributes=send.attributes,
        groups=_encoded(send.groups),
        dedup_ids=_encoded(send.dedup_ids),
        origins=send.origins,
    )
    return effect, messages


def _encoded(texts: list[str | None] | None) -> list[bytes | None] | None:
    return None if texts is None else [None if text is None else text.encode() for text in texts]
