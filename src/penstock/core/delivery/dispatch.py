"""Handing out: which messages of a channel are leased next.

A receive goes through `_fresh`, highest priority first; within one priority: come due, then in the order of sending.
Only when nothing that is in a window fits does the cursor bring the next chunk in. FIFO and fair channels pick through
an index of groups instead, and look ahead of the cursor for it.

What was delivered before (`again` of every window) takes turns with what was not: of the places of a receive it gets
half at most, while there are messages for the rest, and receives of one message take the one kind after the other
(`Channel.owes_fresh`). So one that always fails cannot keep the others back, and of those that fail the one with the
fewest deliveries is next. A message that was delivered before goes ahead only of those that have no higher priority.
In a FIFO channel groups take turns in the same way, by what their head is (`FifoIndex.take`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import Failure, Run
from penstock.core.delivery.columns import DELAYED, FEW, LEASED, READY, are_all
from penstock.core.delivery.groups import FairIndex, FifoIndex
from penstock.core.delivery.runs import neighbours
from penstock.core.delivery.states import Event, after
from penstock.core.delivery.window import Cursor, Entry, Heap, Window
from penstock.core.errors import ChunkDamaged
from penstock.core.queues.config import PRIORITY_MAX
from penstock.core.queues.draft import CHUNK_MESSAGES_MAX
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, LaneKind, lane_code

if TYPE_CHECKING:
    from penstock.core.delivery.channel import Channel

_LEASED: Final = after[Event.LEASE]
_HELD_BACK: Final = after[Event.HOLD_BACK]
LOOK_AHEAD = 250_000
"""How many waiting messages a FIFO or fair channel looks at."""
RECALLED_MAX = 16_384
"""How many messages whose delivery was forgotten, perhaps, one command brings in."""
_PAGE: Final = 256
_PICKED_TOGETHER = 32
"""How many messages are picked by turns before it is looked again how many bytes more may be handed out."""
Fresh = tuple[int, Window, Heap, Cursor | None]
"""Where messages lie that were never delivered, with their priority."""


class Grant:
    """One receive: what it may have, and what it has been given so far."""

    __slots__ = ("deadline_ms", "left", "now_ms", "room_bytes", "runs", "session")

    def __init__(self, left: int, now_ms: int, deadline_ms: int, session: int, room_bytes: int | None) -> None:
        self.left = left
        self.room_bytes = room_bytes
        self.now_ms = now_ms
        self.deadline_ms = deadline_ms
        self.session = session
        self.runs: list[Run] = []

    def add(self, run: Run, count: int) -> None:
        """These messages are leased."""
        self.runs.append(run)
        self.left -= count
        if self.room_bytes is not None:
            self.room_bytes -= run.nbytes
            if self.room_bytes <= 0:
                self.left = 0

    def part(self, left: int) -> Grant:
        """Some of it, whatever their bytes; what is given goes to the same runs."""
        part = Grant(left, self.now_ms, self.deadline_ms, self.session, None)
        part.runs = self.runs
        return part

    def take_in(self, known: int) -> tuple[int, int]:
        """Count what a part was given, after so many runs: messages and bytes."""
        assert self.room_bytes is not None
        count, size = 0, 0
        for run in self.runs[known:]:
            count += run.stop - run.start
            size += run.nbytes
        self.room_bytes -= size
        self.left = self.left - count if self.room_bytes > 0 else 0
        return count, size


class Dispatch:
    """Leases messages of one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.queue = channel.queue
        self.write_buffer = channel.write_buffer
        self.windows = channel.windows
        self._dirty = channel.queue.broker.dirty_channels
        self._fresh: list[Fresh] = []
        """The highest priority first."""
        self._again: list[tuple[int, Window]] = []
        """Every window with its priority."""
        self.fifo: FifoIndex | None = None
        self._fair: dict[int, FairIndex] = {}
        self._recalled = 0
        """Messages that were brought in because somebody named them, since the store was opened."""
        self.recallable = min(RECALLED_MAX, LOOK_AHEAD)
        """How many more the next command that names messages may bring in."""
        self.recall_left = 0
        """How many more the command that is being done may."""

    def plan(self) -> None:
        """Lay down the order in which a receive looks at the windows."""
        self._fresh = []
        self._again = []
        for priority in range(PRIORITY_MAX, -1, -1):
            retry = self.windows.get(lane_code(LaneKind.WAITING, priority, self.channel.id))
            delayed = self.windows.get(lane_code(LaneKind.WAITING, priority))
            normal = self.windows.get(lane_code(LaneKind.NORMAL, priority))
            if retry is not None:
                self._again.append((priority, retry))
            if delayed is not None:
                self._again.append((priority, delayed))
                self._fresh.append((priority, delayed, delayed.fresh, None))
            if normal is not None:
                cursor = self.channel.cursors.get(lane_code(LaneKind.NORMAL, priority))
                self._again.append((priority, normal))
                self._fresh.append((priority, normal, normal.fresh, cursor))

    # -- bringing chunks in --

    def upcoming(self, lane: int, cursor: Cursor, limit: int = 256) -> list[ChunkKey]:
        """The next chunks of a lane, as far as they are known or can be found in one look."""
        if not cursor.upcoming and not cursor.caught_up:
            found = self.write_buffer.keys(self.queue.id, lane, cursor.sequence, 256)
            cursor.upcoming.extend(key for key in found if not self.queue.is_held(key))
            cursor.caught_up = len(found) < 256
        return [key for key, _ in zip(cursor.upcoming, range(limit), strict=False)]

    def enter_next(self, window: Window, cursor: Cursor, now_ms: int) -> Entry | None:
        """Bring the next chunk of a lane into its window, and offer its messages; None when there is none."""
        found = self._bring_in(window, cursor)
        if found is None:
            return None
        entry, chunk = found
        self.offer(window, entry, chunk, now_ms)
        return entry

    def _bring_in(self, window: Window, cursor: Cursor) -> tuple[Entry, Chunk] | None:
        upcoming = cursor.upcoming
        while cursor.ahead:
            if not upcoming and not self.upcoming(window.lane, cursor, 1):
                self.queue.report_missing(cursor)
                self.channel.touch()
                return None
            key = upcoming.popleft()
            if self.queue.quarantined and key in self.queue.quarantined:
                cursor.sequence = key.base + key.messages
                continue
            try:
                chunk = self.write_buffer.load(key)
            except ChunkDamaged as damage:
                upcoming.appendleft(key)
                raise self.queue.quarantine(key, damage) from None
            entry = window.add(key, chunk.sent_ms)
            cursor.sequence = entry.stop
            cursor.ahead -= entry.count
            if not cursor.ahead:
                cursor.caught_up = True
            self._dirty[self.channel] = None
            self.write_buffer.touch(window, entry)
            return entry, chunk
        return None

    def recall(self, first: int, stop: int, now_ms: int) -> bool:
        """Bring in what of a run of sequence numbers lies ahead of the cursors: whether there was any.

        What lies before it comes in as well, in its order; so nothing is handed out in another order than without this.
        A crash forgets less than `LOOK_AHEAD` messages at a time, and more are not brought in: whoever makes up spans
        costs `RECALLED_MAX` messages a command, and then nothing.
        """
        found = False
        for lane, cursor in self.channel.cursors.items():
            if not cursor.ahead or stop <= cursor.sequence or not self.lies_ahead(lane, cursor, first, stop):
                continue
            while cursor.ahead and cursor.sequence < stop and self.recall_left > 0:
                try:
                    entry = self.enter_next(self.windows[lane], cursor, now_ms)
                except ChunkDamaged:
                    continue  # quarantined and reported by now
                if entry is not None:
                    self.count_recalled(entry.count)
                    found = found or entry.stop > first
        return found

    def count_recalled(self, count: int) -> None:
        """Messages were brought in because somebody named them."""
        self._recalled += count
        self.recallable = min(RECALLED_MAX, max(0, LOOK_AHEAD - self._recalled))
        self.recall_left -= count

    def lies_ahead(self, lane: int, cursor: Cursor, first: int, stop: int) -> bool:
        """Whether a chunk ahead of a cursor has any of a run of sequence numbers."""
        base = max(cursor.sequence, first - CHUNK_MESSAGES_MAX)
        while page := self.write_buffer.keys(self.queue.id, lane, base, _PAGE):
            for key in page:
                if key.base >= stop:
                    return False
                if key.base + key.messages > first and not self.queue.is_held(key):
                    return True
            base = page[-1].base + 1
        return False

    def withdraw(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Messages that wait are about to be leased again, to whoever had them before a crash: offer them to nobody."""
        fair = self._fair.get(window.lane)
        if self.fifo is None and fair is None:
            return
        names = self.channel.load(entry).group_list()
        for sequence in range(first, stop):
            name = names[sequence - entry.base]
            if self.fifo is not None:
                self.fifo.hold(sequence, name)
            elif fair is not None:
                fair.remove(sequence, name)

    def offer(self, window: Window, entry: Entry, chunk: Chunk, now_ms: int) -> None:
        """Make the messages of an entry that has just come in known to whatever hands them out."""
        if chunk.due_ms is not None:
            self._hold_back(window, entry, chunk.due_ms, now_ms)
        if self.queue.is_fifo:
            if self.fifo is not None:
                self._index(self.fifo, window, entry, chunk.group_list())
        elif self.queue.is_fair and keys.lane_kind(window.lane) == LaneKind.NORMAL:
            index = self._fair.get(window.lane)
            if index is None:
                self._fair_index(window)
            else:
                index.add(entry.base, chunk.group_list())
        elif chunk.due_ms is None:
            window.offer_fresh(entry.base, entry.stop)
        else:
            window.offer_ready(entry, fresh=True)

    def offer_again(self, window: Window, first: int, stop: int, attempts: int) -> None:
        """Leased messages are ready again, in place, having been delivered so often: make them known."""
        if self.fifo is not None:
            for sequence in range(stop - 1, first - 1, -1):  # each goes before those that are back already
                self.fifo.give_back(sequence, attempts)
        elif not self.queue.is_fifo:
            window.offer_again(first, stop, attempts)
        self.queue.broker.woke(self.channel)

    def _hold_back(self, window: Window, entry: Entry, due_ms: NDArray[np.int64], now_ms: int) -> None:
        late = np.flatnonzero(due_ms > now_ms)
        if len(late) == 0:
            return
        if len(late) == entry.count and due_ms[0] == due_ms[-1] and bool((due_ms == due_ms[0]).all()):
            entry.state = _HELD_BACK[entry.state]
            entry.deadline_ms = int(due_ms[0])
            window.watch_whole(entry)
        else:
            window.columns.hold_back(late + window.all_rows(entry).start, due_ms[late])
        window.ready -= len(late)
        window.delayed += len(late)
        self.channel.watch(window, int(due_ms[late].min()))

    # -- group indexes --

    def _fifo_index(self, now_ms: int) -> FifoIndex:
        if self.fifo is None:
            self.fifo = index = FifoIndex()
            for window in self.windows.values():
                for base in list(window.bases):
                    entry = window.entries[base]
                    self._index(index, window, entry, self.channel.load(entry).group_list())
            self.look_ahead_fifo(now_ms)
        return self.fifo

    @staticmethod
    def _index(index: FifoIndex, window: Window, entry: Entry, groups: list[str | None]) -> None:
        rows = window.all_rows(entry)
        known = zip(window.columns.state[rows].tolist(), window.columns.attempts[rows].tolist(), groups, strict=True)
        for sequence, (state, attempts, group) in enumerate(known, entry.base):
            if state == READY:
                index.add(sequence, group, attempts)
            elif state == LEASED:
                index.add_leased(sequence, group)
            elif state == DELAYED:
                index.add_postponed(sequence, group, attempts)

    def look_ahead_fifo(self, now_ms: int, *, announced_only: bool = False) -> None:
        """Bring in what comes next, while there is room. Chunks that were just announced are in memory."""
        for lane, cursor in self.channel.cursors.items():
            window = self.windows[lane]
            while cursor.ahead and window.ready + window.delayed < LOOK_AHEAD:
                if announced_only and not cursor.upcoming:
                    return
                self.enter_next(window, cursor, now_ms)

    def _fair_index(self, window: Window) -> FairIndex:
        index = self._fair.get(window.lane)
        if index is None:
            index = self._fair[window.lane] = FairIndex()
            given_back: list[tuple[int, int]] = []  # to be handed out from elsewhere
            for first, stop in sorted((first, stop) for attempts, first, stop in window.again if not attempts):
                if given_back and first <= given_back[-1][1]:
                    first, stop = given_back[-1][0], max(stop, given_back.pop()[1])
                given_back.append((first, stop))
            for base in list(window.bases):
                self._index_fair(index, window, window.entries[base], given_back)
            window.fresh.clear()
        return index

    def _index_fair(self, index: FairIndex, window: Window, entry: Entry, given_back: list[tuple[int, int]]) -> None:
        rows = window.all_rows(entry)
        fresh = (window.columns.state[rows] == READY) & (window.columns.attempts[rows] == 0)
        at = bisect_left(given_back, (entry.base, 0))
        for first, stop in given_back[max(0, at - 1) : bisect_left(given_back, (entry.stop, 0))]:
            fresh[max(first - entry.base, 0) : max(stop - entry.base, 0)] = False  # handed out from there
        wanted = np.flatnonzero(fresh).tolist()
        if wanted:
            groups = self.channel.load(entry).group_list()
            for at in wanted:
                index.add_one(entry.base + at, groups[at])

    def reset_indexes(self) -> None:
        """Messages went without being handed out: the indexes are built again when needed."""
        self.fifo = None
        self._fair.clear()

    # -- handing out --

    def take(self, limit: int, now_ms: int, lease_ms: int, session: int, room_bytes: int | None = None) -> list[Run]:
        """Lease up to `limit` messages, and say which. What goes beyond `room_bytes` is the last run.

        A fair channel picks a few more. FIFO channels do not look at bytes: what is left of a group is blocked.
        """
        if self.channel.paused or limit <= 0:
            return []
        grant = Grant(limit, now_ms, now_ms + lease_ms, session, room_bytes)
        try:
            if self.queue.is_fifo:
                self._take_fifo(grant)
            else:
                self._take_standard(grant)
        except ChunkDamaged:
            if not grant.runs:
                raise  # otherwise the damage is reported, and this receiver gets what came before it
        if grant.runs:
            self.queue.broker.leased(self.channel, session)
        return grant.runs

    def _take_fifo(self, grant: Grant) -> None:
        index = self._fifo_index(grant.now_ms)
        self.look_ahead_fifo(grant.now_ms)
        if index.has_free():
            sequences, owes_fresh = index.take(grant.left, self.channel.owes_fresh)
            self._owe_fresh(owes_fresh)
            self._lease_sequences(self.windows[lane_code(LaneKind.NORMAL, 0)], sequences, grant)

    def _take_standard(self, grant: Grant) -> None:
        for _, window in self._again:
            if window.again:
                self._take_by_turns(grant)
                return
        wanted = grant.left
        for _, window, heap, cursor in self._fresh:
            self._take_fresh(window, heap, cursor, grant)
            if not grant.left:
                break
        if self.channel.owes_fresh and grant.left < wanted:
            self._owe_fresh(False)

    def _take_fresh(self, window: Window, heap: Heap, cursor: Cursor | None, grant: Grant) -> None:
        if cursor is not None and self.queue.is_fair:
            self._take_fair(window, cursor, grant)
            return
        while grant.left and (heap or (cursor is not None and cursor.ahead)):
            if heap:
                found = window.take_run(heap, grant.left)
                if found is not None:
                    entry, first, stop = found
                    self._lease(window, entry, self.channel.load(entry), first, stop, grant)
                continue
            brought = None if cursor is None else self._bring_in(window, cursor)
            if brought is None:
                break
            entry, chunk = brought
            if entry.count <= grant.left and chunk.due_ms is None:
                self._lease_whole(window, entry, chunk, grant)
            else:
                self.offer(window, entry, chunk, grant.now_ms)

    def _take_by_turns(self, grant: Grant) -> None:
        """Some messages were delivered before. Where bytes are counted nobody knows where the grant will end: then a
        few at a time, one at first, so that it may end anywhere.
        """
        if grant.room_bytes is None:
            self._take_turns(grant)
            return
        together = 1
        while grant.left and any(window.again for _, window in self._again):
            left, fresh = grant.left, next((each for each in self._fresh if self._has_fresh(*each[1:])), None)
            if fresh is not None and not any(window.again for each, window in self._again if each >= fresh[0]):
                self._take_fresh(*fresh[1:], grant)  # nothing that failed goes ahead of these
                if grant.left < left:
                    self._owe_fresh(False)
                    continue
            known, part = len(grant.runs), grant.part(min(together, left))
            try:
                if fresh is not None and together > 1 and not self.channel.owes_fresh:
                    self._take_pairs(fresh, part)
                else:
                    part.left = 1 if fresh is not None else part.left
                    self._take_turns(part)
            finally:
                count, size = grant.take_in(known)
            if not count and together == 1:
                return
            fitting = grant.room_bytes * count // max(size, 1)
            together = max(1, min(_PICKED_TOGETHER, fitting, together + together))
        if grant.left:
            self._take_standard(grant)

    def _take_pairs(self, fresh: Fresh, grant: Grant) -> None:
        """As many messages that were delivered before as others, of one priority: what turns of one by one come to."""
        grant.left = pairs = grant.left // 2
        self._take_fresh(*fresh[1:], grant)
        grant.left = pairs = pairs - grant.left
        self._take_again(pairs, fresh[0], grant)

    def _take_turns(self, grant: Grant) -> None:
        surplus = int(self.channel.owes_fresh)  # so many more that were delivered before were handed out than others
        try:
            for priority, window, heap, cursor in self._fresh:
                if not self._has_fresh(window, heap, cursor):
                    continue
                left = grant.left
                self._take_again((left - surplus + 1) // 2, priority, grant)
                surplus += left - grant.left
                left = grant.left
                self._take_fresh(window, heap, cursor, grant)
                surplus = max(0, surplus - (left - grant.left))
                if not grant.left:
                    return
            left = grant.left
            self._take_again(left, 0, grant)
            surplus += left - grant.left
        finally:
            self._owe_fresh(surplus > 0)

    def _owe_fresh(self, owed: bool) -> None:
        if owed != self.channel.owes_fresh:
            self.channel.owes_fresh = owed
            self.channel.touch()

    def _has_fresh(self, window: Window, heap: Heap, cursor: Cursor | None) -> bool:
        if cursor is not None and (cursor.ahead or (self.queue.is_fair and self._fair_index(window).size)):
            return True
        return window.has_ready(heap)

    def _take_again(self, share: int, priority: int, grant: Grant) -> None:
        """Lease up to `share` messages that were delivered before, of this priority or a higher one."""
        while share > 0 and grant.left:
            best: Window | None = None
            best_rank = (0, 0, 0)
            for each, window in self._again:
                if each >= priority and window.again and window.has_ready(window.again):
                    attempts, first, _ = window.again[0]
                    rank = (attempts, -each, first)
                    if best is None or rank < best_rank:
                        best, best_rank = window, rank
            if best is None:
                return
            found = best.take_run(best.again, min(share, grant.left))
            assert found is not None
            entry, first, stop = found
            share -= stop - first
            self._lease(best, entry, self.channel.load(entry), first, stop, grant)

    def _take_fair(self, window: Window, cursor: Cursor, grant: Grant) -> None:
        index = self._fair_index(window)
        while index.size < LOOK_AHEAD and self.enter_next(window, cursor, grant.now_ms) is not None:
            pass
        together = grant.left if grant.room_bytes is None else _PICKED_TOGETHER
        while grant.left and (taken := index.take(min(grant.left, together))):
            self._lease_sequences(window, taken, grant)

    def _lease_sequences(self, window: Window, sequences: list[int], grant: Grant) -> None:
        for first, stop in neighbours(sequences):
            for entry, low, high in window.overlaps(first, stop):
                self._lease(window, entry, self.channel.load(entry), low, high, grant)

    def _lease(self, window: Window, entry: Entry, chunk: Chunk, first: int, stop: int, grant: Grant) -> None:
        count = stop - first
        if entry.is_whole and count == entry.count:
            self._lease_whole(window, entry, chunk, grant)
            return
        rows = window.rows(entry, first, stop)
        if count == 1:
            window.columns.lease_one(rows.start, grant.now_ms, grant.deadline_ms, grant.session)
        else:
            window.columns.lease(rows, grant.now_ms, grant.deadline_ms, grant.session)
        window.ready -= count
        window.leased += count
        self.write_buffer.touch(window, entry)
        self.channel.watch(window, grant.deadline_ms)
        failures = entry.failures_of(first, stop - 1) if entry.failures else []
        grant.add(self.run_of_rows(window, entry, rows, chunk, failures), count)

    def _lease_whole(self, window: Window, entry: Entry, chunk: Chunk, grant: Grant) -> None:
        count = entry.count
        window.ready -= count
        window.leased += count
        entry.state = _LEASED[entry.state]
        entry.attempts += 1
        entry.deadline_ms = grant.deadline_ms
        entry.received_ms = grant.now_ms
        if not entry.first_ms:
            entry.first_ms = grant.now_ms
        entry.holder = grant.session
        if not entry.dirty:
            self.write_buffer.touch(window, entry)
        window.watch_whole(entry)
        self.channel.watch(window, grant.deadline_ms)
        grant.add(Run(chunk, 0, count, entry.attempts, entry.first_ms, list(entry.failures)), count)

    @staticmethod
    def run_of_rows(window: Window, entry: Entry, rows: slice, chunk: Chunk, failures: list[Failure]) -> Run:
        """What a receiver is given of leased rows."""
        columns = window.columns
        start, stop = rows.start - entry.start, rows.stop - entry.start
        if stop - start == 1:
            row: int = rows.start
            return Run(chunk, start, stop, columns.attempts_at(row), columns.first_ms_at(row), failures)
        if stop - start <= FEW and columns.are_alike(rows.start, rows.stop):
            row = rows.start
            return Run(chunk, start, stop, columns.attempts_at(row), columns.first_ms_at(row), failures)
        attempts, first_ms = columns.attempts[rows].copy(), columns.first_ms[rows].copy()
        one_attempt = are_all(attempts, int(attempts[0]))
        one_time = are_all(first_ms, int(first_ms[0]))
        return Run(
            chunk,
            start,
            stop,
            int(attempts[0]) if one_attempt else attempts,
            int(first_ms[0]) if one_time else first_ms,
            failures,
        )
