"""Who shall own which shard next. Pure: from what the controller knows to what it should write.

In this order:

1. *Orphans*, whose owner is not alive or has let go, go to the least loaded node, all of them at once; but not to the
   one that has just failed to open them, if there is another: with nothing to do it would be the least loaded for ever.
2. Shards that were moved *by hand* go where the wish says.
3. *Draining* nodes are emptied, one shard after the other.
4. A node that has *nothing*, because it has just come or come back, gets its share, all of it at once.
5. *Balance*: from a busy node to the quietest, one shard at a time and not again before the cool-down is over; the
   busiest first, and the next one if nothing of it can be moved.

Anything but an orphan moves only when no other shard is on its way, and stays where it is otherwise.

A shard's load is what it does: messages a second, and what commits and bytes cost in messages; and a constant, so that
shards with nothing to do are spread by count. A backlog does not count: what nobody consumes is no work, and what
somebody consumes is in the messages. Balance leaves alone what is good
enough: the busiest must have `RATIO` times the quietest's load, and the shard that moves must close the gap by a fair
part. So with steady loads every move makes the sum of the squares of the nodes' loads smaller: no assignment comes
twice, and there is an end. A shard that has just moved stays for a while, whatever the loads say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

RATIO = 1.3
"""How much more than the quietest node the busiest must have to do before a shard moves."""
OVERLOAD = 1.35
"""A node with more than so many times the mean is helped as soon as the cool-down is over..."""
LEISURE = 12
"""... and others after so many cool-downs: what is good enough may wait, and what comes and goes is left alone."""
IDLE_LOAD = 100.0
"""What a shard counts, in messages a second, when it has nothing to do."""
COMMIT_MESSAGES = 50.0
"""What a commit costs, in messages: a transaction of Kafka's, whatever is in it."""
MESSAGE_BYTES = 4096.0
"""So many bytes cost about as much as one more message."""
GAP_SHARE_MAX = 0.8
"""A shard with a larger share of the gap between two nodes would only turn them round..."""
OVERLOAD_GAP_SHARE_MAX = 0.95
"""... which is better than nothing where a node has far too much."""
NODE_SHARE_MIN = 0.001
"""A shard with a smaller share of its node's load is not worth moving."""
STAY_COOL_DOWNS = 5
"""A shard that was moved stays for so many cool-downs."""


class Member(msgspec.Struct, frozen=True):
    """A node that is alive."""

    name: str
    is_draining: bool = False


class ShardLoad(msgspec.Struct, frozen=True):
    """A shard, who shall own it so far, and what it has to do."""

    number: int
    owner: str = ""
    """"": nobody yet."""
    is_settled: bool = True
    """Its owner serves it: it is not on its way."""
    rate: float = 0.0
    """Messages a second, in and out."""
    commits: float = 0.0
    """A second."""
    byte_rate: float = 0.0
    """Bytes that it commits a second."""
    moved_s: float = float("-inf")
    """When it was moved last."""
    failed_at: str = ""
    """The node that should have opened it last, and could not."""

    @property
    def load(self) -> float:
        """What counts.

        >>> ShardLoad(0, rate=50.0, commits=2.0).load
        250.0
        """
        return IDLE_LOAD + self.rate + self.commits * COMMIT_MESSAGES + self.byte_rate / MESSAGE_BYTES


def plan(
    members: Iterable[Member],
    shards: Iterable[ShardLoad],
    wishes: Mapping[int, str],
    now_s: float,
    cool_down_s: float,
) -> dict[int, str]:
    """The shards that get another owner now, and whom.

    >>> plan([Member("a"), Member("b")], [ShardLoad(0), ShardLoad(1)], {}, now_s=0.0, cool_down_s=5.0)
    {0: 'a', 1: 'b'}
    >>> plan([Member("a"), Member("b")], [ShardLoad(0, "a"), ShardLoad(1, "b")], {}, now_s=0.0, cool_down_s=5.0)
    {}
    """
    table = _Table(members, shards, wishes)
    orphans = table.place_orphans()
    if orphans or not table.is_settled:
        return orphans
    return table.by_hand() or table.drained() or table.welcomed() or table.balanced(now_s, cool_down_s)


