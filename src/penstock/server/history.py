"""Rates and depths over time, of all queues together and of the busiest ones: what charts are made of.

Every `TICK_S` the tallies of all queues are taken, a page at a time, as `overview` does. What came and went since the
tick before becomes a point, which is written to a file of rings in its three resolutions. On a server with
so many queues that this takes long, it happens less often: it takes about `_SHARE` of the time, and `_PAUSE_MAX_S`
passes between ticks at most. What others do while a tick waits for its turn does not count.

How long messages take from send to receive, and to ack, is sampled: see `latencies`. Where there are few messages, each
is measured.

Only as many queues as `[history] queues` have series of their own. A queue keeps its series while it is there, unless
another one is much busier.

The file that keeps rates and depths of the last 14 days: a ring for each resolution, of a fixed size.

    head     4,096 bytes: "PENSTOCK HISTORY", format version, how many series, a checksum
    names    256 bytes for each series but the first, which is all queues together: length, name, checksum
    rings    10 s x 360, 1 min x 1,440, 10 min x 2,016: slots, each with a point of every series

    point    time (s), crc32 of the queue's name, 16 numbers (float32, NaN where there is none), crc32 of all that

The slot of a time follows from the time, so that nothing says where the ring begins: a point whose time is not that of
the slot asked for is of an earlier round, and counts as none. So does one whose checksum is wrong, or whose name is
another queue's: series are given to other queues when those are busier. A tick is one small write for each ring.

The file is sparse, and never longer than `size_of(series)`: 15 MB for 50 queues. Losing it costs nothing but charts, so
it is written without a sync, and one that cannot be read is put aside and begun anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Coroutine, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import DescribeQueue, QueueInfo, QueueStats, Stats
from penstock.core.errors import PenstockError
from penstock.server.events import Latencies, LatencySampler, percentiles
from penstock.server.overview import Row, row_of
from penstock.server.settings import HistorySettings
from penstock.server.shards import Shards
from penstock.store.layout import FILE_MODE, HISTORY_NAME

FORMAT_VERSION: Final = 1
COLUMNS: Final = (
    "sent",
    "delivered",
    "acked",
    "failed",
    "dead",
    "ready",
    "leased",
    "delayed",
    "messages",
    "oldest",
    "receive_p50",
    "receive_p95",
    "receive_p99",
    "ack_p50",
    "ack_p95",
    "ack_p99",
)
"""Of a point: messages a second; messages by state, and in all; the age of the oldest; seconds from send to receive,
and from send to ack."""


class Ring(NamedTuple):
    """One resolution."""

    step_s: int
    slots: int


RINGS: Final = (Ring(10, 360), Ring(60, 1_440), Ring(600, 2_016))
"""An hour, a day, a fortnight."""
_MAGIC: Final = b"PENSTOCK HISTORY"
_HEAD: Final = struct.Struct(f"<{len(_MAGIC)}sHH")
_HEAD_BYTES: Final = 4_096
_NAME_BYTES: Final = 256
_CRC: Final = struct.Struct("<I")
_POINT: Final = np.dtype(
    [("at", "<u4"), ("name", "<u4"), ("values", "<f4", (len(COLUMNS),)), ("crc", "<u4")], align=False
)
_SEALED_BYTES: Final = _POINT.itemsize - 4

log = logging.getLogger("penstock.history")

Values = NDArray[np.float32]


def size_of(series: int) -> int:
    """The most bytes that a file for so many series takes.

    >>> size_of(51) < 15_500_000
    True
    """
    return _rings_at(series) + sum(ring.slots for ring in RINGS) * series * _POINT.itemsize


def _rings_at(series: int) -> int:
    return _HEAD_BYTES + (series - 1) * _NAME_BYTES


def _mark(name: str) -> int:
    return zlib.crc32(name.encode())


class HistoryFile:
    """The rings of one file. `names` has the queue of each series; that of the first, "", are all together.

    >>> with tempfile.TemporaryDirectory() as directory:
    ...     file = HistoryFile(Path(directory) / "history", series=2)
    ...     file.name_series(1, "orders")
    ...     file.write(0, 1_000_000_000, {1: np.full(len(COLUMNS), 7, np.float32)})
    ...     times, values = file.read("orders", RINGS[0], until_s=1_000_000_010)
    ...     file.close()
    >>> len(times), int(times[-1]), float(values[-2, 0]), bool(np.isnan(values[-3, 0]))
    (360, 1000000010, 7.0, True)
    """

    def __init__(self, path: Path | None, series: int) -> None:
        self.series = series
        self.names = [""] * series
        self._file = self._opened(path)
        self._is_writer = False
        try:
            if os.pread(self._file, _HEAD_BYTES, 0) != self._wanted_head():
                os.pwrite(self._file, self._wanted_head(), 0)
            self._read_names()
        except OSError:
            self.close()
            raise

    def _read_names(self) -> None:
        for number in range(1, self.series):
            self.names[number] = self._name_in(os.pread(self._file, _NAME_BYTES, self._name_at(number)))

    def may_write(self) -> bool:
        """Whether this is the one process of several that share the directory which writes."""
        if not self._is_writer:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._is_writer = True
            self._read_names()
        return True

    def _opened(self, path: Path | None) -> int:
        """A file of this format and size. One that is another is put aside."""
        if path is None:
            with tempfile.TemporaryFile() as nameless:
                return os.dup(nameless.fileno())
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if path.exists() and not path.is_file():
            path.replace(path.with_name(path.name + ".old"))
        file = os.open(path, flags, FILE_MODE)
        found = os.pread(file, _HEAD_BYTES, 0)
        if found and found != self._wanted_head():
            os.close(file)
            aside = path.with_name(path.name + ".old")
            log.warning("%s has an unknown format, another size, or damage: it was renamed to %s", path, aside.name)
            path.replace(aside)
            file = os.open(path, flags, FILE_MODE)
        return file

    def _wanted_head(self) -> bytes:
        head = _HEAD.pack(_MAGIC, FORMAT_VERSION, self.series).ljust(_HEAD_BYTES - _CRC.size, b"\0")
        return head + _CRC.pack(zlib.crc32(head))

    @staticmethod
    def _name_at(number: int) -> int:
        return _HEAD_BYTES + (number - 1) * _NAME_BYTES

    @staticmethod
    def _name_in(data: bytes) -> str:
        """The name in a place of the table; "" if there is none, or it is damaged."""
        if len(data) < _NAME_BYTES or not data[0]:
            return ""
        name, (crc,) = data[: 1 + data[0]], _CRC.unpack(data[-_CRC.size :])
        return name[1:].decode(errors="replace") if crc == zlib.crc32(name) else ""

    def name_series(self, number: int, name: str) -> None:
        """A series is a queue's from now on; what was another one's is not shown any more."""
        encoded = bytes([len(name.encode())]) + name.encode()
        assert len(encoded) <= _NAME_BYTES - _CRC.size
        data = encoded.ljust(_NAME_BYTES - _CRC.size, b"\0") + _CRC.pack(zlib.crc32(encoded))
        os.pwrite(self._file, data, self._name_at(number))
        self.names[number] = name

    def write(self, ring: int, at_s: int, points: Mapping[int, Values]) -> None:
        """The points of some series, by their numbers, for the slot of a time. The others have none then."""
        row = np.zeros(self.series, _POINT)
        slot_s = at_s - at_s % RINGS[ring].step_s
        for number, values in points.items():
            row[number] = (slot_s, _mark(self.names[number]), values, 0)
            row["crc"][number] = zlib.crc32(row[number].tobytes()[:_SEALED_BYTES])
        os.pwrite(self._file, row.tobytes(), self._slot_at(ring, slot_s))

    def _slot_at(self, ring: int, at_s: int) -> int:
        before = sum(each.slots for each in RINGS[:ring])
        slot = at_s // RINGS[ring].step_s % RINGS[ring].slots
        return _rings_at(self.series) + (before + slot) * self.series * _POINT.itemsize

    def read(self, name: str, ring: Ring, until_s: int, span_s: int | None = None) -> tuple[NDArray[np.int64], Values]:
        """The points of a queue (or of "", all together) up to a time, the oldest first: times, and a row for each.

        A time without a point has NaN in every column.
        """
        slots = ring.slots if span_s is None else min(ring.slots, span_s // ring.step_s)
        last_s = until_s - until_s % ring.step_s
        times = np.arange(last_s - (slots - 1) * ring.step_s, last_s + 1, ring.step_s, dtype=np.int64)
        values = np.full((slots, len(COLUMNS)), np.nan, np.float32)
        if not self._is_writer:
            self._read_names()
        if name not in self.names:
            return times, values
        number, mark = self.names.index(name), _mark(name)
        size = _POINT.itemsize  # all series of a ring are up to 77 MB, and one is asked for
        first, width = self._slot_at(RINGS.index(ring), 0) + number * size, self.series * size
        places = (first + times // ring.step_s % ring.slots * width).tolist()
        column = np.frombuffer(b"".join(os.pread(self._file, size, at).ljust(size, b"\0") for at in places), _POINT)
        for index in np.flatnonzero((column["at"] == times) & (column["name"] == mark)).tolist():
            if zlib.crc32(column[index].tobytes()[:_SEALED_BYTES]) == column["crc"][index]:
                values[index] = column["values"][index]
        return times, values

    def close(self) -> None:
        """No more is written. Once more does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def merged(parts: Sequence[Values]) -> Values:
    """Several points of one series as one of a coarser ring: means, and the worst of ages and percentiles.

    >>> a, b = np.full(len(COLUMNS), 1, np.float32), np.full(len(COLUMNS), 3, np.float32)
    >>> found = merged([a, b])
    >>> float(found[0]), float(found[COLUMNS.index("oldest")])
    (2.0, 3.0)
    """
    stacked = np.stack(parts)
    worst = COLUMNS.index("oldest")
    found = np.full(len(COLUMNS), np.nan, np.float32)
    there = ~np.isnan(stacked)
    counts = there.sum(axis=0)
    has_any = counts > 0
    sums = np.where(there, stacked, 0).sum(axis=0)
    found[has_any] = sums[has_any] / counts[has_any]
    highest = np.where(there, stacked, -np.inf).max(axis=0)
    found[worst:] = np.where(has_any[worst:], highest[worst:], np.nan)
    return found


