"""Dedupe: a queue is copied to another one, without messages that came before within some time. Each once.

Alike are messages by key (those without one are all copied), by content (the same body), or by any other SQL expression
over key, value (both binary), headers and timestamp. What is remembered is bounded by the time: a watermark.
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import functions as sql

from penstock.pipelines import parameter, queue, queue_sink
from penstock.pipelines.definition import seconds_of

SOURCE, TO = parameter("from"), parameter("to")
BY, WITHIN = parameter("by", "content"), parameter("within", "10 minutes")
ALIKE = {
    # without a key there is nothing to be alike in: the place in the queue is a message's own
    "key": "coalesce(hex(key), concat(topic, '#', offset))",
    "content": "sha2(value, 256)",
}

if seconds_of(WITHIN) is None:
    raise ValueError(f"within is {WITHIN!r}: write it like '10 minutes'")
if SOURCE == TO:
    raise ValueError(f"queue {TO!r} cannot be deduplicated into itself: name another one")

dp.create_sink("copy", "penstock", queue_sink(TO))


@dp.append_flow(target="copy")
def unique() -> Any:
    """The messages that are copied."""
    marked = queue(SOURCE).withColumn("_alike", sql.expr(ALIKE.get(BY, BY)))
    kept = marked.withWatermark("timestamp", WITHIN).dropDuplicatesWithinWatermark(["_alike"])
    return kept.select("value", "key", "headers")
