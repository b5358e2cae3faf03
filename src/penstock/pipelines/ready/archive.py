"""Archive: queues to Parquet files, or to a Delta or Iceberg table, by queue and date; every message once.

The archive is one directory. Besides the rows it holds, under `_penstock`, what it is an archive of, and the stream's
checkpoint: so to go on is to run the same again. The stream is a channel of the queues: what is not archived is kept.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.core.errors import InvalidRequest, NotFound
from penstock.pipelines.errors import IncompatibleCheckpoint, SparkMissing
from penstock.pipelines.lakes import append_delta, append_iceberg
from penstock.pipelines.locations import local
from penstock.pipelines.progress import Display
from penstock.pipelines.ready.landing import JOINED_BYTES, OWN, SMALL_BYTES, SMALL_FILES, Landing, write_json
from penstock.pipelines.runner import run_stream
from penstock.pipelines.where import Where

FORMATS = ("parquet", "delta", "iceberg")
PARTITION_BY = ("queue", "date")
SCHEMA = (
    "queue string, date date, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ICEBERG_TABLE = "penstock.archive"
BATCH_MESSAGES = 200_000
BATCH_BYTES = 64 * 1024 * 1024
_COLUMNS = ("topic as queue", "to_date(timestamp) as date", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class Archived:
    """What a run has done."""

    rows: int
    batches: int
    joined: int
    """Small files that were joined to larger ones."""
    stopped: bool = False


def archive(
    spark: Any,
    where: Where,
    path: str | Path,
    queues: Sequence[str] = (),
    *,
    pattern: str | None = None,
    format: str = "parquet",
    once: bool = True,
    every: str = "30 seconds",
    batch_messages: int = BATCH_MESSAGES,
    compact: bool = True,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Archived:
    """Archive queues (or those whose whole names match a pattern): what is there now, or on and on."""
    if format not in FORMATS:
        raise InvalidRequest(f"format is {format!r}: use one of {', '.join(FORMATS)}")
    if bool(queues) == bool(pattern):
        raise InvalidRequest("say what to archive: the names of queues, or a pattern for them")
    if where.url is None:
        raise InvalidRequest("an archive needs a server (a url): a directory that is only read keeps nothing for it")
    chosen = {"subscribePattern": pattern} if pattern else {"subscribe": ",".join(queues)}
    landing = Landing(Path(path))
    with landing.opened():
        _accept(landing, {"format": format, **chosen})
        limits = {"maxOffsetsPerTrigger": str(batch_messages), "maxBytesPerTrigger": str(BATCH_BYTES)}
        options = {**where.options(), **chosen, **limits, "includeHeaders": "true", "startingOffsets": "earliest"}
        stream = spark.readStream.format("penstock").options(**options, groupIdPrefix="archive").load()
        checkpoint = landing.own / "checkpoint"
        writer = stream.selectExpr(*_COLUMNS).writeStream.foreachBatch(_appending(landing, format, checkpoint))
        writer = writer.queryName("archive")
        done = run_stream(writer, "archive", checkpoint, once=once, every=every, display=display, stop=stop)
        joined = _compact(landing, format) if compact else 0
    return Archived(done.rows, done.batches, joined, done.stopped)


def _accept(landing: Landing, wanted: dict[str, Any]) -> None:
    """The first batch settles what an archive holds; later runs must want the same."""
    file, checkpoint = landing.own / "archive.json", landing.own / "checkpoint"
    if not any((checkpoint / "offsets").glob("[0-9]*")):
        shutil.rmtree(checkpoint, ignore_errors=True)
        write_json(file, wanted)
        return
    found = json.loads(file.read_text())
    if found != wanted:
        raise IncompatibleCheckpoint(
            f"{landing.path} is an archive of {_told(found)}, and now {_told(wanted)} is wanted: use another "
            "directory, or the same as before"
        )


def _told(archive: dict[str, Any]) -> str:
    what = archive.get("subscribe") or f"queues like {archive.get('subscribePattern')}"
    return f"{what} as {archive['format']}"


def query_id(checkpoint: Path) -> str:
    """The id that a stream has for life."""
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def _appending(landing: Landing, format: str, checkpoint: Path) -> Any:
    def append(batch: Any, number: int) -> None:
        query = query_id(checkpoint)
        if format == "parquet":
            landing.land(batch, query, number, PARTITION_BY)
            return
        table = batch.toArrow()
        if not table.num_rows:
            return
        if format == "delta":
            append_delta(landing.path, table, query, number, PARTITION_BY)
        else:
            _partition_iceberg(landing.path, table.schema)
            append_iceberg(landing.path, ICEBERG_TABLE, table, query, number)

    return append


def _iceberg(path: Path) -> Any:
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ModuleNotFoundError:
        raise SparkMissing("an Iceberg table needs pyiceberg: pip install 'penstock[lakes]'") from None
    return SqlCatalog("penstock", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")


def _partition_iceberg(path: Path, schema: Any) -> None:
    """A table that is new is partitioned by queue and date."""
    catalog = _iceberg(path)
    try:
        catalog.create_namespace_if_not_exists(ICEBERG_TABLE.rpartition(".")[0])
        table = catalog.create_table_if_not_exists(ICEBERG_TABLE, schema=schema)
        if not table.spec().fields:
            with table.update_spec() as update:
                for column in PARTITION_BY:
                    update.add_identity(column)
    finally:
        catalog.close()


def _compact(landing: Landing, format: str) -> int:
    if format == "parquet":
        return landing.compact()
    if format == "delta":
        from deltalake import DeltaTable

        if DeltaTable.is_deltatable(str(landing.path)):
            return int(DeltaTable(str(landing.path)).optimize.compact()["numFilesRemoved"])
        return 0
    return compact_iceberg(landing.path)


def compact_iceberg(path: Path, *, small_bytes: int = SMALL_BYTES, small_files: int = SMALL_FILES) -> int:
    """Join small files of an archive's table, where there are many. Returns how many went.

    Files of one queue and date hold ranges of offsets that do not overlap: so those between two larger files are all
    that a range of offsets has, and are replaced in one commit by what they hold. Older snapshots keep them. Ranges of
    a queue with several partitions do overlap: there, files are joined only if no others lie among them.
    """
    catalog = _iceberg(path)
    try:
        if not catalog.table_exists(ICEBERG_TABLE):
            return 0
        table = catalog.load_table(ICEBERG_TABLE)
        groups = list(_small_groups(table, small_bytes, small_files))
        return sum(_join_iceberg(table, group) for group in groups)
    finally:
        catalog.close()


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
        raise NotFound(f"{place} is no archive: `penstock pipeline run archive` makes one")
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
    catalog = _iceberg(place)
    try:
        if not catalog.table_exists(ICEBERG_TABLE):
            return []
        return [each.file.file_path for each in catalog.load_table(ICEBERG_TABLE).scan().plan_files()]
    finally:
        catalog.close()
