"""Delta and Iceberg tables, and Parquet files for any reader: `format("penstock_lake")`, each batch of a query once.

The table itself keeps which batch of which query it has: Delta in its log, as the version of an application; Iceberg
in the summary of a snapshot; files as `landing.py` says. So a batch that is done again, after whatever crash, is found
to be there, and left out. It is written by deltalake, pyiceberg or pyarrow, without jars. A batch goes through the
driver's memory: limit its size.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.pipelines.errors import PipelineError, SparkMissing
from penstock.pipelines.landing import Landing
from penstock.pipelines.locations import RemotePath, iceberg_options, lake_options, location
from penstock.spark.errors import InvalidOption

_QUERY, _BATCH = "penstock.query", "penstock.batch"
FORMATS = ("parquet", "delta", "iceberg")
PATIENCE_S = 30.0
"""For another writer of the same files: a backfill, or small files that are joined."""
_OPTIONS = ("format", "path", "table", "catalog", "partition_by", "conf")
_SPARKS_OWN = ("checkpointlocation", "queryname", "name")


class LakeDataSource(DataSource):
    """A table that a stream appends to. Options: format, path, partition_by, table, catalog."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "penstock_lake"

    def streamWriter(self, schema: StructType, overwrite: bool) -> LakeWriter:
        """Spark's hook."""
        return LakeWriter(dict(self.options))


@dataclass
class Rows(WriterCommitMessage):
    """The rows of one task, as an Arrow stream."""

    query_id: str
    data: bytes


class LakeWriter(DataSourceStreamArrowWriter):
    """Tasks hand their rows to the driver, which appends them in one commit."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        unknown = [name for name in self._options if name not in (*_OPTIONS, *_SPARKS_OWN)]
        if unknown or self._options.get("format") not in FORMATS or not self._options.get("path"):
            told = f"there is no option {unknown[0]!r}" if unknown else f"give format ({', '.join(FORMATS)}) and path"
            raise InvalidOption(f"penstock_lake: {told}; there are: {', '.join(_OPTIONS[:5])}")

    def write(self, iterator: Iterator[Any]) -> Rows:
        """In the executors."""
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        if not query_id:
            raise PipelineError(
                "this task belongs to no stream: without a query id, rows cannot be written exactly once"
            )
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return Rows(query_id, b"")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return Rows(query_id, sink.getvalue().to_pybytes())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver."""
        written = [each for each in messages if isinstance(each, Rows)]
        tables = [pa.ipc.open_stream(each.data).read_all() for each in written if each.data]
        if not tables:
            return
        options = self._options
        conf = json.loads(options.get("conf", "{}"))
        path = location(options["path"], Path.cwd(), conf)
        rows = pa.concat_tables(tables)
        partition_by = tuple(each for each in options.get("partition_by", "").split(",") if each)
        if options["format"] == "delta":
            append_delta(path, rows, written[0].query_id, batchId, partition_by, conf)
        elif options["format"] == "iceberg":
            name, catalog = options.get("table", "default.rows"), options.get("catalog")
            append_iceberg(path, name, rows, written[0].query_id, batchId, partition_by, catalog, conf)
        else:
            with Landing(Path(str(path))).opened(PATIENCE_S) as landing:
                landing.land(rows, written[0].query_id, batchId, partition_by)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was written."""


def append_delta(
    path: Path | RemotePath,
    table: Any,
    query_id: str,
    batch: int,
    partition_by: tuple[str, ...] = (),
    conf: Mapping[str, str] | None = None,
) -> bool:
    """Append an Arrow table as this batch of this query; False if it was there. New columns are added."""
    try:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    except ModuleNotFoundError:
        raise SparkMissing("a Delta table needs deltalake: pip install 'penstock-mq[lakes]'") from None
    options = lake_options(conf or {}) if isinstance(path, RemotePath) else None
    if DeltaTable.is_deltatable(str(path), options):
        done = DeltaTable(str(path), storage_options=options).transaction_version(query_id)
        if done is not None and done >= batch:
            return False
    path.mkdir(parents=True, exist_ok=True)
    mark = CommitProperties(app_transactions=[Transaction(app_id=query_id, version=batch)])
    write_deltalake(
        str(path),
        table,
        mode="append",
        schema_mode="merge",
        partition_by=list(partition_by) or None,
        commit_properties=mark,
        storage_options=options,
    )
    return True


@contextlib.contextmanager
def open_iceberg(
    warehouse: Path | RemotePath, catalog: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """The catalogue of a warehouse: a file in it, unless `catalog` is the address of a database."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ModuleNotFoundError:
        raise SparkMissing("an Iceberg table needs pyiceberg: pip install 'penstock-mq[lakes]'") from None
    warehouse = warehouse.resolve()
    warehouse.mkdir(parents=True, exist_ok=True)
    place = str(warehouse) if isinstance(warehouse, RemotePath) else f"file://{warehouse}"
    options = iceberg_options(conf or {}) if isinstance(warehouse, RemotePath) else {}
    opened = SqlCatalog("penstock", uri=catalog or f"sqlite:///{warehouse}/catalog.db", warehouse=place, **options)
    try:
        yield opened
    finally:
        opened.close()


def append_iceberg(
    warehouse: Path | RemotePath,
    name: str,
    table: Any,
    query_id: str,
    batch: int,
    partition_by: tuple[str, ...] = (),
    catalog: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> bool:
    """Append an Arrow table as this batch of this query to a table of a warehouse; False if it was there.

    New columns are added. A table that is new is partitioned by these columns.
    """
    with open_iceberg(warehouse, catalog, conf) as opened:
        opened.create_namespace_if_not_exists(name.rpartition(".")[0])
        found = opened.create_table_if_not_exists(name, schema=table.schema)
        if partition_by and not found.spec().fields and found.current_snapshot() is None:
            with found.update_spec() as update:
                for column in partition_by:
                    update.add_identity(column)
        if _iceberg_batch(found, query_id) >= batch:
            return False
        if set(table.schema.names) - set(found.schema().column_names):
            with found.update_schema() as update:
                update.union_by_name(table.schema)
        found.append(table, snapshot_properties={_QUERY: query_id, _BATCH: str(batch)})
        return True


def _iceberg_batch(table: Any, query_id: str) -> int:
    """The last batch of a query that the table has; -1 for none."""
    for snapshot in reversed(table.snapshots()):
        summary = snapshot.summary
        if summary is not None and summary.get(_QUERY) == query_id:
            return int(summary.get(_BATCH))
    return -1
