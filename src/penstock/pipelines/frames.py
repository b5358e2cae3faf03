"""From the model to Spark's frames; rows that fail, and dead letters; what writes the rest, tables of lakes among it.

Every query makes its frames anew, so that each has channels of its own in the queues that it reads: a channel is one
reader's progress, and queries make progress apart. Nodes are made when they are needed, their inputs first, and
registered as temporary views, so that SQL and `spark.table` find them by name.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from penstock.pipelines.decorators import queue_reader
from penstock.pipelines.definition import QUEUE, REJECTS, Check, Output, Parse, Pipeline, Source, View
from penstock.pipelines.errors import (
    InvalidDefinition,
    PipelineError,
    Place,
    Problem,
    SparkMissing,
    missing_connector,
    reason_of,
)
from penstock.pipelines.locations import RemotePath, iceberg_options, lake_options, location, scheme_of
from penstock.pipelines.where import Where

DEFAULTS = {
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "200000",
    "maxBytesPerTrigger": str(64 * 1024 * 1024),
}
"""Options of a source that says nothing else: all that is there, in batches that a sink can take in one commit."""
_STARTS = ("startingoffsets", "startingtimestamp")


class Frames:
    """Makes the frames of one query."""

    def __init__(self, spark: Any, pipeline: Pipeline, where: Where, directory: Path | RemotePath, query: str) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._where = where
        self._directory = directory
        self._query = query
        self._made: dict[str, Any] = {}
        self._rejected: dict[str, Any] = {}
        self._channels: dict[str, int] = {}

    def make(self) -> Any:
        """What the query writes."""
        return contextvars.copy_context().run(self._make_all)

    def _make_all(self) -> Any:
        queue_reader.set(self._read_queue)
        pipeline = self._pipeline
        if self._query != REJECTS:
            output = pipeline.outputs[self._query]
            frame = self._node(output.input, output.at)
            if not frame.isStreaming:
                text = f"what goes to {output.name!r} is no stream: it reads no queue and no stream of files"
                raise _invalid(output.at, text)
            return frame
        letters = []
        for view in pipeline.rejecting:
            self._node(view.name, view.at)
            step = view.name.removesuffix(".flow")
            letters.append(dead_letters(self._rejected[view.name], pipeline.name, step))
        return reduce(lambda one, other: one.unionByName(other), letters)

    # -- nodes --

    def _node(self, name: str, at: Place) -> Any:
        if name not in self._made:
            pipeline = self._pipeline
            node: Source | View | Output = (
                pipeline.sources.get(name) or pipeline.views.get(name) or pipeline.outputs[name]
            )
            try:
                frame = self._frame(node)
            except InvalidDefinition:
                raise
            except Exception as error:
                raise _invalid(node.at, _first_line(error)) from error
            if not name.endswith(".flow") and not isinstance(node, Output):
                frame.createOrReplaceTempView(name)
            self._made[name] = frame
        return self._made[name]

    def _frame(self, node: Source | View | Output) -> Any:
        if isinstance(node, Source):
            return self._read_queue(node.name, node.options) if node.kind == QUEUE else self._read_files(node)
        return self._view(node) if isinstance(node, View) else self._table(node)

    def _view(self, view: View) -> Any:
        inputs = [self._node(name, view.at) for name in view.inputs]
        if view.sql:
            frame = self._spark.sql(view.sql)
        elif view.function is not None:
            frame = self._call(view, inputs)
        else:
            frame = inputs[0]
        if view.rejects:
            frame, self._rejected[view.name] = split(frame, view)
        return frame if view.watermark is None else frame.withWatermark(*view.watermark)

    def _call(self, view: View, inputs: list[Any]) -> Any:
        function = view.function
        assert function is not None
        by_name = dict(zip(view.inputs, inputs, strict=True))
        named = {name: by_name[name] for name in function.parameters}
        if function.takes_spark:
            named["spark"] = self._spark
        frame = function.call(**named) if function.by_name else function.call(*inputs, **named)
        if not hasattr(frame, "isStreaming"):
            raise TypeError(f"{function.reference} returned {type(frame).__name__}, and a frame was expected")
        return frame

    # -- what is read --

    def _read_queue(self, name: str, options: Mapping[str, str]) -> Any:
        given = dict(DEFAULTS)
        lower = {option.lower() for option in options}
        if any(start in lower for start in _STARTS):
            del given["startingOffsets"]
        given = {option: value for option, value in given.items() if option.lower() not in lower}
        channel = {} if self._where.url is None else {"channel": self._channel(name)}
        reader = self._spark.readStream.format("penstock")
        return reader.options(**self._where.options(), **channel, **given, **options).load()

    def _channel(self, name: str) -> str:
        """Named after pipeline, query and source; a second stream of the same gets a number."""
        number = self._channels[name] = self._channels.get(name, 0) + 1
        return channel_name(self._pipeline.name, self._query, name if number == 1 else f"{name}.{number}")

    def _read_files(self, source: Source) -> Any:
        reader = self._spark.read if source.is_static else self._spark.readStream
        reader = reader.format(source.format).options(**source.options)
        if source.schema:
            reader = reader.schema(source.schema)
        return reader.load(spark_path(source.path, self._pipeline.file.parent))

    def _table(self, output: Output) -> Any:
        """A table of this pipeline, from its files. Its columns are those of the stream that goes into it."""
        schema = without_message(self._node(output.input, output.at)).schema
        path = table_path(self._pipeline, output, self._directory)
        path.mkdir(parents=True, exist_ok=True)
        self._spark.sql(f"drop table if exists `{output.name}`")
        self._spark.catalog.createTable(output.name, path=str(path), source="parquet", schema=schema)
        return self._spark.readStream.schema(schema).parquet(str(path))


def spark_path(path: str, beside: Path) -> str:
    """A path as Spark takes it: with a scheme as it is, others relative to the definition.

    >>> spark_path("s3a://bucket/in/*.json", Path("/home")), spark_path("in/*.json", Path("/home"))
    ('s3a://bucket/in/*.json', '/home/in/*.json')
    """
    return path if scheme_of(path) is not None else str(beside / path)


def channel_name(pipeline: str, query: str, source: str) -> str:
    """The channel of a query in the queues of one source.

    >>> channel_name("orders", "totals", "source")
    'pipeline.orders.totals.source'
    """
    name = f"pipeline.{pipeline}.{query}.{source}"
    if len(name) <= 128 and all(each.isascii() and (each.isalnum() or each in "._#-") for each in name):
        return name
    return f"pipeline.{pipeline}.{hashlib.sha256(name.encode()).hexdigest()[:24]}"


def table_path(pipeline: Pipeline, output: Output, directory: Path | RemotePath) -> Path | RemotePath:
    """Where the files of an output are: tables in the pipeline's own directory, others beside its definition."""
    if output.is_table and output.target == f"tables/{output.name}":
        return (directory / output.target).resolve()
    return location(output.target, pipeline.file.parent, pipeline.settings.conf)


