"""Delivery state as arrays: one row a message, one column a property, whole-array operations.

A `Columns` holds the rows of the chunks that one channel has in work, chunk after chunk in the order in which they
came. `at` is a slice, or an array of row numbers; every operation costs a few array operations whatever its length.
Every change of a state is an event of the one table in `states.py`, and raises `IllegalTransition` if that does not
have it: `rows_allowing` says for a whole run beforehand what is possible.

An array operation has its price whatever it is about, so that a few rows are cheaper to look at one by one. Where that
pays, up to `FEW` rows are; both ways give the same, and the tests compare them. numpy is slow at single values, too: so
each column has a *twin*, an `array.array` over the same memory, which is quick at them.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.core.delivery.states import Event, State, after, allowed

Rows = slice | NDArray[np.intp]
DONE: Final = 0
READY: Final = 1
LEASED: Final = 2
DELAYED: Final = 3
assert (DONE, READY, LEASED, DELAYED) == (State.DONE, State.READY, State.LEASED, State.DELAYED)
"""The states as plain numbers: looking up a member of an enum costs more than comparing it."""
HELD_FROM: Final = 0xC000_0000
"""Holders from here on are no sessions, but units of work in other shards that will ack what they hold."""
_LEASE: Final = after[Event.LEASE]
_RECALL: Final = after[Event.RECALL]
_RETRY: Final = after[Event.RETRY]
_TAKE_BACK: Final = after[Event.TAKE_BACK]
_GIVE_BACK: Final = after[Event.GIVE_BACK]
_COME_DUE: Final = after[Event.COME_DUE]
_POSTPONE: Final = after[Event.POSTPONE]
_HOLD_BACK: Final = after[Event.HOLD_BACK]
_EXTEND: Final = after[Event.EXTEND]
_SETTLE: Final = after[Event.ACK]
assert dict(_SETTLE) == dict(after[Event.MOVE]) == dict(after[Event.DROP])
_CAPACITY_MIN: Final = 256
FEW: Final = 64
"""Up to so many rows, lists are faster than arrays."""
_FEW_LEASED: Final = 12
"""So many, where six columns change."""
_TYPE_CODES: Final[dict[Any, str]] = {np.uint8: "B", np.uint32: "I", np.int64: "q"}
assert all(array(code).itemsize == np.dtype(kind).itemsize for kind, code in _TYPE_CODES.items())

_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("state", np.uint8),
    ("attempts", np.uint32),
    ("deadline_ms", np.int64),
    ("received_ms", np.int64),
    ("first_ms", np.int64),
    ("holder", np.uint32),
)
"""What is kept of a message: its state, how often it was handed out, when its lease ends (or it comes due), when it was
received last and first, and by which session."""

_PERSISTED: Any = np.dtype([("length", np.uint32), *_COLUMNS])
_NO_LATER = np.iinfo(np.int64).max


_NONE: Final[NDArray[Any]] = np.zeros(0)


class Columns:
    """The rows of a window.

    >>> columns = Columns()
    >>> rows = columns.append(100, 3)
    >>> columns.lease(slice(0, 2), now_ms=5, deadline_ms=35, holder=1)
    >>> columns.state[rows].tolist(), columns.attempts[rows].tolist()
    ([2, 2, 1], [1, 1, 0])
    >>> columns.expired(35).tolist()
    [0, 1]
    """

    __slots__ = (
        "_attempts",
        "_deadline_ms",
        "_first_ms",
        "_holder",
        "_received_ms",
        "_sequence",
        "_state",
        "attempts",
        "capacity",
        "deadline_ms",
        "first_ms",
        "holder",
        "received_ms",
        "sequence",
        "size",
        "state",
    )

    def __init__(self) -> None:
        self.size = 0
        self.capacity = _CAPACITY_MIN
        self.state: NDArray[np.uint8]
        self.attempts: NDArray[np.uint32]
        self.deadline_ms: NDArray[np.int64]
        self.received_ms: NDArray[np.int64]
        self.first_ms: NDArray[np.int64]
        self.holder: NDArray[np.uint32]
        self.sequence: NDArray[np.int64]
        self._state: Any
        self._attempts: Any
        self._deadline_ms: Any
        self._received_ms: Any
        self._first_ms: Any
        self._holder: Any
        self._sequence: Any
        for name, dtype in (*_COLUMNS, ("sequence", np.int64)):
            self._renew(name, dtype, _CAPACITY_MIN)

    def _renew(self, name: str, dtype: Any, capacity: int) -> NDArray[Any]:
        """A new column and its twin, all zero; returns the old one, if there was one."""
        old: NDArray[Any] = getattr(self, name, _NONE)
        twin = array(_TYPE_CODES[dtype], bytes(capacity * np.dtype(dtype).itemsize))
        setattr(self, "_" + name, twin)
        setattr(self, name, np.frombuffer(twin, dtype=dtype))
        return old

    # -- rows come and go --

    def append(self, base: int, count: int) -> slice:
        """Add rows for never delivered messages, ready; returns where they are."""
        start, stop = self.size, self.size + count
        if stop > self.capacity:
            self._grow(stop)
        self.size = stop
        rows = slice(start, stop)
        self.state[rows] = READY
        for name in ("attempts", "deadline_ms", "received_ms", "first_ms", "holder"):
            getattr(self, name)[rows] = 0
        self.sequence[rows] = np.arange(base, base + count)
        return rows

    def _grow(self, capacity: int) -> None:
        capacity = self.capacity = max(capacity, 2 * self.capacity)
        for name, dtype in (*_COLUMNS, ("sequence", np.int64)):
            old = self._renew(name, dtype, capacity)
            getattr(self, name)[: self.size] = old[: self.size]

    def keep(self, rows: NDArray[np.intp]) -> None:
        """Forget every row but these, which move together in this order."""
        capacity = self.capacity = max(_CAPACITY_MIN, 2 * len(rows))
        for name, dtype in (*_COLUMNS, ("sequence", np.int64)):
            old = self._renew(name, dtype, capacity)
            getattr(self, name)[: len(rows)] = old[rows]
        self.size = len(rows)

    # -- what happens to messages --

    def lease(self, at: Rows, now_ms: int, deadline_ms: int, holder: int) -> None:
        """LEASE: hand out, one attempt more."""
        if isinstance(at, slice) and at.stop - at.start <= _FEW_LEASED:
            state, attempts, deadlines = self._state, self._attempts, self._deadline_ms
            received, holders, firsts = self._received_ms, self._holder, self._first_ms
            for row in range(at.start, at.stop):
                state[row] = _LEASE[state[row]]
                attempts[row] += 1
                deadlines[row] = deadline_ms
                received[row] = now_ms
                holders[row] = holder
                if not firsts[row]:
                    firsts[row] = now_ms
            return
        _LEASE.check(self.state[at])
        self._hand_out(at, now_ms, deadline_ms, holder)

    def recall(self, at: Rows, now_ms: int, attempt: int, holder: int) -> None:
        """RECALL: leased on that attempt, and only for now."""
        _RECALL.check(self.state[at])
        self.attempts[at] = attempt - 1
        self._hand_out(at, now_ms, now_ms, holder)

    def _hand_out(self, at: Rows, now_ms: int, deadline_ms: int, holder: int) -> None:
        self.state[at] = LEASED
        self.attempts[at] += 1
        self.deadline_ms[at] = deadline_ms
        self.received_ms[at] = now_ms
        self.holder[at] = holder
        first = self.first_ms[at]
        if isinstance(at, slice):
            first[first == 0] = now_ms
        else:
            self.first_ms[at] = np.where(first == 0, now_ms, first)

    def lease_one(self, row: int, now_ms: int, deadline_ms: int, holder: int) -> None:
        """LEASE of one message: as `lease`, without the price of slices."""
        self._state[row] = _LEASE[self._state[row]]
        self._attempts[row] += 1
        self._deadline_ms[row] = deadline_ms
        self._received_ms[row] = now_ms
        self._holder[row] = holder
        if not self._first_ms[row]:
            self._first_ms[row] = now_ms

    def settle(self, at: Rows) -> None:
        """ACK, MOVE or DROP: over and done with."""
        if isinstance(at, slice) and at.stop - at.start <= FEW:
            state = self._state
            for row in range(at.start, at.stop):
                state[row] = _SETTLE[state[row]]
            return
        _SETTLE.check(self.state[at])
        self.state[at] = DONE

    def forget(self, at: slice) -> None:
        """Rows of messages that are over, whatever their state was: nothing finds them any more."""
        self.state[at] = DONE

    def retry(self, at: Rows) -> None:
        """RETRY: ready again."""
        _RETRY.check(self.state[at])
        self._make_ready(at)

    def take_back(self, at: Rows) -> None:
        """TAKE_BACK: ready again, although it was done here."""
        _TAKE_BACK.check(self.state[at])
        self._make_ready(at)

    def make_due(self, at: Rows) -> None:
        """COME_DUE: ready."""
        _COME_DUE.check(self.state[at])
        self._make_ready(at)

    def give_back(self, at: Rows) -> None:
        """GIVE_BACK: as if it had never been handed out this time."""
        _GIVE_BACK.check(self.state[at])
        self._make_ready(at)
        self.attempts[at] -= 1
        self.first_ms[at] = np.where(self.attempts[at] == 0, 0, self.first_ms[at])

    def _make_ready(self, at: Rows) -> None:
        self.state[at] = READY
        self.deadline_ms[at] = 0
        self.holder[at] = 0

    def postpone(self, at: Rows, due_ms: int | NDArray[np.int64]) -> None:
        """POSTPONE: not again before its due time."""
        _POSTPONE.check(self.state[at])
        self._delay(at, due_ms)

    def hold_back(self, at: Rows, due_ms: int | NDArray[np.int64]) -> None:
        """HOLD_BACK: not before its due time."""
        _HOLD_BACK.check(self.state[at])
        self._delay(at, due_ms)

    def _delay(self, at: Rows, due_ms: int | NDArray[np.int64]) -> None:
        self.state[at] = DELAYED
        self.deadline_ms[at] = due_ms
        self.holder[at] = 0

    def extend(self, at: Rows, deadline_ms: int | NDArray[np.int64]) -> None:
        """EXTEND: a later (or earlier) deadline."""
        _EXTEND.check(self.state[at])
        self.deadline_ms[at] = deadline_ms

    def begin_later_at(self, now_ms: int) -> NDArray[np.intp]:
        """Leases that began later than now, by a clock that was ahead, begin now, and last as long. Returns their rows.

        >>> columns = Columns()
        >>> rows = columns.append(100, 2)
        >>> columns.lease_one(0, now_ms=1_000, deadline_ms=1_030, holder=1)
        >>> columns.lease_one(1, now_ms=90, deadline_ms=120, holder=1)
        >>> columns.begin_later_at(100).tolist(), columns.deadline_ms[rows].tolist()
        ([0], [130, 120])
        """
        size = self.size
        rows = np.flatnonzero((self.received_ms[:size] > now_ms) & (self.state[:size] == LEASED))
        if len(rows):
            self.deadline_ms[rows] -= self.received_ms[rows] - now_ms
            self.received_ms[rows] = now_ms
        return rows

    # -- questions about whole runs --

    def rows_allowing(self, event: Event, at: slice, attempt: int) -> NDArray[np.bool_]:
        """For each row: may the event happen, and is the message on that attempt?"""
        mask: NDArray[np.bool_] = allowed[event][self.state[at]]
        mask &= self.attempts[at] == attempt
        return mask

    # -- questions about one row, or a few --

    def state_at(self, row: int) -> int:
        found: int = self._state[row]
        return found

    def attempts_at(self, row: int) -> int:
        found: int = self._attempts[row]
        return found

    def first_ms_at(self, row: int) -> int:
        found: int = self._first_ms[row]
        return found

    def ready_from(self, start: int, stop: int) -> int:
        """How many rows from the first on are ready, before one that is not.

        >>> columns = Columns()
        >>> rows = columns.append(100, 3)
        >>> columns.settle(slice(2, 3))
        >>> columns.ready_from(0, 3), columns.ready_from(2, 3)
        (2, 0)
        """
        if stop - start > FEW:
            ready = self.state[start:stop] == READY
            return stop - start if ready.all() else int(ready.argmin())
        state = self._state
        for row in range(start, stop):
            if state[row] != READY:
                return row - start
        return stop - start

    def are_alike(self, start: int, stop: int) -> bool:
        """Whether a few rows were handed out equally often, and first at the same time.

        >>> columns = Columns()
        >>> rows = columns.append(100, 3)
        >>> columns.lease_one(2, now_ms=5, deadline_ms=35, holder=1)
        >>> columns.are_alike(0, 2), columns.are_alike(0, 3)
        (True, False)
        """
        attempts, first_ms = self._attempts, self._first_ms
        one_attempt: int = attempts[start]
        one_ms: int = first_ms[start]
        for row in range(start + 1, stop):  # noqa: SIM110 (a generator costs more than all of it)
            if attempts[row] != one_attempt or first_ms[row] != one_ms:
                return False
        return True

    def all_leased(self, at: slice, attempt: int) -> bool:
        """Whether every row is leased on that attempt: the question of the happy path."""
        if at.stop - at.start <= FEW:
            state, attempts = self._state, self._attempts
            for row in range(at.start, at.stop):  # noqa: SIM110
                if state[row] != LEASED or attempts[row] != attempt:
                    return False
            return True
        return are_all(self.state[at], LEASED) and are_all(self.attempts[at], attempt)

    def expired(self, now_ms: int) -> NDArray[np.intp]:
        """Rows whose lease has run out."""
        return self._past(LEASED, now_ms)

    def come_due(self, now_ms: int) -> NDArray[np.intp]:
        """Delayed rows whose time has come."""
        return self._past(DELAYED, now_ms)

    def _past(self, state: int, now_ms: int) -> NDArray[np.intp]:
        size = self.size
        return np.flatnonzero((self.deadline_ms[:size] <= now_ms) & (self.state[:size] == state))

    def held_by(self, holder: int) -> NDArray[np.intp]:
        """Rows that a session has leased."""
        size = self.size
        return np.flatnonzero((self.holder[:size] == holder) & (self.state[:size] == LEASED))

    def next_deadline(self) -> int | None:
        """The earliest end of a lease, or due time; None when nothing is leased or delayed."""
        size = self.size
        waiting = self.state[:size] >= LEASED
        if not waiting.any():
            return None
        return int(np.min(self.deadline_ms[:size], where=waiting, initial=_NO_LATER))

    def counts(self, at: slice) -> tuple[int, int, int]:
        """(ready, leased, delayed) among some rows."""
        found = np.bincount(self.state[at], minlength=4)
        return int(found[READY]), int(found[LEASED]), int(found[DELAYED])

    # -- stored form --

    def encode(self, at: slice) -> bytes:
        """Rows as runs of equal ones: what a state record holds. Rows that are done are all the same."""
        if at.stop - at.start <= FEW:
            return self._encode_few(at)
        return self._encode_many(at)

    def _encode_few(self, at: slice) -> bytes:
        parts: list[bytes] = [b""]
        row, length = _DONE_ROW, 0
        lists = (
            self.state[at].tolist(),
            self.attempts[at].tolist(),
            self.deadline_ms[at].tolist(),
            self.received_ms[at].tolist(),
            self.first_ms[at].tolist(),
            self.holder[at].tolist(),
        )
        for each in zip(*lists, strict=True):
            if each[0] == DONE:
                each = _DONE_ROW
            if each == row:
                length += 1
                continue
            if length:
                parts.append(_RUN.pack(length, *row))
            row, length = each, 1
        parts.append(_RUN.pack(length, *row))
        parts[0] = _COUNT.pack(len(parts) - 1)
        return b"".join(parts)

    def _encode_many(self, at: slice) -> bytes:
        first, stop = int(at.start), int(at.stop)
        low, high = slice(first, stop - 1), slice(first + 1, stop)
        state = self.state
        differs = self.attempts[high] != self.attempts[low]
        for column in (self.deadline_ms, self.received_ms, self.first_ms, self.holder):
            differs |= column[high] != column[low]
        differs &= state[high] != DONE
        differs |= state[high] != state[low]
        found = np.flatnonzero(differs) + (first + 1)
        if len(found) > FEW:
            return self._encode_runs(np.append(first, found), stop)
        parts: list[bytes] = [_COUNT.pack(len(found) + 1)]
        start = first
        ends: list[int] = found.tolist()
        ends.append(stop)
        for end in ends:
            parts.append(_RUN.pack(end - start, *self._row(start)))
            start = end
        return b"".join(parts)

    def _encode_runs(self, starts: NDArray[np.intp], stop: int) -> bytes:
        """Runs that start at these rows."""
        live = self.state[starts] != DONE
        runs = np.zeros(len(starts), dtype=_PERSISTED)
        runs["length"] = np.diff(starts, append=stop)
        for name, _ in _COLUMNS:
            runs[name] = np.where(live, getattr(self, name)[starts], 0)
        return _COUNT.pack(len(starts)) + runs.tobytes()

    def _row(self, row: int) -> tuple[int, int, int, int, int, int]:
        """What is kept of a message."""
        state: int = self._state[row]
        if state == DONE:
            return _DONE_ROW
        return (
            state,
            self._attempts[row],
            self._deadline_ms[row],
            self._received_ms[row],
            self._first_ms[row],
            self._holder[row],
        )

    def append_encoded(self, base: int, data: bytes) -> slice:
        """Add rows in the stored form; returns where they are."""
        (run_count,) = _COUNT.unpack_from(data)
        runs = np.frombuffer(data, dtype=_PERSISTED, count=run_count, offset=_COUNT.size)
        lengths = runs["length"]
        rows = self.append(base, int(lengths.sum()))
        for name, _ in _COLUMNS:
            getattr(self, name)[rows] = np.repeat(runs[name], lengths)
        return rows


_COUNT: Final = struct.Struct("<I")
_RUN: Final = struct.Struct("<IBIqqqI")
assert _RUN.size == _PERSISTED.itemsize
_DONE_ROW: Final = (DONE, 0, 0, 0, 0, 0)


def are_all(values: NDArray[Any], wanted: int) -> bool:
    """Whether every value is this one.

    >>> are_all(np.array([2, 2]), 2), are_all(np.array([2, 3]), 2)
    (True, False)
    """
    if len(values) > FEW:
        return bool((values == wanted).all())
    found: list[int] = values.tolist()
    return found.count(wanted) == len(found)


_ONE: Final = struct.Struct("<IIBIqqqI")
assert _ONE.size == _COUNT.size + _PERSISTED.itemsize


def encode_one(
    count: int, state: int, attempts: int, deadline_ms: int, received_ms: int, first_ms: int, holder: int
) -> bytes:
    """The stored form of `count` equal rows that are not done."""
    return _ONE.pack(1, count, state, attempts, deadline_ms, received_ms, first_ms, holder)


def encoded_length(data: bytes) -> int:
    """How many bytes of `data` the stored form of some rows takes."""
    (run_count,) = _COUNT.unpack_from(data)
    return int(_COUNT.size + run_count * _PERSISTED.itemsize)


def runs_of(rows: NDArray[np.intp], *columns: NDArray[Any]) -> list[tuple[int, int]]:
    """Cut sorted row numbers into runs (start, stop) of neighbours that are equal in every column.

    >>> runs_of(np.array([0, 1, 2, 7, 8]))
    [(0, 3), (7, 9)]
    """
    if len(rows) <= 1:
        return [(int(rows[0]), int(rows[0]) + 1)] if len(rows) else []
    cuts = np.diff(rows) != 1
    for column in columns:
        values = column[rows]
        cuts |= values[1:] != values[:-1]
    at = (np.flatnonzero(cuts) + 1).tolist()
    starts = rows[[0, *at]].tolist()
    stops = (rows[[*(index - 1 for index in at), len(rows) - 1]] + 1).tolist()
    return list(zip(starts, stops, strict=True))
