"""A piece: many messages for several queues in one body, as chunks, so that nobody takes them apart on the way.

A piece is sections end to end, each padded to 8 bytes:

    0   length of the head (u32, little-endian)
    4   length of the chunk (u32)
    8   head: MessagePack array [queue, priority, delay in ms or nil, due time in ms or nil]
    ..  padding to 8, then one chunk in its stored form, with its checksum (`core/storage/chunk.py`), and padding to 8

The chunk's base and time of sending are 0: whoever takes the piece gives the messages their own.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator

import msgspec

from penstock.core.commands import Send
from penstock.core.errors import ChunkDamaged, InvalidRequest
from penstock.core.queues.attributes import check_stored
from penstock.core.queues.origin import Origin
from penstock.core.storage.changes import Buffer
from penstock.core.storage.chunk import Chunk, PackedBodies, Section

CONTENT_TYPE = "application/vnd.penstock.piece"
ORIGIN_BYTES_MAX = 1 << 20
_LENGTHS = struct.Struct("<II")


class Target(msgspec.Struct, array_like=True, frozen=True):
    """Where the messages of a chunk go.

    >>> Target("orders", delay_ms=500)
    Target(queue='orders', priority=0, delay_ms=500, due_ms=None)
    """

    queue: str
    priority: int = 0
    delay_ms: int | None = None
    due_ms: int | None = None
    """An absolute time, instead of a delay."""


_decode_target = msgspec.msgpack.Decoder(Target).decode


def encode_section(target: Target, chunk: Chunk) -> list[Buffer]:
    """One section, in parts.

    >>> piece = b"".join(encode_section(Target("orders"), Chunk.of(0, 0, [b"one", b"two"])))
    >>> [(target.queue, chunk.body_list()) for target, chunk in decode_piece(piece)]
    [('orders', [b'one', b'two'])]
    """
    head = msgspec.msgpack.encode(target)
    parts = chunk.parts()
    length = sum(map(len, parts))
    before = _LENGTHS.pack(len(head), length) + head + bytes(-len(head) % 8)
    return [before, *parts, bytes(-length % 8)]


def decode_piece(piece: Buffer) -> Iterator[tuple[Target, Chunk]]:
    """The sections of a piece, their chunks over the piece's own memory. `InvalidRequest` if it is none."""
    view, at = memoryview(piece), 0
    while at < len(view):
        if at + _LENGTHS.size > len(view):
            raise InvalidRequest(f"the piece ends in the middle of a section, at byte {at}")
        head_length, chunk_length = _LENGTHS.unpack_from(view, at)
        head_at = at + _LENGTHS.size
        chunk_at = head_at + head_length + -head_length % 8
        end = chunk_at + chunk_length
        if end > len(view):
            raise InvalidRequest(f"the section at byte {at} of the piece should end at {end}, past its end")
        yield _section(view[head_at : head_at + head_length], view[chunk_at:end], at)
        at = end + -chunk_length % 8


def _section(head: memoryview, chunk: memoryview, at: int) -> tuple[Target, Chunk]:
    try:
        return _decode_target(head), Chunk.decode(chunk)
    except (msgspec.DecodeError, ChunkDamaged, ValueError) as error:
        raise InvalidRequest(f"the section at byte {at} of the piece cannot be read: {error}") from None


def send_of(target: Target, chunk: Chunk, *, sizes_only: bool = False) -> Send:
    """The command that sends a section's messages. Bodies stay in one piece; the rest is taken apart if it is there.

    With `sizes_only` the bodies have the right lengths and are blank: that is enough to check them, and costs nothing,
    because memory that nobody looks at is never filled.
    """
    bodies = bytes(len(chunk.bodies)) if sizes_only else bytes(chunk.bodies)
    attributes, dedup_ids = chunk.column(Section.ATTRIBUTES), chunk.column(Section.DEDUP_IDS)
    origins = chunk.column(Section.ORIGINS)
    values = None if attributes is None else attributes.values()
    histories = None if origins is None else origins.values()
    for index, value in enumerate(histories or ()):
        if value is not None:
            _check_origin(value, index, target.queue)
    for index, value in enumerate(values or ()):
        if value is not None:
            _check_attributes(value, index, target.queue)
    try:
        groups = chunk.group_list() if chunk.has_groups else None
        ids = None if dedup_ids is None else [None if each is None else each.decode() for each in dedup_ids.values()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"a group or dedup id for queue {target.queue!r} is not UTF-8: {error}") from None
    return Send(
        queue=target.queue,
        bodies=PackedBodies(bodies, chunk.offsets.copy()),  # or the whole piece would stay open
        attributes=values,
        groups=groups,
        dedup_ids=ids,
        origins=histories,
        priority=target.priority,
        delay_ms=target.delay_ms,
        due_ms=target.due_ms,
    )


def _check_attributes(value: bytes, index: int, queue: str) -> None:
    try:
        check_stored(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"message {index} for queue {queue!r}: {error}") from None


def _check_origin(value: bytes, index: int, queue: str) -> None:
    """Refuse bytes that are no history: once they are in a queue, nobody could read the message they belong to."""
    try:
        check_history(value)
    except ValueError as error:  # what msgspec raises is one
        raise InvalidRequest(f"message {index} for queue {queue!r}: its history cannot be read: {error}") from None


def stand_in_id(queue: str, sequence: int) -> str:
    """The id that a writer gives a dead letter whose message it knows by its number only: a server puts the real one.

    >>> stand_in_id("orders", 7)
    'd68a43ee-17fe-513f-b113-88164a2d3369'
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"penstock:{queue}/{sequence}"))


def check_history(value: bytes) -> None:
    """`ValueError` for bytes that are no history, or too long."""
    if len(value) > ORIGIN_BYTES_MAX:
        raise ValueError(f"it has {len(value)} bytes, and may have {ORIGIN_BYTES_MAX}")
    Origin.decode(value)


def piece_bytes(sections: Iterable[tuple[Target, Chunk]]) -> bytes:
    return b"".join(part for target, chunk in sections for part in encode_section(target, chunk))
