"""Segments: runs of chunks that were written before they had their numbers.

A publish that is too large for one commit is written beforehand, in commits of its own, to lanes of kind STAGED, which
nobody walks. Its messages are numbered from 0 there. The commit that makes them visible is small: for each run of them
it writes a *segment*, which says from which number on they stand in their queue, and when they were sent.

    staged     chunk (queue, STAGED p, order, at, count, bytes, 0)                 at = 0 for the first message
    segment    record (SEGMENT, queue, NORMAL p, first) = order, count, sent, left
    seen as    chunk (queue, NORMAL p, 0, first + at, count, bytes, sent)

The chunks stay where they are. Only the write buffer knows that: whatever the core asks it about a chunk of a NORMAL
lane whose number is in a segment, it does to the staged chunk. A segment goes with the last of its messages (`left`).

The outbox of a shard is numbered by entries, whose chunks have keys like those of a NORMAL lane: the same holds there.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

import msgspec

from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import ChunkKey, LaneKind, lane_code
from penstock.core.storage.records import SegmentRecord


class Segment:
    """Numbers `first` to `first + count - 1` of a queue, whose chunks are staged ones."""

    __slots__ = ("count", "first", "lane", "left", "order", "queue_id", "sent_ms")

    def __init__(self, queue_id: int, lane: int, first: int, record: SegmentRecord) -> None:
        self.queue_id = queue_id
        self.lane = lane
        self.first = first
        self.order = record.order
        self.count = record.count
        self.sent_ms = record.sent_ms
        self.left = record.left

    def stored(self, key: ChunkKey) -> ChunkKey:
        """Where a chunk lies that is seen under this key."""
        at = key.base - self.first
        return ChunkKey(self.queue_id, staged_lane(self.lane), self.order, at, key.messages, key.size, 0)

    def seen(self, stored: ChunkKey) -> ChunkKey:
        """The key under which a staged chunk is seen."""
        base = self.first + stored.base
        return ChunkKey(self.queue_id, self.lane, 0, base, stored.messages, stored.size, self.sent_ms)

    @property
    def record(self) -> SegmentRecord:
        return SegmentRecord(self.order, self.count, self.sent_ms, self.left)

    @property
    def record_key(self) -> bytes:
        return keys.segment_record(self.queue_id, self.lane, self.first)


def staged_lane(lane: int) -> int:
    """Where the chunks of a NORMAL lane wait until they are numbered.

    >>> hex(staged_lane(lane_code(LaneKind.NORMAL, 3)))
    '0x33'
    """
    return lane_code(LaneKind.STAGED, keys.lane_priority(lane))


class Segments:
    """All segments of a store, by queue.

    >>> segments = Segments()
    >>> segments.add(Segment(7, 0, 100, SegmentRecord(order=1, count=10, sent_ms=5, left=10)))
    >>> segments.of_key(ChunkKey(7, 0, 0, 104, 2, 8, 5)).stored(ChunkKey(7, 0, 0, 104, 2, 8, 5))
    ChunkKey(queue 7, lane 0x30/1, 2 from 4)
    >>> segments.of_key(ChunkKey(7, 0, 0, 110, 1, 8, 5))
    """

    def __init__(self) -> None:
        self.by_queue: dict[int, list[Segment]] = {}
        """By queue, in the order of their numbers."""
        self.unsaved: dict[Segment, None] = {}

    def of(self, queue_id: int) -> list[Segment]:
        return self.by_queue.get(queue_id, [])

    def of_key(self, key: ChunkKey) -> Segment | None:
        found = self.by_queue.get(key.queue_id)
        if found is None or key.order or key.lane >> 4:  # of a kind other than NORMAL, or of a channel
            return None
        at = bisect_right(found, key.base, key=_first_of) - 1
        return found[at] if at >= 0 and key.base < found[at].first + found[at].count else None

    def add(self, segment: Segment) -> None:
        """Staged chunks have got their numbers."""
        insort(self.by_queue.setdefault(segment.queue_id, []), segment, key=_first_of)
        self.unsaved[segment] = None

    def count(self, segment: Segment, messages: int) -> None:
        """A segment has so many messages more, or fewer; without any it goes."""
        segment.left += messages
        self.unsaved[segment] = None
        if segment.left <= 0:
            found = self.by_queue[segment.queue_id]
            found.remove(segment)
            if not found:
                del self.by_queue[segment.queue_id]

    def drop(self, queue_id: int, changes: Changes) -> None:
        for segment in self.by_queue.pop(queue_id, []):
            self.unsaved.pop(segment, None)
        changes.drop(keys.record(keys.Kind.SEGMENT, queue_id))

    def save(self, changes: Changes) -> None:
        for segment in self.unsaved:
            changes.records[segment.record_key] = msgspec.msgpack.encode(segment.record) if segment.left > 0 else None
        self.unsaved.clear()

    def restore(self, key: bytes, data: bytes) -> Segment:
        segment = Segment(*keys.unpack_segment(key), msgspec.msgpack.decode(data, type=SegmentRecord))
        insort(self.by_queue.setdefault(segment.queue_id, []), segment, key=_first_of)
        return segment

    def snapshot(self) -> dict[str, Any]:
        """All that is stored of them, comparable."""
        every = (segment for found in self.by_queue.values() for segment in found)
        return {each.record_key.hex(): msgspec.to_builtins(each.record) for each in every}


def _first_of(segment: Segment) -> int:
    return segment.first
