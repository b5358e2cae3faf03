"""How a commit looks in a journal file: one frame, checksummed, and numbered so that old bytes are never taken for new
ones.

    offset  size
         0     4  magic     b"PJf1"
         4     4  contents  length of the table of contents
         8     8  length    length of the payload: the table of contents and the chunks
        16     8  number    the commit's number, one higher than the one before
        24     8  checksum  xxh3-64 of the 24 bytes above and of the payload, seeded with the store's identity
        32     …  payload   table of contents (MessagePack), then the chunks end to end

All integers are little-endian. The table of contents is `[dropped prefixes, {chunk key: length, or nil to delete},
{record key: value, or nil to delete}]`. Frames start at multiples of 512 bytes: a sector that is torn while a frame is
written holds nothing of the frame before.

A segment file starts with one such sector of its own, the same in every segment of a store, so that recycling a file
does not have to rewrite it:

         0     8  magic     b"PENSTOCK"
         8     4  version   1
        12     4  zero
        16     8  identity  random, made when the store is created; the seed of every checksum
        24     8  checksum  xxh3-64 of the 24 bytes above

Behind the last frame, where the next one goes, stands a **mark**: written when the frame before it is durable, and not
synced itself. So a frame that was acknowledged and damaged later is not taken for one that was never finished. It is
the next frame's first sector that replaces it.

         0     4  magic     b"PJm1"
         4     4  rolled    1 if the commits go on in the next segment, which must be there then; else 0
         8     8  zero
        16     8  number    every commit up to this one is durable
        24     8  checksum  xxh3-64 of the 24 bytes above, seeded with the store's identity

The frames that a recycled file still holds from its earlier life have lower numbers than any frame written to it later;
that alone tells them apart. Because the checksum is seeded, a message whose body is a copy of some journal cannot pass
for a frame.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import xxhash

from penstock.core.storage.changes import Buffer, Changes
from penstock.store.errors import ADVICE, StoreDamaged, StoreVersion

ALIGNMENT: Final = 512
HEADER = struct.Struct("<4sIQQQ")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = b"PJf1"
MARK_MAGIC: Final = b"PJm1"
SEGMENT_MAGIC = b"PENSTOCK"
SEGMENT_VERSION = 1
FRAMES_START = ALIGNMENT
"""Where the first frame of a segment is."""

_MAGIC_WORD = int.from_bytes(MAGIC, "little")
_MARK_WORD = int.from_bytes(MARK_MAGIC, "little")
_UNSUMMED: Final = struct.Struct("<4sIQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_SEGMENT_HEADER = struct.Struct("<8sIIQ")

_encode_contents = msgspec.msgpack.Encoder().encode
_decode_contents = msgspec.msgpack.Decoder(
    tuple[list[bytes], dict[bytes, int | None], dict[bytes, bytes | None]]
).decode
_hasher = xxhash.xxh3_64
_digest = xxhash.xxh3_64_intdigest
_SMALL_BYTES: Final = 4096
"""Up to so many bytes are quicker copied together than hashed, and written, piece by piece."""


class StoredChunk:
    """A chunk as bytes, the way it comes back from a journal.

    >>> StoredChunk(b"abc").nbytes
    3
    """

    __slots__ = ("body",)

    def __init__(self, body: Buffer) -> None:
        self.body = body

    def parts(self) -> Sequence[Buffer]:
        return (self.body,)

    @property
    def nbytes(self) -> int:
        """The body's length."""
        return len(self.body)