class _Table:
    """The nodes and what they have."""

    def __init__(self, members: Iterable[Member], shards: Iterable[ShardLoad], wishes: Mapping[int, str]) -> None:
        self._members = {member.name: member for member in members}
        self._shards = sorted(shards, key=lambda shard: shard.number)
        self._wishes = wishes
        self._owners = {shard.number: shard.owner for shard in self._shards if shard.owner in self._members}
        self._pinned = {number for number, owner in self._owners.items() if wishes.get(number) == owner}
        """The shards that are where somebody wants them."""
        self._loads = dict.fromkeys(sorted(self._members), 0.0)
        for shard in self._shards:
            if shard.number in self._owners:
                self._loads[shard.owner] += shard.load

    @property
    def is_settled(self) -> bool:
        """Whether no shard is on its way."""
        return all(shard.is_settled for shard in self._shards)

    def place_orphans(self) -> dict[int, str]:
        """Owners for shards that have none: the heaviest first, each to where the least is."""
        orphans = [shard for shard in self._shards if shard.number not in self._owners]
        placed: dict[int, str] = {}
        for shard in sorted(orphans, key=lambda orphan: -orphan.load):
            wished = self._wishes.get(shard.number, "")
            candidates = self._candidates() or list(self._loads)
            others = [name for name in candidates if name != shard.failed_at]
            target = wished if self._takes(wished) else self._quietest(others or candidates)
            if target is not None:
                placed[shard.number] = target
                self._loads[target] += shard.load
        return dict(sorted(placed.items()))

    def by_hand(self) -> dict[int, str]:
        """The first shard that is not where somebody wants it, and could be."""
        for number, owner in self._owners.items():
            wished = self._wishes.get(number, "")
            if wished != owner and self._takes(wished):
                return {number: wished}
        return {}

    def drained(self) -> dict[int, str]:
        """The first shard of a draining node, if somebody can take it."""
        target = self._quietest(self._candidates())
        if target is not None:
            for number, owner in self._owners.items():
                if self._members[owner].is_draining:
                    return {number: target}
        return {}

    def welcomed(self) -> dict[int, str]:
        """The share of a node that has nothing: from those who have more, until it has about the mean itself."""
        candidates = self._candidates()
        newcomer = next((name for name in candidates if name not in self._owners.values()), None)
        if newcomer is None:
            return {}
        mean, moves = sum(self._loads[name] for name in candidates) / len(candidates), dict[int, str]()
        movable = [shard for shard in self._shards if shard.owner in candidates and shard.number not in self._pinned]
        for shard in sorted(movable, key=lambda it: -it.load):
            is_too_much = self._loads[newcomer] + shard.load > mean
            if not is_too_much and self._loads[shard.owner] - shard.load > self._loads[newcomer]:
                self._loads[shard.owner] -= shard.load
                self._loads[newcomer] += shard.load
                moves[shard.number] = newcomer
        return dict(sorted(moves.items()))

    def balanced(self, now_s: float, cool_down_s: float) -> dict[int, str]:
        """A shard from a busy node to the quietest, if that is worth it and it is time."""
        candidates = self._candidates()
        newest_s = max((shard.moved_s for shard in self._shards), default=float("-inf"))
        if len(candidates) < 2:
            return {}
        busiest_first = sorted(candidates, key=self._loads.__getitem__, reverse=True)
        quietest = busiest_first.pop()
        least, mean = self._loads[quietest], sum(self._loads[name] for name in candidates) / len(candidates)
        for busy in busiest_first:
            most, gap = self._loads[busy], self._loads[busy] - least
            is_overloaded = most > OVERLOAD * mean
            pauses, share_max = (1, OVERLOAD_GAP_SHARE_MAX) if is_overloaded else (LEISURE, GAP_SHARE_MAX)
            if most <= RATIO * least or now_s - newest_s < pauses * cool_down_s:
                break
            movable = [
                shard
                for shard in self._shards
                if shard.owner == busy
                and shard.number not in self._pinned
                and now_s - shard.moved_s >= STAY_COOL_DOWNS * cool_down_s
                and most * NODE_SHARE_MIN <= shard.load <= gap * share_max
            ]
            if movable:
                best = min(movable, key=lambda shard: (abs(gap - 2 * shard.load), shard.number))
                return {best.number: quietest}
        return {}

    def _takes(self, name: str) -> bool:
        return name in self._members and not self._members[name].is_draining

    def _candidates(self) -> list[str]:
        return [name for name in self._loads if self._takes(name)]

    def _quietest(self, names: list[str]) -> str | None:
        return min(names, key=self._loads.__getitem__, default=None)
