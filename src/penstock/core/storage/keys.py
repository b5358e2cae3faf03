"""The names under which a broker's chunks and state records lie in the store.

A chunk's key says all that can be asked of a chunk without reading it, so that retention, deletion, counting and
finding the next chunk never touch bodies:

    queue id  lane   order   base     count  bytes  aged ms
    8         4      8       8        4      4      8         big-endian, so that keys sort as numbers do

`lane` is channel (24 bits, 0 for lanes that all channels share), kind (4 bits) and priority (4 bits). `order` is 0, the
due bucket in the lanes of kind FAR, or the number of the stage in those of kind STAGED. `aged ms` is the time from
which retention counts: when the messages were sent, or the last due time among them.

A state record's key is its kind (1 byte), the queue's id (8), and what the kind needs to be unique.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

_CHUNK: Final = struct.Struct(">QIQQIIQ")
_LANE_PREFIX: Final = struct.Struct(">QIQ")
_LANE_START: Final = struct.Struct(">QIQQ")
_QUEUE: Final = struct.Struct(">BQ")
_ENTRY: Final = struct.Struct(">BQIIQ")
_LANE_OF_CHANNEL: Final = struct.Struct(">BQII")
_BUCKET: Final = struct.Struct(">BQIQ")
_FAR_ENTRY: Final = struct.Struct(">BQIQQ")
_SEGMENT: Final = struct.Struct(">BQIQ")
_DEDUP: Final = struct.Struct(">BQQQ")


class LaneKind(IntEnum):
    NORMAL = 0
    """Messages in the order they were sent; a channel walks it with a cursor."""
    WAITING = 1
    """Sent with a delay (shared), or failed and waiting for the next try (of one channel). Wholly in the window."""
    FAR = 2
    """Due further ahead than the horizon; in no window until its bucket's time comes."""
    STAGED = 3
    """Of a publish that is written in several commits: nobody walks it. See `core/storage/segments.py`."""


def lane_code(kind: LaneKind, priority: int, channel_id: int = 0) -> int:
    """Channel, kind and priority in one number.

    >>> hex(lane_code(LaneKind.WAITING, 3, channel_id=2))
    '0x213'
    """
    return channel_id << 8 | kind << 4 | priority


def lane_kind(lane: int) -> int:
    return lane >> 4 & 0xF


def lane_priority(lane: int) -> int:
    return lane & 0xF


def lane_channel(lane: int) -> int:
    """The channel that a lane belongs to; 0 when it is shared."""
    return lane >> 8


class ChunkKey:
    """A chunk's key, taken apart, and as the store sees it (`packed`).

    >>> key = ChunkKey(1, 0, 0, 100, 10, 2000, 5)
    >>> ChunkKey.unpack(key.packed) == key
    True
    """

    __slots__ = ("aged_ms", "base", "lane", "messages", "order", "packed", "queue_id", "size")

    def __init__(self, queue_id: int, lane: int, order: int, base: int, messages: int, size: int, aged_ms: int) -> None:
        self.queue_id = queue_id
        self.lane = lane
        self.order = order
        self.base = base
        self.messages = messages
        self.size = size
        self.aged_ms = aged_ms
        self.packed = _CHUNK.pack(queue_id, lane, order, base, messages, size, aged_ms)

    @classmethod
    def unpack(cls, packed: bytes) -> ChunkKey:
        return cls(*_CHUNK.unpack(packed))

    def moved(self, lane: int) -> ChunkKey:
        """The key of the same messages in another lane."""
        return ChunkKey(self.queue_id, lane, 0, self.base, self.messages, self.size, self.aged_ms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkKey) and self.packed == other.packed

    def __hash__(self) -> int:
        return hash(self.packed)

    def __repr__(self) -> str:
        return f"ChunkKey(queue {self.queue_id}, lane {self.lane:#x}/{self.order}, {self.messages} from {self.base})"


def queue_chunks(queue_id: int) -> bytes:
    """Prefix of all chunks of a queue."""
    return queue_id.to_bytes(8, "big")


def lane_chunks(queue_id: int, lane: int, order: int = 0) -> bytes:
    """Prefix of a lane's chunks (of one due bucket, in a FAR lane)."""
    return _LANE_PREFIX.pack(queue_id, lane, order)


def lane_start(queue_id: int, lane: int, base: int, order: int = 0) -> bytes:
    """Where to start listing, to find the first chunk with at least this base."""
    return _LANE_START.pack(queue_id, lane, order, base)


class Kind(IntEnum):
    """Kinds of state records."""

    META = 1
    QUEUE = 2
    COUNTERS = 3
    CHANNEL = 4
    ENTRY = 5
    BUCKET = 6
    FAR_ENTRY = 7
    CONSUMER = 8
    DEDUP = 9
    ATTEMPT = 10
    QUARANTINE = 11
    SESSION = 12
    TASK = 13
    MARK = 14
    ONCE = 15
    OUTBOX = 16
    OUTBOX_TARGET = 17
    RESERVE = 18
    SEGMENT = 19
    STAGE = 20


