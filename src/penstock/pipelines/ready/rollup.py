"""Rollup: the event records of a server (docs/events.md), by date: each once, and for good, though the server forgets.

What they amount to is not a materialized view, because Spark computes one as a whole each time, and events are kept for
years: `windows.py` computes the dates that have got new events.
"""

from __future__ import annotations

from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import functions as sql

from penstock.pipelines import lake_sink, parameter, queue
from penstock.pipelines.ready.windows import EVENT

EVENTS, PATH = parameter("queue", "penstock.events"), parameter("path", "events")

dp.create_sink("events", "penstock_lake", lake_sink("parquet", PATH, partition_by="date"))


@dp.append_flow(target="events", name="events")
def events() -> Any:
    """The events, as rows."""
    stream = queue(EVENTS, failOnDataLoss=False, maxOffsetsPerTrigger=500_000, groupIdPrefix="rollup")
    event = sql.from_json(sql.col("value").cast("string"), EVENT)
    parsed = stream.select("offset", event.alias("event")).select("offset", "event.*").where("what is not null")
    timed = parsed.withColumn("at", sql.timestamp_millis("at")).withColumn("date", sql.to_date("at"))
    return timed.withColumn("sample", sql.coalesce("sample", sql.lit(1.0)))
