"""A queue: one sequence of messages in lanes, and the channels and consumers that read it.

Every message gets its sequence number from one counter, whatever lane it goes to, and keeps it for life; so a sequence
number names a message of the queue, and lanes only say when it may be handed out.

    lane         holds                                                    read by a channel
    NORMAL p     messages of priority p that are due                      in order, with a cursor
    WAITING p    messages due within `HORIZON_MS` (shared), or failed     all at once: wholly in the window
                 ones of one channel (its retry lane)
    FAR p        messages due later, in buckets by time                   when the bucket's time comes, its chunks go
                                                                          to WAITING, under the same sequence numbers
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import (
    CatalogEvent,
    ChannelLife,
    Damage,
    Life,
    MessageEvent,
    QueueInfo,
    QueueTally,
    Run,
    Seen,
    Stats,
)
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.columns import DONE
from penstock.core.delivery.redelivery import HORIZON_MS
from penstock.core.delivery.runs import cut
from penstock.core.delivery.states import Event, State
from penstock.core.delivery.window import Cursor, Entry, Window, failed_later
from penstock.core.errors import ChunkDamaged
from penstock.core.queues.config import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    PRIORITY_MAX,
    QueueConfig,
    from_stored,
    stored_settings,
)
from penstock.core.queues.dedup import Dedup
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX, CHUNK_SIZE_MAX, Draft, Messages, Place
from penstock.core.queues.reserve import Reserve
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, Kind, LaneKind, lane_code
from penstock.core.storage.records import Consumer, QuarantineRecord, QueueRecord
from penstock.core.storage.segments import Segment

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_BUCKETS: tuple[tuple[int, int], ...] = ((2 * DAY_MS, HOUR_MS), (60 * DAY_MS, DAY_MS), (1 << 62, 30 * DAY_MS))
"""(due within, width of the bucket)."""
_PAGE: Final = 256
_BUSY_HALF_LIFE_MS: Final = 10 * MINUTE_MS
NORMAL_PLACES: Final = [Place(lane_code(LaneKind.NORMAL, priority)) for priority in range(PRIORITY_MAX + 1)]


_COUNTERS: Final = struct.Struct("<QQQQ?I")
"""Next sequence number, messages, their size, sent ever, whether it is fair, next channel; the lanes follow."""


class Queue:
    """One queue."""

    def __init__(self, broker: Broker, queue_id: int, name: str, config: QueueConfig, created_ms: int) -> None:
        self.broker = broker
        self.write_buffer = broker.write_buffer
        self.id = queue_id
        self.name = name
        self.configure(config)
        self.created_ms = created_ms
        self.changed_ms = created_ms
        self.next_sequence = 0
        self.opened_to = 0
        """Where the numbers went on when the store was opened: deliveries of lower ones may have been forgotten."""
        self.opened_ms = 0
        """When that was."""
        self.messages = 0
        self.size = 0
        self.sent = 0
        self.sent_bytes = 0
        """Since the store was opened."""
        self.is_fair = False
        """Whether any message of a standard queue ever had a group."""
        self.next_channel = 1
        self.lanes: list[int] = []
        """The shared lanes in use."""
        self.channels: dict[str, Channel] = {}
        self.consumers: dict[str, Consumer] = {}
        self.dedup = Dedup(queue_id)
        self.far: dict[tuple[int, int], int] = {}
        """(lane, order) -> how many messages a far bucket holds."""
        self.quarantined: dict[ChunkKey, str] = {}
        self.draft: Draft | None = None
        self.held_from: int | None = None
        """While the queue is paused: the first sequence number that the channels are not shown."""
        self.reserve: Reserve | None = None
        """Where messages may leave before they are on the disk: the numbers that are set aside for them."""
        self._retention_ms: int | None = None
        """When retention is looked at next."""
        self._dedup_ms: int | None = None
        self._rate: dict[str | None, tuple[int, int]] = {}
        self._counted_messages = 0
        """What the broker's totals have of this queue."""
        self._counted_size = 0
        self._counted_sent = 0
        self.later_settings: dict[str, Any] = {}
        """What a later build has set, and this one does not know."""
        self.needs: list[str] = []
        self._busy = 0.0
        self._busy_ms = 0
        """Up to when that is known."""
        self._busy_moved = 0
        """Messages that were ever sent and acknowledged, up to then."""
        self._counters_key = keys.record(Kind.COUNTERS, queue_id)
        self._dirty = broker.dirty_queues

    def configure(self, config: QueueConfig) -> None:
        """Take on a configuration, and what follows from it for every message."""
        self.config = config
        self.is_fifo = config.is_fifo
        self.leases_are_durable = config.leases_are_durable
        self.takes_bare = not config.is_fifo and config.throughput_per_second is None and not config.delay_ms
        """Whether a body needs nothing beside it here: no group, no delay, no rate."""
        self.bare_bytes_max = min(config.message_bytes_max, CHUNK_SIZE_MAX)
        """While the queue takes bare messages: how many bytes of them at a time."""

    # -- messages come in --

    def place(self, priority: int, due_ms: int, now_ms: int) -> Place:
        """Where a message goes."""
        if due_ms <= now_ms:
            return NORMAL_PLACES[priority]
        if self.is_fifo:
            return Place(lane_code(LaneKind.NORMAL, priority), 0, due_ms)
        if due_ms <= now_ms + HORIZON_MS:
            return Place(lane_code(LaneKind.WAITING, priority), 0, due_ms)
        return Place(lane_code(LaneKind.FAR, priority), _bucket(due_ms, now_ms), due_ms)

    def append(self, messages: Messages, place: Place, size: int, now_ms: int) -> int:
        """Add messages; returns the first one's sequence number. They are in no chunk before `seal`."""
        count = len(messages.bodies)
        if count > CHUNK_MESSAGES_MAX or (size > CHUNK_SIZE_MAX and count > 1):
            first = self.next_sequence
            for part, part_size in messages.parts():
                self.append(part, place, part_size, now_ms)
            return first
        draft, first = self.draft, self.next_sequence
        if draft is not None and draft.takes(place, now_ms, count, size):
            first = draft.add(messages, size)
        else:
            if draft is not None:
                self.seal()
            self.draft = Draft(place, first, now_ms, messages, size)
            self.broker.drafts[self] = None
        self.next_sequence += count
        self.sent += count
        # Nobody may be handed a sequence number that a crash would give to another message.
        self.broker.must_commit = True
        return first

    def seal(self) -> None:
        """Make a chunk of what has arrived, and show it to the channels."""
        draft, self.draft = self.draft, None
        if draft is None:
            return
        self.broker.drafts.pop(self, None)
        chunk = draft.seal()
        aged_ms = draft.sent_ms if chunk.due_ms is None else max(draft.sent_ms, int(chunk.due_ms.max()))
        key = ChunkKey(self.id, draft.place.lane, draft.place.order, chunk.base, chunk.count, chunk.size, aged_ms)
        self.keep(key, chunk)
        self.sent_bytes += chunk.size
        if self.broker.message_events is not None:
            self.broker.message_events.append(
                MessageEvent(
                    "sent", self.name, "", chunk.base, chunk.count, draft.sent_ms, draft.sent_ms, size=chunk.size
                )
            )
        if key.order:
            self.add_to_bucket(key.lane, key.order, chunk.count, draft.sent_ms)
        else:
            if chunk.has_groups and not self.is_fifo:
                self.is_fair = True
            self._announce(key, chunk, draft.sent_ms)
        if self.config.retention_bytes is not None:
            self._shrink(self.config.retention_bytes)

    def keep(self, key: ChunkKey, chunk: Chunk | None) -> None:
        """Write a chunk, unless it is there already, and count it."""
        if chunk is not None:
            self.write_buffer.put(key, chunk)
        self.messages += key.messages
        self.size += key.size
        self._dirty[self] = None
        retention_ms, watched_ms = self.config.retention_ms, self._retention_ms
        if retention_ms is not None and (watched_ms is None or key.aged_ms + retention_ms < watched_ms):
            self._watch_retention(key.aged_ms)

    def publish(self, segment: Segment, staged: list[ChunkKey], *, has_groups: bool) -> None:
        """Show the channels messages that were staged; their numbers are the queue's next ones."""
        now_ms = segment.sent_ms
        self.write_buffer.segments.add(segment)
        for key in map(segment.seen, staged):
            self.keep(key, None)
            self._announce(key, None, now_ms)
            self.sent_bytes += key.size
        self.next_sequence += segment.count
        self.sent += segment.count
        self.is_fair = self.is_fair or has_groups
        self.touch()
        if self.broker.message_events is not None:
            size = sum(key.size for key in staged)
            event = MessageEvent("sent", self.name, "", segment.first, segment.count, now_ms, now_ms, size=size)
            self.broker.message_events.append(event)
        if self.config.retention_bytes is not None:
            self._shrink(self.config.retention_bytes)

    def _announce(self, key: ChunkKey, chunk: Chunk | None, now_ms: int) -> None:
        if key.lane not in self.lanes:
            self.lanes.append(key.lane)
            for channel in self.channels.values():
                channel.open_lane(key.lane, key.base)
                channel.touch()
        if self.held_from is not None and self.is_held(key):
            return
        for channel in self.channels.values():
            if key.base >= channel.start:
                channel.announce(key, chunk, now_ms)
                if channel.wait_queue.waiters:
                    self.broker.woke(channel)

    def throttled(self, groups: list[str | None], now_ms: int, *, count_them: bool) -> str | None:
        """What is over its rate, if these messages came now; otherwise they are counted, if so wanted."""
        limit = self.config.throughput_per_second
        if limit is None:
            return None
        second = now_ms // 1_000
        by_scope: dict[str | None, int] = {}
        for group in groups:
            scope = group if self.config.throughput_scope == "group" else None
            by_scope[scope] = by_scope.get(scope, 0) + 1
        for scope, count in by_scope.items():
            since, used = self._rate.get(scope, (second, 0))
            if (used if since == second else 0) + count > limit:
                return f"queue {self.name!r}" if scope is None else f"group {scope!r} of queue {self.name!r}"
        if not count_them:
            return None
        if self._rate and next(iter(self._rate.values()))[0] != second:
            self._rate = {scope: state for scope, state in self._rate.items() if state[0] == second}
        for scope, count in by_scope.items():
            self._rate[scope] = (second, self._rate.get(scope, (second, 0))[1] + count)
        return None

    def watch_dedup(self) -> None:
        """Make sure that dedup ids are forgotten in time."""
        deadline_ms = self.dedup.next_deadline()
        if deadline_ms is not None and (self._dedup_ms is None or deadline_ms < self._dedup_ms):
            self._dedup_ms = deadline_ms
            self.broker.schedule(deadline_ms, "dedup", self)

    def forget_duplicates(self, now_ms: int) -> None:
        """Forget dedup ids whose time is over."""
        self._dedup_ms = None
        self.dedup.forget(now_ms, self.write_buffer.changes)
        self.watch_dedup()

    # -- the pause --

    @property
    def shown_to(self) -> int:
        """The sequence number up to which the channels are shown what is sent."""
        return self.next_sequence if self.held_from is None else self.held_from

    def is_held(self, key: ChunkKey) -> bool:
        """Whether the channels are not shown this chunk of a shared lane, because the queue is paused."""
        return self.held_from is not None and key.base >= self.held_from and not keys.lane_channel(key.lane)

    def pause(self, paused: bool, now_ms: int) -> None:
        """Show the channels nothing that is sent from now on; or all that they were not shown."""
        self.seal()
        if paused == (self.held_from is not None):
            return
        held = [] if paused else list(self._held_keys())
        held_far = list(self._held_far())
        self.held_from = self.next_sequence if paused else None
        for key in held:
            try:
                chunk = self.write_buffer.load(key)
            except ChunkDamaged as damage:
                self.quarantine(key, damage, was_shown=False)
                continue
            self._announce(key, chunk, now_ms)
            self.let_go(key)  # every channel may have been moved past it meanwhile
        for key in held_far:
            self.let_go_far(key)
        self.save_config()

    def _held_keys(self) -> Iterator[ChunkKey]:
        """The chunks that the channels are not shown, but for those that lie far ahead: these come in their time."""
        assert self.held_from is not None
        for lane in self.lanes:
            yield from (key for key in self._keys_of(lane, 0, self.held_from) if key not in self.quarantined)

    def _held_far(self) -> Iterator[ChunkKey]:
        """The chunks that lie far ahead, and that the channels are not shown."""
        if self.held_from is not None:
            for lane, order in self._far_of(0):
                yield from self._keys_of(lane, order, self.held_from)

    def split_held(self, offset: int) -> None:
        """Cut the chunk in two that is not shown, and lies on both sides of an offset: a channel is moved there."""
        if self.held_from is not None and offset > self.held_from:
            for key in self._held_keys():
                if key.base < offset < key.base + key.messages:
                    with suppress(ChunkDamaged):  # quarantined and reported
                        self.split(key, offset)
                    return

    def purge_backlog(self) -> int:
        """Drop what no channel has been shown. Returns how many messages that were."""
        if not self.channels:
            return self.purge()
        self.seal()
        if self.held_from is None:
            return 0
        held = list(self._held_keys())
        for key in held:
            self.discard(key)
        held_far = list(self._held_far())
        for key in held_far:
            self._discard_far(key)
        return sum(key.messages for key in held + held_far)

    @property
    def backlog(self) -> int:
        """Messages that no channel has been shown."""
        if not self.channels:
            return self.messages
        if self.held_from is None:
            return 0
        return sum(key.messages for held in (self._held_keys(), self._held_far()) for key in held)

    # -- messages go --

    def let_go(self, key: ChunkKey) -> None:
        """A channel is done with a chunk: delete it if nobody else wants it."""
        if key.lane >> 8 or self._is_over(key):  # private to a channel, or done by all
            self.discard(key)

    def _is_over(self, key: ChunkKey) -> bool:
        if not self.channels or (self.quarantined and key in self.quarantined):
            return False
        if self.held_from is not None and self.is_held(key):
            return False
        for channel in self.channels.values():
            if key.base >= channel.start:
                window, cursor = channel.windows.get(key.lane), channel.cursors.get(key.lane)
                if (window is not None and key.base in window.entries) or (
                    cursor is not None and key.base >= cursor.sequence
                ):
                    return False
        if not self.consumers:
            return True
        stop = key.base + key.messages
        return all(consumer.offset >= stop for consumer in self.consumers.values())

    def discard(self, key: ChunkKey) -> None:
        """Delete a chunk, and count it no more."""
        self.write_buffer.delete(key)
        self.messages -= key.messages
        self.size -= key.size
        self._dirty[self] = None

    def drop_chunk(self, key: ChunkKey) -> None:
        """Delete a chunk of a shared lane, whoever wants it."""
        for channel in self.channels.values():
            if key.base >= channel.start and not self.is_held(key):
                channel.drop_chunk(key)
        self.discard(key)

    def sweep(self) -> None:
        """Delete the chunks that nobody wants any more, after a channel or a consumer has gone or moved on."""
        if not self.channels:
            return
        for lane in self.lanes:
            ends = [channel.cursors[lane].sequence for channel in self.channels.values() if lane in channel.cursors]
            for key in self._keys_of(lane):
                if ends and key.base >= min(ends):
                    break
                if self._is_over(key):
                    self.discard(key)
        for lane, order in self._far_of(0):
            for key in list(self._keys_of(lane, order)):
                self.let_go_far(key)

    def _keys_of(self, lane: int, order: int = 0, base: int = 0) -> Iterator[ChunkKey]:
        limit = 8
        while True:
            page = self.write_buffer.keys(self.id, lane, base, limit, order)
            yield from page
            if len(page) < limit:
                return
            base = page[-1].base + 1
            limit = min(4 * limit, _PAGE)

    def quarantine(self, key: ChunkKey, damage: ChunkDamaged, *, was_shown: bool = True) -> ChunkDamaged:
        """Put a damaged chunk aside: nobody is given it, nobody deletes it, everybody can see that it is there.

        Channels that were not shown it have not counted it, either.
        """
        first, last = key.base, key.base + key.messages - 1
        error = ChunkDamaged(
            f"messages {first} to {last} of queue {self.name!r} cannot be read: {damage}; they are kept aside "
            "(see the queue's statistics), and delivery goes on with the next ones"
        )
        if key in self.quarantined:
            return error
        self.quarantined[key] = str(damage)
        self.write_buffer.changes.put_record(
            keys.record(Kind.QUARANTINE, self.id, key.packed), msgspec.msgpack.encode(QuarantineRecord(str(damage)))
        )
        for channel in self.channels.values():
            is_its = keys.lane_channel(key.lane) in (0, channel.id) and key.base >= channel.start
            if was_shown and is_its and not self.is_held(key):
                channel.drop_chunk(key)
        self.messages -= key.messages
        self.size -= key.size
        self.touch()
        self.broker.reports.append(Damage(self.name, first, last, str(damage)))
        return error

    def report_missing(self, cursor: Cursor) -> None:
        """Messages that were counted are not in the store: say so, once, and go on without them."""
        last, reason = self.next_sequence - 1, f"{cursor.ahead} messages are not in the store any more"
        self.broker.reports.append(Damage(self.name, cursor.sequence, last, reason))
        cursor.restart(self.next_sequence, 0)

    def purge(self) -> int:
        """Everything that was sent so far goes."""
        self.seal()
        self.broker.staging.drop_of(self)
        count = self.messages
        self.write_buffer.drop_chunks(self.id)
        for channel in self.channels.values():
            channel.purge(self.next_sequence)
        for lane, order in list(self.far):
            self._forget_bucket(lane, order)
        for key in self.quarantined:
            self.write_buffer.changes.delete_record(keys.record(Kind.QUARANTINE, self.id, key.packed))
        self.quarantined.clear()
        self.dedup.clear(self.write_buffer.changes)
        self.messages = self.size = 0
        if self.held_from is not None:
            self.held_from = self.next_sequence
            self.save_config()
        self.touch()
        return count

    # -- retention --

    def _watch_retention(self, aged_ms: int) -> None:
        if self.config.retention_ms is None:
            return
        expires_ms = aged_ms + self.config.retention_ms
        if self._retention_ms is None or expires_ms < self._retention_ms:
            self._retention_ms = expires_ms
            self.broker.schedule(expires_ms, "retention", self)

    def look_at_retention(self, now_ms: int) -> None:
        """Delete what is too old, and note when to look again."""
        if self._retention_ms is None or self._retention_ms > now_ms:
            return
        self._retention_ms = None
        if self.config.retention_ms is None:
            return
        oldest_kept_ms = now_ms - self.config.retention_ms
        for lane in self.lanes:
            self._expire_lane(lane, oldest_kept_ms)
        for channel in self.channels.values():
            self._expire_retries(channel, oldest_kept_ms)

    def _expire_lane(self, lane: int, oldest_kept_ms: int) -> None:
        """In a NORMAL lane age follows the order, but for delayed FIFO messages: look a page past the first young."""
        young_max = ahead_max = 1 << 62
        if keys.lane_kind(lane) == LaneKind.NORMAL:
            young_max, ahead_max = (_PAGE if self.is_fifo else 1), _PAGE
        for key in self._expiring(lane):
            aged_ms = self._aged_ms(key)
            if aged_ms <= oldest_kept_ms:
                self.drop_chunk(key)
                continue
            self._watch_retention(aged_ms)
            if aged_ms != key.aged_ms:  # sent by a clock that was ahead: what is behind may be older
                ahead_max -= 1
            else:
                young_max -= 1
            if not young_max or not ahead_max:
                break

    def _expiring(self, lane: int, order: int = 0) -> Iterator[ChunkKey]:
        return (key for key in self._keys_of(lane, order) if key not in self.quarantined)

    def _expire_retries(self, channel: Channel, oldest_kept_ms: int) -> None:
        for window in channel.windows.values():
            if not keys.lane_channel(window.lane):
                continue
            for entry in list(window.entries.values()):
                aged_ms = self._aged_ms(entry.key, entry.sent_ms)
                if aged_ms <= oldest_kept_ms:
                    channel.drop_entry(window, entry)
                    self.discard(entry.key)
                else:
                    self._watch_retention(aged_ms)

    def _aged_ms(self, key: ChunkKey, sent_ms: int | None = None) -> int:
        """From when a chunk's age counts: if it was sent by a clock that was ahead, from when the queue was opened.

        What was sent with a delay keeps its due time.
        """
        if key.aged_ms <= self.opened_ms or key.base >= self.opened_to:
            return key.aged_ms
        if sent_ms is None:
            sent_ms = self.sent_ms(key) if keys.lane_kind(key.lane) == LaneKind.NORMAL else 0
        return self.opened_ms if sent_ms == key.aged_ms else key.aged_ms

    def restart_retention(self, *, opened: bool = False) -> None:
        """The configuration has changed, or the queue was opened: look again from the start."""
        if self.config.retention_bytes is not None and not opened:  # by size, chunks go when messages arrive
            self._shrink(self.config.retention_bytes)
        if self.messages or any(channel.windows for channel in self.channels.values()):
            self._retention_ms = None
            self._watch_retention(-(1 << 40))

    def _shrink(self, bytes_max: int) -> None:
        while self.size > bytes_max:
            shared = [(lane, 0) for lane in self.lanes] + self._far_of(0)
            firsts = (key for place in shared for key in self._first_expiring(*place))
            oldest = min(firsts, key=_by_base, default=None)
            if oldest is None or oldest.base + oldest.messages >= self.next_sequence:
                return
            if oldest.order:
                self._discard_far(oldest)
            else:
                self.drop_chunk(oldest)

    def _first_expiring(self, lane: int, order: int = 0) -> list[ChunkKey]:
        return list(islice(self._expiring(lane, order), 1))

    # -- far buckets --

    def _far_of(self, *owners: int) -> list[tuple[int, int]]:
        """The far buckets, as (lane, order), of some channels; 0 stands for those that all channels share."""
        return [place for place in self.far if keys.lane_channel(place[0]) in owners]

    def _far_entry(self, key: ChunkKey) -> tuple[Window, Entry]:
        """What is stored of the deliveries of a channel's own far chunk, in a window for itself."""
        window = Window(self.id, keys.lane_channel(key.lane), key.lane)
        record_key = keys.far_entry(self.id, key.lane, key.order, key.base)
        return window, window.add_encoded(key.base, self.write_buffer.read_record(record_key))

    def buckets(self, first: int, due_ms: NDArray[np.int64], now_ms: int) -> Iterator[tuple[int, int, int]]:
        """Cut messages with far due times by bucket: (order, first, stop)."""
        orders = [_bucket(due, now_ms) for due in due_ms.tolist()]
        start = 0
        for at in range(1, len(orders) + 1):
            if at == len(orders) or orders[at] != orders[start]:
                yield orders[start], first + start, first + at
                start = at

    def add_to_bucket(self, lane: int, order: int, count: int, now_ms: int) -> None:
        """A far bucket gets messages."""
        if (lane, order) not in self.far:
            self.broker.schedule(max(order - HORIZON_MS, now_ms), "bucket", self, (lane, order))
        self._count_bucket(lane, order, self.far.get((lane, order), 0) + count)

    def _discard_far(self, key: ChunkKey) -> None:
        """Delete a chunk of a far bucket."""
        self.discard(key)
        self._take_from_bucket(key, key.messages)

    def _take_from_bucket(self, key: ChunkKey, count: int) -> None:
        place = (key.lane, key.order)
        for channel in self.channels.values():
            if place in channel.far_behind and key.base < channel.start:
                channel.far_behind[place] -= count
                channel.touch()
        left = self.far[place] - count
        if left:
            self._count_bucket(*place, left)
        else:
            self._forget_bucket(*place)

    def ack_far(self, channel: Channel, first: int, stop: int, attempt: int, *, dry: bool) -> list[tuple[int, int]]:
        """A late ack of messages of a channel that wait far ahead: which of them it reached. `dry` only looks."""
        reached = []
        for lane, order in self._far_of(channel.id):
            for key in list(self._keys_of(lane, order, max(0, first - CHUNK_MESSAGES_MAX))):
                if key.base >= stop:
                    break
                low, high = max(first, key.base), min(stop, key.base + key.messages)
                if low < high:
                    reached += self._ack_far_chunk(key, low, high, attempt, dry)
        return reached

    def _ack_far_chunk(self, key: ChunkKey, first: int, stop: int, attempt: int, dry: bool) -> list[tuple[int, int]]:
        window, entry = self._far_entry(key)
        good = window.columns.rows_allowing(Event.ACK, entry.rows_of(first, stop), attempt)
        runs = [(low, high) for ok, low, high in cut(good, first) if ok]
        if runs and not dry:
            self._settle_far(key, window, entry, runs)
        return runs

    def finish_far(self, key: ChunkKey, offset: int) -> int:
        """What was sent before an offset, of a channel's own far chunk, is done. Returns how many messages."""
        window, entry = self._far_entry(key)
        left = window.columns.state[entry.rows_of(key.base, min(offset, entry.stop))] != DONE
        runs = [(low, high) for is_left, low, high in cut(left, key.base) if is_left]
        if runs:
            self._settle_far(key, window, entry, runs)
        return sum(high - low for low, high in runs)

    def _settle_far(self, key: ChunkKey, window: Window, entry: Entry, runs: list[tuple[int, int]]) -> None:
        record_key = keys.far_entry(self.id, key.lane, key.order, key.base)
        for low, high in runs:
            window.columns.settle(entry.rows_of(low, high))
            entry.left -= high - low
        self._take_from_bucket(key, sum(high - low for low, high in runs))
        if entry.left:
            self.write_buffer.changes.put_record(record_key, window.encode(entry))
        else:
            self.write_buffer.changes.delete_record(record_key)
            self.discard(key)

    def far_keys(self, owner: int, offset: int) -> list[ChunkKey]:
        """Chunks in far buckets, shared ones (0) or a channel's, that begin before an offset."""
        return [key for place in self._far_of(owner) for key in self._keys_of(*place) if key.base < offset]

    def split(self, key: ChunkKey, offset: int) -> None:
        """Cut a shared chunk that is in no window in two at an offset: a channel is done with the first part only."""
        chunk, at = self._load(key), offset - key.base
        self.discard(key)
        for part in (chunk.slice(0, at), chunk.slice(at, key.messages)):
            self.keep(ChunkKey(self.id, key.lane, key.order, part.base, part.count, part.size, key.aged_ms), part)

    def let_go_far(self, key: ChunkKey) -> None:
        """A channel is done with a shared far chunk: delete it if nobody else wants it."""
        if all(key.base < channel.start for channel in self.channels.values()) and self._is_over(key):
            self._discard_far(key)

    def _count_bucket(self, lane: int, order: int, count: int) -> None:
        self.far[lane, order] = count
        self.write_buffer.changes.put_record(keys.bucket_record(self.id, lane, order), msgspec.msgpack.encode(count))

    def _forget_bucket(self, lane: int, order: int) -> None:
        del self.far[lane, order]
        self.write_buffer.changes.delete_record(keys.bucket_record(self.id, lane, order))
        for channel in self.channels.values():
            if channel.far_behind.pop((lane, order), None) is not None:
                channel.touch()

    def restore_bucket(self, lane: int, order: int, count: int) -> None:
        """Take a far bucket back from its record."""
        self.far[lane, order] = count
        self.broker.schedule(order - HORIZON_MS, "bucket", self, (lane, order))

    def bring_near(self, lane: int, order: int, now_ms: int) -> None:
        """A far bucket's time has come: its chunks go to the waiting lane, where the windows see them."""
        if (lane, order) not in self.far:
            return
        self._forget_bucket(lane, order)
        for key in list(self._keys_of(lane, order)):
            if key not in self.quarantined:
                self._bring_chunk_near(key, now_ms)

    def _bring_chunk_near(self, key: ChunkKey, now_ms: int) -> None:
        """A chunk of a far bucket goes to the waiting lane; its bucket counts it no more."""
        try:
            chunk = self.write_buffer.load(key)
        except ChunkDamaged as damage:
            self.quarantine(key, damage)
            return
        lane = lane_code(LaneKind.WAITING, keys.lane_priority(key.lane), keys.lane_channel(key.lane))
        owner = next((channel for channel in self.channels.values() if channel.id == keys.lane_channel(key.lane)), None)
        near = key.moved(lane)
        self.discard(key)
        self.keep(near, chunk)
        if owner is None:
            self._announce(near, chunk, now_ms)
        else:
            record_key = keys.far_entry(self.id, key.lane, key.order, key.base)
            owner.redelivery.bring_near(self.write_buffer.read_record(record_key), near)
            self.write_buffer.changes.delete_record(record_key)

    def recall_far(self, channel: Channel, first: int, stop: int, attempt: int, now_ms: int) -> bool:
        """Bring near what waits far ahead, and was handed out on that attempt before a crash. Says whether any was.

        It came near and was handed out in the same moment, and the clock went back when the store was opened again.
        """
        found, dispatch = False, channel.dispatch
        for lane, order in self._far_of(0, channel.id):
            upcoming = self._keys_of(lane, order, max(0, first - CHUNK_MESSAGES_MAX))
            for key in list(islice(upcoming, max(0, dispatch.recall_left))):
                if key.base >= stop or dispatch.recall_left <= 0:
                    break
                if key.base + key.messages > first and key not in self.quarantined:
                    count = self._forgotten_far(channel, key, first, stop, attempt)
                    if count:
                        dispatch.count_recalled(count)
                        self._take_from_bucket(key, count)
                        self._bring_chunk_near(key, now_ms)
                        found = True
        return found

    def bring_near_for(self, channel: Channel, first: int, stop: int, now_ms: int) -> None:
        """What waits far ahead, of a run of messages, shared or a channel's own, comes near: somebody names it."""
        for lane, order in self._far_of(0, channel.id):
            base = max(0, first - CHUNK_MESSAGES_MAX)
            for key in list(takewhile(lambda key: key.base < stop, self._keys_of(lane, order, base))):
                if key.base + key.messages <= first or key in self.quarantined or self.is_held(key):
                    continue
                count = key.messages if not keys.lane_channel(lane) else self._far_entry(key)[1].left
                self._take_from_bucket(key, count)
                self._bring_chunk_near(key, now_ms)

    def _forgotten_far(self, channel: Channel, key: ChunkKey, first: int, stop: int, attempt: int) -> int:
        """How many messages of a far chunk wait, if any of those in a run was delivered less often than that."""
        if not keys.lane_channel(key.lane):
            return key.messages if key.base >= channel.start and not self.is_held(key) else 0
        window, entry = self._far_entry(key)
        rows = entry.rows_of(max(first, key.base), min(stop, entry.stop))
        waits = (window.columns.state[rows] != DONE) & (window.columns.attempts[rows] < attempt)
        return entry.left if waits.any() else 0

    def bring_near_ahead(self, channel: Channel, now_ms: int) -> None:
        """A channel's clock was ahead: the far buckets where messages wait that failed later than now come near.

        Their due times are too late, and what has another due time would belong into another bucket.
        """
        for lane, order in self._far_of(channel.id):
            entries = self.write_buffer.reader.scan(keys.far_entries(self.id, lane, order))
            if any(failed_later(data, now_ms) for _, data in entries):
                self.bring_near(lane, order, now_ms)

    def far_count(self, channel: Channel) -> int:
        """Messages in far buckets that a channel will get one day."""
        total = sum(self.far[place] for place in self._far_of(0, channel.id))
        held = sum(key.messages for key in self._held_far() if key.base >= channel.start)
        return total - held - sum(channel.far_behind.values())

    def far_sent_ms(self, channel: Channel | None) -> list[int]:
        """When the oldest message of each far bucket was sent, of those that a channel will get."""
        start, mine = (0, (0,)) if channel is None else (channel.start, (0, channel.id))
        times = []
        for lane, order in self.far:
            if keys.lane_channel(lane) in mine:
                base = 0 if keys.lane_channel(lane) else start
                found = self.write_buffer.keys(self.id, lane, base, 1, order)
                times += [self.sent_ms(key) for key in found if channel is None or not self.is_held(key)]
        return times

    def sent_ms(self, key: ChunkKey) -> int:
        """When the messages of a chunk were sent."""
        if keys.lane_kind(key.lane) == LaneKind.NORMAL and not self.is_fifo:
            return key.aged_ms
        try:
            return self.write_buffer.load(key).sent_ms
        except ChunkDamaged:
            return key.aged_ms

    def drop_far_of(self, channel: Channel, start: int) -> None:
        """A channel that starts anew forgets what is far ahead: its own retries go, and shared messages from before."""
        channel.far_behind = {}
        for (lane, order), count in list(self.far.items()):
            if keys.lane_channel(lane) == channel.id:
                for key in list(self._keys_of(lane, order)):
                    self.discard(key)
                self.write_buffer.changes.drop(keys.far_entries(self.id, lane, order))
                self._forget_bucket(lane, order)
            elif not keys.lane_channel(lane):
                held = (key for key in self._held_far() if (key.lane, key.order) == (lane, order))
                channel.far_behind[lane, order] = count - sum(key.messages for key in held if key.base >= start)

    # -- channels --

    def add_channel(self, name: str, start: str | int, now_ms: int, *, first: int | None = None) -> Channel:
        """A new reader, from the head, the tail, or a time; or from a chunk that begins at `first`."""
        self.seal()
        first = self.first_from(start) if first is None else first
        channel = Channel(self, self.next_channel, name, first)
        self.next_channel += 1
        self.channels[name] = channel
        for lane in self.lanes:
            shown = (key for key in self._keys_of(lane) if not self.is_held(key))
            wanted = [key for key in shown if key.base >= first and key not in self.quarantined]
            if keys.lane_kind(lane) == LaneKind.NORMAL:
                channel.open_lane(lane, first, sum(key.messages for key in wanted))
                continue
            channel.open_lane(lane, first)
            for key in wanted:
                try:
                    channel.announce(key, self.write_buffer.load(key), now_ms)
                except ChunkDamaged as damage:
                    self.quarantine(key, damage)
        if self.is_fifo:
            channel.dispatch.look_ahead_fifo(now_ms)
        for lane, order in self.far:
            if first and not keys.lane_channel(lane):
                behind = sum(key.messages for key in self._keys_of(lane, order) if key.base < first)
                channel.far_behind[lane, order] = behind
        channel.touch()
        self.touch()
        self.broker.events.append(CatalogEvent("channel created", self.name, name))
        return channel

    def first_from(self, start: str | int) -> int:
        """The first sequence number from the head, the tail, or a time on."""
        if start == "first":
            start = "tail" if self.channels else "head"
        if start == "head":
            return 0
        if start == "tail":
            return self.shown_to
        assert isinstance(start, int)
        found = [
            next((key.base for key in self._keys_of(lane, order) if self.sent_ms(key) >= start), self.next_sequence)
            for lane, order in [(lane, 0) for lane in self.lanes] + self._far_of(0)
        ]
        return min(found, default=self.next_sequence)

    def delete_channel(self, channel: Channel) -> None:
        """A reader goes, with all that was kept for it alone."""
        channel.purge(self.shown_to)
        channel.count()
        del self.channels[channel.name]
        changes = self.write_buffer.changes
        changes.drop(keys.channel_entries(self.id, channel.id))
        changes.delete_record(keys.channel_record(self.id, channel.id))
        self.broker.dirty_channels.pop(channel, None)
        self.broker.events.append(CatalogEvent("channel deleted", self.name, channel.name))
        self.touch()
        self.sweep()

    # -- consumers and looking --

    def consumer_moved(self, name: str, offset: int, now_ms: int) -> None:
        """A consumer has read everything before an offset."""
        self.consumers[name] = Consumer(offset, now_ms)
        self._save_consumer(name)
        self.watch_consumers(now_ms)
        self.sweep()

    def consumer_seen(self, name: str, now_ms: int) -> None:
        """A consumer has shown a sign of life."""
        consumer = self.consumers[name]
        if now_ms - consumer.seen_ms >= min(MINUTE_MS, (self.config.consumer_retention_ms or MINUTE_MS) // 10):
            consumer.seen_ms = now_ms
            self._save_consumer(name)

    def _save_consumer(self, name: str) -> None:
        record_key = keys.record(Kind.CONSUMER, self.id, name.encode())
        self.write_buffer.changes.put_record(record_key, msgspec.msgpack.encode(self.consumers[name]))

    def delete_consumer(self, name: str) -> None:
        del self.consumers[name]
        self.write_buffer.changes.delete_record(keys.record(Kind.CONSUMER, self.id, name.encode()))
        self.sweep()

    def watch_consumers(self, now_ms: int) -> None:
        """Make sure that silent consumers are forgotten in time."""
        retention_ms = self.config.consumer_retention_ms
        if retention_ms is not None and self.consumers:
            oldest_ms = min(consumer.seen_ms for consumer in self.consumers.values())
            self.broker.schedule_once(oldest_ms + retention_ms, "consumers", self)

    def forget_consumers(self, now_ms: int) -> None:
        """Forget the consumers that were silent for too long."""
        retention_ms = self.config.consumer_retention_ms
        if retention_ms is not None:
            for name in [name for name, each in self.consumers.items() if each.seen_ms + retention_ms <= now_ms]:
                self.delete_consumer(name)
            self.watch_consumers(now_ms)

    def read(
        self, offset: int, limit: int, end: int | None = None, bytes_max: int | None = None
    ) -> tuple[list[Run], int]:
        """Messages from an offset on, in sequence order, and the offset after the last of them.

        With `end`: that one, once nothing is left before it.
        """
        runs: list[Run] = []
        if end is not None and end <= offset:
            return runs, offset
        for key in self.log(offset):
            if limit <= 0 or (bytes_max is not None and runs and bytes_max <= 0):
                return runs, offset
            if end is not None and key.base >= end:
                break
            if key.base + key.messages <= offset or key in self.quarantined:
                continue
            chunk = self._load(key)
            start = max(offset, key.base) - key.base
            stop = min(key.messages, start + limit, key.messages if end is None else end - key.base)
            if bytes_max is not None:
                fitting = _fitting(chunk, start, stop, bytes_max)
                if fitting == start and runs:
                    return runs, offset
                stop = max(fitting, start + 1)
                bytes_max -= int(chunk.offsets[stop] - chunk.offsets[start])
            runs.append(Run(chunk, start, stop, 0, 0))
            limit -= stop - start
            offset = key.base + stop
            if stop < key.messages:
                return runs, offset
        return runs, offset if end is None else max(offset, min(end, self.next_sequence))

    def _load(self, key: ChunkKey) -> Chunk:
        try:
            return self.write_buffer.load(key)
        except ChunkDamaged as damage:
            raise self.quarantine(key, damage) from None

    def delayed_keys(self) -> Iterator[ChunkKey]:
        """The shared chunks that may have messages which are not due, by base. In FIFO queues with a delay, all."""
        all_of_them = self.is_fifo and self.config.delay_ms > 0
        places = [(lane, 0) for lane in self.lanes if all_of_them or keys.lane_kind(lane) == LaneKind.WAITING]
        return heapq.merge(*[self._keys_of(*place) for place in places + self._far_of(0)], key=_by_base)

    def log(self, offset: int, channel: Channel | None = None) -> Iterator[ChunkKey]:
        """Chunks that may hold messages from an offset on, by base: the shared lanes, and a channel's own."""
        self.seal()
        base = max(0, min(offset, self.next_sequence) - CHUNK_MESSAGES_MAX)
        places = [(lane, 0) for lane in self.lanes] + self._far_of(0)
        if channel is not None:
            places += self._far_of(channel.id) + [(lane, 0) for lane in channel.windows if keys.lane_channel(lane)]
        return heapq.merge(*[self._keys_of(lane, order, base) for lane, order in places], key=_by_base)

    def browse(
        self,
        channel: Channel | None,
        after: int,
        limit: int,
        states: tuple[State, ...],
        contains: bytes | None,
        end: int | None = None,
    ) -> list[Seen]:
        """Messages with their state in a channel, or as a channel that is created now would see them."""
        seen: list[Seen] = []
        for key in self.log(after + 1, channel):
            if end is not None and key.base >= end:
                break
            if len(seen) >= limit:
                seen = sorted(seen, key=_by_sequence)[:limit]
                if key.base > seen[-1].sequence:
                    break
            if key.base + key.messages - 1 <= after or key in self.quarantined:
                continue
            if channel is not None and not keys.lane_channel(key.lane) and key.base < channel.start:
                continue
            if self.is_held(key):
                continue
            chunk = self._load(key)
            if contains is not None and contains not in bytes(chunk.bodies):
                continue
            stop = key.messages if end is None else min(key.messages, end - key.base)
            enough = len(seen) + limit  # of one chunk, whose messages are in order
            for index in range(max(0, after + 1 - key.base), stop):
                if contains is not None and contains not in chunk.body(index):
                    continue
                found = self._seen(channel, key, chunk, index)
                if found.state in states and not self._goes_on(found, channel):
                    seen.append(found)
                    if len(seen) == enough:
                        break
        return sorted(seen, key=_by_sequence)[:limit]

    def _goes_on(self, seen: Seen, channel: Channel | None) -> bool:
        """Whether what is done in this chunk waits for its next try in another one, where it is seen."""
        if seen.state != State.DONE or channel is None:
            return False
        own = self._keys_at(self._own_log(channel, seen.sequence), seen.sequence)
        return any(self._life_in(channel, each, seen.sequence).state != State.DONE for each in own)

    def _seen(self, channel: Channel | None, key: ChunkKey, chunk: Chunk, index: int) -> Seen:
        priority = keys.lane_priority(key.lane)
        if channel is None:
            due_ms = chunk.due(index)
            is_due = due_ms <= self.broker.now_ms
            state = State.READY if is_due else State.DELAYED
            return Seen(chunk, index, state, 0, 0 if is_due else due_ms, [], priority)
        if keys.lane_kind(key.lane) == LaneKind.FAR:
            if not keys.lane_channel(key.lane):
                return Seen(chunk, index, State.DELAYED, 0, chunk.due(index), [], priority)
            return self._seen_far(key, chunk, index)
        state, attempts, deadline_ms, failures = channel.state_of(key.base + index, key.lane)
        if state == State.DONE:
            deadline_ms = 0  # it is due no more
        return Seen(chunk, index, state, attempts, deadline_ms, failures, priority)

    def life(self, sequence: int) -> Life | None:
        """A message with where it stands in every channel; None if it is not there."""
        log = takewhile(lambda key: key.base <= sequence, self.log(sequence))
        shared = next(self._keys_at(log, sequence), None)
        found: list[ChannelLife] = []
        key = shared
        for channel in self.channels.values():
            own = next(self._keys_at(self._own_log(channel, sequence), sequence), None)
            told = None if own is None else self._life_in(channel, own, sequence)
            if told is not None and told.state != State.DONE:
                key = key or own
            elif shared is not None:
                told = self._life_in(channel, shared, sequence)
            else:
                told = ChannelLife(channel.name, State.DONE)
            found.append(told)
        if key is None:
            return None
        chunk, index = self._load(key), sequence - key.base
        return Life(
            queue=self.name,
            queue_id=self.id,
            sequence=sequence,
            sent_ms=chunk.sent_ms,
            body=bytes(chunk.body(index)),
            attributes=chunk.attributes(index),
            group=chunk.group(index),
            dedup_id=chunk.dedup_id(index),
            origin=chunk.origin(index),
            priority=keys.lane_priority(key.lane),
            due_ms=max(0, chunk.due(index)),
            channels=found,
        )

    def _own_log(self, channel: Channel, sequence: int) -> Iterator[ChunkKey]:
        """A channel's own chunks, by base: of its retry lanes, and of its far buckets."""
        for lane, window in channel.windows.items():
            if keys.lane_channel(lane) and (entry := window.find(sequence)) is not None:
                yield entry.key
        for lane, order in self._far_of(channel.id):
            base = max(0, sequence - CHUNK_MESSAGES_MAX)
            yield from takewhile(lambda key: key.base <= sequence, self._keys_of(lane, order, base))

    def _keys_at(self, found: Iterable[ChunkKey], sequence: int) -> Iterator[ChunkKey]:
        return (key for key in found if key.base <= sequence < key.base + key.messages and key not in self.quarantined)

    def _life_in(self, channel: Channel, key: ChunkKey, sequence: int) -> ChannelLife:
        if self.is_held(key):
            return ChannelLife(channel.name, State.DELAYED)
        if not keys.lane_channel(key.lane) and key.base < channel.start:
            return ChannelLife(channel.name, State.DONE)
        seen = self._seen(channel, key, self._load(key), sequence - key.base)
        received_ms = first_ms = session = 0
        window = channel.windows.get(key.lane)
        entry = None if window is None else window.find(sequence)
        if keys.lane_kind(key.lane) == LaneKind.FAR and keys.lane_channel(key.lane):
            window, entry = self._far_entry(key)
        if window is not None and entry is not None and seen.state != State.DONE:
            if entry.is_whole:
                received_ms, first_ms, session = entry.received_ms, entry.first_ms, entry.holder
            else:
                row, columns = entry.start + sequence - entry.base, window.columns
                received_ms, first_ms = int(columns.received_ms[row]), int(columns.first_ms[row])
                session = int(columns.holder[row])
        return ChannelLife(
            channel.name,
            seen.state,
            seen.attempts,
            seen.deadline_ms,
            received_ms,
            first_ms,
            session,
            self.broker.session_name(session) if session else "",
            seen.failures,
        )

    def _seen_far(self, key: ChunkKey, chunk: Chunk, index: int) -> Seen:
        window, entry = self._far_entry(key)
        columns, sequence = window.columns, key.base + index
        attempts, deadline_ms = int(columns.attempts[index]), int(columns.deadline_ms[index])
        failures = entry.failures_of(sequence, sequence)
        return Seen(chunk, index, State.DELAYED, attempts, deadline_ms, failures, keys.lane_priority(key.lane))

    def stats(self) -> Stats:
        """Exact counts."""
        self.seal()
        firsts = [self.sent_ms(key) for lane in self.lanes for key in self._first_expiring(lane)]
        firsts += self.far_sent_ms(None)
        channels = {name: channel.stats() for name, channel in self.channels.items()}
        firsts += [channel.oldest_ms for channel in channels.values() if channel.oldest_ms is not None]
        return Stats(
            name=self.name,
            messages=self.messages,
            bytes=self.size,
            delayed=self._delayed(),
            sent=self.sent,
            quarantined=sum(key.messages for key in self.quarantined),
            oldest_ms=min(firsts, default=None),
            next_sequence=self.next_sequence,
            channels=channels,
            consumers={name: consumer.offset for name, consumer in self.consumers.items()},
            paused=self.held_from is not None,
            backlog=self.backlog,
            sent_bytes=self.sent_bytes,
        )

    def tally(self) -> QueueTally:
        """The queue in numbers that are at hand: no chunk and no key is looked at, as long as it has channels."""
        self.seal()
        ready = leased = delayed = acked = failed = dead = 0
        for channel in self.channels.values():
            for window in channel.windows.values():
                ready += window.ready
                leased += window.leased
                delayed += window.delayed
            ready += channel.ahead
            if self.far:
                delayed += self.far_count(channel)
            acked += channel.acked
            failed += channel.failed
            dead += channel.dead
        if not self.channels and self.messages:
            delayed = self._delayed()
        return QueueTally(
            self.name,
            self.config.partitions,
            self._note_busy(self.sent + acked),
            self.messages,
            self.size,
            sum(key.messages for key in self.quarantined) if self.quarantined else 0,
            ready,
            leased,
            delayed,
            self.sent,
            acked,
            failed,
            dead,
        )

    def _note_busy(self, moved: int) -> int:
        """How busy the queue is, when so many messages were ever sent and acknowledged."""
        now_ms = self.broker.now_ms
        if self._busy:
            self._busy *= 0.5 ** ((now_ms - self._busy_ms) / _BUSY_HALF_LIFE_MS)
        if moved > self._busy_moved:
            self._busy += moved - self._busy_moved
        self._busy_moved, self._busy_ms = moved, now_ms
        return round(self._busy)

    def count_out(self) -> None:
        """The queue is deleted: what happened in it has happened, and what it holds is gone."""
        totals = self.broker.totals
        totals.messages -= self._counted_messages
        totals.bytes -= self._counted_size
        totals.sent += self.sent - self._counted_sent
        self._counted_messages, self._counted_size, self._counted_sent = self.messages, self.size, self.sent

    def _delayed(self) -> int:
        """Messages sent with a delay that are not due. In FIFO queues, those that the channels look at."""
        total = sum(self.far[place] for place in self._far_of(0))
        for lane in self.lanes:
            if keys.lane_kind(lane) == LaneKind.WAITING:
                total += sum(key.messages for key in self._keys_of(lane) if key.aged_ms > self.broker.now_ms)
        if self.is_fifo:
            total += max((channel.never_delivered_delayed() for channel in self.channels.values()), default=0)
        return total

    def info(self) -> QueueInfo:
        ids = [channel.id for channel in self.channels.values()]
        return QueueInfo(
            self.name,
            self.id,
            self.config,
            self.created_ms,
            self.changed_ms,
            list(self.channels),
            ids,
            self.messages,
            self.size,
        )

    # -- stored form --

    def touch(self) -> None:
        """The queue's counters are out of date."""
        self._dirty[self] = None

    def save(self) -> None:
        """Write the queue's counters, and add to the broker's totals what has changed since the last time."""
        totals = self.broker.totals
        totals.messages += self.messages - self._counted_messages
        totals.bytes += self.size - self._counted_size
        totals.sent += self.sent - self._counted_sent
        self._counted_messages, self._counted_size, self._counted_sent = self.messages, self.size, self.sent
        counters = _COUNTERS.pack(
            self.next_sequence, self.messages, self.size, self.sent, self.is_fair, self.next_channel
        )
        self.write_buffer.changes.records[self._counters_key] = counters + bytes(self.lanes)
        if self.dedup.unsaved:
            self.dedup.save(self.write_buffer.changes)
        if self.config.deliver_unsynced or self.reserve is not None:
            self._save_reserve()

    def _save_reserve(self) -> None:
        """Set numbers aside, while messages may leave early."""
        if not (self.config.deliver_unsynced and self.broker.delivers_unsynced):
            self.release()
            return
        if self.reserve is None:
            self.reserve = Reserve(self.id)
        if self.reserve.extend(self.next_sequence, self.write_buffer.changes):
            self.broker.reserving.append(self.reserve)

    def release(self) -> None:
        """No message leaves early any more."""
        if self.reserve is not None:
            self.reserve.release(self.write_buffer.changes)
            self.reserve = None

    def skip_reserve(self) -> None:
        """The store was opened again: messages may have left early with these numbers, and be gone."""
        if self.reserve is not None and self.next_sequence < self.reserve.end:
            self.next_sequence = self.reserve.end
            self.touch()

    def save_config(self) -> None:
        settings = stored_settings(self.config, self.later_settings)
        record = QueueRecord(self.name, settings, self.created_ms, self.changed_ms, self.held_from, self.needs)
        self.write_buffer.changes.put_record(keys.record(Kind.QUEUE, self.id), _encode(record))
        self.touch()

    @classmethod
    def restore(cls, broker: Broker, queue_id: int, data: bytes) -> Queue:
        """Take a queue back from its record; counters, channels and the rest follow."""
        record = msgspec.msgpack.decode(data, type=QueueRecord)
        config, later_settings = from_stored(record.settings, record.needs)
        queue = cls(broker, queue_id, record.name, config, record.created_ms)
        queue.later_settings, queue.needs = later_settings, record.needs
        queue.changed_ms = record.changed_ms
        queue.held_from = record.held_from
        return queue

    def restore_counters(self, data: bytes) -> None:
        counters = _COUNTERS.unpack_from(data)
        self.next_sequence, self.messages, self.size, self.sent, self.is_fair, self.next_channel = counters
        self.lanes = list(data[_COUNTERS.size :])
        self.opened_to, self.opened_ms = self.next_sequence, self.broker.now_ms
        totals = self.broker.totals
        totals.messages += self.messages - self._counted_messages
        totals.bytes += self.size - self._counted_size
        self._counted_messages, self._counted_size, self._counted_sent = self.messages, self.size, self.sent

    def restored(self) -> None:
        """Channels are back: what happened before is no sign of being busy."""
        self._busy_moved = self.sent + sum(channel.acked for channel in self.channels.values())

    def restore_consumer(self, name: str, data: bytes) -> None:
        consumer = self.consumers[name] = msgspec.msgpack.decode(data, type=Consumer)
        if consumer.seen_ms > self.broker.now_ms:  # the clock was ahead
            consumer.seen_ms = self.broker.now_ms
            self._save_consumer(name)

    def restore_quarantine(self, key: bytes, data: bytes) -> None:
        """Take a quarantined chunk back from its record; what was found once is told again."""
        found, reason = ChunkKey.unpack(key), msgspec.msgpack.decode(data, type=QuarantineRecord).reason
        self.quarantined[found] = reason
        self.broker.reports.append(Damage(self.name, found.base, found.base + found.messages - 1, reason))

    def snapshot(self) -> dict[str, Any]:
        """All that is stored of the queue, comparable."""
        return {
            "id": self.id,
            "config": stored_settings(self.config, self.later_settings),
            "created": self.created_ms,
            "changed": self.changed_ms,
            "held_from": self.held_from,
            "counters": (self.next_sequence, self.messages, self.size, self.sent, self.is_fair, self.next_channel),
            "lanes": list(self.lanes),
            "channels": {channel.id: channel.snapshot() for channel in self.channels.values()},
            "consumers": {name: msgspec.to_builtins(consumer) for name, consumer in self.consumers.items()},
            "dedup": self.dedup.snapshot(),
            "far": dict(self.far),
            "quarantined": dict(self.quarantined),
            "reserve": None if self.reserve is None else self.reserve.end,
        }


_encode = msgspec.msgpack.Encoder().encode


def _bucket(due_ms: int, now_ms: int) -> int:
    """The bucket of a far due time, named by its start: wider the further ahead it is."""
    width = next(width for within, width in _BUCKETS if due_ms - now_ms < within)
    return due_ms - due_ms % width


def _by_sequence(seen: Seen) -> int:
    return seen.sequence


def _fitting(chunk: Chunk, start: int, stop: int, bytes_max: int) -> int:
    """Up to where bodies fit into so many bytes."""
    limit = int(chunk.offsets[start]) + bytes_max
    return min(stop, int(np.searchsorted(chunk.offsets, limit, side="right")) - 1)


def _by_base(key: ChunkKey) -> int:
    return key.base
