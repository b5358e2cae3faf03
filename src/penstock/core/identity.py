"""Names that are computed, never stored: message ids, and the keys that seal a queue's receipts.

A message's id follows from the store's realm, the queue's number and the sequence number. A receipt is sealed with a
key of its queue, which follows from the store's secret: whoever reads a queue over the network is given that key and
no other, so that it can write receipts for messages that it may settle anyhow.
"""

from __future__ import annotations

import hashlib

_MASK = 0xFFFFFFFFFFFFFFFF
_KEY_BYTES = 32


def message_id(realm: int, queue_id: int, sequence: int) -> str:
    """The identity of a message, in the shape of a UUID.

    >>> message_id(0, 1, 255)
    '9e3779b9-7f4a-7c15-0000-0000000000ff'
    """
    high = (realm ^ (queue_id * 0x9E3779B97F4A7C15)) & _MASK
    text = f"{high:016x}{sequence:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def receipt_key(secret: bytes, queue_id: int) -> bytes:
    """The key of a queue's receipts.

    >>> receipt_key(b"secret", 1) == receipt_key(b"secret", 2)
    False
    """
    number = queue_id.to_bytes(8, "big")
    return hashlib.blake2b(number, key=secret, digest_size=_KEY_BYTES, person=b"receipts").digest()
