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

from penstock.cli.command import Group, Option
from penstock.cli.output import AsJson, print_done, print_rows
from penstock.cli.pipelines import STOPPED, Master, in_utc, invalid_reported, run_pipeline, spark_for
from penstock.cli.store import Token, Url
from penstock.pipelines.ready import READY
from penstock.signals import told_to_stop

if TYPE_CHECKING:
    from penstock.pipelines.definition import Pipeline
    from penstock.pipelines.where import Where

DEFAULT_URL = "penstock://localhost:9325"

Queues = Annotated[list[str] | None, Option("--queue", "-q", help="A queue. Any number of them.", show_default=False)]
To = Annotated[str, Option("--to", help="The queue that gets the messages.", show_default=False)]
Once = Annotated[bool, Option("--once/--continuous", help="Do what is there and end, or go on until told to stop.")]
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
    compact: Annotated[bool, Option("--compact/--no-compact", help="Join small files at the end.")] = True,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Keep the messages of queues as Parquet files, or in a Delta or Iceberg table: each once.

    penstock pipeline run archive --queue orders --path archive
    """
    done = _run(
        "archive",
        master,
        as_json,
        url,
        token,
        path,
        queue or (),
        pattern=pattern,
        format=format,
        once=once,
        every=every,
        batch_messages=batch,
        compact=compact,
    )
    text = f"archived {done.rows} messages to {path}" + (f", {done.joined} small files joined" if done.joined else "")
    _finish(text, {"rows": done.rows, "batches": done.batches, "joined": done.joined}, done.stopped, as_json)


@commands.command()
def replay(
    to: To,
    archive: Annotated[Path | None, Option(help="The archive to read.", show_default=False)] = None,
    source: Annotated[
        str | None, Option("--from", help="A queue whose history to read, instead.", show_default=False)
    ] = None,
    queue: Annotated[
        list[str] | None, Option("--queue", "-q", help="Only these queues of the archive.", show_default=False)
    ] = None,
    since: Annotated[datetime | None, Option(help="Only what was sent then or later (UTC).")] = None,
    until: Annotated[datetime | None, Option(help="Only what was sent before (UTC).")] = None,
    key: Annotated[list[str] | None, Option(help="Only messages with this key. Any number of them.")] = None,
    where: Annotated[str | None, Option(help="SQL over queue, offset, timestamp, key, value and headers.")] = None,
    rate: Annotated[float | None, Option(help="Messages a second at most.")] = None,
    state: Annotated[
        Path | None, Option(help="The file to go on with.", show_default=".penstock/replay-....json")
    ] = None,
    again: Annotated[
        bool, Option("--again", help="Start from the beginning, even if it was done or begun before.")
    ] = False,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Send messages of an archive, or of a queue's history, to a queue. Run it again to go on after a break.

    penstock pipeline run replay --archive archive --to orders --where "value like '%tea%'" --rate 1000
    """
    done = _run(
        "replay",
        master,
        as_json,
        url,
        token,
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
    send: Annotated[bool, Option("--send", help="Send the chosen ones back. Without it, only look.")] = False,
    to: Annotated[str | None, Option(help="Send them there, and not to where they came from.")] = None,
    rate: Annotated[int | None, Option(help="Messages a second at most.")] = None,
    master: Master = None,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Look at dead letters, choose some by SQL, and send them back.

    penstock pipeline run redrive --queue orders.dead --where "error like '%timeout%'" --send
    """
    import penstock

    place = _where(url, token)
    with (
        _running("redrive", master, as_json) as (spark, display, stop),
        penstock.connect(_client_url(str(place.url)), token=place.token) as ps,
    ):
        done = READY["redrive"].function(
            spark, ps, queue or (), where=where, send=send, to=to, rate=rate, display=display, stop=stop
        )
    if not as_json:
        for title, rows in done.analysis.items():
            print_rows(rows, False, f"Dead letters: {title}")
    fate = f"{done.moved} sent back" if send else f"{done.chosen} chosen (say --send to send them back)"
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
    report: Annotated[Path | None, Option("--report", help="Draw a report here, too.", show_default=False)] = None,
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
    done = _run(
        "rollup",
        master,
        as_json,
        url,
        token,
        table,
        window=window,
        queue=queue,
        report=report,
        once=once,
        every=every,
    )
    text = f"{done.events} new events, {done.dates} dates brought up to date in {table}"
    _finish(text, {"events": done.events, "dates": done.dates}, done.stopped, as_json)


@commands.command()
def report(
    table: Annotated[Path, Option("--table", help="The table that rollup keeps.", show_default=False)],
    to: Annotated[Path, Option("--to", help="The page to write.")] = Path("report.html"),
    queue: Queues = None,
) -> None:
    """Draw what rollup has counted, as one HTML page. Needs no Spark.

    penstock pipeline run report --table metrics --to report.html
    """
    READY["report"].function(table, to, queues=queue or ())
    print(f"the report is {to}")


@commands.command()
def dedupe(
    source: Annotated[str, Option("--from", help="The queue to read.", show_default=False)],
    to: To,
    by: Annotated[str, Option(help="What makes two messages alike: key, content, or SQL.")] = "content",
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
    pipeline = _file(f"dedupe-{source}-{to}", "dedupe", every, {"from": source, "to": to, "by": by, "within": within})
    run_pipeline(pipeline, _where(url, token), once, state, master, {}, as_json)


@commands.command()
def join(
    left: Annotated[str, Option(help="A queue.", show_default=False)],
    right: Annotated[str, Option(help="Another queue.", show_default=False)],
    to: To,
    on: Annotated[str, Option(help="What two messages have to agree on: key, or SQL.")] = "key",
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
    given = {"left": left, "right": right, "to": to, "on": on, "within": within}
    pipeline = _file(f"join-{left}-{right}-{to}", "join", every, given)
    run_pipeline(pipeline, _where(url, token), once, state, master, {}, as_json)


# -- parts -------------------------------------------------------------------------------------------------------------


def _where(url: str | None, token: str | None) -> Where:
    from penstock.pipelines.where import Where, http_url

    place = url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    return Where(http_url(place), token=token or os.environ.get("PENSTOCK_TOKEN") or None)


def _file(name: str, ready: str, every: str, parameters: dict[str, str]) -> Pipeline:
    """A ready pipeline that is a file, told what its flags say."""
    from penstock.pipelines.library import PARAMETER
    from penstock.pipelines.python_file import read_python

    os.environ.update({f"{PARAMETER}{key.upper()}": value for key, value in parameters.items()})
    with invalid_reported():
        pipeline = read_python(READY[ready].file, name)
    return dataclasses.replace(pipeline, settings=dataclasses.replace(pipeline.settings, trigger=every))


def _client_url(url: str) -> str:
    """The address as the client writes it.

    >>> _client_url("http://localhost:9325"), _client_url("https://host:9325")
    ('penstock://localhost:9325', 'penstocks://host:9325')
    """
    scheme, _, rest = url.partition("://")
    return f"{'penstocks' if scheme == 'https' else 'penstock'}://{rest}"


def _run(
    name: str, master: str | None, as_json: bool, url: str | None, token: str | None, *given: Any, **options: Any
) -> Any:
    """Run one of them on a server's queues."""
    with _running(name, master, as_json) as (spark, display, stop):
        return READY[name].function(spark, _where(url, token), *given, **options, display=display, stop=stop)


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
