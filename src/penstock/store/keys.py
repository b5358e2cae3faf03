"""Keys in order: prefixes, and a sorted view over the keys of a dict that is cheap to keep."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Final

_INSERTS_MAX: Final = 32
_COMPACT_FLOOR: Final = 1024


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key behind all keys with a prefix; None if there is none.

    >>> prefix_end(b"ab"), prefix_end(b"a\\xff"), prefix_end(b"\\xff")
    (b'ac', b'b', None)
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


class SortedKeys:
    """The keys of a dict in order, sorted when somebody looks, and not before.

    The dict is the truth: a key that left it is skipped, and forgotten at some later time. Adding is one `append`;
    looking costs what was added since, and next to nothing when keys come in order. The caller keeps other threads
    away.

    >>> table = {b"b": 1, b"a": 2}
    >>> keys = SortedKeys(table)
    >>> keys.add(b"b"); keys.add(b"a")
    >>> list(keys.between(b"a", None))
    [b'a', b'b']
    """

    __slots__ = ("_added", "_sorted", "_table")

    def __init__(self, table: Mapping[bytes, object]) -> None:
        self._table = table
        self._sorted: list[bytes] = []
        self._added: list[bytes] = []

    def add(self, key: bytes) -> None:
        """A key that was put into the dict, and was not in it before."""
        self._added.append(key)
        if len(self._added) > 2 * len(self._table) + _COMPACT_FLOOR:
            self._rebuild()

    def between(self, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """The dict's keys from `start` (inclusive) to `end` (exclusive), in order. The dict must not change
        meanwhile.
        """
        self._settle()
        keys, table = self._sorted, self._table
        for index in range(bisect_left(keys, start), len(keys) if end is None else bisect_left(keys, end)):
            if keys[index] in table:
                yield keys[index]

    def _settle(self) -> None:
        added = self._added
        if len(self._sorted) + len(added) > 2 * len(self._table) + _COMPACT_FLOOR:
            self._rebuild()
        elif len(added) > _INSERTS_MAX + (len(self._sorted) >> 10):
            self._sorted.extend(added)
            self._sorted.sort()
            self._sorted = list(dict.fromkeys(self._sorted))
            added.clear()
        elif added:
            for key in added:
                self._insert(key)
            added.clear()

    def _rebuild(self) -> None:
        self._sorted = sorted(self._table)
        self._added.clear()

    def _insert(self, key: bytes) -> None:
        keys = self._sorted
        if not keys or key > keys[-1]:
            keys.append(key)
            return
        index = bisect_left(keys, key)
        if keys[index] != key:
            keys.insert(index, key)
