"""Websocket frames, the short way: whole binary frames, which nearly all are, are read and made here in a few lines.

The `websockets` library reads a frame through two generators and a dozen calls, most of them for what a conversation
never has: extensions, text, fragments. Everything but a small, whole, binary frame is still left to the library, which
also opens and closes the connection. It has to be given whole frames, and those here must not be read in the middle of
another one. So `Frames` follows where frames begin and end in all bytes that come, also in those that it leaves alone:

    first byte     FIN, three reserved bits, opcode: 0x82 is a whole binary frame without extensions
    second byte    MASK, seven bits of length; 126: two more bytes of it follow; 127: eight more
    mask           four bytes, if MASK is set; clients mask, servers do not
"""

from __future__ import annotations

import os
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # where the library comes without its part in C
    from websockets.utils import apply_mask

_BINARY = 0x82
_FIN, _CONTROL, _MASKED = 0x80, 0x08, 0x80
_TWO_MORE, _EIGHT_MORE = 126, 127
_SHORT_BYTES_MAX = 0xFFFF
"""Longer frames mostly come in pieces, and go the long way."""
_HEAD_BYTES = 2
_ALL = 1 << 62
SHORT_HEADS: Final = [bytes((_BINARY, length)) for length in range(_TWO_MORE)]
"""What comes before short payloads, by their length."""
_SHORT_MASKED: Final = [bytes((_BINARY, _MASKED | length)) for length in range(_TWO_MORE)]


def masked_frame(payload: bytes) -> bytes:
    """A frame as a client sends it, under a mask that nobody can foresee."""
    mask, length = os.urandom(4), len(payload)
    head = _SHORT_MASKED[length] if length < _TWO_MORE else frame_head(length, _MASKED)
    return head + mask + apply_mask(payload, mask)


def frame_head(length: int, masked: int = 0) -> bytes:
    """What comes before the payload, and before the mask if there is one.

    >>> frame_head(3)
    b'\\x82\\x03'
    """
    if length < _TWO_MORE:
        return bytes((_BINARY, masked | length))
    if length <= _SHORT_BYTES_MAX:
        return bytes((_BINARY, masked | _TWO_MORE)) + length.to_bytes(2, "big")
    return bytes((_BINARY, masked | _EIGHT_MORE)) + length.to_bytes(8, "big")


class Frames:
    """The frames in a stream of bytes, from the first one after the handshake on.

    >>> Frames(masked=False, bytes_max=100).split(frame_head(3) + b"one" + frame_head(3) + b"two" + b"\\x89\\x00")
    ([b'one', b'two'], b'\\x89\\x00', b'')

    Of many frames the first few may be taken, and the rest later:

    >>> Frames(masked=False, bytes_max=100).split(frame_head(3) + b"one" + frame_head(3) + b"two", at_once=1)
    ([b'one'], b'', b'\\x82\\x03two')
    """

    __slots__ = ("_bytes_max", "_head", "_is_fragmented", "_left", "_masked", "count", "fragments", "message_bytes")

    def __init__(self, *, masked: bool, bytes_max: int) -> None:
        self._masked = _MASKED if masked else 0
        self._bytes_max = min(bytes_max, _SHORT_BYTES_MAX)
        self._left = 0
        """How much of a frame that was left to the library is still to come."""
        self._head = b""
        """The beginning of a head, whose rest is still to come. The library has it."""
        self._is_fragmented = False
        """A message has begun, and its next fragment is still to come."""
        self.message_bytes = 0
        """How long the message is that has begun and not ended, as far as its frames say; 0 if there is none."""
        self.fragments = 0
        """How many frames of it there are."""
        self.count = 0
        """Frames so far."""

    def allow(self, bytes_max: int) -> None:
        """Take payloads up to this size from now on."""
        self._bytes_max = min(bytes_max, _SHORT_BYTES_MAX)

    def split(self, data: bytes, at_once: int = _ALL) -> tuple[list[bytes], bytes, bytes]:
        """The payloads of the plain frames at the beginning, the bytes after them, which are the library's; and what
        is left when there have been so many frames."""
        if self._left or self._head or self._is_fragmented:
            stop = self.follow(data, at_once)
            return ([], data, b"") if stop == len(data) else ([], data[:stop], data[stop:])
        payloads: list[bytes] = []
        size, masked, start = len(data), self._masked, 0
        while size - start >= _HEAD_BYTES and data[start] == _BINARY and data[start + 1] & _MASKED == masked:
            length, begin = data[start + 1] & ~_MASKED, start + _HEAD_BYTES
            if length == _TWO_MORE:
                length, begin = int.from_bytes(data[begin : begin + 2], "big"), begin + 2
            elif length == _EIGHT_MORE:
                break
            if masked:
                begin += 4
            end = begin + length
            if end > size or length > self._bytes_max:
                break
            if len(payloads) == at_once:
                self.count += at_once
                return payloads, b"", data[start:]
            payload = data[begin:end]
            payloads.append(apply_mask(payload, data[begin - 4 : begin]) if masked else payload)
            start = end
        self.count += len(payloads)
        rest = data[start:]
        if rest:
            stop = self.follow(rest, at_once - len(payloads))
            if stop < len(rest):
                return payloads, rest[:stop], rest[stop:]
        return payloads, rest, b""

    def follow(self, data: bytes, at_once: int = _ALL) -> int:
        """The library is given these bytes: see where the next frame begins. Returns where so many frames end."""
        known = len(self._head)
        data, start = self._head + data, self._left
        self._head = b""
        while start < len(data):
            if at_once <= 0:
                self._left = 0
                return start - known
            length = _frame_length(data, start)
            if not length:
                self._head = data[start:]
                break
            if not data[start] & _CONTROL:
                if not self._is_fragmented:
                    self.message_bytes = self.fragments = 0
                self.message_bytes += length
                self.fragments += 1
                self._is_fragmented = not data[start] & _FIN
            at_once -= 1
            self.count += 1
            start += length
        self._left = max(0, start - len(data)) if not self._head else 0
        if not self._left and not self._is_fragmented:
            self.message_bytes = self.fragments = 0
        return len(data) - known


def _frame_length(data: bytes, start: int) -> int:
    """How long the frame that starts here is, with its head; 0 if its head is not whole."""
    if len(data) - start < _HEAD_BYTES:
        return 0
    second = data[start + 1]
    length, head = second & ~_MASKED, _HEAD_BYTES
    more = {_TWO_MORE: 2, _EIGHT_MORE: 8}.get(length, 0)
    if more:
        head += more
        if len(data) - start < head:
            return 0
        length = int.from_bytes(data[start + 2 : start + head], "big")
    return head + length + (4 if second & _MASKED else 0)
