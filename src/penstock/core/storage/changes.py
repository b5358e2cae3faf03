"""What one commit writes: the only thing that the core hands to a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Encodable(Protocol):
    """A chunk on its way to the store: bytes in parts, so that nobody has to copy them together."""

    def parts(self) -> Sequence[Buffer]:
        """The stored form, in pieces that follow each other."""

    @property
    def nbytes(self) -> int:
        """How long the parts are together."""


class Changes:
    """Everything that one commit does, atomically.

    Applied in this order: `dropped` prefixes first (chunks and records alike), then puts and deletes, whose keys do not
    overlap.

    >>> changes = Changes()
    >>> changes.put_record(b"k", b"v")
    >>> changes.delete_record(b"gone")
    >>> changes.records
    {b'k': b'v', b'gone': None}
    """

    __slots__ = ("chunks", "dropped", "records")

    def __init__(self) -> None:
        self.chunks: dict[bytes, Encodable | None] = {}
        """Chunk key -> what to write, or None to delete."""
        self.records: dict[bytes, bytes | None] = {}
        """Record key -> value, or None to delete."""
        self.dropped: list[bytes] = []
        """Prefixes under which every chunk and every record goes."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.records or self.dropped)

    def put_chunk(self, key: bytes, chunk: Encodable) -> None:
        """Write a chunk. It must not be changed afterwards."""
        self.chunks[key] = chunk

    def put_record(self, key: bytes, value: bytes) -> None:
        self.records[key] = value

    def delete_record(self, key: bytes) -> None:
        """Delete a state record; no error if it is not there."""
        self.records[key] = None

    def drop(self, prefix: bytes) -> None:
        """Delete everything under a prefix, this commit's own puts so far included."""
        for table in (self.chunks, self.records):
            for key in [key for key in table if key.startswith(prefix)]:
                del table[key]
        self.dropped.append(prefix)


class Flaw(NamedTuple):
    """Something that is stored is not what was written, or is missing."""

    group: bytes
    """What is hit: the number of a queue (8 bytes), or a kind of records (1 byte). See `core.keys.group_of`."""
    what: str
    """What is wrong, for people."""
    keys: tuple[bytes, ...] = ()
    """The records that are left out, where these are all that is wrong."""


class Reader(Protocol):
    """What the core may ask of committed data. The same commits always give the same answers."""

    def read_chunk(self, key: bytes) -> Buffer:
        """The stored form of a chunk; `KeyError` if it is not there."""

    def list_chunks(self, prefix: bytes, start: bytes, limit: int) -> list[bytes]:
        """Up to `limit` chunk keys with this prefix, from `start` (inclusive) on, in key order."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every state record with this prefix, in key order."""

    def flaws(self) -> Sequence[Flaw]:
        """What was found damaged at opening. Damaged records are left out of `scan`."""
