"""The file journal: one `pwritev` and one `fdatasync` a commit, into files that were made ready beforehand.

Theory of operation. The journal is a row of *segments*, files with consecutive numbers in their names. Frames (see
`frames`) are written one after the other into the *current* segment; when the next one does not fit, the next segment
becomes current.

    retired            current          ready
    [ 4 ][ 5 ][ 6 ]    [ 7 ######   ]   [ 8          ]
    frames that the    frames, then     whole, zero-filled or recycled,
    table may miss     room             already under its name

Writing into blocks that exist changes no metadata, so `fdatasync` flushes the data and nothing else. A thread keeps
enough ready segments ahead: it renames one that was trimmed, or writes zeros into a new file. It does this before they
are needed, so that a commit does not pay for it. Zeros compete with commits for the disk, so that recycling is much
better, and up to `SPARES_MAX` trimmed segments are kept for it. They are small, so that zeros hold commits up for a
short time only, and a small store takes a small place: it has one segment, and the next is made when that begins to
fill. (Where `first_segment_bytes` is smaller than `segment_bytes`, each new one is four times larger up to there.) A
commit that is larger than a segment gets one that is made longer for it.

Disk full. The last `headroom_bytes` of what is ready are kept for commits that add no chunk: acknowledgements succeed
when sends are refused. A commit that does not fit asks the thread for one more segment, waits for the answer, and
raises `DiskFull` if there is none; nothing was written then. Since every such commit asks again, the journal recovers
by itself when space returns.

After a failed `fdatasync` the kernel may have dropped what it could not write, and says so only once. So it is never
called again on that file: the commit's outcome is not known, and every later commit is refused until the store is
opened again. Opening writes the last whole frame once more and syncs it, because a process that ended between write and
sync has left it in the page cache only.

Directory gone. A write into an open segment succeeds although the directory was moved or deleted. So the thread looks
every `CHECK_SECONDS`, and before each new segment, whether the path still leads to this journal. If it does not, every
later commit is refused with `DirectoryMoved`. What was acknowledged before is in the segments, wherever they are.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from penstock.core.storage.changes import Buffer, Changes
from penstock.store.disk import BUFFERS_PER_WRITE_MAX, Disk, File, is_full
from penstock.store.errors import ADVICE, CommitFailed, DirectoryMoved, DiskFailed, DiskFull, StoreDamaged
from penstock.store.journal.frames import ALIGNMENT, FRAMES_START, aligned, encode_frame, encode_mark, segment_header
from penstock.store.journal.walk import Walk, segment_name, segment_sequences
from penstock.store.lock import DirectoryLock, directory_moved

SEGMENT_BYTES = 4 << 20
FIRST_SEGMENT_BYTES = 4 << 20
HEADROOM_BYTES = 512 << 10
SPARES_MAX = 16
GROWTH = 4
FIRST_USE = 16
"""A segment that is filled to this part is the time to make the next one ready."""
RETRY_SECONDS = 1.0
CHECK_SECONDS = 1.0
"""How often to look whether the journal is where it was."""

log = logging.getLogger("penstock.store")

_TEMPORARY_NAME = "new.tmp"


class _Segment:
    """An open segment file, and how far it is written."""

    __slots__ = ("file", "last", "offset", "path", "sequence", "size")

    def __init__(self, file: File, path: Path, sequence: int, size: int) -> None:
        self.file = file
        self.path = path
        self.sequence = sequence
        self.size = size
        self.offset = FRAMES_START
        self.last = 0

    @property
    def free(self) -> int:
        return self.size - self.offset


class FileJournal:
    """Commits in preallocated files.

    `identity` is the store's: the journal of another store is refused. With `background=False` there is no thread, and
    segments are made ready by the commits that need them: for simulations that have to run the same way twice.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        identity: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        first_segment_bytes: int = FIRST_SEGMENT_BYTES,
        headroom_bytes: int = HEADROOM_BYTES,
        background: bool = True,
        is_expected: bool = False,
        lock: DirectoryLock | None = None,
    ) -> None:
        """`is_expected`: there was a journal before, so that it has to be there. `lock` is that of the data directory,
        if its place is to be watched.
        """
        self._lock = lock
        self._is_expected = is_expected
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._segment_bytes = aligned(max(segment_bytes, 2 * FRAMES_START))
        self._first_segment_bytes = min(aligned(first_segment_bytes), self._segment_bytes)
        self._headroom_bytes = min(headroom_bytes, self._first_segment_bytes // 4)
        self._number = 0
        self._trimmed = 0
        self._failed: CommitFailed | None = None
        self._current: _Segment | None = None
        self._retired: deque[_Segment] = deque()
        self._spares: deque[_Segment] = deque()
        self._ready: deque[_Segment] = deque()
        self._ready_bytes = 0
        self._low_bytes = 0
        self._changed = threading.Condition()
        self._wanted = False
        self._attempts = 0
        self._refusal: OSError | None = None
        self._refused_at = 0.0
        self._stopping = False
        self._worker: threading.Thread | None = None
        self._background = background

    # Opening.

    def replay(self, after: int) -> Iterator[tuple[int, Changes]]:
        """Every commit after a position, in order; then the journal is ready for `append`."""
        assert self._current is None, "a journal is replayed once"
        self._disk.make_directory(self._directory)
        self._remove_leftover()
        segments: list[_Segment] = []
        for sequence in segment_sequences(self._disk.names(self._directory)):
            path = self._directory / segment_name(sequence)
            file = self._disk.open(path, writable=True)
            segments.append(_Segment(file, path, sequence, file.size()))
        if (after or self._is_expected) and not segments:
            raise StoreDamaged(f"the journal in {self._directory} is missing: put it back. {ADVICE}")
        files = {segment.path: segment for segment in segments}
        walk = Walk(list(files), lambda path: read_segment(files[path].file, path), self._identity, after)
        try:
            for frame in walk:
                yield frame.number, frame.changes()
        except BaseException:
            for segment in segments:
                segment.file.close()
            raise
        if not segments:
            segments = [self._create_segment(1, self._first_segment_bytes)]
            walk.last_numbers = [0]
        self._take_over(segments, walk)

    def _remove_leftover(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(self._directory / _TEMPORARY_NAME)

    def _take_over(self, segments: list[_Segment], walk: Walk) -> None:
        for segment, last in zip(segments, walk.last_numbers, strict=True):
            segment.last = last
        self._number = walk.number
        self._current = segments[walk.tail]
        self._current.offset = walk.tail_offset
        frame, offset = walk.last_frame
        if frame:  # it may be in the page cache only
            _write_rest(self._current.file, [frame], len(frame), 0, offset)
            self._current.file.sync()
            self._mark(self._current)
        self._retired.extend(segments[: walk.tail])
        for segment in segments[walk.tail + 1 :]:
            self._add_ready(segment)
        self._set_low_mark(segments[-1])
        if self._background:
            self._worker = threading.Thread(target=self._keep_ready, name="penstock-journal", daemon=True)
            self._worker.start()

    # Committing.

    def append(self, changes: Changes) -> int:
        """Make a commit durable and give its position."""
        if self._failed is not None:
            raise type(self._failed)(*self._failed.args)
        number = self._number + 1
        parts, nbytes = encode_frame(changes, number, self._identity)
        size = (nbytes + ALIGNMENT - 1) & -ALIGNMENT  # `aligned`, which costs a call
        segment = self._current
        assert segment is not None, "a journal is replayed before the first append"
        if segment.size - segment.offset - size < max(ALIGNMENT, self._low_bytes - self._ready_bytes):
            segment = self._make_room(size, changes)
        try:
            if len(parts) > BUFFERS_PER_WRITE_MAX:
                parts = [b"".join(parts)]
            written = segment.file.write(parts, segment.offset)
            if written != nbytes:
                _write_rest(segment.file, parts, nbytes, written, segment.offset)
        except OSError as error:
            if is_full(error):
                raise _disk_full(self._directory, nbytes, error) from error
            raise self._fail("writing", segment, error) from error
        try:
            segment.file.sync()
        except OSError as error:
            raise self._fail("syncing", segment, error) from error
        segment.offset += size
        segment.last = self._number = number
        self._mark(segment)
        return number

    def _mark(self, segment: _Segment, *, rolled: bool = False) -> None:
        """Note behind the last frame that it is durable. That is not synced, and nothing depends on it."""
        if segment.size - segment.offset >= ALIGNMENT:
            with contextlib.suppress(OSError):
                segment.file.write((encode_mark(self._number, self._identity, rolled),), segment.offset)

    def _fail(self, doing: str, segment: _Segment, error: OSError) -> CommitFailed:
        self._failed = CommitFailed(
            f"{doing} journal segment {segment.path} failed ({error}): whether the commit was kept is not known. "
            "Open the store again before the next commit, and look at the disk."
        )
        return self._failed

    # The journal's place.

    def check_place(self) -> None:
        """Raise `DirectoryMoved` if the path no longer leads to this journal."""
        if self._lock is None:
            return
        self._lock.check()
        current = self._current
        try:
            names = self._disk.names(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError:
            return
        if current is not None and current.path.name not in names and current is self._current:
            raise directory_moved(self._directory.parent, f"{current.path} was deleted")

    def _watch_place(self) -> None:
        """Refuse every commit from now on if the journal is not where it was."""
        if self._failed is None:
            try:
                self.check_place()
            except DirectoryMoved as error:
                log.error("%s", error)
                self._failed = error

    @property
    def failure(self) -> CommitFailed | None:
        """Why every commit is refused; None if none is."""
        return self._failed

    # Room for the next frame.

    def _make_room(self, size: int, changes: Changes) -> _Segment:
        """The segment that takes the next frame, asking for a new one where that is needed."""
        kept_back = self._headroom_bytes if any(chunk is not None for chunk in changes.chunks.values()) else 0
        asked = False
        while True:
            with self._changed:
                segment = self._find_room(size, kept_back)
                if segment is not None:
                    self._want_segment_if_low()
                    return segment
                if asked and self._refusal is not None:
                    raise self._refused(size, self._refusal) from self._refusal
                self._ask_for_segment()
                asked = True

    def _ask_for_segment(self) -> None:
        """One more attempt to make a segment ready, here or in the thread."""
        if self._worker is None:
            self._prepare_segment()
            return
        attempts = self._attempts
        self._wanted = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._attempts != attempts)

    def _find_room(self, size: int, kept_back: int) -> _Segment | None:
        current = self._current
        assert current is not None
        if size + ALIGNMENT <= current.free:  # behind the frame goes its mark
            return current if current.free - size + self._ready_bytes >= kept_back else None
        if not self._ready or self._ready_bytes - min(size, self._ready[0].free) < kept_back:
            return None
        return self._roll(current, size)

    def _roll(self, current: _Segment, size: int) -> _Segment:
        segment = self._ready[0]
        if size + ALIGNMENT > segment.free:
            self._lengthen(segment, size + ALIGNMENT)
        self._ready.popleft()
        self._ready_bytes -= segment.free
        self._mark(current, rolled=True)
        self._retired.append(current)
        self._current = segment
        return segment

    def _lengthen(self, segment: _Segment, size: int) -> None:
        before = segment.size
        try:
            segment.file.reserve(FRAMES_START + size, zeros=False)  # the frame fills it at once
        except OSError as error:
            raise self._refused(size, error) from error
        segment.size = FRAMES_START + size
        self._ready_bytes += segment.size - before

    def _refused(self, size: int, error: OSError) -> DiskFull | CommitFailed:
        if is_full(error):
            return _disk_full(self._directory, size, error)
        if self._failed is None:
            self._failed = CommitFailed(
                f"making room in {self._directory} failed ({error}). Open the store again, and look at the disk."
            )
        return type(self._failed)(*self._failed.args)

    def _want_segment_if_low(self) -> None:
        current = self._current
        assert current is not None
        if current.free + self._ready_bytes >= self._low_bytes or self._worker is None:
            return
        if self._refusal is None or time.monotonic() - self._refused_at >= RETRY_SECONDS:
            self._wanted = True
            self._changed.notify_all()

    # Segments made ready ahead.

    def _keep_ready(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._wanted or self._stopping or len(self._spares) > SPARES_MAX, CHECK_SECONDS
                )
                if self._stopping:
                    return
                wanted = self._wanted
            if wanted:
                self._prepare_segment()
            else:
                self._watch_place()
            with contextlib.suppress(OSError):
                self._remove_spares(SPARES_MAX)

    def _prepare_segment(self) -> None:
        """Make one more segment ready, and tell who waits whether it worked."""
        refusal: OSError | None = None
        segment: _Segment | None = None
        self._watch_place()
        try:
            if self._failed is not None:
                raise OSError(errno.ESTALE, str(self._failed))
            segment = self._recycle() or self._create_segment(self._next_sequence(), self._next_size())
        except OSError as error:
            refusal = error
        except Exception as error:  # nobody waits in vain for a thread that is gone
            refusal = OSError(errno.EIO, f"{type(error).__name__}: {error}")
        with self._changed:
            if segment is not None:
                self._add_ready(segment)
                self._set_low_mark(segment)
            self._refusal = refusal
            self._refused_at = time.monotonic()
            self._wanted = False
            self._attempts += 1
            self._changed.notify_all()

    def _newest(self) -> _Segment:
        with self._changed:
            newest = self._ready[-1] if self._ready else self._current
        assert newest is not None
        return newest

    def _next_sequence(self) -> int:
        return self._newest().sequence + 1

    def _next_size(self) -> int:
        return min(self._segment_bytes, max(self._newest().size, self._first_segment_bytes) * GROWTH)

    def _add_ready(self, segment: _Segment) -> None:
        self._ready.append(segment)
        self._ready_bytes += segment.free

    def _set_low_mark(self, newest: _Segment) -> None:
        """How much has to be ready, at least: nearly a whole segment."""
        self._low_bytes = newest.size - newest.size // FIRST_USE

    def _create_segment(self, sequence: int, size: int) -> _Segment:
        temporary = self._directory / _TEMPORARY_NAME
        path = self._directory / segment_name(sequence)
        file = self._disk.open(temporary, writable=True, create=True)
        try:
            file.reserve(size)
            file.write([segment_header(self._identity)], 0)
            file.sync()
            self._disk.rename(temporary, path)
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                self._remove_leftover()
            raise
        return _Segment(file, path, sequence, size)

    def _recycle(self) -> _Segment | None:
        """Give a trimmed segment a new number. What it holds stays, and is known by its lower commit numbers."""
        with self._changed:
            segment = self._spares[0] if self._spares else None
        if segment is None or not self._fits_again(segment):
            return None
        sequence = self._next_sequence()
        path = self._directory / segment_name(sequence)
        self._disk.rename(segment.path, path)
        segment.path = path
        self._disk.sync_directory(self._directory)
        with self._changed:
            self._spares.popleft()
        return _Segment(segment.file, path, sequence, segment.size)

    def _fits_again(self, segment: _Segment) -> bool:
        return segment.size == self._segment_bytes or self._next_size() <= segment.size < self._segment_bytes

    # Trimming.

    def trim(self, position: int) -> None:
        """Forget the commits up to a position: their segments are used again, or removed."""
        with self._changed:
            self._trimmed = max(self._trimmed, position)
            while self._retired and self._retired[0].last <= position:
                self._spares.append(self._retired.popleft())
            self._changed.notify_all()
        if self._worker is None:
            self._remove_spares(SPARES_MAX)

    def _remove_spares(self, keep: int) -> None:
        while True:
            with self._changed:
                unfit = bool(self._spares) and not self._fits_again(self._spares[0])
                if not unfit and len(self._spares) <= keep:
                    return
                segment = self._spares.popleft()
            segment.file.close()
            self._disk.remove(segment.path)
            self._disk.sync_directory(self._directory)

    @property
    def nbytes(self) -> int:
        """How much of the disk the journal takes."""
        with self._changed:
            kept = [*self._retired, *self._spares, *self._ready]
            return sum(segment.size for segment in kept) + (self._current.size if self._current else 0)

    def close(self) -> None:
        """Stop the thread, remove what was trimmed, and close the files.

        When everything was trimmed, one small segment stays: a closed store takes little room, and opens fast.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()
        self._watch_place()
        with contextlib.suppress(OSError):
            self._remove_spares(0)
            self._start_small()
        for segment in [*self._retired, *self._spares, *self._ready]:
            segment.file.close()
        if self._current is not None:
            self._current.file.close()
        self._retired.clear()
        self._spares.clear()
        self._ready.clear()
        self._current = None
        self._failed = CommitFailed("the store is closed")

    def _start_small(self) -> None:
        current = self._current
        if current is None or self._failed is not None or self._number > self._trimmed or self._retired:
            return
        superfluous = [*self._ready]
        if current.size > self._first_segment_bytes:
            self._create_segment(self._next_sequence(), self._first_segment_bytes).file.close()
            superfluous.append(current)
        for segment in superfluous:
            self._disk.remove(segment.path)
        self._disk.sync_directory(self._directory)


def _write_rest(file: File, parts: list[Buffer], nbytes: int, written: int, offset: int) -> None:
    """Write what is left of a frame at an offset, of which so much is written."""
    frame = memoryview(b"".join(parts))
    assert len(frame) == nbytes, "a chunk's nbytes is not the length of its parts"
    while written < nbytes:
        written += file.write([frame[written:]], offset + written)


def read_segment(file: File, path: Path) -> bytes:
    """All of a segment; `DiskFailed` if the disk does not give it."""
    try:
        return file.read(file.size(), 0)
    except OSError as error:
        raise DiskFailed(
            f"journal segment {path} cannot be read ({error.strerror or error}): look at the disk. Nothing was changed."
        ) from error


def _disk_full(directory: Path, nbytes: int, error: OSError) -> DiskFull:
    return DiskFull(
        f"no room for a commit of {nbytes} bytes in {directory} ({error.strerror or error}). It was not written; what "
        "was committed before is safe. Free some space and try again: no restart is needed."
    )
