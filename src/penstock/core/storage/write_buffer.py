"""What the core reads and writes: chunks and records, as they will be once everything on its way is committed.

The write buffer gathers the changes of the next commit, and lays them (and those that are being committed) over the
store's answers, so that the core can run ahead of the disk. Chunks in use are kept decoded, the newest `CACHE_BYTES` of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import ChunkDamaged
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes, Reader
from penstock.core.storage.chunk import Chunk
from penstock.core.storage.keys import ChunkKey
from penstock.core.storage.segments import Segments, staged_lane

if TYPE_CHECKING:
    from penstock.core.delivery.window import Entry, Window

CACHE_BYTES = 16 * 1024 * 1024


class WriteBuffer:
    """Chunks and records, committed or not yet."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.changes = Changes()
        self.committing: list[Changes] = []
        """Changes that were taken, until the store has them."""
        self.segments = Segments()
        """The chunks that lie elsewhere than their keys say."""
        self._cache: dict[bytes, Chunk] = {}
        self._cached_bytes = 0
        self._entries: dict[bytes, tuple[Window, Entry]] = {}
        """Entries whose state records are out of date, by record key."""

    # -- chunks --

    def put(self, key: ChunkKey, chunk: Chunk) -> None:
        packed = key.packed
        cache = self._cache
        segment = self.segments.of_key(key) if self.segments.by_queue else None
        if segment is None:
            self.changes.chunks[packed] = chunk
        else:
            stored = segment.stored(key)
            self.changes.chunks[stored.packed] = chunk.moved(stored.base, 0)
            self.segments.count(segment, key.messages)
        if packed in cache:
            self._cached_bytes -= cache[packed].size
        cache[packed] = chunk
        self._cached_bytes += chunk.size
        if self._cached_bytes > CACHE_BYTES:
            self._evict()

    def delete(self, key: ChunkKey) -> None:
        """Delete a chunk with the next commit; one that was to be written by the same commit is simply not written."""
        stored = key.packed
        segment = self.segments.of_key(key) if self.segments.by_queue else None
        if segment is not None:
            stored = segment.stored(key).packed
            self.segments.count(segment, -(key.messages or 1))
        chunks = self.changes.chunks
        if chunks.get(stored) is not None and not any(stored in layer.chunks for layer in self.committing):
            del chunks[stored]
        else:
            chunks[stored] = None
        chunk = self._cache.pop(key.packed, None)
        if chunk is not None:
            self._cached_bytes -= chunk.size

    def load(self, key: ChunkKey) -> Chunk:
        """A chunk by its key; `ChunkDamaged` if what is stored is not what was written."""
        chunk = self._cache.get(key.packed)
        if chunk is None:
            chunk = self._cache[key.packed] = self._read(key)
            self._cached_bytes += chunk.size
            if self._cached_bytes > CACHE_BYTES:
                self._evict()
        return chunk

    def _read(self, key: ChunkKey) -> Chunk:
        segment = self.segments.of_key(key) if self.segments.by_queue else None
        stored = key if segment is None else segment.stored(key)
        chunk = self._pending(stored.packed)
        if chunk is None:
            try:
                chunk = Chunk.decode(self.reader.read_chunk(stored.packed))
            except KeyError:
                raise ChunkDamaged("the store does not have it any more") from None
            if chunk.base != stored.base or chunk.count != key.messages:
                raise ChunkDamaged(f"it says of itself that it holds {chunk.count} messages from {chunk.base} on")
        return chunk if segment is None else chunk.moved(key.base, segment.sent_ms)

    def _pending(self, packed: bytes) -> Chunk | None:
        for layer in (self.changes, *reversed(self.committing)):
            pending = layer.chunks.get(packed)
            if pending is not None:
                assert isinstance(pending, Chunk)
                return pending
        return None

    def _evict(self) -> None:
        cache = self._cache
        while self._cached_bytes > CACHE_BYTES and len(cache) > 1:
            self._cached_bytes -= cache.pop(next(iter(cache))).size

    def read_stored(self, packed: bytes) -> bytes:
        """A chunk's stored form, unchecked, by its packed key; `ChunkDamaged` if it is not there."""
        if self.segments.by_queue and (segment := self.segments.of_key(key := ChunkKey.unpack(packed))) is not None:
            packed = segment.stored(key).packed
        for layer in (self.changes, *reversed(self.committing)):
            pending = layer.chunks.get(packed)
            if pending is not None:
                return b"".join(pending.parts())
        try:
            return bytes(self.reader.read_chunk(packed))
        except KeyError:
            raise ChunkDamaged("the store does not have it any more") from None

    def keys(self, queue_id: int, lane: int, base: int = 0, limit: int = 256, order: int = 0) -> list[ChunkKey]:
        """The next chunks of a lane with at least this base, in order. Fewer than `limit` means there are no more."""
        found = self._stored_keys(queue_id, lane, base, limit, order)
        if not self.segments.by_queue or order:
            return found
        staged: list[ChunkKey] = []
        for segment in self.segments.of(queue_id):
            if segment.lane == lane and segment.first + segment.count > base and len(staged) < limit:
                at, left = max(0, base - segment.first), limit - len(staged)
                stored = self._stored_keys(queue_id, staged_lane(lane), at, left, segment.order)
                staged += [segment.seen(key) for key in stored]
        return sorted([*found, *staged], key=_base_of)[:limit] if staged else found

    def _stored_keys(self, queue_id: int, lane: int, base: int, limit: int, order: int) -> list[ChunkKey]:
        """The next chunks that lie in a lane."""
        prefix = keys.lane_chunks(queue_id, lane, order)
        start = keys.lane_start(queue_id, lane, base, order)
        layers = [*self.committing, self.changes]
        wanted = limit + sum(sum(1 for value in layer.chunks.values() if value is None) for layer in layers)
        found = set(self.reader.list_chunks(prefix, start, wanted))
        complete_up_to = max(found) if len(found) == wanted else None
        for layer in layers:
            if any(prefix.startswith(dropped) for dropped in layer.dropped):
                found, complete_up_to = set(), None
            for key, chunk in layer.chunks.items():
                if chunk is None:
                    found.discard(key)
                elif key.startswith(prefix) and key >= start and (complete_up_to is None or key <= complete_up_to):
                    found.add(key)
        return [ChunkKey.unpack(key) for key in sorted(found)[:limit]]

    def drop_chunks(self, queue_id: int) -> None:
        self.segments.drop(queue_id, self.changes)
        self.changes.drop(keys.queue_chunks(queue_id))
        prefix = keys.queue_chunks(queue_id)
        for packed in [packed for packed in self._cache if packed.startswith(prefix)]:
            self._cached_bytes -= self._cache.pop(packed).size

    # -- records --

    def read_record(self, record_key: bytes) -> bytes:
        """A record by its key; the rare ones that are not kept in memory."""
        for layer in (self.changes, *reversed(self.committing)):
            value = layer.records.get(record_key)
            if value is not None:
                return value
        return next(value for key, value in self.reader.scan(record_key) if key == record_key)

    def touch(self, window: Window, entry: Entry) -> None:
        """An entry has changed: its record goes with the next commit."""
        if not entry.dirty:
            entry.dirty = True
            self._entries[entry.record_key] = (window, entry)

    def forget(self, entry: Entry) -> None:
        """An entry is over: so is its record, if it ever had one."""
        if entry.dirty:
            del self._entries[entry.record_key]
            entry.dirty = False
        if entry.stored:
            self.changes.records[entry.record_key] = None

    def forget_queue(self, number: bytes) -> None:
        """Write nothing of what entries of a queue have changed."""
        for record_key in [key for key in self._entries if keys.group_of(key) == number]:
            del self._entries[record_key]

    # -- commits --

    def take_changes(self) -> Changes:
        """The changes so far. They are still seen here while they are in `committing`."""
        for record_key, (window, entry) in self._entries.items():
            entry.dirty = False
            entry.stored = True
            self.changes.records[record_key] = window.encode(entry)
        self._entries = {}
        if self.segments.unsaved:
            self.segments.save(self.changes)
        changes, self.changes = self.changes, Changes()
        self.committing.append(changes)
        return changes

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self._entries) or bool(self.changes)


def _base_of(key: ChunkKey) -> int:
    return key.base
