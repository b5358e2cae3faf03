"""Pieces that wait to be published: files beside the store, until one commit sends them all.

How it works. A writer (a Spark task) puts its messages as pieces (`wire/pieces.py`) under a token that it shares with
the other tasks of the same write. A piece goes into its file while it comes, is looked at there, and gets its name if
it is good: that takes little memory, and always the same. Nothing of it is sent yet. When all tasks are done, the
driver names the pieces of those that counted, and they are sent in one commit, which also holds the mark of the work:
so it is done once, however often it is asked for. The files are mapped into memory for that, not read: the bodies go
from the page cache to the journal.

The files are not synced. The commit holds the bodies themselves, so that a crash before it loses only pieces of work
that was not done, and whose writer does it again; a piece that a power failure has torn fails its checksum. See
`docs/adr/0014-spark-writes-are-staged-and-marked.md`.

What nobody publishes is dropped by `abort`, by age, and when the server starts with pieces that are too old.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from penstock.core.errors import InvalidRequest, NotFound, OverLimit
from penstock.server.auth import owner_of

PIECE_BYTES_MAX = 32 * 1024 * 1024
BUFFERS_PER_WRITE_MAX = 1_024
STAGED_BYTES_MAX = 16 * 1024 * 1024 * 1024
TOKENS_MAX = 1_000
OWNED_TOKENS_MAX = TOKENS_MAX // 8
"""Of one principal, where there are several: nobody takes the place of all others."""
AGE_S_MAX = 24 * 3_600.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUFFIX = ".piece"
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
"""For nobody else, as all that is kept."""
_ASIDE = ".dropped-"
"""No token begins like this."""
_GIVEN_UP = "piece {!r} belongs to a write that was aborted meanwhile: stage it again if the write is repeated"
_NOT_THERE = "there is no piece {!r}: stage it first, or again if it has expired"
_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""Pages that are in memory already are mapped all at once."""


class PieceNotFound(NotFound):
    """A piece that was named is not there: it was never written, or was dropped as too old."""


class NewPiece:
    """A piece that is written down part by part; it is staged when it is kept."""

    def __init__(self, staging: Staging, token: str, partial: Path, path: Path) -> None:
        self._staging = staging
        self._token = token
        self._partial = partial
        self._path = path
        self._descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        self._nbytes = 0

    def write(self, parts: Sequence[bytes]) -> None:
        nbytes = sum(map(len, parts))
        self._staging.account(self._token, nbytes)
        self._nbytes += nbytes
        _write_all(self._descriptor, parts)

    def data(self) -> memoryview:
        """All that was written, mapped into memory."""
        return _mapped(self._partial, self._path.stem)

    def keep(self) -> None:
        """Stage it; one of the same name is replaced. `PieceNotFound` if its write was given up meanwhile."""
        os.close(self._descriptor)
        try:
            os.replace(self._partial, self._path)
        except FileNotFoundError:
            self._staging.account(self._token, -self._nbytes)
            raise PieceNotFound(_GIVEN_UP.format(self._path.stem)) from None

    def discard(self) -> None:
        """It is not good, or did not come to its end. If it was the only one, nothing is left of its token."""
        os.close(self._descriptor)
        self._partial.unlink(missing_ok=True)
        self._staging.account(self._token, -self._nbytes)
        self._staging.forget_empty(self._token)


