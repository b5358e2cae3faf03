"""Receipts: what a receiver holds to settle a message later, over any wire and over restarts.

A receipt carries queue, channel, sequence number and attempt, sealed with a key of its queue (BLAKE2b in its keyed
mode, which is a MAC as HMAC is, at a third of the price; `core/identity.py` makes the keys). It is refused as forged
when the seal does not fit, and as stale when the message is not on that attempt any more. Body and seal are 39 bytes:
52 characters without padding or spare bits, so that no two texts are the same receipt.

Neighbours share the making of their seals. One MAC has 60 bytes: it is that of four messages whose sequence numbers
differ in the last two bits alone, on the same attempt, and each of them has a quarter of it, 15 bytes. No quarter says
anything about the others, so that a receipt is worth as much as if it had been sealed by itself; and a batch, which
mostly holds neighbours, costs a third of the MACs.

Receipts that belong together are sealed, and opened, together: the key is mixed in once (a `Seal` is copied for each
MAC), and the text of all of them is made, or read, in one piece. `Receipt.seal` and `Receipt.open` are the model.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.core.errors import ForgedReceipt

_BODY: Final = struct.Struct(">QIQI")
_SEAL_BYTES: Final = 15
_MAC_BYTES: Final = 60
_TEXT_LENGTH: Final = 52
_BODY_BYTES: Final = 24
_BYTES: Final = 39
_SEALED: Final = struct.Struct(f">QIQI{_SEAL_BYTES}s")
assert _SEALED.size == _BYTES and _BODY.size == _BODY_BYTES and _TEXT_LENGTH * 3 == _BYTES * 4
_START: Final = struct.Struct(">QI")
_pack: Final = _BODY.pack
_unpack: Final = _SEALED.unpack
_unpack_all: Final = _SEALED.iter_unpack
_to_text: Final = binascii.b2a_base64
_from_text: Final = binascii.a2b_base64
_are_equal: Final = hmac.compare_digest
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")
"""The other alphabet's own characters become some that are in none."""
_FORGED = "this receipt was not made by this store, or was changed on its way"


class Receipt(NamedTuple):
    """One message on one attempt.

    >>> text = Receipt(1, 1, 42, attempt=2).seal(b"key of queue 1")
    >>> Receipt.open(text, lambda queue_id: b"key of queue %d" % queue_id).sequence
    42
    >>> Receipt.open(text, lambda queue_id: b"another key")
    Traceback (most recent call last):
        ...
    penstock.core.errors.ForgedReceipt: this receipt was not made by this store, or was changed on its way
    """

    queue_id: int
    channel_id: int
    sequence: int
    attempt: int

    def seal(self, key: bytes) -> str:
        """The receipt as text, with the key of its queue."""
        body = _BODY.pack(*self)
        return base64.urlsafe_b64encode(body + self._seal(key)).decode()

    def _seal(self, key: bytes) -> bytes:
        """Its quarter of the MAC."""
        named = _BODY.pack(self.queue_id, self.channel_id, self.sequence >> 2, self.attempt)
        mac = hashlib.blake2b(named, key=key, digest_size=_MAC_BYTES).digest()
        at = (self.sequence & 3) * _SEAL_BYTES
        return mac[at : at + _SEAL_BYTES]

    @classmethod
    def open(cls, text: str, key_of: Callable[[int], bytes]) -> Receipt:
        """Read a receipt, or refuse it. `key_of` knows the key of every queue, by its id."""
        data = _decode(text) if len(text) == _TEXT_LENGTH else None
        if data is not None:
            receipt = cls(*_BODY.unpack_from(data))
            if hmac.compare_digest(data[_BODY_BYTES:], receipt._seal(key_of(receipt.queue_id))):
                return receipt
        raise ForgedReceipt(_FORGED)


