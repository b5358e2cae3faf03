"""Rows land in directories of Parquet files: each batch once, also when the process is killed at any moment.

How it works. A batch is written to a directory of its own under `_penstock/stage`. Then a *plan* is written:
which file moves where, which files go, and what is done with that. From then on the plan is followed, by this process
or, after a crash, by the next one: moving what was moved and deleting what is gone do nothing. A batch without a plan
never happened, and its stage is swept away. File names begin with `_` or are complete Parquet files, so that readers
never see half of a file.

    <path>/queue=orders/date=2026-01-31/3f2a...-00000007-0.parquet    query, batch, number
    <path>/_penstock/stage/      being written
    <path>/_penstock/plans/      being followed
    <path>/_penstock/done.json   for each query the last batch that landed

Small files are compacted the same way: joined to a staged file, then a plan that moves it in and deletes the old ones.
Who reads at the very moment in which such a plan is followed may see the rows of these files twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.pipelines.locations import local, local_lock

OWN = "_penstock"
SMALL_BYTES = 32 * 1024 * 1024
"""Files below this are joined..."""
SMALL_FILES = 8
"""...once a directory has so many of them..."""
JOINED_BYTES = 128 * 1024 * 1024
"""...to files of about this size."""
_SPARKS: dict[str, Any] = {"compression": "snappy", "use_deprecated_int96_timestamps": True}
"""Files as Spark writes them."""
_OPEN_FILES_MAX = 128
"""Half of what macOS lets a process open."""


class Landing:
    """One directory of Parquet files, by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = local(path, "this table").resolve()
        self.own = self.path / OWN
        self._stage = self.own / "stage"
        self._plans = self.own / "plans"
        self._done = self.own / "done.json"

    @contextlib.contextmanager
    def opened(self, patience_s: float = 0.0) -> Iterator[Landing]:
        """Hold the directory; finish what a process that was killed has begun."""
        for each in (self._stage, self._plans):
            each.mkdir(parents=True, exist_ok=True)
        busy = f"another process writes to {self.path}: wait until it has ended"
        with local_lock(self.own / "lock", busy, patience_s):
            self.recover()
            yield self

    def recover(self) -> None:
        """Follow the plans that are left, and sweep away what has none."""
        for plan in sorted(self._plans.glob("*.json")):
            self._follow(plan)
        for left in (*self._plans.glob("*.part"), *self._stage.iterdir()):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    # -- batches --

    def land(self, table: Any, query: str, batch: int, partition_by: Sequence[str]) -> None:
        """Add the rows of a batch (an Arrow table), unless it has landed before."""
        if self.last_batch(query) >= batch:
            return
        stage = self._write(table, f"{query}-{batch}", partition_by)
        moves = []
        for number, file in enumerate(sorted(stage.rglob("*.parquet"))):
            target = self.path / file.parent.relative_to(stage) / f"{query[:12]}-{batch:08}-{number}.parquet"
            moves.append((file, target))
        self._plan(f"{query}-{batch}", moves, [], (query, batch))

    def replace(self, table: Any, directories: Sequence[Path], partition_by: Sequence[str]) -> None:
        """Put the rows of an Arrow table in the place of all that is in some directories."""
        name = uuid.uuid4().hex
        stage = self._write(table, name, partition_by)
        moves = [
            (file, self.path / file.parent.relative_to(stage) / f"{name[:12]}-{number}.parquet")
            for number, file in enumerate(sorted(stage.rglob("*.parquet")))
        ]
        old = [file for directory in directories for file in sorted(directory.glob("*.parquet"))]
        self._plan(name, moves, old, None)

    def last_batch(self, query: str) -> int:
        """The last batch of a query that has landed; -1 for none."""
        return int(self._batches().get(query, -1))

    def _batches(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self._done.read_text()) if self._done.exists() else {}
        return found

    def _write(self, table: Any, name: str, partition_by: Sequence[str]) -> Path:
        import pyarrow as pa
        import pyarrow.dataset as ds

        stage = self._stage / name
        shutil.rmtree(stage, ignore_errors=True)
        columns = pa.schema([table.schema.field(each) for each in partition_by])
        parted = ds.partitioning(columns, flavor="hive") if partition_by else None
        settings = ds.ParquetFileFormat().make_write_options(**_SPARKS)
        ds.write_dataset(
            table,
            stage,
            format="parquet",
            partitioning=parted,
            file_options=settings,
            max_partitions=max(1, table.num_rows),
            max_open_files=_OPEN_FILES_MAX,
        )
        return stage

    # -- plans --

    def _plan(
        self, name: str, moves: list[tuple[Path, Path]], removes: list[Path], done: tuple[str, int] | None
    ) -> None:
        for source, _ in moves:
            _sync(source)
        plan = {
            "moves": [[str(source.relative_to(self.own)), str(to.relative_to(self.path))] for source, to in moves],
            "removes": [str(each.relative_to(self.path)) for each in removes],
            "done": done,
        }
        file = self._plans / f"{name}.json"
        write_json(file, plan)
        self._follow(file)

    def _follow(self, file: Path) -> None:
        plan = json.loads(file.read_text())
        for source, to in plan["moves"]:
            target = self.path / to
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # moved before
                os.replace(self.own / source, target)
        for each in plan["removes"]:
            (self.path / each).unlink(missing_ok=True)
        for directory in {(self.path / to).parent for _, to in plan["moves"]}:
            _sync(directory)
        if plan["done"] is not None:
            query, batch = plan["done"]
            write_json(self._done, self._batches() | {query: batch})
        file.unlink()
        shutil.rmtree(self._stage / file.stem, ignore_errors=True)

    # -- small files --

    def compact(self, *, small_bytes: int = SMALL_BYTES, small_files: int = SMALL_FILES) -> int:
        """Join small files, where there are many. Returns how many went."""
        gone = 0
        for directory in sorted({file.parent for file in self.files()}):
            small = [file for file in sorted(directory.glob("*.parquet")) if file.stat().st_size < small_bytes]
            if len(small) >= small_files:
                gone += sum(self._join(directory, group) for group in _groups(small))
        return gone

    def files(self) -> list[Path]:
        """Every file of rows. What is being written comes and goes, and is not looked at."""
        below = [each for each in self.path.glob("*") if each.name != OWN]
        return [file for each in below for file in ([each] if each.suffix == ".parquet" else each.rglob("*.parquet"))]

    def _join(self, directory: Path, files: list[Path]) -> int:
        if len(files) < 2:
            return 0
        import pyarrow.parquet as pq

        name = uuid.uuid4().hex
        joined = self._stage / name / "joined.parquet"
        joined.parent.mkdir()
        with pq.ParquetWriter(joined, pq.read_schema(files[0]), **_SPARKS) as writer:
            for file in files:
                writer.write_table(pq.ParquetFile(file).read())
        self._plan(name, [(joined, directory / f"joined-{name[:12]}.parquet")], files, None)
        return len(files)


def _groups(files: list[Path]) -> Iterator[list[Path]]:
    group: list[Path] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.stat().st_size
        if size >= JOINED_BYTES:
            yield group
            group, size = [], 0
    yield group


def write_json(file: Path, content: Any) -> None:
    """Write a small file: all of it, durably, or nothing."""
    part = file.with_suffix(".part")
    with part.open("w") as stream:
        json.dump(content, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
