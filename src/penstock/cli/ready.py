"""`penstock pipeline run archive|replay|redrive|rollup|report|dedupe|join`: the pipelines that need no definition."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Group, Option
from penstock.cli.output import AsJson, print_done, print_rows
from penstock.cli.pipelines import STOPPED, Master, in_utc, invalid_reported, run_pipeline, spark_for
from penstock.cli.store import Token, Url, warn_of_misspelled_variables
from penstock.pipelines.definition import seconds_of
from penstock.pipelines.ready import ready_pipeline
from penstock.signals import told_to_stop

if TYPE_CHECKING:
    from penstock.pipelines.definition import Pipeline
    from penstock.pipelines.progress import QueryProgress
    from penstock.pipelines.where import Where

DEFAULT_URL = "penstock://localhost:9325"

Queues = Annotated[list[str] | None, Option("--queue", "-q", help="A queue. Can be repeated.", show_default=False)]
To = Annotated[str, Option("--to", help="The queue that gets the messages.", show_default=False)]
Once = Annotated[
    bool, Option("--once/--continuous", help="Read the messages that are there and end, or continue until stopped.")
]
Every = Annotated[str, Option(help="The interval of batches when continuous.")]
Within = Annotated[str, Option(help="How far apart two messages may be.")]
ReadyState = Annotated[str, Option("--state", help="Where checkpoints and status are kept.")]

commands = Group(help="Pipelines that need no definition.")


@commands.command()
def archive(
    path: Annotated[Path, Option("--path", help="The directory of the archive.", show_default=False)],
    queue: Queues = None,
    pattern: Annotated[str | None, Option(help="Archive the queues whose whole names match this.")] = None,
    format: Annotated[str, Option(help="parquet, delta or iceberg.")] = "parquet",
    once: Once = True,
    every: Every = "30 seconds",
    batch: Annotated[int, Option(min=1, help="Messages in a batch.")] = 200_000,
    compact: Annotated[bool, Option("--compact/--no-compact", help="Merge small files at the end.")] = True,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Keep the messages of queues as Parquet files, or in a Delta or Iceberg table: each once.

    penstock pipeline run archive --queue orders --path archive
    """
    from penstock.pipelines.ready import archives

    with invalid_reported():
        pipeline, state = archives.archive_pipeline(path, queue or (), pattern, format, batch=str(batch))

    def after(spark: Any, progress: list[QueryProgress]) -> None:
        joined, rows = archives.compact(path) if compact else 0, progress[0].rows
        text = f"archived {rows} messages to {path}" + (f", {joined} small files merged" if joined else "")
        print_done(text, {"rows": rows, "batches": progress[0].batches, "joined": joined}, as_json)

    run_pipeline(_paced(pipeline, every), _where(url, token), once, state, master, {}, as_json, after=after)


