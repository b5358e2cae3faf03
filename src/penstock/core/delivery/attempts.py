"""Receive attempt ids: the same receive once more, after a lost answer, gets the same messages again (FIFO)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import Run, Span
from penstock.core.delivery.columns import HELD_FROM
from penstock.core.delivery.window import Entry, Window
from penstock.core.queues.config import LEASE_MS_MAX
from penstock.core.storage import keys
from penstock.core.storage.records import AttemptRecord

if TYPE_CHECKING:
    from penstock.core.delivery.channel import Channel


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
        """Remember what a receive with an attempt id was given."""
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
        """Take an attempt id back from its record."""
        record = msgspec.msgpack.decode(data, type=AttemptRecord)
        self.known[attempt_id] = record
        self.queue.broker.schedule(record.expires_ms, "attempt", self.channel, attempt_id)

    def forget(self, attempt_id: str) -> None:
        """An attempt id is over."""
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
