"""Messages by group: who may be handed out next when order (FIFO) or fairness matters.

Both indexes hold sequence numbers of messages that are in the window. They are derived from the columns and the chunks,
never stored, and rebuilt when something rare happens (opening, purge, retention).

`FifoIndex`: a group is free when its head is older than all of its messages that are leased, and is not waiting for a
due time. What is handed out of it ends before the first that is leased. Free groups lie in two heaps: by their head's
sequence number, so that finding the oldest free group costs the same whatever is blocked before it; and those whose
head was delivered before by how often that was. The two take turns, half of a receive each, so that a group whose head
always fails does not keep the others back; in one receive, they come after the others.

`FairIndex`: groups that have something waiting take turns, one message each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush


class Group:
    """One FIFO group's messages that are not done, in order."""

    __slots__ = ("flight", "in_flight", "name", "postponed", "waiting")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[int] = deque()
        self.in_flight = 0
        self.flight: list[int] = []
        """A heap of those in flight, and of some that were."""
        self.postponed: set[int] = set()


_NO_END = 1 << 63
FreeGroup = tuple[int, int, str | None]
"""How often a group's head was delivered, its sequence number, and the group's name."""


class FifoIndex:
    """Groups of a FIFO channel.

    >>> index = FifoIndex()
    >>> for sequence, group in enumerate(["a", "a", "b"]):
    ...     index.add(sequence, group)
    >>> index.take(1), index.take(5)
    (([0], False), ([2], False))
    >>> index.settle(0)
    >>> index.take(5)
    ([1], False)
    """

    def __init__(self) -> None:
        self._groups: dict[str | None, Group] = {}
        self._fresh: list[FreeGroup] = []
        self._again: list[FreeGroup] = []
        """Those whose head was delivered before."""
        self._attempts: dict[int, int] = {}
        """Waiting message -> how often it was delivered, if ever."""
        self._holding: dict[int, Group] = {}
        """Leased or postponed message -> its group."""
        self.size = 0
        """How many messages wait."""

    def add(self, sequence: int, name: str | None, attempts: int = 0) -> None:
        """A ready message, newer than all of its group."""
        group = self._group(name)
        group.waiting.append(sequence)
        self.size += 1
        if attempts:
            self._attempts[sequence] = attempts
        if len(group.waiting) == 1:
            self._offer(group)

    def add_leased(self, sequence: int, name: str | None) -> None:
        """A message that is in flight already (when the index is built anew)."""
        self._fly(self._group(name), sequence)

    def add_postponed(self, sequence: int, name: str | None, attempts: int = 0) -> None:
        """A message that waits for its due time, newer than all of its group."""
        group = self._group(name)
        group.postponed.add(sequence)
        group.waiting.append(sequence)
        self._holding[sequence] = group
        self.size += 1
        if attempts:
            self._attempts[sequence] = attempts

    def take(self, limit: int, owes_fresh: bool = False) -> tuple[list[int], bool]:
        """Up to `limit` messages: a group's first, as many as there are, then the next group's.

        Half of them are of groups whose head was delivered before, while there are others. `owes_fresh` says that it is
        the turn of the others; so does what is returned beside the messages.

        >>> index = FifoIndex()
        >>> for sequence, group in enumerate(["bad", "a", "b"]):
        ...     index.add(sequence, group)
        >>> (failed,), _ = index.take(1)
        >>> index.give_back(failed, attempts=1)
        >>> index.take(1)
        ([0], True)
        >>> index.give_back(failed, attempts=2)
        >>> index.take(1, owes_fresh=True)
        ([1], False)
        """
        fresh: list[int] = []
        if self._first(self._again) is None:
            self._take_groups(self._fresh, limit, fresh)
            return fresh, owes_fresh and not fresh
        again: list[int] = []
        share = limit if self._first(self._fresh) is None else (limit - owes_fresh + 1) // 2
        interrupted, below = self._take_groups(self._again, share, again)
        self._take_groups(self._fresh, limit - len(again), fresh)
        surplus, so_far = max(0, owes_fresh + len(again) - len(fresh)), len(again)
        if interrupted is not None:
            self._take_of(interrupted, limit - len(fresh), again, below)
        self._take_groups(self._again, limit - len(fresh), again)
        return fresh + again, surplus + len(again) - so_far > 0

    def _take_groups(self, heap: list[FreeGroup], limit: int, taken: list[int]) -> tuple[Group | None, int]:
        """Go on until so many are taken. Returns the last group, which may have more, and where those end."""
        group, below = None, _NO_END
        while len(taken) < limit and (group := self._first(heap)) is not None:
            heappop(heap)
            below = self._lowest_in_flight(group)
            self._take_of(group, limit, taken, below)
        return group, below

    def _take_of(self, group: Group, limit: int, taken: list[int], below: int) -> None:
        waiting = group.waiting
        while len(taken) < limit and waiting and waiting[0] < below and waiting[0] not in group.postponed:
            sequence = waiting.popleft()
            taken.append(sequence)
            self._attempts.pop(sequence, None)
            self._fly(group, sequence)
            self.size -= 1

    def _fly(self, group: Group, sequence: int) -> None:
        """A message is in flight."""
        self._holding[sequence] = group
        group.in_flight += 1
        heappush(group.flight, sequence)

    def _lowest_in_flight(self, group: Group) -> int:
        flight, holding = group.flight, self._holding
        if not group.in_flight:
            flight.clear()
            return _NO_END
        while holding.get(flight[0]) is not group or flight[0] in group.postponed:
            heappop(flight)
        return flight[0]

    def _is_free(self, group: Group) -> bool:
        """Whether its head may be handed out."""
        waiting = group.waiting
        if not waiting or waiting[0] in group.postponed:
            return False
        return not group.in_flight or waiting[0] < self._lowest_in_flight(group)

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
        self._attempts.pop(sequence, None)
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
        self._attempts.pop(sequence, None)
        self._fly(group, sequence)
        self.size -= 1

    def give_back(self, sequence: int, attempts: int) -> None:
        """A leased message is ready again, before the newer ones of its group, having been delivered so often."""
        group = self._holding.pop(sequence)
        self._put_back(group, sequence, attempts)
        self._offer(group)

    def postpone(self, sequence: int, attempts: int) -> None:
        """A leased message waits for a due time, and its group with it."""
        group = self._holding[sequence]
        group.postponed.add(sequence)
        self._put_back(group, sequence, attempts)
        self._offer(group)

    def come_due(self, sequence: int) -> None:
        """A postponed message may be handed out."""
        group = self._holding.pop(sequence)
        group.postponed.discard(sequence)
        self._offer(group)

    def has_free(self) -> bool:
        """Whether any message can be handed out."""
        return self._first(self._fresh) is not None or self._first(self._again) is not None

    def _first(self, heap: list[FreeGroup]) -> Group | None:
        """The first group in a heap that is what the heap says."""
        while heap:
            attempts, sequence, name = heap[0]
            group = self._groups.get(name)
            is_known = self._attempts.get(sequence, 0) == attempts
            if is_known and group is not None and self._is_free(group) and group.waiting[0] == sequence:
                return group
            heappop(heap)
        return None

    def _group(self, name: str | None) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name)
        return group

    def _put_back(self, group: Group, sequence: int, attempts: int) -> None:
        group.in_flight -= 1
        self.size += 1
        if attempts:
            self._attempts[sequence] = attempts
        waiting = group.waiting
        if waiting and sequence > waiting[0]:
            group.waiting = deque(sorted([sequence, *waiting]))
        else:
            waiting.appendleft(sequence)

    def _offer(self, group: Group) -> None:
        if self._is_free(group):
            head = group.waiting[0]
            attempts = self._attempts.get(head, 0)
            heappush(self._again if attempts else self._fresh, (attempts, head, group.name))
        elif not group.waiting and not group.in_flight:
            self._groups.pop(group.name, None)


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
