"""Receipts: what a receiver holds to settle a message later, over any wire and over restarts.

A receipt carries queue, channel, sequence number and attempt, sealed with a key of its queue (BLAKE2b in its keyed
mode, which is a MAC as HMAC is, at a third of the price; `core/identity.py` makes the keys). It is refused as forged
when the seal does not fit, and as stale when the message is not on that attempt any more. Body and seal are 42 bytes:
56 characters without padding or spare bits, so that no two texts are the same receipt.

Receipts that belong together are sealed, and opened, together: the key is mixed in once (a `Seal` is copied for each
receipt), and the text of all of them is made, or read, in one piece. `Receipt.seal` and `Receipt.open` are the model.
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
_SEAL_BYTES: Final = 18
_TEXT_LENGTH: Final = 56
_BODY_BYTES: Final = 24
_BYTES: Final = 42
_SEALED: Final = struct.Struct(f">QIQI{_SEAL_BYTES}s")
assert _SEALED.size == _BYTES and _BODY.size == _BODY_BYTES and _TEXT_LENGTH * 3 == _BYTES * 4
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
        return base64.urlsafe_b64encode(body + _mac(body, key)).decode()

    @classmethod
    def open(cls, text: str, key_of: Callable[[int], bytes]) -> Receipt:
        """Read a receipt, or refuse it. `key_of` knows the key of every queue, by its id."""
        data = _decode(text) if len(text) == _TEXT_LENGTH else None
        if data is not None:
            receipt = cls(*_BODY.unpack_from(data))
            if hmac.compare_digest(data[_BODY_BYTES:], _mac(data[:_BODY_BYTES], key_of(receipt.queue_id))):
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
        self._keyed: Any = hashlib.blake2b(key=key, digest_size=_SEAL_BYTES)

    def make(self, channel_id: int, first: int, attempts: Sequence[int]) -> list[str]:
        """The receipts of neighbours: from the first sequence number on, one for each attempt."""
        queue_id, copy = self._queue_id, self._keyed.copy
        parts: list[bytes] = []
        sequence = first
        for attempt in attempts:
            body = _pack(queue_id, channel_id, sequence, attempt)
            mac = copy()
            mac.update(body)
            parts.append(body)
            parts.append(mac.digest())
            sequence += 1
        text = _to_text(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
        if len(parts) == 2:
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
        of_queue, channel_id, sequence, attempt, seal = _unpack(data)
        mac = self._keyed.copy()
        mac.update(data[:_BODY_BYTES])
        if of_queue != self._queue_id or not _are_equal(seal, mac.digest()):
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
        queue_id, copy = self._queue_id, self._keyed.copy
        found: list[tuple[int, int, int]] = []
        seals: list[bytes] = []
        macs: list[bytes] = []
        at = 0
        for of_queue, channel_id, sequence, attempt, seal in _unpack_all(data):
            if of_queue != queue_id:
                return None
            mac = copy()
            mac.update(data[at : at + _BODY_BYTES])
            at += _BYTES
            macs.append(mac.digest())
            seals.append(seal)
            found.append((channel_id, sequence, attempt))
        return found if _are_equal(b"".join(seals), b"".join(macs)) else None


def _decode(text: str) -> bytes | None:
    """The bytes of receipts end to end; None if there is anything in the text that cannot be in a receipt."""
    try:
        return _from_text(text.encode("ascii").translate(_FROM_URL), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        return None


def _mac(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=_SEAL_BYTES).digest()
