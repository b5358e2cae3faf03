"""What Spark's declarative pipelines lack, as functions of frames: queues, parsing, checks, dead letters.

They work under `penstock pipeline run` and under `spark-pipelines run`. Under the latter, a function of a pipeline may
not ask for the columns of a frame, so nothing here needs to know them; where they can be known, they are made use of.

`_message` is the message that a row came from (topic, offset, body, ...). Parsing adds it, steps carry it on by
`select *`, sinks leave it out. A dead letter's body is the message's own. Without `_message`, it is the row as JSON.

Rows that fail a step are split off, and sent by a query of their own that reads the same messages. So each is one dead
letter, however often anything is killed, and however many sinks there are. The price is that messages are read again.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.pipelines.definition import PARSE_FORMATS
from penstock.pipelines.where import http_url

MESSAGE = "_message"
PARAMETER = "PENSTOCK_PARAMETER_"
REASON = "_penstock_reason"
REJECTS_METRICS = "penstock rejects of "
"""The name of the counts that Spark observes, before the step's."""
DEFAULTS = {
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "200000",
    "maxBytesPerTrigger": str(64 * 1024 * 1024),
}
"""Options of a source that says nothing else: all that is there, in batches that a sink can take in one commit."""
_STARTS = ("startingoffsets", "startingtimestamp")
_PARSED = "_penstock_parsed"
_CORRUPT = "_penstock_corrupt"
_PARTS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class Running:
    """The pipeline that is being read, or whose frames are being made, by `penstock pipeline`."""

    pipeline: str
    read_queue: Callable[[str, Mapping[str, str]], Any] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


running: contextvars.ContextVar[Running | None] = contextvars.ContextVar("penstock_pipeline", default=None)
"""None under `spark-pipelines`."""


def queue(*names: str, **options: Any) -> Any:
    """The stream of one queue or of several; `options` are the connector's.

    The server is the one that `penstock pipeline run` was told of; under `spark-pipelines`, it is `PENSTOCK_URL`.
    """
    now = running.get()
    if now is not None and now.read_queue is None:
        raise RuntimeError("call queue() inside a function of the pipeline, and not at the top of the file")
    given = {key: str(each).lower() if isinstance(each, bool) else str(each) for key, each in options.items()}
    if names:
        given["subscribe"] = ",".join(names)
    if now is not None and now.read_queue is not None:
        return now.read_queue(",".join(names), given)
    from pyspark.sql import SparkSession

    settings = {"groupIdPrefix": "pipeline", **_server(), **source_options(given)}
    return SparkSession.active().readStream.format("penstock").options(**settings).load()


def parameter(name: str, default: str | None = None) -> str:
    """What a pipeline is told from outside: of a ready one its flags, else `PENSTOCK_PARAMETER_<NAME>`.

    >>> parameter("within", "10 minutes")
    '10 minutes'
    """
    now = running.get()
    told = {} if now is None else now.parameters
    given = told.get(name, os.environ.get(f"{PARAMETER}{name.upper()}", default))
    if given is None:
        raise ValueError(f"the parameter {name!r} has no value and no default: set {PARAMETER}{name.upper()}")
    return given


def queue_sink(topic: str | None = None, **options: str) -> dict[str, str]:
    """Options of a sink that sends to a queue, for `dp.create_sink(name, "penstock", queue_sink("totals"))`.

    Without a topic, the column `topic` of each row names the queue.

    >>> token = running.set(Running("orders"))
    >>> queue_sink("totals", exactlyOnce="false")
    {'exactlyOnce': 'false', 'topic': 'totals'}
    >>> running.reset(token)
    """
    named = {} if topic is None else {"topic": topic}
    return {**({} if running.get() is not None else _server()), **options, **named}


def lake_sink(format: str, path: str, **options: str) -> dict[str, str]:
    """Options of a Delta or Iceberg table: `dp.create_sink(name, "penstock_lake", lake_sink("delta", "lake/orders"))`.

    Each batch is in the table once. Options: `partition_by`; for Iceberg `table` and `catalog`. The format parquet
    gives files that any reader may read: what is there is whole. They have to be in a directory of this machine.

    >>> lake_sink("delta", "lake/orders", partition_by="day")
    {'format': 'delta', 'path': 'lake/orders', 'partition_by': 'day'}
    """
    return {"format": format, "path": path, **options}


def messages(frame: Any, key: str | None = None) -> Any:
    """The rows of a frame as messages: each as JSON, in the column `value`. `key` is SQL: the group of each message."""
    from pyspark.sql import functions as sql

    named = [] if key is None else [sql.expr(key).cast("string").alias("key")]
    # not frame.drop(): a server of Spark Connect analyses that at once, and spark-pipelines allows no analysis
    return frame.select(sql.to_json(sql.struct("*").dropFields(MESSAGE)).alias("value"), *named)


