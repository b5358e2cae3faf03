"""Where a queue's commands go (`home_of`, `shards_of`), and what splitting and merging need.

A queue's first partition lives in the shard that follows from its name; partition i in the i-th shard after that. What
becomes of a command for a queue with several is said by the command: see `penstock.core.traits.Split`.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.core.commands import ChannelStats, QueueTally, RedriveTask, Send, Sent, Settled, Span, Stats
from penstock.core.queues.partition import PARTITION_SHIFT, partition_of

_HOMES_REMEMBERED = 65_536


@lru_cache(maxsize=_HOMES_REMEMBERED)
def home_of(name: str, shards: int) -> int:
    """The shard of a queue's first partition.

    >>> home_of("orders", 64)
    28
    """
    return hashed(name, shards)


def hashed(name: str, places: int) -> int:
    """As `partition_of`; a name that no queue and no group can have is anywhere, and refused there.

    >>> hashed("orders", 64), hashed(chr(0xD800), 64)
    (28, 0)
    """
    try:
        return partition_of(name, places)
    except UnicodeEncodeError:
        return 0


def shards_of(name: str, partitions: int, shards: int) -> list[int]:
    """The shards of a queue's partitions, in their order.

    >>> shards_of("orders", 3, 30)
    [12, 13, 14]
    """
    first = home_of(name, shards)
    return [(first + index) % shards for index in range(min(partitions, shards))]


# -- splitting ---------------------------------------------------------------------------------------------------------


def split_by_group(groups: list[str | None], partitions: int, spare: int) -> dict[int, list[int]]:
    """Which messages go to which partition, by index; those without a group go to the partition `spare`.

    >>> split_by_group(["a", None, "b", "a"], 2, 1)
    {0: [0, 2, 3], 1: [1]}
    """
    indexes: dict[int, list[int]] = {}
    places: dict[str | None, int] = {None: spare}
    for index, group in enumerate(groups):
        place = places.get(group)
        if place is None:
            assert group is not None
            place = places[group] = hashed(group, partitions)
        indexes.setdefault(place, []).append(index)
    return indexes


def some_of(send: Send, indexes: list[int]) -> Send:
    """A send with only some of its messages."""

    def picked(values: list[object] | None) -> list[object] | None:
        return None if values is None else [values[index] for index in indexes]

    return msgspec.structs.replace(
        send,
        bodies=[send.bodies[index] for index in indexes],
        attributes=picked(send.attributes),  # type: ignore[arg-type]
        groups=picked(send.groups),  # type: ignore[arg-type]
        dedup_ids=picked(send.dedup_ids),  # type: ignore[arg-type]
        origins=picked(send.origins),  # type: ignore[arg-type]
    )


def split_spans(spans: list[Span]) -> dict[int, list[Span]]:
    """Spans by partition.

    >>> split_spans([Span(1, 2, 1), Span((1 << PARTITION_SHIFT), (1 << PARTITION_SHIFT), 1)]).keys()
    dict_keys([0, 1])
    """
    parts: dict[int, list[Span]] = {}
    for span in spans:
        parts.setdefault(span.first >> PARTITION_SHIFT, []).append(span)
    return parts


# -- merging -----------------------------------------------------------------------------------------------------------


def merge_sent(count: int, parts: list[tuple[list[int], Sent]]) -> Sent:
    """The reply to a send that was split: `parts` are the indexes that went together, and what came of them."""
    sequences = [0] * count
    duplicates: list[int] = []
    for indexes, sent in parts:
        for at, index in enumerate(indexes):
            sequences[index] = sent.sequence(at)
        duplicates += [indexes[at] for at in sent.duplicates]
    return Sent(parts[0][1].queue_id, sequences[0], count, sequences, sorted(duplicates))


def merge_settled(parts: list[Settled]) -> Settled:
    """How many messages were settled, all in all."""
    merged = Settled(0)
    for part in parts:
        merged.count += part.count
        merged.refused = merged.refused + part.refused
        merged.sent = merged.sent + part.sent
    return merged


def merge_redrives(parts: list[RedriveTask]) -> RedriveTask:
    """The redrives of all partitions, added up, under the number of the first."""
    return msgspec.structs.replace(
        parts[0],
        moved=sum(part.moved for part in parts),
        skipped=sum(part.skipped for part in parts),
        to_move=sum(part.to_move for part in parts),
    )


def merge_stats(parts: list[Stats]) -> Stats:
    """The counts of all partitions, added up; offsets of consumers and of the end are those of the first."""
    first = parts[0]
    channels: dict[str, ChannelStats] = {}
    for part in parts:
        for name, channel in part.channels.items():
            known = channels.get(name)
            channels[name] = channel if known is None else _merge_channel(known, channel)
    return Stats(
        name=first.name,
        messages=sum(part.messages for part in parts),
        bytes=sum(part.bytes for part in parts),
        delayed=sum(part.delayed for part in parts),
        sent=sum(part.sent for part in parts),
        quarantined=sum(part.quarantined for part in parts),
        oldest_ms=_oldest([part.oldest_ms for part in parts]),
        next_sequence=first.next_sequence,
        channels=channels,
        consumers={name: offset for part in reversed(parts) for name, offset in part.consumers.items()},
        paused=first.paused,
        backlog=sum(part.backlog for part in parts),
        sent_bytes=sum(part.sent_bytes for part in parts),
    )


def _merge_channel(one: ChannelStats, other: ChannelStats) -> ChannelStats:
    return ChannelStats(
        name=one.name,
        ready=one.ready + other.ready,
        leased=one.leased + other.leased,
        delayed=one.delayed + other.delayed,
        acked=one.acked + other.acked,
        failed=one.failed + other.failed,
        dead=one.dead + other.dead,
        paused=one.paused,
        oldest_ms=_oldest([one.oldest_ms, other.oldest_ms]),
        waiting_receivers=max(one.waiting_receivers, other.waiting_receivers),
        expired=one.expired + other.expired,
    )


def _oldest(times_ms: list[int | None]) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def tally_of(stats: Stats) -> QueueTally:
    """A queue in numbers, from counts of a node that cannot tell more: whether it is busy is not known."""
    channels = stats.channels.values()
    return QueueTally(
        name=stats.name,
        partitions=1,
        busy=0,
        messages=stats.messages,
        bytes=stats.bytes,
        quarantined=stats.quarantined,
        ready=sum(channel.ready for channel in channels),
        leased=sum(channel.leased for channel in channels),
        delayed=sum(channel.delayed for channel in channels) if channels else stats.delayed,
        sent=stats.sent,
        acked=sum(channel.acked for channel in channels),
        failed=sum(channel.failed for channel in channels),
        dead=sum(channel.dead for channel in channels),
    )


def merge_names(pages: list[list[str]], limit: int) -> list[str]:
    """The first names of all pages, in order, each once. Each page is in order, and full if there are more.

    >>> merge_names([["a", "d"], ["b", "c"]], 2)
    ['a', 'b']
    """
    return sorted({name for page in pages for name in page})[:limit]
