"""Columns: every whole-array operation beside the same thing a row at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.core.delivery.columns import FEW, Columns, Rows, encode_one, encoded_length, runs_of
from penstock.core.delivery.states import TRANSITIONS, Event, IllegalTransition, State
from tests.core.naive import Row

times = st.integers(1, 60)
holders = st.integers(0, 3)


class ColumnsBesideRows(RuleBasedStateMachine):
    """The same operations on columns and on naive rows."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()
        self.rows: list[Row] = []
        self.next_sequence = 0

    @initialize()
    def begin(self) -> None:
        self._append(3)

    def _append(self, count: int) -> None:
        base = self.next_sequence
        self.next_sequence += count + 1
        rows = self.columns.append(base, count)
        assert rows == slice(len(self.rows), len(self.rows) + count)
        self.rows += [Row(base + index) for index in range(count)]

    @rule(count=st.integers(1, 5) | st.just(300))
    def append(self, count: int) -> None:
        if len(self.rows) < 2_000:
            self._append(count)

    def _pick(self, data: st.DataObject) -> list[int]:
        """Some rows: a run, or a few here and there."""
        size = len(self.rows)
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, size - 1))
            return list(range(start, min(size, start + data.draw(st.integers(1, 10)))))
        return sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=6)))

    @staticmethod
    def _at(rows: list[int], data: st.DataObject) -> Rows:
        if rows[-1] - rows[0] + 1 == len(rows) and data.draw(st.booleans()):
            return slice(rows[0], rows[-1] + 1)
        return np.array(rows, dtype=np.intp)

    @rule(data=st.data(), now=times, duration=times, holder=holders)
    def lease(self, data: st.DataObject, now: int, duration: int, holder: int) -> None:
        rows = [row for row in self._pick(data) if self.rows[row].state == State.READY]
        if rows:
            self.columns.lease(self._at(rows, data), now, now + duration, holder)
            for row in rows:
                self.rows[row].lease(now, now + duration, holder)

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        rows = [row for row in self._pick(data) if self.rows[row].state != State.DONE]
        if rows:
            self.columns.settle(self._at(rows, data))
            for row in rows:
                self.rows[row].settle()

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        state = data.draw(st.sampled_from([State.LEASED, State.DELAYED]))
        rows = [row for row in self._pick(data) if self.rows[row].state == state]
        if rows:
            (self.columns.retry if state == State.LEASED else self.columns.make_due)(self._at(rows, data))
            for row in rows:
                self.rows[row].retry()

    @rule(data=st.data(), due=times)
    def postpone(self, data: st.DataObject, due: int) -> None:
        state = data.draw(st.sampled_from([State.LEASED, State.READY]))
        rows = [row for row in self._pick(data) if self.rows[row].state == state]
        if rows:
            postpone = self.columns.postpone if state == State.LEASED else self.columns.hold_back
            each = data.draw(st.booleans())
            due_ms = np.array([due + index for index in range(len(rows))], dtype=np.int64)
            postpone(self._at(rows, data), due_ms if each else due)
            for index, row in enumerate(rows):
                self.rows[row].postpone(due + index if each else due)

    @rule(data=st.data(), deadline=times)
    def extend(self, data: st.DataObject, deadline: int) -> None:
        rows = [row for row in self._pick(data) if self.rows[row].state == State.LEASED]
        if rows:
            self.columns.extend(self._at(rows, data), deadline)
            for row in rows:
                self.rows[row].deadline_ms = deadline

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        if len(self.rows) > 20:
            rows = self._pick(data)
            self.columns.keep(np.array(rows, dtype=np.intp))
            self.rows = [self.rows[row] for row in rows]

    @rule(data=st.data())
    def store_and_take_back(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.rows) - 1))
        stop = data.draw(st.integers(start + 1, min(len(self.rows), start + FEW + 40)))
        stored = self.columns.encode(slice(start, stop))
        assert self.columns._encode_few(slice(start, stop)) == stored
        assert self.columns._encode_many(slice(start, stop)) == stored
        assert encoded_length(stored) == encoded_length(stored + b"more") == len(stored)
        back = Columns()
        back.append(0, 7)
        base = self.next_sequence
        rows = back.append_encoded(base, stored)
        assert rows == slice(7, 7 + stop - start)
        wanted = [row.stored() for row in self.rows[start:stop]]
        for index, row in enumerate(wanted):
            row.sequence = base + index
        assert _rows_of(back)[7:] == wanted
        assert back.encode(rows) == stored

    @rule(data=st.data(), attempt=st.integers(0, 3), event=st.sampled_from(list(Event)))
    def ask(self, data: st.DataObject, attempt: int, event: Event) -> None:
        start = data.draw(st.integers(0, len(self.rows) - 1))
        stop = data.draw(st.integers(start + 1, len(self.rows)))
        run, at = self.rows[start:stop], slice(start, stop)
        states = [row.state for row in run]
        assert self.columns.counts(at) == tuple(
            states.count(state) for state in (State.READY, State.LEASED, State.DELAYED)
        )
        leased = [row.state == State.LEASED and row.attempts == attempt for row in run]
        assert self.columns.all_leased(at, attempt) == all(leased)
        allowed = [event in TRANSITIONS[row.state] and row.attempts == attempt for row in run]
        assert self.columns.rows_allowing(event, at, attempt).tolist() == allowed
        is_ready = [row.state == State.READY for row in run]
        assert self.columns.ready_from(start, stop) == (stop - start if all(is_ready) else is_ready.index(False))
        assert self.columns.are_alike(start, stop) == (len({(row.attempts, row.first_ms) for row in run}) == 1)
        one = (self.columns.state_at(start), self.columns.attempts_at(start), self.columns.first_ms_at(start))
        assert one == (run[0].state, run[0].attempts, run[0].first_ms)

    @rule(now=times, holder=holders)
    def ask_the_clock(self, now: int, holder: int) -> None:
        def where(state: State) -> list[int]:
            return [at for at, row in enumerate(self.rows) if row.state == state and row.deadline_ms <= now]

        assert self.columns.expired(now).tolist() == where(State.LEASED)
        assert self.columns.come_due(now).tolist() == where(State.DELAYED)
        held = [at for at, row in enumerate(self.rows) if row.state == State.LEASED and row.holder == holder]
        assert self.columns.held_by(holder).tolist() == held

    @invariant()
    def same_rows(self) -> None:
        assert _rows_of(self.columns) == self.rows
        waiting = [row.deadline_ms for row in self.rows if row.state in (State.LEASED, State.DELAYED)]
        assert self.columns.next_deadline() == min(waiting, default=None)