class Staging:
    """Pieces by token. Every method may be called from any thread."""

    def __init__(self, root: Path, *, bytes_max: int = STAGED_BYTES_MAX, age_s_max: float = AGE_S_MAX) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._age_s_max = age_s_max
        self._lock = threading.RLock()
        self._sizes: dict[str, int] = {}
        """Bytes of each token."""
        if root.is_dir():
            with contextlib.suppress(PermissionError):  # of another user, who has let us in
                root.chmod(DIRECTORY_MODE)
        for directory in root.iterdir() if root.is_dir() else ():
            if directory.name.startswith(_ASIDE):  # the server ended before it was removed
                remove(directory)
                continue
            if _is_removed(directory):
                continue
            self._sizes[directory.name] = sum(file.stat().st_size for file in directory.iterdir())
        self.drop_old()

    @property
    def nbytes(self) -> int:
        return sum(self._sizes.values())

    def begin(self, token: str, piece: str) -> NewPiece:
        """A piece that is going to be written."""
        directory = self._directory(token)
        _check_name(piece, "piece")
        partial = directory / f"{piece}.{uuid.uuid4().hex}.partial"
        with self._lock:  # or `forget_empty` could come in between
            self.account(token, 0)
            try:
                self._root.mkdir(DIRECTORY_MODE, exist_ok=True)  # not those above: they may be gone, and are not ours
                directory.mkdir(DIRECTORY_MODE, exist_ok=True)
                return NewPiece(self, token, partial, directory / (piece + _SUFFIX))
            except FileNotFoundError:  # the token was dropped just now
                self.forget_empty(token)
                raise PieceNotFound(_GIVEN_UP.format(piece)) from None
            except BaseException:
                self.forget_empty(token)
                raise

    def account(self, token: str, nbytes: int) -> None:
        """So many bytes more. `OverLimit` if that is too much."""
        with self._lock:
            if token not in self._sizes:
                self._check_room(token)
            if nbytes > 0 and self.nbytes + nbytes > self._bytes_max:
                raise OverLimit(f"more than {self._bytes_max} bytes would be staged: publish or abort something first")
            if nbytes >= 0 or token in self._sizes:  # what was dropped counts no more
                self._sizes[token] = max(0, self._sizes.get(token, 0) + nbytes)

    def _check_room(self, token: str) -> None:
        if len(self._sizes) >= TOKENS_MAX:
            raise OverLimit(f"{TOKENS_MAX} writes are staged already: publish or abort some first")
        owner = owner_of(token)
        if owner is not None and sum(owner_of(each) == owner for each in self._sizes) >= OWNED_TOKENS_MAX:
            raise OverLimit(f"you have {OWNED_TOKENS_MAX} writes staged already: publish or abort some of yours first")

    def forget_empty(self, token: str) -> None:
        with self._lock:
            if _is_removed(self._directory(token)):
                self._sizes.pop(token, None)

    def size(self, token: str, piece: str) -> int:
        """How many bytes a piece has. `PieceNotFound` if it is not there."""
        try:
            return (self._directory(token) / (_check_name(piece, "piece") + _SUFFIX)).stat().st_size
        except FileNotFoundError:
            raise PieceNotFound(_NOT_THERE.format(piece)) from None

    def open(self, token: str, pieces: list[str]) -> list[memoryview]:
        """Pieces, mapped into memory. They stay readable when the token is dropped."""
        directory = self._directory(token)
        return [_mapped(directory / (_check_name(piece, "piece") + _SUFFIX), piece) for piece in pieces]

    def drop(self, token: str) -> None:
        """Forget everything under a token; one that is not known is fine."""
        remove(self.set_aside(token))

    def set_aside(self, token: str) -> Path:
        """Forget everything under a token, which may be used anew at once; its files are left to `remove`."""
        aside = self._root / f"{_ASIDE}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._directory(token), aside)
        with self._lock:
            self._sizes.pop(token, None)
        return aside

    def drop_old(self) -> None:
        """Forget what has not changed for too long."""
        oldest_s = time.time() - self._age_s_max
        for token in list(self._sizes):
            try:
                is_old = self._directory(token).stat().st_mtime < oldest_s
            except FileNotFoundError:  # dropped, while one of its pieces was on its way
                is_old = True
            if is_old:
                self.drop(token)

    def _directory(self, token: str) -> Path:
        return self._root / _check_name(token, "token")


def remove(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)


def _is_removed(directory: Path) -> bool:
    """Whether a directory is gone: if there is nothing in it, it goes now."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write_all(descriptor: int, parts: Sequence[bytes]) -> None:
    for low in range(0, len(parts), BUFFERS_PER_WRITE_MAX):
        some = parts[low : low + BUFFERS_PER_WRITE_MAX]
        nbytes = sum(map(len, some))
        written = os.writev(descriptor, some)
        if written < nbytes:  # by a signal, or because the disk is full, which the next one says
            rest = memoryview(b"".join(some))
            while written < nbytes:
                written += os.write(descriptor, rest[written:])


def _check_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"the {what} {name[:50]!r} must have 1 to 128 letters, digits, '-' or '_'")
    return name


def _mapped(path: Path, piece: str) -> memoryview:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, flags=_FLAGS, prot=mmap.PROT_READ))
    except FileNotFoundError:
        raise PieceNotFound(_NOT_THERE.format(piece)) from None
