"""Pipelines in Python: functions that return frames, made tables, views and sinks by decorators.

The names and shapes are those of `pyspark.pipelines` (`table`, `materialized_view`, `temporary_view`, `append_flow`,
`create_sink`), so that a file can move there; `view`, `sink`, `queue`, `parse`, `expect` and `pipeline` are Penstock's
own. Decorators only note what they are told. `read_python` runs the file, gathers the notes, and makes the model of
them. Frames are made later, when the pipeline runs, for each query anew.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.pipelines.definition import Check, Function, Output, Parse, Pipeline, Settings, View, checked, meant
from penstock.pipelines.errors import InvalidDefinition, Place, Problem, SparkMissing
from penstock.pipelines.sql import tables_of

F = TypeVar("F", bound=Callable[..., Any])
_CHECKS, _PARSE = "__penstock_checks__", "__penstock_parse__"
_SETTINGS = (
    "url",
    "data",
    "ca_file",
    "dead_letters",
    "trigger",
    "restarts",
    "restart_pause_s",
    "restart_pause_s_max",
    "state",
    "conf",
)


@dataclass
class _Noted:
    """A decorated function."""

    name: str
    function: Callable[..., Any]
    at: Place
    role: str
    output: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Notes:
    """What the decorators of one file were told."""

    file: Path
    noted: list[_Noted] = field(default_factory=list)
    sinks: dict[str, dict[str, Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    name: str | None = None


_notes: contextvars.ContextVar[_Notes | None] = contextvars.ContextVar("penstock_pipeline", default=None)
queue_reader: contextvars.ContextVar[Callable[[str, Mapping[str, str]], Any] | None] = contextvars.ContextVar(
    "penstock_queue_reader", default=None
)
"""How `queue` reads, while the frames of a query are made."""


class _Spark:
    """The active session, found when it is used: so a file can say `spark` without starting one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            from pyspark.sql import SparkSession
        except ModuleNotFoundError:
            raise SparkMissing("this needs Spark: pip install 'penstock[spark]'") from None
        return getattr(SparkSession.active(), name)


spark: Any = _Spark()


def pipeline(name: str | None = None, **settings: Any) -> None:
    """Name the pipeline and say where its queues are. Settings as in YAML: `url`, `data`, `dead_letters`, `trigger`...

    >>> pipeline("orders", dead_letter="orders.rejects")
    Traceback (most recent call last):
        ...
    TypeError: pipeline() has no setting 'dead_letter' (did you mean dead_letters?); there are: url, ...
    """
    for key in settings:
        if key not in _SETTINGS:
            raise TypeError(f"pipeline() has no setting {key!r}{meant(key, _SETTINGS)}")
    notes = _current()
    notes.name = name or notes.name
    notes.settings |= settings


def queue(*names: str, **options: Any) -> Any:
    """The stream of one queue or of several, where the pipeline's queues are; options are the connector's."""
    read = queue_reader.get()
    if read is None:
        raise RuntimeError("queue() gives a frame while the pipeline's frames are made: call it inside of a function")
    subscribe = {"subscribe": ",".join(names)} if names else {}
    texts = {key: str(each).lower() if isinstance(each, bool) else str(each) for key, each in options.items()}
    return read(",".join(names), {**subscribe, **texts})


def temporary_view(
    query_function: F | None = None, *, name: str | None = None, comment: str | None = None, **unused: Any
) -> Any:
    """A named frame that others read; nothing of it is stored."""
    _refuse("temporary_view", unused)
    return _decorate(query_function, "view", name, {})


view = temporary_view


def table(
    query_function: F | None = None,
    *,
    name: str | None = None,
    comment: str | None = None,
    partition_cols: list[str] | None = None,
    format: str | None = None,
    path: str | None = None,
    **unused: Any,
) -> Any:
    """A stream that is stored, and can be read by its name: `spark.readStream.table("name")`.

    `format` is parquet. The files are in the pipeline's directory, or at `path`.
    """
    _refuse("table", unused)
    output = {"kind": format or "parquet", "target": path or "", "partition_by": tuple(partition_cols or ())}
    return _decorate(query_function, "table", name, output)


def materialized_view(query_function: F | None = None, *, name: str | None = None, **options: Any) -> Any:
    """Not here: a pipeline is made of streams. Named so that a file from `pyspark.pipelines` is told."""
    raise TypeError(
        "materialized_view is computed anew by batches, and a pipeline here is made of streams: use @table on a "
        "stream, or @view on a frame that is read whole"
    )


def sink(query_function: F | None = None, *, name: str | None = None, **target: Any) -> Any:
    """A stream that goes out: `@sink(queue="totals")`, `@sink(parquet="out/totals", partition_by=["day"])`, ..."""
    return _decorate(query_function, "sink", name, _target_of("sink", target))


