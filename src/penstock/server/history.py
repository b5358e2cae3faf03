"""Rates and depths over time, of all queues together and of the busiest ones: what charts are made of.

Every `TICK_S` the tallies of all queues are taken, a page at a time, as `overview` does. What came and went since the
tick before becomes a point, which is written to a ring file (`history_ring`) in its three resolutions. On a server with
so many queues that this takes long, it happens less often: it takes `_SHARE` of the time at most.

How long messages take from send to receive, and to ack, is sampled. Four times a second a shard lets the core note what
happens in one step (`LatencySampler`); all other steps cost nothing.

Only as many queues as `[history] queues` have series of their own. A queue keeps its series while it is there, unless
another one is much busier.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from penstock.core.commands import QueueStats, Stats
from penstock.core.errors import PenstockError
from penstock.server.history_ring import COLUMNS, RINGS, HistoryFile, Values, merged
from penstock.server.latencies import Latencies, LatencySampler, percentiles
from penstock.server.overview import Row, row_of
from penstock.server.settings import HistorySettings
from penstock.server.shards import Shards
from penstock.store.layout import HISTORY_NAME

TICK_S = RINGS[0].step_s
_SHARE = 0.01
_MUCH_BUSIER = 4

log = logging.getLogger("penstock.history")


class History:
    """Takes ticks while it runs, and reads what is kept."""

    def __init__(self, shards: Shards, settings: HistorySettings, data: str) -> None:
        self._shards = shards
        self._settings = settings
        self._path = Path(data) / HISTORY_NAME if Path(data).is_dir() else None
        self._file: HistoryFile | None = None
        self._task: asyncio.Task[None] | None = None
        self._before: dict[str, Row] = {}
        """The queues that have series, and all together ("") as they were at the last tick."""
        self._before_s = 0.0
        self._gathered: list[dict[int, tuple[int, list[Values]]]] = [{} for _ in RINGS]
        """Of the coarser rings: series -> the slot that is being filled, and its points."""
        self._samplers: dict[int, LatencySampler] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._settings.enabled

    def start(self) -> None:
        """Begin to take ticks."""
        if self.is_on and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _run(self) -> None:
        pause_s = float(TICK_S)
        while True:
            await asyncio.sleep(pause_s)
            began_s = time.monotonic()
            cpu_s = time.thread_time()
            try:
                await self.tick(time.time())
            except (PenstockError, OSError) as error:
                log.warning("a point of the history is missing: %s", error)
            cost_s = max(time.thread_time() - cpu_s, 0.0)
            taken_s = time.monotonic() - began_s
            pause_s = max(TICK_S - taken_s, min(cost_s, taken_s) / _SHARE, 0.1)

    async def tick(self, now_s: float) -> None:
        """Take a point of every series."""
        file = self._opened()
        if not file.may_write():
            return
        rows, busy = await self._look({"", *file.names})
        self._choose(file, rows, busy)
        clock_s = time.monotonic()
        seconds, self._before_s = clock_s - self._before_s if self._before_s else 0.0, clock_s
        received, acked = self._latencies()
        points: dict[int, Values] = {}
        oldest: list[float] = []
        for number, name in reversed(list(enumerate(file.names))):
            row = rows.get(name)
            if row is None or (number and not name):
                continue
            before = self._before.get(name)
            if before is not None and seconds > 0:
                row = row.moved_since(before, seconds)
            age_s = max(oldest, default=float("nan")) if number == 0 else await self._oldest(name, now_s)
            if not np.isnan(age_s):
                oldest.append(age_s)
            points[number] = _point(row, age_s, received.get(name, []), acked.get(name, []))
        self._before = {name: rows[name] for name in {"", *file.names} if name in rows}
        self._write(file, int(now_s), points)

    async def _look(self, wanted: set[str]) -> tuple[dict[str, Row], dict[str, int]]:
        """All queues together, those that have series, and the busiest; and how busy each of them is."""
        total = Row("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        rows: dict[str, Row] = {}
        busy: dict[str, int] = {}
        limit = 4 * self._settings.queues
        async for page in self._shards.tallies(local=False):
            sums = np.array([tally[3:] for tally in page], np.int64).sum(axis=0)
            total = total.plus(Row("", *sums.tolist()))
            for tally in page:
                name = tally.name
                if name in rows:
                    rows[name] = rows[name].plus(row_of(tally))
                    busy[name] += tally.busy
                else:
                    rows[name], busy[name] = row_of(tally), tally.busy
            if len(rows) > 2 * limit + len(wanted):
                kept = set(sorted(busy, key=lambda each: -busy[each])[:limit]) | wanted
                rows = {name: row for name, row in rows.items() if name in kept}
                busy = {name: count for name, count in busy.items() if name in kept}
        rows[""] = total
        return rows, busy

    def _choose(self, file: HistoryFile, rows: dict[str, Row], busy: dict[str, int]) -> None:
        """Give series to queues that have none: free ones, and those of queues that are much less busy."""
        named = {name: number for number, name in enumerate(file.names) if name}
        free = [number for number in range(1, file.series) if not file.names[number] or file.names[number] not in rows]
        idle = sorted((busy[name], number) for name, number in named.items() if name in busy)
        for name in sorted((each for each in busy if each not in named), key=lambda each: -busy[each]):
            if free:
                file.name_series(free.pop(0), name)
            elif idle and busy[name] > _MUCH_BUSIER * (idle[0][0] + 1):
                file.name_series(idle.pop(0)[1], name)
            else:
                break

    def _latencies(self) -> tuple[dict[str, Latencies], dict[str, Latencies]]:
        """What the shards of this process have sampled since the last tick, by queue, and "" for all."""
        received: dict[str, Latencies] = {}
        acked: dict[str, Latencies] = {}
        samplers: dict[int, LatencySampler] = {}
        for shard in self._shards.local_shards():
            sampler = samplers[id(shard)] = self._samplers.get(id(shard)) or LatencySampler()
            shard.latencies = sampler
            for all_of, found in zip((received, acked), sampler.drain(), strict=True):
                for name, latencies in found.items():
                    all_of.setdefault(name, []).extend(latencies)
                    all_of.setdefault("", []).extend(latencies)
        self._samplers = samplers
        return received, acked

    async def _oldest(self, name: str, now_s: float) -> float:
        try:
            stats: Stats = await self._shards.call(QueueStats(name=name))
        except PenstockError:
            return float("nan")
        times = [each.oldest_ms for each in stats.channels.values() if each.oldest_ms is not None]
        return max(0.0, now_s - min(times) / 1_000) if times else float("nan")

    def _write(self, file: HistoryFile, at_s: int, points: dict[int, Values]) -> None:
        for ring, (step_s, _) in enumerate(RINGS):
            slot, gathered = at_s - at_s % step_s, self._gathered[ring]
            for number, values in points.items():
                known = gathered.get(number)
                if known is None or known[0] != slot:
                    gathered[number] = (slot, [values])
                else:
                    known[1].append(values)
            whole = {number: merged(parts) for number, (at, parts) in gathered.items() if at == slot}
            file.write(ring, at_s, whole)

    def _opened(self) -> HistoryFile:
        if self._file is None:
            path = None if self._path is None or not os.access(self._path.parent, os.W_OK) else self._path
            self._file = HistoryFile(path, 1 + self._settings.queues)
        return self._file

    def read(self, queue: str, seconds: int, now_s: float) -> tuple[int, list[int], dict[str, list[float | None]]]:
        """The points of a queue ("": all) of so many seconds: the step, times, and a list for each column."""
        ring = next((each for each in RINGS if each.step_s * each.slots >= seconds), RINGS[-1])
        times, values = self._opened().read(queue, ring, int(now_s), seconds)
        columns: dict[str, list[float | None]] = {}
        for index, name in enumerate(COLUMNS):
            column = values[:, index]
            columns[name] = [None if np.isnan(each) else round(float(each), 4) for each in column]
        return ring.step_s, times.tolist(), columns


def _point(row: Row, age_s: float, received: Latencies, acked: Latencies) -> Values:
    rates: Iterable[float] = row.rates if row.rates is not None else [float("nan")] * 5
    depths = (row.ready, row.leased, row.delayed, row.messages)
    return np.array([*rates, *depths, age_s, *percentiles(received), *percentiles(acked)], np.float32)
