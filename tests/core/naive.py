"""Naive models of what the core does with arrays and heaps: a row at a time, nothing clever."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.core.states import State


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
    """A FIFO channel as a list of (sequence, group, state)."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[str, State]] = {}

    def add(self, sequence: int, group: str, state: State = State.READY) -> None:
        self.messages[sequence] = (group, state)

    def put(self, sequence: int, state: State) -> None:
        self.messages[sequence] = (self.messages[sequence][0], state)

    def drop(self, sequence: int) -> None:
        del self.messages[sequence]

    def of_state(self, state: State) -> list[int]:
        return [sequence for sequence, (_, each) in sorted(self.messages.items()) if each == state]

    def heads(self) -> list[tuple[int, str]]:
        """The heads of free groups, oldest first."""
        found = []
        for group in {group for group, _ in self.messages.values()}:
            mine = [(number, state) for number, (name, state) in sorted(self.messages.items()) if name == group]
            if mine[0][1] == State.READY and all(state != State.LEASED for _, state in mine):
                found.append((mine[0][0], group))
        return sorted(found)

    def take(self, limit: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < limit and (heads := self.heads()):
            _, group = heads[0]
            for sequence, (name, state) in sorted(self.messages.items()):
                if name == group:
                    if state != State.READY or len(taken) == limit:
                        break
                    taken.append(sequence)
                    self.put(sequence, State.LEASED)
        return taken


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
