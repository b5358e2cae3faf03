"""Bodies to send: from the command line, from files, from standard input; whole or cut at a separator.

What comes from files or standard input may be larger than memory. It is read piece by piece and given on in runs: so
many messages, or so many bytes, whichever comes first.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.core.errors import InvalidRequest

RUN_MESSAGES = 1_000
RUN_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
"""The most that any queue takes."""

STDIN = Path("-")


def runs_of(bodies: Iterable[bytes], messages: int = RUN_MESSAGES, size: int = RUN_BYTES) -> Iterator[list[bytes]]:
    """Bodies gathered into runs.

    >>> [len(run) for run in runs_of([b"x"] * 5, messages=2)], [len(run) for run in runs_of([b"xxx"] * 3, size=4)]
    ([2, 2, 1], [1, 1, 1])
    """
    run: list[bytes] = []
    held = 0
    for body in bodies:
        if run and (len(run) == messages or held + len(body) > size):
            yield run
            run, held = [], 0
        run.append(body)
        held += len(body)
    if run:
        yield run


def from_files(paths: Iterable[Path], separator: bytes | None) -> Iterator[list[bytes]]:
    """What files hold, in runs: each file one body, or cut at each separator. `-` is standard input."""
    for path in paths:
        with opened(path) as stream:
            if separator is None:
                yield [whole(stream, path)]
                continue
            for bodies in cut(stream, separator):
                yield from runs_of(bodies)


def whole(stream: BinaryIO, path: Path) -> bytes:
    """Everything, as one body."""
    body = stream.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise InvalidRequest(f"{path} is larger than any message may be: cut it with --lines or --null")
    return body


def cut(stream: BinaryIO, separator: bytes, piece_bytes: int = _PIECE_BYTES) -> Iterator[list[bytes]]:
    r"""What stands between separators (one byte each), as it comes: a slow pipe is not waited for.

    >>> list(cut(io.BytesIO(b"tea\ncake\n\nend"), b"\n", piece_bytes=6))
    [[b'tea'], [b'cake', b''], [b'end']]
    """
    read = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []
    while piece := read(piece_bytes):
        first, *others = piece.split(separator)
        begun.append(first)
        if not others:
            _check_length(begun)
            continue
        yield [b"".join(begun), *others[:-1]]
        begun = [others[-1]]
    if last := b"".join(begun):
        yield [last]


def _check_length(begun: list[bytes]) -> None:
    if sum(map(len, begun)) > BODY_BYTES_MAX:
        raise InvalidRequest(
            f"the input has no separator for more than {BODY_BYTES_MAX:,} bytes: no message is so large"
        )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, or standard input."""
    if path != STDIN:
        with path.open("rb") as stream:
            yield stream
        return
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: give bodies, or --file")
    if sys.stdin.isatty():
        print("penstock: reading from the terminal; Ctrl-D ends the input", file=sys.stderr)
    yield getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())


def size_of(paths: Iterable[Path]) -> int | None:
    """How many bytes there are to read, if that is known."""
    total = 0
    for path in paths:
        if path == STDIN or not path.is_file():
            return None
        total += path.stat().st_size
    return total
