"""How commits look in Kafka: keys, values, markers, and values that are too large for one message.

A shard's log is one partition of two topics, both compacted: *data* holds chunks, *offset* holds state records. A
message's key begins with a byte that says what it is:

    00                          the marker of a commit
    01 key                      a value as it is; none: deleted
    02 key                      the head of a value in parts; none: deleted
    03 index(4) key             one of its parts; none: deleted

A marker is `version(1) number(8) nonce(16)`: the format's version, the commit's number, and who wrote it. Every commit
ends with one in the offset topic. One that has chunks ends with the same in the data topic, and the highest bit of the
number says so. Whoever opens a shard writes one to both topics, and has read everything when it meets its own again.
The head of a value in parts is `number(8) count(4) length(8)`, and a part is `number(8) bytes`, with the number of
their commit: parts come before their head, in the same transaction. Integers are big-endian.

Compaction may take away some of the parts of a value, or its head, once there is something newer under their keys. So
a head whose parts are not all there is not damage by itself: what replaced it comes later in the log. Only at the end
there must be none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.store.errors import StoreDamaged, StoreVersion

FORMAT_VERSION = 1
MARKER_KEY = b"\0"
NONCE_BYTES = 16
MESSAGE_OVERHEAD_BYTES = 1024
"""More than what Kafka adds to a key and a value, and we to a part."""
PART_BYTES_MIN = 1024

_WHOLE, _HEAD, _PART = b"\1", b"\2", b"\3"
_MARKER = struct.Struct(f">BQ{NONCE_BYTES}s")
_HAS_DATA = 1 << 63
NOBODYS_KEY = _WHOLE
"""The key of a value that there never is."""
_HEAD_VALUE = struct.Struct(">QIQ")
_NUMBER = struct.Struct(">Q")
_INDEX = struct.Struct(">I")
_PART_KEY_BYTES = 1 + _INDEX.size

Message = tuple[bytes, bytes | None]
"""Key and value; no value deletes."""


class Marker(NamedTuple):
    """The end of a commit.

    >>> Marker.decode(Marker(7, bytes(16)).encode(), "demo.offset").number
    7
    """

    number: int
    nonce: bytes
    has_data: bool = False
    """Whether the commit has messages in the data partition, and so a marker there as well."""

    def encode(self) -> bytes:
        """As a message's value."""
        return _MARKER.pack(FORMAT_VERSION, self.number | (_HAS_DATA if self.has_data else 0), self.nonce)

    @classmethod
    def decode(cls, value: bytes | None, where: str) -> Marker:
        """Read one; `StoreVersion` if it is later than this code."""
        if not value:
            raise StoreDamaged(f"{where}: the marker of a commit is empty. Another program writes to this topic.")
        if value[0] != FORMAT_VERSION:
            raise StoreVersion(
                f"{where} was written in format {value[0]}; this version of Penstock knows {FORMAT_VERSION}. Open the "
                "shard with the version that wrote it, or a later one."
            )
        if len(value) != _MARKER.size:
            raise StoreDamaged(
                f"{where}: the marker of a commit has {len(value)} bytes. Another program writes to this topic."
            )
        _, number, nonce = _MARKER.unpack(value)
        return cls(number & ~_HAS_DATA, nonce, bool(number & _HAS_DATA))


