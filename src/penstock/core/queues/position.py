"""Readers that go by offset: where a queue's messages stand, and a channel that is moved on by offset.

Whoever reads a queue by offset (a Spark stream) does not lease messages; still its channel keeps what it has not read.
`ack_up_to` moves the channel on: all that was sent before an offset is done, chunk by chunk. At most one chunk of the
shared lanes lies on both sides of the offset, because their sequence numbers never overlap. It enters the window, and
its first part is done there (or, in a far bucket, it is cut in two); all other chunks are passed whole, without being
read. `Channel.start` moves along, up to the base of that one chunk, so that what waits in far buckets is behind the
channel as well.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.core.commands import MessageEvent
from penstock.core.delivery.columns import DONE
from penstock.core.delivery.runs import cut
from penstock.core.delivery.window import Cursor, Entry, Window
from penstock.core.errors import ChunkDamaged
from penstock.core.storage import keys

if TYPE_CHECKING:
    from penstock.core.delivery.channel import Channel
    from penstock.core.queues.queue import Queue
    from penstock.core.storage.keys import ChunkKey


def ack_up_to(channel: Channel, offset: int, now_ms: int) -> int:
    """Everything that was sent before an offset is done. Returns how many messages that were."""
    queue = channel.queue
    queue.seal()
    queue.split_held(offset)
    count = 0
    for window in list(channel.windows.values()):
        for base in window.bases[: bisect_left(window.bases, offset)]:
            count += _finish(channel, window, window.entries[base], offset)
    for lane, cursor in channel.cursors.items():
        count += _pass(channel, lane, cursor, offset, now_ms)
    count += _move_start(channel, offset)
    if queue.is_fifo or queue.is_fair:
        channel.dispatch.reset_indexes()
    channel.acked += count
    if count and queue.broker.message_events is not None:
        queue.broker.message_events.append(MessageEvent("passed", queue.name, channel.name, -1, count, now_ms))
    channel.touch()
    queue.broker.woke(channel)
    return count


def _finish(channel: Channel, window: Window, entry: Entry, offset: int) -> int:
    """The messages of an entry before an offset are done."""
    stop = min(entry.stop, offset)
    if entry.is_whole and stop == entry.stop:
        channel.freed_rows(window, entry, entry.base, stop)
        window.uncount(entry, entry.base, stop)
        channel.finish(window, entry, entry.base, stop)
        return entry.count
    rows = window.rows(entry, entry.base, stop)  # which may make room for them: not in one line with the columns
    left = window.columns.state[rows] != DONE
    done = 0
    for is_left, first, end in cut(left, entry.base):
        if is_left:
            channel.freed_rows(window, entry, first, end)
            window.uncount(entry, first, end)
            channel.finish(window, entry, first, end)
            done += end - first
    return done


def _pass(channel: Channel, lane: int, cursor: Cursor, offset: int, now_ms: int) -> int:
    """The chunks ahead of a cursor, as far as they lie before an offset, are done."""
    done, queue = 0, channel.queue
    while cursor.ahead and (upcoming := channel.dispatch.upcoming(lane, cursor, 1)):
        key = upcoming[0]
        if key.base >= offset:
            break
        if key.base + key.messages > offset and key not in queue.quarantined:
            return done + _enter(channel, lane, cursor, offset, now_ms)
        cursor.upcoming.popleft()
        cursor.sequence = key.base + key.messages
        if key not in queue.quarantined:
            cursor.passed(key.messages)
            queue.let_go(key)
            done += key.messages
    return done


def _enter(channel: Channel, lane: int, cursor: Cursor, offset: int, now_ms: int) -> int:
    """The next chunk lies on both sides of an offset."""
    window = channel.windows[lane]
    try:
        entry = channel.dispatch.enter_next(window, cursor, now_ms)
    except ChunkDamaged:  # reported, and counted no more
        return 0
    return 0 if entry is None else _finish(channel, window, entry, offset)


def _move_start(channel: Channel, offset: int) -> int:
    """Nothing of the shared lanes before this is the channel's business any more. Returns how much was far ahead."""
    queue = channel.queue
    far_before = queue.far_count(channel)
    shared = [window for window in channel.windows.values() if not keys.lane_channel(window.lane)]
    on_both_sides = [base for window in shared for base in window.bases[: bisect_left(window.bases, offset)]]
    channel.start = max(channel.start, min(on_both_sides, default=offset))
    for cursor in channel.cursors.values():
        if not cursor.ahead:  # what a paused queue holds back is passed as well
            cursor.sequence = max(cursor.sequence, channel.start)
    if queue.far:
        _leave_far_behind(channel, max(offset, channel.start))
    return far_before - queue.far_count(channel)


def _leave_far_behind(channel: Channel, offset: int) -> None:
    """What waits far ahead, shared or to be tried again, and was sent before an offset, is done."""
    queue = channel.queue
    for key in queue.far_keys(channel.id, offset):
        queue.finish_far(key, offset)
    for key in queue.far_keys(0, offset):
        if key.base + key.messages > offset:
            queue.split(key, offset)
    behind = queue.far_keys(0, offset)
    for place in {(key.lane, key.order) for key in behind}:
        channel.far_behind[place] = sum(key.messages for key in behind if (key.lane, key.order) == place)
    for key in behind:
        queue.let_go_far(key)


def chunk_start(queue: Queue, offset: int) -> int:
    """The base of the chunk that lies on both sides of an offset; the offset itself when there is none."""
    for key in queue.log(offset):
        if key.base >= offset:
            break
        if key.base + key.messages > offset:
            return key.base
    return offset


def first_offset(queue: Queue) -> int:
    """The offset of the first message that is there; the end when there is none."""
    return next((key.base for key in queue.log(0) if key not in queue.quarantined), queue.next_sequence)


def sent_after(queue: Queue, offset: int) -> int | None:
    """When the first message from an offset on was sent; None when there is none."""
    return next((queue.sent_ms(key) for key in chunks_between(queue, offset, None, 1)), None)


def not_due(queue: Queue, limit: int) -> list[tuple[int, int, int]]:
    """The first runs of messages that were sent with a delay and are not due: see `Offsets`."""
    found: list[tuple[int, int, int]] = []
    for key in queue.delayed_keys():
        if key.aged_ms <= queue.broker.now_ms:
            continue
        if found and found[-1][1:] == (key.base, key.aged_ms):
            found[-1] = (found[-1][0], key.base + key.messages, key.aged_ms)
        elif len(found) == limit:
            break
        else:
            found.append((key.base, key.base + key.messages, key.aged_ms))
    return found


def chunks_between(queue: Queue, offset: int, end: int | None, limit: int) -> list[ChunkKey]:
    """The chunks with messages from an offset up to, not including, an end, by base; so many at most."""
    found: list[ChunkKey] = []
    for key in queue.log(offset):
        if len(found) >= limit or (end is not None and key.base >= end):
            break
        if key.base + key.messages > offset and key not in queue.quarantined:
            found.append(key)
    return found


def offset_after(queue: Queue, offset: int, bytes_max: int) -> int:
    """How far to read from an offset, whole chunks at a time, to get about so many bytes; at least one chunk."""
    size = 0
    for key in queue.log(offset):
        stop = key.base + key.messages
        if stop <= offset:
            continue
        if size and size + key.size > bytes_max:
            return max(offset, key.base)
        size += key.size
    return queue.next_sequence
