"""Duplicates, recognised for five minutes: after the original was received and deleted, and after a restart.

Ids are stored in the bucket of the minute in which they are forgotten, one record a commit, so that forgetting a
minute's worth is one deletion.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.queues.config import DEDUP_WINDOW_MS, MINUTE_MS
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes

DedupKey = tuple[str | None, str]
"""The group (None when the scope is the queue) and the id."""
_Row = tuple[str | None, str, int, int]


class Dedup:
    """The ids that a queue remembers.

    >>> dedup = Dedup(queue_id=1)
    >>> dedup.remember((None, "a"), sequence=7, now_ms=0)
    >>> dedup.find((None, "a"), now_ms=299_999), dedup.find((None, "a"), now_ms=300_000)
    (7, None)
    """

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self._known: dict[DedupKey, tuple[int, int]] = {}
        self._buckets: dict[int, list[DedupKey]] = {}
        self.unsaved: dict[int, list[_Row]] = {}
        """What is new since the last commit, by bucket."""

    def find(self, key: DedupKey, now_ms: int) -> int | None:
        """The sequence number of the original, if there was one in the last five minutes."""
        known = self._known.get(key)
        return known[0] if known is not None and known[1] > now_ms else None

    def remember(self, key: DedupKey, sequence: int, now_ms: int) -> None:
        self._note(key, sequence, now_ms + DEDUP_WINDOW_MS)

    def _note(self, key: DedupKey, sequence: int, expires_ms: int) -> None:
        self._add(key, sequence, expires_ms)
        self.unsaved.setdefault(_bucket(expires_ms), []).append((*key, sequence, expires_ms))

    def _add(self, key: DedupKey, sequence: int, expires_ms: int) -> None:
        self._known[key] = (sequence, expires_ms)
        self._buckets.setdefault(_bucket(expires_ms), []).append(key)

    def next_deadline(self) -> int | None:
        """When the next bucket can be forgotten."""
        return min(self._buckets) * MINUTE_MS if self._buckets else None

    def forget(self, now_ms: int, changes: Changes) -> None:
        """Drop the buckets whose minute is over."""
        for bucket in [bucket for bucket in self._buckets if bucket * MINUTE_MS <= now_ms]:
            for key in self._buckets.pop(bucket):
                known = self._known.get(key)
                if known is not None and _bucket(known[1]) <= bucket:
                    del self._known[key]
            self.unsaved.pop(bucket, None)
            changes.drop(keys.dedup_bucket(self.queue_id, bucket))

    def clear(self, changes: Changes) -> None:
        """Forget every id: the messages are gone, and the same ones may be sent again.

        >>> dedup = Dedup(queue_id=1)
        >>> dedup.remember((None, "a"), sequence=7, now_ms=0)
        >>> dedup.clear(Changes())
        >>> dedup.find((None, "a"), now_ms=1) is None
        True
        """
        for bucket in self._buckets:
            changes.drop(keys.dedup_bucket(self.queue_id, bucket))
        self._known, self._buckets, self.unsaved = {}, {}, {}

    def set_clock_back(self, now_ms: int, changes: Changes) -> None:
        """The clock may have been ahead until now: no id is known for longer than five minutes from now."""
        latest_ms = now_ms + DEDUP_WINDOW_MS
        later = sorted(bucket for bucket in self._buckets if bucket >= _bucket(latest_ms))
        if not any(self._known[key][1] > latest_ms for bucket in later for key in self._buckets[bucket]):
            return
        for bucket in later:
            changes.drop(keys.dedup_bucket(self.queue_id, bucket))
            for key in self._buckets.pop(bucket):
                sequence, expires_ms = self._known[key]
                if _bucket(expires_ms) == bucket:
                    self._note(key, sequence, min(expires_ms, latest_ms))

    def save(self, changes: Changes) -> None:
        """Write what is new since the last commit."""
        for bucket, rows in self.unsaved.items():
            key = keys.dedup_record(self.queue_id, bucket, rows[0][2])
            changes.put_record(key, msgspec.msgpack.encode(rows))
        self.unsaved = {}

    def restore(self, data: bytes) -> None:
        """Take ids back from a record."""
        for group, name, sequence, expires_ms in msgspec.msgpack.decode(data, type=list[_Row]):
            self._add((group, name), sequence, expires_ms)

    def snapshot(self) -> dict[Any, Any]:
        """All that is stored, comparable."""
        return dict(sorted(self._known.items(), key=repr))


def _bucket(expires_ms: int) -> int:
    return expires_ms // MINUTE_MS + 1
