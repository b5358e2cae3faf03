"""Directories with several stores. Earlier builds made them, with `penstock serve --workers N`:

data/cluster.json   how many shards there are, what their names and receipts are made of; never changes
data/shard-<i>      the store of shard i
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock.store.errors import StoreDamaged, StoreVersion

FORMAT = 1
ENTROPY_BYTES = 64
SECRET_BYTES = 32


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in `cluster.json`."""

    format: int
    shards: int
    entropy: bytes
    """Of which every shard makes the same realm and secret."""
    secret: bytes
    """By which the processes knew each other that shared the directory."""

    def __repr__(self) -> str:
        return f"ClusterFile(shards={self.shards})"


def shard_directory(data: Path, index: int) -> Path:
    """Where a shard's store is."""
    return data / f"shard-{index}"


def read_cluster_file(path: Path) -> ClusterFile:
    """What a directory was made with."""
    try:
        version = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).get("format")
        if version is None or msgspec.json.decode(version) != FORMAT:
            raise StoreVersion(
                f"{path} has a format that this version of Penstock does not know: use the version that wrote it"
            )
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path} cannot be read: {error}") from None


def write_cluster_file(path: Path, made: ClusterFile) -> None:
    """Whole or not at all, and durable before anything depends on it; for nobody else's eyes."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(made) + b"\n")
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
