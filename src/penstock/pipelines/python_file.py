"""Pipelines in Python: files in the language of Spark's declarative pipelines (`from pyspark import pipelines as dp`).

Its decorators tell a registry what they are told. `spark-pipelines` has one that sends all of it to a Spark Connect
server; the one here keeps it, and makes a pipeline of it, so that the same file runs as plain streams. Functions are
called later, when the pipeline runs, for each query anew: what they read is seen then.

Spark's own spec (`spark-pipeline.yml`) names the files, the storage and the settings of both runners. Settings that
only this one has begin with `penstock.`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipelines.definition import (
    LANDING,
    MATERIALIZED,
    Function,
    Output,
    Pipeline,
    Settings,
    View,
    checked,
    meant,
    number_of,
)
from penstock.pipelines.errors import InvalidDefinition, Place, Problem, SparkMissing, first_line
from penstock.pipelines.library import Running, running

if TYPE_CHECKING:
    from pyspark.pipelines.flow import Flow

    from penstock.pipelines.yaml_file import Keys

_SPEC_KEYS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")
SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
_SPEC_SETTINGS = {
    "url": str,
    "ca_file": str,
    "trigger": str,
    "restarts": int,
    "restart_pause_s": float,
    "restart_pause_s_max": float,
}
"""Settings in a spec's `configuration`, each after `penstock.`."""


class _Spark:
    """The active session, found when it is used: so a file can say `spark` without starting one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from pyspark.sql import SparkSession

        return getattr(SparkSession.active(), name)


def read_python(file: Path, name: str | None = None, parameters: Mapping[str, str] | None = None) -> Pipeline:
    """Run a file, and make a pipeline of what it has registered."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", name or file.stem)[:64]
    return _pipeline([file], plain, file, Settings(), parameters or {})


def read_spec(file: Path) -> Pipeline:
    """Read Spark's spec of a pipeline, and the files that it names."""
    from penstock.pipelines.yaml_file import Keys, load_yaml

    problems: list[Problem] = []
    top = Keys(load_yaml(file), _SPEC_KEYS, problems)
    configuration, settings = top.options("configuration"), {}
    for key in [key for key in configuration if key.startswith("penstock.")]:
        name, text = key.removeprefix("penstock."), configuration.pop(key)
        if name not in _SPEC_SETTINGS:
            told = f"there is no setting {name!r}{meant(name, _SPEC_SETTINGS)}"
            problems.append(Problem(Place(str(file), key=f"configuration.{key}"), told))
        elif (value := number_of(text, _SPEC_SETTINGS[name])) is None:
            problems.append(Problem(Place(str(file), key=f"configuration.{key}"), f"{text!r} is not a number"))
        else:
            settings[name] = value
    files = _libraries(file, top, problems)
    for key in ("name", "storage"):
        if key not in top:
            problems.append(Problem(Place(str(file)), f"a spec needs {key}, and this one has none"))
    if problems:
        raise InvalidDefinition(problems)
    database = top.text("database") or top.text("schema")
    made = Settings(state=top.text("storage"), conf=configuration, database=database, **settings)
    return _pipeline(files, top.text("name") or "", file, made, {})


def _libraries(file: Path, top: Keys, problems: list[Problem]) -> list[Path]:
    """The files that a spec names: paths, and folders with all below them (`transformations/**`)."""
    found = top.get("libraries")
    globs = [] if found is None else found.plain()
    try:
        patterns = [str(each["glob"]["include"]) for each in globs]
    except (TypeError, KeyError):
        top.wrong("libraries", "must be a list, such as [{glob: {include: transformations/**}}]")
        return []
    files: list[Path] = []
    for pattern in patterns:
        below = sorted(file.parent.glob(f"{pattern}/*" if pattern.endswith("/**") else pattern))
        files += [path for path in below if path.is_file() and "__pycache__" not in path.parts and path not in files]
    for path in files:
        if path.suffix != ".py":
            told = "only spark-pipelines can run SQL files: use @dp.table with spark.sql instead"
            problems.append(Problem(Place(str(path)), told if path.suffix == ".sql" else "is not a .py file"))
    if not files:
        top.wrong("libraries", "does not match any file")
    return files


def _pipeline(files: list[Path], name: str, file: Path, settings: Settings, parameters: Mapping[str, str]) -> Pipeline:
    try:
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context
    except ModuleNotFoundError:
        raise SparkMissing("a pipeline in Python needs Spark: pip install 'penstock-mq[spark]'") from None
    registry = _registry()
    token = running.set(Running(name, parameters=parameters))
    try:
        with graph_element_registration_context(registry):
            for each in files:
                _run(each)
    finally:
        running.reset(token)
    return checked(_graph(registry, name, file, settings), registry.problems)


def _registry() -> Any:
    """What the decorators register, kept. (A class of Spark's is behind it, so it is made when Spark is loaded.)"""
    from pyspark.pipelines import output as outputs
    from pyspark.pipelines.flow import AutoCdcFlow
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry

    class Registry(GraphElementRegistry):
        def __init__(self) -> None:
            self.outputs: dict[str, outputs.Output] = {}
            self.flows: dict[str, Flow] = {}
            self.problems: list[Problem] = []

        def register_output(self, output: outputs.Output) -> None:
            if output.name in self.outputs:
                self.problems.append(Problem(_place(output), f"two outputs have the name {output.name!r}: rename one"))
            self.outputs[output.name] = output

        def register_flow(self, flow: Flow) -> None:
            if flow.name in self.flows:
                self.problems.append(Problem(_place(flow), f"two flows have the name {flow.name!r}: rename one"))
            self.flows[flow.name] = flow

        def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
            self.problems.append(Problem(_place(flow), "only spark-pipelines can run auto CDC flows"))

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            raise AssertionError("SQL files were refused")

    return Registry()


