"""The standard streams, such that commands can rely on them whatever a shell or a container has made of them.

What was written is out of the process, or there is an error: with `PYTHONUNBUFFERED`, which containers often set,
Python's own stream drops what a full disk or a closed pipe did not take, and a received message would be acknowledged
all the same. A character that the terminal's encoding lacks is written escaped. A stream that is closed is an
error only for who needs it.
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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class NobodyReads(Exception):
    """Whoever read our output has gone. No OSError: those are told in a line of text."""


class _Output(io.FileIO):
    """Standard output as the system has it, with errors that say so."""

    def write(self, data: ReadableBuffer, /) -> int:
        """As `FileIO`: perhaps a part only. What is buffered above asks again."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise NobodyReads from None
        except OSError as error:
            raise OSError(error.errno, f"standard output: {error.strerror}") from None


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
        """Wait until it has taken all that was written. `NobodyReads` if it goes and leaves something in the pipe."""
        pause, turn_at = 0.0, time.monotonic() + self.TURN_SECONDS
        while self.is_on_a_pipe and self._unread():
            if self._end.poll(0):
                raise NobodyReads
            time.sleep(pause)
            pause = min(max(2 * pause, 0.00001), self.PAUSE_SECONDS_MAX)
            if time.monotonic() >= turn_at:
                yield
                turn_at = time.monotonic() + self.TURN_SECONDS

    def _unread(self) -> int:
        """How many bytes are in the pipe."""
        count = array.array("i", [0])
        fcntl.ioctl(self._number, termios.FIONREAD, count)
        return count[0]


@contextmanager
def dependable_streams() -> Iterator[None]:
    """Inside, standard output and the error stream are there and keep what they promise."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(
            os.open(os.devnull, os.O_WRONLY), "w"
        )  # for good: `print` would take standard output instead
    kept, sys.stdout = sys.stdout, _dependable(sys.stdout)
    try:
        yield
    finally:
        used, sys.stdout = sys.stdout, kept
        _flush(used)


def _dependable(stream: TextIO | None) -> TextIO:
    if stream is None:
        # Reading only: whoever writes is told. And no other file gets the number of standard output.
        return _text(os.open(os.devnull, os.O_RDONLY), "utf-8")
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    stream.flush()
    return _text(number, stream.encoding)


def _text(number: int, encoding: str) -> TextIO:
    buffered = io.BufferedWriter(_Output(number, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=True)


def _flush(stream: TextIO) -> None:
    """Have everything out. What cannot be written is dropped after that, or Python complains at its end once more."""
    try:
        stream.flush()
    except BaseException:
        drop_output(stream)
        raise


def drop_output(stream: TextIO) -> None:
    """Let what is still to be written go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