def aligned(size: int) -> int:
    """The next offset at which a frame may start.

    >>> aligned(1), aligned(512), aligned(513)
    (512, 512, 1024)
    """
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def encode_frame(changes: Changes, number: int, identity: int) -> tuple[list[Buffer], int]:
    """A commit's frame, in parts, and how long they are together.

    >>> changes = Changes()
    >>> changes.put_chunk(b"key", StoredChunk(b"abc"))
    >>> parts, nbytes = encode_frame(changes, number=1, identity=7)
    >>> frame = frame_at(memoryview(b"".join(parts)), 0, identity=7)
    >>> frame.number, frame.changes().chunks[b"key"].parts(), nbytes == frame.nbytes
    (1, (b'abc',), True)
    """
    parts: list[Buffer] = []
    lengths: dict[bytes, int | None] = {}
    chunks_bytes = 0
    for key, chunk in changes.chunks.items():
        if chunk is None:
            lengths[key] = None
        else:
            lengths[key] = nbytes = chunk.nbytes
            chunks_bytes += nbytes
            parts.extend(chunk.parts())
    contents = _encode_contents((changes.dropped, lengths, changes.records))
    payload_bytes = len(contents) + chunks_bytes
    unsummed = _UNSUMMED.pack(MAGIC, len(contents), payload_bytes, number)
    if payload_bytes <= _SMALL_BYTES:
        payload = b"".join((contents, *parts))
        checksum = _CHECKSUM.pack(_digest(unsummed + payload, identity))
        return [b"".join((unsummed, checksum, payload))], HEADER_BYTES + payload_bytes
    checksum = _CHECKSUM.pack(_checksum(unsummed, (contents, *parts), identity))
    return [unsummed + checksum, contents, *parts], HEADER_BYTES + payload_bytes


def _checksum(unsummed: Buffer, payload: Iterable[Buffer], identity: int) -> int:
    hasher = _hasher(unsummed, seed=identity)
    update = hasher.update
    for part in payload:
        update(part)
    return int(hasher.intdigest())


def _decode_payload(payload: memoryview, contents_bytes: int) -> Changes:
    changes = Changes()
    changes.dropped, lengths, changes.records = _decode_contents(payload[:contents_bytes])
    offset = contents_bytes
    for key, length in lengths.items():
        if length is None:
            changes.chunks[key] = None
        else:
            changes.chunks[key] = StoredChunk(bytes(payload[offset : offset + length]))
            offset += length
    return changes


def segment_header(identity: int) -> bytes:
    """The first sector of every segment of a store.

    >>> check_segment_header(segment_header(7), 7, "a file")
    """
    unsummed = _SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 0, identity)
    return (unsummed + _CHECKSUM.pack(_hasher(unsummed).intdigest())).ljust(ALIGNMENT, b"\0")


def check_segment_header(sector: bytes, identity: int, path: object) -> None:
    """Refuse a segment that is damaged, of a later version, or of another store."""
    if sector == segment_header(identity):
        return
    unsummed = sector[: _SEGMENT_HEADER.size]
    summed = _CHECKSUM.pack(_hasher(unsummed).intdigest())
    if len(sector) < ALIGNMENT or sector[: len(SEGMENT_MAGIC)] != SEGMENT_MAGIC or sector[24:32] != summed:
        raise StoreDamaged(f"journal segment {path}: its header, at byte 0, is damaged. {ADVICE}")
    _, version, _, found = _SEGMENT_HEADER.unpack(unsummed)
    if found == identity and version == SEGMENT_VERSION:
        raise StoreDamaged(f"journal segment {path}: its header, at byte 0, is damaged. {ADVICE}")
    if version > SEGMENT_VERSION:
        raise StoreVersion(
            f"journal segment {path} has format {version}; this version of Penstock knows {SEGMENT_VERSION}. "
            "Open the directory with the version that wrote it, or a later one."
        )
    raise StoreDamaged(
        f"journal segment {path} belongs to store {found:016x}, but the table belongs to store {identity:016x}. "
        "Put the journal and the table of the same store together again."
    )


class Frame:
    """A frame that was found in a segment, its checksum verified."""

    __slots__ = ("_contents_bytes", "_payload", "number", "offset")

    def __init__(self, number: int, offset: int, contents_bytes: int, payload: memoryview) -> None:
        self.number = number
        self.offset = offset
        self._contents_bytes = contents_bytes
        self._payload = payload

    @property
    def nbytes(self) -> int:
        """How long the frame is, its header included."""
        return HEADER_BYTES + len(self._payload)

    @property
    def end(self) -> int:
        """Where the next frame starts."""
        return aligned(self.offset + self.nbytes)

    def changes(self) -> Changes:
        """The commit in this frame; its chunks are copies."""
        return _decode_payload(self._payload, self._contents_bytes)


