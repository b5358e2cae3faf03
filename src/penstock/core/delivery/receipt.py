"""Receipts: what a receiver holds to settle a message later, over any wire and over restarts.

A receipt carries queue, channel, sequence number and attempt, sealed with a key of its queue (BLAKE2b in its keyed
mode, which is a MAC as HMAC is, at a third of the price; `core/delivery/receipt.py` makes the keys). It is refused as
forged when the seal does not fit, and as stale when the message is not on that attempt any more. Body and seal are 39
bytes: 52 characters without padding or spare bits, so that no two texts are the same receipt.

Neighbours share the making of their seals. One MAC has 60 bytes: it is that of four messages whose sequence numbers
differ in the last two bits alone, on the same attempt, and each of them has a quarter of it, 15 bytes. No quarter says
anything about the others, so that a receipt is worth as much as if it had been sealed by itself; and a batch, which
mostly holds neighbours, costs a third of the MACs.

Receipts that belong together are sealed, and opened, together: the key is mixed in once (a `Seal` is copied for each
MAC), and the text of all of them is made, or read, in one piece. `Receipt.seal` and `Receipt.open` are the model.

Most receipts come back soon, and together with those that they were made with. The last few thousand are remembered
(`Recent`) with what they say: the same text, character by character, needs no other proof.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.core.errors import ForgedReceipt

# Names that are computed, never stored: message ids, and the keys that seal a queue's receipts.
#
# A message's id follows from the store's realm, the queue's number and the sequence number. A receipt is sealed with a
# key of its queue, which follows from the store's secret: whoever reads a queue over the network is given that key and
# no other, so that it can write receipts for messages that it may settle anyhow.


_MASK: Final = 0xFFFFFFFFFFFFFFFF
_KEY_BYTES = 32
_LOW: Final = (1 << 62) - 1
_HIGH: Final = (1 << 60) - 1
_VARIANT: Final = 1 << 63
_SEQUENCE_BITS: Final = 58
_SEQUENCES: Final = (1 << _SEQUENCE_BITS) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_FACTOR, -1, 1 << 64)
_MIX_1: Final = 0x3F58476D1CE4E5B9
_MIX_2: Final = 0x14D049BB133111EB
_BACK_1: Final = pow(_MIX_1, -1, 1 << 62)
_BACK_2: Final = pow(_MIX_2, -1, 1 << 62)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ID_LENGTH: Final = 36
_DIGITS = [at for at in range(_ID_LENGTH) if at not in (8, 13, 18, 23)]
_BLOCK_BITS: Final = 8
_BLOCK: Final = 1 << _BLOCK_BITS
_BLOCKS_MAX: Final = 500
_kept: deque[tuple[dict[int, str], int]] = deque()
"""The blocks of all queues, in the order in which they were made: 9 KiB each."""
_WITHIN = np.arange(_BLOCK, dtype=np.uint64)


class MessageIds:
    """The ids of a queue's messages: UUIDs of version 4 to look at, of which nobody without the realm can count on.

    An id is a permutation of the 122 bits that a UUID has to give: 64 of the queue's number, 58 of the sequence number.
    The low half of the bits is mixed with a key of the queue; a mix of that hides the high half, which is the same for
    all messages of a queue, and was mixed once. So an id is made without a loop, and `open_message_id` goes back. Ids
    of neighbours are made together, a block at a time, and kept: that is a tenth of the price.

    >>> ids = MessageIds(0, 1)
    >>> ids.text(255), ids.text(256)
    ('f058b7b8-246f-4424-ac54-c584acaebd01', 'c415706f-94ce-4327-89f2-b434e2f6b63a')
    >>> ids.texts(255, 2) == [ids.text(255), ids.text(256)]
    True
    """

    __slots__ = ("_blocks", "_earlier", "_key", "_missed", "_queue", "_realm", "_top")

    def __init__(self, realm: int, queue_id: int) -> None:
        self._earlier = (realm, queue_id)
        self._realm = _scrambled(realm)
        self._top, self._key = _top_and_key(self._realm, queue_id >> 4)
        self._queue = (queue_id & 15) << _SEQUENCE_BITS
        self._blocks: dict[int, str] = {}
        self._missed = -1
        """The block that was asked for last and was not there: neighbours are asked for together."""

    def text(self, sequence: int) -> str:
        """The id of the message with this number."""
        number = sequence >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            if number != self._missed or sequence > _SEQUENCES:
                self._missed = number
                return self._one(sequence)
            block = self._block(number)
        at = (sequence & _BLOCK - 1) * _ID_LENGTH
        return block[at : at + _ID_LENGTH]

    def texts(self, first: int, count: int) -> list[str]:
        """The ids of so many messages from a number on."""
        stop = first + count
        if stop > _SEQUENCES:
            return [self.text(sequence) for sequence in range(first, stop)]
        found: list[str] = []
        while first < stop:
            number = first >> _BLOCK_BITS
            block = self._blocks.get(number)
            if block is None:
                if count == 1:  # who comes for one at a time pays for a block when the next is asked for
                    return [self.text(first)]
                block = self._block(number)
            start = number << _BLOCK_BITS
            until = min(stop - start, _BLOCK) * _ID_LENGTH
            for at in range((first - start) * _ID_LENGTH, until, _ID_LENGTH):
                found.append(block[at : at + _ID_LENGTH])
            first = start + _BLOCK
        return found

    def _one(self, sequence: int) -> str:
        """An id by itself: what `_block` does for many."""
        if sequence > _SEQUENCES:
            return _earlier_id(*self._earlier, sequence)
        low = ((self._queue | sequence) ^ self._key) * _MIX_1 & _LOW
        low = (low ^ (low >> 31)) * _MIX_2 & _LOW
        low ^= low >> 31
        digits = f"{self._top ^ _mixed(low, self._realm):015x}{_VARIANT | low:016x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-{digits[15:19]}-{digits[19:]}"

    def _block(self, number: int) -> str:
        """The ids of neighbours, end to end. They are kept: who receives asks for those of who sent."""
        low = ((_WITHIN | np.uint64(self._queue | number << _BLOCK_BITS)) ^ np.uint64(self._key)) * _MIX_1 & _LOW
        low = (low ^ (low >> 31)) * _MIX_2 & _LOW
        low ^= low >> 31
        mixed = (low ^ np.uint64(self._realm)) * _MIX_2
        high = np.uint64(self._top) ^ ((mixed ^ (mixed >> 29)) * _FACTOR) >> 4
        words = np.empty((_BLOCK, 2), ">u8")
        words[:, 0] = (high >> 12) << 16 | 0x4000 | high & 0xFFF
        words[:, 1] = low | _VARIANT
        texts = np.full((_BLOCK, _ID_LENGTH), ord("-"), np.uint8)
        texts[:, _DIGITS] = np.frombuffer(words.tobytes().hex().encode(), np.uint8).reshape(_BLOCK, 32)
        block = self._blocks[number] = texts.tobytes().decode()
        _kept.append((self._blocks, number))
        if len(_kept) > _BLOCKS_MAX:
            blocks, oldest = _kept.popleft()
            blocks.pop(oldest, None)
        return block


def _scrambled(number: int) -> int:
    """Another number of 64 bits (the end of SplitMix64)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


