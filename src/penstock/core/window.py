"""A channel's window on one lane: the chunks that are handed out at least in part and not all done.

A chunk of the lane is, for one channel, ahead of the cursor (never looked at), in the window (it has an `Entry` here), or
done (behind the cursor and not in the window). So a channel that is done with a chunk keeps nothing of it, and a backlog
costs nothing.

Messages that can be handed out lie as runs of sequence numbers in two heaps: `again` (failed once, ready in place) and
`fresh` (never delivered). A run in a heap may be out of date; what is in the columns counts, and is looked at when the
run is taken.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.columns import Columns, encoded_length, runs_of
from penstock.core.commands import Failure
from penstock.core.keys import ChunkKey
from penstock.core.states import State

_ENTRY_HEAD = struct.Struct("<QIIQQ")
_FAILURES_KEPT = 16
"""How many failed deliveries of one message are remembered; the newest ones."""
_COMPACT_MIN = 4_096


class Entry:
    """A chunk in a window: where its rows are, and what has to be remembered beside them."""

    __slots__ = ("base", "count", "dirty", "failures", "key", "left", "sent_ms", "start", "stored")

    def __init__(self, key: ChunkKey, sent_ms: int, start: int, failures: list[Failure]) -> None:
        self.key = key
        self.base = key.base
        self.count = key.messages
        self.sent_ms = sent_ms
        self.start = start
        """The first row's number."""
        self.left = key.messages
        """How many messages are not done."""
        self.failures = failures
        self.dirty = False
        """Whether its record is out of date."""
        self.stored = False
        """Whether it has a record."""

    @property
    def rows(self) -> slice:
        """All rows of the chunk."""
        return slice(self.start, self.start + self.count)

    def rows_of(self, first: int, stop: int) -> slice:
        """The rows of the messages with sequence numbers from `first` up to, not including, `stop`."""
        shift = self.start - self.base
        return slice(first + shift, stop + shift)

    def remember(self, failure: Failure) -> None:
        """Add a failed delivery to the history."""
        self.failures.append(failure)
        if len(self.failures) > _FAILURES_KEPT * self.count:
            del self.failures[0]

    def failures_of(self, first: int, last: int) -> list[Failure]:
        """The failed deliveries of some messages."""
        return [failure for failure in self.failures if failure.first <= last and failure.last >= first]


