"""Which partition a queue's name belongs to: murmur2 as Kafka's default partitioner has it.

A client in any language can compute it, and knows where to go without asking. docs/rest.md has test vectors.
"""

from __future__ import annotations

SHARD_SHIFT = 40
"""A queue's id is its shard's number, so many bits up, and its number within the shard."""
SHARDS_MAX = 1 << 16
PARTITION_SHIFT = 48
"""A sequence number is its partition's number (of a queue with several), so many bits up, and its number there."""
SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned.

    >>> murmur2(b"orders")
    3265125020
    """
    length = len(data)
    hashed = SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        hashed = (hashed * _MULTIPLIER & _MASK) ^ word
    if length > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> 15


def partition_of(name: str, partitions: int) -> int:
    """The partition of a name (of its UTF-8 bytes), from 0 to `partitions` - 1.

    >>> partition_of("orders", 64)
    28
    """
    return (murmur2(name.encode()) & _POSITIVE) % partitions


def sent_after(sequence: int) -> int:
    """The number behind which all lie that were sent later: with several partitions, they can lie anywhere.

    >>> sent_after(17), sent_after(1 << PARTITION_SHIFT | 17)
    (17, -1)
    """
    return sequence if sequence < 1 << PARTITION_SHIFT else -1
