"""Messages by group: who may be handed out next when order (FIFO) or fairness matters.

Both indexes hold sequence numbers of messages that are in the window. They are derived from the columns and the chunks,
never stored, and rebuilt when something rare happens (opening, purge, retention).

`FifoIndex`: a group is free when none of its messages is leased and its head is not waiting for a due time. Free
groups lie in a heap by their head's sequence number, so finding the oldest free group costs the same whatever is
blocked before it.

`FairIndex`: groups that have something waiting take turns, one message each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush


class Group:
    """One FIFO group's messages that are not done, in order."""

    __slots__ = ("in_flight", "name", "postponed", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[int] = deque()
        self.in_flight = 0
        self.postponed: set[int] = set()

    @property
    def is_free(self) -> bool:
        """Whether its head may be handed out."""
        return not self.in_flight and bool(self.waiting) and self.waiting[0] not in self.postponed


class FifoIndex:
    """Groups of a FIFO channel.

    >>> index = FifoIndex()
    >>> for sequence, group in enumerate(["a", "a", "b"]):
    ...     index.add(sequence, group)
    >>> index.take(1), index.take(5)
    ([0], [2])
    >>> index.settle(0)
    >>> index.take(5)
    [1]
    """

    def __init__(self) -> None:
        self._groups: dict[str | None, Group] = {}
        self._free: list[tuple[int, str | None]] = []
        self._holding: dict[int, Group] = {}
        """Leased or postponed message -> its group."""
        self.size = 0
        """How many messages wait."""

    def add(self, sequence: int, name: str | None) -> None:
        """A ready message, newer than all of its group."""
        group = self._group(name)
        group.waiting.append(sequence)
        self.size += 1
        if len(group.waiting) == 1:
            self._offer(group)

    def add_leased(self, sequence: int, name: str | None) -> None:
        """A message that is in flight already (when the index is built anew)."""
        group = self._group(name)
        group.in_flight += 1
        self._holding[sequence] = group

    def add_postponed(self, sequence: int, name: str | None) -> None:
        """A message that waits for its due time, newer than all of its group."""
        group = self._group(name)
        group.postponed.add(sequence)
        group.waiting.append(sequence)
        self._holding[sequence] = group
        self.size += 1

    def take(self, limit: int) -> list[int]:
        """Up to `limit` messages: the oldest free group's first, as many as there are, then the next group's."""
        taken: list[int] = []
        while len(taken) < limit and (group := self._next_free()) is not None:
            waiting = group.waiting
            while len(taken) < limit and waiting and waiting[0] not in group.postponed:
                sequence = waiting.popleft()
                taken.append(sequence)
                self._holding[sequence] = group
                group.in_flight += 1
                self.size -= 1
        return taken

    def settle(self, sequence: int) -> None:
        """A message is done, wherever it was."""
        group = self._holding.pop(sequence, None)
        if group is None or sequence in group.postponed:
            self._settle_waiting(sequence, group)
            return
        group.in_flight -= 1
        self._offer(group)

    def _settle_waiting(self, sequence: int, group: Group | None) -> None:
        if group is None:
            group = next(group for group in self._groups.values() if sequence in group.waiting)
        group.postponed.discard(sequence)
        group.waiting.remove(sequence)
        self.size -= 1
        self._offer(group)

    def hold(self, sequence: int, name: str | None) -> None:
        """A message that waits is in flight, although nobody took it now: its delivery had been forgotten.

        >>> index = FifoIndex()
        >>> index.add(7, "a")
        >>> index.hold(7, "a")
        >>> index.has_free()
        False
        """
        group = self._holding.get(sequence) or self._groups[name]
        group.postponed.discard(sequence)
        group.waiting.remove(sequence)
        group.in_flight += 1
        self._holding[sequence] = group
        self.size -= 1

    def give_back(self, sequence: int) -> None:
        """A leased message is ready again, before the newer ones of its group."""
        group = self._holding.pop(sequence)
        self._put_back(group, sequence)
        self._offer(group)

    def postpone(self, sequence: int) -> None:
        """A leased message waits for a due time, and its group with it."""
        group = self._holding[sequence]
        group.postponed.add(sequence)
        self._put_back(group, sequence)
        self._offer(group)

    def come_due(self, sequence: int) -> None:
        """A postponed message may be handed out."""
        group = self._holding.pop(sequence)
        group.postponed.discard(sequence)
        self._offer(group)

    def has_free(self) -> bool:
        """Whether any message can be handed out."""
        while self._free:
            sequence, name = self._free[0]
            group = self._groups.get(name)
            if group is not None and group.is_free and group.waiting[0] == sequence:
                return True
            heappop(self._free)
        return False

    def _group(self, name: str | None) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name)
        return group

    def _put_back(self, group: Group, sequence: int) -> None:
        group.in_flight -= 1
        self.size += 1
        waiting = group.waiting
        if waiting and sequence > waiting[0]:
            group.waiting = deque(sorted([sequence, *waiting]))
        else:
            waiting.appendleft(sequence)

    def _offer(self, group: Group) -> None:
        if group.is_free:
            heappush(self._free, (group.waiting[0], group.name))
        elif not group.waiting and not group.in_flight:
            self._groups.pop(group.name, None)

    def _next_free(self) -> Group | None:
        if not self.has_free():
            return None
        return self._groups[heappop(self._free)[1]]


class FairIndex:
    """Groups of a standard queue that take turns.

    >>> index = FairIndex()
    >>> index.add(0, ["noisy", "noisy", "noisy", "quiet"])
    >>> index.take(3)
    [0, 3, 1]
    """

    def __init__(self) -> None:
        self._groups: dict[str | None, deque[int]] = {}
        self._turns: deque[str | None] = deque()
        self.size = 0

    def add(self, base: int, names: Sequence[str | None]) -> None:
        """Never delivered messages with consecutive sequence numbers."""
        for sequence, name in enumerate(names, base):
            self.add_one(sequence, name)

    def add_one(self, sequence: int, name: str | None) -> None:
        """One never delivered message."""
        waiting = self._groups.get(name)
        if waiting is None:
            waiting = self._groups[name] = deque()
            self._turns.append(name)
        waiting.append(sequence)
        self.size += 1

    def remove(self, sequence: int, name: str | None) -> None:
        """A message of a group is not to be handed out any more, if it was.

        >>> index = FairIndex()
        >>> index.add(0, ["a", "b"])
        >>> index.remove(0, "a")
        >>> index.take(2)
        [1]
        """
        waiting = self._groups.get(name)
        if waiting is None or sequence not in waiting:
            return
        waiting.remove(sequence)
        self.size -= 1
        if not waiting:
            del self._groups[name]
            self._turns.remove(name)

    def take(self, limit: int) -> list[int]:
        """Up to `limit` messages, a turn a group."""
        taken: list[int] = []
        turns = self._turns
        while turns and len(taken) < limit:
            name = turns.popleft()
            waiting = self._groups[name]
            taken.append(waiting.popleft())
            if waiting:
                turns.append(name)
            else:
                del self._groups[name]
        self.size -= len(taken)
        return taken
