"""Receipts: what a receiver holds to settle a message later, over any wire and over restarts.

A receipt carries queue, channel, sequence number and attempt, sealed with a key of its queue (BLAKE2b in its keyed
mode, which is a MAC as HMAC is, at a third of the price; `core/identity.py` makes the keys). It is refused as forged
when the seal does not fit, and as stale when the message is not on that attempt any more. Body and seal are 42 bytes:
56 characters without padding or spare bits, so that no two texts are the same receipt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.errors import ForgedReceipt

_BODY = struct.Struct(">QIQI")
_SEAL_BYTES = 18
_TEXT_LENGTH = (_BODY.size + _SEAL_BYTES) // 3 * 4


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
        try:
            data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            data = b""
        body, seal = data[: _BODY.size], data[_BODY.size :]
        if len(text) == _TEXT_LENGTH and len(body) == _BODY.size:
            receipt = cls(*_BODY.unpack(body))
            if hmac.compare_digest(seal, _mac(body, key_of(receipt.queue_id))):
                return receipt
        raise ForgedReceipt("this receipt was not made by this store, or was changed on its way")


def _mac(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=_SEAL_BYTES).digest()
