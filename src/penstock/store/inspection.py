"""Looking a table over: whether every row is what was written, and whether all of them are there.

Every record is read, and every chunk's key; never a body, which has a checksum of its own and is looked at when it is
wanted. That is what opening costs, about a microsecond a row; SQLite's own `quick_check`, which reads everything, is
asked only where the file is small, or something was found.

What counts is whether a group adds up (see `seals`). Records whose seals do not fit are left out of the sums. So a bit
that flipped in a key shows up in the group where the row belongs, whatever its key says now.

Seals: how the table tells that what it reads is what was written, and that nothing is missing.

A **seal** is a checksum over a row's key and value. It lies beside the value in the same row, so that a flipped bit in
the key, in the value or in the seal itself is seen when the row is read. A row that is not there any more cannot be
seen that way. So rows form **groups** (`core.keys.group_of`: a queue each, and one for every other kind of record), and
the table keeps a row for each group with the number and the sum of the seals of its records, and of the keys of its
chunks. The sums are changed in the transaction that changes the rows. The rows of the groups are sealed themselves, and
`meta` has the sum of their seals.

Nothing of this is on the way of a commit, which is checksummed in the journal: the applier seals.
"""

from __future__ import annotations

import sqlite3
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import xxhash

from penstock.core.errors import StoreDamaged
from penstock.core.storage.changes import Buffer, Flaw
from penstock.core.storage.keys import group_of
from penstock.store.errors import ADVICE

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


PAGE_ROWS = 1000
GROUPS_SUM = "groups"
"""The entry of `meta` that has the sum of the groups' seals."""


class Inspection(NamedTuple):
    """What was found."""

    groups: dict[bytes, Group]
    """What the groups have to add up to."""
    flaws: list[Flaw]
    """The groups that do not add up."""
    left_out: frozenset[bytes]
    """Keys of records whose seals do not fit."""
    misplaced: bool
    """Whether records are out of order, so that nothing can be looked up reliably."""
    lost_groups: bool
    """Whether what some groups should add up to was damaged itself; for these the answer is made of what is there."""
    records: int
    chunks: int

    @property
    def lacks_chunks(self) -> bool:
        """Whether the keys of some chunks are not those that should be there."""
        return any("chunks" in flaw.what for flaw in self.flaws)


def is_sealed(key: Any, value: Any, seal: Any) -> bool:
    """Whether a row is what was written.

    >>> is_sealed(b"k", b"v", seal_of(b"k", b"v")), is_sealed(b"k", None, 7)
    (True, False)
    """
    return type(key) is bytes and type(value) is bytes and seal == seal_of(key, value)


def sealed_meta(connection: sqlite3.Connection, path: object) -> dict[str, int]:
    """The meta table. Before version 2 of the schema it has no seals."""
    rows = connection.execute("SELECT * FROM meta").fetchall()
    found: dict[str, int] = {}
    for name, value, *seal in rows:
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        if type(value) is not int or (seal and seal != [seal_of_meta(text, value)]):
            raise StoreDamaged(f"table {path}: the entry {text!r} of its meta table is damaged. {ADVICE}")
        found[text] = value
    for needed in ("schema_version", "position", "identity"):
        if needed not in found:
            raise StoreDamaged(f"table {path}: the entry {needed!r} of its meta table is missing. {ADVICE}")
    return found


def rows_in_order(connection: sqlite3.Connection, select: str, order: str) -> Iterator[Any]:
    """The rows of a query in order, a page at a time."""
    cursor = connection.execute(f"{select} ORDER BY {order}")
    while page := cursor.fetchmany(PAGE_ROWS):
        yield from page


Rows = Callable[[sqlite3.Connection, str, str], Iterator[Any]]


def inspect(connection: sqlite3.Connection, meta: dict[str, int], rows: Rows = rows_in_order) -> Inspection:
    """Look a sealed table over. Where some of it cannot be read, `rows` gives what can."""
    expected, lost_groups = _expected(rows(connection, "SELECT name, value, seal FROM groups", "name"), meta)
    found: dict[bytes, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    bad: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    left_out: set[bytes] = set()
    misplaced = False
    records = chunks = 0
    before = b""
    for key, value, seal in rows(connection, "SELECT key, value, seal FROM records", "key"):
        records += 1
        if is_sealed(key, value, seal):
            sums = found[group_of(key)]
            sums[0] += 1
            sums[1] += seal
        else:
            known = key if type(key) is bytes else b""
            left_out.add(known)
            bad[group_of(known)].append((known, seal if type(seal) is int else 0))
        if type(key) is not bytes or (key <= before and before):
            misplaced = True
        else:
            before = key
    for (key,) in rows(connection, "SELECT key FROM chunks", "key"):
        chunks += 1
        if type(key) is bytes:
            sums = found[key[:8]]
            sums[2] += 1
            sums[3] += seal_of_key(key)
    there = {name: Group(sums[0], sums[1] & SUM_MASK, sums[2], sums[3] & SUM_MASK) for name, sums in found.items()}
    unseen: list[Flaw] = []
    if lost_groups:  # those whose row is whole still say what should be there
        unseen = [  # by what the damaged rows say of themselves, where nothing says what should be there
            Flaw(name, f"{len(known)} of {there.get(name, Group()).records + len(known)} records are damaged")
            for name, known in sorted(bad.items())
            if name not in expected
        ]
        expected = there | expected
    flaws = unseen + [
        _flaw(name, expected.get(name, Group()), there.get(name, Group()), bad.get(name, []))
        for name in sorted(expected.keys() | there.keys())
        if expected.get(name, Group()) != there.get(name, Group())
    ]
    return Inspection(expected, flaws, frozenset(left_out), misplaced, lost_groups, records, chunks)


def _expected(rows: Iterator[Any], meta: dict[str, int]) -> tuple[dict[bytes, Group], bool]:
    """What the groups have to add up to, as far as it is readable, and whether some of it is damaged itself."""
    groups: dict[bytes, Group] = {}
    total, is_damaged = 0, False
    for name, value, seal in rows:
        if is_sealed(name, value, seal):
            groups[name] = Group.unpack(value)
            total += seal
        else:
            is_damaged = True
    return groups, is_damaged or total & SUM_MASK != meta.get(GROUPS_SUM)


def _flaw(name: bytes, expected: Group, there: Group, bad: list[tuple[bytes, int]]) -> Flaw:
    wrong: list[str] = []
    keys: tuple[bytes, ...] = ()
    if expected[:2] != there[:2]:
        missing = expected.records - there.records
        wrong.append(f"{max(missing, 1)} of {expected.records} records are damaged or missing")
        if missing == len(bad) and (expected.records_sum - there.records_sum - sum(s for _, s in bad)) & SUM_MASK == 0:
            keys = tuple(key for key, _ in bad)
    if expected[2:] != there[2:]:
        missing = expected.chunks - there.chunks
        wrong.append(f"{max(missing, 1)} of {expected.chunks} chunks of messages are damaged or missing")
        keys = ()
    return Flaw(name, " and ".join(wrong), keys)


def quick_check(connection: sqlite3.Connection) -> str | None:
    """What SQLite itself finds wrong with the file, in one line; None if nothing."""
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)").fetchall()]
    lines = [line.decode(errors="replace") if isinstance(line, bytes) else str(line) for line in found]
    return None if lines == ["ok"] else "; ".join(" ".join(line.split()) for line in lines)