def _mixed(low: int, realm: int) -> int:
    """60 bits that all the bits of the low half have a part in."""
    low = (low ^ realm) * _MIX_2 & _MASK
    return ((low ^ (low >> 29)) * _FACTOR & _MASK) >> 4


def _top_and_key(realm: int, number: int) -> tuple[int, int]:
    """What hides the high bits of a queue's number, and the key of its low half, which follows from that."""
    top = (number ^ realm & _HIGH) * _FACTOR & _HIGH
    top = (top ^ (top >> 30)) * _FACTOR & _HIGH
    return top, _scrambled(top ^ realm) & _LOW


@lru_cache(maxsize=10_000)
def message_ids(realm: int, queue_id: int) -> MessageIds:
    """The ids of a queue's messages, in a store."""
    return MessageIds(realm, queue_id)


def message_id(realm: int, queue_id: int, sequence: int) -> str:
    """The identity of a message: a UUID.

    >>> message_id(0, 1, 255)
    'f058b7b8-246f-4424-ac54-c584acaebd01'
    """
    return message_ids(realm, queue_id).text(sequence)


def _earlier_id(realm: int, queue_id: int, sequence: int) -> str:
    """An id as earlier builds made them. Dead letters keep theirs; and no number is too high for it."""
    high = (realm ^ (queue_id * _FACTOR)) & _MASK
    text = f"{high:016x}{sequence:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def open_message_id(realm: int, text: str) -> tuple[int, int] | None:
    """The queue's number and the sequence number that a message id was made of; None if it is none. Ids of earlier
    builds are opened as well: no UUID has their variant bits.

    >>> open_message_id(7, message_id(7, 12, 255)), open_message_id(7, "no id")
    ((12, 255), None)
    >>> open_message_id(0, "9e3779b9-7f4a-7c15-0000-0000000000ff")
    (1, 255)
    """
    if _ID.fullmatch(text) is None:
        return None
    digits = text.replace("-", "")
    high, low = int(digits[:16], 16), int(digits[16:], 16)
    if low >> 62 != 2 or digits[12] != "4":
        return (high ^ realm) * _INVERSE & _MASK, low
    low, high, own = low & _LOW, int(digits[:12] + digits[13:16], 16), _scrambled(realm)
    top = high ^ _mixed(low, own)
    key = _scrambled(top ^ own) & _LOW
    number = top * _INVERSE & _HIGH
    number = ((number ^ (number >> 30)) * _INVERSE & _HIGH) ^ own & _HIGH
    low = (low ^ (low >> 31)) * _BACK_2 & _LOW
    low = ((low ^ (low >> 31)) * _BACK_1 & _LOW) ^ key
    return number << 4 | low >> _SEQUENCE_BITS, low & _SEQUENCES


