"""A queue of which something stored is damaged or missing, made whole from what is readable of it.

Nothing is sent again. Messages stay in their chunks, under their numbers, so ids, order, retries, delays and dead
letters' histories are what they were; and what a readable record says of deliveries still counts. What follows from
other things is computed anew: counters, where cursors stand, how many wait. Only a lost record leaves a doubt:

- Of a chunk that a channel may have had in work, nobody knows which messages are done. All of them are ready again.
- A channel whose record is lost gets another name, and every message whose state is not known.
- A queue whose own record is lost gets another name, and the default settings.

Where a queue promises to deliver at most so many times, and there is a doubt, its channels are paused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.core.delivery.channel import Channel
from penstock.core.delivery.columns import DONE
from penstock.core.delivery.window import Cursor, Entry, Window
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.dedup import Dedup
from penstock.core.queues.partition import PARTITION_SHIFT, SHARD_SHIFT, partition_of
from penstock.core.queues.queue import Queue
from penstock.core.queues.reserve import AHEAD, Reserve
from penstock.core.storage import keys
from penstock.core.storage.keys import ChunkKey, Kind, LaneKind
from penstock.core.storage.records import AttemptRecord, Consumer, SegmentRecord
from penstock.core.storage.segments import Segment, staged_lane

if TYPE_CHECKING:
    from penstock.core.broker import Broker

MAIN = "main"


class Repaired(msgspec.Struct):
    """What became of a queue."""

    name: str
    notes: list[str]
    """What could not be kept as it was."""


def repair(
    broker: Broker,
    queue_id: int,
    records: Mapping[bytes, bytes],
    chunks: Collection[ChunkKey],
    *,
    lost: Collection[ChunkKey] = (),
    damaged: Collection[bytes] | None = None,
) -> Repaired:
    """Make a queue that the broker does not have of its readable `records` and `chunks`, which the store has already.

    `lost` are the keys of chunks that are not readable, and `damaged` those of records; None: which is not known.
    """
    return _Repair(broker, queue_id, records, chunks, lost, damaged).run()


class _Repair:
    def __init__(
        self,
        broker: Broker,
        queue_id: int,
        records: Mapping[bytes, bytes],
        chunks: Collection[ChunkKey],
        lost: Collection[ChunkKey],
        damaged: Collection[bytes] | None,
    ) -> None:
        self._broker = broker
        self._id = queue_id
        self._records = records
        self._chunks = sorted(chunks, key=lambda key: key.base)
        self._lost = lost
        self._damaged = None if damaged is None else set(damaged)
        self._notes: list[str] = []
        self._channels: dict[int, Channel] = {}
        self._made: set[int] = set()
        """Channels whose records are lost."""
        self._doubtful: dict[str, int] = defaultdict(int)
        """How many messages of a channel may have been done."""

    def run(self) -> Repaired:
        queue = self._queue = self._restore_queue()
        self._restore_segments()
        self._near = {(key.lane, key.base): key for key in self._chunks if not key.order}
        self._restore_counters()
        self._restore_channels()
        self._restore_entries()
        for channel in self._channels.values():
            self._complete_cursors(channel)
            self._complete_entries(channel)
            self._drop_moved_rows(channel)
            self._take_back_lost_retries(channel)
        self._restore_far()
        self._keep_the_rest()
        self._number_on()
        self._tell()
        queue.save_config()
        for channel in self._channels.values():
            channel.touch()
            for window in channel.windows.values():
                for entry in window.entries.values():
                    queue.write_buffer.touch(window, entry)
        self._broker.queues[queue.name] = self._broker.queues_by_id[queue.id] = queue
        queue.sweep()
        return Repaired(queue.name, self._notes)

    def _of(self, kind: Kind) -> Iterator[tuple[bytes, bytes]]:
        prefix = keys.record(kind, self._id)
        return ((key, value) for key, value in sorted(self._records.items()) if key.startswith(prefix))

    def _is_unreadable(self, record_key: bytes) -> None:
        """A record is whole, and makes no sense."""
        if self._damaged is not None:
            self._damaged.add(record_key)

    # -- the queue --

    def _restore_queue(self) -> Queue:
        try:
            queue = Queue.restore(self._broker, self._id, self._records[keys.record(Kind.QUEUE, self._id)])
        except Exception:
            self._notes.append("its name and settings are not readable: it has another name, and the default settings")
            queue = Queue(self._broker, self._id, "", QueueConfig(), self._broker.now_ms)
        if not queue.name or queue.name in self._broker.queues:
            queue.name = self._free_name(queue.name)
        return queue

    def _free_name(self, name: str) -> str:
        """A name that no queue has, and that leads to this shard."""
        meta, stem = self._broker.meta, f"{name}-salvaged-{self._id}".removeprefix("-")
        number = 0
        found = stem
        while found in self._broker.queues or partition_of(found, meta.shards) != meta.shard:
            number += 1
            found = f"{stem}-{number}"
        return found

    def _restore_segments(self) -> None:
        """What large publishes have written is known by the numbers that they gave it.

        Where such a record is lost, nobody knows the numbers, or whether the publish ever came to its end. Its messages
        get the next ones.
        """
        buffer = self._broker.write_buffer
        found: dict[tuple[int, int], Segment] = {}
        for key, value in self._of(Kind.SEGMENT):
            try:
                segment = buffer.segments.restore(key, value)
            except Exception:
                self._is_unreadable(key)
                continue
            found[staged_lane(segment.lane), segment.order] = segment
        own = [key for key in self._chunks if keys.lane_kind(key.lane) != LaneKind.STAGED]
        staged = [key for key in self._chunks if keys.lane_kind(key.lane) == LaneKind.STAGED]
        may_be_lost = self._damaged is None or any(key[0] == Kind.SEGMENT for key in self._damaged)
        ends = [key.base + key.messages for key in own] + [each.first + each.count for each in found.values()]
        if (counters := self._records.get(keys.record(Kind.COUNTERS, self._id))) is not None:
            ends.append(int.from_bytes(counters[:8], "little"))
        for place in dict.fromkeys((key.lane, key.order) for key in staged):
            some = [key for key in staged if (key.lane, key.order) == place]
            if not buffer.reader.list_chunks(some[0].packed, b"", 1):  # they were dropped when the store was opened
                continue
            if place not in found and not may_be_lost:  # it never came to its end
                buffer.changes.drop(keys.lane_chunks(self._id, *place))
                continue
            if place not in found:
                count = some[-1].base + some[-1].messages
                record = SegmentRecord(place[1], count, self._broker.now_ms, count)
                lane = keys.lane_code(LaneKind.NORMAL, keys.lane_priority(place[0]))
                found[place] = Segment(self._id, lane, max(ends, default=0), record)
                ends.append(found[place].first + count)
                buffer.segments.add(found[place])
                self._notes.append(f"the numbers of {count} messages of a large publish are lost: they have got others")
            own += map(found[place].seen, some)
        for segment in found.values():
            left = sum(key.messages for key in own if segment.first <= key.base < segment.first + segment.count)
            buffer.segments.count(segment, left - segment.left)
        self._lost = [
            found[key.lane, key.order].seen(key) if (key.lane, key.order) in found else key for key in self._lost
        ]
        self._chunks = sorted(own, key=lambda key: key.base)

    def _restore_counters(self) -> None:
        queue = self._queue
        key = keys.record(Kind.COUNTERS, self._id)
        try:
            queue.restore_counters(self._records[key])
        except Exception:
            meta = self._broker.meta
            queue.next_sequence = ((meta.shard - (self._id >> SHARD_SHIFT)) % meta.shards) << PARTITION_SHIFT
            queue.next_sequence += AHEAD  # no number is given twice, whatever was sent and is gone
            queue.sent = sum(key.messages for key in self._chunks)
            queue.next_channel = 2
            queue.is_fair = not queue.is_fifo and any(queue.write_buffer.load(key).has_groups for key in self._chunks)
            self._is_unreadable(key)
        queue.messages = sum(key.messages for key in self._chunks)
        queue.size = sum(key.size for key in self._chunks)
        used = [key.lane for key in self._chunks if not key.order and not keys.lane_channel(key.lane)]
        queue.lanes = list(dict.fromkeys([*queue.lanes, *used]))

    def _number_on(self) -> None:
        """The next number is one that nothing had which is known of."""
        queue = self._queue
        known = [key.base + key.messages for key in (*self._chunks, *self._lost)]
        known += [cursor.sequence for channel in self._channels.values() for cursor in channel.cursors.values()]
        known += [channel.start for channel in self._channels.values()]
        known += [consumer.offset for consumer in queue.consumers.values()]
        if keys.record(Kind.COUNTERS, self._id) not in self._records:
            known = [number + AHEAD for number in known]
        queue.next_sequence = max([queue.next_sequence, *known])
        queue.next_channel = max([queue.next_channel, *(number + 1 for number in self._channels)])

    # -- channels --

    def _restore_channels(self) -> None:
        for key, value in self._of(Kind.CHANNEL):
            channel_id = int.from_bytes(key[9:13], "big")
            try:
                self._channels[channel_id] = Channel.restore(self._queue, channel_id, value)
            except Exception:
                self._is_unreadable(key)
        for channel_id in sorted(self._known_channels() - self._channels.keys()):
            taken = {channel.name for channel in self._channels.values()}
            name = f"salvaged-{channel_id}" if MAIN in taken or channel_id > 1 else MAIN
            self._channels[channel_id] = Channel(self._queue, channel_id, name, 0)
            self._made.add(channel_id)
            self._notes.append(f"the record of channel {channel_id} is not readable: it is called {name!r}")
        self._queue.channels = {channel.name: channel for channel in self._channels.values()}

    def _known_channels(self) -> set[int]:
        found = {int.from_bytes(key[9:13], "big") for kind in (Kind.CHANNEL, Kind.ENTRY) for key, _ in self._of(kind)}
        found |= {int.from_bytes(key[9:13], "big") for key in self._damaged or () if key[0] == Kind.CHANNEL}
        found |= {keys.lane_channel(key.lane) for key in self._chunks} - {0}
        if not found and self._damaged is None and self._queue.next_channel > 1:
            found.add(1)
        return found

    def _restore_entries(self) -> None:
        for key, value in self._of(Kind.ENTRY):
            try:
                _, channel_id, lane, base = keys.unpack_entry(key)
                chunk_key = self._near.get((lane, base))
                if chunk_key is None:
                    continue  # its messages are lost, or done
                self._check_entry(value, chunk_key, channel_id)
                self._channels[channel_id].restore_entry(lane, base, value)
            except Exception:
                self._is_unreadable(key)

    def _check_entry(self, value: bytes, chunk_key: ChunkKey, channel_id: int) -> int:
        """Raise unless an entry's record is about this chunk. Returns how many messages are not done."""
        entry = Window(self._id, channel_id, chunk_key.lane).add_encoded(chunk_key.base, value)
        if entry.key != chunk_key or len(value) == 0:
            raise ValueError(f"{entry.key} is not {chunk_key}")
        return entry.left

    def _complete_cursors(self, channel: Channel) -> None:
        """A cursor stands behind all that was ever handed out, and counts what is there."""
        own = [key.base for key in self._chunks if keys.lane_channel(key.lane) == channel.id]
        retried = max(own, default=-1)
        for lane in self._queue.lanes:
            window = channel.window(lane)
            if keys.lane_kind(lane) != LaneKind.NORMAL:
                continue
            cursor = channel.cursors.setdefault(lane, Cursor(channel.start))
            chunks = [key for key in self._chunks if key.lane == lane]
            handed_out = [entry.stop for entry in window.entries.values()]
            handed_out += [key.base + key.messages for key in chunks if key.base <= retried < key.base + key.messages]
            sequence = max([cursor.sequence, *handed_out])
            ahead = [key for key in chunks if key.base >= max(sequence, channel.start)]
            cursor.restart(sequence, sum(key.messages for key in ahead if not self._queue.is_held(key)))

    def _complete_entries(self, channel: Channel) -> None:
        """Chunks that may have been in work, and of which nothing is known, are ready."""
        for key in self._chunks:
            owner = keys.lane_channel(key.lane)
            if key.order or owner not in (0, channel.id) or key.base in channel.window(key.lane).entries:
                continue
            if not owner:
                cursor = channel.cursors.get(key.lane)
                is_ahead = cursor is not None and key.base >= cursor.sequence
                if is_ahead or key.base < channel.start or self._queue.is_held(key):
                    continue
                if not self._is_in_doubt(channel, key):
                    continue
            entry = self._add_entry(channel, key)
            if owner:  # it was delivered, nobody knows how often
                entry.attempts = 1
                entry.received_ms = entry.first_ms = entry.sent_ms
            self._doubtful[channel.name] += entry.count

    def _is_in_doubt(self, channel: Channel, key: ChunkKey) -> bool:
        if self._damaged is None or channel.id in self._made:
            return True
        return keys.entry_record(keys.lane_entries(self._id, channel.id, key.lane), key.base) in self._damaged

    def _add_entry(self, channel: Channel, key: ChunkKey) -> Entry:
        """All messages of a chunk are ready, or wait until they are due."""
        chunk, window = self._queue.write_buffer.load(key), channel.window(key.lane)
        entry = window.add(key, chunk.sent_ms)
        if chunk.due_ms is not None and not keys.lane_channel(key.lane):
            late = np.flatnonzero(chunk.due_ms > self._broker.now_ms)
            window.columns.hold_back(late + window.all_rows(entry).start, chunk.due_ms[late])
            window.ready -= len(late)
            window.delayed += len(late)
        return entry

    def _drop_moved_rows(self, channel: Channel) -> None:
        """What waits in a channel's own lane is done where it was before."""
        own = [key for key in self._chunks if keys.lane_channel(key.lane) == channel.id]
        for key in own:
            for window in channel.windows.values():
                if keys.lane_channel(window.lane):
                    continue
                for entry, first, stop in window.overlaps(key.base, key.base + key.messages):
                    rows = window.rows(entry, first, stop)
                    window.uncount(entry, first, stop)
                    waiting = np.flatnonzero(window.columns.state[rows] != DONE) + rows.start
                    entry.left -= len(waiting)
                    window.columns.settle(waiting)
                    if not entry.left:
                        window.remove(entry)

    def _take_back_lost_retries(self, channel: Channel) -> None:
        """A retry whose chunk is not readable is ready where it was before, if that chunk is still there."""
        for lost in self._lost:
            if keys.lane_channel(lost.lane) != channel.id:
                continue
            for key in self._chunks:
                first, stop = max(lost.base, key.base), min(lost.base + lost.messages, key.base + key.messages)
                if keys.lane_channel(key.lane) or key.order or first >= stop:
                    continue
                window = channel.window(key.lane)
                entry = window.entries.get(key.base)
                if entry is None:
                    entry = self._add_entry(channel, key)
                    window.uncount(entry, entry.base, entry.stop)
                    window.columns.settle(window.all_rows(entry))
                    entry.left = 0
                rows = window.rows(entry, first, stop)
                done = np.flatnonzero(window.columns.state[rows] == DONE) + rows.start
                window.columns.take_back(done)
                window.ready += len(done)
                entry.left += len(done)

    # -- the rest --

    def _restore_far(self) -> None:
        """Buckets are counted anew; a retry far ahead has a record, or comes when its bucket does."""
        queue, changes = self._queue, self._queue.write_buffer.changes
        queue.far = {}
        for channel in self._channels.values():
            channel.far_behind = {}
        for key in self._chunks:
            if not key.order:
                continue
            owner, count = keys.lane_channel(key.lane), key.messages
            if owner:
                record_key = keys.far_entry(self._id, key.lane, key.order, key.base)
                try:
                    value = self._records[record_key]
                    count = self._check_entry(value, key, owner)
                except Exception:
                    value = self._far_entry(key)
                    self._doubtful[self._channels[owner].name] += count
                changes.put_record(record_key, value)
            else:
                for channel in self._channels.values():
                    if key.base < channel.start:
                        behind = channel.far_behind.get((key.lane, key.order), 0)
                        channel.far_behind[key.lane, key.order] = behind + count
            queue.add_to_bucket(key.lane, key.order, count, self._broker.now_ms)

    def _far_entry(self, key: ChunkKey) -> bytes:
        window = Window(self._id, keys.lane_channel(key.lane), key.lane)
        entry = window.add(key, self._queue.write_buffer.load(key).sent_ms)
        window.columns.hold_back(window.all_rows(entry), key.order)
        window.columns.attempts[window.all_rows(entry)] = 1
        return window.encode(entry)

    def _keep_the_rest(self) -> None:
        """Consumers, deduplication ids, attempt ids and set-aside numbers stay, as far as they are readable."""
        changes = self._queue.write_buffer.changes
        for kind in (Kind.CONSUMER, Kind.DEDUP, Kind.ATTEMPT, Kind.RESERVE):
            for key, value in self._of(kind):
                try:
                    if kind == Kind.CONSUMER:
                        self._queue.consumers[key[9:].decode()] = msgspec.msgpack.decode(value, type=Consumer)
                    elif kind == Kind.DEDUP:
                        Dedup(self._id).restore(value)
                    elif kind == Kind.ATTEMPT:
                        self._channels[int.from_bytes(key[9:13], "big")]
                        key[13:].decode()
                        msgspec.msgpack.decode(value, type=AttemptRecord)
                    else:
                        Reserve.restore(self._id, value)
                except Exception:
                    self._is_unreadable(key)
                    continue
                changes.put_record(key, value)

    def _tell(self) -> None:
        for name, count in self._doubtful.items():
            self._notes.append(
                f"channel {name!r}: what became of {count} messages is not known: they may be delivered again"
            )
        gone = {Kind.CONSUMER: "a consumer", Kind.DEDUP: "deduplication ids", Kind.ATTEMPT: "a receive attempt id"}
        for kind, what in gone.items():
            if any(key[0] == kind for key in self._damaged or ()):
                self._notes.append(f"{what} could not be read, and is forgotten")
        is_in_doubt = self._doubtful or self._made or self._damaged is None
        if self._queue.config.policy != "at_least_once" and is_in_doubt:
            for channel in self._channels.values():
                channel.paused = True
            self._notes.append(
                "it limits how often messages are delivered, and how often they were is not known: its channels are "
                "paused"
            )