TICK_S = RINGS[0].step_s
_SHARE = 0.01
_PAUSE_MAX_S = 60.0
_WITH_SHARDS = 3
"""A tick and what the shards do for it, as a multiple of the tick alone: measured with 20,000 queues."""
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
            tick = _Metered(self.tick(time.time()))
            try:
                await tick
            except (PenstockError, OSError) as error:
                log.warning("a point of the history is missing: %s", error)
            taken_s = time.monotonic() - began_s
            pause_s = max(TICK_S - taken_s, min(_WITH_SHARDS * tick.cost_s / _SHARE, _PAUSE_MAX_S), 0.1)

    async def tick(self, now_s: float) -> None:
        """Take a point of every series."""
        file = self._opened()
        if not file.may_write():
            return
        rows, busy, clock_s = await self._look({"", *file.names})
        self._choose(file, rows, busy)
        seconds, self._before_s = clock_s - self._before_s if self._before_s else 0.0, clock_s
        received, acked = self._latencies()
        points: dict[int, Values] = {}
        oldest: list[float] = []
        for number, name in reversed(list(enumerate(file.names))):
            row = rows.get(name)
            if row is None or (number and not name):
                continue
            before = self._before.get(name)
            if before is None and seconds > 0:
                before = await self._unborn(name, self._shards.now_ms() - 1_000 * seconds)
            if before is not None and seconds > 0:
                row = row.moved_since(before, seconds)
            age_s = max(oldest, default=float("nan")) if number == 0 else await self._oldest(name, now_s)
            if not np.isnan(age_s):
                oldest.append(age_s)
            points[number] = _point(row, age_s, received.get(name, []), acked.get(name, []))
        self._before = {name: rows[name] for name in {"", *file.names} if name in rows}
        self._write(file, int(now_s), points)

    async def _unborn(self, name: str, since_ms: float) -> Row | None:
        """What a queue had at the tick before, if it was made since: nothing. All it has came in between."""
        try:
            info: QueueInfo = await self._shards.call(DescribeQueue(name=name))
        except PenstockError:
            return None
        return Row(name, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) if info.created_ms >= since_ms else None

    async def _look(self, wanted: set[str]) -> tuple[dict[str, Row], dict[str, int], float]:
        """All queues together, those that have series, and the busiest; how busy each of them is; and when that was."""
        times_s = [time.monotonic()]
        total = Row("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        rows: dict[str, Row] = {}
        busy: dict[str, int] = {}
        limit = 4 * self._settings.queues
        async for page in self._shards.tallies(local=False):
            times_s.append(time.monotonic())
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
        return rows, busy, (times_s[1:2] or times_s)[0] / 2 + times_s[-1] / 2

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
        for name, column in zip(COLUMNS, np.round(values.astype(np.float64), 4).T.tolist(), strict=True):
            columns[name] = [None if each != each else each for each in column]  # NaN is not itself
        return ring.step_s, times.tolist(), columns


class _Metered:
    """Awaits something, and adds up the processor time of its own steps: not that of other tasks in between."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self.cost_s = 0.0

    def __await__(self) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            began_s = time.thread_time()
            try:
                awaited = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration:
                return
            finally:
                self.cost_s += time.thread_time() - began_s
            error = None
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown


def _point(row: Row, age_s: float, received: Latencies, acked: Latencies) -> Values:
    rates: Iterable[float] = row.rates if row.rates is not None else [float("nan")] * 5
    depths = (row.ready, row.leased, row.delayed, row.messages)
    return np.array([*rates, *depths, age_s, *percentiles(received), *percentiles(acked)], np.float32)