class Window:
    """The entries of one lane in one channel, and the columns of their messages."""

    __slots__ = (
        "again",
        "bases",
        "columns",
        "delayed",
        "earliest_ms",
        "entries",
        "fresh",
        "in_use",
        "lane",
        "leased",
        "ready",
    )

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.columns = Columns()
        self.entries: dict[int, Entry] = {}
        self.bases: list[int] = []
        self.again: list[tuple[int, int]] = []
        self.fresh: list[tuple[int, int]] = []
        self.in_use = 0
        """Rows that belong to an entry."""
        self.ready = 0
        self.leased = 0
        self.delayed = 0
        self.earliest_ms: int | None = None
        """No lease ends and nothing comes due before this; None when nothing will."""

    # -- entries come and go --

    def add(self, key: ChunkKey, sent_ms: int) -> Entry:
        """Take a chunk in, its messages ready and never delivered."""
        rows = self.columns.append(key.base, key.messages)
        entry = Entry(key, sent_ms, rows.start, [])
        self._enter(entry)
        self.ready += entry.count
        return entry

    def _enter(self, entry: Entry) -> None:
        self.entries[entry.base] = entry
        self.in_use += entry.count
        bases = self.bases
        if not bases or entry.base > bases[-1]:
            bases.append(entry.base)
        else:
            insort(bases, entry.base)

    def remove(self, entry: Entry) -> None:
        """Forget a chunk whose messages are all done."""
        assert entry.left == 0
        del self.entries[entry.base]
        self.in_use -= entry.count
        if self.bases[0] == entry.base:
            del self.bases[0]
        else:
            del self.bases[bisect_right(self.bases, entry.base) - 1]
        if not self.entries:
            self.columns.size = 0
            self.again.clear()
            self.fresh.clear()
            if len(self.columns.state) > _COMPACT_MIN:
                self.columns = Columns()
            return
        self.columns.settle(entry.rows)
        if self.columns.size > _COMPACT_MIN and self.in_use * 2 < self.columns.size:
            self._compact()

    def _compact(self) -> None:
        entries = sorted(self.entries.values(), key=lambda entry: entry.start)
        rows = np.concatenate([np.arange(entry.start, entry.start + entry.count) for entry in entries])
        start = 0
        for entry in entries:
            entry.start = start
            start += entry.count
        self.columns.keep(rows)

    def find(self, sequence: int) -> Entry | None:
        """The entry that holds a sequence number."""
        at = bisect_right(self.bases, sequence) - 1
        if at < 0:
            return None
        entry = self.entries[self.bases[at]]
        return entry if sequence < entry.base + entry.count else None

    def overlaps(self, first: int, stop: int) -> list[tuple[Entry, int, int]]:
        """Entries that hold any of the sequence numbers from `first` up to `stop`, each with the part it holds."""
        found = []
        at = max(bisect_right(self.bases, first) - 1, 0)
        while at < len(self.bases) and self.bases[at] < stop:
            entry = self.entries[self.bases[at]]
            low, high = max(first, entry.base), min(stop, entry.base + entry.count)
            if low < high:
                found.append((entry, low, high))
            at += 1
        return found

    def entry_runs(self, rows: NDArray[np.intp], *columns: NDArray[np.generic]) -> Iterator[tuple[Entry, int, int]]:
        """Cut rows into runs of one entry, equal in the given columns: (entry, first sequence, stop sequence)."""
        sequence = self.columns.sequence
        for start, stop in runs_of(rows, *columns):
            first = int(sequence[start])
            while start < stop:
                entry = self.find(first)
                assert entry is not None
                length = min(stop - start, entry.start + entry.count - start)
                yield entry, first, first + length
                start += length
                if start < stop:
                    first = int(sequence[start])

    # -- counting --

    def watch(self, deadline_ms: int) -> None:
        """Something ends, or comes due, at this time."""
        if self.earliest_ms is None or deadline_ms < self.earliest_ms:
            self.earliest_ms = deadline_ms

    def settled(self, entry: Entry, count: int) -> None:
        """Some messages of an entry are done (their counts are taken off already)."""
        entry.left -= count

    # -- what can be handed out --

    def offer_again(self, first: int, stop: int) -> None:
        """A run is ready again."""
        heappush(self.again, (first, stop))

    def offer_fresh(self, first: int, stop: int) -> None:
        """A run is ready for the first time."""
        heappush(self.fresh, (first, stop))

    def take_run(self, heap: list[tuple[int, int]], limit: int) -> tuple[Entry, int, int] | None:
        """The first run of ready messages in a heap, `limit` at most: (entry, first, stop). It leaves the heap."""
        while heap:
            first, stop = heap[0]
            entry = self.find(first)
            if entry is None:
                self._skip_gap(heap)
                continue
            entry_stop = entry.base + entry.count
            end = min(stop, entry_stop, first + limit)
            states = self.columns.state[entry.rows_of(first, end)]
            ready = states == State.READY
            if ready.all():
                self._rest(heap, end, stop)
                return entry, first, end
            skip = int(ready.argmax()) if ready.any() else len(ready)
            if skip:
                self._rest(heap, first + skip, stop)
                continue
            length = int((~ready).argmax())
            self._rest(heap, first + length, stop)
            return entry, first, first + length
        return None

    def _skip_gap(self, heap: list[tuple[int, int]]) -> None:
        first, stop = heap[0]
        at = bisect_right(self.bases, first)
        self._rest(heap, self.bases[at] if at < len(self.bases) else stop, stop)

    @staticmethod
    def _rest(heap: list[tuple[int, int]], first: int, stop: int) -> None:
        if first < stop:
            heapreplace(heap, (first, stop))
        else:
            heappop(heap)

    # -- stored form --

    def encode(self, entry: Entry) -> bytes:
        """An entry with its rows, as its state record holds it."""
        key = entry.key
        head = _ENTRY_HEAD.pack(key.order, key.messages, key.size, key.aged_ms, entry.sent_ms)
        rows = self.columns.encode(entry.rows)
        return head + rows + msgspec.msgpack.encode(entry.failures)

    def add_encoded(self, queue_id: int, base: int, data: bytes) -> Entry:
        """Take in an entry from its state record; counts and heaps follow its rows."""
        order, messages, size, aged_ms, sent_ms = _ENTRY_HEAD.unpack_from(data)
        rows_data = data[_ENTRY_HEAD.size :]
        rows = self.columns.append_encoded(base, rows_data)
        failures = msgspec.msgpack.decode(rows_data[encoded_length(rows_data) :], type=list[Failure])
        entry = Entry(
            ChunkKey(queue_id, self.lane, order, base, messages, size, aged_ms), sent_ms, rows.start, failures
        )
        self._enter(entry)
        ready, leased, delayed = self.columns.counts(rows)
        entry.left = ready + leased + delayed
        entry.stored = True
        self.ready += ready
        self.leased += leased
        self.delayed += delayed
        return entry

    def offer_ready(self, entry: Entry, *, fresh: bool) -> None:
        """Put an entry's ready rows into the heaps; never delivered ones only if `fresh`."""
        rows = entry.rows
        ready = self.columns.state[rows] == State.READY
        delivered = self.columns.attempts[rows] > 0
        for heap, wanted in ((self.again, ready & delivered), (self.fresh, ready & ~delivered)):
            if heap is self.fresh and not fresh:
                continue
            for start, stop in runs_of(np.flatnonzero(wanted)):
                heappush(heap, (entry.base + start, entry.base + stop))
