"""Naive models of what the core does with arrays and heaps: a row at a time, nothing clever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile

from penstock.core.delivery.states import State


@dataclass
class Row:
    """One message in one channel."""

    sequence: int
    state: State = State.READY
    attempts: int = 0
    deadline_ms: int = 0
    received_ms: int = 0
    first_ms: int = 0
    holder: int = 0

    def lease(self, now_ms: int, deadline_ms: int, holder: int) -> None:
        self.state = State.LEASED
        self.attempts += 1
        self.deadline_ms, self.received_ms, self.holder = deadline_ms, now_ms, holder
        self.first_ms = self.first_ms or now_ms

    def settle(self) -> None:
        self.state = State.DONE

    def retry(self) -> None:
        self.state, self.deadline_ms, self.holder = State.READY, 0, 0

    def postpone(self, due_ms: int) -> None:
        self.state, self.deadline_ms, self.holder = State.DELAYED, due_ms, 0

    def stored(self) -> Row:
        """What is left of it once it was stored: of what is done, nothing but that."""
        return Row(self.sequence, State.DONE) if self.state == State.DONE else replace(self)


class NaiveFifo:
    """A FIFO channel as a list of (sequence, group, state), with how often each was delivered."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[str, State]] = {}
        self.attempts: dict[int, int] = {}

    def add(self, sequence: int, group: str, state: State = State.READY) -> None:
        self.messages[sequence] = (group, state)
        self.attempts[sequence] = 0

    def put(self, sequence: int, state: State) -> None:
        self.messages[sequence] = (self.messages[sequence][0], state)

    def drop(self, sequence: int) -> None:
        del self.messages[sequence]

    def of_state(self, state: State) -> list[int]:
        return [sequence for sequence, (_, each) in sorted(self.messages.items()) if each == state]

    def heads(self) -> list[tuple[int, int, str]]:
        """The heads of free groups: how often delivered, sequence, group; those delivered least, and oldest, first."""
        found = []
        for group in {group for group, _ in self.messages.values()}:
            mine = [(number, state) for number, (name, state) in sorted(self.messages.items()) if name == group]
            if mine[0][1] == State.READY:
                found.append((self.attempts[mine[0][0]], mine[0][0], group))
        return sorted(found)

    def _of_groups(self, groups: list[str]) -> list[int]:
        """What can be handed out of free groups, one group after the other."""
        found: list[int] = []
        for group in groups:
            mine = [(number, state) for number, (name, state) in sorted(self.messages.items()) if name == group]
            found += [number for number, _ in takewhile(lambda each: each[1] == State.READY, mine)]
        return found

    def take(self, limit: int, owes_fresh: bool) -> tuple[list[int], bool]:
        heads = self.heads()
        again = self._of_groups([group for attempts, _, group in heads if attempts])
        fresh = self._of_groups([group for attempts, _, group in heads if not attempts])
        share = (limit - owes_fresh + 1) // 2 if fresh else limit
        first = again[:share]
        second = fresh[: limit - len(first)]
        third = again[share : share + limit - len(first) - len(second)]
        for sequence in first + second + third:
            self.put(sequence, State.LEASED)
            self.attempts[sequence] += 1
        return second + first + third, max(0, owes_fresh + len(first) - len(second)) + len(third) > 0


class NaiveFair:
    """Groups that take turns, in the order in which they have begun to wait."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, str | None]] = []
        self.turns: list[str | None] = []

    def add(self, sequence: int, group: str | None) -> None:
        self.waiting.append((sequence, group))
        if group not in self.turns:
            self.turns.append(group)

    def take(self, limit: int) -> list[int]:
        taken: list[int] = []
        while self.turns and len(taken) < limit:
            group = self.turns.pop(0)
            first = next(each for each in self.waiting if each[1] == group)
            self.waiting.remove(first)
            taken.append(first[0])
            if any(name == group for _, name in self.waiting):
                self.turns.append(group)
        return taken
