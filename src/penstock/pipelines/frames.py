"""From the model to Spark's frames, and what writes them.

Every query makes its frames anew, so that each has channels of its own in the queues that it reads: a channel is one
reader's progress, and queries make progress apart. Nodes are made when they are needed, their inputs first, and
registered as temporary views, so that SQL and `spark.table` find them by name. Spark says which table it misses. If
that is one of the pipeline's, it is made, and what missed it is tried again: nobody has to say what a function reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from penstock.pipelines.definition import LANDING, MATERIALIZED, QUEUE, Output, Pipeline, Source, View
from penstock.pipelines.errors import InvalidDefinition, Place, Problem, first_line, missing_connector, reason_of
from penstock.pipelines.library import (
    MESSAGE,
    Running,
    as_dead_letters,
    message_fields,
    reasons,
    running,
    source_options,
    split,
)
from penstock.pipelines.locations import RemotePath, location, scheme_of
from penstock.pipelines.where import Where


class Frames:
    """Makes the frames of one query."""

    def __init__(self, spark: Any, pipeline: Pipeline, where: Where, directory: Path | RemotePath, query: str) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._where = where
        self._directory = directory
        self._query = query
        self._made: dict[str, Any] = {}
        self._making: list[str] = []
        self._letters: dict[str, Callable[[], Any]] = {}
        self._channels: dict[str, int] = {}
        self._mark = f"made by the Penstock pipeline {pipeline.name}"
        """What the catalogue says of its tables: only those are dropped."""
        self.subscribed: set[str] = set()
        """The queues that functions have read."""

    @property
    def tables(self) -> set[str]:
        """The tables of the pipeline that the query reads."""
        return {name for name in self._made if name in self._pipeline.outputs and name not in self._pipeline.views}

    def make(self) -> Any:
        """What the query writes."""
        token = running.set(Running(self._pipeline.name, self._read_queue))
        try:
            self._forget()
            return self._make_all()
        finally:
            running.reset(token)

    def _forget(self) -> None:
        """What an earlier query has made is made anew: it reads other channels."""
        nodes: list[Source | View] = [*self._pipeline.sources.values(), *self._pipeline.views.values()]
        for node in nodes:
            if node.name.endswith(".flow"):
                continue
            self._spark.catalog.dropTempView(node.name)
            if self._spark.catalog.tableExists(f"`{node.name}`"):
                text = f"the catalogue has a table {node.name!r}, which would be read instead"
                raise _invalid(node.at, f"{text}: give this view another name, or drop that table")
        for output in self._pipeline.outputs.values():
            if output.is_table and self._spark.catalog.tableExists(f"`{output.name}`"):
                if self._spark.catalog.getTable(f"`{output.name}`").description != self._mark:
                    text = f"the catalogue has a table {output.name!r} that this pipeline did not make"
                    raise _invalid(output.at, f"{text}: give this table another name, or drop that one")
                self._spark.sql(f"drop table `{output.name}`")

    def _make_all(self) -> Any:
        output = self._pipeline.outputs[self._query]
        frame = self._node(output.input, output.at)
        if frame.isStreaming == (output.kind == MATERIALIZED):
            wanted = "a stream, and a materialized view is none" if frame.isStreaming else "no stream: it reads none"
            raise _invalid(output.at, f"what goes to {output.name!r} is {wanted}")
        return frame

    # -- nodes --

    def _node(self, name: str, at: Place) -> Any:
        if name in self._making:
            circle = [each.removesuffix(".flow") for each in (*self._making[self._making.index(name) :], name)]
            raise _invalid(at, f"goes in a circle: {' reads '.join(circle)}. Break it at one of them")
        if name not in self._made:
            pipeline = self._pipeline
            node: Source | View | Output = (
                pipeline.sources.get(name) or pipeline.views.get(name) or pipeline.outputs[name]
            )
            self._making.append(name)
            try:
                frame = self._frame(node)
            except InvalidDefinition:
                raise
            except Exception as error:
                raise _invalid(node.at, _first_line(error)) from error
            finally:
                self._making.remove(name)
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
        if view.is_rejects:
            return self._letters[view.inputs[0]]()
        while True:
            try:
                frame = self._rows(view, inputs)
                break
            except Exception as error:
                missed = self._missed(error)
                if missed is None:
                    raise
                self._node(missed, view.at)
        if view.rejects:
            parse, schema = (None, "") if view.parse is None else (view.parse.format, view.parse.schema)
            checks = {check.name: check.condition for check in view.checks}
            fields = message_fields(frame, is_parsed=parse is not None)
            frame, rejected = split(frame, parse, schema, checks)
            known = reasons(parse, schema, checks)
            self._letters[view.name] = lambda: as_dead_letters(rejected, view.name, fields, known)
        return frame if view.watermark is None else frame.withWatermark(*view.watermark)

    def _rows(self, view: View, inputs: list[Any]) -> Any:
        if view.sql:
            return self._spark.sql(view.sql)
        if view.function is None:
            return reduce(lambda one, other: one.unionByName(other), inputs)
        frame = view.function.call(*inputs, **({"spark": self._spark} if view.function.takes_spark else {}))
        if not hasattr(frame, "isStreaming"):
            raise TypeError(f"{view.function.reference} returned {type(frame).__name__}, but must return a DataFrame")
        return frame

    def _missed(self, error: Exception) -> str | None:
        """The node of this pipeline that Spark has looked for, and did not find, because it was not made yet."""
        condition = getattr(error, "getCondition", lambda: None)()
        if condition != "TABLE_OR_VIEW_NOT_FOUND":
            return None
        name = str(error.getMessageParameters()["relationName"]).replace("`", "").rpartition(".")[2]  # type: ignore[attr-defined]
        output = self._pipeline.outputs.get(name)
        known = name in self._pipeline.views or (output is not None and output.is_table)
        return name if known and name not in self._made else None

    # -- what is read --

    def _read_queue(self, name: str, options: Mapping[str, str]) -> Any:
        is_named = self._where.url is None or "groupIdPrefix" in options
        channel = {} if is_named else {"channel": self._channel(name)}
        part = self._pipeline.settings.part
        wanted = source_options(options) if part is None else part.options(source_options(options))
        given = {**self._where.options(), **channel, **wanted}
        self.subscribed.add(str(options.get("subscribe") or options.get("subscribePattern") or ""))
        frame = self._spark.readStream.format("penstock").options(**given).load()
        return frame if part is None else part.cut(frame)

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
        """A table of this pipeline, from its files. Its columns are those of what goes into it."""
        if output.kind == "delta":
            raise ValueError(f"{output.name!r} is a Delta table, which cannot be read by its name: use parquet")
        made = Frames(self._spark, self._pipeline, self._where, self._directory, f"{self._query}.{output.name}")
        made._making = self._making
        schema = without_message(made._node(output.input, output.at)).schema
        for name in made._made.keys() - self._made.keys():  # it was made to see its columns, and reads other channels
            if not name.endswith(".flow") and name not in self._pipeline.outputs:
                self._spark.catalog.dropTempView(name)
        path = table_path(self._pipeline, output, self._directory)
        path.mkdir(parents=True, exist_ok=True)
        self._spark.catalog.createTable(
            output.name, path=str(path), source="parquet", schema=schema, description=self._mark
        )
        return self._spark.table(output.name)


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
    return f"{type(error).__name__}: {first_line(error)}"[:1_000]


# -- writers -----------------------------------------------------------------------------------------------------------

MESSAGE_COLUMNS = ("value", "topic", "key", "headers", "priority", "delay", "dedupId")
LAKES = {LANDING: "parquet", "delta": "delta", "iceberg": "iceberg"}
"""Kinds that penstock_lake writes, and what it calls them."""


def writer_of(frame: Any, pipeline: Pipeline, output: Output, where: Where, directory: Path | RemotePath) -> Any:
    """A stream's writer that is ready to start, but for its trigger."""
    if output.kind == "queue":
        return queue_writer(frame, output.target, dict(output.options), where)
    stored = without_message(frame)
    if output.kind == "console":
        return stored.writeStream.format("console").options(truncate="false", **output.options)
    if output.kind not in ("parquet", *LAKES):
        return stored.writeStream.format(output.kind).options(**output.options, **_path(output))
    path = str(table_path(pipeline, output, directory))
    if output.kind == "parquet":
        writer = stored.writeStream.format("parquet").options(**output.options).option("path", path)
        return writer.partitionBy(*output.partition_by) if output.partition_by else writer
    table = output.options.get("table", f"default.{output.name}")
    options = {"format": LAKES[output.kind], "path": path, "conf": json.dumps(dict(pipeline.settings.conf))}
    options |= {**output.options, "table": table, "partition_by": ",".join(output.partition_by)}
    return stored.writeStream.format("penstock_lake").options(**options)


