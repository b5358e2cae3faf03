"""Replay: messages of an archive, or of a queue's history, are sent to a queue again; each once, at a rate.

How it works. First the messages are chosen, and cut into pieces of some thousand, by queue and offset: that is the
plan, and it is written to a file. Then piece after piece is read and sent, each in one commit that the server marks
with the replay's name and the piece's number. A replay that was killed goes on with its file: a piece whose number is
marked is not sent again. What comes to the archive after the plan was made is not part of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.core.errors import InvalidRequest
from penstock.pipelines.errors import PipelineFailed, reason_of
from penstock.pipelines.landing import write_json
from penstock.pipelines.progress import Batch, Display, QueryProgress
from penstock.pipelines.ready.archives import read_archive
from penstock.pipelines.where import Where
from penstock.spark.options import Where as ConnectorWhere
from penstock.spark.rows import Pieces, Rows, publish
from penstock.spark.server import Connection


class Sender:
    """Sends tables of messages to one queue of one server."""

    def __init__(self, where: Where, queue: str) -> None:
        self._connection = Connection(ConnectorWhere(where.url, None, where.token, where.ca_file))
        self._queue = queue

    def publish(self, table: Any, name: str, number: int) -> None:
        """Send a table (value, key, headers) under a name and a number. A number that was sent before does nothing."""
        token = f"{name}-{number}"
        pieces = Pieces(self._connection, 0, token)
        pieces.add_all(Rows(self._queue, 0), table.combine_chunks().to_batches())
        if pieces.names:
            publish(self._connection, token, pieces.names, name, number)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


PIECE_MESSAGES = 10_000
STATE_DIRECTORY = Path(".penstock")
_SEEN = (
    "queue",
    "offset",
    "timestamp",
    "cast(key as string) as key",
    "cast(value as string) as value",
    "headers",
    "key as key_bytes",
    "value as body",
)
"""What a predicate sees: key and value are text there."""


@dataclass(frozen=True)
class Replayed:
    """What a run has done."""

    messages: int
    """Chosen altogether."""
    sent: int
    """Sent by this run."""
    state: Path
    stopped: bool = False


def replay(
    spark: Any,
    where: Where,
    to: str,
    *,
    archive: str | Path | None = None,
    queue: str | None = None,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    keys: Sequence[str] = (),
    predicate: str | None = None,
    rate: float | None = None,
    state: Path | None = None,
    again: bool = False,
    display: Display | None = None,
    stop: threading.Event | None = None,
) -> Replayed:
    """Send messages of an archive (or of its `queues` only), or what a queue still holds, to the queue `to`.

    `since` and `until` limit when they were sent, `keys` which groups they have; `predicate` is SQL over queue, offset,
    timestamp, key, value (both as text) and headers. `rate`: messages a second at most. `state` is the file to go on
    with; `again` begins anew.
    """
    if (archive is None) == (queue is None):
        raise InvalidRequest("say what to replay: an archive, or a queue")
    if where.url is None:
        raise InvalidRequest("a replay sends, and for that it needs a server (a url)")
    if rate is not None and rate <= 0:
        raise InvalidRequest(f"rate is {rate}: it must be larger than 0")
    if queue == to:
        raise InvalidRequest(f"queue {to!r} cannot be replayed into itself: it would never end")
    arguments = {
        "to": to,
        "archive": None if archive is None else str(Path(archive).resolve()),
        "queue": queue,
        "queues": sorted(queues),
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        "keys": sorted(keys),
        "predicate": predicate,
        "url": where.url,
    }
    name = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()[:16]
    file = state or STATE_DIRECTORY / f"replay-{name}.json"
    found = _history(spark, where, queue) if queue is not None else read_archive(spark, str(archive))
    chosen = _chosen(found, queues, since, until, keys, predicate)
    plan = _plan(chosen, file, arguments, again, rate)
    with contextlib.closing(Sender(where, to)) as sender:
        return _Replay(chosen, plan, file, sender, rate, display, stop).run()


def _history(spark: Any, where: Where, queue: str) -> Any:
    options = {**where.options(), "subscribe": queue, "includeHeaders": "true", "failOnDataLoss": "false"}
    found = spark.read.format("penstock").options(**options).load()
    return found.selectExpr("topic as queue", "offset", "timestamp", "key", "value", "headers")


def _chosen(
    found: Any,
    queues: Sequence[str],
    since: datetime | None,
    until: datetime | None,
    keys: Sequence[str],
    predicate: str | None,
) -> Any:
    from pyspark.sql import functions as sql

    if queues:
        found = found.where(sql.col("queue").isin(*queues))
    if since is not None:
        found = found.where(sql.col("timestamp") >= sql.lit(since))
    if until is not None:
        found = found.where(sql.col("timestamp") < sql.lit(until))
    seen = found.selectExpr(*_SEEN)
    if keys:
        seen = seen.where(sql.col("key").isin(*keys))
    try:
        return seen.where(predicate) if predicate else seen
    except Exception as error:
        raise InvalidRequest(f"the condition (where) is not valid: {reason_of(error)}") from None


def _plan(chosen: Any, file: Path, arguments: dict[str, Any], again: bool, rate: float | None) -> dict[str, Any]:
    """The plan of the file; one that is new is made and written."""
    if file.exists() and not again:
        plan: dict[str, Any] = json.loads(file.read_text())
        if plan["arguments"] != arguments:
            raise InvalidRequest(f"{file} belongs to another replay: use its arguments, or another state file")
        return plan
    size = PIECE_MESSAGES if rate is None else max(1, min(PIECE_MESSAGES, int(rate)))
    try:
        pieces = _pieces(chosen, size)
    except Exception as error:
        raise PipelineFailed(f"replay: {reason_of(error)}") from error
    plan = {"name": f"replay-{uuid.uuid4().hex}", "arguments": arguments, "pieces": pieces, "done": 0}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, plan)
    return plan


def _pieces(chosen: Any, size: int) -> list[list[Any]]:
    """Where to cut: queue, first and last offset, and how many messages, for each piece."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    order = Window.partitionBy("queue").orderBy("offset")
    numbered = chosen.select("queue", "offset", (sql.row_number().over(order) - 1).alias("at"))
    piece = sql.floor(sql.col("at") / size).alias("piece")
    cut = numbered.groupBy("queue", piece).agg(
        sql.min("offset").alias("first"), sql.max("offset").alias("last"), sql.count("*").alias("messages")
    )
    rows = cut.orderBy("queue", "piece").collect()
    return [[row["queue"], row["first"], row["last"], row["messages"]] for row in rows]


