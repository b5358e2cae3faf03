"""A channel: one reader's progress over a queue.

For each lane that the channel can see there is a `Window`; for each lane that it walks in order there is also a
`Cursor`. What a channel does has its own rooms: `Dispatch` leases messages, `Acknowledgement` takes what receivers say
of them, `Redelivery` decides what becomes of those that fail. Here is what they share: lanes, time, and the stored
form.

Receive attempt ids: the same receive once more, after a lost answer, gets the same messages again (FIFO).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import ChannelStats, Failure, Run, Span
from penstock.core.delivery.acknowledgement import Acknowledgement
from penstock.core.delivery.columns import DELAYED, HELD_FROM, LEASED, READY
from penstock.core.delivery.demand import Waiter, WaitQueue
from penstock.core.delivery.dispatch import Dispatch
from penstock.core.delivery.groups import FifoIndex
from penstock.core.delivery.redelivery import LEASE_EXPIRED, Redelivery
from penstock.core.delivery.states import Event, State, after
from penstock.core.delivery.window import UPCOMING_MAX, Cursor, Entry, Window
from penstock.core.errors import ChunkDamaged
from penstock.core.queues.config import LEASE_MS_MAX
from penstock.core.storage import keys
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey, LaneKind
from penstock.core.storage.records import AttemptRecord

if TYPE_CHECKING:
    from penstock.core.queues.queue import Queue


class Attempts:
    """The receive attempts that a channel remembers."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.queue = channel.queue
        self.write_buffer = channel.write_buffer
        self.windows = channel.windows
        self.known: dict[str, AttemptRecord] = {}

    def take_again(self, attempt_id: str, now_ms: int, lease_ms: int) -> tuple[list[Run], int] | None:
        """The messages of an earlier receive with this id, if it still holds them all; their leases are renewed."""
        record = self.known.get(attempt_id)
        if record is None:
            return None
        held = [self._held(span) for span in record.spans]
        if record.expires_ms <= now_ms or any(found is None for found in held):
            self.forget(attempt_id)
            return None
        runs = []
        deadline_ms = now_ms + lease_ms
        for found in held:
            assert found is not None
            window, entry, first, stop = found
            rows = window.rows(entry, first, stop)
            latest_ms = int(window.columns.received_ms[rows].min()) + LEASE_MS_MAX
            deadline_ms = min(deadline_ms, latest_ms)
            window.columns.extend(rows, min(now_ms + lease_ms, latest_ms))
            self.write_buffer.touch(window, entry)
            self.channel.watch(window, min(now_ms + lease_ms, latest_ms))
            runs.append(self._run(window, entry, first, stop))
        return runs, deadline_ms

    def remember(self, attempt_id: str, runs: Iterable[Run], expires_ms: int) -> None:
        record = AttemptRecord([span for run in runs for span in run.spans()], expires_ms)
        self.known[attempt_id] = record
        self.write_buffer.changes.put_record(self._key(attempt_id), msgspec.msgpack.encode(record))
        self.queue.broker.schedule(expires_ms, "attempt", self.channel, attempt_id)

    def expire(self, attempt_id: str, now_ms: int) -> None:
        """Forget an attempt id whose time is over."""
        record = self.known.get(attempt_id)
        if record is not None and record.expires_ms <= now_ms:
            self.forget(attempt_id)

    def restore(self, attempt_id: str, data: bytes) -> None:
        record = msgspec.msgpack.decode(data, type=AttemptRecord)
        self.known[attempt_id] = record
        self.queue.broker.schedule(record.expires_ms, "attempt", self.channel, attempt_id)

    def forget(self, attempt_id: str) -> None:
        del self.known[attempt_id]
        self.write_buffer.changes.delete_record(self._key(attempt_id))

    def _key(self, attempt_id: str) -> bytes:
        return keys.record(keys.Kind.ATTEMPT, self.queue.id, self.channel.id.to_bytes(4, "big") + attempt_id.encode())

    def _held(self, span: Span) -> tuple[Window, Entry, int, int] | None:
        """Where a span is leased; None if it is not, or if a unit of work has it, and will ack it."""
        for window in self.windows.values():
            for entry, first, stop in window.overlaps(span.first, span.last + 1):
                rows = window.rows(entry, first, stop)
                is_whole = stop - first == span.messages and window.columns.all_leased(rows, span.attempt)
                if is_whole and not (window.columns.holder[rows] >= HELD_FROM).any():
                    return window, entry, first, stop
        return None

    def _run(self, window: Window, entry: Entry, first: int, stop: int) -> Run:
        rows = window.rows(entry, first, stop)
        return self.channel.dispatch.run_of_rows(
            window, entry, rows, self.channel.load(entry), entry.failures_of(first, stop - 1)
        )

    def snapshot(self) -> dict[str, Any]:
        """All that is stored, comparable."""
        return {name: msgspec.to_builtins(record) for name, record in self.known.items()}