class Splits:
    """Which values of a topic are in parts, and in how many: whoever replaces one has to delete the rest of it.

    >>> splits = Splits()
    >>> messages = list(splits.messages({b"k": b"x" * 2500}, 1, message_bytes_max=2049))
    >>> [key[:1] for key, _ in messages]
    [b'\\x03', b'\\x03', b'\\x03', b'\\x02', b'\\x01']
    >>> splits.settle(True); splits.counts
    {b'k': 3}
    """

    def __init__(self, counts: Mapping[bytes, int] | None = None) -> None:
        self.counts: dict[bytes, int] = dict(counts or {})
        self._pending: dict[bytes, int] = {}

    def messages(self, values: Mapping[bytes, bytes | None], number: int, message_bytes_max: int) -> Iterator[Message]:
        """The messages that put and delete these values. `settle` tells later whether they were committed."""
        self._pending = {}
        counts = self.counts
        safe_bytes = message_bytes_max - MESSAGE_OVERHEAD_BYTES
        for key, value in values.items():
            if value is not None and len(value) + len(key) > safe_bytes:
                yield from self._split(key, value, number, max(PART_BYTES_MIN, safe_bytes - len(key)))
                continue
            if counts and key in counts:
                yield from self._remove_parts(key)
                if value is None:
                    continue
            yield _WHOLE + key, value

    def _split(self, key: bytes, value: bytes, number: int, part_bytes: int) -> Iterator[Message]:
        before = self.counts.get(key, 0)
        count = -(-len(value) // part_bytes)
        prefix = _NUMBER.pack(number)
        for index in range(count):
            yield part_key(key, index), prefix + value[index * part_bytes : (index + 1) * part_bytes]
        for index in range(count, before):
            yield part_key(key, index), None
        yield _HEAD + key, _HEAD_VALUE.pack(number, count, len(value))
        if not before:
            yield _WHOLE + key, None
        self._pending[key] = count

    def _remove_parts(self, key: bytes) -> Iterator[Message]:
        yield _HEAD + key, None
        for index in range(self.counts[key]):
            yield part_key(key, index), None
        self._pending[key] = 0

    def settle(self, committed: bool) -> None:
        """The last messages were committed, or were not."""
        if committed and self._pending:
            self.note(self._pending)
        self._pending = {}

    def note(self, counts: Mapping[bytes, int]) -> None:
        """Values that are in so many parts now; 0: in none."""
        self.counts = {key: count for key, count in {**self.counts, **counts}.items() if count}


def part_key(key: bytes, index: int) -> bytes:
    """The key of a part's message."""
    return _PART + _INDEX.pack(index) + key


def value_key(message_key: bytes) -> bytes:
    """The key of the value that a message belongs to, as a whole, as its head or as one of its parts.

    >>> value_key(part_key(b"k", 7)), value_key(b"\\1k"), value_key(MARKER_KEY)
    (b'k', b'k', b'')
    """
    return message_key[_PART_KEY_BYTES if message_key[:1] == _PART else 1 :]


class Assembly:
    """Puts a topic's messages together again: from messages in their order to values by key.

    >>> assembly = Assembly("demo.data")
    >>> for key, value in Splits().messages({b"k": b"x" * 2500, b"w": b"whole"}, 1, message_bytes_max=2049):
    ...     assembly.take(key, value)
    >>> {key: len(value) for key, value in assembly.take_values().items()}, assembly.counts
    ({b'k': 2500, b'w': 5}, {b'k': 3})
    """

    def __init__(self, where: str, counts: Mapping[bytes, int] | None = None) -> None:
        """`counts` says which values are in parts where the reading begins, or later."""
        self._where = where
        self._values: dict[bytes, bytes | None] = {}
        self._parts: dict[bytes, dict[int, bytes]] = {}
        self._incomplete: set[bytes] = set()
        self.counts: dict[bytes, int] = dict(counts or {})
        """The values that turned out to be in parts; 0 for those that are not any more."""

    @property
    def is_whole(self) -> bool:
        """Whether no part waits for its head: the log may be read on from here by somebody who knows of none."""
        return not self._parts

    def take(self, key: bytes, value: bytes | None) -> None:
        """The next message that is not a marker."""
        kind = key[:1]
        if kind == _WHOLE:
            self._take_whole(key[1:], value)
        elif kind == _HEAD:
            self._take_head(key[1:], value)
        elif kind == _PART and len(key) >= _PART_KEY_BYTES:
            self._take_part(key, value)
        else:
            raise StoreDamaged(
                f"{self._where}: a message has a key of no known kind. Another program writes to this topic."
            )

    def _take_whole(self, key: bytes, value: bytes | None) -> None:
        if value is None and self.counts.get(key):
            return  # the whole value that the parts replace
        self._values[key] = value
        if value is not None:
            self._incomplete.discard(key)

    def _take_head(self, key: bytes, value: bytes | None) -> None:
        self._incomplete.discard(key)
        if value is None:
            self._values[key] = None
            self.counts[key] = 0
            return
        number, count, nbytes = _HEAD_VALUE.unpack(value)
        parts = self._parts.pop(key, {})
        prefix = _NUMBER.pack(number)
        found = [parts.get(index, b"") for index in range(count)]
        if all(part.startswith(prefix) for part in found):
            body = b"".join(part[_NUMBER.size :] for part in found)
            if len(body) != nbytes:
                raise StoreDamaged(f"{self._where}: a value in {count} parts has {len(body)} bytes and not {nbytes}.")
            self._values[key] = body
        else:
            self._incomplete.add(key)
        self.counts[key] = count

    def _take_part(self, key: bytes, value: bytes | None) -> None:
        (index,) = _INDEX.unpack_from(key, 1)
        key = key[_PART_KEY_BYTES:]
        if value is not None:
            self._parts.setdefault(key, {})[index] = value
        elif key in self._parts:
            self._parts[key].pop(index, None)
            if not self._parts[key]:
                del self._parts[key]

    def take_values(self) -> dict[bytes, bytes | None]:
        """What has come together since the last call; None: deleted."""
        values, self._values = self._values, {}
        return values

    def check_end(self) -> None:
        """The log is read: nothing may be missing."""
        if self._incomplete:
            key = min(self._incomplete)
            raise StoreDamaged(
                f"{self._where}: parts of {len(self._incomplete)} values are missing, of {key!r} for one. Another "
                "program deleted messages there."
            )