def without_message(frame: Any) -> Any:
    """A frame as it is stored: without the message that its rows came from."""

    return frame.drop(MESSAGE)


def _invalid(at: Place, text: str) -> InvalidDefinition:
    return InvalidDefinition([Problem(at, text)])


def _first_line(error: Exception) -> str:
    """What went wrong, without Spark's plan and stack.

    >>> _first_line(ValueError("no such column;" + chr(10) + "Project ..."))
    'ValueError: no such column;'
    """
    if "Py4J" in type(error).__name__ or missing_connector(str(error)) is not None:
        return reason_of(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:1_000]


# -- rejects -----------------------------------------------------------------------------------------------------------

# Rows that fail parsing or a check: found, kept out of the way, and sent to the dead-letter queue with the reason.
#
# A step that parses or checks splits its rows in two. The good ones go on. The others are not lost, and not handled by
# every sink that reads the step: one query of its own (`rejects`) reads the same messages, keeps the rows that failed
# in any step, and sends them with the connector's exactly-once sink. So each is one dead letter, however often anything
# is killed, and however many sinks there are. The price is that messages are read once more.
#
# `_message` is the message that a row came from (topic, offset, body, ...). Parsing adds it; steps carry it on by
# `select *`; sinks leave it out. A dead letter's body is the message's own. Without `_message`, it is the row as JSON.

