"""A channel's window on one lane: the chunks that are handed out at least in part and not all done.

A chunk of the lane is, for one channel, ahead of the cursor (never looked at), in the window (it has an `Entry`
here), or done (behind the cursor and not in the window). So a channel that is done with a chunk keeps nothing of it,
and a backlog costs nothing.

As long as all messages of a chunk are in the same state, its entry is *whole*: one row for all of them, in the entry
itself. To lease a whole chunk, or to acknowledge one, is a handful of assignments however many messages it has; and a
chunk of a single message is always whole. When only some of its messages are touched, the entry is spread: a row for
each message in `columns`, where whole-array operations take over.

Messages that can be handed out lie as runs of sequence numbers in two heaps: `again` (delivered before, those with the
fewest deliveries first) and `fresh` (never delivered). A run in a heap may be out of date; what the rows say counts,
and is looked at when the run is taken.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import Failure
from penstock.core.delivery.columns import DELAYED, DONE, LEASED, READY, Columns, encode_one, encoded_length, runs_of
from penstock.core.storage.keys import ChunkKey, entry_record, lane_entries

UPCOMING_MAX: Final = 1_024
"""So many chunks ahead are known; those behind them are read when their turn comes."""


class Cursor:
    """Where a channel is in a lane that it walks in order."""

    __slots__ = ("ahead", "caught_up", "sequence", "upcoming")

    def __init__(self, sequence: int, ahead: int = 0) -> None:
        self.sequence = sequence
        """Chunks with a smaller base have been looked at."""
        self.ahead = ahead
        """How many messages wait from there on."""
        self.upcoming: deque[ChunkKey] = deque()
        """The next chunks, as far as they are known."""
        self.caught_up = ahead == 0
        """Whether `upcoming` holds all there are."""

    def passed(self, messages: int) -> None:
        """Messages that were ahead are not any more."""
        self.ahead -= messages
        if not self.ahead:
            self.caught_up = True

    def restart(self, sequence: int, ahead: int) -> None:
        self.sequence, self.ahead = sequence, ahead
        self.upcoming.clear()
        self.caught_up = ahead == 0


_ENTRY_HEAD: Final = struct.Struct("<QIIQQ")
_FAILURES_KEPT: Final = 16
"""How many failed deliveries of one message are remembered; the newest ones."""
_COMPACT_MIN: Final = 4_096
_NO_FAILURES: Final = msgspec.msgpack.encode([])

Heap = list[tuple[int, int, int]]
"""Runs: how often the messages were delivered, the first sequence number, and the one after the last."""


class Entry:
    """A chunk in a window: the one row of all its messages or where their rows are, and what goes with them."""

    __slots__ = (
        "attempts",
        "base",
        "count",
        "deadline_ms",
        "dirty",
        "failures",
        "first_ms",
        "holder",
        "is_whole",
        "key",
        "left",
        "received_ms",
        "record_key",
        "sent_ms",
        "start",
        "state",
        "stop",
        "stored",
    )

    def __init__(self, key: ChunkKey, sent_ms: int, record_key: bytes) -> None:
        self.key = key
        self.record_key = record_key
        self.base = key.base
        self.count = key.messages
        self.stop = key.base + key.messages
        """The sequence number after the last one."""
        self.sent_ms = sent_ms
        self.left = key.messages
        """How many messages are not done."""
        self.failures: list[Failure] = []
        self.dirty = False
        """Whether its record is out of date."""
        self.stored = False
        """Whether it has a record."""
        self.is_whole = True
        self.state = READY
        self.attempts = 0
        self.deadline_ms = 0
        self.received_ms = 0
        self.first_ms = 0
        self.holder = 0
        self.start = -1
        """The first row's number, once it is spread."""

    def rows_of(self, first: int, stop: int) -> slice:
        """The rows of the messages from `first` up to, not including, `stop`."""
        shift = self.start - self.base
        return slice(first + shift, stop + shift)

    def remember(self, failure: Failure) -> None:
        """Add a failed delivery to the history."""
        failures = self.failures
        failures.append(failure)
        if (
            len(failures) > 2 * _FAILURES_KEPT * self.count
        ):  # not before: it is looked at rarely, so that it costs little
            newer = np.zeros(self.count, dtype=np.intp)
            for at in range(len(failures) - 1, -1, -1):
                part = newer[failures[at].first - self.base : failures[at].last + 1 - self.base]
                if int(part.min()) >= _FAILURES_KEPT:
                    del failures[at]
                part += 1

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
        "queue_id",
        "ready",
        "record_prefix",
        "whole_deadlines",
    )

    def __init__(self, queue_id: int, channel_id: int, lane: int) -> None:
        self.queue_id = queue_id
        self.lane = lane
        self.record_prefix = lane_entries(queue_id, channel_id, lane)
        """How the keys of the entries' records begin; their base follows."""
        self.columns = Columns()
        self.entries: dict[int, Entry] = {}
        self.bases: list[int] = []
        self.again: Heap = []
        self.fresh: Heap = []
        self.in_use = 0
        """Rows that belong to an entry."""
        self.ready = 0
        self.leased = 0
        self.delayed = 0
        self.earliest_ms: int | None = None
        """No lease ends and nothing comes due before this; None when nothing will."""
        self.whole_deadlines: list[tuple[int, int]] = []
        """(deadline, base) of whole entries; some are out of date."""

    # -- entries come and go --

    def add(self, key: ChunkKey, sent_ms: int) -> Entry:
        """Take a chunk in, its messages ready and never delivered."""
        entry = Entry(key, sent_ms, entry_record(self.record_prefix, key.base))
        self.entries[entry.base] = entry
        insort(self.bases, entry.base)
        self.ready += entry.count
        return entry

    def remove(self, entry: Entry) -> None:
        """Forget a chunk whose messages are all done."""
        assert entry.left == 0
        del self.entries[entry.base]
        if self.bases[0] == entry.base:
            del self.bases[0]
        else:
            del self.bases[bisect_right(self.bases, entry.base) - 1]
        if not self.entries:
            self.clear()
        elif not entry.is_whole:
            self.in_use -= entry.count
            self.columns.forget(slice(entry.start, entry.start + entry.count))
            if self.columns.size > _COMPACT_MIN and self.in_use * 2 < self.columns.size:
                self._compact()

    def clear(self) -> None:
        self.again.clear()
        self.fresh.clear()
        self.whole_deadlines.clear()
        self.in_use = self.columns.size = 0
        if self.columns.capacity > _COMPACT_MIN:
            self.columns = Columns()

    def _compact(self) -> None:
        entries = sorted((each for each in self.entries.values() if not each.is_whole), key=lambda each: each.start)
        parts = [np.arange(entry.start, entry.start + entry.count) for entry in entries]
        start = 0
        for entry in entries:
            entry.start = start
            start += entry.count
        self.columns.keep(np.concatenate([np.zeros(0, dtype=np.intp), *parts]))

    def find(self, sequence: int) -> Entry | None:
        at = bisect_right(self.bases, sequence) - 1
        if at < 0:
            return None
        entry = self.entries[self.bases[at]]
        return entry if sequence < entry.stop else None

    def overlaps(self, first: int, stop: int) -> list[tuple[Entry, int, int]]:
        """Entries that hold any of the sequence numbers from `first` up to `stop`, each with the part it holds."""
        found = []
        at = max(bisect_right(self.bases, first) - 1, 0)
        while at < len(self.bases) and self.bases[at] < stop:
            entry = self.entries[self.bases[at]]
            low, high = max(first, entry.base), min(stop, entry.stop)
            if low < high:
                found.append((entry, low, high))
            at += 1
        return found

    def wholly_leased(self, first: int, stop: int, attempt: int) -> list[Entry]:
        """The whole entries that hold exactly the messages from `first` up to `stop`, if all of them are leased on that
        attempt; otherwise none.
        """
        found: list[Entry] = []
        while first < stop:
            entry = self.entries.get(first)
            if entry is None or entry.stop > stop or not entry.is_whole:
                return []
            if entry.state != LEASED or entry.attempts != attempt:
                return []
            found.append(entry)
            first = entry.stop
        return found

    # -- whole and spread --

    def rows(self, entry: Entry, first: int, stop: int) -> slice:
        """The rows of some messages of an entry, which is spread for that."""
        if entry.is_whole:
            self.spread(entry)
        return entry.rows_of(first, stop)

    def all_rows(self, entry: Entry) -> slice:
        """The rows of all messages of an entry, which is spread for that."""
        return self.rows(entry, entry.base, entry.stop)

    def spread(self, entry: Entry) -> None:
        """Give every message of a whole entry a row of its own."""
        columns = self.columns
        rows = columns.append(entry.base, entry.count)
        entry.start = rows.start
        entry.is_whole = False
        self.in_use += entry.count
        columns.state[rows] = entry.state
        columns.attempts[rows] = entry.attempts
        columns.deadline_ms[rows] = entry.deadline_ms
        columns.received_ms[rows] = entry.received_ms
        columns.first_ms[rows] = entry.first_ms
        columns.holder[rows] = entry.holder

    def watch_whole(self, entry: Entry) -> None:
        """A whole entry's lease ends, or it comes due, at its deadline."""
        heap = self.whole_deadlines
        if len(heap) > 2 * len(self.entries) + 1_024:
            heap[:] = [(each.deadline_ms, base) for base, each in self.entries.items() if _is_pending(each)]
            heapify(heap)
        heappush(heap, (entry.deadline_ms, entry.base))

    def spread_past(self, now_ms: int) -> None:
        """Spread the whole entries whose deadline has passed, so that the columns show all that is to be done."""
        heap = self.whole_deadlines
        while heap and heap[0][0] <= now_ms:
            _, base = heappop(heap)
            entry = self.entries.get(base)
            if entry is not None and _is_pending(entry) and entry.deadline_ms <= now_ms:
                self.spread(entry)

    def spread_held(self, holder: int) -> None:
        """Spread the whole entries that a session has leased."""
        for entry in list(self.entries.values()):
            if entry.is_whole and entry.state == LEASED and entry.holder == holder:
                self.spread(entry)

    def next_deadline(self) -> int | None:
        """The earliest end of a lease, or due time; None when nothing is leased or delayed."""
        heap = self.whole_deadlines
        while heap:
            deadline_ms, base = heap[0]
            entry = self.entries.get(base)
            if entry is not None and _is_pending(entry) and entry.deadline_ms == deadline_ms:
                break
            heappop(heap)
        found = [heap[0][0]] if heap else []
        spread = self.columns.next_deadline()
        return min(found if spread is None else [*found, spread], default=None)

    def entry_runs(self, rows: NDArray[np.intp], *columns: NDArray[np.generic]) -> Iterator[tuple[Entry, int, int]]:
        """Cut rows into runs of one entry, equal in the given columns: (entry, first sequence, stop sequence)."""
        sequence = self.columns.sequence
        for start, stop in runs_of(rows, *columns):
            while start < stop:
                first = int(sequence[start])
                entry = self.find(first)
                assert entry is not None and not entry.is_whole
                length = min(stop - start, entry.start + entry.count - start)
                yield entry, first, first + length
                start += length

    def set_clock_back(self, now_ms: int) -> list[Entry]:
        """The clock may have been ahead until now: no lease, and no backoff, lasts longer than it was given.

        Called when all entries are spread. Returns those that have changed.
        """
        changed = {entry.base: entry for entry, _, _ in self.entry_runs(self.columns.begin_later_at(now_ms))}
        for base, entry in self.entries.items():
            if entry.failures and _is_ahead(entry.failures, now_ms):
                self._fail_now(entry, now_ms)
                changed[base] = entry
        return list(changed.values())

    def _fail_now(self, entry: Entry, now_ms: int) -> None:
        """What failed later than now, has failed now, and waits as long as its backoff was."""
        failed_ms = np.zeros(entry.count, dtype=np.int64)
        for failure in entry.failures:
            failed_ms[max(0, failure.first - entry.base) : max(0, failure.last + 1 - entry.base)] = failure.failed_ms
        rows = entry.rows_of(entry.base, entry.stop)
        columns = self.columns
        waits = (columns.state[rows] == DELAYED) & (columns.attempts[rows] > 0) & (failed_ms > now_ms)
        columns.deadline_ms[rows] -= np.where(waits, failed_ms - now_ms, 0)
        entry.failures = [
            msgspec.structs.replace(failure, failed_ms=min(failure.failed_ms, now_ms)) for failure in entry.failures
        ]

    # -- counting --

    def uncount(self, entry: Entry, first: int, stop: int) -> None:
        """Some messages are no longer what they were."""
        if not entry.is_whole or stop - first != entry.count:
            ready, leased, delayed = self.columns.counts(self.rows(entry, first, stop))
            self.ready -= ready
            self.leased -= leased
            self.delayed -= delayed
        elif entry.state == LEASED:
            self.leased -= entry.count
        elif entry.state == READY:
            self.ready -= entry.count
        elif entry.state == DELAYED:
            self.delayed -= entry.count

    # -- what can be handed out --

    def offer_again(self, first: int, stop: int, attempts: int) -> None:
        """A run that was delivered so often is ready again."""
        heappush(self.again, (attempts, first, stop))

    def offer_fresh(self, first: int, stop: int) -> None:
        """A run is ready for the first time."""
        heappush(self.fresh, (0, first, stop))

    def withdraw(self, first: int, stop: int) -> None:
        """A run was ready and is leased without having been taken from a heap: it is offered no more.

        A run that is out of date does no harm while its messages are not ready. When these are ready again, they would
        pass for what they were before.
        """
        for heap in (self.fresh, self.again):
            if any(low < stop and first < high for _, low, high in heap):
                parts = [
                    part
                    for attempts, low, high in heap
                    for part in ((attempts, low, min(high, first)), (attempts, max(low, stop), high))
                    if part[1] < part[2]
                ]
                heap[:] = parts
                heapify(heap)

    def has_ready(self, heap: Heap) -> bool:
        """Whether a heap has anything that can be handed out. Its first run then begins with such a message."""
        while heap:
            _, first, stop = heap[0]
            entry = self.find(first)
            if entry is None:
                self._skip_gap(heap)
                continue
            end = min(stop, entry.stop)
            if entry.is_whole:
                if entry.state == READY:
                    return True
                self._rest(heap, end, stop)
                continue
            ready = self.columns.state[entry.rows_of(first, end)] == READY
            if ready.any():
                self._rest(heap, first + int(ready.argmax()), stop)
                return True
            self._rest(heap, end, stop)
        return False

    def take_run(self, heap: Heap, limit: int) -> tuple[Entry, int, int] | None:
        """The first run of ready messages in a heap, `limit` at most: (entry, first, stop). It leaves the heap."""
        while heap:
            _, first, stop = heap[0]
            entry = self.entries.get(first) or self.find(first)
            if entry is None:
                self._skip_gap(heap)
                continue
            end = min(stop, entry.stop, first + limit)
            if entry.is_whole:
                self._rest(heap, end, stop)
                if entry.state == READY:
                    return entry, first, end
                continue
            if end - first == 1:
                self._rest(heap, end, stop)
                if self.columns.state_at(first + entry.start - entry.base) == READY:
                    return entry, first, end
                continue
            shift = entry.start - entry.base
            length = self.columns.ready_from(first + shift, end + shift)
            if length:
                self._rest(heap, first + length, stop)
                return entry, first, first + length
            ready = self.columns.state[entry.rows_of(first, end)] == READY
            skip = int(ready.argmax()) if ready.any() else len(ready)
            self._rest(heap, first + skip, stop)
        return None

    def _skip_gap(self, heap: Heap) -> None:
        _, first, stop = heap[0]
        at = bisect_right(self.bases, first)
        self._rest(heap, self.bases[at] if at < len(self.bases) else stop, stop)

    @staticmethod
    def _rest(heap: Heap, first: int, stop: int) -> None:
        if first < stop:
            heapreplace(heap, (heap[0][0], first, stop))
        else:
            heappop(heap)

    # -- stored form --

    def encode(self, entry: Entry) -> bytes:
        """An entry with its rows, as its state record holds it."""
        key = entry.key
        head = _ENTRY_HEAD.pack(key.order, key.messages, key.size, key.aged_ms, entry.sent_ms)
        if entry.is_whole:
            rows = encode_one(
                entry.count,
                entry.state,
                entry.attempts,
                entry.deadline_ms,
                entry.received_ms,
                entry.first_ms,
                entry.holder,
            )
        else:
            rows = self.columns.encode(slice(entry.start, entry.start + entry.count))
        return head + rows + (msgspec.msgpack.encode(entry.failures) if entry.failures else _NO_FAILURES)

    def add_encoded(self, base: int, data: bytes) -> Entry:
        """Take in an entry from its state record; the counts follow its rows."""
        order, messages, size, aged_ms, sent_ms = _ENTRY_HEAD.unpack_from(data)
        rows_data = data[_ENTRY_HEAD.size :]
        key = ChunkKey(self.queue_id, self.lane, order, base, messages, size, aged_ms)
        entry = Entry(key, sent_ms, entry_record(self.record_prefix, base))
        rows = self.columns.append_encoded(base, rows_data)
        entry.failures = msgspec.msgpack.decode(rows_data[encoded_length(rows_data) :], type=list[Failure])
        entry.is_whole = False
        entry.start = rows.start
        entry.stored = True
        self.in_use += entry.count
        self.entries[entry.base] = entry
        insort(self.bases, entry.base)
        ready, leased, delayed = self.columns.counts(rows)
        entry.left = ready + leased + delayed
        self.ready += ready
        self.leased += leased
        self.delayed += delayed
        return entry

    def offer_ready(self, entry: Entry, *, fresh: bool) -> None:
        """Put an entry's ready messages into the heaps; never delivered ones only if `fresh`."""
        rows = self.all_rows(entry)
        attempts = self.columns.attempts[rows]
        for start, stop in runs_of(np.flatnonzero(self.columns.state[rows] == READY), attempts):
            delivered = int(attempts[start])
            if delivered:
                self.offer_again(entry.base + start, entry.base + stop, delivered)
            elif fresh:
                self.offer_fresh(entry.base + start, entry.base + stop)


def failed_later(data: bytes, now_ms: int) -> bool:
    """Whether an entry's state record tells of a failure later than now."""
    rows = data[_ENTRY_HEAD.size :]
    return _is_ahead(msgspec.msgpack.decode(rows[encoded_length(rows) :], type=list[Failure]), now_ms)


def _is_ahead(failures: list[Failure], now_ms: int) -> bool:
    return any(failure.failed_ms > now_ms for failure in failures)


def _is_pending(entry: Entry) -> bool:
    return entry.is_whole and (entry.state == LEASED or entry.state == DELAYED)


assert DONE == 0, "rows that are done are encoded as zeros"
