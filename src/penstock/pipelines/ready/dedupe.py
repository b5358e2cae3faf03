"""Dedupe: a queue is copied to another one, without messages that came before within some time."""

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


def dedupe(
    spark: Any,
    where: Where,
    source: str,
    to: str,
    *,
    by: str = "content",
    within: str = "10 minutes",
    checkpoint: str | Path,
    once: bool = True,
    every: str = "5 seconds",
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Followed:
    """Copy each message, except one whose like was sent up to `within` before. Exactly once.

    Alike are messages `by` key (those without one are all copied), `by` content (the same body), or by any other SQL
    expression over key, value (both binary), headers and timestamp. What is remembered is bounded by `within`: it is
    kept in the checkpoint.
    """
    if seconds_of(within) is None:
        raise InvalidRequest(f"within is {within!r}: write it like '10 minutes'")
    if where.url is None:
        raise InvalidRequest("dedupe sends, and for that it needs a server (a url)")
    if source == to:
        raise InvalidRequest(f"queue {to!r} cannot be deduplicated into itself: name another one")
    options = {"subscribe": source, "includeHeaders": "true", "startingOffsets": "earliest"}
    limits = {"maxOffsetsPerTrigger": "200000", "groupIdPrefix": "dedupe"}
    stream = spark.readStream.format("penstock").options(**where.options(), **options, **limits).load()
    copied = without_duplicates(stream, by, within).select("value", "key", "headers")
    writer = copied.writeStream.format("penstock").options(**where.options(), topic=to)
    return run_stream(
        writer,
        "dedupe",
        local(checkpoint, "this checkpoint").resolve(),
        once=once,
        every=every,
        display=display,
        stop=stop,
    )


def without_duplicates(frame: Any, by: str, within: str) -> Any:
    """A stream without what came before within some time of its watermark."""
    from pyspark.sql import functions as sql

    # without a key there is nothing to be alike in: the place in the queue is a message's own
    by_key = "coalesce(hex(key), concat(topic, '#', offset))"
    alike = {"key": by_key, "content": "sha2(value, 256)"}.get(by, by)
    try:
        marked = frame.withColumn("_alike", sql.expr(alike))
    except Exception as error:
        raise InvalidRequest(f"by is {by!r}: {reason_of(error)} (use key, content, or SQL over columns)") from None
    return marked.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(["_alike"]).drop("_alike")