def _graph(registry: Any, name: str, file: Path, settings: Settings) -> Pipeline:
    """What was registered, as a pipeline; what is wrong with it is added to the registry's problems."""
    from pyspark.pipelines.output import TemporaryView

    views: dict[str, View] = {}
    made: dict[str, Output] = {}
    for flow in registry.flows.values():
        target = registry.outputs.get(flow.target)
        if target is None:
            told = f"there is no table or sink {flow.target!r}{meant(flow.target, registry.outputs)}"
            registry.problems.append(Problem(_place(flow), told))
            continue
        is_view = isinstance(target, TemporaryView)
        view = flow.name if is_view else f"{flow.name}.flow"
        views[view] = View(view, _place(flow), (), "", Function(f"{flow.func.__module__}:{flow.name}", flow.func))
        if not is_view:
            made |= _output(registry, target, flow, view, views, made)
    fed = {flow.target for flow in registry.flows.values()}
    for each in registry.outputs.values():
        if each.name not in fed:
            registry.problems.append(Problem(_place(each), f"no flow writes to {each.name!r}: add one"))
    if not registry.outputs:
        registry.problems.append(
            Problem(Place(str(file)), "this file defines no table, view or sink with pyspark.pipelines")
        )
    return Pipeline(name, file, {}, views, made, settings)


def _output(
    registry: Any, target: Any, flow: Flow, view: str, views: dict[str, View], made: dict[str, Output]
) -> dict[str, Output]:
    """What a flow goes to."""
    from pyspark.pipelines import output as outputs

    at, conf = _place(target), dict(flow.spark_conf)
    if isinstance(target, outputs.Sink):
        options = dict(target.options)
        kind = {"penstock": "queue"}.get(target.format, target.format)
        if target.format == "penstock_lake":
            kind = options.pop("format", "delta")
            kind = LANDING if kind == "parquet" else kind
        place = options.pop("topic" if kind == "queue" else "path", "")
        partition_by = tuple(each for each in options.pop("partition_by", "").split(",") if each)
        return {flow.name: Output(flow.name, _place(flow), view, kind, place, options, partition_by, conf=conf)}
    if target.name in made:  # one query writes a table: its flows are put together
        others = made[target.name].input
        both = f"{others.removesuffix('.flow')}.{flow.name}.flow"
        views[both] = View(both, at, (others, view))
        view = both
    kind = target.format or "parquet"
    if isinstance(target, outputs.MaterializedView):
        kind = MATERIALIZED
    elif kind not in ("parquet", "delta"):
        registry.problems.append(Problem(at, f"a table can be stored as parquet or delta, but not as {kind}"))
    columns = tuple(target.partition_cols or ())
    own = f"tables/{target.name}"
    return {target.name: Output(target.name, at, view, kind, own, {}, columns, is_table=True, conf=conf)}


def _place(element: Any) -> Place:
    at = element.source_code_location
    return Place(at.filename, at.line_number, element.name)


def _run(file: Path) -> None:
    """Run a file as `spark-pipelines` does: with a session in it called `spark`."""
    from unittest import mock

    from pyspark.sql import SparkSession

    name = f"penstock_pipeline_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["spark"] = _Spark()
    sys.modules[name] = module
    # a file may ask for the active session before there is one
    with importing_from(file.parent), mock.patch.object(SparkSession, "active", _Spark):
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            raise InvalidDefinition([Problem(_where(error, file), told)]) from error


def _where(error: Exception, file: Path) -> Place:
    """The line of the file where an error came from."""
    if isinstance(error, SyntaxError):
        return Place(str(file), error.lineno)
    lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(file)]
    return Place(str(file), lines[-1] if lines else None)


# -- functions that YAML names -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def importing_from(directory: Path) -> Iterator[None]:
    """Modules of this directory can be imported while the block runs, and later by what was imported."""
    path = str(directory.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
    yield


def find_function(reference: str, directory: Path, inputs: int) -> Function:
    """The function that `module:function` names, looked for beside the file first; ValueError says why there is none.

    >>> find_function("json:loads", Path("."), 1).reference
    'json:loads'
    >>> find_function("json.loads", Path("."), 1)
    Traceback (most recent call last):
        ...
    ValueError: 'json.loads' does not name a function: write module:function
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not name or not module_name:
        raise ValueError(f"{reference!r} does not name a function: write module:function")
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
    return Function(reference, call, takes_spark=_takes_spark(call, reference, inputs))


def _takes_spark(call: Callable[..., Any], reference: str, inputs: int) -> bool:
    """Whether it has a parameter `spark`; ValueError if it cannot take so many frames."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return False
    takes_spark = "spark" in signature.parameters
    try:
        signature.bind(*[None] * inputs, **({"spark": None} if takes_spark else {}))
    except TypeError as error:
        raise ValueError(f"{reference} cannot be called with {inputs} frame(s): {error}") from None
    return takes_spark
