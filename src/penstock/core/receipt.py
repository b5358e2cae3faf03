"""Receipts: what a receiver holds to settle a message later, over any wire and over restarts.

A receipt carries queue, channel, sequence number and attempt, sealed with the store's key (BLAKE2b in its keyed mode,
which is a MAC as HMAC is, at a third of the price). It is refused as forged when the seal does not fit, and as stale
when the message is not on that attempt any more. Body and seal are 42 bytes: 56 characters without padding or spare
bits, so that no two texts are the same receipt.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

from penstock.core.errors import ForgedReceipt

_BODY = struct.Struct(">QIQI")
_SEAL_BYTES = 18
_TEXT_LENGTH = (_BODY.size + _SEAL_BYTES) // 3 * 4


class Receipt(NamedTuple):
    """One message on one attempt.

    >>> text = Receipt(1, 1, 42, attempt=2).seal(b"secret")
    >>> Receipt.open(text, b"secret").sequence
    42
    >>> Receipt.open(text, b"other secret")
    Traceback (most recent call last):
        ...
    penstock.core.errors.ForgedReceipt: this receipt was not made by this store, or was changed on its way
    """

    queue_id: int
    channel_id: int
    sequence: int
    attempt: int

    def seal(self, secret: bytes) -> str:
        """The receipt as text."""
        body = _BODY.pack(*self)
        return base64.urlsafe_b64encode(body + _mac(body, secret)).decode()

    @classmethod
    def open(cls, text: str, secret: bytes) -> Receipt:
        """Read a receipt, or refuse it."""
        try:
            data = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            data = b""
        body, seal = data[: _BODY.size], data[_BODY.size :]
        if len(text) != _TEXT_LENGTH or len(body) != _BODY.size or not hmac.compare_digest(seal, _mac(body, secret)):
            raise ForgedReceipt("this receipt was not made by this store, or was changed on its way")
        return cls(*_BODY.unpack(body))


def _mac(body: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(body, key=secret, digest_size=_SEAL_BYTES).digest()
