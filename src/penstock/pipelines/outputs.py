"""Starting what writes a query's rows: to a queue, to files, to a Delta or Iceberg table, or to the screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.pipelines.definition import Output, Pipeline
from penstock.pipelines.errors import InvalidDefinition, PipelineError, Problem, reason_of
from penstock.pipelines.frames import table_path, without_message
from penstock.pipelines.lakes import append_delta, append_iceberg
from penstock.pipelines.where import Where

MESSAGE_COLUMNS = ("value", "topic", "key", "headers", "priority", "delay", "dedupId")
CONSOLE_ROWS = 20


class WriteError(PipelineError):
    """A batch could not be written."""


def writer_of(frame: Any, pipeline: Pipeline, output: Output, where: Where, directory: Path, checkpoint: Path) -> Any:
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
    append = _to_lake(output, table_path(pipeline, output, directory), checkpoint)
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


def _to_lake(output: Output, path: Path, checkpoint: Path) -> Any:
    name = output.options.get("table", f"default.{output.name}")

    def append(batch: Any, number: int) -> None:
        query_id = json.loads((checkpoint / "metadata").read_text())["id"]
        table = batch.toArrow()
        if not table.num_rows:
            return
        if output.kind == "delta":
            append_delta(path, table, query_id, number, output.partition_by)
        else:
            append_iceberg(path, name, table, query_id, number)

    return append


def check_partition_columns(frame: Any, output: Output) -> None:
    """Columns to partition by must be there."""
    missing = [name for name in output.partition_by if name not in frame.columns]
    if missing:
        there = ", ".join(frame.columns)
        text = f"partition_by names {', '.join(missing)}, and the columns are: {there}"
        raise InvalidDefinition([Problem(output.at, text)])
