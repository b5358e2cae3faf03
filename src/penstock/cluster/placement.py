"""Where a command goes: one table, complete, and what splitting and merging need.

A queue's first partition lives in the shard that follows from its name; partition i in the i-th shard after that. With
one partition, and most queues have one, a command about a queue goes to one shard as it is. With several:

    FIRST      to the first partition only, which is the one that counts
    EVERY      to all of them; what they say is merged
    SEND       groups stay together: by the hash of the group; without groups, a partition of this node or the next one
    RECEIVE    the first that has messages; a wait stands in all of them
    SPANS      a sequence number says its partition (`PARTITION_SHIFT`); so do spans and receipts
    SEQUENCES  likewise
    OFFSET     an offset says its partition
    RECORDS    the partition of the offset; without one, the next partition in which the consumer has something to read
    BROWSE     one partition after the other, in the order of the sequence numbers
    SUBSCRIBE  a subscription in each; the credit is shared out
"""

from __future__ import annotations

from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

import msgspec

from penstock.core import commands as c
from penstock.core.commands import ChannelStats, Command, QueueTally, RedriveTask, Send, Sent, Settled, Span, Stats
from penstock.core.config import QueueConfig
from penstock.core.partition import PARTITION_SHIFT, partition_of


class Home(Enum):
    """What says which shard a command is for."""

    QUEUE = auto()
    """The name of its queue."""
    ALL = auto()
    """Nothing: it is for all of them."""
    SESSION = auto()
    """The router knows in which shards a session is open."""
    SUBSCRIPTION = auto()
    """The router knows in which shards a subscription stands."""
    TASK = auto()
    """The number of a redrive says its shard."""
    MARK = auto()
    """The name of a mark."""
    WORK = auto()
    """All that a unit of work names."""
    SHARD = auto()
    """Only whoever sends it: it is for one shard, by number, and never comes through a router."""


class Split(Enum):
    """What becomes of a command for a queue with several partitions: see the top of this file."""

    FIRST = auto()
    EVERY = auto()
    CREATE = auto()
    DELETE = auto()
    SEND = auto()
    RECEIVE = auto()
    SPANS = auto()
    SEQUENCES = auto()
    OFFSET = auto()
    RECORDS = auto()
    BROWSE = auto()
    SUBSCRIBE = auto()


class Placement(NamedTuple):
    """Where commands of one type go."""

    home: Home
    field: str = ""
    """The field that names the queue."""
    split: Split = Split.FIRST
    is_repeatable: bool = False
    """Whether doing it twice is as good as once: then it is sent again when nobody knows whether it was done."""


PLACEMENTS: dict[type[Command], Placement] = {
    c.CreateQueue: Placement(Home.QUEUE, "name", Split.CREATE, True),
    c.ChangeQueue: Placement(Home.QUEUE, "name", Split.EVERY, True),
    c.DeleteQueue: Placement(Home.QUEUE, "name", Split.DELETE),
    c.PurgeQueue: Placement(Home.QUEUE, "name", Split.EVERY, True),
    c.DescribeQueue: Placement(Home.QUEUE, "name", Split.FIRST, True),
    c.QueueStats: Placement(Home.QUEUE, "name", Split.EVERY, True),
    c.ListQueues: Placement(Home.ALL, is_repeatable=True),
    c.TallyQueues: Placement(Home.SHARD, is_repeatable=True),
    c.Send: Placement(Home.QUEUE, "queue", Split.SEND),
    c.Receive: Placement(Home.QUEUE, "queue", Split.RECEIVE, True),
    c.Subscribe: Placement(Home.QUEUE, "queue", Split.SUBSCRIBE),
    c.SetCredit: Placement(Home.SUBSCRIPTION),
    c.AddCredit: Placement(Home.SUBSCRIPTION),
    c.CancelWait: Placement(Home.SUBSCRIPTION),
    c.Ack: Placement(Home.QUEUE, "queue", Split.SPANS),
    c.AckSequences: Placement(Home.QUEUE, "queue", Split.SEQUENCES),
    c.ReleaseSequences: Placement(Home.QUEUE, "queue", Split.SEQUENCES),
    c.ExtendSequences: Placement(Home.QUEUE, "queue", Split.SEQUENCES, True),
    c.Release: Placement(Home.QUEUE, "queue", Split.SPANS),
    c.GiveBack: Placement(Home.QUEUE, "queue", Split.SPANS),
    c.Extend: Placement(Home.QUEUE, "queue", Split.SPANS),
    c.CommitWork: Placement(Home.WORK),
    c.LastMark: Placement(Home.MARK, is_repeatable=True),
    c.CreateChannel: Placement(Home.QUEUE, "queue", Split.EVERY, True),
    c.DeleteChannel: Placement(Home.QUEUE, "queue", Split.EVERY),
    c.PauseChannel: Placement(Home.QUEUE, "queue", Split.EVERY, True),
    c.PauseQueue: Placement(Home.QUEUE, "queue", Split.EVERY, True),
    c.PurgeBacklog: Placement(Home.QUEUE, "queue", Split.EVERY, True),
    c.PurgeChannel: Placement(Home.QUEUE, "queue", Split.EVERY, True),
    c.OpenSession: Placement(Home.SESSION),
    c.Heartbeat: Placement(Home.SESSION, is_repeatable=True),
    c.EndSession: Placement(Home.SESSION, is_repeatable=True),
    c.ReadRecords: Placement(Home.QUEUE, "queue", Split.RECORDS, True),
    c.AckUpTo: Placement(Home.QUEUE, "queue", Split.OFFSET, True),
    c.FindOffsets: Placement(Home.QUEUE, "queue", Split.OFFSET, True),
    c.ListChunks: Placement(Home.QUEUE, "queue", Split.OFFSET, True),
    c.AckConsumer: Placement(Home.QUEUE, "queue", Split.OFFSET, True),
    c.DeleteConsumer: Placement(Home.QUEUE, "queue", Split.EVERY),
    c.Browse: Placement(Home.QUEUE, "queue", Split.BROWSE, True),
    c.StartRedrive: Placement(Home.QUEUE, "queue", Split.EVERY),
    c.CancelRedrive: Placement(Home.TASK, is_repeatable=True),
    c.ListRedrives: Placement(Home.ALL, is_repeatable=True),
    c.HoldForWork: Placement(Home.SHARD, is_repeatable=True),
    c.RecallWork: Placement(Home.SHARD, is_repeatable=True),
    c.ReadOutbox: Placement(Home.SHARD, is_repeatable=True),
    c.ForgetOutbox: Placement(Home.SHARD, is_repeatable=True),
    c.TakeOutbox: Placement(Home.SHARD, is_repeatable=True),
}

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


def partition_of_sequence(sequence: int) -> int:
    """The partition in which a message is.

    >>> partition_of_sequence((2 << PARTITION_SHIFT) + 17)
    2
    """
    return sequence >> PARTITION_SHIFT


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


def partitions_of(config: QueueConfig, shards: int) -> int:
    """How many partitions a queue has here."""
    return min(config.partitions, shards)
