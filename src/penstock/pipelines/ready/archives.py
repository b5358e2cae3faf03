"""Archives: directories that `archive.py` fills. Here one is begun and read, and its small files are joined.

Besides the rows, an archive holds under `_penstock` what it is an archive of, and the stream's state: so to go on is to
run the same again.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.core.errors import NotFound
from penstock.pipelines.checkpoints import State
from penstock.pipelines.definition import Pipeline
from penstock.pipelines.errors import IncompatibleCheckpoint
from penstock.pipelines.lakes import open_iceberg
from penstock.pipelines.landing import JOINED_BYTES, OWN, SMALL_BYTES, SMALL_FILES, Landing, write_json
from penstock.pipelines.locations import local
from penstock.pipelines.ready import ready_pipeline, take_over

FORMATS = ("parquet", "delta", "iceberg")
SCHEMA = (
    "queue string, date date, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ICEBERG_TABLE = "penstock.archive"


def archive_pipeline(
    path: str | Path, queues: Sequence[str] = (), pattern: str | None = None, format: str = "parquet", **more: str
) -> tuple[Pipeline, State]:
    """The pipeline that begins an archive or goes on with one, and its state. The first batch settles what it holds."""
    landing, named = Landing(Path(path)), ",".join(queues)
    given = {"queues": named, "pattern": pattern or "", "path": ".", "format": format, **more}
    pipeline = ready_pipeline("archive", f"archive-{pattern or named}", given, landing.path)
    wanted = {"format": format, **({"subscribePattern": pattern} if pattern else {"subscribe": named})}
    state, about = State(landing.own / "state"), landing.own / "archive.json"
    with state.locked(), landing.opened():
        checkpoint = take_over(landing.own / "checkpoint", state, "archive")
        if not any((checkpoint / "offsets").glob("[0-9]*")):
            shutil.rmtree(landing.own / "state" / "checkpoints", ignore_errors=True)
            (landing.own / "state" / "pipeline.json").unlink(missing_ok=True)
            write_json(about, wanted)
        elif (found := json.loads(about.read_text())) != wanted:
            raise IncompatibleCheckpoint(
                f"{landing.path} is an archive of {_told(found)}, and not of {_told(wanted)}: use another "
                "directory, or archive the same as before"
            )
    return pipeline, state


def _told(archive: dict[str, Any]) -> str:
    what = archive.get("subscribe") or f"queues like {archive.get('subscribePattern')}"
    return f"{what} as {archive['format']}"


def compact(path: str | Path) -> int:
    """Join small files of an archive, where there are many. Returns how many went."""
    with Landing(Path(path)).opened() as landing:
        match json.loads((landing.own / "archive.json").read_text())["format"]:
            case "parquet":
                return landing.compact()
            case "iceberg":
                return compact_iceberg(landing.path)
        from deltalake import DeltaTable

        if DeltaTable.is_deltatable(str(landing.path)):
            return int(DeltaTable(str(landing.path)).optimize.compact()["numFilesRemoved"])
        return 0


def compact_iceberg(path: Path, *, small_bytes: int = SMALL_BYTES, small_files: int = SMALL_FILES) -> int:
    """Join small files of an archive's table, where there are many. Returns how many went.

    Files of one queue and date hold ranges of offsets that do not overlap: so those between two larger files are all
    that a range of offsets has, and are replaced in one commit by what they hold. Older snapshots keep them. Ranges of
    a queue with several partitions do overlap: there, files are joined only if no others lie among them.
    """
    with open_iceberg(path) as catalog:
        if not catalog.table_exists(ICEBERG_TABLE):
            return 0
        table = catalog.load_table(ICEBERG_TABLE)
        groups = list(_small_groups(table, small_bytes, small_files))
        return sum(_join_iceberg(table, group) for group in groups)


class _File(NamedTuple):
    """A file of an Iceberg table: the part of a queue and date that it holds."""

    queue: str
    days: int
    first: int
    last: int
    size: int


def _small_groups(table: Any, small_bytes: int, small_files: int) -> Iterator[list[_File]]:
    """Neighbours that are small, of each queue and date that has many small files."""
    parts: dict[tuple[str, int], list[_File]] = {}
    for file in sorted(_iceberg_files(table)):
        parts.setdefault((file.queue, file.days), []).append(file)
    for files in parts.values():
        if sum(file.size < small_bytes for file in files) < small_files:
            continue
        group: list[_File] = []
        groups: list[list[_File]] = []
        for file in files:
            if group and (file.size >= small_bytes or sum(each.size for each in group) >= JOINED_BYTES):
                groups.append(group)
                group = []
            if file.size < small_bytes:
                group.append(file)
        yield from (each for each in [*groups, group] if _is_alone(each, files))


def _is_alone(group: list[_File], files: list[_File]) -> bool:
    """Whether no other file holds offsets among those of a group: they would all have to be read for it."""
    if not group:
        return False
    first, last = group[0].first, max(file.last for file in group)
    return sum(file.first <= last and file.last >= first for file in files) == len(group)


def _iceberg_files(table: Any) -> Iterator[_File]:
    from pyiceberg.conversions import from_bytes

    offset = table.schema().find_field("offset")
    for task in table.scan().plan_files():
        file = task.file
        bounds = (file.lower_bounds[offset.field_id], file.upper_bounds[offset.field_id])
        first, last = (int(from_bytes(offset.field_type, bound)) for bound in bounds)
        yield _File(file.partition[0], file.partition[1], first, last, file.file_size_in_bytes)


def _join_iceberg(table: Any, files: list[_File]) -> int:
    from pyiceberg import expressions

    made: Any = expressions
    if len(files) < 2:
        return 0
    held = made.And(
        made.EqualTo("queue", files[0].queue),
        made.EqualTo("date", dt.date(1970, 1, 1) + dt.timedelta(days=files[0].days)),
        made.GreaterThanOrEqual("offset", files[0].first),
        made.LessThanOrEqual("offset", max(file.last for file in files)),
    )
    rows = table.scan(row_filter=held).to_arrow().sort_by("offset")
    table.overwrite(rows, overwrite_filter=held)
    return len(files)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_archive(spark: Any, path: str | Path) -> Any:
    """An archive as a frame, whatever its format: queue, date, offset, timestamp, key, value, headers."""
    place = local(path, "an archive").resolve()
    about = place / OWN / "archive.json"
    if not about.exists():
        raise NotFound(f"{place} is not an archive: `penstock pipeline run archive` makes one")
    format = json.loads(about.read_text())["format"]
    files = _files(place, format)
    if files is not None and not files:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA)
    if files is None:
        return reader.parquet(str(place))
    return (reader.option("basePath", str(place)) if format == "delta" else reader).parquet(*files)


def _files(place: Path, format: str) -> list[str] | None:
    """The files of a table; None if all that is there belongs to it."""
    if format == "parquet":
        return None if any(place.glob("queue=*")) else []
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(place)).file_uris() if DeltaTable.is_deltatable(str(place)) else []
    with open_iceberg(place) as catalog:
        if not catalog.table_exists(ICEBERG_TABLE):
            return []
        return [each.file.file_path for each in catalog.load_table(ICEBERG_TABLE).scan().plan_files()]
