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

PORTION_BYTES = 64 * 1024
_SNAPPY_IDENTIFIER = 0xFF
_SNAPPY_IDENTIFIER_LENGTH = 6
_SNAPPY_DATA_MAX = 0x01
_SNAPPY_SKIPPABLE = 0x80
_SNAPPY_PORTION_BYTES = PORTION_BYTES // 16
"""Compressed: one block more than that is unpacked at a time."""
_SNAPPY_BLOCK_MAX = 80 * 1024
"""64 KB that cannot be compressed, and what goes with them."""


class Corrupt(InvalidRequest):
    """What came cannot be decompressed."""


class Codec(Protocol):
    """Both directions of one connection."""

    def pack(self, data: bytes | memoryview) -> bytes:
        """Compress what is sent, so that the other side can read all of it at once."""

    def add(self, data: bytes) -> None:
        """Something was read."""

    def take(self) -> bytes:
        """The next portion of what was read, decompressed; nothing when there is no more. May raise `Corrupt`."""

    @property
    def has_more(self) -> bool:
        """Whether there may be another portion in what was read."""


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
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def add(self, data: bytes) -> None:
        self._read += data

    def take(self) -> bytes:
        """The next portion of what was read."""
        if not self._read and not self._has_more:
            return b""
        if self._read and self._unpacker.eof:  # it would keep whatever comes
            raise Corrupt("the client's data is not deflate: it continues after its end")
        try:
            data = self._unpacker.decompress(self._read, PORTION_BYTES)
        except zlib.error as error:
            raise Corrupt(f"the client's data is not deflate: {error}") from None
        self._read = self._unpacker.unconsumed_tail
        self._has_more = len(data) == PORTION_BYTES
        return data

    @property
    def has_more(self) -> bool:
        """Whether there may be another portion."""
        return bool(self._read) or self._has_more


class Snappy:
    """Snappy's framing format: a stream identifier, then blocks, each with its type and its length.

    The library waits for whatever length it reads, so lengths and types are looked at before.
    """

    def __init__(self) -> None:
        assert snappy is not None
        self._packer: Any = snappy.StreamCompressor()
        self._unpacker: Any = snappy.StreamDecompressor()
        self._read = b""
        self._is_identified = False

    def pack(self, data: bytes | memoryview) -> bytes:
        packed: bytes = self._packer.add_chunk(bytes(data))
        return packed

    def add(self, data: bytes) -> None:
        self._read += data

    def take(self) -> bytes:
        """The next portion of what was read: some blocks, each of 64 KB at most."""
        while stop := self._whole_blocks():
            blocks, self._read = self._read[:stop], self._read[stop:]
            try:
                data: bytes = self._unpacker.decompress(blocks)
            except Exception as error:  # the library's errors have no common base
                raise Corrupt(f"the client's data is not snappy's framing format: {error}") from None
            if data:
                return data
        return b""

    @property
    def has_more(self) -> bool:
        """Whether there may be another portion."""
        return self._whole_blocks() > 0

    def _whole_blocks(self) -> int:
        """Where the last whole block ends of those that make a portion; 0 if there is none."""
        at, read = 0, self._read
        while len(read) - at >= 4 and at < _SNAPPY_PORTION_BYTES:
            length = int.from_bytes(read[at + 1 : at + 4], "little")
            self._check_block(read[at], length)
            if at + 4 + length > len(read):
                break
            at += 4 + length
        return at

    def _check_block(self, kind: int, length: int) -> None:
        is_identifier = kind == _SNAPPY_IDENTIFIER
        if (is_identifier and length != _SNAPPY_IDENTIFIER_LENGTH) or not (is_identifier or self._is_identified):
            raise Corrupt("the client's data is not snappy's framing format: it does not start with its identifier")
        self._is_identified = True
        if not is_identifier and (_SNAPPY_DATA_MAX < kind < _SNAPPY_SKIPPABLE or length > _SNAPPY_BLOCK_MAX):
            raise Corrupt(
                f"the client's data is not snappy's framing format: a block of type {kind} with {length} bytes"
            )


def has_snappy() -> bool:
    return snappy is not None
