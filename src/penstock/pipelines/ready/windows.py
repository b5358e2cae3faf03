"""What happened on a server, counted and timed by queue and window, from the events that `rollup.py` keeps.

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
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.checkpoints import State
from penstock.pipelines.definition import Pipeline, seconds_of
from penstock.pipelines.errors import IncompatibleCheckpoint, PipelineFailed, reason_of
from penstock.pipelines.landing import OWN, Landing, write_json
from penstock.pipelines.locations import local
from penstock.pipelines.ready import ready_pipeline, take_over

EVENT = (
    "at bigint, what string, queue string, channel string, first bigint, last bigint, count bigint, attempt int, "
    "latency_ms bigint, bytes bigint, session string, error string, sample double"
)
STORED = (
    "offset bigint, at timestamp, what string, queue string, channel string, first bigint, last bigint, count bigint, "
    "attempt int, latency_ms bigint, bytes bigint, session string, error string, sample double, date date"
)
_PERCENTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def rollup_pipeline(
    table: str | Path, queue: str = "penstock.events", window: str = "1 minute"
) -> tuple[Pipeline, State]:
    """The pipeline that keeps a server's events, and its state. The first run says what a table holds."""
    if seconds_of(window) is None:
        raise InvalidRequest(f"window is {window!r}: write it like '1 minute'")
    place = local(table, "this table").resolve()
    pipeline = ready_pipeline("rollup", f"rollup-{queue}-{window}", {"queue": queue, "path": "events"}, place)
    state, events, windows = State(place / OWN), Landing(place / "events"), Landing(place / "windows")
    wanted, about = {"window": window, "queue": queue}, windows.own / "rollup.json"
    with state.locked(), events.opened(), windows.opened():
        found = json.loads(about.read_text()) if about.exists() else wanted
        if found != wanted:
            raise IncompatibleCheckpoint(
                f"{place} has windows of {found['window']} from {found['queue']}, and not {window} from {queue}: use "
                "another table, or the same arguments as before"
            )
        write_json(about, wanted)
        take_over(events.own / "checkpoint", state, "events")
    return pipeline, state


def bring_up_to_date(spark: Any, table: str | Path, window: str, report: str | Path | None = None) -> int:
    """Compute the dates that have got events since they were computed last. Returns how many."""
    events = Path(table).resolve() / "events"
    try:
        with Landing(Path(table) / "windows").opened() as windows:
            stale = [
                each for each in sorted(events.glob("date=*")) if _newest_s(each) > _newest_s(windows.path / each.name)
            ]
            for date in stale:
                found = spark.read.schema(STORED).parquet(str(events)).where(f"date = '{date.name.partition('=')[2]}'")
                windows.replace(windows_of(found, window).toArrow(), [windows.path / date.name], ("date",))
    except Exception as error:
        raise PipelineFailed(f"rollup: {reason_of(error)}") from error
    if report is not None:
        from penstock.pipelines.ready.report import report as draw

        draw(table, report)
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
