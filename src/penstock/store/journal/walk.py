"""Reading a journal's files: which commits they hold, where they end, and whether anything is missing.

The files are walked in the order of their names. A commit that was being written when the power failed leaves a broken
frame, or none, and nothing whole behind it: that tail is cut. A commit is written only after the one before is durable,
so a whole frame with a higher number behind a broken one means that acknowledged bytes were damaged: that is an error,
and nothing is skipped. A mark behind the last frame says the same of that one, and says when there must be a next file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.store.errors import ADVICE, StoreDamaged
from penstock.store.journal.frames import (
    ALIGNMENT,
    FRAMES_START,
    Frame,
    check_segment_header,
    find_frame,
    find_mark,
    frames_from,
    mark_at,
)

SEGMENT_SUFFIX = ".segment"


def segment_name(sequence: int) -> str:
    """The name of a segment file.

    >>> segment_name(12)
    '000000000012.segment'
    """
    return f"{sequence:012d}{SEGMENT_SUFFIX}"


def segment_sequences(names: Sequence[str]) -> list[int]:
    """The segments among the names in a directory, in order.

    >>> segment_sequences(["000000000002.segment", "new.tmp", "000000000001.segment"])
    [1, 2]
    """
    return sorted(int(name.removesuffix(SEGMENT_SUFFIX)) for name in names if name.endswith(SEGMENT_SUFFIX))


class Walk:
    """One pass over the segments: yields every commit after a position, and ends up knowing where the next one goes."""

    def __init__(self, paths: Sequence[Path], read: Callable[[Path], bytes], identity: int, after: int) -> None:
        self.paths = paths
        self._read = read
        self._identity = identity
        self.after = after
        self.last_numbers = [0] * len(paths)
        """The number of the last frame of each segment; 0 if it has none of its own."""
        self.tail = 0
        """Which segment the next frame goes to."""
        self.tail_offset = FRAMES_START
        """Where in that segment it goes."""
        self._last = 0
        self._last_data = b""
        self._last_start = FRAMES_START
        self._last_end = FRAMES_START
        self._rolled: int | None = None
        """The segment whose mark says that the commits go on in the next one."""

    @property
    def number(self) -> int:
        """The number of the last commit, whether a file still holds it or not."""
        return max(self._last, self.after)

    @property
    def last_frame(self) -> tuple[bytes, int]:
        """The bytes of the last frame and where they are in the tail segment; none if the frame is not after the
        position.
        """
        return self._last_data[self._last_start : self._last_end], self._last_start

    def __iter__(self) -> Iterator[Frame]:
        for index, path in enumerate(self.paths):
            yield from self._walk_segment(index, path)
        if self._last < self.after:
            # Nothing here is newer than the table: the files start over.
            self.tail, self.tail_offset, self._last_data = 0, FRAMES_START, b""
        elif self._rolled == self.tail:
            (sequence,) = segment_sequences([self.paths[self.tail].name])
            following = self.paths[self.tail].with_name(segment_name(sequence + 1))
            if following not in self.paths:
                raise StoreDamaged(f"journal segment {following} is missing: later commits were there. {ADVICE}")

    def _walk_segment(self, index: int, path: Path) -> Iterator[Frame]:
        data = self._read(path)
        check_segment_header(data[:ALIGNMENT], self._identity, path)
        end = FRAMES_START
        for frame in frames_from(memoryview(data), FRAMES_START, self._identity):
            if end == FRAMES_START and not self._continues(frame, path):
                break
            end = frame.end
            self._last = self.last_numbers[index] = frame.number
            self.tail, self.tail_offset = index, end
            if frame.number > self.after:
                self._last_data, self._last_start, self._last_end = data, frame.offset, frame.offset + frame.nbytes
                yield frame
        later = find_frame(data, end, self._identity, above=self.number)
        if later is not None:
            raise self._damaged(path, end, later, path)
        durable = find_mark(data, end, self._identity, above=self.number)
        if durable is not None:
            raise StoreDamaged(
                f"journal segment {path} is damaged at byte {end}: commit {self.number + 1} is not readable there, and "
                f"commits up to {durable} were durable. {ADVICE}"
            )
        mark = mark_at(memoryview(data), end, self._identity)
        if mark == (self._last, True):
            self._rolled = index

    def _continues(self, first: Frame, path: Path) -> bool:
        """Whether a segment's first frame is its own, and not left from the file's earlier life."""
        if self._last and first.number <= self._last:
            return False
        if first.number == self._last + 1 or first.number <= self.after + 1:
            return True
        raise self._damaged(self.paths[self.tail], self.tail_offset, first, path)

    def _damaged(self, path: Path, offset: int, later: Frame, later_path: Path) -> StoreDamaged:
        missing = (self._last or self.after) + 1
        return StoreDamaged(
            f"journal segment {path} is damaged at byte {offset}: commit {missing} is not readable there, but commit "
            f"{later.number} follows at byte {later.offset} of {later_path}. Nothing was skipped. {ADVICE}"
        )
