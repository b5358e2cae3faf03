"""Record batches in the columns of Spark's Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from penstock.core.partition import PARTITION_SHIFT

ROWS_MIN = 4_096
"""Smaller batches are joined: each one costs Spark some time."""
_CREATE_TIME = pa.scalar(0, pa.int32())


@cache
def arrow_schema(*, include_headers: bool) -> Any:
    """The schema of `spark/columns.py`, in Arrow."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
    if include_headers:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields.append(("headers", pa.list_(header)))
    return pa.schema(fields)


def kafka_columns(queue: str, batch: Any, *, include_headers: bool) -> Any:
    """A batch of `wire/arrow.py` with the columns that Spark is promised. Its messages are of one partition."""
    schema = arrow_schema(include_headers=include_headers)
    rows = batch.num_rows
    partition = batch["offset"][0].as_py() >> PARTITION_SHIFT if rows else 0
    columns = [
        batch["key"],
        batch["value"],
        pa.repeat(pa.scalar(queue, pa.string()), rows),
        pa.repeat(pa.scalar(partition, pa.int32()), rows),
        batch["offset"],
        batch["timestamp"],
        pa.repeat(_CREATE_TIME, rows),
    ]
    if include_headers:
        columns.append(batch["headers"].cast(schema.field("headers").type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def joined(batches: Iterator[Any]) -> Iterator[Any]:
    """The same rows, without small batches in between; large ones pass untouched."""
    small: list[Any] = []
    rows = 0
    for batch in batches:
        if batch.num_rows >= ROWS_MIN // 2 and not small:
            yield batch
            continue
        small.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_MIN:
            yield from _join(small)
            small, rows = [], 0
    yield from _join(small)


def _join(batches: list[Any]) -> Iterator[Any]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
