"""A stream's offsets, as Spark keeps them in the checkpoint, and how far the next batch goes.

    {"channel": "spark-3f2a...", "queues": {"orders": {"0": 120, "id": 7, "kept": 80}}}

`0` is the partition (a queue has one), and its value the offset of the next message to read. `id` is the queue's own
number: a queue that was deleted and created again is another one. From offset `kept` on, the stream's channel keeps
every message until it is committed; what is missing there was lost (retention, a purge), and what is missing before
was gone when the stream began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.spark.errors import DataLoss
from penstock.spark.place import Range

_PARTITION_MESSAGES = 250_000
_PARTITIONS_MAX = 64


@dataclass(frozen=True)
class QueuePosition:
    """Where a stream is in one queue."""

    offset: int
    queue_id: int
    kept: int


@dataclass(frozen=True)
class StreamOffset:
    """Where a stream is."""

    channel: str
    queues: dict[str, QueuePosition]

    @classmethod
    def decode(cls, found: dict[str, Any]) -> StreamOffset:
        """Read what `encode` has made.

        >>> offset = StreamOffset("spark", {"orders": QueuePosition(120, 7, 80)})
        >>> StreamOffset.decode(offset.encode()) == offset
        True
        """
        queues = {
            name: QueuePosition(int(each["0"]), int(each["id"]), int(each["kept"]))
            for name, each in found["queues"].items()
        }
        return cls(found["channel"], queues)

    def encode(self) -> dict[str, Any]:
        """The form in which Spark keeps it."""
        return {
            "channel": self.channel,
            "queues": {
                name: {"0": each.offset, "id": each.queue_id, "kept": each.kept}
                for name, each in sorted(self.queues.items())
            },
        }

    def moved(self, offsets: dict[str, int]) -> StreamOffset:
        """The same stream further on."""
        queues = {name: replace(each, offset=offsets.get(name, each.offset)) for name, each in self.queues.items()}
        return StreamOffset(self.channel, queues)

    def offsets(self) -> dict[str, int]:
        """The offset in each queue."""
        return {name: each.offset for name, each in self.queues.items()}


def share_out(available: dict[str, int], total: int) -> dict[str, int]:
    """Divide a number of messages among queues by what each has; every queue that has any gets one at least.

    >>> share_out({"orders": 900, "billing": 100, "idle": 0}, 100)
    {'orders': 90, 'billing': 10, 'idle': 0}
    >>> share_out({"orders": 5}, 100)
    {'orders': 5}
    """
    everything = sum(available.values())
    if everything <= total:
        return dict(available)
    return {name: min(has, max(1, has * total // everything)) if has else 0 for name, has in available.items()}


def cut_ranges(ranges: list[Range], min_partitions: int | None) -> list[Range]:
    """Cut ranges into pieces to be read in parallel: as many as asked for, or by size.

    >>> [(each.start, each.stop) for each in cut_ranges([Range("orders", 0, 100, 0)], 3)]
    [(0, 33), (33, 66), (66, 100)]
    >>> len(cut_ranges([Range("orders", 0, 600_000, 0)], None))
    3
    """
    total = sum(each.stop - each.start for each in ranges)
    wanted = min_partitions or min(_PARTITIONS_MAX, -(-total // _PARTITION_MESSAGES))
    pieces = []
    for each in ranges:
        length = each.stop - each.start
        count = max(1, min(length, round(wanted * length / total))) if length else 0
        edges = [each.start + length * at // count for at in range(count + 1)] if count else []
        pieces += [Range(each.queue, low, high, each.kept) for low, high in pairwise(edges)]
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