def create_sink(name: str, format: str, options: Mapping[str, str] | None = None) -> None:
    """A sink that `append_flow` sends to. Formats: penstock (option topic), parquet, delta, iceberg (path), console."""
    given = dict(options or {})
    kind = "queue" if format in ("penstock", "queue") else format
    target = given.pop("topic" if kind == "queue" else "path", "")
    _current().sinks[name] = {"kind": kind, "target": target, "options": given}


def append_flow(*, target: str, name: str | None = None, **unused: Any) -> Callable[[F], F]:
    """A stream that goes to a sink of `create_sink`."""
    _refuse("append_flow", unused)
    decorate: Callable[[F], F] = _decorate(None, "flow", name, {"flow_to": target})
    return decorate


def parse(format: str, schema: str = "") -> Callable[[F], F]:
    """Make columns of the column `value` of what the function returns; what cannot be read is a dead letter."""

    def decorate(function: F) -> F:
        setattr(function, _PARSE, Parse(format, schema))
        return function

    return decorate


def expect(name: str, condition: str) -> Callable[[F], F]:
    """Every row of what the function returns must meet a condition in SQL; one that does not is a dead letter."""

    def decorate(function: F) -> F:
        setattr(function, _CHECKS, (Check(name, condition), *getattr(function, _CHECKS, ())))
        return function

    return decorate


# -- notes -------------------------------------------------------------------------------------------------------------


def _current() -> _Notes:
    """The file that is being read; a file that is merely imported notes into nothing."""
    return _notes.get() or _Notes(Path("?"))


def _refuse(decorator: str, unused: Mapping[str, Any]) -> None:
    wrong = [key for key in unused if key not in ("spark_conf", "table_properties", "cluster_by", "schema", "comment")]
    if wrong:
        raise TypeError(f"@{decorator} has no option {', '.join(wrong)}")
    ignored = [key for key, value in unused.items() if value is not None]
    if ignored:
        raise TypeError(f"@{decorator}: {', '.join(ignored)} can be set in pyspark.pipelines, not here: leave it out")


def _target_of(decorator: str, given: dict[str, Any]) -> dict[str, Any]:
    from penstock.pipelines.definition import OUTPUT_KINDS

    known = (*OUTPUT_KINDS, "partition_by", "options")
    for key in given:
        if key not in known:
            raise TypeError(f"@{decorator} has no option {key!r}{meant(key, known)}")
    kinds = [kind for kind in OUTPUT_KINDS if kind in given]
    if len(kinds) != 1:
        raise TypeError(f"@{decorator} takes one of {', '.join(OUTPUT_KINDS)} (given: {', '.join(kinds) or 'none'})")
    target = given[kinds[0]]
    return {
        "kind": kinds[0],
        "target": "" if target is True else str(target),
        "partition_by": tuple(given.get("partition_by", ())),
        "options": {key: str(each) for key, each in given.get("options", {}).items()},
    }


def _decorate(function: F | None, role: str, name: str | None, output: dict[str, Any]) -> Any:
    def note(decorated: F) -> F:
        notes = _current()
        line = decorated.__code__.co_firstlineno if hasattr(decorated, "__code__") else None
        own = name or str(getattr(decorated, "__name__", "?"))
        notes.noted.append(_Noted(own, decorated, Place(str(notes.file), line, own), role, output))
        return decorated

    return note if function is None else note(function)


# -- the file ----------------------------------------------------------------------------------------------------------


def read_python(file: Path) -> Pipeline:
    """Run a file, and make a pipeline of what its decorators noted."""
    with _noting(file) as notes:
        _run(file)
    problems: list[Problem] = []
    views: dict[str, View] = {}
    outputs: dict[str, Output] = {}
    for noted in notes.noted:
        if noted.name in outputs or (noted.role == "view" and noted.name in views):
            problems.append(Problem(noted.at, f"there are two functions called {noted.name!r}: rename one"))
        is_view = noted.role == "view"
        flow = noted.name if is_view else f"{noted.name}.flow"
        function, reads = named_function(noted.function)
        checks, parsing = getattr(noted.function, _CHECKS, ()), getattr(noted.function, _PARSE, None)
        views[flow] = View(flow, noted.at, reads, "", function, parsing, checks)
        if not is_view:
            outputs[noted.name] = _output(noted, flow, notes, problems)
    views = _known_reads(views, outputs)
    if not notes.noted:
        problems.append(Problem(Place(str(file)), "has no @table, @view or @sink of penstock.pipelines"))
    name = notes.name or re.sub(r"[^A-Za-z0-9_-]", "-", file.stem)
    return checked(Pipeline(name, file, {}, views, outputs, Settings(**notes.settings)), problems)