def _rows_of(columns: Columns) -> list[Row]:
    names = ("sequence", "state", "attempts", "deadline_ms", "received_ms", "first_ms", "holder")
    values = [getattr(columns, name)[: columns.size].tolist() for name in names]
    return [Row(sequence, State(state), *rest) for sequence, state, *rest in zip(*values, strict=True)]


def _settle(columns: Columns, at: Rows) -> None:
    columns.settle(at)


CHANGES: dict[Event, Callable[[Columns, Rows], None]] = {
    Event.LEASE: lambda columns, at: columns.lease(at, now_ms=1, deadline_ms=2, holder=1),
    Event.ACK: _settle,
    Event.MOVE: _settle,
    Event.DROP: _settle,
    Event.RETRY: Columns.retry,
    Event.POSTPONE: lambda columns, at: columns.postpone(at, due_ms=9),
    Event.EXTEND: lambda columns, at: columns.extend(at, deadline_ms=9),
    Event.COME_DUE: Columns.make_due,
    Event.RECALL: lambda columns, at: columns.recall(at, now_ms=1, attempt=3, holder=1),
    Event.HOLD_BACK: lambda columns, at: columns.hold_back(at, due_ms=9),
    Event.GIVE_BACK: Columns.give_back,
    Event.TAKE_BACK: Columns.take_back,
}
"""What does an event to rows; every event has something that does it."""