def checked(
    *,
    parse: str | None = None,
    schema: str = "",
    checks: Mapping[str, str] | None = None,
    dead_letters: str,
    name: str | None = None,
    watermark: tuple[str, str] | None = None,
    keep_message: bool = False,
) -> Callable[[Callable[[], Any]], None]:
    """A decorator: the function's rows, parsed and checked, are a temporary view; those that fail are dead letters.

    `parse` is json, csv (both with a `schema`) or text, and makes columns of the column `value`. `checks` are
    conditions in SQL by name; a row must meet them all, and null does not meet one. `keep_message` keeps the column
    `_message`, so that rows that fail a later check still are dead letters of the message that they came from.
    """
    if parse is not None and parse not in PARSE_FORMATS:
        raise ValueError(f"parse is {parse!r}: use one of {', '.join(PARSE_FORMATS)}")
    if (parse in ("json", "csv")) != bool(schema):
        raise ValueError("json and csv need a schema, such as: id bigint, amount double; other formats take none")
    conditions = dict(checks or {})

    def decorate(function: Callable[[], Any]) -> None:
        from pyspark import pipelines as dp

        view = name or function.__name__

        def good() -> Any:
            rows, _ = split(function(), parse, schema, conditions)
            rows = rows if keep_message else rows.drop(MESSAGE)
            return rows if watermark is None else rows.withWatermark(*watermark)

        def rejects() -> Any:
            source = function()
            fields = message_fields(source, is_parsed=parse is not None)
            _, rejected = split(source, parse, schema, conditions)
            return as_dead_letters(rejected, view, fields, reasons(parse, schema, conditions))

        dp.temporary_view(name=view)(good)
        sink = f"{view}_rejects"
        dp.create_sink(sink, "penstock", queue_sink(dead_letters))
        dp.append_flow(target=sink, name=sink)(rejects)

    return decorate


def source_options(given: Mapping[str, str]) -> dict[str, str]:
    """A source's options, with what holds unless they say otherwise."""
    lower = {option.lower() for option in given}
    wanted = {
        option: value
        for option, value in (*DEFAULTS.items(), ("includeHeaders", "true"))
        if option.lower() not in lower
    }
    if any(start in lower for start in _STARTS):
        wanted.pop("startingOffsets", None)
    return {**wanted, **given}


def _server() -> dict[str, str]:
    """Where the queues are, if nobody but the environment says it."""
    found = {"url": http_url(os.environ.get("PENSTOCK_URL") or "http://localhost:9325")}
    found["token"] = os.environ.get("PENSTOCK_TOKEN")
    return {key: value for key, value in found.items() if value}


# -- rows that fail ----------------------------------------------------------------------------------------------------


def split(frame: Any, parse: str | None, schema: str, checks: Mapping[str, str]) -> tuple[Any, Any]:
    """The rows that are good, and those that are not (with `_penstock_reason`)."""
    from pyspark.sql import functions as sql

    failed = [
        sql.when(~sql.coalesce(sql.expr(f"({condition})"), sql.lit(False)), sql.lit(f"check failed: {name}"))
        for name, condition in checks.items()
    ]
    reason = sql.coalesce(*failed) if failed else sql.lit(None).cast("string")
    if parse is not None:
        frame = _parsed(frame, parse, schema)
        reason = sql.coalesce(sql.col(REASON), reason)
    marked = frame.withColumn(REASON, reason)
    return marked.where(sql.col(REASON).isNull()).drop(REASON), marked.where(sql.col(REASON).isNotNull())


def reasons(parse: str | None, schema: str, checks: Mapping[str, str]) -> list[str]:
    """All that can be said of a row that fails."""
    parsing = {None: [], "text": [_NO_TEXT], "csv": [_NO_TEXT, _no_fit(schema)]}
    found = parsing.get(parse, [_NO_TEXT, _NO_JSON, _no_fit(schema)])
    return [*found, *(f"check failed: {name}" for name in checks)]


_NO_TEXT, _NO_JSON = "the body is not UTF-8", "the body is not JSON"


def _no_fit(schema: str) -> str:
    return f"the body does not fit the schema: {schema}"


