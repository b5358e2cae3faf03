"""Group indexes beside naive models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.delivery.groups import FairIndex, FifoIndex
from penstock.core.delivery.states import State
from tests.core.naive import NaiveFair, NaiveFifo

groups = st.sampled_from(["a", "b", "c"])


class FifoBesideNaive(RuleBasedStateMachine):
    """The same life of messages in the index and in the naive model."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FifoIndex()
        self.naive = NaiveFifo()
        self.next_sequence = 0
        self.owes_fresh = False

    @rule(group=groups, count=st.integers(1, 4))
    def add(self, group: str, count: int) -> None:
        for _ in range(count):
            self.index.add(self.next_sequence, group)
            self.naive.add(self.next_sequence, group)
            self.next_sequence += 1

    @rule(group=groups)
    def add_postponed(self, group: str) -> None:
        self.index.add_postponed(self.next_sequence, group)
        self.naive.add(self.next_sequence, group, State.DELAYED)
        self.next_sequence += 1

    @rule(limit=st.integers(1, 6))
    def take(self, limit: int) -> None:
        taken, owes_fresh = self.index.take(limit, self.owes_fresh)
        assert (taken, owes_fresh) == self.naive.take(limit, self.owes_fresh)
        self.owes_fresh = owes_fresh

    def _one(self, data: st.DataObject, *states: State) -> int | None:
        found = [sequence for state in states for sequence in self.naive.of_state(state)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def settle_leased(self, data: st.DataObject) -> None:
        self._settle(self._one(data, State.LEASED))

    @rule(data=st.data())
    def settle_any(self, data: st.DataObject) -> None:
        self._settle(self._one(data, State.LEASED, State.READY, State.DELAYED))

    def _settle(self, sequence: int | None) -> None:
        if sequence is not None:
            self.index.settle(sequence)
            self.naive.drop(sequence)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        sequence = self._one(data, State.LEASED)
        if sequence is not None:
            self.index.give_back(sequence, self.naive.attempts[sequence])
            self.naive.put(sequence, State.READY)

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """As if it had not been handed out."""
        sequence = self._one(data, State.LEASED)
        if sequence is not None:
            self.naive.attempts[sequence] -= 1
            self.index.give_back(sequence, self.naive.attempts[sequence])
            self.naive.put(sequence, State.READY)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """A delivery that had been forgotten."""
        sequence = self._one(data, State.READY, State.DELAYED)
        if sequence is not None:
            self.index.hold(sequence, self.naive.messages[sequence][0])
            self.naive.put(sequence, State.LEASED)
            self.naive.attempts[sequence] += 1

    @rule(data=st.data())
    def postpone(self, data: st.DataObject) -> None:
        sequence = self._one(data, State.LEASED)
        if sequence is not None:
            self.index.postpone(sequence, self.naive.attempts[sequence])
            self.naive.put(sequence, State.DELAYED)

    @rule(data=st.data())
    def come_due(self, data: st.DataObject) -> None:
        sequence = self._one(data, State.DELAYED)
        if sequence is not None:
            self.index.come_due(sequence)
            self.naive.put(sequence, State.READY)

    @precondition(lambda self: self.naive.messages)
    @rule()
    def build_anew(self) -> None:
        self.index = FifoIndex()
        for sequence, (group, state) in sorted(self.naive.messages.items()):
            if state == State.LEASED:
                self.index.add_leased(sequence, group)
            else:
                add = self.index.add if state == State.READY else self.index.add_postponed
                add(sequence, group, self.naive.attempts[sequence])

    @invariant()
    def same_answers(self) -> None:
        assert self.index.has_free() == bool(self.naive.heads())
        assert self.index.size == len(self.naive.of_state(State.READY)) + len(self.naive.of_state(State.DELAYED))


TestFifoBesideNaive = FifoBesideNaive.TestCase


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(0, 4)), max_size=60))
def test_fair_index_takes_turns_as_the_naive_one_does(steps: list[tuple[str | None, int]]) -> None:
    index, naive = FairIndex(), NaiveFair()
    for sequence, (group, limit) in enumerate(steps):
        index.add(sequence, [group])
        naive.add(sequence, group)
        assert index.take(limit) == naive.take(limit)
        assert index.size == len(naive.waiting)


def test_fair_index_forgets_groups_that_are_empty() -> None:
    index = FairIndex()
    for sequence in range(1_000):
        index.add(sequence, [str(sequence)])
        index.take(1)
    assert index.size == len(index._groups) == len(index._turns) == 0


def test_fifo_index_forgets_groups_that_are_empty() -> None:
    index = FifoIndex()
    for sequence in range(1_000):
        index.add(sequence, str(sequence))
        (taken,), _ = index.take(1)
        index.give_back(taken, 1)
        (taken,), _ = index.take(1)
        index.settle(taken)
    assert index.size == len(index._groups) == len(index._holding) == len(index._attempts) == 0
    assert not index._fresh and not index._again