class _Replay:
    """Follows a plan."""

    def __init__(
        self,
        chosen: Any,
        plan: dict[str, Any],
        file: Path,
        sender: Sender,
        rate: float | None,
        display: Display | None,
        stop: threading.Event | None,
    ) -> None:
        self._chosen = chosen
        self._plan = plan
        self._file = file
        self._sender = sender
        self._rate = rate
        self._display = display
        self._stop = stop or threading.Event()
        self._progress = QueryProgress("replay", state="running")

    def run(self) -> Replayed:
        """Send what is left."""
        pieces = self._plan["pieces"]
        total = sum(piece[3] for piece in pieces)
        sent, began_s = 0, time.monotonic()
        for number in range(self._plan["done"], len(pieces)):
            if self._stop.is_set():
                return Replayed(total, sent, self._file, stopped=True)
            rows, took_s = self._send(number)
            sent += rows
            self._plan["done"] = number + 1
            write_json(self._file, self._plan)
            self._show(number, rows, took_s, sum(piece[3] for piece in pieces[number + 1 :]))
            if self._rate is not None and number + 1 < len(pieces):
                self._stop.wait(max(0.0, began_s + sent / self._rate - time.monotonic()))
        return Replayed(total, sent, self._file)

    def _send(self, number: int) -> tuple[int, float]:
        from pyspark.sql import functions as sql

        began_s = time.monotonic()
        queue, first, last, _ = self._plan["pieces"][number]
        rows = self._chosen.where((sql.col("queue") == queue) & sql.col("offset").between(first, last))
        try:
            columns = rows.orderBy("offset").selectExpr("body as value", "key_bytes as key", "headers")
            table = columns.toArrow()
        except Exception as error:
            raise PipelineFailed(f"replay: {reason_of(error)}") from error
        self._sender.publish(table, self._plan["name"], number)
        return table.num_rows, time.monotonic() - began_s

    def _show(self, number: int, rows: int, seconds: float, left: int) -> None:
        at = datetime.now().astimezone().isoformat()
        batch = Batch(number, at, rows, seconds, {self._plan["arguments"]["to"]: left})
        if self._progress.saw(batch) and self._display is not None:
            self._display.batch(self._progress, batch)
            self._display.refresh([self._progress])
