"""Pipelines in YAML. The keys are in tables here; docs/pipelines.md explains them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.pipelines.definition import (
    FILES,
    OUTPUT_KINDS,
    QUEUE,
    Check,
    Function,
    Output,
    Parse,
    Pipeline,
    Settings,
    Source,
    View,
    checked,
    meant,
    seconds_of,
)
from penstock.pipelines.errors import InvalidDefinition, Place, Problem, SparkMissing
from penstock.pipelines.python_file import find_function
from penstock.pipelines.sql import tables_of

FILE_BYTES_MAX = 1024 * 1024
_NODES_MAX = 20_000
_DEPTH_MAX = 20


@dataclass(frozen=True)
class Located:
    """A value of a YAML file, and its place. Mappings and lists hold such values again."""

    value: Any
    at: Place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value


def load_yaml(file: Path) -> Located:
    """Read a file; `InvalidDefinition` says where it is not YAML."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise SparkMissing("a pipeline in YAML needs PyYAML: pip install 'penstock-mq[spark]'") from None
    data = file.read_bytes()
    if len(data) > FILE_BYTES_MAX:
        raise InvalidDefinition([Problem(Place(str(file)), f"{len(data)} bytes: at most {FILE_BYTES_MAX} are read")])
    try:
        node = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
        if node is None:
            raise InvalidDefinition([Problem(Place(str(file)), "is empty: it needs a source and a sink")])
        return _Reader(str(file), yaml).read(node, "", 0)
    except UnicodeDecodeError as error:
        raise InvalidDefinition([Problem(Place(str(file)), f"is not UTF-8: {error}")]) from None
    except RecursionError:
        raise InvalidDefinition([Problem(Place(str(file)), "is not YAML: it is nested too deeply")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Place(str(file), mark.line + 1 if mark else None)
        raise InvalidDefinition([Problem(at, f"is not YAML: {error.problem or error}")]) from None
    except yaml.YAMLError as error:
        raise InvalidDefinition([Problem(Place(str(file)), f"is not YAML: {error}")]) from None


class _Reader:
    def __init__(self, file: str, yaml: Any) -> None:
        self._file = file
        self._yaml = yaml
        self._scalars = yaml.constructor.SafeConstructor()
        self._nodes = 0

    def read(self, node: Any, key: str, depth: int) -> Located:
        at = Place(self._file, node.start_mark.line + 1, key)
        self._nodes += 1
        if self._nodes > _NODES_MAX or depth > _DEPTH_MAX:
            raise InvalidDefinition([Problem(at, "is too large: too many values, or too deep")])
        if isinstance(node, self._yaml.MappingNode):
            return Located(self._mapping(node, key, depth), at)
        if isinstance(node, self._yaml.SequenceNode):
            return Located([self.read(each, f"{key}[{n}]", depth + 1) for n, each in enumerate(node.value)], at)
        try:
            return Located(self._scalars.construct_object(node), at)
        except (self._yaml.YAMLError, ValueError) as error:
            raise InvalidDefinition([Problem(at, f"cannot be read: {error}")]) from None

    def _mapping(self, node: Any, key: str, depth: int) -> dict[str, Located]:
        found: dict[str, Located] = {}
        for name_node, value_node in node.value:
            name = (
                str(self._scalars.construct_object(name_node)) if isinstance(name_node, self._yaml.ScalarNode) else "?"
            )
            path = f"{key}.{name}" if key else name
            if name in found:
                at = Place(self._file, name_node.start_mark.line + 1, path)
                raise InvalidDefinition([Problem(at, f"is given a second time (first on line {found[name].at.line})")])
            value = self.read(value_node, path, depth + 1)
            found[name] = Located(value.value, Place(self._file, name_node.start_mark.line + 1, path))
        return found


_SETTINGS = ("url", "data", "ca_file", "dead_letters", "trigger", "restart", "state", "conf")
TOP_KEYS = ("name", *_SETTINGS, "source", "sources", "steps", "sink", "sinks")
SOURCE_KEYS = ("queue", "queues", "pattern", "files", "format", "schema", "static", "options")
STEP_KEYS = ("name", "from", "sql", "python", "parse", "schema", "checks", "watermark")
SINK_KEYS = ("name", "from", *OUTPUT_KINDS, "partition_by", "options")
RESTART_KEYS = ("times", "pause_s", "pause_s_max")
_SECRETS = ("token", "password", "secret")


def read_yaml(file: Path) -> Pipeline:
    """Read a definition, and check it."""
    return _Definition(file, load_yaml(file)).pipeline()


class Keys:
    """The keys of one mapping; what is unknown, or of the wrong type, is a problem."""

    def __init__(self, found: Located, known: tuple[str, ...], problems: list[Problem]) -> None:
        self.at = found.at
        self._problems = problems
        self._found: dict[str, Located] = {}
        if not isinstance(found.value, dict):
            problems.append(Problem(found.at, f"must hold keys: {', '.join(known)}"))
            return
        self._found = found.value
        for key, value in self._found.items():
            if key in _SECRETS:
                problems.append(Problem(value.at, "keep secrets out of the file: set PENSTOCK_TOKEN"))
            elif key not in known:
                problems.append(Problem(value.at, f"there is no key {key!r}{meant(key, known)}"))

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def get(self, key: str) -> Located | None:
        """What stands there."""
        return self._found.get(key)

    def place(self, key: str) -> Place:
        """Where a key stands."""
        return self._found[key].at if key in self._found else self.at

    def wrong(self, key: str, text: str) -> None:
        """Note a problem."""
        self._problems.append(Problem(self.place(key), text))

    def text(self, key: str) -> str | None:
        """A text."""
        found = self._found.get(key)
        if found is None:
            return None
        if isinstance(found.value, dict | list | bool) or found.value is None or str(found.value) == "":
            self.wrong(key, "must be a text")
            return None
        return str(found.value)

    def number(self, key: str, least: float) -> float | None:
        """A number."""
        found = self._found.get(key)
        if found is None:
            return None
        if isinstance(found.value, bool) or not isinstance(found.value, int | float) or found.value < least:
            self.wrong(key, f"must be a number, {least:g} at least")
            return None
        return float(found.value)

    def flag(self, key: str) -> bool:
        """True or false."""
        found = self._found.get(key)
        if found is not None and not isinstance(found.value, bool):
            self.wrong(key, "must be true or false")
        return found is not None and found.value is True

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or one text with commas between."""
        found = self._found.get(key)
        if found is None:
            return ()
        if isinstance(found.value, str):
            return tuple(each.strip() for each in found.value.split(",") if each.strip())
        plain = found.plain()
        if not isinstance(plain, list) or not plain or not all(isinstance(each, str) for each in plain):
            self.wrong(key, "must be a name, or a list of names")
            return ()
        return tuple(plain)

    def options(self, key: str) -> dict[str, str]:
        """A mapping of names to plain values, as Spark takes them: texts."""
        found = self._found.get(key)
        if found is None:
            return {}
        plain = found.plain()
        if not isinstance(plain, dict) or any(isinstance(each, dict | list) or each is None for each in plain.values()):
            self.wrong(key, "must be a mapping of names to texts, numbers, true or false")
            return {}
        return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in plain.items()}


class _Definition:
    """Reads one file, gathering what is wrong with it."""

    def __init__(self, file: Path, top: Located) -> None:
        self._file = file
        self._problems: list[Problem] = []
        self._top = Keys(top, TOP_KEYS, self._problems)

    def pipeline(self) -> Pipeline:
        name = self._top.text("name") or re.sub(r"[^A-Za-z0-9_-]", "-", self._file.stem)
        sources = self._sources()
        steps = self._steps(list(sources))
        last = next(reversed(steps), next(iter(sources), ""))
        outputs, settings = self._sinks(last), self._settings()
        self._add_dead_letters(steps, outputs, settings.dead_letters)
        made = Pipeline(name, self._file, sources, steps, outputs, settings)
        if self._problems:
            raise InvalidDefinition(self._problems)
        return checked(made)

    # -- settings --

    def _settings(self) -> Settings:
        top, plain = self._top, Settings()
        restart = Keys(top.get("restart") or Located({}, top.at), RESTART_KEYS, self._problems)
        times, pause_s = restart.number("times", 0), restart.number("pause_s", 0)
        pause_s_max = restart.number("pause_s_max", 0)
        return Settings(
            url=top.text("url"),
            data=top.text("data"),
            ca_file=top.text("ca_file"),
            dead_letters=top.text("dead_letters"),
            trigger=top.text("trigger") or plain.trigger,
            restarts=plain.restarts if times is None else int(times),
            restart_pause_s=plain.restart_pause_s if pause_s is None else pause_s,
            restart_pause_s_max=plain.restart_pause_s_max if pause_s_max is None else pause_s_max,
            state=top.text("state"),
            conf=top.options("conf"),
        )

    # -- sources --

    def _sources(self) -> dict[str, Source]:
        top = self._top
        if "source" in top and "sources" in top:
            top.wrong("source", "give source (one) or sources (several, by name), not both")
        one, several = top.get("source"), top.get("sources")
        if one is None and several is None:
            self._problems.append(Problem(Place(str(self._file)), "nothing is read: add source: with queue: or files:"))
        found = {"source": one} if one is not None else {}
        if several is not None:
            if not isinstance(several.value, dict) or not several.value:
                top.wrong("sources", "must be a mapping of names to sources")
            else:
                found = several.value
        return {name: self._source(name, each) for name, each in found.items()}

    def _source(self, name: str, found: Located) -> Source:
        keys = Keys(found, SOURCE_KEYS, self._problems)
        kinds = [key for key in ("queue", "queues", "pattern", "files") if key in keys]
        if len(kinds) != 1 and isinstance(found.value, dict):
            given = ", ".join(kinds) or "none"
            self._problems.append(Problem(found.at, f"give one of queue, queues, pattern and files (given: {given})"))
        options = keys.options("options")
        if kinds == ["files"]:
            path, format_ = keys.text("files") or "", keys.text("format") or "json"
            schema = keys.text("schema") or ""
            return Source(name, found.at, FILES, options, format_, path, schema, keys.flag("static"))
        for key in ("format", "schema", "static"):
            if key in keys:
                keys.wrong(key, f"{key} is for files; bodies of messages are parsed by a step with parse")
        if "pattern" in keys:
            options["subscribePattern"] = keys.text("pattern") or ""
        else:
            options["subscribe"] = ",".join(keys.texts("queue") + keys.texts("queues"))
        return Source(name, found.at, QUEUE, options)

    # -- steps --

    def _steps(self, sources: list[str]) -> dict[str, View]:
        found = self._top.get("steps")
        if found is None:
            return {}
        if not isinstance(found.value, list):
            self._top.wrong("steps", "must be a list of steps")
            return {}
        views: dict[str, View] = {}
        previous = sources[0] if len(sources) == 1 else ""
        for number, each in enumerate(found.value, 1):
            view = self._step(each, number, previous)
            if view.name in views:
                self._problems.append(Problem(view.at, f"there are two steps called {view.name!r}: rename one"))
            views[view.name] = view
            previous = view.name
        return views

    def _step(self, found: Located, number: int, previous: str) -> View:
        keys = Keys(found, STEP_KEYS, self._problems)
        name = keys.text("name") or f"step_{number}"
        sql, reference = keys.text("sql") or "", keys.text("python")
        inputs = keys.texts("from")
        if sql:
            if inputs or reference:
                keys.wrong("sql", "a step with sql takes no from and no python: its tables are in the query")
            inputs = tables_of(sql)
        elif not inputs:
            inputs = (previous,) if previous else ()
            if not previous and isinstance(found.value, dict):
                self._problems.append(Problem(found.at, "there are several sources: name one with from"))
        if not reference and not sql and len(inputs) > 1:
            keys.wrong("from", "takes one name here; several go into sql or python")
        if not any(key in keys for key in ("sql", "python", "parse", "checks", "watermark")) and isinstance(
            found.value, dict
        ):
            self._problems.append(Problem(found.at, "does nothing: give sql, python, parse, checks or watermark"))
        function = self._function(keys, reference, len(inputs)) if reference else None
        parse, checks, watermark = self._parse(keys), self._checks(keys), self._watermark(keys)
        return View(name, found.at, inputs, sql, function, parse, checks, watermark)

    def _watermark(self, keys: Keys) -> tuple[str, str] | None:
        found = keys.get("watermark")
        if found is None:
            return None
        given = Keys(found, ("column", "delay"), self._problems)
        column, delay = given.text("column"), given.text("delay")
        if column is None or delay is None or seconds_of(delay) is None:
            keys.wrong(
                "watermark", "needs column (of times) and delay, such as: {column: timestamp, delay: 10 minutes}"
            )
            return None
        return column, delay

    def _function(self, keys: Keys, reference: str, inputs: int) -> Function | None:
        try:
            return find_function(reference, self._file.parent, inputs)
        except ValueError as error:
            keys.wrong("python", str(error))
            return None

    def _parse(self, keys: Keys) -> Parse | None:
        if "parse" not in keys:
            if "schema" in keys:
                keys.wrong("schema", "schema belongs to parse: json or parse: csv")
            return None
        return Parse(keys.text("parse") or "", keys.text("schema") or "")

    def _checks(self, keys: Keys) -> tuple[Check, ...]:
        """A mapping of names to conditions, or a list of conditions that name themselves."""
        found = keys.get("checks")
        plain: Any = {} if found is None else found.plain()
        if isinstance(plain, list) and all(isinstance(each, str) for each in plain):
            plain = {each: each for each in plain}
        if not isinstance(plain, dict) or not all(isinstance(each, str) for each in plain.values()):
            keys.wrong("checks", "must be conditions in SQL, by name: amount is positive: amount > 0")
            return ()
        return tuple(Check(name, condition) for name, condition in plain.items())

    def _add_dead_letters(self, steps: dict[str, View], outputs: dict[str, Output], queue: str | None) -> None:
        """What `@checked` does in Python: for each step that rows may fail, a flow of these rows to a queue."""
        for step in [each for each in steps.values() if each.rejects]:
            name = f"{step.name}_rejects"
            if queue is None:
                told = "rows may fail here, and nothing says where they go: set dead_letters to a queue's name"
                self._problems.append(Problem(step.at, told))
            elif name in outputs:
                told = f"{name!r} is the name of the query that sends the dead letters of {step.name!r}: rename it"
                self._problems.append(Problem(outputs[name].at, told))
            else:
                steps[f"{name}.flow"] = View(f"{name}.flow", step.at, (step.name,), is_rejects=True)
                outputs[name] = Output(name, step.at, f"{name}.flow", "queue", queue)

    # -- sinks --

    def _sinks(self, last: str) -> dict[str, Output]:
        top = self._top
        if "sink" in top and "sinks" in top:
            top.wrong("sink", "give sink (one) or sinks (a list), not both")
        one, several = top.get("sink"), top.get("sinks")
        found = [one] if one is not None else []
        if several is not None:
            if not isinstance(several.value, list) or not several.value:
                top.wrong("sinks", "must be a list of sinks")
            else:
                found = several.value
        if not found and "sinks" not in top:
            self._problems.append(
                Problem(Place(str(self._file)), "nothing is written: add sink: with queue:, parquet: ...")
            )
        outputs: dict[str, Output] = {}
        for number, each in enumerate(found, 1):
            output = self._sink(each, number, last)
            if output.name in outputs:
                self._problems.append(Problem(output.at, f"there are two sinks called {output.name!r}: rename one"))
            outputs[output.name] = output
        return outputs

    def _sink(self, found: Located, number: int, last: str) -> Output:
        keys = Keys(found, SINK_KEYS, self._problems)
        kinds = [kind for kind in OUTPUT_KINDS if kind in keys]
        if len(kinds) != 1 and isinstance(found.value, dict):
            given = ", ".join(kinds) or "none"
            self._problems.append(Problem(found.at, f"give one of {', '.join(OUTPUT_KINDS)} (given: {given})"))
        kind = kinds[0] if kinds else "console"
        target = "" if kind == "console" else self._target(keys, kind)
        name = keys.text("name") or f"sink_{number}"
        options, partition_by = keys.options("options"), keys.texts("partition_by")
        return Output(name, found.at, keys.text("from") or last, kind, target, options, partition_by)

    def _target(self, keys: Keys, kind: str) -> str:
        found = keys.get(kind)
        if kind == "queue" and found is not None and found.value is True:
            return ""  # the rows' own column topic says where each goes
        return keys.text(kind) or ""