MESSAGE = "_message"
REASON = "_penstock_reason"
_PARSED = "_penstock_parsed"
_CORRUPT = "_penstock_corrupt"
_PARTS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
HEADERS = ("reason", "step", "pipeline", "queue", "offset", "sent_at")
"""What a dead letter's attributes say, each after `penstock.`."""


def split(frame: Any, view: View) -> tuple[Any, Any]:
    """The rows of a step that are good, and those that are not (with `_penstock_reason`)."""
    from pyspark.sql import functions as sql

    marked = frame
    if view.parse is not None:
        marked = _parsed(marked, view.parse)
    reason = _check_reason(view.checks)
    if REASON in marked.columns:
        reason = sql.coalesce(sql.col(REASON), reason)
    marked = marked.withColumn(REASON, reason)
    good = marked.where(sql.col(REASON).isNull()).drop(REASON)
    return good, marked.where(sql.col(REASON).isNotNull())


def _check_reason(checks: tuple[Check, ...]) -> Any:
    """Why a row fails: the first check that it does not meet; null if it meets all."""
    from pyspark.sql import functions as sql

    failed = [
        sql.when(
            ~sql.coalesce(sql.expr(f"({check.condition})"), sql.lit(False)), sql.lit(f"check failed: {check.name}")
        )
        for check in checks
    ]
    return sql.coalesce(*failed) if failed else sql.lit(None).cast("string")


