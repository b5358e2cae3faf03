"""A real file system of a few megabytes, for a broker whose disk shall be full. To mount it takes root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_BYTES = 128 << 20
_PIECE_BYTES = 1 << 16


class MountRefused(Exception):
    """No file system can be mounted here; the text says why."""


class SmallDisk:
    """What can be done to it: somebody else takes all the space, and gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Take every free block; again, those that became free since."""
        with suppress(OSError), open(self._filler, "ab", buffering=0) as filler:
            while filler.write(bytes(_PIECE_BYTES)):
                pass

    def free(self) -> None:
        """Give them back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_bytes: int = DISK_BYTES) -> Iterator[SmallDisk]:
    """A file system at this place, until the block ends. What is on it is in memory, and goes with it."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MountRefused(str(error)) from None
    if mounted.returncode != 0:
        raise MountRefused(f"mounting a small file system is not permitted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
