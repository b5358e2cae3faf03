"""Redrive: dead letters are looked at, chosen by SQL, and sent back to where they came from.

Spark reads them with their history, as anybody's Spark does. It also reads what is done but not removed yet: so the
queue is asked what it still has, and the rest is left out. What stays is the view `dead_letters`:

    queue      string      the dead-letter queue
    sequence   bigint      its number there
    id         string      the message's own id
    origin     string      the queue that it died in
    channel    string      and the channel
    attempts   int         how often it was tried there
    error      string      the last error
    first_error string     the first one
    session    string      who had it last
    failed_at  timestamp   when it failed last
    sent_at    timestamp   when it was first sent
    key        string      its group
    value      string      its body, as text
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import penstock
from penstock.client.sync.penstock import Penstock
from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import reason_of
from penstock.pipelines.progress import Display
from penstock.pipelines.where import Where

VIEW = "dead_letters"
COLUMNS = (
    "topic as queue",
    "offset as sequence",
    "deadOrigin.id as id",
    "coalesce(deadOrigin.queue, '') as origin",
    "coalesce(deadOrigin.channel, '') as channel",
    "coalesce(attempts, 0) as attempts",
    "coalesce(deadReason, '') as error",
    "coalesce(get(history, 0).error, '') as first_error",
    "coalesce(get(history, size(history) - 1).session, '') as session",
    "get(history, size(history) - 1).failedAt as failed_at",
    "timestamp as sent_at",
    "cast(key as string) as key",
    "cast(value as string) as value",
)
MESSAGES_MAX = 1_000_000
"""How many go back in one run."""
TOP = 20
_LOOK_S = 1.0
_PAGE_MESSAGES = 10_000

ANALYSES = {
    "reasons": f"select regexp_replace(error, '[0-9]+', '#') as reason, count(*) as messages, min(failed_at) as first, "
    f"max(failed_at) as last from {VIEW} group by 1 order by messages desc, reason limit {TOP}",
    "queues": f"select origin, channel, count(*) as messages, round(avg(attempts), 1) as attempts, "
    f"min(sent_at) as oldest from {VIEW} group by 1, 2 order by messages desc, origin limit {TOP}",
    "hours": f"select date_trunc('hour', failed_at) as hour, count(*) as messages from {VIEW} group by 1 order by 1",
    "errors": f"select error, count(*) as messages from {VIEW} group by 1 order by messages desc, error limit {TOP}",
}
"""What is asked of dead letters: top reasons (numbers in them made equal), by queue, by hour, by error."""


@dataclass(frozen=True)
class Redriven:
    """What is there, and what was done."""

    dead_letters: int
    analysis: dict[str, list[dict[str, Any]]]
    chosen: int = 0
    moved: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    """Why some of it did not work out."""


def check_queues(where: Where, queues: Sequence[str]) -> None:
    """Raise an error that says so, where there is none."""
    if not queues:
        raise InvalidRequest("say which dead-letter queues to look at, such as orders.dead")
    with penstock.connect(str(where.url), token=where.token) as ps:
        for queue in queues:
            ps.queue(queue).stats()


def redrive(
    spark: Any,
    where: Where,
    queues: Sequence[str],
    *,
    predicate: str | None = None,
    send: bool = False,
    to: str | None = None,
    rate: int | None = None,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Redriven:
    """Look at the dead letters in some queues; with `send`, those that `predicate` (SQL) is true of go back.

    They go where they came from, or to the queue `to`; `rate` is how many a second at most. Without `send` nothing is
    moved, and `chosen` says how many would be. When `stop` is set, it ends; what was moved stays moved.
    """
    check_queues(where, queues)
    with penstock.connect(str(where.url), token=where.token) as ps:
        options = {**where.options(), "subscribe": ",".join(queues), "includeDeadLetters": "true"}
        read = spark.read.format("penstock").options(**options).load().selectExpr(*COLUMNS)
        frame = read.join(_waiting(spark, ps, queues), ["queue", "sequence"], "left_semi").cache()
        frame.createOrReplaceTempView(VIEW)
        try:
            analysis = {name: [row.asDict() for row in spark.sql(asked).collect()] for name, asked in ANALYSES.items()}
            chosen = _choose(frame, predicate)
            found = Redriven(frame.count(), analysis, len(chosen))
        finally:
            spark.catalog.dropTempView(VIEW)
            frame.unpersist()
        return _send(ps, found, chosen, to, rate, display, stop or threading.Event()) if send else found


def _waiting(spark: Any, ps: Penstock, queues: Sequence[str]) -> Any:
    """The messages that are still in these queues, as a table of `queue` and `sequence`."""
    import pyarrow as pa

    found: dict[str, list[Any]] = {"queue": [], "sequence": []}
    for queue in dict.fromkeys(queues):
        after = -1
        while page := ps.queue(queue).browse(after=after, limit=_PAGE_MESSAGES):
            found["queue"] += [queue] * len(page)
            found["sequence"] += [each.sequence for each in page]
            after = page[-1].sequence
    return spark.createDataFrame(pa.table(found, pa.schema([("queue", pa.string()), ("sequence", pa.int64())])))


def _choose(frame: Any, predicate: str | None) -> list[Any]:
    try:
        found = frame if predicate is None else frame.where(predicate)
        rows: list[Any] = found.select("queue", "sequence").orderBy("queue", "sequence").limit(MESSAGES_MAX).collect()
    except Exception as error:
        raise InvalidRequest(f"the condition (where) is not valid: {reason_of(error)}") from None
    return rows


def _send(
    ps: Penstock,
    found: Redriven,
    chosen: list[Any],
    to: str | None,
    rate: int | None,
    display: Display | None,
    stop: threading.Event,
) -> Redriven:
    moved = skipped = 0
    failed: list[str] = []
    for queue in sorted({row["queue"] for row in chosen}):
        sequences = [row["sequence"] for row in chosen if row["queue"] == queue]
        started = ps.redrive(queue, to=to, ids=sequences, rate=rate)
        while (task := started.wait(timeout=_LOOK_S)).status == "running":
            if display is not None:
                display.note(f"redrive: {queue}: {task.moved + task.skipped} of {task.to_move}")
            if stop.is_set():
                started.cancel()
        moved += task.moved
        skipped += task.skipped
        if task.status == "done" and not task.moved:
            failed.append(
                f"{queue}: {len(sequences)} were chosen, but none was moved: leased and delayed messages stay, and so "
                "do messages without an origin if there is no target (to)"
            )
        if task.status != "done":
            failed.append(f"{queue}: {task.status}" + (f": {task.error}" if task.error else ""))
        if stop.is_set():
            break
    return replace(found, moved=moved, skipped=skipped, failed=failed)
