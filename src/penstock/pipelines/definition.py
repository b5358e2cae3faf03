"""What a pipeline is: a small graph, the same whether it was written in YAML or in Python.

    sources ──► views ──► outputs
                 └──────► views ...

A *source* is read: queues, or files. A *view* is a named frame made of others: by SQL, by a function, or by nothing
(then it is its input); after that its rows may be parsed and checked. Those that fail are a view of their own. An
*output* takes what one view gives. Every output is one streaming query of its own. An output that is a *table* can be
read by its name again, from its files.

`load` reads a file and checks the graph. No Spark is needed for that.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipelines.errors import InvalidDefinition, Place, Problem
from penstock.pipelines.locations import path_problem, scheme_of

if TYPE_CHECKING:
    from penstock.pipelines.backfill import Range

QUEUE, FILES = "queue", "files"
OUTPUT_KINDS = ("queue", "parquet", "delta", "iceberg", "console")
LANDING = "landing"
"""The kind of an output of Parquet files that readers without Spark may read: penstock_lake writes them."""
FILE_KINDS = ("parquet", "delta", "iceberg", LANDING)
FILE_FORMATS = ("json", "csv", "parquet", "orc", "text")
PARSE_FORMATS = ("json", "csv", "text")
MATERIALIZED = "materialized"
"""The kind of an output that is no stream: a table that is computed as a whole."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_TRIGGER = re.compile(r"(\d+(?:\.\d+)?)\s*(milliseconds?|ms|seconds?|s|minutes?|min|hours?|h)\Z")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Source:
    """What is read."""

    name: str
    at: Place
    kind: str
    options: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
    path: str = ""
    schema: str = ""
    is_static: bool = False
    """Files that are read whole, to be joined with; not a stream."""


@dataclass(frozen=True)
class Parse:
    """Bodies become columns. What cannot is a dead letter."""

    format: str
    schema: str = ""


@dataclass(frozen=True)
class Check:
    """A condition in SQL that every row must meet. A row that does not is a dead letter; null does not meet it."""

    name: str
    condition: str


@dataclass(frozen=True)
class Function:
    """A Python function that gives a frame."""

    reference: str
    call: Callable[..., Any] = field(compare=False, repr=False)
    takes_spark: bool = False


@dataclass(frozen=True)
class View:
    """A named frame made of others."""

    name: str
    at: Place
    inputs: tuple[str, ...]
    sql: str = ""
    function: Function | None = None
    parse: Parse | None = None
    checks: tuple[Check, ...] = ()
    watermark: tuple[str, str] | None = None
    """A column of times, and how late a row may come: what groups and joins wait for."""
    is_rejects: bool = False
    """Its rows are the dead letters of its input, which parses or checks."""

    @property
    def rejects(self) -> bool:
        """Whether rows may become dead letters here."""
        return self.parse is not None or bool(self.checks)


@dataclass(frozen=True)
class Output:
    """Where rows go."""

    name: str
    at: Place
    input: str
    kind: str
    target: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    is_table: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark for this query only."""


@dataclass(frozen=True)
class Settings:
    """What holds for the whole pipeline."""

    url: str | None = None
    data: str | None = None
    ca_file: str | None = None
    dead_letters: str | None = None
    trigger: str = "1 second"
    restarts: int = 5
    """How often a query that fails is started again, without a batch between, before the pipeline gives up."""
    restart_pause_s: float = 1.0
    restart_pause_s_max: float = 60.0
    state: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None
    part: Range | None = None
    """A backfill: only this part of the queues is read."""


@dataclass(frozen=True)
class Pipeline:
    """The whole graph."""

    name: str
    file: Path
    sources: Mapping[str, Source]
    views: Mapping[str, View]
    outputs: Mapping[str, Output]
    settings: Settings = Settings()

    @property
    def queries(self) -> list[str]:
        """The names of the streaming queries: one for each output."""
        return list(self.outputs)

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """What a node is made of. A table is read from its files, so nothing is behind it here."""
        return self.views[name].inputs if name in self.views else ()

    def upstream(self, name: str) -> list[str]:
        """A node and everything that it is made of, sources last; tables of this pipeline included, not beyond them."""
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each not in found:
                found[each] = None
                waiting += self.inputs_of(each)
        return list(found)

    def of_query(self, query: str) -> list[str]:
        """All nodes that a query is made of."""
        return self.upstream(self.outputs[query].input)


def load(file: Path) -> Pipeline:
    """Read a definition and check it; `InvalidDefinition` has everything that is wrong with it."""
    if not file.is_file():
        raise InvalidDefinition([Problem(Place(str(file)), "there is no such file")])
    from penstock.pipelines.python_file import SPEC_NAMES, read_python, read_spec

    if file.name in SPEC_NAMES:
        return read_spec(file)
    if file.suffix in (".yaml", ".yml"):
        from penstock.pipelines.yaml_file import read_yaml

        return read_yaml(file)
    if file.suffix == ".py":
        return read_python(file)
    raise InvalidDefinition([Problem(Place(str(file)), "a pipeline's file ends in .yaml, .yml or .py")])


def seconds_of(text: str) -> float | None:
    """How long a trigger's interval is; None if it cannot be read.

    >>> seconds_of("5 seconds"), seconds_of("500 ms"), seconds_of("2 minutes"), seconds_of("soon")
    (5.0, 0.5, 120.0, None)
    """
    match = _TRIGGER.match(text.strip().lower())
    if match is None:
        return None
    unit = match[2]
    return float(match[1]) * (0.001 if unit.startswith(("ms", "milli")) else _UNITS_S[unit[0]])


def number_of(text: str, kind: type) -> Any:
    """A text as a setting of some kind; None if it is none.

    >>> number_of("3", int), number_of("x", float), number_of("x", str)
    (3, None, 'x')
    """
    try:
        return kind(text)
    except ValueError:
        return None


def meant(name: str, known: Iterable[str]) -> str:
    """What somebody may have meant, as the end of a sentence.

    >>> meant("ordres", ["orders", "items"])
    ' (did you mean orders?); there are: orders, items'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return (f" (did you mean {close[0]}?)" if close else "") + f"; there are: {', '.join(names) or 'none'}"