OF_A_QUEUE = (
    Kind.QUEUE,
    Kind.COUNTERS,
    Kind.CHANNEL,
    Kind.ENTRY,
    Kind.BUCKET,
    Kind.FAR_ENTRY,
    Kind.CONSUMER,
    Kind.DEDUP,
    Kind.ATTEMPT,
    Kind.QUARANTINE,
    Kind.RESERVE,
    Kind.SEGMENT,
)
"""What goes when a queue goes."""

_OF_A_QUEUE: Final = frozenset(map(int, OF_A_QUEUE))


def group_of(record_key: bytes) -> bytes:
    """What a record stands and falls with: the number of its queue (8 bytes, as in the keys of chunks), or its kind.

    >>> group_of(record(Kind.COUNTERS, 7)) == queue_chunks(7), group_of(record(Kind.SESSION, 7))
    (True, b'\\x0c')
    """
    return record_key[1:9] if record_key[:1] and record_key[0] in _OF_A_QUEUE else record_key[:1]


def record(kind: Kind, number: int = 0, rest: bytes = b"") -> bytes:
    """Key of a record of a queue (or of a session, a task: whatever the number counts)."""
    return _QUEUE.pack(kind, number) + rest


def number_of(key: bytes) -> int:
    return int.from_bytes(key[1:9], "big")


def channel_record(queue_id: int, channel_id: int) -> bytes:
    return record(Kind.CHANNEL, queue_id, channel_id.to_bytes(4, "big"))


def entry_record(entries: bytes, base: int) -> bytes:
    """Key of a chunk's delivery state, among the entries of a channel's lane (`lane_entries`)."""
    return entries + base.to_bytes(8, "big")


def unpack_entry(key: bytes) -> tuple[int, int, int, int]:
    """(queue id, channel id, lane, base) of an entry's key."""
    _, queue_id, channel_id, lane, base = _ENTRY.unpack(key)
    return queue_id, channel_id, lane, base


def channel_entries(queue_id: int, channel_id: int) -> bytes:
    """Prefix of a channel's entries."""
    return record(Kind.ENTRY, queue_id, channel_id.to_bytes(4, "big"))


def lane_entries(queue_id: int, channel_id: int, lane: int) -> bytes:
    """Prefix of a channel's entries of one lane."""
    return _LANE_OF_CHANNEL.pack(Kind.ENTRY, queue_id, channel_id, lane)


def bucket_record(queue_id: int, lane: int, order: int) -> bytes:
    return _BUCKET.pack(Kind.BUCKET, queue_id, lane, order)


def unpack_bucket(key: bytes) -> tuple[int, int, int]:
    """(queue id, lane, order) of a bucket's key."""
    _, queue_id, lane, order = _BUCKET.unpack(key)
    return queue_id, lane, order


def far_entry(queue_id: int, lane: int, order: int, base: int) -> bytes:
    """Key of the delivery state of a retried message that is due far ahead."""
    return _FAR_ENTRY.pack(Kind.FAR_ENTRY, queue_id, lane, order, base)


def far_entries(queue_id: int, lane: int, order: int) -> bytes:
    """Prefix of such states of one bucket."""
    return record(Kind.FAR_ENTRY, queue_id, lane.to_bytes(4, "big") + order.to_bytes(8, "big"))


def dedup_record(queue_id: int, bucket: int, first: int) -> bytes:
    """Key of the dedup ids that one commit added, in the bucket of the minute in which they are forgotten."""
    return _DEDUP.pack(Kind.DEDUP, queue_id, bucket, first)


def dedup_bucket(queue_id: int, bucket: int) -> bytes:
    """Prefix of a bucket of dedup ids."""
    return record(Kind.DEDUP, queue_id, bucket.to_bytes(8, "big"))


def segment_record(queue_id: int, lane: int, first: int) -> bytes:
    return _SEGMENT.pack(Kind.SEGMENT, queue_id, lane, first)


def unpack_segment(key: bytes) -> tuple[int, int, int]:
    """(queue id, lane, first number) of a segment's key."""
    _, queue_id, lane, first = _SEGMENT.unpack(key)
    return queue_id, lane, first


OUTBOX_QUEUES = 0xFF << 56
"""The chunks of outboxes lie under numbers that no queue has."""


def outbox_record(target: int, number: int) -> bytes:
    """Key of an entry of the outbox for a shard."""
    return record(Kind.OUTBOX, target, number.to_bytes(8, "big"))


def outbox_chunk(target: int, number: int) -> bytes:
    """Key of the messages of an entry. It follows from the number, so that nobody has to read what to delete."""
    return _CHUNK.pack(OUTBOX_QUEUES | target, 0, 0, number, 0, 0, 0)
