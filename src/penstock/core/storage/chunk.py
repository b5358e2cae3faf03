"""A chunk: a run of consecutive messages, stored, cached and shipped as one piece.

Stored form, little-endian; `head` and `bodies` follow each other, and are kept apart in memory so that the bodies are
copied once, when they are joined:

    0   magic "PSCK"          16  base (i64)           32  count (u32)       40  length of the head (u32)
    4   version (u32)         24  sent ms (i64)        36  sections (u32)    44  length of the bodies (u32)
    8   xxh3-64 of all from byte 16 on
    48  offsets: int32[count + 1]     the bodies' offsets; with the bodies, exactly an Arrow binary array
    ..  the sections that are there, each padded to 8 bytes, in the order of `Section`:
          binary sections: int32[count + 1] offsets and the bytes; an empty value is no value
          DUE: int64[count]
    ..  padding to 8, then the bodies end to end

The offsets are computed when somebody needs them (a commit to disk, a reader): a run that is sent, leased and
acknowledged in memory never needs them. Identity is derived, not stored: sequence number = base + index.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from enum import IntFlag
from itertools import accumulate, pairwise
from typing import Any, Final, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from penstock.core.errors import ChunkDamaged
from penstock.core.storage.changes import Buffer

_HEAD: Final = struct.Struct("<4sIQqqIIII")
_UNCHECKED: Final = struct.Struct("<4sIQ")
_CHECKED: Final = struct.Struct("<qqIIII")
_TWO_OFFSETS: Final = struct.Struct("<ii")
assert _UNCHECKED.size + _CHECKED.size == _HEAD.size
_MAGIC: Final = b"PSCK"
_VERSION: Final = 1
_CHECKED_FROM: Final = 16
_OFFSETS_AT: Final = _HEAD.size
CHUNK_BYTES_MAX = (1 << 31) - 1


class Section(IntFlag):
    """The optional parts of a chunk."""

    ATTRIBUTES = 1
    GROUPS = 2
    DEDUP_IDS = 4
    ORIGINS = 8
    DUE = 16


_BINARY: Final = (Section.ATTRIBUTES, Section.GROUPS, Section.DEDUP_IDS, Section.ORIGINS)

Values = Sequence[bytes | None]
_FEW: Final = 16
_digest: Final = xxhash.xxh3_64_intdigest
_SMALL_BYTES: Final = 4096
"""Up to so many bytes are quicker copied together than hashed piece by piece."""


def _offsets_of(values: Sequence[Buffer]) -> NDArray[np.int32]:
    count = len(values)
    if count <= _FEW:  # a single message most of all: an array made of numbers takes a fifth of the time
        return np.array([0, *accumulate(map(len, values))], dtype=np.int32)
    if len(values[0]) == len(values[-1]) == len(values[count // 2]):
        lengths = list(map(len, values))
        if lengths.count(lengths[0]) == count:  # messages of one length are common, and quickly counted
            return np.arange(count + 1, dtype=np.int32) * np.int32(lengths[0])
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=count), out=offsets[1:])
    return offsets


class PackedBodies(Sequence[bytes]):
    """Bodies end to end with their offsets: a batch that came in one piece need not be taken apart to become a chunk.

    >>> bodies = PackedBodies(b"onetwo", np.array([0, 3, 6], dtype=np.int32))
    >>> len(bodies), bodies[1]
    (2, b'two')
    """

    __slots__ = ("_count", "_length", "data", "offsets")

    def __init__(self, data: bytes, offsets: NDArray[np.int32], length: int | None = None) -> None:
        self.data = data
        self.offsets = offsets
        self._count = len(offsets) - 1
        self._length = length

    @classmethod
    def even(cls, data: bytes, length: int) -> PackedBodies:
        """Bodies that all have one length.

        >>> list(PackedBodies.even(b"onetwo", 3))
        [b'one', b'two']
        """
        return cls(data, np.arange(0, len(data) + 1, length, dtype=np.int32), length)

    @classmethod
    def join(cls, parts: Sequence[PackedBodies]) -> PackedBodies:
        length = parts[0]._length
        if length is not None and all(part._length == length for part in parts):
            return cls.even(b"".join([part.data for part in parts]), length)
        shifts = np.cumsum([0, *(len(part.data) for part in parts[:-1])])
        offsets = [part.offsets[:-1] + shift for part, shift in zip(parts, shifts, strict=True)]
        end = np.array([parts[-1].offsets[-1] + shifts[-1]])
        return cls(b"".join([part.data for part in parts]), np.concatenate([*offsets, end]).astype(np.int32))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} bodies, and none at {index}")
        at = index % len(self)
        return self.data[self.offsets[at] : self.offsets[at + 1]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[low:high] for low, high in pairwise(self.offsets.tolist()))

    def parts(self, count_max: int, size_max: int) -> Iterator[PackedBodies]:
        """The same in pieces of at most so many bodies and bytes; a longer body has a piece for itself.

        >>> [list(part) for part in PackedBodies.even(b"abcdef", 1).parts(4, 100)]
        [[b'a', b'b', b'c', b'd'], [b'e', b'f']]
        """
        start = 0
        while start < self._count:
            ahead = self.offsets[start : start + count_max + 1]
            low = int(ahead[0])
            count = max(1, int(np.searchsorted(ahead, low + size_max, "right")) - 1)
            yield PackedBodies(self.data[low : int(ahead[count])], ahead[: count + 1] - low, self._length)
            start += count

    def longest(self) -> int:
        return int(np.diff(self.offsets).max()) if self._length is None else self._length


class BinaryColumn:
    """Optional bytes for each message: an offsets table and the bytes end to end.

    >>> column = BinaryColumn.of([b"a", None, b"bc"])
    >>> column[0], column[1], column[2]
    (b'a', None, b'bc')
    """

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: NDArray[np.int32], data: Buffer) -> None:
        self.offsets = offsets
        self.data = data

    @classmethod
    def of(cls, values: Values) -> BinaryColumn:
        """Make a column of values; None and empty bytes are the same."""
        filled = [value or b"" for value in values]
        return cls(_offsets_of(filled), b"".join(filled))

    def __getitem__(self, index: int) -> bytes | None:
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]]) or None

    def values(self) -> list[bytes | None]:
        bounds = self.offsets.tolist()
        data = bytes(self.data)
        return [data[low:high] or None for low, high in pairwise(bounds)]

    def slice(self, start: int, stop: int) -> BinaryColumn:
        offsets = self.offsets[start : stop + 1]
        return BinaryColumn(offsets - offsets[0], memoryview(self.data)[offsets[0] : offsets[-1]])

    def parts(self) -> list[Buffer]:
        length = self.offsets.nbytes + len(self.data)
        return [self.offsets.tobytes(), self.data, bytes(-length % 8)]


_NO_COLUMNS: Final[dict[Section, BinaryColumn]] = {}
"""For all chunks of bare messages. Nobody adds to it."""


class Chunk:
    """Consecutive messages: sequence numbers `base` to `base + count - 1`.

    >>> chunk = Chunk.of(100, 5, [b"one", b"two"])
    >>> chunk.count, bytes(chunk.body(1)), chunk.sequence(1)
    (2, b'two', 101)
    >>> Chunk.decode(b"".join(chunk.parts())).body(0)
    b'one'
    """

    __slots__ = (
        "_columns",
        "_head",
        "_offsets",
        "_values",
        "base",
        "bodies",
        "count",
        "due_ms",
        "has_groups",
        "nbytes",
        "sent_ms",
        "size",
    )

    def __init__(
        self,
        base: int,
        sent_ms: int,
        count: int,
        bodies: Buffer,
        offsets: NDArray[np.int32] | None,
        values: list[bytes] | None,
        columns: dict[Section, BinaryColumn],
        due_ms: NDArray[np.int64] | None,
    ) -> None:
        assert offsets is not None or values is not None or count == 1
        self.base = base
        self.sent_ms = sent_ms
        self.count = count
        self.bodies = bodies
        """The bodies end to end."""
        self.due_ms = due_ms
        self._offsets = offsets
        self._values = values
        self._columns = columns
        self._head: bytes | None = None
        self.size = len(bodies)
        """Bytes of bodies and attributes: what limits and retention count."""
        self.nbytes = _OFFSETS_AT + ((4 * count + 11) & -8) + self.size
        """The length of the stored form."""
        self.has_groups = False
        """Whether any message has a group."""
        if columns:
            self.has_groups = Section.GROUPS in columns
            if Section.ATTRIBUTES in columns:
                self.size += len(columns[Section.ATTRIBUTES].data)
            for column in columns.values():
                self.nbytes += (4 * count + 11 + len(column.data)) & -8
        if due_ms is not None:
            self.nbytes += 8 * count

    @classmethod
    def of(
        cls,
        base: int,
        sent_ms: int,
        bodies: list[bytes] | PackedBodies,
        *,
        attributes: Values | None = None,
        groups: Values | None = None,
        dedup_ids: Values | None = None,
        origins: Values | None = None,
        due_ms: Sequence[int] | NDArray[np.int64] | None = None,
        joined: bytes | None = None,
    ) -> Chunk:
        """Make a chunk of messages; `joined` is `b"".join(bodies)` for who has it already."""
        columns = _NO_COLUMNS
        if attributes or groups or dedup_ids or origins:
            optional = zip(_BINARY, (attributes, groups, dedup_ids, origins), strict=True)
            columns = {section: BinaryColumn.of(each) for section, each in optional if each is not None and any(each)}
        due = None if due_ms is None else np.asarray(due_ms, dtype=np.int64)
        if not isinstance(bodies, list):  # asked this way round: a subclass of an ABC is not quickly told
            return cls(base, sent_ms, len(bodies), bodies.data, bodies.offsets, None, columns, due)
        if joined is None:
            joined = bodies[0] if len(bodies) == 1 else b"".join(bodies)
        return cls(base, sent_ms, len(bodies), joined, None, bodies, columns, due)

    # -- what is in it --

    @property
    def offsets(self) -> NDArray[np.int32]:
        """Where each body starts in `bodies`, and where the last one ends."""
        if self._offsets is None:
            self._offsets = _offsets_of([self.bodies] if self._values is None else self._values)
        return self._offsets

    @property
    def last(self) -> int:
        """The last message's sequence number."""
        return self.base + self.count - 1

    def sequence(self, index: int) -> int:
        """The sequence number of the message at this index."""
        return self.base + index

    def body(self, index: int) -> bytes:
        if self._values is not None:
            return bytes(self._values[index])
        if self._offsets is None:
            return bytes([self.bodies][index])  # there is only one
        offsets = self._offsets
        return bytes(self.bodies[offsets[index] : offsets[index + 1]])

    def body_list(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        stop = self.count if stop is None else stop
        if self._values is not None:
            return self._values[start:stop]
        bounds = self.offsets[start : stop + 1].tolist()
        data = bytes(self.bodies) if len(bounds) > 2 else self.bodies
        return [bytes(data[low:high]) for low, high in pairwise(bounds)]

    def attributes(self, index: int) -> bytes | None:
        return self._value(Section.ATTRIBUTES, index)

    def group(self, index: int) -> str | None:
        value = self._value(Section.GROUPS, index)
        return None if value is None else value.decode()

    def group_list(self) -> list[str | None]:
        column = self._columns.get(Section.GROUPS)
        if column is None:
            return [None] * self.count
        return [None if value is None else value.decode() for value in column.values()]

    def dedup_id(self, index: int) -> str | None:
        value = self._value(Section.DEDUP_IDS, index)
        return None if value is None else value.decode()

    def origin(self, index: int) -> bytes | None:
        """Where a message came from, encoded, if it was moved from another queue."""
        return self._value(Section.ORIGINS, index)

    def due(self, index: int) -> int:
        """When a message is due; 0 if it always was."""
        return 0 if self.due_ms is None else int(self.due_ms[index])

    def column(self, section: Section) -> BinaryColumn | None:
        """An optional part of every message, as it is stored; None when no message has it."""
        return self._columns.get(section)

    def _value(self, section: Section, index: int) -> bytes | None:
        if not self._columns:
            return None
        column = self._columns.get(section)
        return None if column is None else column[index]

    def slice(self, start: int, stop: int) -> Chunk:
        """Some of the messages as a chunk of their own, with the sequence numbers they have."""
        offsets = self.offsets[start : stop + 1]
        return Chunk(
            self.base + start,
            self.sent_ms,
            stop - start,
            memoryview(self.bodies)[offsets[0] : offsets[-1]],
            offsets - offsets[0],
            None if self._values is None else self._values[start:stop],
            {section: column.slice(start, stop) for section, column in self._columns.items()},
            None if self.due_ms is None else self.due_ms[start:stop],
        )

    def moved(self, base: int, sent_ms: int) -> Chunk:
        """The same messages under other numbers, sent at another time."""
        return Chunk(base, sent_ms, self.count, self.bodies, self._offsets, self._values, self._columns, self.due_ms)

    def without_due(self) -> Chunk:
        """The same messages without due times."""
        return Chunk(self.base, self.sent_ms, self.count, self.bodies, self._offsets, self._values, self._columns, None)

    # -- stored form --

    def parts(self) -> list[Buffer]:
        """Head and bodies; see the top of this file."""
        bodies = self.bodies
        if self._head is not None:
            return [self._head, bodies]
        if self.count == 1:  # a few messages go without numpy, which takes longer than all the rest
            offsets = _TWO_OFFSETS.pack(0, len(bodies))
        elif self._offsets is None and self.count <= _FEW:
            offsets = array("i", [0, *accumulate(map(len, cast("list[bytes]", self._values)))]).tobytes()
        else:
            offsets = self.offsets.tobytes()
        middle: list[Buffer] = [offsets, bytes(-len(offsets) % 8)]
        sections = 0
        if self._columns:
            for section in _BINARY:
                if section in self._columns:
                    sections |= int(section)
                    middle += self._columns[section].parts()
        if self.due_ms is not None:
            sections |= int(Section.DUE)
            middle.append(self.due_ms.tobytes())
        body_of_head = b"".join(middle)
        head_length = _OFFSETS_AT + len(body_of_head)
        checked = _CHECKED.pack(self.base, self.sent_ms, self.count, sections, head_length, len(bodies)) + body_of_head
        if len(bodies) <= _SMALL_BYTES:
            checksum: int = _digest(b"".join((checked, bodies)))
        else:
            checksum = _checksum(checked, bodies)
        self._head = _UNCHECKED.pack(_MAGIC, _VERSION, checksum) + checked
        return [self._head, bodies]

    @classmethod
    def decode(cls, data: Buffer) -> Chunk:
        """Read the stored form without copying; `ChunkDamaged` if it is not what was written."""
        view = memoryview(data)
        if len(view) < _OFFSETS_AT:
            raise ChunkDamaged(f"{len(view)} bytes are too few for a chunk")
        magic, version, checksum, base, sent_ms, count, sections, head_length, bodies_length = _HEAD.unpack_from(view)
        if magic != _MAGIC or version != _VERSION:
            raise ChunkDamaged(f"not a chunk of version {_VERSION}: it starts with {bytes(view[:8]).hex()}")
        if head_length + bodies_length != len(view):
            raise ChunkDamaged(f"it should be {head_length + bodies_length} bytes long, and is {len(view)}")
        if xxhash.xxh3_64_intdigest(view[_CHECKED_FROM:]) != checksum:
            raise ChunkDamaged("its checksum does not match")
        if count == 1 and not sections:  # nothing but a body, which needs no table to be found
            return cls(base, sent_ms, count, view[head_length:], None, None, {}, None)
        cursor = _Cursor(view, _OFFSETS_AT, count)
        offsets = cursor.offsets()
        cursor.align()
        if not sections:  # asking for each of them takes longer than everything above
            return cls(base, sent_ms, count, view[head_length:], offsets, None, {}, None)
        columns = {section: cursor.binary() for section in _BINARY if sections & section}
        due_ms = cursor.numbers() if sections & Section.DUE else None
        return cls(base, sent_ms, count, view[head_length:], offsets, None, columns, due_ms)


class _Cursor:
    """Walks over the sections of a checked head."""

    def __init__(self, view: memoryview, at: int, count: int) -> None:
        self.view, self.at, self.count = view, at, count

    def _array(self, dtype: Any, count: int) -> NDArray[Any]:
        array: NDArray[Any] = np.frombuffer(self.view, dtype=dtype, count=count, offset=self.at)
        self.at += array.nbytes
        return array

    def offsets(self) -> NDArray[np.int32]:
        return self._array(np.int32, self.count + 1)

    def numbers(self) -> NDArray[np.int64]:
        return self._array(np.int64, self.count)

    def align(self) -> None:
        self.at += -self.at % 8

    def binary(self) -> BinaryColumn:
        offsets = self.offsets()
        data = self.view[self.at : self.at + int(offsets[-1])]
        self.at += len(data)
        self.align()
        return BinaryColumn(offsets, data)


def _checksum(*parts: Buffer) -> int:
    state = xxhash.xxh3_64()
    for part in parts:
        state.update(part)
    return state.intdigest()
