"""Reading chunks from the table before anybody asks for them.

Consumers take the chunks of a lane in key order. When one is read from the table, a thread fetches those behind it, so
that the next `read_chunk` finds its chunk in memory: the table is read while the consumer waits for the sync of its
acknowledgements, and not in the middle of a receive.

How far. The first read of a lane fetches one chunk ahead, and each further one twice as many, up to `LANE_CHUNKS_MAX`
and about `LANE_BYTES_MAX`: who looks at one chunk does not cause ten to be read. A read that goes back stops it until
the next one in order. All lanes together take about `CACHE_BYTES_MAX`. When that is used up, lanes that nobody has read
for `STALE_SECONDS` make room; if there are none, there is no reading ahead, because what is dropped before it is used
was read for nothing. A chunk is handed out once, and forgotten: the core has a cache of its own for chunks in use.
Small chunks are not worth the trouble.

What is kept here is always what the table holds. A commit forgets the chunks that it changes. A chunk that was on its
way from the table meanwhile is kept only if no layer hides it and no layer was applied since the reading began:

    the chunk's last commit was   the layers   and so
    applied before                are silent   the table was read after it: keep
    applied meanwhile             are silent   `table_changed` was called: throw away
    not applied yet               hide it      throw away
    still to come                 are silent   keep: the commit will call `forget`

The thread starts with the first chunk that is worth it. It is woken when a commit is about to wait for the disk, and
only where a lane is nearly used up at once: woken in the middle of a receive, it would fight for the interpreter lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.core.errors import StoreError
from penstock.store.base import Table
from penstock.store.layer import prefix_end

LANE_PREFIX_BYTES: Final = 20
"""Chunks whose keys start with the same so many bytes are a lane: they are read one after the other."""
LANE_CHUNKS_MAX: Final = 16
LANE_BYTES_MAX: Final = 2 << 20
CACHE_BYTES_MAX: Final = 8 << 20
LANES_MAX: Final = 256
SMALL_CHUNK_BYTES: Final = 16 << 10
STALE_SECONDS: Final = 1.0
URGENT_CHUNKS: Final = 1
"""With so few in memory, the next ones are fetched at once."""


class _Lane:
    """What was fetched of a lane, in order, and how far ahead to go."""

    __slots__ = ("asked", "bodies", "depth", "ended", "nbytes", "prefix", "reached", "read_at")

    def __init__(self, prefix: bytes, asked: bytes, depth: int) -> None:
        self.prefix = prefix
        self.asked = asked
        """The last key that was asked for."""
        self.reached = asked
        """The last key that was fetched or asked for."""
        self.bodies: dict[bytes, bytes] = {}
        self.nbytes = 0
        self.depth = depth
        """How many chunks to have in memory."""
        self.ended = False
        """Whether the table has nothing behind `reached`."""
        self.read_at = 0.0

    @property
    def room(self) -> int:
        """How many more chunks to fetch."""
        return 0 if self.ended or self.nbytes >= LANE_BYTES_MAX else self.depth - len(self.bodies)

    @property
    def is_low(self) -> bool:
        """Whether it is time to fetch: seldom, and several at once."""
        return self.room > 0 and 2 * len(self.bodies) <= self.depth and 2 * self.nbytes <= LANE_BYTES_MAX

    def keep(self, key: bytes, body: bytes) -> None:
        self.reached = key
        self.bodies[key] = body
        self.nbytes += len(body)

    def take(self, key: bytes) -> bytes | None:
        """The body of a key, if it was fetched. Whatever lies before it will not be asked for."""
        for passed in [earlier for earlier in self.bodies if earlier < key]:
            self.forget(passed)
        return self.forget(key)

    def forget(self, key: bytes) -> bytes | None:
        body = self.bodies.pop(key, None)
        if body is not None:
            self.nbytes -= len(body)
        return body

    def go_on(self, key: bytes) -> None:
        """This key was asked for, after an earlier one. It may have been fetched while it was read for who asked."""
        self.take(key)
        self.asked = key
        self.reached = max(self.reached, key)
        self.depth = min(max(1, 2 * self.depth), LANE_CHUNKS_MAX)


class ReadAhead:
    """A table's chunks, with those in memory that will be asked for next."""

    def __init__(self, table: Table, is_hidden: Callable[[bytes], bool]) -> None:
        self._table = table
        self._is_hidden = is_hidden
        """Whether the layers above the table have a word on a key."""
        self.lanes: dict[bytes, _Lane] = {}
        self._wanted: deque[_Lane] = deque()
        self.is_wanted = False
        """Whether there are lanes for which the thread was not woken yet."""
        self._applied = 0
        self._stopping = False
        self._fetcher: threading.Thread | None = None
        self._changed = threading.Condition(threading.Lock())

    def read_chunk(self, key: bytes) -> bytes:
        """A chunk of the table; `KeyError` if it is not there."""
        with self._changed:
            lane = self.lanes.get(key[:LANE_PREFIX_BYTES])
            body = lane.take(key) if lane is not None and lane.asked < key else None
        if body is None:
            body = self._table.read_chunk(key)
        if len(body) >= SMALL_CHUNK_BYTES:
            self._expect_more(key)
        return body

    def forget(self, keys: Iterable[bytes], dropped: Iterable[bytes]) -> None:
        """Chunks that a commit has changed, and prefixes that it has dropped. The layers know already.

        They are asked about whatever is kept from now on: so without `lanes` there is nothing to forget, nor to lock.
        """
        with self._changed:
            for key in keys:
                lane = self.lanes.get(key[:LANE_PREFIX_BYTES])
                if lane is not None:
                    lane.forget(key)
            for prefix in dropped:
                self._drop(prefix)

    def _drop(self, prefix: bytes) -> None:
        for lane in self.lanes.values():
            for key in [key for key in lane.bodies if key.startswith(prefix)]:
                lane.forget(key)

    def table_changed(self) -> None:
        """A layer was applied; it is still among the layers."""
        with self._changed:
            self._applied += 1
            for lane in self.lanes.values():
                lane.ended = False

    @property
    def nbytes(self) -> int:
        """How much is in memory."""
        with self._changed:
            return self._nbytes()

    def _nbytes(self) -> int:
        return sum(lane.nbytes for lane in self.lanes.values())

    def close(self) -> None:
        """Stop the thread, and forget everything."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._fetcher is not None:
            self._fetcher.join()
        self.lanes.clear()

    # What to fetch.

    def _expect_more(self, key: bytes) -> None:
        now = time.monotonic()
        with self._changed:
            lane = self._lane(key)
            lane.read_at = now
            if lane.is_low and lane not in self._wanted and self._make_room(now) and not self._stopping:
                self._wanted.append(lane)
                self.is_wanted = True
            if self.is_wanted and len(lane.bodies) <= URGENT_CHUNKS:
                self._wake()

    def before_sync(self) -> None:
        """A commit is about to wait for the disk: the right moment to fetch, if something `is_wanted`."""
        with self._changed:
            if self.is_wanted:
                self._wake()

    def _lane(self, key: bytes) -> _Lane:
        prefix = key[:LANE_PREFIX_BYTES]
        lane = self.lanes.get(prefix)
        if lane is None:
            lane = self.lanes[prefix] = _Lane(prefix, key, depth=1)
        elif key > lane.asked:
            lane.go_on(key)
        elif key < lane.asked:
            lane = self.lanes[prefix] = _Lane(prefix, key, depth=0)
        return lane

    def _make_room(self, now: float) -> bool:
        """Whether there is room for more, if need be by forgetting what seems to be of no use."""
        if len(self.lanes) > LANES_MAX or self._nbytes() >= CACHE_BYTES_MAX:
            for lane in [lane for lane in self.lanes.values() if now - lane.read_at > STALE_SECONDS]:
                del self.lanes[lane.prefix]
        return self._nbytes() < CACHE_BYTES_MAX

    def _wake(self) -> None:
        self.is_wanted = False
        if self._fetcher is None:
            self._fetcher = threading.Thread(target=self._fetch_wanted, name="penstock-read-ahead", daemon=True)
            self._fetcher.start()
        self._changed.notify_all()

    # Fetching, in the thread.

    def _fetch_wanted(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    return
                lane = self._wanted[0]
                after, applied = lane.reached, self._applied
                room = lane.room if self._nbytes() < CACHE_BYTES_MAX else 0
            with contextlib.suppress(StoreError):  # whoever reads the chunk will meet the error
                self._fetch(lane, after, room, applied)
            with self._changed:
                self._wanted.popleft()

    def _fetch(self, lane: _Lane, after: bytes, room: int, applied: int) -> None:
        keys = self._table.list_chunks(after + b"\0", prefix_end(lane.prefix), room)
        for key in keys:
            if not self._fetch_one(lane, key, applied):
                return
        with self._changed:
            lane.ended = len(keys) < room and applied == self._applied

    def _fetch_one(self, lane: _Lane, key: bytes, applied: int) -> bool:
        """Fetch a chunk; False if there is no sense in going on."""
        if self._is_hidden(key) or key <= lane.reached:
            return True
        try:
            body = self._table.read_chunk(key)
        except KeyError:
            return True
        with self._changed:
            if self._stopping or applied != self._applied or self.lanes.get(lane.prefix) is not lane:
                return False
            if key > lane.reached and not self._is_hidden(key):
                lane.keep(key, body)
            return lane.room > 0 and self._nbytes() < CACHE_BYTES_MAX