def _path(output: Output) -> dict[str, str]:
    return {"path": output.target} if output.target else {}


def queue_writer(frame: Any, topic: str, options: dict[str, str], where: Where) -> Any:
    """To a queue, exactly once. A queue that is named goes before a column `topic`, which a source has, too."""
    named = {"topic": topic} if topic else {}
    messages = as_messages(frame.drop("topic") if topic else frame)
    return messages.writeStream.format("penstock").options(**{**where.options(), **named, **options})


def as_messages(frame: Any) -> Any:
    """A frame with a column `value`: that of the frame, or all its other columns as JSON."""
    from pyspark.sql import functions as sql

    plain = without_message(frame)
    if "value" in plain.columns:
        return plain
    own = [name for name in plain.columns if name in MESSAGE_COLUMNS]
    body = [name for name in plain.columns if name not in MESSAGE_COLUMNS]
    return plain.select(sql.to_json(sql.struct(*body)).alias("value"), *own)


def check_partition_columns(frame: Any, output: Output) -> None:
    """Columns to partition by must be there."""
    missing = [name for name in output.partition_by if name not in frame.columns]
    if missing:
        there = ", ".join(frame.columns)
        text = f"partition_by names {', '.join(missing)}, and the columns are: {there}"
        raise InvalidDefinition([Problem(output.at, text)])