# -- checking the graph ------------------------------------------------------------------------------------------------


def check_graph(pipeline: Pipeline) -> list[Problem]:
    """Everything that is wrong with the graph, but for what only Spark can know."""
    problems = [*_name_problems(pipeline), *_input_problems(pipeline)]
    if not problems:
        problems += _cycle_problems(pipeline)
    problems += _setting_problems(pipeline)
    for source in pipeline.sources.values():
        problems += _source_problems(pipeline, source)
    for view in pipeline.views.values():
        problems += _view_problems(view)
    for output in pipeline.outputs.values():
        problems += _output_problems(pipeline, output)
    return problems


def _name_problems(pipeline: Pipeline) -> Iterable[Problem]:
    top = Place(str(pipeline.file), key="name")
    if not PIPELINE_NAME.match(pipeline.name):
        yield Problem(
            top, f"{pipeline.name!r} cannot name a pipeline: use 1 to 64 letters, digits, dashes, underscores"
        )
    nodes: list[Source | View | Output] = [*pipeline.sources.values(), *pipeline.views.values()]
    nodes += pipeline.outputs.values()
    for node in nodes:
        if not NAME.match(node.name) and not node.name.endswith(".flow"):
            yield Problem(
                node.at, f"{node.name!r} cannot be a name here: use letters, digits and underscores, as in SQL"
            )
    for name in set(pipeline.sources) & set(pipeline.views):
        yield Problem(pipeline.views[name].at, f"there is a source and a step called {name!r}: rename one")
    if not pipeline.outputs:
        yield Problem(Place(str(pipeline.file)), "nothing is written: add a sink")


def _input_problems(pipeline: Pipeline) -> Iterable[Problem]:
    tables = [output.name for output in pipeline.outputs.values() if output.is_table]
    known = [*pipeline.sources, *(name for name in pipeline.views if not name.endswith(".flow")), *tables]
    readers = [(view.at, view.name, each) for view in pipeline.views.values() for each in view.inputs]
    readers += [(output.at, output.name, output.input) for output in pipeline.outputs.values()]
    for at, reader, name in readers:
        if name not in known and name not in pipeline.views:
            yield Problem(
                at,
                f"{reader.removesuffix('.flow')!r} reads {name!r}, which is neither a source nor a step"
                f"{meant(name, known)}",
            )


def _cycle_problems(pipeline: Pipeline) -> Iterable[Problem]:
    """One problem for each circle of names. A table counts as made of what goes into it."""

    def inputs_of(name: str) -> tuple[str, ...]:
        if name in pipeline.views:
            return pipeline.views[name].inputs
        return (pipeline.outputs[name].input,) if name in pipeline.outputs else ()

    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> Iterable[Problem]:
        if name in path:
            circle = [key for key, _ in groupby(each.removesuffix(".flow") for each in path[path.index(name) :])]
            circle.append(circle[0])
            at = (pipeline.views.get(name) or pipeline.outputs[name]).at
            yield Problem(at, f"goes in a circle: {' reads '.join(circle)}. Break it at one of them")
        elif name not in done:
            for each in inputs_of(name):
                yield from walk(each, (*path, name))
            done.add(name)

    for name in [*pipeline.views, *(each for each in pipeline.outputs if each not in pipeline.views)]:
        yield from walk(name, ())


