"""Reading from a data directory: the store's read-only view, beside the server that writes to it, or without one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.core.broker import Broker
from penstock.core.commands import FindOffsets, ListQueues, Offsets, ReadRecords, Records
from penstock.core.errors import ChunkDamaged, QueueNotFound
from penstock.spark.errors import InvalidOption, SparkError
from penstock.spark.place import Part, Range
from penstock.store.view import StoreView

_READ_BYTES = 16 * 1024 * 1024
_READ_MESSAGES = 100_000
_NO_ENTROPY = bytes(64)


class DirectoryPlace:
    """A broker over one consistent state of the directory; `find` moves on to the latest."""

    has_kafka_log = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._view = StoreView(Path(path))
        self._broker = self._open()

    def _open(self) -> Broker:
        return Broker.open(self._view, int(time.time() * 1_000), _NO_ENTROPY, shard=None)

    def _refresh(self) -> None:
        position = self._view.position
        self._view.refresh()
        if self._view.position != position:
            self._broker = self._open()

    def _call(self, command: Any) -> Any:
        return self._broker.handle(command, self._broker.now_ms)

    def queues(self) -> list[str]:
        """The names of all queues."""
        self._refresh()
        names: list[str] = self._call(ListQueues(limit=1 << 31))
        return names

    def find(
        self,
        queues: Sequence[str],
        *,
        times_ms: Sequence[int] = (),
        after: Mapping[Part, int] | None = None,
        bytes_max: Mapping[str, int] | None = None,
    ) -> dict[Part, Offsets]:
        """Where the messages of queues stand."""
        self._refresh()
        found: dict[Part, Offsets] = {}
        for queue in queues:
            command = FindOffsets(
                queue=queue,
                times_ms=tuple(times_ms),
                after=(after or {}).get(Part(queue, 0), 0),
                bytes_max=(bytes_max or {}).get(queue),
            )
            try:
                at: Offsets = self._call(command)
            except QueueNotFound:
                continue
            if at.partitions > 1:
                raise InvalidOption(
                    f"queue {queue!r} has {at.partitions} partitions, and {self._path} holds one of them: read it from "
                    "the server (option url)"
                )
            now_ms = time.time() * 1_000
            at.not_due = [span for span in at.not_due if span[2] > now_ms]
            found[Part(queue, 0)] = at
        return found

    def batches(self, wanted: Range, columns: tuple[str, ...]) -> Iterator[Any]:
        """The messages of a range that are there. A chunk that is damaged is left out, as one that is gone."""
        from penstock.wire.arrow import record_batch

        offset = wanted.start
        while offset < wanted.stop:
            command = ReadRecords(
                queue=wanted.queue, offset=offset, end=wanted.stop, limit=_READ_MESSAGES, bytes_max=_READ_BYTES
            )
            try:
                records: Records = self._call(command)
            except ChunkDamaged:  # it is in quarantine now: the next read leaves it out
                continue
            except QueueNotFound:
                return
            for run in records.runs:
                yield record_batch(run.chunk, run.start, run.stop, columns)
            if records.next_offset <= offset:
                return
            offset = records.next_offset

    def create_channel(self, queue: str, channel: str, offsets: Sequence[int]) -> None:
        """Refused: nothing is written here."""
        raise SparkError(f"{self._path} is only read: a stream that commits needs a server (option url)")

    def ack_up_to(self, channel: str, offsets: Mapping[Part, int]) -> None:
        """Refused: nothing is written here."""
        raise SparkError(f"{self._path} is only read: a stream that commits needs a server (option url)")

    def close(self) -> None:
        """Let go of the files."""
        self._view.close()
