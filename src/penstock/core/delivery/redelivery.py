"""The redelivery policy: what becomes of a message whose delivery has failed.

Standard queues: the first failure leaves the message where it is, ready; after that it moves, under its old sequence
number, to the channel's own retry lane, so that its chunk does not wait for it; after `receives_max` deliveries it
goes to the dead-letter queue. In the retry lane, and in FIFO queues everywhere, it waits for its backoff in place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import Failure, MessageEvent, What
from penstock.core.delivery.runs import cut
from penstock.core.delivery.window import Entry, Window
from penstock.core.errors import ChunkDamaged
from penstock.core.storage import keys
from penstock.core.storage.keys import ChunkKey, LaneKind, lane_code

if TYPE_CHECKING:
    from penstock.core.delivery.channel import Channel

LEASE_EXPIRED = "lease expired"
"""The error of a delivery that nobody settled in time."""
_MOVED_TOGETHER = 16
"""So many messages with due times of their own lie in one chunk of a retry lane at most: whatever happens to one of
them makes the record of all be written again."""
HORIZON_MS = 15 * 60 * 1_000
"""What is due later than this waits in a far bucket, outside of every window."""


class Redelivery:
    """Fails messages of one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.queue = channel.queue
        self.write_buffer = channel.write_buffer
        self.windows = channel.windows

    def fail(self, window: Window, rows: NDArray[np.intp], now_ms: int, delay_ms: int | None, error: str) -> None:
        """The deliveries of some leased rows have failed."""
        columns = window.columns
        runs = list(window.entry_runs(rows, columns.attempts, columns.holder, columns.received_ms))
        for entry, first, stop in reversed(runs):
            if window.entries.get(entry.base) is entry:
                with suppress(ChunkDamaged):  # quarantined and reported by now
                    self._fail_run(window, entry, first, stop, now_ms, delay_ms, error)
        self.channel.touch()
        self.queue.broker.woke(self.channel)

    def _fail_run(
        self, window: Window, entry: Entry, first: int, stop: int, now_ms: int, delay_ms: int | None, error: str
    ) -> None:
        """One failed delivery of a run that is leased on one attempt, by one session."""
        columns, at = window.columns, entry.rows_of(first, stop).start
        attempt, holder = int(columns.attempts[at]), int(columns.holder[at])
        session = self.queue.broker.session_name(holder)
        entry.remember(Failure(first, stop - 1, attempt, int(columns.received_ms[at]), now_ms, session, error))
        self.channel.failed += stop - first
        if self.queue.broker.message_events is not None:
            what: What = "expired" if error == LEASE_EXPIRED else "released"
            self._note(what, entry, first, stop, attempt, session, error)
        self.channel.freed(holder, stop - first)
        self.write_buffer.touch(window, entry)
        config = self.queue.config
        if config.receives_max and attempt >= config.receives_max:
            self._bury(window, entry, first, stop, attempt)
            self._note("dead", entry, first, stop, attempt, session, error)
            return
        due_ms = self._due_times(first, stop, attempt, now_ms, delay_ms)
        in_place = config.is_fifo or keys.lane_channel(window.lane) or (attempt == 1 and due_ms is None)
        if in_place:
            self._fail_in_place(window, entry, first, stop, due_ms, attempt)
        else:
            self._move_to_retry(window, entry, first, stop, due_ms, now_ms, attempt)

    def _note(self, what: What, entry: Entry, first: int, stop: int, attempt: int, session: str, error: str) -> None:
        """Tell who wants to know."""
        broker, channel = self.queue.broker, self.channel.name
        if broker.message_events is not None:
            told = (what, self.queue.name, channel, first, stop - first, broker.now_ms, entry.sent_ms, attempt)
            broker.message_events.append(MessageEvent(*told, session=session, error=error))

    def _due_times(
        self, first: int, stop: int, attempt: int, now_ms: int, delay_ms: int | None
    ) -> NDArray[np.int64] | None:
        """When each message may be tried again; None for at once."""
        backoff, tick_ms = self.queue.config.backoff, 1
        if delay_ms is None and attempt > 1 and backoff.shape == "exponential":
            tick_ms = backoff.tick_ms
            delays = [backoff.delay_ms(attempt - 1, sequence) for sequence in range(first, stop)]
        else:
            if delay_ms is None:
                delay_ms = 0 if attempt == 1 else backoff.delay_ms(attempt - 1, first)
            delays = [delay_ms] * (stop - first)
        if not any(delays):
            return None
        waits_ms = np.asarray(delays, dtype=np.int64)
        due_ms = waits_ms + now_ms
        return due_ms if tick_ms == 1 else np.where(waits_ms > 0, -(-due_ms // tick_ms) * tick_ms, due_ms)

    def _fail_in_place(
        self, window: Window, entry: Entry, first: int, stop: int, due_ms: NDArray[np.int64] | None, attempt: int
    ) -> None:
        rows, count = entry.rows_of(first, stop), stop - first
        window.leased -= count
        if due_ms is None:
            window.columns.retry(rows)
            window.ready += count
            self.channel.dispatch.offer_again(window, first, stop, attempt)
            return
        window.columns.postpone(rows, due_ms)
        window.delayed += count
        self.channel.watch(window, int(due_ms.min()))
        if self.channel.fifo is not None:
            for sequence in range(stop - 1, first - 1, -1):
                self.channel.fifo.postpone(sequence, attempt)

    def _move_to_retry(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        due_ms: NDArray[np.int64] | None,
        now_ms: int,
        attempt: int,
    ) -> None:
        priority = keys.lane_priority(window.lane)
        for low, high, far in _by_horizon(first, stop, due_ms, now_ms):
            due = None if due_ms is None else due_ms[low - first : high - first]
            if far:
                assert due is not None
                self._move_far(window, entry, low, high, due, priority, now_ms)
            else:
                self._move_near(window, entry, low, high, due, priority, attempt)
        window.leased -= stop - first
        self.channel.finish(window, entry, first, stop)

    def _moved(self, entry: Entry, first: int, stop: int, lane: int, order: int, aged_ms: int) -> ChunkKey:
        chunk = self.channel.load(entry).slice(first - entry.base, stop - entry.base).without_due()
        key = ChunkKey(self.queue.id, lane, order, first, stop - first, chunk.size, max(aged_ms, entry.key.aged_ms))
        self.queue.keep(key, chunk)
        return key

    def _move_near(
        self,
        window: Window,
        entry: Entry,
        first: int,
        stop: int,
        due_ms: NDArray[np.int64] | None,
        priority: int,
        attempt: int,
    ) -> None:
        lane = lane_code(LaneKind.WAITING, priority, self.channel.id)
        target = self.channel.window(lane)
        key = self._moved(entry, first, stop, lane, 0, 0)
        moved = self._copy_rows(window, entry, first, stop, target, key, due_ms)
        self.write_buffer.touch(target, moved)
        if due_ms is None:
            target.offer_again(first, stop, attempt)
        else:
            self.channel.watch(target, int(due_ms.min()))

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
            target.columns.hold_back(rows, due_ms)
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
        lane = lane_code(LaneKind.FAR, priority, self.channel.id)
        for order, low, high in self.queue.buckets(first, due_ms, now_ms):
            due = due_ms[low - first : high - first]
            key = self._moved(entry, low, high, lane, order, int(due.max()))
            aside = Window(self.queue.id, self.channel.id, lane)
            moved = self._copy_rows(window, entry, low, high, aside, key, due)
            self.write_buffer.changes.put_record(keys.far_entry(self.queue.id, lane, order, low), aside.encode(moved))
            self.queue.add_to_bucket(lane, order, high - low, now_ms)

    def bring_near(self, data: bytes, near: ChunkKey) -> None:
        """A far bucket's time has come: one of its chunks is now in this channel's retry lane."""
        window = self.channel.window(near.lane)
        entry = window.add_encoded(near.base, data)
        entry.key, entry.stored = near, False
        self.write_buffer.touch(window, entry)
        earliest = window.next_deadline()
        assert earliest is not None
        self.channel.watch(window, earliest)

    def _bury(self, window: Window, entry: Entry, first: int, stop: int, attempts: int) -> None:
        """The last allowed delivery has failed: to the dead-letter queue."""
        chunk = self.channel.load(entry)
        self.queue.broker.moves.bury(self.channel, chunk, first, stop, attempts, entry, keys.lane_priority(window.lane))
        window.leased -= stop - first
        self.channel.dead += stop - first
        if self.channel.fifo is not None:
            for sequence in range(first, stop):
                self.channel.fifo.settle(sequence)
        self.channel.finish(window, entry, first, stop)


def _by_horizon(first: int, stop: int, due_ms: NDArray[np.int64] | None, now_ms: int) -> list[tuple[int, int, bool]]:
    """Cut a run where its messages change between near and far: (first, stop, far).

    Near ones with due times of their own come in small parts.
    """
    if due_ms is None:
        return [(first, stop, False)]
    parts = [(low, high, far) for far, low, high in cut(due_ms > now_ms + HORIZON_MS, first)]
    if due_ms.min() == due_ms.max():
        return parts
    together = _MOVED_TOGETHER
    return [
        (start, high if far else min(start + together, high), far)
        for low, high, far in parts
        for start in range(low, high, high - low if far else together)
    ]
