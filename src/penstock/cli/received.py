"""Received messages on their way out: printed, acknowledged as far as they are out, the rest given back.

A pipe takes 64 KB that nobody has read yet, so a message that was written is not yet a message that somebody has. Into
a pipe the messages go one by one: the next one when the reader has taken the last. A reader that goes (`| head -2`)
leaves the rest in the queue. A reader that is slow holds the rest back, under a lease that is kept.
"""

from __future__ import annotations

import array
import fcntl
import io
import os
import select
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from penstock.cli.exits import ReaderGone
from penstock.cli.output import for_people
from penstock.tables import table

if TYPE_CHECKING:
    from penstock import Batch

FIRST_LOOK_SECONDS = 0.3
"""A reader that is slower than this has its messages kept for it."""

Pieces = Iterable[tuple[bytes, int]]
"""What is to be written, and how many messages are out with each piece."""
Write = Callable[[list[dict[str, Any]], list[bytes]], Iterator[int]]
"""Writes messages, and says again and again how many of them are out."""


class Reader:
    """Who reads our output through a pipe, if it is a pipe."""

    PAUSE_SECONDS_MAX = 0.005
    TURN_SECONDS = 0.1
    """How often a caller that waits for the reader gets its turn."""

    def __init__(self, stream: IO[bytes]) -> None:
        try:
            self._number = stream.fileno()
            self.is_on_a_pipe = stat.S_ISFIFO(os.fstat(self._number).st_mode)
        except (OSError, ValueError):
            self.is_on_a_pipe = False
            return
        self._end = select.poll()
        self._end.register(self._number, 0)

    def takes(self) -> Iterator[None]:
        """Wait until it has taken all that was written. `ReaderGone` if it goes and leaves something in the pipe."""
        pause, turn_at = 0.0, time.monotonic() + self.TURN_SECONDS
        unread = array.array("i", [0])
        while self.is_on_a_pipe:
            fcntl.ioctl(self._number, termios.FIONREAD, unread)
            if not unread[0]:
                return
            if self._end.poll(0):
                raise ReaderGone
            time.sleep(pause)
            pause = min(max(2 * pause, 0.00001), self.PAUSE_SECONDS_MAX)
            if time.monotonic() >= turn_at:
                yield
                turn_at = time.monotonic() + self.TURN_SECONDS


class Held:
    """A batch that is being printed. When the block ends, what is out is acknowledged and the rest is given back."""

    def __init__(self, batch: Batch, *, ack: bool, lease: Callable[[], float]) -> None:
        self._batch = batch
        self._ack = ack
        self._lease = lease
        self._out = self._settled = 0
        self._look_at = time.monotonic() + FIRST_LOOK_SECONDS

    def are_out(self, count: int) -> None:
        """So many of the messages are out. At times these are acknowledged, and the lease of the others is extended."""
        self._out = count
        if self._ack and time.monotonic() >= self._look_at:
            self._acknowledge()
            lease = self._lease()
            if lease > 0:
                self._batch[count:].extend(lease)
            self._look_at = time.monotonic() + lease / 3

    def _acknowledge(self) -> None:
        done, self._settled = self._settled, self._out
        if self._ack:
            self._batch[done : self._out].ack()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._acknowledge()
            return
        from penstock import PenstockError

        with suppress(PenstockError):  # what cannot be settled now comes again when its lease ends
            self._acknowledge()
            self._batch[self._out :].give_back()


@contextmanager
def writer(output: Path | None, *, as_json: bool, raw: bool, end: bytes, title: str) -> Iterator[Write]:
    """How received messages are put out: a table, JSON, or bare bodies; on standard output or in a file."""
    if output is None:
        pieces = _bodies(end) if raw else _json if as_json else _table(title)
        yield lambda rows, bodies: _put(pieces(rows, bodies))
        return
    pieces = _json if as_json else _bodies(end)
    with output.open("ab", buffering=0) as file:
        yield lambda rows, bodies: _append(file, b"".join(piece for piece, _ in pieces(rows, bodies)), len(bodies))


def _put(pieces: Pieces) -> Iterator[int]:
    """Write to standard output: at once, or into a pipe as its reader takes it."""
    sys.stdout.flush()
    stream: BinaryIO = sys.stdout.buffer
    reader = Reader(stream)
    out = 0
    if not reader.is_on_a_pipe:
        text, counts = zip(*pieces, strict=True)
        pieces = [(b"".join(text), sum(counts))]
    for piece, count in pieces:
        stream.write(piece)
        stream.flush()
        for _ in reader.takes():
            yield out
        out += count
        yield out


def _append(file: io.FileIO, data: bytes, count: int) -> Iterator[int]:
    """Write to a file, and have it on the disk."""
    size = os.fstat(file.fileno()).st_size
    left = memoryview(data)
    try:
        while left:  # a disk that is nearly full takes a part, and says only then that it is full
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except BaseException:  # they come again: half of them would be taken for the start of what comes next
        with suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise
    yield count


def _bodies(end: bytes) -> Callable[[list[dict[str, Any]], list[bytes]], Pieces]:
    return lambda rows, bodies: [(body + end, 1) for body in bodies]


def _json(rows: list[dict[str, Any]], bodies: list[bytes]) -> Pieces:
    import msgspec

    return [(msgspec.json.encode(row) + b"\n", 1) for row in rows]


def _table(title: str) -> Callable[[list[dict[str, Any]], list[bytes]], Pieces]:
    """A table is out when its last line is."""

    def pieces(rows: list[dict[str, Any]], bodies: list[bytes]) -> Pieces:
        text = table([for_people(row) for row in rows], title)
        lines = text.encode(sys.stdout.encoding, "backslashreplace").splitlines(keepends=True)
        return chain(((line, 0) for line in lines), [(b"", len(rows))])

    return pieces
