"""A stream's offsets, as Spark keeps them in the checkpoint, and how far the next batch goes.

    {"channel": "spark-3f2a...", "queues": {"orders": {"0": 120, "id": 7, "kept": 80}}}

`0` is the partition, and its value the offset of the next message to read. `id` is the queue's own number: a queue that
was deleted and created again is another one. From offset `kept` on, the stream's channel keeps every message until it
is committed; what is missing there was lost (retention, a purge), and what is missing before was gone when the stream
began. A queue with several partitions has an offset in each, and a list of what is kept:

    {"0": 120, "1": 281474976710700, "id": 7, "kept": [80, 281474976710656]}

Messages that were sent with a delay, and were not due when the stream came past them, are in `delayed`, as runs from
the first number to the one behind the last: `"delayed": [[100, 103]]`. They are read by a later batch. So what a batch
reads follows from its two offsets alone: what lies between them and what was delayed before, without what is delayed
after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from penstock.core.queues.partition import PARTITION_SHIFT
from penstock.spark.errors import DataLoss
from penstock.spark.place import Part, Range

Key = TypeVar("Key")
Spans = tuple[tuple[int, int], ...]
"""Runs of messages, in order and apart: first number, and the one behind the last."""
_PARTITION_MESSAGES = 250_000
_PARTITIONS_MAX = 64


@dataclass(frozen=True)
class QueuePosition:
    """Where a stream is in one queue: in each of its partitions."""

    offsets: tuple[int, ...]
    queue_id: int
    kept: tuple[int, ...]
    delayed: Spans = ()
    """What was passed before it was due, in order."""

    @classmethod
    def decode(cls, found: dict[str, Any]) -> QueuePosition:
        """Read what `encode` has made."""
        kept = found["kept"] if isinstance(found["kept"], list) else [found["kept"]]
        offsets = tuple(int(found[str(partition)]) for partition in range(len(kept)))
        delayed = tuple((int(first), int(stop)) for first, stop in found.get("delayed", ()))
        return cls(offsets, int(found["id"]), tuple(map(int, kept)), delayed)

    def encode(self) -> dict[str, Any]:
        """The form in which Spark keeps it."""
        offsets = {str(partition): offset for partition, offset in enumerate(self.offsets)}
        kept = self.kept[0] if len(self.kept) == 1 else list(self.kept)
        delayed = {"delayed": [list(span) for span in self.delayed]} if self.delayed else {}
        return offsets | {"id": self.queue_id, "kept": kept} | delayed

    def delayed_in(self, partition: int) -> Spans:
        """What was passed before it was due, in one partition."""
        return tuple(span for span in self.delayed if span[0] >> PARTITION_SHIFT == partition)


@dataclass(frozen=True)
class StreamOffset:
    """Where a stream is."""

    channel: str
    queues: dict[str, QueuePosition]

    @classmethod
    def decode(cls, found: dict[str, Any]) -> StreamOffset:
        """Read what `encode` has made.

        >>> offset = StreamOffset("spark", {"orders": QueuePosition((120,), 7, (80,))})
        >>> StreamOffset.decode(offset.encode()) == offset
        True
        """
        return cls(found["channel"], {name: QueuePosition.decode(each) for name, each in found["queues"].items()})

    def encode(self) -> dict[str, Any]:
        """The form in which Spark keeps it."""
        return {"channel": self.channel, "queues": {name: each.encode() for name, each in sorted(self.queues.items())}}

    def moved(self, offsets: dict[Part, int], delayed: dict[Part, Spans] | None = None) -> StreamOffset:
        """The same stream further on. `delayed`: what it has passed that was not due; None: what it had passed."""
        now = self.offsets() | offsets
        queues = {}
        for name, each in self.queues.items():
            parts = [Part(name, number) for number in range(len(each.offsets))]
            spans = each.delayed if delayed is None else tuple(span for part in parts for span in delayed.get(part, ()))
            queues[name] = replace(each, offsets=tuple(now[part] for part in parts), delayed=spans)
        return StreamOffset(self.channel, queues)

    def done(self) -> dict[Part, int]:
        """The offset in each partition before which everything is done: what was delayed is not."""
        return {
            Part(name, partition): min([offset, *(first for first, _ in each.delayed_in(partition))])
            for name, each in self.queues.items()
            for partition, offset in enumerate(each.offsets)
        }

    def offsets(self) -> dict[Part, int]:
        """The offset in each partition of each queue."""
        return {
            Part(name, partition): offset
            for name, each in self.queues.items()
            for partition, offset in enumerate(each.offsets)
        }


def joined_spans(*spans: Spans) -> Spans:
    """All that is in any of some runs.

    >>> joined_spans(((1, 3), (7, 8)), ((3, 5),))
    ((1, 5), (7, 8))
    """
    found: list[tuple[int, int]] = []
    for first, stop in sorted(span for each in spans for span in each):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif first < stop:
            found.append((first, stop))
    return tuple(found)


def without_spans(spans: Spans, holes: Spans) -> Spans:
    """What is in some runs and not in others.

    >>> without_spans(((1, 9),), ((2, 3), (5, 20)))
    ((1, 2), (3, 5))
    """
    found: list[tuple[int, int]] = []
    for first, stop in spans:
        for low, high in holes:
            if low < stop and high > first:
                if low > first:
                    found.append((first, low))
                first = max(first, high)
        if first < stop:
            found.append((first, stop))
    return tuple(found)


def first_messages(spans: Spans, count: int) -> Spans:
    """The first so many messages of some runs.

    >>> first_messages(((1, 3), (7, 20)), 4)
    ((1, 3), (7, 9))
    """
    found: list[tuple[int, int]] = []
    for first, stop in spans:
        if count > 0:
            found.append((first, min(stop, first + count)))
            count -= stop - first
    return tuple(found)


def share_out(available: dict[Key, int], total: int) -> dict[Key, int]:
    """Divide a number of messages among partitions by what each has; every one that has any gets one at least.

    >>> share_out({"orders": 900, "billing": 100, "idle": 0}, 100)
    {'orders': 90, 'billing': 10, 'idle': 0}
    >>> share_out({"orders": 5}, 100)
    {'orders': 5}
    """
    everything = sum(available.values())
    if everything <= total:
        return dict(available)
    return {key: min(has, max(1, has * total // everything)) if has else 0 for key, has in available.items()}


def cut_ranges(ranges: list[Range], min_partitions: int | None, records_max: int | None = None) -> list[Range]:
    """Cut ranges into pieces to be read in parallel: as many as asked for, or by size; none longer than asked for.

    >>> [(each.start, each.stop) for each in cut_ranges([Range("orders", 0, 100, 0)], 3)]
    [(0, 33), (33, 66), (66, 100)]
    >>> len(cut_ranges([Range("orders", 0, 600_000, 0)], None))
    3
    >>> [(each.start, each.stop) for each in cut_ranges([Range("orders", 0, 100, 0)], None, 40)]
    [(0, 33), (33, 66), (66, 100)]
    """
    total = sum(each.stop - each.start for each in ranges)
    wanted = min_partitions or min(_PARTITIONS_MAX, -(-total // _PARTITION_MESSAGES))
    pieces = []
    for each in ranges:
        length = each.stop - each.start
        count = max(1, min(length, round(wanted * length / total))) if length else 0
        if records_max is not None:
            count = max(count, -(-length // records_max))
        edges = [each.start + length * at // count for at in range(count + 1)] if count else []
        pieces += [replace(each, start=low, stop=high) for low, high in pairwise(edges)]
    return pieces


class LossCheck:
    """Watches that the messages of a range come, all from `kept` on, and none out of order."""

    def __init__(self, wanted: Range) -> None:
        self._wanted = wanted
        self._next = max(wanted.start, wanted.kept)

    def saw(self, first: int, last: int, count: int) -> None:
        """Messages came: their first and last offset, and how many."""
        if last < self._next:
            return
        if first > self._next or count != last - first + 1:
            raise self._lost(first)
        self._next = last + 1

    def end(self) -> None:
        """Nothing more comes."""
        if self._next < self._wanted.stop:
            raise self._lost(self._wanted.stop)

    def _lost(self, until: int) -> DataLoss:
        return data_loss(
            f"messages {self._next} to {until - 1} of queue {self._wanted.queue!r} are gone: retention or a purge took "
            "them, or the stream's channel was deleted, or they are damaged"
        )


def data_loss(what: str) -> DataLoss:
    """The error for messages that are gone, with what can be done."""
    return DataLoss(
        f"{what}. To go on without them, set failOnDataLoss to false; to start anew, use another checkpoint location"
    )