def frame_at(data: memoryview, offset: int, identity: int, above: int = 0) -> Frame | None:
    """The frame at an offset with a number above `above`, or None if there is no whole and undamaged one."""
    if offset + HEADER_BYTES > len(data):
        return None
    magic, contents_bytes, payload_bytes, number, checksum = HEADER.unpack_from(data, offset)
    start = offset + HEADER_BYTES
    if magic != MAGIC or number <= above or contents_bytes > payload_bytes or start + payload_bytes > len(data):
        return None
    payload = data[start : start + payload_bytes]
    if _checksum(data[offset : offset + _UNSUMMED.size], (payload,), identity) != checksum:
        return None
    return Frame(number, offset, contents_bytes, payload)


def broken_frames(data: bytes, start: int, stop: int) -> Iterator[tuple[int, Changes]]:
    """The numbers and commits of frames between two offsets whose checksums do not match, as far as they can be read.

    Nothing of them is to be trusted that has no checksum of its own.
    """
    view = memoryview(data)
    for offset in range(aligned(start), stop - HEADER_BYTES, ALIGNMENT):
        magic, contents_bytes, payload_bytes, number, _ = HEADER.unpack_from(view, offset)
        if magic == MAGIC and contents_bytes <= payload_bytes:
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError):
                yield number, _decode_payload(view[offset + HEADER_BYTES :][:payload_bytes], contents_bytes)


def frames_from(data: memoryview, offset: int, identity: int) -> Iterator[Frame]:
    """The frames that follow each other from an offset, each numbered one higher than the one before."""
    frame = frame_at(data, offset, identity)
    while frame is not None:
        yield frame
        following = frame_at(data, frame.end, identity, above=frame.number)
        frame = following if following is not None and following.number == frame.number + 1 else None


def encode_mark(number: int, identity: int, rolled: bool = False) -> bytes:
    """What stands behind the last durable frame.

    >>> mark_at(memoryview(encode_mark(7, 1, True)), 0, identity=1)
    (7, True)
    """
    unsummed = _UNSUMMED.pack(MARK_MAGIC, rolled, 0, number)
    return unsummed + _CHECKSUM.pack(_digest(unsummed, identity))


def mark_at(data: memoryview, offset: int, identity: int) -> tuple[int, bool] | None:
    """The number up to which a mark says that commits are durable, and whether they go on in the next segment."""
    if offset + HEADER_BYTES > len(data):
        return None
    magic, rolled, _, number, checksum = HEADER.unpack_from(data, offset)
    if magic != MARK_MAGIC or _digest(bytes(data[offset : offset + _UNSUMMED.size]), identity) != checksum:
        return None
    return number, bool(rolled)


def find_mark(data: bytes, offset: int, identity: int, above: int) -> int | None:
    """The highest commit that a mark at or behind an offset says was durable, if it is above `above`."""
    start = aligned(offset)
    words = np.frombuffer(data, dtype="<u4", count=len(data) // 4)
    view = memoryview(data)
    found = above
    for sector in np.flatnonzero(words[start // 4 :: ALIGNMENT // 4] == _MARK_WORD):
        mark = mark_at(view, start + int(sector) * ALIGNMENT, identity)
        if mark is not None:
            found = max(found, mark[0])
    return found if found > above else None


def find_frame(data: bytes, offset: int, identity: int, above: int) -> Frame | None:
    """The first whole frame at or behind an offset whose number is above `above`, wherever it starts."""
    start = aligned(offset)
    words = np.frombuffer(data, dtype="<u4", count=len(data) // 4)
    view = memoryview(data)
    for sector in np.flatnonzero(words[start // 4 :: ALIGNMENT // 4] == _MAGIC_WORD):
        frame = frame_at(view, start + int(sector) * ALIGNMENT, identity, above)
        if frame is not None:
            return frame
    return None