class Seal:
    """The seal of one queue, to make and to read many receipts at a time.

    >>> seal = Seal(b"key of queue 1", queue_id=1)
    >>> receipts = seal.make(1, 42, [1, 2])
    >>> receipts == [Receipt(1, 1, 42, 1).seal(b"key of queue 1"), Receipt(1, 1, 43, 2).seal(b"key of queue 1")]
    True
    >>> seal.read(receipts)
    [(1, 42, 1), (1, 43, 2)]
    """

    __slots__ = ("_keyed", "_queue_id")

    def __init__(self, key: bytes, queue_id: int) -> None:
        self._queue_id = queue_id
        self._keyed: Any = hashlib.blake2b(key=key, digest_size=_MAC_BYTES)

    def _mac(self, channel_id: int, quad: int, attempt: int) -> bytes:
        """The MAC of four neighbours."""
        mac = self._keyed.copy()
        mac.update(_pack(self._queue_id, channel_id, quad, attempt))
        found: bytes = mac.digest()
        return found

    def make(self, channel_id: int, first: int, attempts: Sequence[int]) -> list[str]:
        """The receipts of neighbours: from the first sequence number on, one for each attempt."""
        start = _START.pack(self._queue_id, channel_id)
        parts: list[bytes] = []
        sequence, known_quad, known_attempt, mac, end = first, -1, -1, b"", b""
        for attempt in attempts:
            quad = sequence >> 2
            if quad != known_quad or attempt != known_attempt:
                mac = self._mac(channel_id, quad, attempt)
                end = attempt.to_bytes(4, "big")
                known_quad, known_attempt = quad, attempt
            at = (sequence & 3) * _SEAL_BYTES
            parts.append(start + sequence.to_bytes(8, "big") + end + mac[at : at + _SEAL_BYTES])
            sequence += 1
        text = _to_text(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
        if len(parts) == 1:
            return [text]
        return [text[at : at + _TEXT_LENGTH] for at in range(0, len(text), _TEXT_LENGTH)]

    def read_one(self, text: str) -> tuple[int, int, int] | None:
        """As `read`, for a single one.

        >>> seal = Seal(b"key of queue 1", queue_id=1)
        >>> seal.read_one(seal.make(1, 42, [2])[0]), seal.read_one("forged")
        ((1, 42, 2), None)
        """
        data = _decode(text) if len(text) == _TEXT_LENGTH else None
        if data is None or len(data) != _BYTES:
            return None
        of_queue: int
        channel_id: int
        sequence: int
        attempt: int
        of_queue, channel_id, sequence, attempt, seal = _unpack(data)
        if of_queue != self._queue_id:
            return None
        at = (sequence & 3) * _SEAL_BYTES
        mac = self._mac(channel_id, sequence >> 2, attempt)
        if not _are_equal(seal, mac[at : at + _SEAL_BYTES]):
            return None
        return channel_id, sequence, attempt

    def read(self, texts: Sequence[str]) -> list[tuple[int, int, int]] | None:
        """(channel id, sequence number, attempt) of each, if all are receipts of this queue; None if any is not."""
        for text in texts:
            if len(text) != _TEXT_LENGTH:
                return None
        data = _decode("".join(texts))
        if data is None or len(data) != len(texts) * _BYTES:
            return None
        queue_id = self._queue_id
        found: list[tuple[int, int, int]] = []
        seals: list[bytes] = []
        macs: list[bytes] = []
        known_channel, known_quad, known_attempt, mac = -1, -1, -1, b""
        of_queue: int
        channel_id: int
        sequence: int
        attempt: int
        for of_queue, channel_id, sequence, attempt, seal in _unpack_all(data):
            if of_queue != queue_id:
                return None
            quad = sequence >> 2
            if quad != known_quad or attempt != known_attempt or channel_id != known_channel:
                mac = self._mac(channel_id, quad, attempt)
                known_channel, known_quad, known_attempt = channel_id, quad, attempt
            at = (sequence & 3) * _SEAL_BYTES
            macs.append(mac[at : at + _SEAL_BYTES])
            seals.append(seal)
            found.append((channel_id, sequence, attempt))
        return found if _are_equal(b"".join(seals), b"".join(macs)) else None


def _decode(text: str) -> bytes | None:
    """The bytes of receipts end to end; None if there is anything in the text that cannot be in a receipt."""
    try:
        return _from_text(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
