"""Compression of a connection's bytes, in both directions: deflate, and snappy where python-snappy is installed.

What comes in is taken out in portions, so that a small message that unpacks to a large one costs no more memory than
the connection may use anyway.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

from penstock.core.errors import InvalidRequest

try:
    import snappy
except ImportError:  # the feature is not offered, then
    snappy = None

PORTION_BYTES = 1024 * 1024


class Corrupt(InvalidRequest):
    """What came cannot be decompressed."""


class Codec(Protocol):
    """Both directions of one connection."""

    def pack(self, data: bytes | memoryview) -> bytes:
        """Compress what is sent, so that the other side can read all of it at once."""
        ...

    def add(self, data: bytes) -> None:
        """Something was read."""
        ...

    def take(self) -> bytes:
        """The next portion of what was read, decompressed; nothing when there is no more. May raise `Corrupt`."""
        ...


class Deflate:
    """RFC 1951 without a header, flushed after every write.

    >>> ours, theirs = Deflate(6), Deflate(1)
    >>> theirs.add(ours.pack(b"hello"))
    >>> theirs.take(), theirs.take()
    (b'hello', b'')
    """

    def __init__(self, level: int) -> None:
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        self._read = b""
        self._has_more = False

    def pack(self, data: bytes | memoryview) -> bytes:
        """Compress what is sent."""
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def add(self, data: bytes) -> None:
        """Something was read."""
        self._read += data

    def take(self) -> bytes:
        """The next portion of what was read."""
        if not self._read and not self._has_more:
            return b""
        try:
            data = self._unpacker.decompress(self._read, PORTION_BYTES)
        except zlib.error as error:
            raise Corrupt(f"what came is not deflated data: {error}") from None
        self._read = self._unpacker.unconsumed_tail
        self._has_more = len(data) == PORTION_BYTES
        return data


class Snappy:
    """Snappy's framing format."""

    def __init__(self) -> None:
        assert snappy is not None
        self._packer: Any = snappy.StreamCompressor()
        self._unpacker: Any = snappy.StreamDecompressor()
        self._read: list[bytes] = []

    def pack(self, data: bytes | memoryview) -> bytes:
        """Compress what is sent."""
        packed: bytes = self._packer.add_chunk(bytes(data))
        return packed

    def add(self, data: bytes) -> None:
        """Something was read."""
        self._read.append(data)

    def take(self) -> bytes:
        """The next portion of what was read: a block unpacks to 64 KB at most, so a read is not much more."""
        while self._read:
            try:
                data: bytes = self._unpacker.decompress(self._read.pop(0))
            except Exception as error:  # the library's errors have no common base
                raise Corrupt(f"what came is not snappy's framing format: {error}") from None
            if data:
                return data
        return b""


def has_snappy() -> bool:
    """Whether python-snappy is installed."""
    return snappy is not None
