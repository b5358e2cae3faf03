"""Rows that fail parsing or a check: found, kept out of the way, and sent to the dead-letter queue with the reason.

A step that parses or checks splits its rows in two. The good ones go on. The others are not lost, and not handled by
every sink that reads the step: one query of its own (`rejects`) reads the same messages, keeps the rows that failed in
any step, and sends them with the connector's exactly-once sink. So each is one dead letter, however often anything is
killed, and however many sinks there are. The price is that messages are read once more.

`_message` is the message that a row came from (topic, offset, body, ...). Parsing adds it; steps carry it on by
`select *`; sinks leave it out. A dead letter's body is the message's own. Without `_message`, it is the row as JSON.
"""

from __future__ import annotations

from typing import Any

from penstock.pipelines.definition import Check, Parse, View

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
    """Rows that failed as messages: the original body and group, and attributes that say why."""
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
    return rejected.select(body.alias("value"), key.alias("key"), headers.alias("headers"))


def _fields_of_message(frame: Any) -> list[str]:
    if MESSAGE in frame.columns:
        return list(frame.schema[MESSAGE].dataType.names)
    return [name for name in _PARTS if name in frame.columns] if "value" in frame.columns else []


def _part(frame: Any, name: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.col(MESSAGE)[name] if MESSAGE in frame.columns else sql.col(name)