@commands.command()
def replay(
    to: To,
    archive: Annotated[Path | None, Option(help="The archive to read.", show_default=False)] = None,
    source: Annotated[
        str | None, Option("--from", help="Read the history of this queue instead of an archive.", show_default=False)
    ] = None,
    queue: Annotated[
        list[str] | None, Option("--queue", "-q", help="Only these queues of the archive.", show_default=False)
    ] = None,
    since: Annotated[datetime | None, Option(help="Only messages sent at or after this time (UTC).")] = None,
    until: Annotated[datetime | None, Option(help="Only messages sent before this time (UTC).")] = None,
    key: Annotated[list[str] | None, Option(help="Only messages with this key. Can be repeated.")] = None,
    where: Annotated[str | None, Option(help="SQL over queue, offset, timestamp, key, value and headers.")] = None,
    rate: Annotated[float | None, Option(help="Messages a second at most.")] = None,
    state: Annotated[
        Path | None, Option(help="The file that remembers the progress.", show_default=".penstock/replay-....json")
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Start from the beginning, even if an earlier run has begun or finished.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Send messages of an archive, or of a queue's history, to a queue. Run it again to continue after an interruption.

    penstock pipeline run replay --archive archive --to orders --where "value like '%tea%'" --rate 1000
    """
    from penstock.pipelines.ready.replay import replay

    with _running("replay", master, as_json) as (spark, display, stop):
        done = replay(
            spark,
            _where(url, token),
            to,
            archive=archive,
            queue=source,
            queues=queue or (),
            since=in_utc(since),
            until=in_utc(until),
            keys=key or (),
            predicate=where,
            rate=rate,
            state=state,
            again=again,
            display=display,
            stop=stop,
        )
    text = f"sent {done.sent} of {done.messages} messages to {to} (state: {done.state})"
    if done.messages and not done.sent and not done.stopped:
        text = f"all {done.messages} messages were sent before; --again sends them again (state: {done.state})"
    _finish(text, {"messages": done.messages, "sent": done.sent, "state": str(done.state)}, done.stopped, as_json)


@commands.command()
def redrive(
    queue: Queues = None,
    where: Annotated[
        str | None,
        Option(help="SQL over origin, error, first_error, attempts, failed_at, sent_at, session, key, value ..."),
    ] = None,
    send: Annotated[bool, Option("--send", help="Send the chosen messages back. Without it, only show them.")] = False,
    to: Annotated[str | None, Option(help="Send them to this queue, not to the ones that they came from.")] = None,
    rate: Annotated[int | None, Option(help="Messages a second at most.")] = None,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Look at dead letters, choose some by SQL, and send them back.

    penstock pipeline run redrive --queue orders.dead --where "error like '%timeout%'" --send
    """
    from penstock.pipelines.ready.redrive import check_queues, redrive

    more: Any = {"predicate": where, "send": send, "to": to, "rate": rate}
    check_queues(_where(url, token), queue or ())  # Spark takes long to start
    with _running("redrive", master, as_json) as (spark, display, stop):
        done = redrive(spark, _where(url, token), queue or (), display=display, stop=stop, **more)
    if not as_json:
        for title, rows in done.analysis.items():
            print_rows(rows, False, f"Dead letters: {title}")
    fate = f"{done.moved} sent back" if send else f"{done.chosen} chosen (use --send to send them back)"
    found = {"dead_letters": done.dead_letters, "chosen": done.chosen, "moved": done.moved, "skipped": done.skipped}
    plain = {
        title: [
            {k: v if isinstance(v, int | float | str) or v is None else str(v) for k, v in row.items()} for row in rows
        ]
        for title, rows in done.analysis.items()
    }
    _finish(f"{done.dead_letters} dead letters, {fate}", found | {"analysis": plain}, False, as_json)
    if done.failed:  # or cancelled
        print(f"penstock: {'; '.join(done.failed)}", file=sys.stderr)
        raise SystemExit(1)


@commands.command()
def rollup(
    table: Annotated[Path, Option("--table", help="The directory of the table.", show_default=False)],
    window: Annotated[str, Option(help="How long a window is. Keep it the same for a table.")] = "1 minute",
    queue: Annotated[str, Option("--queue", "-q", help="The events queue.")] = "penstock.events",
    report: Annotated[
        Path | None, Option("--report", help="Also write a report to this file.", show_default=False)
    ] = None,
    once: Once = True,
    every: Every = "30 seconds",
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Count and time what happened on a server, by queue and window, from its event records.

    penstock pipeline run rollup --table metrics --report report.html
    """
    from penstock.pipelines.landing import Landing
    from penstock.pipelines.ready import windows

    with invalid_reported():
        pipeline, state = windows.rollup_pipeline(table, queue, window)

    def after(spark: Any, progress: list[QueryProgress]) -> None:
        with Landing(table / "events").opened() as events:
            events.compact()
        dates = windows.bring_up_to_date(spark, table, window, report)
        text = f"{progress[0].rows} new events, {dates} dates brought up to date in {table}"
        print_done(text, {"events": progress[0].rows, "dates": dates}, as_json)
        if report is not None and not as_json:
            print(f"the report is {report}", file=sys.stderr)

    def on_batch(spark: Any) -> None:
        if not once:
            windows.bring_up_to_date(spark, table, window, report)

    where = _where(url, token)
    run_pipeline(_paced(pipeline, every), where, once, state, master, {}, as_json, on_batch=on_batch, after=after)


@commands.command()
def report(
    table: Annotated[Path, Option("--table", help="The table that rollup writes.", show_default=False)],
    to: Annotated[Path, Option("--to", help="The page to write.")] = Path("report.html"),
    queue: Queues = None,
) -> None:
    """Draw what rollup has counted, as one HTML page. Needs no Spark.

    penstock pipeline run report --table metrics --to report.html
    """
    from penstock.pipelines.ready.report import report

    report(table, to, queues=queue or ())
    print(f"the report is {to}")


@commands.command()
def dedupe(
    source: Annotated[str, Option("--from", help="The queue to read.", show_default=False)],
    to: To,
    by: Annotated[str, Option(help="What makes two messages equal: key, content, or SQL.")] = "content",
    within: Within = "10 minutes",
    state: ReadyState = ".penstock",
    once: Once = True,
    every: Every = "5 seconds",
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Copy a queue to another one, without duplicates within a time window.

    penstock pipeline run dedupe --from clicks --to clicks.unique --by key --within "1 hour"
    """
    with invalid_reported():
        given = {"from": source, "to": to, "by": by, "within": within}
        pipeline = ready_pipeline("dedupe", f"dedupe-{source}-{to}", given)
    run_pipeline(_paced(pipeline, every), _where(url, token), once, state, master, {}, as_json)


@commands.command()
def join(
    left: Annotated[str, Option(help="A queue.", show_default=False)],
    right: Annotated[str, Option(help="Another queue.", show_default=False)],
    to: To,
    on: Annotated[str, Option(help="What two messages must have in common: key, or SQL.")] = "key",
    within: Within = "10 minutes",
    state: ReadyState = ".penstock",
    once: Once = True,
    every: Every = "5 seconds",
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Join two queues within a time window into a third one.

    penstock pipeline run join --left orders --right payments --to paid --within "15 minutes"
    """
    with invalid_reported():
        given = {"left": left, "right": right, "to": to, "on": on, "within": within}
        pipeline = ready_pipeline("join", f"join-{left}-{right}-{to}", given)
    run_pipeline(_paced(pipeline, every), _where(url, token), once, state, master, {}, as_json)


# -- parts -------------------------------------------------------------------------------------------------------------


def _where(url: str | None, token: str | None) -> Where:
    from penstock.pipelines.where import Where, http_url

    warn_of_misspelled_variables()
    place = url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    return Where(http_url(place), token=token or os.environ.get("PENSTOCK_TOKEN") or None)


def _paced(pipeline: Pipeline, every: str) -> Pipeline:
    if seconds_of(every) is None:
        raise click.BadParameter(f"{every!r} is not an interval: write it like '5 seconds'", param_hint="--every")
    return dataclasses.replace(pipeline, settings=dataclasses.replace(pipeline.settings, trigger=every))


@contextlib.contextmanager
def _running(name: str, master: str | None, as_json: bool) -> Iterator[tuple[Any, Any, threading.Event]]:
    """Spark, something to show progress on, and an event that SIGTERM and Ctrl-C set."""
    from penstock.pipelines.progress import display_for

    stop = threading.Event()
    with (
        told_to_stop(stop.set),
        spark_for(name, master) as spark,
        contextlib.closing(display_for(name, as_json=as_json)) as display,
    ):
        yield spark, display, stop


def _finish(text: str, found: dict[str, Any], stopped: bool, as_json: bool) -> None:
    print_done(text, found, as_json)
    if stopped:
        print("penstock: stopped; the next run goes on from here", file=sys.stderr)
        raise SystemExit(STOPPED)
