"""SQL over queues, without a job: `select ... from queue('orders')`. A batch read; nothing is taken from the queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import reason_of
from penstock.pipelines.sql_names import replace_queues
from penstock.pipelines.where import Where

SCHEMA_NOTE = "a queue has the columns key, value (bytes: cast(value as string)), topic, partition, offset, timestamp"


def frame_of(spark: Any, sql: str, where: Where) -> Any:
    """The frame of a query in which `queue('name')` stands for a queue."""
    from pyspark.errors import AnalysisException

    try:
        rewritten, calls = replace_queues(sql)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    try:
        for name, call in calls.items():
            reader = spark.read.format("penstock").options(**where.options(), subscribe=call.queue, **call.options)
            reader.load().createOrReplaceTempView(name)
        return spark.sql(rewritten)
    except AnalysisException as error:
        raise InvalidRequest(f"{_first_line(error)} ({SCHEMA_NOTE})") from None


def rows_of(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a frame, one after the other, as plain values; bytes that are text become text."""
    try:
        for row in frame.toLocalIterator():
            yield {name: plain(value) for name, value in row.asDict(recursive=True).items()}
    except Exception as error:
        raise InvalidRequest(reason_of(error)) from None


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain(bytearray(b"tea")), plain({"a": bytes([255])}), plain(3)
    ('tea', {'a': '\\\\xff'}, 3)
    """
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
