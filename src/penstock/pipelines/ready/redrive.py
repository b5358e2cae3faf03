"""Redrive: dead letters are looked at, chosen by SQL, and sent back to where they came from.

Dead letters carry their history, which is not part of a message's columns in Spark; so they are read through the
client, a page at a time, and handed to Spark as one Arrow table. There they are the view `dead_letters`:

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.client.sync.penstock import Penstock
from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import reason_of
from penstock.pipelines.progress import Display

VIEW = "dead_letters"
PAGE = 1_000
MESSAGES_MAX = 1_000_000
TOP = 20
_LOOK_S = 1.0

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


def redrive(
    spark: Any,
    ps: Penstock,
    queues: Sequence[str],
    *,
    where: str | None = None,
    send: bool = False,
    to: str | None = None,
    rate: int | None = None,
    messages_max: int = MESSAGES_MAX,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Redriven:
    """Look at the dead letters in some queues; with `send`, those that `where` (SQL) is true of go back.

    They go where they came from, or to the queue `to`; `rate` is how many a second at most. Without `send` nothing is
    moved, and `chosen` says how many would be. When `stop` is set, it ends; what was moved stays moved.
    """
    if not queues:
        raise InvalidRequest("say which dead-letter queues to look at, such as orders.dead")
    table = read_dead_letters(ps, queues, messages_max)
    frame = spark.createDataFrame(table)
    frame.createOrReplaceTempView(VIEW)
    try:
        analysis = {name: [row.asDict() for row in spark.sql(asked).collect()] for name, asked in ANALYSES.items()}
        chosen = _choose(frame, where)
    finally:
        spark.catalog.dropTempView(VIEW)
    if not send:
        return Redriven(table.num_rows, analysis, len(chosen))
    found = Redriven(table.num_rows, analysis, len(chosen))
    return _send(ps, found, chosen, to, rate, display, stop or threading.Event())


def _choose(frame: Any, where: str | None) -> list[Any]:
    try:
        found = frame if where is None else frame.where(where)
        rows: list[Any] = found.select("queue", "sequence").collect()
    except Exception as error:
        raise InvalidRequest(f"where cannot be followed: {reason_of(error)}") from None
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
        sequences = sorted(row["sequence"] for row in chosen if row["queue"] == queue)
        started = ps.redrive(queue, to=to, ids=sequences, rate=rate)
        while (task := started.wait(timeout=_LOOK_S)).status == "running":
            if display is not None:
                display.note(f"redrive: {queue}: {task.moved + task.skipped} of {task.to_move}")
            if stop.is_set():
                started.cancel()
        moved += task.moved
        skipped += task.skipped
        if task.status == "done" and not task.moved:
            text = f"{queue}: {len(sequences)} were chosen, and none was moved"
            failed.append(f"{text}: without an origin they need a target (to)" if to is None else text)
        if task.status != "done":
            failed.append(f"{queue}: {task.status}" + (f": {task.error}" if task.error else ""))
        if stop.is_set():
            break
    return Redriven(found.dead_letters, found.analysis, found.chosen, moved, skipped, failed)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_dead_letters(ps: Penstock, queues: Sequence[str], messages_max: int = MESSAGES_MAX) -> Any:
    """Dead letters with their history, as an Arrow table; the oldest so many."""
    import pyarrow as pa

    text, time = pa.string(), pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            *[(name, text) for name in ("queue", "id", "origin", "channel", "error", "first_error", "session")],
            *[(name, time) for name in ("failed_at", "sent_at")],
            *[("sequence", pa.int64()), ("attempts", pa.int32()), ("key", text), ("value", text)],
        ]
    )
    batches, left = [], messages_max
    for queue in queues:
        for page in _pages(ps, queue, left):
            left -= len(page)
            batches.append(pa.RecordBatch.from_pylist(page, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def _pages(ps: Penstock, queue: str, messages_max: int) -> Iterator[list[dict[str, Any]]]:
    after, left, handle = -1, messages_max, ps.queue(queue)
    while left > 0:
        page = handle.browse(after=after, limit=min(PAGE, left))
        if not page:
            return
        yield [_row(queue, message) for message in page]
        after, left = page[-1].sequence, left - len(page)


def _row(queue: str, message: Any) -> dict[str, Any]:
    origin, history = message.origin, message.history
    last = history[-1] if history else None
    return {
        "queue": queue,
        "sequence": message.sequence,
        "id": message.id,
        "origin": "" if origin is None else origin.queue,
        "channel": "" if origin is None else origin.channel,
        "attempts": 0 if origin is None else origin.attempts,
        "error": "" if last is None else last.error,
        "first_error": history[0].error if history else "",
        "session": "" if last is None else last.session,
        "failed_at": None if last is None else round(last.failed_at * 1_000_000),
        "sent_at": round(message.sent_at * 1_000_000),
        "key": message.group,
        "value": message.body.decode(errors="replace"),
    }