def _parsed(frame: Any, parse: Parse) -> Any:
    """The columns of the bodies, the message, and why a body could not be read."""
    from pyspark.sql import functions as sql

    if "value" not in frame.columns:
        raise ValueError(f"parse needs a column value, the body of a message; there are: {', '.join(frame.columns)}")
    text = sql.col("value").cast("string")
    not_text = sql.when(~sql.is_valid_utf8(text), sql.lit("the body is no UTF-8"))
    message = message_of(frame)
    if parse.format == "text":
        return frame.select(text.alias("text"), message.alias(MESSAGE), not_text.alias(REASON))
    read = sql.from_json if parse.format == "json" else sql.from_csv
    schema = f"{parse.schema}, {_CORRUPT} string"
    parsed = read(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    held = frame.select(parsed.alias(_PARSED), message.alias(MESSAGE), not_text.alias(REASON), text.alias("_text"))
    names = [name for name in held.schema[_PARSED].dataType.names if name != _CORRUPT]
    failed = sql.col(_PARSED).isNull() | sql.col(_PARSED)[_CORRUPT].isNotNull()
    reason = sql.coalesce(sql.col(REASON), sql.when(failed, _why(parse)))
    columns = [sql.col(_PARSED)[name].alias(name) for name in names]
    return held.select(*columns, sql.col(MESSAGE), reason.alias(REASON))


def _why(parse: Parse) -> Any:
    from pyspark.sql import functions as sql

    no_fit = sql.lit(f"the body does not fit the schema: {parse.schema}")
    if parse.format != "json":
        return no_fit
    is_json = sql.try_parse_json(sql.col("_text")).isNotNull()
    return sql.when(is_json, no_fit).otherwise(sql.lit("the body is no JSON"))


def message_of(frame: Any) -> Any:
    """The message that a row came from, as one column."""
    from pyspark.sql import functions as sql

    if MESSAGE in frame.columns:
        return sql.col(MESSAGE)
    return sql.struct(*[sql.col(name) for name in _PARTS if name in frame.columns])


# -- dead letters ------------------------------------------------------------------------------------------------------


def dead_letters(rejected: Any, pipeline: str, step: str) -> Any:
    """Rows that failed as dead letters: the original body and group, where they come from, and why they are here.

    What they have behind them is what the engine's own dead letters have, so that whatever redrives those redrives
    them. A row that no message is known of has attributes only.
    """
    from pyspark.sql import functions as sql

    has = _fields_of_message(rejected)
    if "value" in has:
        body = _part(rejected, "value").cast("binary")
    else:
        row = [name for name in rejected.columns if name not in (REASON, MESSAGE)]
        body = sql.to_json(sql.struct(*row)).cast("binary")
    said = {
        "reason": sql.col(REASON),
        "step": sql.lit(step),
        "pipeline": sql.lit(pipeline),
        "queue": _part(rejected, "topic") if "topic" in has else None,
        "offset": _part(rejected, "offset") if "offset" in has else None,
        "sent_at": _part(rejected, "timestamp") if "timestamp" in has else None,
    }
    pairs = [
        sql.struct(sql.lit(f"penstock.{name}").alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in said.items()
        if value is not None
    ]
    headers = sql.filter(sql.array(*pairs), lambda pair: pair["value"].isNotNull())
    if "headers" in has:
        own = sql.coalesce(
            _part(rejected, "headers"), sql.expr("array()").cast("array<struct<key:string,value:binary>>")
        )
        headers = sql.concat(own, headers.cast("array<struct<key:string,value:binary>>"))
    key = _part(rejected, "key").cast("binary") if "key" in has else sql.lit(None).cast("binary")
    message = [body.alias("value"), key.alias("key"), headers.alias("headers")]
    if not {"topic", "offset"} <= set(has):
        return rejected.select(*message, *[sql.lit(None).cast(kind).alias(name) for name, kind in _BEHIND.items()])
    origin = sql.struct(
        _part(rejected, "topic").alias("queue"),
        sql.lit(f"pipeline.{pipeline}").alias("channel"),
        _part(rejected, "offset").cast("bigint").alias("offset"),
        sql.lit("").alias("id"),
    )
    behind = {
        "deadOrigin": origin,
        "deadReason": sql.concat(sql.lit(f"{step}: "), sql.col(REASON)),
        "attempts": sql.lit(1),
        "timestamp": _part(rejected, "timestamp") if "timestamp" in has else sql.lit(None),
    }
    return rejected.select(*message, *[behind[name].cast(kind).alias(name) for name, kind in _BEHIND.items()])


_BEHIND = {
    "deadOrigin": "struct<queue:string,channel:string,offset:bigint,id:string>",
    "deadReason": "string",
    "attempts": "int",
    "timestamp": "timestamp",
}
"""The columns of a dead letter, besides those of a message."""


def _fields_of_message(frame: Any) -> list[str]:
    if MESSAGE in frame.columns:
        return list(frame.schema[MESSAGE].dataType.names)
    return [name for name in _PARTS if name in frame.columns] if "value" in frame.columns else []


def _part(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.col(MESSAGE)[name] if MESSAGE in frame.columns else sql.col(name)


# -- writers -----------------------------------------------------------------------------------------------------------

MESSAGE_COLUMNS = ("value", "topic", "key", "headers", "priority", "delay", "dedupId")
CONSOLE_ROWS = 20


class WriteError(PipelineError):
    """A batch could not be written."""


def writer_of(
    frame: Any,
    pipeline: Pipeline,
    output: Output,
    where: Where,
    directory: Path | RemotePath,
    checkpoint: Path | RemotePath,
) -> Any:
    """A stream's writer that is ready to start, but for its trigger."""
    if output.kind == "queue":
        return queue_writer(frame, output.target, dict(output.options), where)
    stored = without_message(frame)
    if output.kind == "parquet":
        path = table_path(pipeline, output, directory)
        writer = stored.writeStream.format("parquet").options(**output.options).option("path", str(path))
        return writer.partitionBy(*output.partition_by) if output.partition_by else writer
    if output.kind == "console":
        return stored.writeStream.foreachBatch(_briefly(_to_screen(output)))
    append = _to_lake(output, table_path(pipeline, output, directory), checkpoint, pipeline.settings.conf)
    return stored.writeStream.foreachBatch(_briefly(append))


def _briefly(write: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """What goes wrong is told in one line: Spark's own code overflows its stack on long ones."""

    def told(batch: Any, number: int) -> None:
        try:
            write(batch, number)
        except Exception as error:
            raise WriteError(reason_of(error)) from None

    return told


def queue_writer(frame: Any, topic: str, options: dict[str, str], where: Where) -> Any:
    """To a queue, exactly once. A queue that is named goes before a column `topic`, which a source has, too."""
    named = {"topic": topic} if topic else {}
    messages = as_messages(frame.drop("topic") if topic else frame)
    return messages.writeStream.format("penstock").options(**where.options(), **named, **options)


def as_messages(frame: Any) -> Any:
    """A frame with a column `value`: that of the frame, or all its other columns as JSON."""
    from pyspark.sql import functions as sql

    plain = without_message(frame)
    if "value" in plain.columns:
        return plain
    own = [name for name in plain.columns if name in MESSAGE_COLUMNS]
    body = [name for name in plain.columns if name not in MESSAGE_COLUMNS]
    return plain.select(sql.to_json(sql.struct(*body)).alias("value"), *own)


def _to_screen(output: Output) -> Any:
    def show(batch: Any, number: int) -> None:
        for row in batch.limit(int(output.options.get("rows", CONSOLE_ROWS))).collect():
            sys.stdout.write(json.dumps(row.asDict(recursive=True), default=_plain) + "\n")
        sys.stdout.flush()

    return show


def _plain(value: Any) -> str:
    return bytes(value).decode(errors="backslashreplace") if isinstance(value, bytes | bytearray) else str(value)


def _to_lake(output: Output, path: Path | RemotePath, checkpoint: Path | RemotePath, conf: Mapping[str, str]) -> Any:
    name = output.options.get("table", f"default.{output.name}")
    catalog = output.options.get("catalog")

    def append(batch: Any, number: int) -> None:
        query_id = json.loads((checkpoint / "metadata").read_text())["id"]
        table = batch.toArrow()
        if not table.num_rows:
            return
        if output.kind == "delta":
            append_delta(path, table, query_id, number, output.partition_by, conf)
        else:
            append_iceberg(path, name, table, query_id, number, catalog, conf)

    return append


def check_partition_columns(frame: Any, output: Output) -> None:
    """Columns to partition by must be there."""
    missing = [name for name in output.partition_by if name not in frame.columns]
    if missing:
        there = ", ".join(frame.columns)
        text = f"partition_by names {', '.join(missing)}, and the columns are: {there}"
        raise InvalidDefinition([Problem(output.at, text)])


# -- Delta and Iceberg -------------------------------------------------------------------------------------------------

# Appending to Delta and Iceberg tables, each batch of a query once. Without jars: by deltalake and pyiceberg.
#
# The table itself keeps which batch of which query it has: Delta in its log, as the version of an application; Iceberg
# in the summary of a snapshot. So a batch that is done again, after whatever crash, is found to be there, and left out.
# A batch goes through the driver's memory: limit a stream's batches.

_QUERY, _BATCH = "penstock.query", "penstock.batch"


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
        raise SparkMissing("a Delta table needs deltalake: pip install 'penstock[lakes]'") from None
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


def append_iceberg(
    warehouse: Path | RemotePath,
    name: str,
    table: Any,
    query_id: str,
    batch: int,
    catalog: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> bool:
    """Append an Arrow table as this batch of this query to a table of a warehouse; False if it was there.

    New columns are added. The catalogue is a file in the warehouse, unless `catalog` is the address of a database.
    """
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ModuleNotFoundError:
        raise SparkMissing("an Iceberg table needs pyiceberg: pip install 'penstock[lakes]'") from None
    warehouse = warehouse.resolve()
    warehouse.mkdir(parents=True, exist_ok=True)
    place = str(warehouse) if isinstance(warehouse, RemotePath) else f"file://{warehouse}"
    options = iceberg_options(conf or {}) if isinstance(warehouse, RemotePath) else {}
    opened = SqlCatalog("penstock", uri=catalog or f"sqlite:///{warehouse}/catalog.db", warehouse=place, **options)
    try:
        opened.create_namespace_if_not_exists(name.rpartition(".")[0])
        found = opened.create_table_if_not_exists(name, schema=table.schema)
        if _iceberg_batch(found, query_id) >= batch:
            return False
        if set(table.schema.names) - set(found.schema().column_names):
            with found.update_schema() as update:
                update.union_by_name(table.schema)
        found.append(table, snapshot_properties={_QUERY: query_id, _BATCH: str(batch)})
        return True
    finally:
        opened.close()


def _iceberg_batch(table: Any, query_id: str) -> int:
    """The last batch of a query that the table has; -1 for none."""
    for snapshot in reversed(table.snapshots()):
        summary = snapshot.summary
        if summary is not None and summary.get(_QUERY) == query_id:
            return int(summary.get(_BATCH))
    return -1