def _setting_problems(pipeline: Pipeline) -> Iterable[Problem]:
    settings, file = pipeline.settings, str(pipeline.file)
    if seconds_of(settings.trigger) is None:
        yield Problem(Place(file, key="trigger"), f"{settings.trigger!r} is not an interval: write it like 5 seconds")
    if settings.state is not None and (wrong := path_problem(settings.state, without_spark=True)) is not None:
        yield Problem(Place(file, key="state"), wrong)
    if settings.data is not None and scheme_of(settings.data) not in (None, "file"):
        yield Problem(Place(file, key="data"), "data is a directory of this machine; a server has an url")
    if settings.url is not None and settings.data is not None:
        yield Problem(Place(file, key="url"), "url and data contradict each other: give one of them")
    if settings.dead_letters is not None:
        yield from _option_problems(Place(file, key="dead_letters"), {"topic": settings.dead_letters}, is_source=False)


def _source_problems(pipeline: Pipeline, source: Source) -> Iterable[Problem]:
    if source.kind == QUEUE:
        yield from _option_problems(source.at, dict(source.options), is_source=True)
        return
    if (wrong := path_problem(source.path, without_spark=False)) is not None:
        yield Problem(source.at, wrong)
    if source.format not in FILE_FORMATS:
        yield Problem(source.at, f"format is {source.format!r}{meant(source.format, FILE_FORMATS)}")
    if not source.schema and not source.is_static and source.format != "text":
        yield Problem(source.at, "a stream of files needs a schema, such as: id bigint, name string")


def _option_problems(
    at: Place, options: dict[str, str], *, is_source: bool, is_python: bool = False
) -> Iterable[Problem]:
    """What the connector says to options; where the queues are is added by the runner, and no part of this."""
    from penstock.spark.errors import InvalidOption
    from penstock.spark.options import SinkOptions, SourceOptions

    taken = [name for name in options if name.lower() in ("url", "path", "token", "cafile", "channel")]
    if is_python:
        options, taken = {"url": "http://localhost:9325", **options}, []
    if taken:
        yield Problem(
            at,
            f"{', '.join(taken)}: this cannot be set here; url and data are at the top of the file, the "
            "token comes from PENSTOCK_TOKEN, and channels are named after the pipeline",
        )
        return
    try:
        given = {"url": "http://localhost:9325", **options}
        if is_source:
            SourceOptions.parse(given, streaming=True)
        else:
            SinkOptions.parse(given)
    except InvalidOption as error:
        yield Problem(at, str(error))


def _view_problems(view: View) -> Iterable[Problem]:
    if view.parse is not None and view.parse.format not in PARSE_FORMATS:
        yield Problem(view.at, f"parse is {view.parse.format!r}{meant(view.parse.format, PARSE_FORMATS)}")
    elif view.parse is not None and (view.parse.format == "text") == bool(view.parse.schema):
        wanted = "takes no schema" if view.parse.schema else "needs a schema, such as: id bigint, amount double"
        yield Problem(view.at, f"parse: {view.parse.format} {wanted}")
    for check in view.checks:
        if not check.condition.strip():
            yield Problem(view.at, f"the check {check.name!r} has no condition: write one in SQL, such as: amount > 0")


def _output_problems(pipeline: Pipeline, output: Output) -> Iterable[Problem]:
    is_python = pipeline.file.suffix == ".py" or bool(output.input.endswith(".flow"))
    if output.kind == "queue":
        topic = {"topic": output.target} if output.target else {}
        yield from _option_problems(output.at, {**output.options, **topic}, is_source=False, is_python=is_python)
        if pipeline.settings.data is not None:
            yield Problem(output.at, "a sink that is a queue needs a server: give url instead of data")
    elif output.kind in FILE_KINDS and not output.target:
        yield Problem(output.at, f"say where: {output.kind}: a directory")
    elif output.kind in FILE_KINDS:
        is_lake = output.kind in ("delta", "iceberg")
        if (wrong := path_problem(output.target, without_spark=is_lake)) is not None:
            yield Problem(output.at, wrong)
        is_remote = scheme_of(output.target) not in (None, "file")
        if output.kind == LANDING and is_remote:
            told = "files of penstock_lake have to be in a directory of this machine: use a sink of the format parquet"
            yield Problem(output.at, told)
        if output.kind == "iceberg" and is_remote and "catalog" not in output.options:
            yield Problem(
                output.at,
                "an Iceberg table on an object store needs a catalogue that is not a file there: give options: "
                "{catalog: postgresql+psycopg://..., or sqlite:////a/directory/catalog.db}",
            )
    if output.partition_by and output.kind not in (*FILE_KINDS, MATERIALIZED):
        yield Problem(output.at, f"partition_by is for {', '.join(OUTPUT_KINDS[1:4])}, and this is {output.kind}")


def checked(pipeline: Pipeline, problems: Iterable[Problem] = ()) -> Pipeline:
    """The pipeline itself, or `InvalidDefinition`."""
    found = [*problems, *check_graph(pipeline)]
    if found:
        raise InvalidDefinition(list(dict.fromkeys(found)))
    return pipeline
