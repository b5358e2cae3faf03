"""A channel: one reader's progress over a queue. Hands messages out, settles them, and climbs the failure ladder.

For each lane that the channel can see there is a `Window`; for each lane that it walks in order there is also a `Cursor`.
A receive goes through `_sources` (highest priority first; within one: failed in place, retry lane, come due, never
delivered) and takes runs; only when nothing that is in a window fits does the cursor bring the next chunk in.

The failure ladder (standard queues): the first failure leaves the message where it is, ready; after that it moves, under
its old sequence number, to the channel's own retry lane, so that its chunk does not wait for it; after `receives_max` it
goes to the dead-letter queue. In FIFO queues it never moves before it is a dead letter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core import keys
from penstock.core.chunk import Chunk
from penstock.core.columns import DELAYED, LEASED, READY, runs_of
from penstock.core.commands import ChannelStats, Failure, Refused, Run, Span
from penstock.core.config import LEASE_MS_MAX, PRIORITY_MAX
from penstock.core.demand import Line
from penstock.core.errors import ChunkDamaged, LeaseTooLong, PenstockError, StaleReceipt
from penstock.core.groups import FairIndex, FifoIndex
from penstock.core.keys import ChunkKey, LaneKind, lane_code
from penstock.core.states import Event, State
from penstock.core.window import Entry, Heap, Window

if TYPE_CHECKING:
    from penstock.core.queue import Queue

HORIZON_MS = 15 * 60 * 1_000
"""What is due later than this waits in a far bucket, outside of every window."""
LOOK_AHEAD = 250_000
"""How many waiting messages a FIFO or fair channel looks at."""
_UPCOMING_MAX = 1_024


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

    def announce(self, key: ChunkKey) -> None:
        """A chunk was added at the end of the lane."""
        self.ahead += key.messages
        if self.caught_up:
            self.upcoming.append(key)
            self.caught_up = len(self.upcoming) < _UPCOMING_MAX

    def restart(self, sequence: int, ahead: int) -> None:
        """Go on from another place."""
        self.sequence, self.ahead = sequence, ahead
        self.upcoming.clear()
        self.caught_up = ahead == 0


class _ChannelRecord(msgspec.Struct, array_like=True):
    name: str
    paused: bool
    start: int
    acked: int
    failed: int
    dead: int
    cursors: dict[int, tuple[int, int]]
    far_behind: list[tuple[int, int, int]]


class _AttemptRecord(msgspec.Struct, array_like=True):
    spans: list[Span]
    expires_ms: int


class Channel:
    """One reader's progress."""

    def __init__(self, queue: Queue, channel_id: int, name: str, start: int) -> None:
        self.queue = queue
        self.shelf = queue.broker.shelf
        self.id = channel_id
        self.name = name
        self.paused = False
        self.start = start
        """The first sequence number that this channel is about."""
        self.far_behind: dict[tuple[int, int], int] = {}
        """How many messages of a shared far bucket were sent before `start`."""
        self.acked = 0
        self.failed = 0
        self.dead = 0
        self.windows: dict[int, Window] = {}
        self.cursors: dict[int, Cursor] = {}
        self.line = Line()
        self.attempt_ids: dict[str, _AttemptRecord] = {}
        self.scheduled_ms: int | None = None
        self._sources: list[tuple[Window, Heap, Cursor | None]] = []
        self._fifo: FifoIndex | None = None
        self._fair: dict[int, FairIndex] = {}
        self._record_key = keys.channel_record(queue.id, channel_id)

    # -- counts --

    @property
    def leased(self) -> int:
        """Messages in flight."""
        total = 0
        for window in self.windows.values():
            total += window.leased
        return total

    @property
    def ready(self) -> int:
        """Messages that could be handed out (of which FIFO may hold some back)."""
        return sum(window.ready for window in self.windows.values()) + self.ahead

    @property
    def ahead(self) -> int:
        """Messages that no window holds yet."""
        return sum(cursor.ahead for cursor in self.cursors.values())

    @property
    def delayed(self) -> int:
        """Messages that are not due."""
        far = self.queue.far_count(self)
        return sum(window.delayed for window in self.windows.values()) + far

    def stats(self) -> ChannelStats:
        """Exact counts."""
        return ChannelStats(
            name=self.name,
            ready=self.ready,
            leased=self.leased,
            delayed=self.delayed,
            acked=self.acked,
            failed=self.failed,
            dead=self.dead,
            paused=self.paused,
            oldest_ms=self._oldest_ms(),
            waiting_receivers=len(self.line),
        )

    def _oldest_ms(self) -> int | None:
        times = [entry.sent_ms for window in self.windows.values() for entry in self._oldest_entries(window)]
        for lane, cursor in self.cursors.items():
            if cursor.ahead:
                times += [key.aged_ms for key in self._upcoming(lane, cursor, 1)]
        return min(times, default=None)

    @staticmethod
    def _oldest_entries(window: Window) -> list[Entry]:
        if keys.lane_kind(window.lane) == LaneKind.NORMAL:
            return [window.entries[base] for base in window.bases[:1]]
        return list(window.entries.values())

    # -- lanes --

    def open_lane(self, lane: int, start: int, ahead: int = 0) -> None:
        """The queue has begun to use a lane."""
        if keys.lane_kind(lane) == LaneKind.NORMAL:
            self.cursors[lane] = Cursor(max(start, self.start), ahead)
        self.window(lane)

    def window(self, lane: int) -> Window:
        """The window on a lane, made when needed."""
        window = self.windows.get(lane)
        if window is None:
            window = self.windows[lane] = Window(self.queue.id, self.id, lane)
            self._plan()
        return window

    def _plan(self) -> None:
        self._sources = []
        for priority in range(PRIORITY_MAX, -1, -1):
            normal = self.windows.get(lane_code(LaneKind.NORMAL, priority))
            cursor = self.cursors.get(lane_code(LaneKind.NORMAL, priority))
            if normal is not None:
                self._sources.append((normal, normal.again, None))
            for channel_id in (self.id, 0):
                waiting = self.windows.get(lane_code(LaneKind.WAITING, priority, channel_id))
                if waiting is not None:
                    self._sources += [(waiting, waiting.again, None), (waiting, waiting.fresh, None)]
            if normal is not None:
                self._sources.append((normal, normal.fresh, cursor))

    def is_done_with(self, lane: int, base: int) -> bool:
        """Whether this channel needs a chunk of a shared lane no more."""
        if base < self.start:
            return True
        window = self.windows.get(lane)
        if window is not None and base in window.entries:
            return False
        cursor = self.cursors.get(lane)
        return cursor is None or base < cursor.sequence

    def announce(self, key: ChunkKey, chunk: Chunk, now_ms: int) -> None:
        """The queue has a new chunk in a shared lane."""
        cursor = self.cursors.get(key.lane)
        if cursor is None:
            window = self.window(key.lane)
            entry = window.add(key, chunk.sent_ms)
            self.shelf.touch(window, entry)
            self._offer(window, entry, chunk, now_ms)
            return
        cursor.announce(key)
        self.touch()
        if self.queue.config.is_fifo and self._fifo is not None:
            self._look_ahead_fifo(now_ms, announced_only=True)

    # -- bringing chunks in --

    def _upcoming(self, lane: int, cursor: Cursor, limit: int = 256) -> list[ChunkKey]:
        if not cursor.upcoming and not cursor.caught_up:
            found = self.shelf.keys(self.queue.id, lane, cursor.sequence, 256)
            cursor.upcoming.extend(found)
            cursor.caught_up = len(found) < 256
        return [key for key, _ in zip(cursor.upcoming, range(limit), strict=False)]

    def _enter_next(self, window: Window, cursor: Cursor, now_ms: int) -> Entry | None:
        """Bring the next chunk of a lane into its window, and offer its messages; None when there is none."""
        found = self._bring_in(window, cursor)
        if found is None:
            return None
        entry, chunk = found
        self._offer(window, entry, chunk, now_ms)
        return entry

    def _bring_in(self, window: Window, cursor: Cursor) -> tuple[Entry, Chunk] | None:
        upcoming = cursor.upcoming
        while cursor.ahead:
            if not upcoming:
                assert self._upcoming(window.lane, cursor, 1), "the cursor counts messages that are not there"
            key = upcoming.popleft()
            if key in self.queue.quarantined:
                continue
            try:
                chunk = self.shelf.load(key)
            except ChunkDamaged as damage:
                upcoming.appendleft(key)
                raise self.queue.quarantine(key, damage) from None
            cursor.sequence = key.base + key.messages
            cursor.ahead -= key.messages
            self.touch()
            entry = window.add(key, chunk.sent_ms)
            self.shelf.touch(window, entry)
            return entry, chunk
        return None

    def _offer(self, window: Window, entry: Entry, chunk: Chunk, now_ms: int) -> None:
        """Make the messages of an entry that has just come in known to whatever hands them out."""
        if chunk.due_ms is not None:
            self._hold_back(window, entry, chunk.due_ms, now_ms)
        if self.queue.config.is_fifo:
            if self._fifo is not None:
                self._index(self._fifo, window, entry, chunk.group_list())
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

    def _hold_back(self, window: Window, entry: Entry, due_ms: NDArray[np.int64], now_ms: int) -> None:
        late = np.flatnonzero(due_ms > now_ms)
        if len(late) == 0:
            return
        if len(late) == entry.count and due_ms[0] == due_ms[-1] and bool((due_ms == due_ms[0]).all()):
            entry.state, entry.deadline_ms = DELAYED, int(due_ms[0])
            window.watch_whole(entry)
        else:
            window.columns.postpone(late + window.all_rows(entry).start, due_ms[late])
        window.ready -= len(late)
        window.delayed += len(late)
        self._watch(window, int(due_ms[late].min()))

    # -- group indexes --

    def _fifo_index(self, now_ms: int) -> FifoIndex:
        if self._fifo is None:
            self._fifo = index = FifoIndex()
            for window in self.windows.values():
                for base in list(window.bases):
                    entry = window.entries[base]
                    self._index(index, window, entry, self._load(entry).group_list())
            self._look_ahead_fifo(now_ms)
        return self._fifo

    @staticmethod
    def _index(index: FifoIndex, window: Window, entry: Entry, groups: list[str | None]) -> None:
        states = window.columns.state[window.all_rows(entry)].tolist()
        for sequence, (state, group) in enumerate(zip(states, groups, strict=True), entry.base):
            if state == READY:
                index.add(sequence, group)
            elif state == LEASED:
                index.add_leased(sequence, group)
            elif state == DELAYED:
                index.add_postponed(sequence, group)

    def _look_ahead_fifo(self, now_ms: int, *, announced_only: bool = False) -> None:
        """Index what comes next, while there is room. Chunks that were just announced are in memory."""
        assert self._fifo is not None
        for lane, cursor in self.cursors.items():
            while self._fifo.size < LOOK_AHEAD and cursor.ahead:
                if announced_only and not cursor.upcoming:
                    return
                self._enter_next(self.windows[lane], cursor, now_ms)

    def _fair_index(self, window: Window) -> FairIndex:
        index = self._fair.get(window.lane)
        if index is None:
            index = self._fair[window.lane] = FairIndex()
            for base in list(window.bases):
                self._index_fair(index, window, window.entries[base])
            window.fresh.clear()
        return index

    def _index_fair(self, index: FairIndex, window: Window, entry: Entry) -> None:
        rows = window.all_rows(entry)
        fresh = (window.columns.state[rows] == READY) & (window.columns.attempts[rows] == 0)
        wanted = np.flatnonzero(fresh).tolist()
        if wanted:
            groups = self._load(entry).group_list()
            for at in wanted:
                index.add_one(entry.base + at, groups[at])

    def _reset_indexes(self) -> None:
        """Messages went without being handed out: the indexes are built again when needed."""
        self._fifo = None
        self._fair.clear()

    def _load(self, entry: Entry) -> Chunk:
        try:
            return self.shelf.load(entry.key)
        except ChunkDamaged as damage:
            raise self.queue.quarantine(entry.key, damage) from None

    # -- handing out --

    def take(self, limit: int, now_ms: int, lease_ms: int, session: int) -> list[Run]:
        """Lease up to `limit` messages, and say which."""
        if self.paused or limit <= 0:
            return []
        deadline_ms = now_ms + lease_ms
        if self.queue.config.is_fifo:
            sequences = self._fifo_index(now_ms)
            self._look_ahead_fifo(now_ms)
            runs = self._lease_sequences(
                self.windows[lane_code(LaneKind.NORMAL, 0)] if self.windows else None,
                sequences.take(limit),
                now_ms,
                deadline_ms,
                session,
            )
        else:
            runs = []
            for window, heap, cursor in self._sources:
                if heap or (cursor is not None and cursor.ahead) or (cursor is not None and self.queue.is_fair):
                    limit -= self._take_from(window, heap, cursor, limit, runs, now_ms, deadline_ms, session)
                    if limit <= 0:
                        break
        if runs:
            self.queue.broker.leased(self, session)
        return runs

    def _take_from(
        self,
        window: Window,
        heap: Heap,
        cursor: Cursor | None,
        limit: int,
        runs: list[Run],
        now_ms: int,
        deadline_ms: int,
        session: int,
    ) -> int:
        if cursor is not None and self.queue.is_fair:
            return self._take_fair(window, cursor, limit, runs, now_ms, deadline_ms, session)
        taken = 0
        while taken < limit:
            if heap:
                found = window.take_run(heap, limit - taken)
                if found is None:
                    continue
                entry, first, stop = found
                runs.append(self._lease(window, entry, first, stop, now_ms, deadline_ms, session))
                taken += stop - first
                continue
            brought = None if cursor is None else self._bring_in(window, cursor)
            if brought is None:
                break
            entry, chunk = brought
            if entry.count <= limit - taken and chunk.due_ms is None:
                runs.append(self._lease(window, entry, entry.base, entry.stop, now_ms, deadline_ms, session))
                taken += entry.count
            else:
                self._offer(window, entry, chunk, now_ms)
        return taken

    def _take_fair(
        self,
        window: Window,
        cursor: Cursor,
        limit: int,
        runs: list[Run],
        now_ms: int,
        deadline_ms: int,
        session: int,
    ) -> int:
        index = self._fair_index(window)
        while index.size < LOOK_AHEAD and self._enter_next(window, cursor, now_ms) is not None:
            pass
        found = self._lease_sequences(window, index.take(limit), now_ms, deadline_ms, session)
        runs += found
        return sum(run.count for run in found)

    def _lease_sequences(
        self, window: Window | None, sequences: list[int], now_ms: int, deadline_ms: int, session: int
    ) -> list[Run]:
        runs = []
        for first, stop in _neighbours(sequences):
            assert window is not None
            for entry, low, high in window.overlaps(first, stop):
                runs.append(self._lease(window, entry, low, high, now_ms, deadline_ms, session))
        return runs

    def _lease(
        self, window: Window, entry: Entry, first: int, stop: int, now_ms: int, deadline_ms: int, session: int
    ) -> Run:
        chunk = self._load(entry)
        count = stop - first
        window.ready -= count
        window.leased += count
        self.shelf.touch(window, entry)
        self._watch(window, deadline_ms)
        failures = entry.failures_of(first, stop - 1) if entry.failures else []
        if entry.is_whole and count == entry.count:
            entry.state = LEASED
            entry.attempts += 1
            entry.deadline_ms = deadline_ms
            entry.received_ms = now_ms
            entry.first_ms = entry.first_ms or now_ms
            entry.holder = session
            window.watch_whole(entry)
            return Run(chunk, 0, count, entry.attempts, entry.first_ms, failures)
        rows = window.rows(entry, first, stop)
        window.columns.lease(rows, now_ms, deadline_ms, session)
        return self._run_of_rows(window, entry, rows, chunk, failures)

    @staticmethod
    def _run_of_rows(window: Window, entry: Entry, rows: slice, chunk: Chunk, failures: list[Failure]) -> Run:
        columns = window.columns
        attempts, first_ms = columns.attempts[rows].copy(), columns.first_ms[rows].copy()
        one_attempt = bool((attempts == attempts[0]).all())
        one_time = bool((first_ms == first_ms[0]).all())
        return Run(
            chunk,
            rows.start - entry.start,
            rows.stop - entry.start,
            int(attempts[0]) if one_attempt else attempts,
            int(first_ms[0]) if one_time else first_ms,
            failures,
        )

    # -- receive attempt ids --

    def take_again(self, attempt_id: str, now_ms: int, lease_ms: int, session: int) -> list[Run] | None:
        """The messages of an earlier receive with this id, if it still holds them all; their leases are renewed."""
        record = self.attempt_ids.get(attempt_id)
        if record is None:
            return None
        held = [self._held(span) for span in record.spans]
        if record.expires_ms <= now_ms or any(found is None for found in held):
            self._forget_attempt(attempt_id)
            return None
        runs = []
        for found in held:
            assert found is not None
            window, entry, first, stop = found
            window.columns.extend(window.rows(entry, first, stop), now_ms + lease_ms)
            self.touch_entry(window, entry)
            self._watch(window, now_ms + lease_ms)
            runs.append(self._run(window, entry, first, stop))
        return runs

    def remember_attempt(self, attempt_id: str, runs: Iterable[Run], expires_ms: int) -> None:
        """Remember what a receive with an attempt id was given."""
        record = _AttemptRecord([span for run in runs for span in run.spans()], expires_ms)
        self.attempt_ids[attempt_id] = record
        self.shelf.changes.put_record(self._attempt_key(attempt_id), msgspec.msgpack.encode(record))
        self.queue.broker.schedule(expires_ms, "attempt", self, attempt_id)

    def expire_attempt(self, attempt_id: str, now_ms: int) -> None:
        """Forget an attempt id whose time is over."""
        record = self.attempt_ids.get(attempt_id)
        if record is not None and record.expires_ms <= now_ms:
            self._forget_attempt(attempt_id)

    def restore_attempt(self, attempt_id: str, data: bytes) -> None:
        """Take an attempt id back from its record."""
        record = msgspec.msgpack.decode(data, type=_AttemptRecord)
        self.attempt_ids[attempt_id] = record
        self.queue.broker.schedule(record.expires_ms, "attempt", self, attempt_id)

    def _forget_attempt(self, attempt_id: str) -> None:
        del self.attempt_ids[attempt_id]
        self.shelf.changes.delete_record(self._attempt_key(attempt_id))

    def _attempt_key(self, attempt_id: str) -> bytes:
        return keys.record(keys.Kind.ATTEMPT, self.queue.id, self.id.to_bytes(4, "big") + attempt_id.encode())

    def _held(self, span: Span) -> tuple[Window, Entry, int, int] | None:
        for window in self.windows.values():
            for entry, first, stop in window.overlaps(span.first, span.last + 1):
                if stop - first == span.messages and window.columns.all_leased(
                    window.rows(entry, first, stop), span.attempt
                ):
                    return window, entry, first, stop
        return None

    def _run(self, window: Window, entry: Entry, first: int, stop: int) -> Run:
        rows = window.rows(entry, first, stop)
        return self._run_of_rows(window, entry, rows, self._load(entry), entry.failures_of(first, stop - 1))

    # -- settling --

    def ack(self, span: Span) -> tuple[int, list[Refused]]:
        """The work on some messages is done."""
        first, last, attempt = span
        for window in self.windows.values():
            entry = window.entries.get(first)
            if entry is None or last != entry.stop - 1 or not entry.is_whole:
                continue
            if entry.state == LEASED and entry.attempts == attempt:
                self._ack_run(window, entry, first, entry.stop)
                return entry.count, []
        return self._settle(span, Event.ACK, self._ack_run)

    def _ack_run(self, window: Window, entry: Entry, first: int, stop: int) -> PenstockError | None:
        window.uncount(entry, first, stop)
        self.acked += stop - first
        if self._fifo is not None:
            for sequence in range(first, stop):
                self._fifo.settle(sequence)
        self._finish(window, entry, first, stop)
        return None

    def ack_sequences(self, sequences: NDArray[np.int64], session: int) -> tuple[int, list[Refused]]:
        """As `ack`, for messages that a session holds."""
        done, refused = 0, []
        for first, stop in runs_of(np.unique(sequences).astype(np.intp)):
            acked, left = self._ack_held(first, stop, session)
            done += acked
            refused += left
        return done, refused

    def _ack_held(self, first: int, stop: int, session: int) -> tuple[int, list[Refused]]:
        left = [(first, stop)]
        done = 0
        for window in list(self.windows.values()):
            pending, left = left, []
            for low, high in pending:
                left += _gaps(low, high, window.overlaps(low, high))
                for entry, start, end in window.overlaps(low, high):
                    rows = window.rows(entry, start, end)
                    columns = window.columns
                    held = (columns.state[rows] == LEASED) & (columns.holder[rows] == session)
                    for good, run_first, run_stop in _cut(held, start):
                        if good:
                            self._ack_run(window, entry, run_first, run_stop)
                            done += run_stop - run_first
                        else:
                            left.append((run_first, run_stop))
        return done, [self._stale(low, high) for low, high in left]

    def can_ack(self, span: Span) -> bool:
        """Whether `ack` would settle all of a span."""
        left = [(span.first, span.last + 1)]
        for window in self.windows.values():
            pending, left = left, []
            for low, high in pending:
                left += _gaps(low, high, window.overlaps(low, high))
                for entry, start, end in window.overlaps(low, high):
                    good = window.columns.rows_allowing(Event.ACK, window.rows(entry, start, end), span.attempt)
                    left += [(run_first, run_stop) for ok, run_first, run_stop in _cut(good, start) if not ok]
        return not left and span.attempt > 0

    def release(self, span: Span, now_ms: int, delay_ms: int | None, error: str) -> tuple[int, list[Refused]]:
        """A delivery failed, says the receiver."""

        def fail(window: Window, entry: Entry, first: int, stop: int) -> None:
            rows = np.arange(stop - first, dtype=np.intp) + window.rows(entry, first, stop).start
            self._fail_rows(window, rows, now_ms, delay_ms, error)

        return self._settle(span, Event.RETRY, fail)

    def extend(self, span: Span, now_ms: int, lease_ms: int) -> tuple[int, list[Refused]]:
        """A heartbeat."""
        deadline_ms = now_ms + lease_ms

        def prolong(window: Window, entry: Entry, first: int, stop: int) -> PenstockError | None:
            rows = window.rows(entry, first, stop)
            received_ms = int(window.columns.received_ms[rows].min())
            if deadline_ms > received_ms + LEASE_MS_MAX:
                return LeaseTooLong(
                    f"messages {first} to {stop - 1} of queue {self.queue.name!r} were received "
                    f"{(now_ms - received_ms) // 1000} s ago: a lease of {lease_ms // 1000} s more would end later than "
                    "12 hours after the receive; release them, or finish them"
                )
            window.columns.extend(rows, deadline_ms)
            self.touch_entry(window, entry)
            self._watch(window, deadline_ms)
            return None

        return self._settle(span, Event.EXTEND, prolong)

    def _settle(
        self, span: Span, event: Event, apply: Callable[[Window, Entry, int, int], PenstockError | None]
    ) -> tuple[int, list[Refused]]:
        """Apply an event to those messages of a span to which it may happen; the others are refused."""
        left = [(span.first, span.last + 1)]
        done = 0
        refused: list[Refused] = []
        for window in list(self.windows.values()):
            pending, left = left, []
            for low, high in pending:
                found = window.overlaps(low, high)
                left += _gaps(low, high, found)
                for entry, start, end in found:
                    good = window.columns.rows_allowing(event, window.rows(entry, start, end), span.attempt)
                    for ok, first, stop in _cut(good, start):
                        error = apply(window, entry, first, stop) if ok and span.attempt else None
                        if not ok or not span.attempt:
                            left.append((first, stop))
                        elif error is not None:
                            refused.append(Refused(first, stop - 1, error))
                        else:
                            done += stop - first
        return done, refused + [self._stale(low, high) for low, high in left]

    def _stale(self, first: int, stop: int) -> Refused:
        return Refused(
            first,
            stop - 1,
            StaleReceipt(
                f"message {first} of queue {self.queue.name!r}, channel {self.name!r}, is not leased on that attempt any "
                "more: it was settled before, or its lease ran out and it was handed out again"
                if stop - first == 1
                else f"messages {first} to {stop - 1} of queue {self.queue.name!r}, channel {self.name!r}, are not leased "
                "on that attempt any more: they were settled before, or their lease ran out"
            ),
        )

    def _finish(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Messages are done, and uncounted: mark them, and let the chunk go when they were the last of it."""
        entry.left -= stop - first
        self.touch()
        if entry.left:
            window.columns.settle(window.rows(entry, first, stop))
            self.touch_entry(window, entry)
            return
        self._remove(window, entry)
        self.queue.let_go(entry.key)

    def _remove(self, window: Window, entry: Entry) -> None:
        window.remove(entry)
        self.shelf.forget(entry)

    # -- time --

    def pass_time(self, now_ms: int) -> None:
        """Expire leases, and make ready what has come due."""
        for window in list(self.windows.values()):
            if window.earliest_ms is None or window.earliest_ms > now_ms:
                continue
            window.spread_past(now_ms)
            due = window.columns.come_due(now_ms)
            if len(due):
                self._come_due(window, due)
            expired = window.columns.expired(now_ms)
            if len(expired):
                self._fail_rows(window, expired, now_ms, None, "lease expired")
            window.earliest_ms = window.next_deadline()
            if window.earliest_ms is not None:
                self._watch(window, window.earliest_ms)

    def _come_due(self, window: Window, rows: NDArray[np.intp]) -> None:
        runs = list(window.entry_runs(rows, window.columns.attempts))
        for entry, first, stop in runs:
            at = entry.rows_of(first, stop)
            delivered = window.columns.attempts[at.start] > 0
            window.columns.retry(at)
            window.delayed -= stop - first
            window.ready += stop - first
            self.touch_entry(window, entry)
            if self._fifo is not None:
                for sequence in range(first, stop):
                    self._fifo.come_due(sequence)
            elif not self.queue.config.is_fifo:
                (window.offer_again if delivered else window.offer_fresh)(first, stop)
        self.queue.broker.woke(self)

    def end_session(self, session: int, now_ms: int, error: str) -> int:
        """Everything that a session holds here fails."""
        count = 0
        for window in list(self.windows.values()):
            window.spread_held(session)
            held = window.columns.held_by(session)
            if len(held):
                count += len(held)
                self._fail_rows(window, held, now_ms, None, error)
        return count

    def _watch(self, window: Window, deadline_ms: int) -> None:
        window.watch(deadline_ms)
        if self.scheduled_ms is None or deadline_ms < self.scheduled_ms:
            self.scheduled_ms = deadline_ms
            self.queue.broker.schedule(deadline_ms, "channel", self)

    # -- the failure ladder --

    def _fail_rows(self, window: Window, rows: NDArray[np.intp], now_ms: int, delay_ms: int | None, error: str) -> None:
        columns = window.columns
        runs = list(window.entry_runs(rows, columns.attempts, columns.holder, columns.received_ms))
        for entry, first, stop in runs:
            if window.entries.get(entry.base) is entry:
                with suppress(ChunkDamaged):  # quarantined and reported by now
                    self._fail(window, entry, first, stop, now_ms, delay_ms, error)
        self.touch()
        self.queue.broker.woke(self)

    def _fail(
        self, window: Window, entry: Entry, first: int, stop: int, now_ms: int, delay_ms: int | None, error: str
    ) -> None:
        """One failed delivery of a run that is leased on one attempt, by one session."""
        columns, at = window.columns, entry.rows_of(first, stop).start
        attempt, holder = int(columns.attempts[at]), int(columns.holder[at])
        session = self.queue.broker.session_name(holder)
        entry.remember(Failure(first, stop - 1, attempt, int(columns.received_ms[at]), now_ms, session, error))
        self.failed += stop - first
        self.touch_entry(window, entry)
        config = self.queue.config
        if config.receives_max and attempt >= config.receives_max:
            self._bury(window, entry, first, stop, attempt)
            return
        due_ms = self._due_times(first, stop, attempt, now_ms, delay_ms)
        in_place = config.is_fifo or keys.lane_channel(window.lane) or (attempt == 1 and due_ms is None)
        if in_place:
            self._fail_in_place(window, entry, first, stop, due_ms)
        else:
            self._move_to_retry(window, entry, first, stop, due_ms, now_ms)

    def _due_times(
        self, first: int, stop: int, attempt: int, now_ms: int, delay_ms: int | None
    ) -> NDArray[np.int64] | None:
        """When each message may be tried again; None for at once."""
        backoff = self.queue.config.backoff
        if delay_ms is None and attempt > 1 and backoff.shape == "exponential":
            delays = [backoff.delay_ms(attempt - 1, sequence) for sequence in range(first, stop)]
        else:
            if delay_ms is None:
                delay_ms = 0 if attempt == 1 else backoff.delay_ms(attempt - 1, first)
            delays = [delay_ms] * (stop - first)
        if not any(delays):
            return None
        return np.asarray(delays, dtype=np.int64) + now_ms

    def _fail_in_place(
        self, window: Window, entry: Entry, first: int, stop: int, due_ms: NDArray[np.int64] | None
    ) -> None:
        rows, count = entry.rows_of(first, stop), stop - first
        window.leased -= count
        if due_ms is None:
            window.columns.retry(rows)
            window.ready += count
        else:
            window.columns.postpone(rows, due_ms)
            window.delayed += count
            self._watch(window, int(due_ms.min()))
        if self._fifo is not None:
            give = self._fifo.give_back if due_ms is None else self._fifo.postpone
            for sequence in range(first, stop):
                give(sequence)
        elif due_ms is None and not self.queue.config.is_fifo:
            window.offer_again(first, stop)

    def _move_to_retry(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        due_ms: NDArray[np.int64] | None,
        now_ms: int,
    ) -> None:
        priority = keys.lane_priority(window.lane)
        for low, high, far in _by_horizon(first, stop, due_ms, now_ms):
            due = None if due_ms is None else due_ms[low - first : high - first]
            if far:
                assert due is not None
                self._move_far(window, entry, low, high, due, priority, now_ms)
            else:
                self._move_near(window, entry, low, high, due, priority)
        window.leased -= stop - first
        self._finish(window, entry, first, stop)

    def _moved(
        self, entry: Entry, first: int, stop: int, lane: int, order: int, aged_ms: int
    ) -> tuple[ChunkKey, Chunk]:
        chunk = self._load(entry).slice(first - entry.base, stop - entry.base).with_due(None)
        key = ChunkKey(self.queue.id, lane, order, first, stop - first, chunk.size, max(aged_ms, entry.sent_ms))
        self.shelf.put(key, chunk)
        return key, chunk

    def _move_near(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        due_ms: NDArray[np.int64] | None,
        priority: int,
    ) -> None:
        lane = lane_code(LaneKind.WAITING, priority, self.id)
        target = self.window(lane)
        key, _ = self._moved(entry, first, stop, lane, 0, 0 if due_ms is None else int(due_ms.max()))
        moved = self._copy_rows(window, entry, first, stop, target, key, due_ms)
        self.touch_entry(target, moved)
        if due_ms is None:
            target.offer_again(first, stop)
        else:
            self._watch(target, int(due_ms.min()))

    def _copy_rows(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        target: Window,
        key: ChunkKey,
        due_ms: NDArray[np.int64] | None,
    ) -> Entry:
        """An entry for moved messages: the same attempts and history, ready or waiting for their due time."""
        moved = target.add(key, entry.sent_ms)
        moved.failures = entry.failures_of(first, stop - 1)
        source, rows = entry.rows_of(first, stop), target.all_rows(moved)
        for name in ("attempts", "received_ms", "first_ms"):
            getattr(target.columns, name)[rows] = getattr(window.columns, name)[source]
        if due_ms is not None:
            target.columns.postpone(rows, due_ms)
            target.ready -= stop - first
            target.delayed += stop - first
        return moved

    def _move_far(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        due_ms: NDArray[np.int64],
        priority: int,
        now_ms: int,
    ) -> None:
        lane = lane_code(LaneKind.FAR, priority, self.id)
        for order, low, high in self.queue.buckets(first, due_ms, now_ms):
            due = due_ms[low - first : high - first]
            key, _ = self._moved(entry, low, high, lane, order, int(due.max()))
            aside = Window(self.queue.id, self.id, lane)
            moved = self._copy_rows(window, entry, low, high, aside, key, due)
            self.shelf.changes.put_record(keys.far_entry(self.queue.id, lane, order, low), aside.encode(moved))
            self.queue.add_to_bucket(lane, order, high - low, now_ms)

    def bring_near(self, key: ChunkKey, data: bytes, near: ChunkKey) -> None:
        """A far bucket's time has come: one of its chunks is now in this channel's retry lane."""
        window = self.window(near.lane)
        entry = window.add_encoded(near.base, data)
        entry.key, entry.stored = near, False
        self.touch_entry(window, entry)
        earliest = window.next_deadline()
        assert earliest is not None
        self._watch(window, earliest)

    def _bury(self, window: Window, entry: Entry, first: int, stop: int, attempts: int) -> None:
        """The last allowed delivery has failed: to the dead-letter queue."""
        chunk = self._load(entry)
        self.queue.broker.bury(self, chunk, first, stop, attempts, entry, keys.lane_priority(window.lane))
        window.leased -= stop - first
        self.dead += stop - first
        if self._fifo is not None:
            for sequence in range(first, stop):
                self._fifo.settle(sequence)
        self._finish(window, entry, first, stop)

    # -- looking, dropping --

    def state_of(self, sequence: int, lane: int) -> tuple[State, int, int, list[Failure]]:
        """(state, attempts, deadline, failures) of a message that lies in a lane."""
        window = self.windows.get(lane)
        entry = None if window is None else window.find(sequence)
        if entry is not None and window is not None:
            if entry.is_whole:
                return State(entry.state), entry.attempts, entry.deadline_ms, entry.failures_of(sequence, sequence)
            row = entry.start + sequence - entry.base
            columns = window.columns
            state = State(int(columns.state[row]))
            failures = entry.failures_of(sequence, sequence)
            return state, int(columns.attempts[row]), int(columns.deadline_ms[row]), failures
        cursor = self.cursors.get(lane)
        is_ahead = cursor is not None and sequence >= max(cursor.sequence, self.start)
        return (State.READY if is_ahead else State.DONE), 0, 0, []

    def drop_chunk(self, key: ChunkKey) -> None:
        """A chunk of a shared lane goes (retention, quarantine), whatever the state of its messages."""
        window = self.windows.get(key.lane)
        entry = None if window is None else window.entries.get(key.base)
        if window is not None and entry is not None:
            self.drop_entry(window, entry)
            return
        cursor = self.cursors.get(key.lane)
        if cursor is not None and key.base >= cursor.sequence:
            cursor.ahead -= key.messages
            if key in cursor.upcoming:
                cursor.upcoming.remove(key)
            self.touch()

    def drop_entry(self, window: Window, entry: Entry) -> None:
        """A chunk in the window goes, whatever the state of its messages. The chunk itself is the caller's business."""
        window.uncount(entry, entry.base, entry.stop)
        entry.left = 0
        self._remove(window, entry)
        self._reset_indexes()
        self.touch()

    def settle_moved(self, sequence: int, lane: int, now_ms: int) -> bool:
        """Take one ready message out, because it goes on elsewhere. False if it is not ready."""
        cursor = self.cursors.get(lane)
        window = self.window(lane)
        while cursor is not None and cursor.sequence <= sequence:
            if self._enter_next(window, cursor, now_ms) is None:
                return False
        entry = window.find(sequence)
        if entry is None:
            return False
        rows = window.rows(entry, sequence, sequence + 1)
        if window.columns.state[rows.start] != READY:
            return False
        window.ready -= 1
        if self._fifo is not None:
            self._fifo.settle(sequence)
        elif self._fair:
            self._reset_indexes()
        self._finish(window, entry, sequence, sequence + 1)
        return True

    def purge(self, next_sequence: int) -> int:
        """Nothing that was sent so far is wanted any more. Returns how many messages that were."""
        count = self.ready + self.leased + self.delayed
        private = [
            entry.key
            for window in self.windows.values()
            if keys.lane_channel(window.lane)
            for entry in window.entries.values()
        ]
        for key in private:
            self.shelf.delete(key)
        for window in list(self.windows.values()):
            for entry in list(window.entries.values()):
                self.drop_entry(window, entry)
        self.queue.drop_far_of(self)
        self.start = next_sequence
        for cursor in self.cursors.values():
            cursor.restart(next_sequence, 0)
        for attempt_id in list(self.attempt_ids):
            self._forget_attempt(attempt_id)
        self._reset_indexes()
        self.touch()
        return count

    # -- stored form --

    def touch(self) -> None:
        """The channel's record is out of date."""
        self.queue.broker.dirty_channels[self] = None

    def touch_entry(self, window: Window, entry: Entry) -> None:
        """An entry's record is out of date."""
        self.shelf.touch(window, entry)

    def save(self) -> None:
        """Write the channel's record."""
        record = (  # the fields of _ChannelRecord
            self.name,
            self.paused,
            self.start,
            self.acked,
            self.failed,
            self.dead,
            {lane: (cursor.sequence, cursor.ahead) for lane, cursor in self.cursors.items()},
            [(*place, count) for place, count in self.far_behind.items()] if self.far_behind else (),
        )
        self.shelf.changes.records[self._record_key] = _encode(record)

    @classmethod
    def restore(cls, queue: Queue, channel_id: int, data: bytes) -> Channel:
        """Take a channel back from its record; its entries follow."""
        record = msgspec.msgpack.decode(data, type=_ChannelRecord)
        channel = cls(queue, channel_id, record.name, record.start)
        channel.paused = record.paused
        channel.acked, channel.failed, channel.dead = record.acked, record.failed, record.dead
        channel.far_behind = {(lane, order): count for lane, order, count in record.far_behind}
        for lane, (sequence, ahead) in record.cursors.items():
            channel.cursors[lane] = Cursor(sequence, ahead)
            channel.window(lane)
        return channel

    def restore_entry(self, lane: int, base: int, data: bytes) -> None:
        """Take an entry back from its record."""
        window = self.window(lane)
        entry = window.add_encoded(base, data)
        if not self.queue.config.is_fifo:
            is_fair = self.queue.is_fair and keys.lane_kind(lane) == LaneKind.NORMAL
            window.offer_ready(entry, fresh=not is_fair)

    def restored(self) -> None:
        """All entries are back: look at the clock."""
        for window in self.windows.values():
            window.earliest_ms = window.next_deadline()
            if window.earliest_ms is not None:
                self._watch(window, window.earliest_ms)

    def holders(self) -> Iterator[int]:
        """Sessions that hold leases here."""
        for window in self.windows.values():
            size = window.columns.size
            held = window.columns.state[:size] == LEASED
            yield from np.unique(window.columns.holder[:size][held]).tolist()

    def snapshot(self) -> dict[str, Any]:
        """All that is stored of the channel, comparable."""
        return {
            "name": self.name,
            "paused": self.paused,
            "start": self.start,
            "counts": (self.acked, self.failed, self.dead, self.ready, self.leased, self.delayed),
            "far_behind": self.far_behind,
            "cursors": {lane: (cursor.sequence, cursor.ahead) for lane, cursor in self.cursors.items()},
            "windows": {
                lane: {base: window.encode(entry) for base, entry in sorted(window.entries.items())}
                for lane, window in sorted(self.windows.items())
                if window.entries
            },
            "attempt_ids": {name: msgspec.to_builtins(record) for name, record in self.attempt_ids.items()},
        }


_encode = msgspec.msgpack.Encoder().encode


def _neighbours(sequences: list[int]) -> Iterator[tuple[int, int]]:
    """Cut sequence numbers, in the order they come, into runs (first, stop) of rising neighbours."""
    start = 0
    for at in range(1, len(sequences) + 1):
        if at == len(sequences) or sequences[at] != sequences[at - 1] + 1:
            yield sequences[start], sequences[at - 1] + 1
            start = at


def _cut(mask: NDArray[np.bool_], first: int) -> list[tuple[bool, int, int]]:
    """Runs of equal values of a mask, as (value, first, stop) with the numbers starting at `first`."""
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    return [(bool(mask[low]), first + low, first + high) for low, high in zip(edges, edges[1:], strict=False)]


def _gaps(first: int, stop: int, parts: list[tuple[Entry, int, int]]) -> list[tuple[int, int]]:
    """What of [first, stop) none of the parts covers."""
    gaps = []
    for _, low, high in parts:
        if first < low:
            gaps.append((first, low))
        first = high
    if first < stop:
        gaps.append((first, stop))
    return gaps


def _by_horizon(first: int, stop: int, due_ms: NDArray[np.int64] | None, now_ms: int) -> list[tuple[int, int, bool]]:
    """Cut a run where its messages change between near and far: (first, stop, far)."""
    if due_ms is None:
        return [(first, stop, False)]
    return [(low, high, far) for far, low, high in _cut(due_ms > now_ms + HORIZON_MS, first)]