_ACKED: Final = after[Event.ACK]

_HEAD: Final = struct.Struct("<?QQQQBIB")
"""Paused, start, acked, failed, dead, number of cursors, number of far places, length of the name; which follow. Then
whose turn it is and when the record was written; and, of FIFO channels, what was acked lately: how many, and the
sequence number and attempt of each. The first build's records end before that."""
_CURSOR: Final = struct.Struct("<IQQ")
_FAR: Final = struct.Struct("<IQQ")
_TURN_AND_SAVED: Final = struct.Struct("<?Q")


class Channel:
    """One reader's progress."""

    def __init__(self, queue: Queue, channel_id: int, name: str, start: int) -> None:
        self.queue = queue
        self.write_buffer = queue.broker.write_buffer
        self.id = channel_id
        self.name = name
        self.paused = False
        self.start = start
        """The first sequence number that this channel is about."""
        self.saved_ms = 0
        """When its record was written that it was taken back from."""
        self.far_behind: dict[tuple[int, int], int] = {}
        """How many messages of a shared far bucket were sent before `start`."""
        self.acked = 0
        self.failed = 0
        self.dead = 0
        self.expired = 0
        """Leases that ran out; not stored."""
        self.owes_fresh = False
        """Whether what was handed out last had been delivered before, so that it is the turn of what was not."""
        self._counted_acked = 0
        """What the broker's totals have of this channel."""
        self._counted_failed = 0
        self._counted_dead = 0
        self.windows: dict[int, Window] = {}
        self.cursors: dict[int, Cursor] = {}
        self.wait_queue = WaitQueue()
        self.subscribers: dict[int, Waiter] = {}
        """Session -> its subscription, of those with a limit on what is in flight."""
        self.scheduled_ms: int | None = None
        self.dispatch = Dispatch(self)
        self.acknowledgement = Acknowledgement(self)
        self.redelivery = Redelivery(self)
        self.attempts = Attempts(self)
        self._record_key = keys.channel_record(queue.id, channel_id)
        self._encoded_name = name.encode()
        self._dirty = queue.broker.dirty_channels

    @property
    def fifo(self) -> FifoIndex | None:
        """The index of groups, while a FIFO channel has one."""
        return self.dispatch.fifo

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
        total = 0
        for cursor in self.cursors.values():
            total += cursor.ahead
        for window in self.windows.values():
            total += window.ready
        return total

    @property
    def ahead(self) -> int:
        """Messages that no window holds yet."""
        total = 0
        for cursor in self.cursors.values():
            total += cursor.ahead
        return total

    @property
    def delayed(self) -> int:
        """Messages that are not due."""
        far = self.queue.far_count(self)
        return sum(window.delayed for window in self.windows.values()) + far

    def never_delivered_delayed(self) -> int:
        """Delayed messages in the windows that were not handed out yet."""
        total = 0
        for window in self.windows.values():
            size, columns = window.columns.size, window.columns
            total += int(((columns.state[:size] == DELAYED) & (columns.attempts[:size] == 0)).sum())
            whole = (entry for entry in window.entries.values() if entry.is_whole)
            total += sum(entry.count for entry in whole if entry.state == DELAYED and not entry.attempts)
        return total

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
            waiting_receivers=len(self.wait_queue),
            expired=self.expired,
        )

    def count(self) -> None:
        """Add to the broker's totals what has changed here since the last time."""
        totals = self.queue.broker.totals
        totals.acked += self.acked - self._counted_acked
        totals.failed += self.failed - self._counted_failed
        totals.dead += self.dead - self._counted_dead
        self._counted_acked, self._counted_failed, self._counted_dead = self.acked, self.failed, self.dead

    def _oldest_ms(self) -> int | None:
        times = [entry.sent_ms for window in self.windows.values() for entry in window.entries.values()]
        for lane, cursor in self.cursors.items():
            if cursor.ahead:
                times += [key.aged_ms for key in self.dispatch.upcoming(lane, cursor, 1)]
        return min([*times, *self.queue.far_sent_ms(self)], default=None)

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
            self.dispatch.plan()
        return window

    def announce(self, key: ChunkKey, chunk: Chunk | None, now_ms: int) -> None:
        """The queue has a new chunk in a shared lane. It is not looked at in a NORMAL one."""
        cursor = self.cursors.get(key.lane)
        if cursor is None:
            assert chunk is not None
            window = self.window(key.lane)
            entry = window.add(key, chunk.sent_ms)
            self.write_buffer.touch(window, entry)
            self.dispatch.offer(window, entry, chunk, now_ms)
            return
        cursor.ahead += key.messages
        if cursor.caught_up:
            cursor.upcoming.append(key)
            cursor.caught_up = len(cursor.upcoming) < UPCOMING_MAX
        self._dirty[self] = None
        if self.queue.is_fifo:
            self.dispatch.look_ahead_fifo(now_ms, announced_only=True)

    def load(self, entry: Entry) -> Chunk:
        """An entry's chunk; a damaged one is quarantined, and the error says so."""
        try:
            return self.write_buffer.load(entry.key)
        except ChunkDamaged as damage:
            raise self.queue.quarantine(entry.key, damage) from None

    def finish(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Messages are done, and uncounted: mark them, and let the chunk go when they were the last of it."""
        entry.left -= stop - first
        self._dirty[self] = None
        if self.wait_queue.waiters:  # there is room in flight again, and a group may be free
            self.queue.broker.woke(self)
        if entry.left or not entry.is_whole:
            window.columns.settle(window.rows(entry, first, stop))
        else:
            entry.state = _ACKED[entry.state]
        if entry.left:
            self.write_buffer.touch(window, entry)
            return
        window.remove(entry)
        self.write_buffer.forget(entry)
        self.queue.let_go(entry.key)

    def finish_leased(self, window: Window, entries: list[Entry]) -> None:
        """All messages of neighbouring whole entries, which were leased, are done."""
        at = bisect_left(window.bases, entries[0].base)
        del window.bases[at : at + len(entries)]
        for entry in entries:
            window.leased -= entry.count
            entry.state = _ACKED[entry.state]
            entry.left = 0
            del window.entries[entry.base]
        if not window.entries:
            window.clear()
        self._dirty[self] = None
        if self.wait_queue.waiters:
            self.queue.broker.woke(self)
        for entry in entries:
            self.write_buffer.forget(entry)
            self.queue.let_go(entry.key)

    # -- what sessions hold --

    def received(self, session: int, runs: list[Run]) -> None:
        """A session was given messages that it has asked for: if it is also pushed some, they count there too."""
        waiter = self.subscribers.get(session)
        if waiter is not None:
            waiter.hold(sum(run.stop - run.start for run in runs))
            self.update_wait(waiter)

    def freed(self, session: int, count: int) -> None:
        """A session holds so many messages less: if that limits what it is pushed, it may be pushed more."""
        waiter = self.subscribers.get(session) if self.subscribers else None
        if waiter is not None and count:
            waiter.hold(-count)
            self.update_wait(waiter)

    def freed_rows(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Some messages are about to be leased no more, whoever holds them."""
        if not self.subscribers:
            return
        if entry.is_whole:
            if entry.state == LEASED:
                self.freed(entry.holder, stop - first)
            return
        rows = entry.rows_of(first, stop)
        holders = window.columns.holder[rows][window.columns.state[rows] == LEASED]
        for holder, count in zip(*np.unique(holders, return_counts=True), strict=True):
            self.freed(int(holder), int(count))

    def held_by(self, session: int) -> int:
        """How many messages a session holds."""
        count = 0
        for window in self.windows.values():
            count += len(window.columns.held_by(session))
            whole = (entry for entry in window.entries.values() if entry.is_whole)
            count += sum(entry.count for entry in whole if entry.state == LEASED and entry.holder == session)
        return count

    def leases_of(self, session: int) -> tuple[int, int, int]:
        """How many messages a session holds, when the oldest was handed out, and when the first lease ends."""
        count, since, until = 0, [], []
        for window in self.windows.values():
            if not window.leased:
                continue
            held = window.columns.held_by(session)
            if len(held):
                count += len(held)
                since.append(int(window.columns.received_ms[held].min()))
                until.append(int(window.columns.deadline_ms[held].min()))
            for entry in window.entries.values():
                if entry.is_whole and entry.state == LEASED and entry.holder == session:
                    count += entry.count
                    since.append(entry.received_ms)
                    until.append(entry.deadline_ms)
        return count, min(since, default=0), min(until, default=0)

    def update_wait(self, waiter: Waiter) -> None:
        """Somebody waits while it may be given something, and only then."""
        if waiter.is_open:
            self.wait_queue.join_once(waiter)
            self.queue.broker.woke(self)
        else:
            self.wait_queue.leave(waiter)

    # -- time --

    def pass_time(self, now_ms: int) -> None:
        """Expire leases, and make ready what has come due."""
        for window in list(self.windows.values()):
            if window.earliest_ms is None or window.earliest_ms > now_ms:
                continue
            window.spread_past(now_ms)
            due = window.columns.come_due(now_ms)
            if len(due):
                self.come_due(window, due)
            expired = window.columns.expired(now_ms)
            if len(expired):
                self.expired += len(expired)
                delay_ms = None if self.queue.config.expired_wait else 0
                self.redelivery.fail(window, expired, now_ms, delay_ms, LEASE_EXPIRED)
            window.earliest_ms = window.next_deadline()
        self._watch_all()

    def _watch_all(self) -> None:
        for window in self.windows.values():
            if window.earliest_ms is not None:
                self.watch(window, window.earliest_ms)

    def come_due(self, window: Window, rows: NDArray[np.intp]) -> None:
        """Rows that were delayed are ready."""
        runs = list(window.entry_runs(rows, window.columns.attempts))
        for entry, first, stop in runs:
            at = entry.rows_of(first, stop)
            delivered = int(window.columns.attempts[at.start])
            window.columns.make_due(at)
            window.delayed -= stop - first
            window.ready += stop - first
            self.write_buffer.touch(window, entry)
            if self.fifo is not None:
                for sequence in range(first, stop):
                    self.fifo.come_due(sequence)
            elif not self.queue.is_fifo:
                if delivered:
                    window.offer_again(first, stop, delivered)
                elif self.queue.is_fair and keys.lane_kind(window.lane) == LaneKind.NORMAL:
                    self.dispatch.reset_indexes()  # an operator had put it off: its group is offered it again
                else:
                    window.offer_fresh(first, stop)
        self.queue.broker.woke(self)

    def end_session(self, session: int, now_ms: int, error: str) -> int:
        """Everything that a session holds here fails, as if its leases had run out: nobody said an error."""
        count, delay_ms = 0, None if self.queue.config.expired_wait else 0
        for window in list(self.windows.values()):
            window.spread_held(session)
            held = window.columns.held_by(session)
            if len(held):
                count += len(held)
                self.redelivery.fail(window, held, now_ms, delay_ms, error)
        return count

    def detach_session(self, session: int) -> None:
        """What a session holds here is nobody's from now on, and leased for as long as it was."""
        for window in self.windows.values():
            window.spread_held(session)
            held = window.columns.held_by(session)
            for entry, first, stop in window.entry_runs(held):
                window.columns.holder[entry.rows_of(first, stop)] = 0
                self.write_buffer.touch(window, entry)

    def watch(self, window: Window, deadline_ms: int) -> None:
        """Something in a window ends, or comes due, at this time: be called then."""
        if window.earliest_ms is None or deadline_ms < window.earliest_ms:
            window.earliest_ms = deadline_ms
        if self.scheduled_ms is None or deadline_ms < self.scheduled_ms:
            self.scheduled_ms = deadline_ms
            self.queue.broker.schedule(deadline_ms, "channel", self)

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
            if key in cursor.upcoming:
                cursor.upcoming.remove(key)
            cursor.passed(key.messages)
            self.touch()

    def drop_entry(self, window: Window, entry: Entry) -> None:
        """A chunk in the window goes, whatever the state of its messages. The chunk itself is the caller's business."""
        self.freed_rows(window, entry, entry.base, entry.stop)
        window.uncount(entry, entry.base, entry.stop)
        entry.left = 0
        window.remove(entry)
        self.write_buffer.forget(entry)
        self.dispatch.reset_indexes()
        self.touch()
        self.queue.broker.woke(self)

    def settle_moved(self, sequence: int, lane: int, now_ms: int) -> bool:
        """Take one ready message out, because it goes on elsewhere. False if it is not ready."""
        cursor = self.cursors.get(lane)
        window = self.window(lane)
        while cursor is not None and cursor.sequence <= sequence:
            if self.dispatch.enter_next(window, cursor, now_ms) is None:
                return False
        entry = window.find(sequence)
        if entry is None:
            return False
        rows = window.rows(entry, sequence, sequence + 1)
        if window.columns.state[rows.start] != READY:
            return False
        window.ready -= 1
        if self.fifo is not None:
            self.fifo.settle(sequence)
        elif self.queue.is_fair:
            self.dispatch.reset_indexes()
        self.finish(window, entry, sequence, sequence + 1)
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
            self.queue.discard(key)
        for window in list(self.windows.values()):
            for entry in list(window.entries.values()):
                self.drop_entry(window, entry)
        self.start = max(self.start, next_sequence)
        self.queue.drop_far_of(self, self.start)
        for cursor in self.cursors.values():
            cursor.restart(self.start, 0)
        for attempt_id in list(self.attempts.known):
            self.attempts.forget(attempt_id)
        self.dispatch.reset_indexes()
        self.touch()
        return count

    # -- stored form --

    def touch(self) -> None:
        """The channel's record is out of date."""
        self._dirty[self] = None

    def save(self) -> None:
        if self.acked != self._counted_acked or self.failed != self._counted_failed or self.dead != self._counted_dead:
            self.count()
        parts = [
            _HEAD.pack(
                self.paused,
                self.start,
                self.acked,
                self.failed,
                self.dead,
                len(self.cursors),
                len(self.far_behind),
                len(self._encoded_name),
            ),
            self._encoded_name,
        ]
        for lane, cursor in self.cursors.items():
            parts.append(_CURSOR.pack(lane, cursor.sequence, cursor.ahead))
        for (lane, order), count in self.far_behind.items():
            parts.append(_FAR.pack(lane, order, count))
        parts.append(_TURN_AND_SAVED.pack(self.owes_fresh, self.queue.broker.now_ms))
        if self.queue.is_fifo:
            parts.append(self.acknowledgement.lately.encode())
        self.write_buffer.changes.records[self._record_key] = b"".join(parts)

    @classmethod
    def restore(cls, queue: Queue, channel_id: int, data: bytes) -> Channel:
        """Take a channel back from its record; its entries follow."""
        paused, start, acked, failed, dead, cursors, far_places, name_length = _HEAD.unpack_from(data)
        at = _HEAD.size + name_length
        channel = cls(queue, channel_id, data[_HEAD.size : at].decode(), start)
        channel.paused = paused
        channel.acked, channel.failed, channel.dead = acked, failed, dead
        channel._counted_acked, channel._counted_failed, channel._counted_dead = acked, failed, dead
        far_at = at + cursors * _CURSOR.size
        for lane, sequence, ahead in _CURSOR.iter_unpack(data[at:far_at]):
            channel.cursors[lane] = Cursor(sequence, ahead)
            channel.window(lane)
        turn_at = far_at + far_places * _FAR.size
        far = data[far_at:turn_at]
        channel.far_behind = {(lane, order): count for lane, order, count in _FAR.iter_unpack(far)}
        if len(data) > turn_at:
            channel.owes_fresh, channel.saved_ms = _TURN_AND_SAVED.unpack_from(data, turn_at)
            channel.acknowledgement.lately.restore(data[turn_at + _TURN_AND_SAVED.size :])
        return channel

    def restore_entry(self, lane: int, base: int, data: bytes) -> None:
        window = self.window(lane)
        entry = window.add_encoded(base, data)
        if not self.queue.is_fifo:
            is_fair = self.queue.is_fair and keys.lane_kind(lane) == LaneKind.NORMAL
            window.offer_ready(entry, fresh=not is_fair)

    def restored(self, now_ms: int) -> None:
        """All entries are back: look at the clock."""
        if self.saved_ms > now_ms:
            self.queue.bring_near_ahead(self, now_ms)
        for window in self.windows.values():
            for entry in window.set_clock_back(now_ms):
                self.write_buffer.touch(window, entry)
            window.earliest_ms = window.next_deadline()
        self._watch_all()

    def holders(self) -> Iterator[int]:
        """Sessions that hold leases here."""
        for window in self.windows.values():
            size = window.columns.size
            held = window.columns.state[:size] == LEASED
            yield from (each for each in np.unique(window.columns.holder[:size][held]).tolist() if each < HELD_FROM)

    def snapshot(self) -> dict[str, Any]:
        """All that is stored of the channel, comparable."""
        return {
            "name": self.name,
            "paused": self.paused,
            "start": self.start,
            "counts": (self.acked, self.failed, self.dead, self.ready, self.leased, self.delayed),
            "far_behind": self.far_behind,
            "owes_fresh": self.owes_fresh,
            "cursors": {lane: (cursor.sequence, cursor.ahead) for lane, cursor in self.cursors.items()},
            "windows": {
                lane: {base: window.encode(entry) for base, entry in sorted(window.entries.items())}
                for lane, window in sorted(self.windows.items())
                if window.entries
            },
            "attempts": self.attempts.snapshot(),
            "acked lately": self.acknowledgement.lately.snapshot(),
        }