@given(
    event=st.sampled_from(list(Event)),
    states=st.lists(st.sampled_from(list(State)), min_size=1, max_size=FEW + 30),
    mostly=st.sampled_from(list(State)) | st.none(),
    as_slice=st.booleans(),
)
def test_columns_do_what_the_table_has_and_nothing_else(
    event: Event, states: list[State], mostly: State | None, as_slice: bool
) -> None:
    if mostly is not None:
        states = [mostly] * len(states)
    columns = Columns()
    rows = columns.append(0, len(states))
    columns.state[rows] = states
    columns.attempts[rows] = 1
    at = rows if as_slice else np.arange(rows.start, rows.stop)
    if all(event in TRANSITIONS[state] for state in states):
        CHANGES[event](columns, at)
        assert columns.state[rows].tolist() == [TRANSITIONS[state][event] for state in states]
        return
    wrong = next(state for state in states if event not in TRANSITIONS[state])
    with pytest.raises(IllegalTransition, match=f"cannot happen to a message that is {wrong.name}"):
        CHANGES[event](columns, at)


@given(st.sampled_from(list(State)))
def test_one_message_is_leased_only_if_the_table_says_so(state: State) -> None:
    columns = Columns()
    columns.append(0, 1)
    columns.state[0] = state
    if Event.LEASE in TRANSITIONS[state]:
        columns.lease_one(0, now_ms=1, deadline_ms=2, holder=1)
        assert columns.state_at(0) == State.LEASED
    else:
        with pytest.raises(IllegalTransition, match=f"LEASE .* {state.name}"):
            columns.lease_one(0, now_ms=1, deadline_ms=2, holder=1)


def test_every_event_has_something_that_does_it() -> None:
    assert set(CHANGES) == set(Event)


TestColumnsBesideRows = ColumnsBesideRows.TestCase
TestColumnsBesideRows.settings = settings(max_examples=50, stateful_step_count=30)


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 2), min_size=61, max_size=61))
def test_runs_are_cut_where_rows_or_values_are_no_neighbours(rows: set[int], values: list[int]) -> None:
    ordered = sorted(rows)
    wanted: list[tuple[int, int]] = []
    for row in ordered:
        if wanted and wanted[-1][1] == row and values[row - 1] == values[row]:
            wanted[-1] = (wanted[-1][0], row + 1)
        else:
            wanted.append((row, row + 1))
    assert runs_of(np.array(ordered, dtype=np.intp), np.array(values)) == wanted


@given(
    st.integers(1, 50),
    st.sampled_from([State.READY, State.LEASED, State.DELAYED]),
    st.integers(0, 9),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 31),
)
def test_equal_rows_are_stored_as_one(
    count: int, state: State, attempts: int, deadline_ms: int, received_ms: int, first_ms: int, holder: int
) -> None:
    stored = encode_one(count, state, attempts, deadline_ms, received_ms, first_ms, holder)
    columns = Columns()
    rows = columns.append_encoded(5, stored)
    wanted = [Row(5 + at, state, attempts, deadline_ms, received_ms, first_ms, holder) for at in range(count)]
    assert _rows_of(columns) == wanted
    assert columns.encode(rows) == stored


@given(st.lists(st.integers(0, 3), min_size=FEW + 2, max_size=4 * FEW), st.integers(0, 5))
def test_many_runs_are_stored_as_few_are(picked: list[int], before: int) -> None:
    """Rows that are ready, leased in two ways, and done, in any order."""
    columns = Columns()
    columns.append(1, before)
    rows = columns.append(100, len(picked))
    for index, pick in enumerate(picked):
        if pick:
            columns.lease_one(rows.start + index, now_ms=pick, deadline_ms=30 + pick % 2, holder=pick % 2)
        if pick == 3:
            columns.settle(slice(rows.start + index, rows.start + index + 1))
    stored = columns._encode_few(rows)
    assert columns.encode(rows) == stored
    starts = [rows.start] + [rows.start + at for at in range(1, len(picked)) if picked[at] != picked[at - 1]]
    assert columns._encode_runs(np.array(starts), rows.stop) == stored