def _output(noted: _Noted, flow: str, notes: _Notes, problems: list[Problem]) -> Output:
    told = dict(noted.output)
    target = told.pop("flow_to", None)
    if target is not None and target not in notes.sinks:
        problems.append(Problem(noted.at, f"there is no sink {target!r}{meant(target, notes.sinks)}"))
    told = notes.sinks.get(target, {"kind": "console"}) if target is not None else told
    is_table = noted.role == "table"
    if is_table and told["kind"] != "parquet":
        problems.append(Problem(noted.at, f"a table is stored as parquet, not as {told['kind']}: use @sink for that"))
    told = {**told, "target": told.get("target") or (f"tables/{noted.name}" if is_table else "")}
    return Output(noted.name, noted.at, flow, is_table=is_table, **told)


def _known_reads(views: dict[str, View], outputs: dict[str, Output]) -> dict[str, View]:
    """What functions read by `spark.table` may also be a table of Spark's own; parameters must be known here."""
    known = {*views, *(output.name for output in outputs.values() if output.is_table)}
    found = {}
    for name, each in views.items():
        parameters = each.function.parameters if each.function is not None else ()
        reads = tuple(read for read in each.inputs if read in known or read in parameters)
        found[name] = View(name, each.at, reads, "", each.function, each.parse, each.checks)
    return found


@contextmanager
def _noting(file: Path) -> Iterator[_Notes]:
    notes = _Notes(file)
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def _run(file: Path) -> None:
    name = f"penstock_pipeline_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with importing_from(file.parent):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise InvalidDefinition([Problem(_where(error, file), f"{type(error).__name__}: {error}")]) from error


def _where(error: Exception, file: Path) -> Place:
    """The line of the file where an error came from."""
    if isinstance(error, SyntaxError):
        return Place(str(file), error.lineno)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file)]
    return Place(str(file), lines[-1] if lines else None)


# -- functions of the user ---------------------------------------------------------------------------------------------

# Functions of the user: `module:function` found and looked at, and what a function reads, seen in its source.
#
# Modules are looked for beside the pipeline's file first.


@contextlib.contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Modules of this directory can be imported while the block runs, and later by what was imported."""
    path = str(directory.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    yield


def find_function(reference: str, directory: Path, inputs: int) -> Function:
    """The function that `module:function` names; ValueError says why there is none.

    >>> find_function("json:loads", Path("."), 1).reference
    'json:loads'
    >>> find_function("json.loads", Path("."), 1)
    Traceback (most recent call last):
        ...
    ValueError: 'json.loads' names no function: write module:function
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not name or not module_name:
        raise ValueError(f"{reference!r} names no function: write module:function")
    with importing_from(directory):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise ValueError(
                f"the module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from None
    call = getattr(module, name, None)
    if not callable(call):
        raise ValueError(f"there is no function {name!r} in the module {module_name!r} ({module.__file__})")
    takes_spark = _check_takes(call, reference, inputs)
    return Function(reference, call, takes_spark=takes_spark)


def _check_takes(call: Callable[..., Any], reference: str, inputs: int) -> bool:
    """Whether it has a parameter `spark`; ValueError if it cannot take so many frames."""
    signature = _signature(call)
    if signature is None:
        return False
    takes_spark = "spark" in signature.parameters
    try:
        signature.bind(*[None] * inputs, **({"spark": None} if takes_spark else {}))
    except TypeError as error:
        raise ValueError(f"{reference} cannot be called with {inputs} frame(s): {error}") from None
    return takes_spark


def _signature(call: Callable[..., Any]) -> inspect.Signature | None:
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(call)
    return None


def named_function(call: Callable[..., Any]) -> tuple[Function, tuple[str, ...]]:
    """A decorated function, and the frames that it reads: by its parameters, by `.table("name")`, by `.sql("...")`."""
    signature = _signature(call)
    parameters = tuple(signature.parameters) if signature is not None else ()
    frames = tuple(name for name in parameters if name != "spark")
    calls = list(_calls_with_text(call))
    queues = tuple(text for name, text in calls if name == "queue")
    reference = f"{call.__module__}:{call.__qualname__}"
    function = Function(reference, call, True, frames, "spark" in parameters, queues)
    return function, tuple(dict.fromkeys((*frames, *_tables_in(calls))))


def _tables_in(calls: list[tuple[str, str]]) -> Iterator[str]:
    for name, text in calls:
        if name == "table":
            yield text.strip()
        elif name == "sql":
            yield from tables_of(text)


def _calls_with_text(call: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """What a function calls with texts: the last name of what is called, and each text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield name, given.value
