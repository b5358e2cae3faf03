"""Marks: which numbered work of a name was done last, so that none is done twice, however much later it comes again.

A mark is for work that its owner numbers and may repeat after any crash (a Spark stream's batches). It is one small
record for each name, replaced by the next number, in the same commit as the work itself.

The outboxes of other shards have marks of their own, in a name space of their own: none of them is ever forgotten.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from penstock.core.storage.records import Mark

NAMES_MAX = 100_000
NAME_LENGTH_MAX = 256
_NAMES, _OUTBOXES = 0, 1


class Marks:
    """The last number of every name. Past `NAMES_MAX` names, the one that was silent longest is forgotten.

    >>> marks, changes = Marks(), Changes()
    >>> marks.last("stream"), marks.set("stream", 7, 0, changes), marks.last("stream")
    (-1, None, 7)
    """

    def __init__(self) -> None:
        self._known: dict[str, Mark] = {}
        self._outboxes: dict[str, Mark] = {}

    def last_of_outbox(self, name: str) -> int:
        """The highest number of an outbox that was done here; -1 when there is none."""
        mark = self._outboxes.get(name)
        return -1 if mark is None else mark.number

    def set_outbox(self, name: str, number: int, now_ms: int, changes: Changes) -> None:
        """An outbox was done up to a number."""
        self._outboxes[name] = mark = Mark(number, now_ms)
        changes.put_record(keys.record(Kind.MARK, _OUTBOXES, name.encode()), msgspec.msgpack.encode(mark))

    def last(self, name: str) -> int:
        """The highest number that was done; -1 when there is none."""
        mark = self._known.get(name)
        return -1 if mark is None else mark.number

    @staticmethod
    def check(name: str, number: int) -> None:
        """Raise what is wrong with a mark."""
        if not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
            raise InvalidRequest(f"a mark's name has 1 to {NAME_LENGTH_MAX} printable characters: {name[:50]!r}")
        if not 0 <= number < 1 << 63:
            raise InvalidRequest(f"a mark's number is {number}: it must be from 0 to 2^63 - 1")

    def set(self, name: str, number: int, now_ms: int, changes: Changes) -> None:
        """Work was done."""
        self._known.pop(name, None)
        self._known[name] = mark = Mark(number, now_ms)
        changes.put_record(_key(name), msgspec.msgpack.encode(mark))
        while len(self._known) > NAMES_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            changes.delete_record(_key(oldest))

    def restore(self, records: list[tuple[bytes, bytes]]) -> None:
        """Take the marks back from their records."""
        found: dict[int, list[tuple[str, Mark]]] = {_NAMES: [], _OUTBOXES: []}
        for key, data in records:
            found[keys.number_of(key)].append((key[9:].decode(), msgspec.msgpack.decode(data, type=Mark)))
        self._known = dict(sorted(found[_NAMES], key=lambda item: item[1].done_ms))
        self._outboxes = dict(found[_OUTBOXES])

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """All that is stored of them, comparable."""
        outboxes = {f"\0{name}": mark for name, mark in sorted(self._outboxes.items())}
        return {name: (mark.number, mark.done_ms) for name, mark in (self._known | outboxes).items()}


def _key(name: str) -> bytes:
    return keys.record(Kind.MARK, _NAMES, name.encode())
