"""Seals: how the table tells that what it reads is what was written, and that nothing is missing.

A **seal** is a checksum over a row's key and value. It lies beside the value in the same row, so that a flipped bit in
the key, in the value or in the seal itself is seen when the row is read. A row that is not there any more cannot be
seen that way. So rows form **groups** (`core.keys.group_of`: a queue each, and one for every other kind of record), and
the table keeps a row for each group with the number and the sum of the seals of its records, and of the keys of its
chunks. The sums are changed in the transaction that changes the rows. The rows of the groups are sealed themselves, and
`meta` has the sum of their seals.

Nothing of this is on the way of a commit, which is checksummed in the journal: the applier seals.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from penstock.core.storage.changes import Buffer

_digest = xxhash.xxh3_64_intdigest
SUM_MASK = (1 << 63) - 1
"""Seals and sums are integers of 63 bits, which SQLite keeps as they are."""

_GROUP = struct.Struct(">4Q")


def seal_of(key: Buffer, value: Buffer) -> int:
    """The seal of a row.

    >>> seal_of(b"color/sky", b"blue") == seal_of(b"color/sea", b"blue")
    False
    """
    return _digest(value, _digest(key)) & SUM_MASK


def seal_of_key(key: bytes) -> int:
    """What a chunk's key counts for in its group. (Its body has a checksum of its own.)

    >>> 0 <= seal_of_key(b"key") <= SUM_MASK
    True
    """
    return _digest(key) & SUM_MASK


def seal_of_meta(name: str, value: int) -> int:
    """The seal of an entry of the meta table.

    >>> seal_of_meta("position", 7) == seal_of_meta("position", 8)
    False
    """
    return seal_of(name.encode(), value.to_bytes(9, "big", signed=True))


class Group(NamedTuple):
    """How many records and chunks belong together, and the sums of their seals.

    >>> Group().with_record(5, 1).with_record(5, -1) == Group()
    True
    """

    records: int = 0
    records_sum: int = 0
    chunks: int = 0
    chunks_sum: int = 0

    def with_record(self, seal: int, sign: int) -> Group:
        """This group with a record more, or less."""
        return Group(self[0] + sign, (self[1] + sign * seal) & SUM_MASK, self[2], self[3])

    def with_chunk(self, seal: int, sign: int) -> Group:
        """This group with a chunk more, or less."""
        return Group(self[0], self[1], self[2] + sign, (self[3] + sign * seal) & SUM_MASK)

    def packed(self) -> bytes:
        """The stored form."""
        return _GROUP.pack(*(number & SUM_MASK for number in self))

    @classmethod
    def unpack(cls, data: bytes) -> Group:
        """Take the stored form apart.

        >>> Group.unpack(Group(1, 2, 3, 4).packed())
        Group(records=1, records_sum=2, chunks=3, chunks_sum=4)
        """
        return cls(*_GROUP.unpack(data))
