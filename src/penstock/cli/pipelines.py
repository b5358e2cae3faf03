"""`penstock pipeline` and `penstock sql`: what runs on Spark. Spark is loaded when it is needed, not before.

Exit status of `pipeline`: 0 done, 1 failed, 2 the definition is invalid, 3 stopped by a signal.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from penstock.cli.command import Argument, Command, Group, Option
from penstock.cli.output import AsJson, print_json, print_rows
from penstock.cli.store import Data, Token, Url, chosen, warn_of_misspelled_variables
from penstock.signals import told_to_stop

if TYPE_CHECKING:
    from penstock.pipelines.backfill import Range
    from penstock.pipelines.checkpoints import State
    from penstock.pipelines.definition import Output, Pipeline
    from penstock.pipelines.progress import QueryProgress
    from penstock.pipelines.where import Where

READY_NAMES = (
    "Ready pipelines, instead of FILE: archive, replay, redrive, rollup, report, dedupe, join. Each has --help."
)


class RunCommand(Command):
    """`run FILE`, or `run NAME` with the options of the ready pipeline of that name."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Hand over to the ready pipeline, if one is named. A file of that name can be run as ./NAME."""
        if args and args[0].isalpha():
            from penstock.cli.ready import commands

            if args[0] in commands.functions:
                ready = commands.functions[args[0]]()
                return ready.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
            close = get_close_matches(args[0], commands.functions, 1)
            if close and not Path(args[0]).exists():
                text = f"there is no file {args[0]!r}, and no ready pipeline of that name. Did you mean {close[0]!r}?"
                raise click.UsageError(text, parent)
        return super().make_context(info_name, args, parent, **extra)


DONE, FAILED, INVALID, STOPPED = 0, 1, 2, 3

pipelines = Group(
    help="Run pipelines on Spark: from queues, through SQL and Python, to queues and tables.",
    epilog="Exit status: 0 done, 1 failed, 2 the definition is invalid, 3 stopped by a signal.",
)

File = Annotated[Path, Argument(help="The definition: a .yaml or .py file.")]
Master = Annotated[str | None, Option(help="Spark's master: local[*], spark://host:7077 ...", show_default="local[*]")]
StateDirectory = Annotated[
    str | None,
    Option(
        "--state",
        help="Where checkpoints and status are kept: a directory, or s3a://bucket/...",
        show_default=".penstock beside the file",
    ),
]
Conf = Annotated[list[str] | None, Option("--conf", help="A setting of Spark: key=value. Can be repeated.")]


