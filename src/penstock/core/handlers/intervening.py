"""What an operator does to messages that he names by number: looks at their lives, deletes them, puts them off.

No lease is needed, and none is respected, but for messages that a unit of work in another shard is about to ack. What
becomes of the messages of one channel is said in `core/delivery/py`.

Messages of one channel that an operator names: deleted, or made due at another time, whatever their state.

A message can only be marked while its chunk is in a window. What lies ahead of a cursor is brought in, with all that
lies before it, so that nothing is handed out in another order; but no further than `LOOK_AHEAD` messages, as FIFO
channels do. What waits far ahead comes near, and keeps its due time. All that a command names is brought in before any
of it is changed (`bring_in`): when that is refused, nothing has changed.

What is leased and put off, or made ready, fails first, as if its receiver had released it: the receipt is worth
nothing then, and two receivers never hold the same attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.commands import Changed, DeleteMessages, Life, LookUp, NameQueue, RescheduleMessages
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.columns import DELAYED, DONE, HELD_FROM, LEASED, READY
from penstock.core.delivery.dispatch import LOOK_AHEAD
from penstock.core.delivery.runs import cut
from penstock.core.delivery.window import Entry, Window
from penstock.core.errors import ChunkDamaged, InvalidRequest
from penstock.core.handlers.checks import clean
from penstock.core.queues.config import DELAY_MS_MAX

if TYPE_CHECKING:
    from penstock.core.broker import Broker
    from penstock.core.delivery.channel import Channel


Part = tuple[int, int]
_Apply = Callable[[Window, Entry, int, int, int], None]
"""Does something to messages that are in one state: window, entry, first, stop, state."""


def delete(channel: Channel, first: int, stop: int, _now_ms: int) -> list[Part]:
    """Messages are done. Returns which of them were there."""

    def drop(window: Window, entry: Entry, low: int, high: int, _state: int) -> None:
        channel.freed_rows(window, entry, low, high)
        window.uncount(entry, low, high)
        channel.finish(window, entry, low, high)

    return _each(channel, first, stop, drop)


def reschedule(channel: Channel, first: int, stop: int, due_ms: int, now_ms: int, error: str) -> list[Part]:
    """Messages come due then; now, if that is not later. Returns which of them were there."""

    def put_off(window: Window, entry: Entry, low: int, high: int, state: int) -> None:
        rows, count = window.rows(entry, low, high), high - low
        if state == LEASED:
            at = np.arange(rows.start, rows.stop, dtype=np.intp)
            channel.redelivery.fail(window, at, now_ms, max(0, due_ms - now_ms), error)
        elif state == DELAYED and due_ms <= now_ms:
            channel.come_due(window, np.arange(rows.start, rows.stop, dtype=np.intp))
        elif due_ms > now_ms:
            if state == DELAYED:
                window.columns.make_due(rows)
            else:
                window.ready -= count
                window.delayed += count
            window.columns.hold_back(rows, due_ms)
            channel.watch(window, due_ms)
            channel.write_buffer.touch(window, entry)

    return _each(channel, first, stop, put_off)


def _each(channel: Channel, first: int, stop: int, apply: _Apply) -> list[Part]:
    """Apply something to those of some messages that are not done, and not held for a unit of work."""
    found: list[Part] = []
    for window in list(channel.windows.values()):
        for base in [entry.base for entry, _, _ in window.overlaps(first, stop)]:
            entry = window.entries.get(base)
            if entry is None:
                continue
            low, high = max(first, entry.base), min(stop, entry.stop)
            for state, start, end in _by_state(window, entry, low, high):
                found.append((start, end))
                apply(window, entry, start, end, state)
    if found:
        channel.dispatch.reset_indexes()
        channel.touch()
        channel.queue.broker.woke(channel)
    return found


def _by_state(window: Window, entry: Entry, first: int, stop: int) -> list[tuple[int, int, int]]:
    """Runs of messages in one state that may be changed: (state, first, stop)."""
    rows = window.rows(entry, first, stop)
    states = window.columns.state[rows]
    is_held = (states == LEASED) & (window.columns.holder[rows] >= HELD_FROM)
    return [
        (state, low, high)
        for state in (READY, LEASED, DELAYED)
        for is_so, low, high in cut((states == state) & ~is_held, first)
        if is_so and state != DONE
    ]


def bring_in(channel: Channel, first: int, stop: int, now_ms: int) -> None:
    """Make sure that what is there of a run of messages is in a window, before any of them is changed.

    `InvalidRequest` if too many messages lie before them: nothing has changed then.
    """
    queue, dispatch = channel.queue, channel.dispatch
    if queue.far:
        queue.bring_near_for(channel, first, stop, now_ms)
    for lane, cursor in channel.cursors.items():
        if not cursor.ahead or stop <= cursor.sequence or not dispatch.lies_ahead(lane, cursor, first, stop):
            continue
        window = channel.windows[lane]
        while cursor.ahead and cursor.sequence < stop:
            if window.ready + window.delayed + window.leased > LOOK_AHEAD:
                raise InvalidRequest(
                    f"more than {LOOK_AHEAD} messages of queue {queue.name!r} wait before message {first}: it can be "
                    "changed only after they are received"
                )
            try:
                if dispatch.enter_next(window, cursor, now_ms) is None:
                    break
            except ChunkDamaged:
                continue  # quarantined and reported by now


LOOKED_UP_MAX = 100
"""Messages that one command may look up: each comes with its body."""
NAMED_MAX = 10_000
"""Messages that one command may change."""


class Intervening:
    """Does what an operator wants of messages, whoever has them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def _name_queue(self, command: NameQueue) -> str | None:
        return self.broker.queue_name(command.queue_id)

    def _look_up(self, command: LookUp) -> list[Life]:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        _check(command.sequences, LOOKED_UP_MAX)
        queue.seal()
        found = (queue.life(sequence) for sequence in command.sequences)
        return [life for life in found if life is not None]

    def _delete_messages(self, command: DeleteMessages) -> Changed:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        if command.channel is None:
            channels = list(queue.channels.values())
        else:
            channels = [self.broker.find_channel(queue, command.channel)]
        if not channels:
            raise InvalidRequest(
                f"queue {queue.name!r} has no channels: only retention or a purge can delete its messages"
            )
        return self._change(command.sequences, channels, delete)

    def _reschedule_messages(self, command: RescheduleMessages) -> Changed:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        channel = self.broker.find_channel(queue, command.channel)
        now_ms = self.broker.now_ms
        due_ms = command.due_ms if command.delay_ms is None else now_ms + command.delay_ms
        if due_ms - now_ms > DELAY_MS_MAX:
            raise InvalidRequest(f"the new time is {due_ms}: it may be at most {DELAY_MS_MAX // 86_400_000} days ahead")
        error = clean(command.error)

        def put_off(each: Channel, first: int, stop: int, now: int) -> list[tuple[int, int]]:
            return reschedule(each, first, stop, max(due_ms, now), now, error)

        return self._change(command.sequences, [channel], put_off)

    def _change(
        self,
        sequences: list[int],
        channels: list[Channel],
        change: Callable[[Channel, int, int, int], list[tuple[int, int]]],
    ) -> Changed:
        _check(sequences, NAMED_MAX)
        wanted = sorted(set(sequences))
        runs, now_ms = _runs(wanted), self.broker.now_ms
        for channel in channels:
            channel.queue.seal()
            for first, stop in runs:
                bring_in(channel, first, stop, now_ms)  # it may be refused: before anything is changed
        done: set[int] = set()
        for channel in channels:
            for first, stop in runs:
                for low, high in change(channel, first, stop, now_ms):
                    done.update(range(low, high))
        self.broker.must_commit = True
        return Changed(len(done), [each for each in wanted if each not in done])


def _check(sequences: list[int], count_max: int) -> None:
    if not 1 <= len(sequences) <= count_max:
        raise InvalidRequest(f"{len(sequences)} messages are named: give from 1 to {count_max}")
    if min(sequences) < 0:
        raise InvalidRequest(f"{min(sequences)} is not a sequence number")


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbours.

    >>> _runs([1, 2, 3, 7])
    [(1, 4), (7, 8)]
    """
    found: list[tuple[int, int]] = []
    for each in ordered:
        if found and found[-1][1] == each:
            found[-1] = (found[-1][0], each + 1)
        else:
            found.append((each, each + 1))
    return found
