"""Space that is kept for the hour when there is none.

To delete messages from a full disk, the table first has to write: the changed pages go to its WAL. The ballast is a
file that holds blocks for this and nothing else. When the table finds no room, the ballast is thrown out; the deletions
fit then, give pages back, and when enough is free again the ballast is taken on anew.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from penstock.store.disk import Disk

BALLAST_BYTES = 8 << 20


class Ballast:
    """A file that holds blocks, and can be let go of."""

    def __init__(self, disk: Disk, path: Path, size: int = BALLAST_BYTES) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._held = path.name in disk.names(path.parent)

    def take_on(self, disk_reserve_bytes: int) -> None:
        """Hold the blocks, if they are not held and the disk can spare them."""
        if self._held or self._disk.free_bytes(self._path.parent) < disk_reserve_bytes + self._size:
            return
        try:
            with contextlib.closing(self._disk.open(self._path, writable=True, create=True)) as file:
                file.reserve(self._size, zeros=False)
            self._held = True
        except OSError:
            self._held = True
            self.throw_out()

    def throw_out(self) -> None:
        """Give the blocks back to the disk."""
        if self._held:
            with contextlib.suppress(OSError):
                self._disk.remove(self._path)
            self._held = False