@pipelines.command()
def validate(
    file: File,
    analyse: Annotated[
        bool, Option("--analyse", help="Also start Spark, and have it check every query. Reads no messages.")
    ] = False,
    master: Master = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Check a definition, and say what it does. Only --analyse starts Spark."""
    pipeline = _load(file)
    if analyse:
        with _session(pipeline, None, master, {}) as (spark, state):
            from penstock.pipelines.progress import Lines
            from penstock.pipelines.runner import Runner

            with invalid_reported():
                Runner(spark, pipeline, _where(pipeline, data, url, token), state, Lines(sys.stderr)).check()
    print_rows(_described(pipeline), False, f"Pipeline {pipeline.name}: valid")


@pipelines.command(cls=RunCommand, epilog=READY_NAMES)
def run(
    file: File,
    once: Annotated[
        bool, Option("--once/--continuous", help="Read the messages that are there and end, or continue until stopped.")
    ] = True,
    reset_checkpoint: Annotated[
        bool, Option("--reset-checkpoint", help="Delete the checkpoints: everything is read and written again.")
    ] = False,
    trigger: Annotated[str | None, Option(help="The interval of batches when continuous, such as '5 seconds'.")] = None,
    since: Annotated[
        datetime | None, Option(help="Backfill: process again messages sent at or after this time (UTC).")
    ] = None,
    until: Annotated[
        datetime | None, Option(help="Backfill: process again messages sent before this time (UTC).")
    ] = None,
    starting_offsets: Annotated[
        str | None,
        Option(help='Backfill: process again from these offsets on: {"orders": {"0": 120}}.', show_default=False),
    ] = None,
    ending_offsets: Annotated[
        str | None, Option(help="Backfill: process again up to these offsets (not included).", show_default=False)
    ] = None,
    master: Master = None,
    conf: Conf = None,
    state: StateDirectory = None,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Run a pipeline. SIGTERM or Ctrl-C stops it after the current batch; a second one stops it at once.

    With a range (--since, --until, --starting-offsets, --ending-offsets) it is a backfill: it reads only that range.
    The pipeline itself may run meanwhile.
    """
    pipeline = _load(file, trigger)
    part = _part(since, until, starting_offsets, ending_offsets, once)
    if part is not None:
        from penstock.pipelines.backfill import backfill_of
        from penstock.pipelines.checkpoints import State, state_directory

        pipeline = backfill_of(pipeline, part)
        before = State(state_directory(pipeline, state, _pairs(conf))).read_status() or {}
        if before.get("state") == "done" and not reset_checkpoint:
            print(f"penstock: {pipeline.name} is done; --reset-checkpoint runs it again", file=sys.stderr)
            return
    where = _where(pipeline, data, url, token)
    run_pipeline(pipeline, where, once, state, master, _pairs(conf), as_json, reset=reset_checkpoint)


@pipelines.command()
def test(
    file: File,
    cases: Annotated[
        Path | None, Option("--cases", help="The cases.", show_default="orders.test.yaml beside orders.py")
    ] = None,
    only: Annotated[str | None, Option("--only", "-k", help="Only cases whose names contain this.")] = None,
) -> None:
    """Run a pipeline on the messages of test cases, and compare what comes out. Needs no server: it starts its own."""
    from penstock.pipelines.cases import cases_file, read_cases, run_case, unknown_sinks
    from penstock.pipelines.errors import InvalidDefinition
    from penstock.pipelines.progress import Lines

    pipeline = _load(file)
    place = cases or cases_file(pipeline)
    with invalid_reported():
        found = read_cases(place)
        if problems := unknown_sinks(pipeline, found, place):
            raise InvalidDefinition(problems)
    chosen_cases = [case for case in found if only is None or only in case.name]
    if not chosen_cases:
        raise click.BadParameter(f"no case of {place} has {only!r} in its name", param_hint="--only")
    failed = 0
    with _session(pipeline, None, "local[1]", dict(pipeline.settings.conf)) as (spark, _), invalid_reported():
        for case in chosen_cases:
            begun_s = time.monotonic()
            wrong = run_case(spark, pipeline, case, Lines(io.StringIO()))
            failed += bool(wrong)
            print(f"{'FAILED' if wrong else 'passed'}: {case.name} ({time.monotonic() - begun_s:.1f} s)")
            for line in wrong:
                print(f"  {line}")
    if failed:
        print(f"penstock: {failed} of {len(chosen_cases)} cases failed", file=sys.stderr)
        raise SystemExit(FAILED)


@pipelines.command()
def status(
    file: File,
    state: StateDirectory = None,
    as_json: AsJson = False,
    data: Data = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the state of a pipeline: whether it runs, its last batches, and how far behind it is. Starts no Spark."""
    from penstock.pipelines.checkpoints import State, state_directory, status_of
    from penstock.pipelines.locations import store_errors

    pipeline = _load(file)
    with store_errors():
        found = status_of(pipeline, State(state_directory(pipeline, state)), _where(pipeline, data, url, token))
    if as_json:
        print_json([found])
        return
    print(f"{found['pipeline']}: {found['state']}" + (f": {found['reason']}" if found.get("reason") else ""))
    shown = ("query", "state", "batches", "rows", "rows_per_s", "lag", "batch_s", "restarts", "error")
    print_rows([{key: query.get(key) for key in shown} for query in found["queries"]], False, "Queries")
    sources = [
        {"query": query["query"], **_source_for_people(each)}
        for query in found["queries"]
        for each in query.get("sources", ())
    ]
    print_rows(sources, False, "Sources")
    rejects = [
        {"query": query["query"], "reason": reason, "rows": rows}
        for query in found["queries"]
        for reason, rows in query.get("rejects", {}).items()
    ]
    print_rows(rejects, False, "Rows that failed")
    batches = [
        {"query": query["query"], **{key: each[key] for key in ("batch", "at", "rows", "seconds", "lag")}}
        for query in found["queries"]
        for each in query["recent"][-5:]
    ]
    print_rows(batches, False, "Last batches")


def sql(
    query: Annotated[str, Argument(help="select ... from queue('orders')")],
    as_json: AsJson = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, with a header line.")] = False,
    master: Master = None,
    conf: Conf = None,
    data: Data = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Query queues in SQL. Receives no messages. Starts Spark, which takes about ten seconds."""
    from penstock.pipelines.sql import frame_of, rows_of

    if as_json and as_csv:
        raise click.BadParameter("give --json or --csv, not both")
    with spark_for("sql", master, _pairs(conf)) as spark:
        frame = frame_of(spark, query, _place(data, url, token))
        rows = rows_of(frame)
        if as_json:
            print_json(rows)
        elif as_csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(frame.columns)
            writer.writerows([row[name] for name in frame.columns] for row in rows)
            sys.stdout.flush()
        else:
            print_rows(list(rows), False, "Result")


def run_pipeline(
    pipeline: Pipeline,
    where: Where,
    once: bool,
    state: State | str | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
    *,
    reset: bool = False,
    on_batch: Callable[[Any], None] = lambda spark: None,
    after: Callable[[Any, list[QueryProgress]], None] = lambda spark, progress: None,
) -> None:
    """Run it to its end, and show how it goes; a run that fails or is stopped says so, and exits.

    `on_batch` is called after each batch, `after` at the end of a run that has not failed, both with the session.
    """
    settings = {**pipeline.settings.conf, **conf}
    with _session(pipeline, state, master, settings, reset=reset) as (spark, kept):
        from penstock.pipelines.backfill import delete_channels
        from penstock.pipelines.checkpoints import logs_of
        from penstock.pipelines.progress import display_for
        from penstock.pipelines.runner import DONE as RUN_DONE
        from penstock.pipelines.runner import FAILED as RUN_FAILED
        from penstock.pipelines.runner import STOPPED as RUN_STOPPED
        from penstock.pipelines.runner import Runner

        with (
            invalid_reported(),
            contextlib.closing(display_for(f"Pipeline {pipeline.name}", as_json=as_json)) as display,
        ):
            runner = Runner(spark, pipeline, where, kept, display, once)
            runner.on_batch = functools.partial(on_batch, spark)
            with told_to_stop(runner.tell):
                outcome = runner.run()
                if outcome.state != RUN_FAILED:
                    after(spark, runner.progress)
            if pipeline.settings.part is not None and outcome.state == RUN_DONE:
                for text in delete_channels(pipeline, kept, where):
                    display.note(text)
    if outcome.state == RUN_FAILED:
        print(f"penstock: {outcome.reason} (Spark's log is {logs_of(pipeline, kept) / 'spark.log'})", file=sys.stderr)
        raise SystemExit(FAILED)
    if outcome.state == RUN_STOPPED:
        print("penstock: stopped; the next run goes on from here", file=sys.stderr)
        raise SystemExit(STOPPED)


# -- parts -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_for(name: str, master: str | None, conf: dict[str, str] | None = None) -> Iterator[Any]:
    """Spark, with a temporary directory of its own, while the block runs."""
    import tempfile

    from penstock.pipelines.sessions import start_session

    with tempfile.TemporaryDirectory(prefix=f"penstock-{name}-") as directory:
        spark = start_session(f"penstock {name}", Path(directory), master=master, conf=conf)
        try:
            yield spark
        finally:
            spark.stop()


@contextlib.contextmanager
def invalid_reported() -> Iterator[None]:
    """A definition that cannot be followed: every problem on a line of its own, and status 2."""
    from penstock.pipelines.errors import InvalidDefinition

    try:
        yield
    except InvalidDefinition as error:
        for problem in error.problems:
            print(f"penstock: {problem}", file=sys.stderr)
        raise SystemExit(INVALID) from None


def _load(file: Path, trigger: str | None = None) -> Pipeline:
    import dataclasses

    from penstock.pipelines.definition import load, seconds_of

    if trigger is not None and seconds_of(trigger) is None:
        raise click.BadParameter(f"{trigger!r} is not an interval: write it like '5 seconds'", param_hint="--trigger")
    with invalid_reported():
        pipeline = load(file)
    if trigger is None:
        return pipeline
    return dataclasses.replace(pipeline, settings=dataclasses.replace(pipeline.settings, trigger=trigger))


@contextlib.contextmanager
def _session(
    pipeline: Pipeline,
    directory: State | str | None,
    master: str | None,
    conf: dict[str, str],
    *,
    reset: bool | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Spark, and the pipeline's directory, held while the block runs (a look without a run holds nothing)."""
    import tempfile

    from penstock.pipelines.checkpoints import State, logs_of, state_directory
    from penstock.pipelines.locations import store_errors
    from penstock.pipelines.sessions import by_value, start_session

    with store_errors(), contextlib.ExitStack() as stack:
        if reset is None:
            state = State(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-pipeline-"))))
        else:
            state = directory if isinstance(directory, State) else State(state_directory(pipeline, directory, conf))
            stack.enter_context(state.locked())
            for done in state.accept(pipeline, reset=reset):
                print(f"penstock: {done}", file=sys.stderr)
        spark = start_session(f"penstock {pipeline.name}", logs_of(pipeline, state), master=master, conf=conf)
        stack.callback(spark.stop)
        calls = [view.function.call for view in pipeline.views.values() if view.function is not None]
        by_value(sorted({call.__module__ for call in calls}))
        yield spark, state


def _where(pipeline: Pipeline, data: Path | None, url: str | None, token: str | None) -> Where:
    from penstock.pipelines.where import where_of

    warn_of_misspelled_variables()
    if data is not None and url is not None:
        raise click.BadParameter("give --data or --url, not both")
    return where_of(pipeline.settings, url, None if data is None else str(data), token, pipeline.file.parent)


def _place(data: Path | None, url: str | None, token: str | None) -> Where:
    from penstock.pipelines.where import Where, http_url

    place = chosen(data, url)
    if isinstance(place, Path):
        return Where(data=str(place))
    return Where(http_url(place), token=token or os.environ.get("PENSTOCK_TOKEN"))


def _part(
    since: datetime | None, until: datetime | None, starting: str | None, ending: str | None, once: bool
) -> Range | None:
    """The range of a backfill."""
    from penstock.pipelines.backfill import range_of

    try:
        part = range_of(in_utc(since), in_utc(until), starting, ending)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if part is not None and not once:
        raise click.BadParameter("a backfill ends by itself: leave out --continuous")
    return part


def in_utc(at: datetime | None) -> datetime | None:
    """A time as it was written, which is meant in UTC."""
    return None if at is None else at.replace(tzinfo=UTC)


def _pairs(given: list[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in given or ()]
    wrong = [key for key, equals, _ in pairs if not equals or not key]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not a setting: write key=value", param_hint="--conf")
    return {key: value for key, _, value in pairs}


def _described(pipeline: Pipeline) -> list[dict[str, Any]]:
    """What a pipeline does, node by node."""
    rows: list[dict[str, Any]] = [
        {"what": f"source ({each.kind})", "name": each.name, "reads": each.path or each.options.get("subscribe", "")}
        for each in pipeline.sources.values()
    ]
    rows += [
        {
            "what": "step",
            "name": each.name,
            "reads": ", ".join(each.inputs),
            "checks": len(each.checks) or None,
        }
        for each in pipeline.views.values()
        if not each.name.endswith(".flow")
    ]
    rows += [
        {
            "what": _what(pipeline, each),
            "name": each.name,
            "reads": ", ".join(pipeline.inputs_of(each.input)) if each.input.endswith(".flow") else each.input,
            "to": each.target,
        }
        for each in pipeline.outputs.values()
    ]
    return rows


def _what(pipeline: Pipeline, output: Output) -> str:
    if output.input in pipeline.views and pipeline.views[output.input].is_rejects:
        return "dead letters"
    return f"{'table' if output.is_table else 'sink'} ({output.kind})"


def _source_for_people(source: dict[str, Any]) -> dict[str, Any]:
    """A source as a row of the table. Of several partitions it says how many, how far, and which is behind the most.

    Their offsets are counted from each partition's own beginning: a reader cannot make much of 281474976710700.

    >>> wide = {"queue": "orders", "channel": "c", "lag": 9, "lags": {"0": 2, "1": 7}}
    >>> _source_for_people(wide | {"offset": None, "offsets": {"0": 120, "1": 281474976710700}})
    {'queue': 'orders', 'channel': 'c', 'partitions': 2, 'offset': '44 to 120', 'lag': 9, 'most_behind': '1: 7'}
    """
    from penstock.core.queues.partition import PARTITION_SHIFT

    row = {"queue": source["queue"], "channel": source["channel"]}
    if len(source["offsets"]) == 1:
        return row | {"offset": source["offset"], "lag": source["lag"]}
    counted = [offset - (int(partition) << PARTITION_SHIFT) for partition, offset in source["offsets"].items()]
    lags: dict[str, int] = source["lags"] or {}
    behind = max(lags, key=lambda partition: lags[partition], default=None)
    return row | {
        "partitions": len(counted),
        "offset": f"{min(counted):,} to {max(counted):,}",
        "lag": source["lag"],
        "most_behind": f"{behind}: {lags[behind]:,}" if behind is not None and lags[behind] else None,
    }
