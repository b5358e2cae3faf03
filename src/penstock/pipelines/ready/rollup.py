"""Rollup: what happened on a server, counted and timed by queue and window, from its event records (docs/events.md).

A table is a directory. `events` holds the events that were read, by date: each once, and for good, though the server
forgets them. `windows` holds what they amount to; a date that has got new events is computed anew, so late events and
exact percentiles are no trouble. Both are Parquet.

    queue                        string
    start, end                   timestamp    of the window
    sent, received, acked        double       messages (doubles: with sampling, counts are estimates)
    released, expired, dead      double
    retries                      double       deliveries that were not the first
    sent_bytes                   double
    receive_p50_ms .. _max_ms    double       from send to first receive: p50, p95, p99, max
    ack_p50_ms .. _max_ms        double       from send to ack
    lost_events                  double       events that are missing (of queue "")
    date                         date         of the window's start
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.definition import seconds_of
from penstock.pipelines.errors import IncompatibleCheckpoint, PipelineFailed, reason_of
from penstock.pipelines.progress import Display
from penstock.pipelines.ready.archive import query_id
from penstock.pipelines.ready.landing import Landing, write_json
from penstock.pipelines.runner import run_stream, tell
from penstock.pipelines.where import Where

EVENTS_QUEUE = "penstock.events"
EVENT = (
    "at bigint, what string, queue string, channel string, first bigint, last bigint, count bigint, attempt int, "
    "latency_ms bigint, bytes bigint, session string, error string, sample double"
)
STORED = (
    "offset bigint, at timestamp, what string, queue string, channel string, first bigint, last bigint, count bigint, "
    "attempt int, latency_ms bigint, bytes bigint, session string, error string, sample double, date date"
)
_PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


@dataclass(frozen=True)
class RolledUp:
    """What a run has done."""

    events: int
    """Read by this run."""
    dates: int
    """Computed anew."""
    report: Path | None = None
    stopped: bool = False


def rollup(
    spark: Any,
    where: Where,
    table: str | Path,
    *,
    window: str = "1 minute",
    queue: str = EVENTS_QUEUE,
    report: str | Path | None = None,
    once: bool = True,
    every: str = "30 seconds",
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> RolledUp:
    """Read new events, and bring the table up to date; with `report`, draw it, too."""
    if seconds_of(window) is None:
        raise InvalidRequest(f"window is {window!r}: write one like '1 minute'")
    if where.url is None:
        raise InvalidRequest("a rollup needs a server (a url): the stream of events is a channel there")
    events, windows = Landing(Path(table) / "events"), Landing(Path(table) / "windows")
    with events.opened(), windows.opened():
        _accept(windows, {"window": window, "queue": queue})
        checkpoint = events.own / "checkpoint"

        def land(batch: Any, number: int) -> None:
            events.land(batch, query_id(checkpoint), number, ("date",))
            if not once:
                _bring_up_to_date(spark, events, windows, window, report)

        writer = _parsed(spark, where, queue).writeStream.foreachBatch(land)
        done = run_stream(writer, "rollup", checkpoint, once=once, every=every, display=display, stop=stop)
        events.compact()
        try:
            dates = _bring_up_to_date(spark, events, windows, window, report)
        except PipelineFailed:
            raise
        except Exception as error:
            raise PipelineFailed(f"rollup: {reason_of(error)}") from error
    if report is not None:
        tell(display)(f"rollup: the report is {report}")
    return RolledUp(done.rows, dates, None if report is None else Path(report), done.stopped)


def _accept(windows: Landing, wanted: dict[str, str]) -> None:
    """The first run says what a table holds; later ones must want the same."""
    file = windows.own / "rollup.json"
    found = json.loads(file.read_text()) if file.exists() else wanted
    if found != wanted:
        raise IncompatibleCheckpoint(
            f"{windows.path.parent} has windows of {found['window']} from {found['queue']}, and now {wanted['window']} "
            f"from {wanted['queue']} is wanted: use another table, or the same as before"
        )
    write_json(file, wanted)


def _parsed(spark: Any, where: Where, queue: str) -> Any:
    from pyspark.sql import functions as sql

    options = {"subscribe": queue, "startingOffsets": "earliest", "failOnDataLoss": "false"}
    limits = {"groupIdPrefix": "rollup", "maxOffsetsPerTrigger": "500000"}
    stream = spark.readStream.format("penstock").options(**where.options(), **options, **limits).load()
    event = sql.from_json(sql.col("value").cast("string"), EVENT)
    parsed = stream.select("offset", event.alias("event")).select("offset", "event.*").where("what is not null")
    timed = parsed.withColumn("at", sql.timestamp_millis("at")).withColumn("date", sql.to_date("at"))
    return timed.withColumn("sample", sql.coalesce("sample", sql.lit(1.0)))


def _bring_up_to_date(spark: Any, events: Landing, windows: Landing, window: str, report: str | Path | None) -> int:
    """Compute the dates that have got events since they were computed last. Returns how many."""
    stale = [
        each for each in sorted(events.path.glob("date=*")) if _newest_s(each) > _newest_s(windows.path / each.name)
    ]
    for date in stale:
        found = spark.read.schema(STORED).parquet(str(events.path)).where(f"date = '{date.name.partition('=')[2]}'")
        windows.replace(windows_of(found, window).coalesce(1), [windows.path / date.name], ("date",))
    if report is not None:
        from penstock.pipelines.ready.report import report as draw

        draw(windows.path.parent, report)
    return len(stale)


def _newest_s(directory: Path) -> float:
    return max((file.stat().st_mtime for file in directory.glob("*.parquet")), default=0.0)


def windows_of(events: Any, window: str) -> Any:
    """Events to what they amount to, by queue and window."""
    from pyspark.sql import functions as sql

    weighted = events.withColumn("messages", sql.expr("coalesce(count, 0) / sample"))
    grouped = weighted.withColumn("queue", sql.coalesce("queue", sql.lit(""))).groupBy(
        "date", "queue", sql.window("at", window).alias("window")
    )
    first_receive = "what = 'received' and attempt = 1 and latency_ms >= 0"
    acked = "what = 'acked' and latency_ms >= 0"
    totals = {name: f"what = '{name}'" for name in ("sent", "received", "acked", "released", "expired", "dead")}
    totals |= {"retries": "what = 'received' and attempt > 1", "lost_events": "what = 'dropped'"}
    columns = [_sum("messages", condition).alias(name) for name, condition in totals.items()]
    columns.append(_sum("coalesce(bytes, 0) / sample", totals["sent"]).alias("sent_bytes"))
    for name, condition in (("receive", first_receive), ("ack", acked)):
        columns += [_percentile(share, condition).alias(f"{name}_{short}_ms") for short, share in _PERCENTILES]
        columns.append(sql.expr(f"max(case when {condition} then double(latency_ms) end)").alias(f"{name}_max_ms"))
    rows = grouped.agg(*columns).select("*", "window.start", "window.end").drop("window")
    return rows.orderBy("start", "queue")


def _sum(what: str, condition: str) -> Any:
    from pyspark.sql import functions as sql

    return sql.expr(f"coalesce(sum(case when {condition} then {what} end), 0D)")


def _percentile(share: float, condition: str) -> Any:
    """Exact, and by messages: an event stands for all of its run."""
    from pyspark.sql import functions as sql

    value, weight = f"case when {condition} then latency_ms end", "greatest(1, bigint(round(messages)))"
    return sql.expr(f"double(percentile({value}, {share}, {weight}))")
