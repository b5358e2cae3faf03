"""All queues added up, and the busiest of them: found in passing, a page of queues at a time.

However many queues there are, the shard counts a page of them in a step, and whoever else wants something gets a turn
before the next page. What is kept while looking is the sums, and as many names as will be shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING

from penstock.core.commands import QueueStats, QueueTally, TallyQueues
from penstock.server.auth import ANYBODY, Principal

if TYPE_CHECKING:
    from penstock.server.shards import Shards

COUNTS: tuple[str, ...] = QueueTally._fields[3:]
"""What is added up: messages, bytes, and so on."""


async def pages_of_tallies(
    ask: Callable[[TallyQueues], Awaitable[list[QueueTally]]],
) -> AsyncIterator[list[QueueTally]]:
    """Every queue of a shard in numbers: one step of the shard for each page."""
    page = await ask(TallyQueues())
    while page:
        yield page
        page = await ask(TallyQueues(after=page[-1].name))


class Tally:
    """What queues add up to, and which of them to show.

    >>> tally = Tally(shown_max=1, always=["audit-*"])
    >>> counts = dict.fromkeys(COUNTS, 0) | {"messages": 5}
    >>> tally.add([QueueTally(name, 1, busy, **counts) for name, busy in [("a", 7), ("audit-1", 0), ("b", 9)]])
    >>> tally.queues, tally.counts["messages"], tally.shown(), tally.not_shown
    (3, 15, ['audit-1', 'b'], 1)
    """

    def __init__(self, shown_max: int = 0, always: Sequence[str] = (), only: Sequence[str] = ()) -> None:
        self.queues = 0
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self._shown_max = shown_max
        self._always_patterns = always
        self._only_patterns = only
        """If there are any: no other queues are shown."""
        self._always: list[str] = []
        self._busiest: list[tuple[int, int, str]] = []
        """A heap: how busy, how many messages, whose."""
        self._parts: dict[str, tuple[int, int]] = {}
        """How busy are queues with several partitions, and how many messages they have: added up at the end."""

    async def take(self, shards: Shards, principal: Principal, *, local: bool) -> None:
        """Count every queue that the caller may read."""
        async for page in shards.tallies(local=local):
            self.add(page if principal is ANYBODY else [each for each in page if principal.may(each.name, QueueStats)])
        parts, self._parts = self._parts, {}
        for name, (busy, messages) in parts.items():
            self._rank(name, busy, messages)
        self.queues += len(parts)

    def add(self, page: Sequence[QueueTally]) -> None:
        if not page:
            return
        names, partitions, busy, *columns = zip(*page, strict=True)
        for count, column in zip(COUNTS, columns, strict=True):
            self.counts[count] += sum(column)
        if max(partitions) > 1:
            self._add_parts([each for each in page if each.partitions > 1])
            page = [each for each in page if each.partitions == 1]
            names, _, busy, *columns = zip(*page, strict=True) if page else ((), (), (), ())
        self.queues += len(page)
        if self._shown_max or self._always_patterns:
            for one, how_busy, messages in zip(names, busy, columns[0], strict=True):
                self._rank(one, how_busy, messages)

    def _add_parts(self, parts: Iterable[QueueTally]) -> None:
        for each in parts:
            busy, messages = self._parts.get(each.name, (0, 0))
            self._parts[each.name] = busy + each.busy, messages + each.messages

    def _rank(self, name: str, busy: int, messages: int) -> None:
        """See whether a queue is among those that are shown."""
        if self._only_patterns and not _matches(name, self._only_patterns):
            return
        if self._always_patterns and _matches(name, self._always_patterns):
            self._always.append(name)
        elif len(self._busiest) < self._shown_max:
            heappush(self._busiest, (busy, messages, name))
        elif self._busiest and (busy, messages, name) > self._busiest[0]:
            heapreplace(self._busiest, (busy, messages, name))

    def shown(self) -> list[str]:
        """The queues to show, in order."""
        return sorted([*self._always, *(name for _, _, name in self._busiest)])

    @property
    def not_shown(self) -> int:
        """How many queues there are beside those."""
        return self.queues - len(self._always) - len(self._busiest)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
