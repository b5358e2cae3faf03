"""Retention by size: the oldest messages go, whole chunks at a time, while a queue is too large.

Which messages lie together in a chunk is the broker's choice, so the driver reads the log of such a queue after each
command, and tells what is there. What is missing must have been the oldest, and there must have been a need.
"""

from __future__ import annotations

from penstock.core import commands as c
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Place, Queue
from tests.simulation.model.verdict import demand


class Sizes(Ground):
    """Rules of queues that may be so large."""

    def sized_queues(self) -> list[str]:
        """The queues whose log has to be read, because old messages may have gone."""
        return [name for name, queue in self.queues.items() if queue.config.retention_bytes is not None]

    def seen_in_log(self, name: str, records: c.Records, stats: c.Stats) -> None:
        """What the log of a queue holds, and how much that is."""
        queue = self.queues[name]
        limit = queue.config.retention_bytes
        assert limit is not None
        there = {run.first + index for run in records.runs for index in range(run.count)}
        chunks = {run.chunk.base: (run.chunk.count, run.chunk.size) for run in records.runs}
        dropped = {sequence for sequence in self._wanted(queue) if sequence not in there}
        if dropped:
            self._check_dropped(queue, dropped, there, stats.bytes, limit)
        is_new = bool(there) and max(there) >= queue.seen_end
        too_large = is_new and stats.bytes > limit and len(chunks) > 1
        demand(not too_large, f"{name}: {stats.bytes} bytes in {len(chunks)} chunks, with a limit of {limit}")
        queue.seen_end, queue.chunks = records.end_offset, chunks
        for sequence in dropped:
            self._drop(queue, sequence)

    def _wanted(self, queue: Queue) -> set[int]:
        """What nothing but retention may have ended. A message in a channel's retry lane does not need the log."""
        copies = (item for channel in queue.channels.values() for item in channel.copies.items())
        return queue.stored | {sequence for sequence, copy in copies if copy.place is not Place.RETRY}

    def _check_dropped(self, queue: Queue, dropped: set[int], there: set[int], size: int, limit: int) -> None:
        newest = max(dropped)
        demand(not there or newest < min(there), f"{queue.name}: {newest} went, and older ones are there")
        demand(newest + 1 != queue.next_sequence, f"{queue.name}: {newest} went, which was the newest")
        for base, (count, chunk_size) in queue.chunks.items():
            if base <= newest < base + count:
                demand(size + chunk_size > limit, f"{queue.name}: {newest} went without need: {size} of {limit} bytes")

    def _drop(self, queue: Queue, sequence: int) -> None:
        queue.stored.discard(sequence)
        for channel in queue.channels.values():
            copy = channel.copies.get(sequence)
            if copy is not None and copy.place is not Place.RETRY:
                del channel.copies[sequence]
                channel.turns.clear()
        if not any(sequence in channel.copies for channel in queue.channels.values()):
            self._forget(queue, sequence)