def no_message_id(text: str) -> str:
    """What people are told who give something else for the id of a message."""
    return f"{text[:50]!r} is not a message id: ids look like f058b7b8-246f-4424-ac54-c584acaebd01"


def gone(text: str, queue: str, sequence: int) -> str:
    """What people are told who ask for a message that is not there any more."""
    since = "it was acknowledged, deleted or moved, or its retention has ended"
    return f"message {text} was number {sequence} of queue {queue!r}, and is no longer there: {since}"


def absent(message: str | int, queue: str) -> str:
    """What people are told of a message that a queue has not, and perhaps never had."""
    why = "it was acknowledged, deleted or moved, its retention has ended, or it was never sent"
    return f"queue {queue!r} has no message {message}: {why}"


def sequence_in(text: str, realm: int, queue_id: int) -> int | None:
    """The sequence number in a message id, if it is of this queue; None if it is not.

    >>> sequence_in(message_id(7, 12, 255), 7, 12), sequence_in(message_id(7, 9, 1), 7, 12)
    (255, None)
    """
    opened = open_message_id(realm, text)
    return opened[1] if opened is not None and opened[0] == queue_id else None


def receipt_key(secret: bytes, queue_id: int) -> bytes:
    """The key of a queue's receipts.

    >>> receipt_key(b"secret", 1) == receipt_key(b"secret", 2)
    False
    """
    number = queue_id.to_bytes(8, "big")
    return hashlib.blake2b(number, key=secret, digest_size=_KEY_BYTES, person=b"receipts").digest()


_BODY: Final = struct.Struct(">QIQI")
_SEAL_BYTES: Final = 15
_MAC_BYTES: Final = 60
_TEXT_LENGTH: Final = 52
_BODY_BYTES: Final = 24
_BYTES: Final = 39
_SEALED: Final = struct.Struct(f">QIQI{_SEAL_BYTES}s")
assert _SEALED.size == _BYTES and _BODY.size == _BODY_BYTES and _TEXT_LENGTH * 3 == _BYTES * 4
_pack_sealed: Final = _SEALED.pack
_pack: Final = _BODY.pack
_unpack: Final = _SEALED.unpack
_unpack_all: Final = _SEALED.iter_unpack
_to_text: Final = binascii.b2a_base64
_from_text: Final = binascii.a2b_base64
_are_equal: Final = hmac.compare_digest
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")
"""The other alphabet's own characters become some that are in none."""
_FORGED = "this receipt was not made by this store, or was changed: use it exactly as the receive gave it"


