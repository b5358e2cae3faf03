"""A disk in memory that can lose power, run full, fail and be slow.

It knows what was synced and what was not. `crash(seed)` gives the disk as it would be found after a power failure:
every write that was not synced is kept, lost or torn (some of its 512-byte sectors kept, some lost), and of the
renames, creations and removals that were not synced a first part is kept. The same seed gives the same disk.

    disk = FaultyDisk()
    disk.power_fails_at = 17            # the 17th operation from the start does not return
    ... run until PowerLost ...
    disk = disk.crash(seed=4)           # and open again from what is left
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from penstock.core.storage.changes import Buffer

SECTOR_BYTES = 512


class PowerLost(OSError):
    """The power failed within this operation. It may have been done, or not, or in part."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is gone")


class _Inode:
    """A file's content: what is on the platters, and what was written since."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.current = bytearray(durable)
        self.unsynced: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.current):
            self.current.extend(bytes(end - len(self.current)))
        self.current[offset:end] = data
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        self.durable = bytes(self.current)
        self.unsynced.clear()

    def after_crash(self, random: Random) -> _Inode:
        found = bytearray(self.durable)
        for offset, data in self.unsynced:
            fate = random.choice(("kept", "lost", "torn"))
            for start, sector in _sectors(offset, data):
                if fate == "kept" or (fate == "torn" and random.random() < 0.5):
                    found.extend(bytes(max(0, start + len(sector) - len(found))))
                    found[start : start + len(sector)] = sector
        return _Inode(bytes(found))


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        pieces.append((offset + start, data[start:end]))
        start = end
    return pieces


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, inode: _Inode, path: Path) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(buffers)
        data = data[: self._disk.write_bytes_max] if self._disk.write_bytes_max else data
        self._disk.take(max(0, offset + len(data) - len(self._inode.current)))
        self._disk.step("write", self._path, lambda: self._inode.write(data, offset))
        return len(data)

    def read(self, size: int, offset: int) -> bytes:
        self._disk.step("read", self._path)
        return bytes(self._inode.current[offset : offset + size])

    def sync(self) -> None:
        self._disk.step("sync", self._path)
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.current)

    def reserve(self, size: int, *, zeros: bool = True) -> None:
        before = len(self._inode.current)
        if size > before:
            self._disk.take(size - before)
            self._disk.step("reserve", self._path, lambda: self._inode.write(bytes(size - before), before))

    def close(self) -> None:
        pass


class FaultyDisk:
    """Files in memory; see the module."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.power_fails_at: int | None = None
        """The number of the operation in which the power fails."""
        self.write_bytes_max: int | None = None
        """Take no more than this many bytes at once, as the kernel may."""
        self.on_operation: Callable[[str, Path], None] = lambda operation, path: None
        """Called before each operation: raise to make it fail, or let a clock go on to make it slow."""
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._unsynced_names: list[Callable[[dict[Path, _Inode]], object]] = []

    def step(self, operation: str, path: Path, effect: Callable[[], None] = lambda: None) -> None:
        """One operation: it may fail, or be the last."""
        self.on_operation(operation, path)
        self.operations += 1
        if self.power_fails_at is not None and self.operations >= self.power_fails_at:
            if self.operations == self.power_fails_at:
                effect()
            raise PowerLost
        effect()

    def take(self, size: int) -> None:
        """Refuse when the disk would be overfull."""
        if size > 0 and self.used_bytes + size > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.current) for inode in self._names.values())

    def crash(self, seed: int) -> FaultyDisk:
        """The disk as it is found when the power is back."""
        random = Random(seed)
        names = dict(self._durable_names)
        for change in self._unsynced_names[: random.randint(0, len(self._unsynced_names))]:
            change(names)
        found = FaultyDisk(self.capacity_bytes)
        found._names = {path: inode.after_crash(random) for path, inode in names.items()}
        found._durable_names = dict(found._names)
        return found

    def damage(self, path: Path, offset: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte, durably."""
        inode = self._names[path]
        inode.current[offset] ^= mask
        inode.sync()

    def _rename_now(self, change: Callable[[dict[Path, _Inode]], object]) -> None:
        change(self._names)
        self._unsynced_names.append(change)

    # The interface of `penstock.store.disk.Disk`.

    def open(self, path: Path, *, writable: bool, create: bool = False) -> _FaultyFile:
        if create:
            inode = _Inode()
            self.step("create", path, lambda: self._rename_now(lambda names: names.__setitem__(path, inode)))
        elif path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return _FaultyFile(self, self._names[path], path)

    def names(self, directory: Path) -> list[str]:
        return [path.name for path in self._names if path.parent == directory]

    def make_directory(self, directory: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        if source not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))

        def change(names: dict[Path, _Inode]) -> None:
            names[target] = names.pop(source)

        self.step("rename", source, lambda: self._rename_now(change))

    def remove(self, path: Path) -> None:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self.step("remove", path, lambda: self._rename_now(lambda names: names.pop(path)))

    def sync_directory(self, directory: Path) -> None:
        self.step("sync directory", directory)
        self._durable_names = dict(self._names)
        self._unsynced_names.clear()

    def free_bytes(self, directory: Path) -> int:
        return self.capacity_bytes - self.used_bytes
