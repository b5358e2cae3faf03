"""Join, as an example of a pipeline with two streams: two queues joined within a time window into a third one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.definition import seconds_of
from penstock.pipelines.errors import reason_of
from penstock.pipelines.locations import local
from penstock.pipelines.progress import Display
from penstock.pipelines.runner import Followed, run_stream
from penstock.pipelines.where import Where


def join(
    spark: Any,
    where: Where,
    left: str,
    right: str,
    to: str,
    *,
    on: str = "key",
    within: str = "10 minutes",
    checkpoint: str | Path,
    once: bool = True,
    every: str = "5 seconds",
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Followed:
    """Send a message for each pair of messages that agree on something and were sent within some time of each other.

    `on` is SQL over a message: `key`, or `get_json_object(cast(value as string), '$.order')`. The new message is JSON:
    `{"on", "left", "right", "left_at", "right_at"}`, with the bodies as text; its key is what they agree on.
    """
    seconds = seconds_of(within)
    if seconds is None:
        raise InvalidRequest(f"within is {within!r}: write it like '10 minutes'")
    if where.url is None:
        raise InvalidRequest("join sends, and for that it needs a server (a url)")
    if to in (left, right):
        raise InvalidRequest(f"queue {to!r} is joined, and cannot get the result: name another one")
    one, other = (_side(spark, where, queue, on, within, name) for queue, name in ((left, "left"), (right, "right")))
    writer = joined(one, other, seconds).writeStream.format("penstock").options(**where.options(), topic=to)
    place = local(checkpoint, "this checkpoint").resolve()
    return run_stream(writer, "join", place, once=once, every=every, display=display, stop=stop)


def _side(spark: Any, where: Where, queue: str, on: str, within: str, name: str) -> Any:
    options = {"subscribe": queue, "startingOffsets": "earliest", "groupIdPrefix": f"join-{name}"}
    stream = spark.readStream.format("penstock").options(**where.options(), **options).load()
    expression = "cast(key as string)" if on == "key" else on
    columns = (f"{expression} as {name}_on", f"cast(value as string) as {name}", f"timestamp as {name}_at")
    try:
        side = stream.selectExpr(*columns)
    except Exception as error:
        raise InvalidRequest(f"on is {on!r}: {reason_of(error)}") from None
    return side.where(f"{name}_on is not null").withWatermark(f"{name}_at", within)


def joined(left: Any, right: Any, seconds: float) -> Any:
    """Two sides (their columns begin with left and right) as messages: one for each pair within so many seconds."""
    from pyspark.sql import functions as sql

    near = f"interval {seconds} seconds"
    met = left.join(
        right,
        sql.expr(f"left_on = right_on and right_at between left_at - {near} and left_at + {near}"),
    )
    body = "to_json(struct(left_on as on, left, right, left_at, right_at)) as value"
    return met.selectExpr(body, "left_on as key")