class Receipt(NamedTuple):
    """One message on one attempt.

    >>> text = Receipt(1, 1, 42, attempt=2).seal(b"key of queue 1")
    >>> Receipt.open(text, lambda queue_id: b"key of queue %d" % queue_id).sequence
    42
    >>> Receipt.open(text, lambda queue_id: b"another key")
    Traceback (most recent call last):
        ...
    penstock.core.errors.ForgedReceipt: this receipt was not made by this store, or was changed: ...
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


Told = tuple[int, int, int]
"""What a receipt says of its queue: channel id, sequence number, attempt."""


Made = tuple[int, int, int, list[int]]
"""Receipts that were made together: queue id, channel id, the first sequence number, the attempts of all."""


class Recent:
    """Receipts that were made lately, those that were made together end to end. Too many, and all are forgotten.

    >>> recent = Recent(3)
    >>> recent.add("two receipts", (1, 1, 7, [1, 1]))
    >>> recent.known
    {'two receipts': (1, 1, 7, [1, 1])}
    """

    __slots__ = ("_count", "_count_max", "known")

    def __init__(self, count_max: int = 8_192) -> None:
        self.known: dict[str, Made] = {}
        self._count = 0
        self._count_max = count_max

    def add(self, text: str, made: Made) -> None:
        """These were made."""
        count = len(made[3])
        self._count += count
        if self._count > self._count_max:
            self.known = {}
            self._count = count
        self.known[text] = made


class Seal:
    """The seal of one queue, to make and to read many receipts at a time.

    >>> seal = Seal(b"key of queue 1", queue_id=1)
    >>> receipts = seal.make(1, 42, [1, 2])
    >>> receipts == [Receipt(1, 1, 42, 1).seal(b"key of queue 1"), Receipt(1, 1, 43, 2).seal(b"key of queue 1")]
    True
    >>> seal.read(receipts)
    [(1, 42, 1), (1, 43, 2)]
    """

    __slots__ = ("_keyed", "_queue_id", "_recent")

    def __init__(self, key: bytes, queue_id: int, recent: Recent | None = None) -> None:
        self._queue_id = queue_id
        self._recent = recent
        self._keyed: Any = hashlib.blake2b(key=key, digest_size=_MAC_BYTES)

    def _mac(self, channel_id: int, quad: int, attempt: int) -> bytes:
        """The MAC of four neighbours."""
        mac = self._keyed.copy()
        mac.update(_pack(self._queue_id, channel_id, quad, attempt))
        found: bytes = mac.digest()
        return found

    def make(self, channel_id: int, first: int, attempts: Sequence[int]) -> list[str]:
        """The receipts of neighbours: from the first sequence number on, one for each attempt."""
        queue_id = self._queue_id
        parts: list[bytes] = []
        sequence, known_quad, known_attempt, mac = first, -1, -1, b""
        for attempt in attempts:
            quad = sequence >> 2
            if quad != known_quad or attempt != known_attempt:
                mac = self._mac(channel_id, quad, attempt)
                known_quad, known_attempt = quad, attempt
            at = (sequence & 3) * _SEAL_BYTES
            parts.append(_pack_sealed(queue_id, channel_id, sequence, attempt, mac[at : at + _SEAL_BYTES]))
            sequence += 1
        text = _to_text(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
        if self._recent is not None and parts:
            self._recent.add(text, (self._queue_id, channel_id, first, list(attempts)))
        if len(parts) == 1:
            return [text]
        return [text[at : at + _TEXT_LENGTH] for at in range(0, len(text), _TEXT_LENGTH)]

    def read_one(self, text: str) -> Told | None:
        """As `read`, for a single one.

        >>> seal = Seal(b"key of queue 1", queue_id=1)
        >>> seal.read_one(seal.make(1, 42, [2])[0]), seal.read_one("forged")
        ((1, 42, 2), None)
        """
        if self._recent is not None:
            made = self._recent.known.get(text)
            if made is not None and made[0] == self._queue_id and len(made[3]) == 1:
                return made[1], made[2], made[3][0]
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

    def read_run(self, texts: Sequence[str]) -> tuple[int, int, int, int] | None:
        """(channel id, first and last sequence number, attempt) of receipts that were made together lately, all on one
        attempt; None of others, whatever is wrong with them.

        >>> seal = Seal(b"key of queue 1", 1, Recent())
        >>> seal.read_run(seal.make(1, 42, [1, 1])), seal.read_run(seal.make(1, 44, [1, 2]))
        ((1, 42, 43, 1), None)
        """
        if self._recent is None:
            return None
        for text in texts:
            if len(text) != _TEXT_LENGTH:
                return None
        made = self._recent.known.get("".join(texts))
        if made is None or made[0] != self._queue_id:
            return None
        first, attempts = made[2], made[3]
        count, attempt = len(attempts), attempts[0]
        if count != len(texts) or attempts.count(attempt) != count:
            return None
        return made[1], first, first + count - 1, attempt

    def read(self, texts: Sequence[str]) -> list[Told] | None:
        """What each says, if all are receipts of this queue; None if any is not."""
        for text in texts:
            if len(text) != _TEXT_LENGTH:
                return None
        data = _decode("".join(texts))
        if data is None or len(data) != len(texts) * _BYTES:
            return None
        queue_id = self._queue_id
        found: list[Told] = []
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