def _parsed(frame: Any, format: str, schema: str) -> Any:
    """The columns of the bodies, the message, and why a body could not be read."""
    from pyspark.sql import functions as sql

    columns = _columns(frame)
    if columns is not None and "value" not in columns:
        raise ValueError(f"parse needs a column value, the body of a message; there are: {', '.join(columns)}")
    text = sql.col("value").cast("string")
    not_text = sql.when(~sql.is_valid_utf8(text), sql.lit(_NO_TEXT))
    if columns is not None and MESSAGE in columns:
        message = sql.col(MESSAGE)
    else:
        message = sql.struct(*[sql.col(name) for name in _PARTS if columns is None or name in columns])
    if format == "text":
        return frame.select(text.alias("text"), message.alias(MESSAGE), not_text.alias(REASON))
    read = sql.from_json if format == "json" else sql.from_csv
    parsed = read(text, f"{schema}, {_CORRUPT} string", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    held = frame.select(parsed.alias(_PARSED), message.alias(MESSAGE), not_text.alias(REASON), text.alias("_text"))
    failed = sql.col(_PARSED).isNull() | sql.col(_PARSED)[_CORRUPT].isNotNull()
    why = sql.lit(_no_fit(schema))
    if format == "json":
        why = sql.when(sql.try_parse_json(sql.col("_text")).isNotNull(), why).otherwise(sql.lit(_NO_JSON))
    reason = sql.coalesce(sql.col(REASON), sql.when(failed, why))
    return held.select(f"{_PARSED}.*", sql.col(MESSAGE), reason.alias(REASON)).drop(_CORRUPT)


def _columns(frame: Any) -> list[str] | None:
    """The columns of a frame; None where a pipeline's function may not ask."""
    if running.get() is not None:
        return list(frame.columns)
    try:
        return list(frame.columns)
    except Exception:  # spark-pipelines: ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION
        return None


def message_fields(frame: Any, *, is_parsed: bool) -> list[str]:
    """What is known of the message that a row came from, before the rows are parsed."""
    columns = _columns(frame)
    if columns is None:
        return list(_PARTS) if is_parsed else []
    if MESSAGE in columns:
        return list(frame.schema[MESSAGE].dataType.names)
    return [name for name in _PARTS if name in columns] if "value" in columns else []


_BEHIND = {
    "deadOrigin": "struct<queue:string,channel:string,offset:bigint,id:string>",
    "deadReason": "string",
    "attempts": "int",
    "timestamp": "timestamp",
}
"""The columns of a dead letter, besides those of a message."""
_HEADERS = "array<struct<key:string,value:binary>>"


def as_dead_letters(rejected: Any, step: str, fields: list[str], known: list[str]) -> Any:
    """Rows that failed as dead letters: the original body and group, where they come from, and why they are here.

    What they have behind them is what the engine's own dead letters have, so that whatever redrives those redrives
    them. A row that no message is known of has attributes only. How many fail for each `known` reason is counted.
    """
    from pyspark.sql import functions as sql

    now = running.get()
    pipeline = "spark-pipelines" if now is None else now.pipeline
    if now is not None and known:
        counts = [sql.count_if(sql.col(REASON) == sql.lit(each)).alias(each) for each in known]
        rejected = rejected.observe(f"{REJECTS_METRICS}{step}", *counts)
    is_whole = MESSAGE in (_columns(rejected) or ([MESSAGE] if fields else []))

    def part(name: str) -> Any:
        return sql.col(MESSAGE)[name] if is_whole else sql.col(name)

    if "value" in fields:
        body = part("value").cast("binary")
    else:
        body = sql.to_json(sql.struct("*").dropFields(REASON, MESSAGE)).cast("binary")
    said = {"reason": sql.col(REASON), "step": sql.lit(step), "pipeline": sql.lit(pipeline)}
    said |= {
        name: part(field)
        for name, field in {"queue": "topic", "offset": "offset", "sent_at": "timestamp"}.items()
        if field in fields
    }
    pairs = [
        sql.struct(sql.lit(f"penstock.{name}").alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in said.items()
    ]
    headers = sql.filter(sql.array(*pairs), lambda pair: pair["value"].isNotNull())
    if "headers" in fields:
        own = sql.coalesce(part("headers"), sql.expr("array()").cast(_HEADERS))
        headers = sql.concat(own, headers.cast(_HEADERS))
    key = part("key").cast("binary") if "key" in fields else sql.lit(None).cast("binary")
    behind: dict[str, Any] = dict.fromkeys(_BEHIND, sql.lit(None))
    if {"topic", "offset"} <= set(fields):
        origin = {"queue": part("topic"), "channel": sql.lit(f"pipeline.{pipeline}"), "offset": part("offset")}
        origin["id"] = sql.lit("")
        behind |= {
            "deadOrigin": sql.struct(*[value.alias(name) for name, value in origin.items()]),
            "deadReason": sql.concat(sql.lit(f"{step}: "), sql.col(REASON)),
            "attempts": sql.lit(1),
        }
        if "timestamp" in fields:
            behind["timestamp"] = part("timestamp")
    return rejected.select(
        body.alias("value"),
        key.alias("key"),
        headers.alias("headers"),
        *[behind[name].cast(kind).alias(name) for name, kind in _BEHIND.items()],
    )
