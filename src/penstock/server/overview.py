"""All queues at a moment, and how fast they move: for people who watch.

Nothing is counted here, and nothing runs while nobody watches. Whoever asks gets a *look*: the tallies of all queues,
taken a page at a time (see `tally`), so that others get their turn in between. A look is shared by all who ask within
`LOOK_S`; on a server with so many queues that a look takes long, it is kept for ten times as long as it took. Rates are
the difference between two looks. The first look has none: they are there from the second one on.

A delivery ends in an ack or a failure, or is still a lease. So the deliveries between two looks are the acks, the
failures and the growth of the leases; messages that were purged while somebody held them are missing in that.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from heapq import merge, nlargest
from itertools import islice
from typing import Any, NamedTuple

from penstock.core.commands import ChannelStats, QueueTally, Stats
from penstock.server.shards import Shards

LOOK_S = 1.0
"""How long a look is fresh."""
_STALE_S = 15.0
"""Nobody watched for so long: a rate over that time would tell of the past."""
_SPARK_POINTS = 30
_SHARE = 10
"""Looking takes a tenth of the time at most."""
_ROWS_PER_TURN = 1_000
_GROWING_S = 30.0
_LATE_MIN = 100
"""So many messages must wait in a channel for people to be told; half as many, to be told no more."""
_LATE_S = 300.0
"""A channel is late if its receivers would need longer for what waits; half as long, and it is late no more."""
_ASKED_MAX = 20


class Rates(NamedTuple):
    """Messages a second."""

    sent: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0
    failed: float = 0.0
    dead: float = 0.0


class Row(NamedTuple):
    """A queue at a moment, all its partitions together."""

    name: str
    messages: int
    bytes: int
    quarantined: int
    ready: int
    leased: int
    delayed: int
    sent: int
    acked: int
    failed: int
    dead: int
    rates: Rates | None = None
    """None: it was not there a look before, or there was no look before."""

    def plus(self, part: Row) -> Row:
        """Another partition of the same queue counted in."""
        return self._replace(**{name: getattr(self, name) + getattr(part, name) for name in _SUMMED})

    def moved_since(self, before: Row, seconds: float) -> Row:
        """The same with its rates. What stood still costs nothing more: most queues do.

        >>> before, now = Row("a", 5, 50, 0, 5, 0, 0, 5, 0, 0, 0), Row("a", 5, 50, 0, 1, 4, 0, 9, 4, 2, 0)
        >>> now.moved_since(before, 2.0).rates
        Rates(sent=2.0, delivered=5.0, acked=2.0, failed=1.0, dead=0.0)
        """
        if self[:-1] == before[:-1]:
            return before if before.rates is _STILL else self._replace(rates=_STILL)
        sent, acked, failed, dead = (
            max(0, getattr(self, each) - getattr(before, each)) for each in ("sent", "acked", "failed", "dead")
        )
        delivered = max(0, acked + failed + self.leased - before.leased)
        return self._replace(rates=Rates(*(each / seconds for each in (sent, delivered, acked, failed, dead))))


_SUMMED = Row._fields[1:-1]
_STILL = Rates()


class _Kept(NamedTuple):
    """What a look is compared with later, to see what grows."""

    at_s: float
    ready: dict[str, int]
    dead: dict[str, int]
    """How many messages were dead-lettered so far, of queues with any."""


def added_up(rows: Sequence[Row]) -> tuple[dict[str, int], Rates | None]:
    """What rows have together; rates only if one of them has any."""
    counts = dict.fromkeys(_SUMMED, 0)
    moving: list[Rates] = []
    has_rates = False
    for start in range(0, len(rows), _ROWS_PER_TURN):
        _, *columns, rates = zip(*rows[start : start + _ROWS_PER_TURN], strict=True)
        for name, column in zip(_SUMMED, columns, strict=True):
            counts[name] += sum(column)
        has_rates |= any(each is not None for each in rates)
        moving += [each for each in rates if each is not None and each is not _STILL]
    if not has_rates:
        return counts, None
    return counts, Rates(*map(sum, zip(*moving, strict=True))) if moving else _STILL


def in_order(rows: Sequence[Row], key: Callable[[Row], Any], descending: bool, first: int, stop: int) -> list[Row]:
    """Some of the rows, as if all of them were sorted.

    One sort of very many rows is one call, in which no other thread gets a turn. So runs of them are sorted, and merged
    as far as they are asked for.
    """
    runs = (rows[start : start + _ROWS_PER_TURN] for start in range(0, len(rows), _ROWS_PER_TURN))
    ordered = [sorted(run, key=key, reverse=descending) for run in runs]
    return list(islice(merge(*ordered, key=key, reverse=descending), first, min(stop, len(rows))))


class Overview:
    """The last look at all queues of a server. `rows` are by name, and replaced as a whole."""

    def __init__(self, shards: Shards, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._shards = shards
        self._clock_s = clock_s
        self._looking = asyncio.Lock()
        self._looked_s: float | None = None
        self._fresh_s = LOOK_S
        self._sparks: dict[str, deque[float]] = {}
        """Messages sent a second, look by look; only of queues that somebody sent to lately."""
        self.rows: dict[str, Row] = {}
        self._kept: _Kept | None = None
        self._kept_before: _Kept | None = None
        """Of half a minute to a minute ago."""

    def died(self, row: Row) -> tuple[int, float]:
        """How many messages of a queue were dead-lettered lately, and within how many seconds."""
        kept = self._kept_before or self._kept
        if kept is None or self._looked_s is None or row.name not in kept.ready:
            return 0, 0.0
        return max(0, row.dead - kept.dead.get(row.name, 0)), self._looked_s - kept.at_s

    @property
    def looked_s(self) -> float | None:
        """When the last look was taken."""
        return self._looked_s

    async def look(self) -> Sequence[Row]:
        """Every queue, by name, as it was a moment ago."""
        async with self._looking:
            if self._looked_s is None or self._clock_s() - self._looked_s >= self._fresh_s:
                await self._take()
        return tuple(self.rows.values())

    async def _take(self) -> None:
        began_s = self._clock_s()
        found: dict[str, Row] = {}
        async for page in self._shards.tallies(local=False):
            for tally in page:
                row, part = row_of(tally), found.get(tally.name)
                if part is not None:
                    row = row.plus(part)
                found[row.name] = row
        seconds = began_s - self._looked_s if self._looked_s is not None else 0.0
        if 0 < seconds <= max(_STALE_S, 2 * self._fresh_s):
            for number, (name, row) in enumerate(found.items(), 1):
                if name in self.rows:
                    found[name] = moved = row.moved_since(self.rows[name], seconds)
                    if moved.rates is not _STILL or name in self._sparks:
                        self._draw(moved)
                if number % _ROWS_PER_TURN == 0:
                    await asyncio.sleep(0)
            for name in [name for name, spark in self._sparks.items() if name not in found or not any(spark)]:
                del self._sparks[name]
        else:
            self._sparks.clear()
        names = sorted(found)
        self.rows = found if names == list(found) else {name: found[name] for name in names}
        self._looked_s = began_s
        if self._kept is None or began_s - self._kept.at_s >= _GROWING_S:
            # Nobody watched for long: what was kept tells of the past.
            self._kept_before = self._kept if self._kept and began_s - self._kept.at_s <= 4 * _GROWING_S else None
            ready = {name: row.ready for name, row in found.items()}
            self._kept = _Kept(began_s, ready, {name: row.dead for name, row in found.items() if row.dead})
        self._fresh_s = max(LOOK_S, _SHARE * (self._clock_s() - began_s))

    def _draw(self, row: Row) -> None:
        sent = row.rates.sent if row.rates is not None else 0.0
        spark = self._sparks.get(row.name)
        if spark is not None:
            spark.append(sent)
        elif sent:
            self._sparks[row.name] = deque([sent], _SPARK_POINTS)

    def spark(self, name: str) -> list[float]:
        """How many messages a second were sent to a queue, look by look, the last one last; empty if none were."""
        return list(self._sparks.get(name, ()))


class _Depth(NamedTuple):
    """A channel at a look."""

    at_s: float
    ready: int
    acked: int


class Late(NamedTuple):
    """A channel that is late: how it has moved, and in how many seconds."""

    channel: ChannelStats
    grown: int
    acked: int
    seconds: float


class Backlogs:
    """Channels whose receivers do not keep up.

    A channel is late if more than `_LATE_S` is needed for what waits, as fast as messages were acknowledged in the last
    half a minute to a minute; or if it has grown by a tenth since. Once late, it needs to recover clearly: an alarm
    shall not flicker.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[_Depth | None, _Depth]] = {}
        """By queue and channel: at a look of half a minute to a minute ago, and at a later one."""
        self._late: set[tuple[str, str]] = set()
        self._asked_to = ""

    def to_ask(self, rows: Sequence[Row]) -> list[str]:
        """Queues whose channels shall be noted now: those where most waits, and some of the others, in turn."""
        waiting = [row for row in rows if row.ready]
        most = [row.name for row in nlargest(_ASKED_MAX, waiting, key=lambda row: row.ready)]
        others = list(islice((row.name for row in waiting if row.name > self._asked_to), _ASKED_MAX))
        self._asked_to = others[-1] if len(others) == _ASKED_MAX else ""
        return list(dict.fromkeys(most + others))

    def note(self, stats: Stats, now_s: float) -> list[Late]:
        """The channels of a queue as they are now: which of them are late."""
        found: list[Late] = []
        for channel in stats.channels.values():
            at = stats.name, channel.name
            now = _Depth(now_s, channel.ready, channel.acked)
            before, later = self._kept.get(at, (None, now))
            if now_s - later.at_s >= _GROWING_S:
                before, later = later if now_s - later.at_s <= 4 * _GROWING_S else None, now
            self._kept[at] = before, later
            if before is None:
                self._late.discard(at)
                continue
            late = Late(channel, now.ready - before.ready, max(0, now.acked - before.acked), now_s - before.at_s)
            if self._is_late(late, before.ready, at in self._late):
                self._late.add(at)
                found.append(late)
            else:
                self._late.discard(at)
        return found

    @staticmethod
    def _is_late(now: Late, ready_before: int, was_late: bool) -> bool:
        ready, share = now.channel.ready, 2 if was_late else 1
        grown_min = 1 if was_late else max(_LATE_MIN, ready_before // 10)
        is_slow = ready * now.seconds > now.acked * _LATE_S / share
        return ready >= _LATE_MIN / share and (is_slow or now.grown >= grown_min)

    def forget(self, now_s: float) -> None:
        """What was not noted for long tells of the past."""
        for at in [at for at, (_, later) in self._kept.items() if now_s - later.at_s > 4 * _GROWING_S]:
            del self._kept[at]
            self._late.discard(at)


def row_of(tally: QueueTally) -> Row:
    return Row(tally.name, *tally[3:])
