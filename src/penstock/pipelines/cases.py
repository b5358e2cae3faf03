"""`penstock pipeline test`: messages in, rows and dead letters out, as a file beside the pipeline says.

Each case runs the whole pipeline, once, against a real server of its own that is gone afterwards. What would be written
to a directory or a table is written to a temporary directory as Parquet. Sources that are files are read as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import testing
from penstock.pipelines.checkpoints import State
from penstock.pipelines.definition import FILE_KINDS, MATERIALIZED, Output, Pipeline, meant
from penstock.pipelines.errors import InvalidDefinition, Place, Problem
from penstock.pipelines.frames import table_path
from penstock.pipelines.progress import Display
from penstock.pipelines.runner import DONE, Runner
from penstock.pipelines.where import Where
from penstock.pipelines.yaml_file import Keys, load_yaml
from penstock.spark import options
from penstock.spark.errors import ServerFailed
from penstock.spark.server import Connection

CASE_KEYS = ("name", "given", "expect", "rejects")
_COLUMNS = {"value": "body", "key": "group", "headers": "attributes"}
_PAGE = 10_000


@dataclass(frozen=True)
class Case:
    """What is sent to which queue, and what has to come out."""

    name: str
    given: Mapping[str, list[Any]] = field(default_factory=dict)
    expect: Mapping[str, list[Any]] = field(default_factory=dict)
    rejects: list[Any] = field(default_factory=list)


def cases_file(pipeline: Pipeline) -> Path:
    """Where the cases of a pipeline are, unless somebody says it: `orders.test.yaml` beside `orders.py`."""
    return pipeline.file.with_name(f"{pipeline.file.stem}.test.yaml")


def read_cases(file: Path) -> list[Case]:
    """The cases of a file; `InvalidDefinition` says what is wrong with it."""
    if not file.is_file():
        raise InvalidDefinition(
            [Problem(Place(str(file)), "there is no such file: write cases there, or give --cases")]
        )
    problems: list[Problem] = []
    top, cases = load_yaml(file), []
    if not isinstance(top.value, list) or not top.value:
        raise InvalidDefinition([Problem(top.at, "must be a list of cases: name, given, expect, rejects")])
    for number, each in enumerate(top.value, 1):
        keys = Keys(each, CASE_KEYS, problems)
        found = {key: located.plain() for key in CASE_KEYS[1:] if (located := keys.get(key)) is not None}
        for key in ("given", "expect"):
            if not _is_lists(found.get(key, {})):
                keys.wrong(key, "must be lists by name: the messages of a queue, the rows of a sink")
        rejects = found.get("rejects", [])
        if not isinstance(rejects, list) or any(not isinstance(row, dict) or row.keys() - _REJECT for row in rejects):
            keys.wrong("rejects", f"must be a list of mappings with {', '.join(sorted(_REJECT))}")
        if "expect" not in found and "rejects" not in found:
            problems.append(Problem(each.at, "expects nothing: give expect, rejects, or both"))
        cases.append(Case(keys.text("name") or f"case {number}", **found))
    if problems:
        raise InvalidDefinition(problems)
    return cases


_REJECT = {"body", "reason", "step"}


def _is_lists(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(each, list) for each in found.values())


def run_case(spark: Any, pipeline: Pipeline, case: Case, display: Display) -> list[str]:
    """Run a case; what is wrong with what came out, line by line."""
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-case-"))
        server = stack.enter_context(testing.server())
        directory = Path(temporary)
        connection = stack.enter_context(contextlib.closing(Connection(options.Where(server.http_url))))
        tried = _redirected(pipeline, directory)
        for queue, messages in case.given.items():
            connection.ask("POST", "/v1/queues", {"name": queue})
            for low in range(0, len(messages), 1_000):
                sent = [_message(each) for each in messages[low : low + 1_000]]
                connection.ask("POST", f"/v1/queues/{queue}/messages", sent)
        outcome = Runner(spark, tried, Where(server.http_url), State(directory / "state"), display).run()
        if outcome.state != DONE:
            return [outcome.reason]
        wrong: list[str] = []
        rejected: list[Any] = []
        queues = {each.target for each in tried.outputs.values() if each.kind == "queue" and each.target}
        for queue in sorted(queues):
            rejected += [row for row in _records(connection, queue) if "penstock.reason" in row["attributes"]]
        for name, rows in case.expect.items():
            wrong += [f"{name}: {each}" for each in _compared(rows, _rows(spark, tried, name, connection, directory))]
        return wrong + [f"rejects: {each}" for each in _compared_rejects(case.rejects, rejected)]


def _redirected(pipeline: Pipeline, directory: Path) -> Pipeline:
    """The same, but for where files go."""

    def moved(output: Output) -> Output:
        if output.kind not in FILE_KINDS or output.is_table:
            return output
        return dataclasses.replace(output, kind="parquet", target=str(directory / output.name), options={})

    outputs = {name: moved(output) for name, output in pipeline.outputs.items()}
    return dataclasses.replace(pipeline, outputs=outputs)


def _message(given: Any) -> dict[str, Any]:
    """A text is a body, a mapping is one as JSON, unless it says so: {value: ..., key: ..., headers: ...}."""
    if isinstance(given, dict) and "value" in given and given.keys() <= _COLUMNS.keys():
        return {_COLUMNS[name]: _body(each) if name == "value" else each for name, each in given.items()}
    return {"body": _body(given)}


def _body(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, default=str)


def _rows(spark: Any, pipeline: Pipeline, name: str, server: Connection, directory: Path) -> list[Any]:
    """What has come to a sink, or to a queue."""
    output = pipeline.outputs.get(name)
    if output is not None and output.kind in ("parquet", MATERIALIZED):
        path = table_path(pipeline, output, directory / "state")
        if not any(path.rglob("*.parquet")):  # type: ignore[union-attr]  # a directory of this machine
            return []
        return [json.loads(row) for row in spark.read.parquet(str(path)).toJSON().collect()]
    queue = name if output is None else output.target or name
    found = []
    for record in _records(server, queue):
        if "penstock.reason" not in record["attributes"]:
            try:
                found.append(json.loads(record["body"]))
            except ValueError:
                found.append(record["body"])
    return found


def _compared(expected: list[Any], found: list[Any]) -> Iterator[str]:
    left = list(found)
    for row in expected:
        if row in left:
            left.remove(row)
        else:
            yield f"missing {json.dumps(row, default=str)}"
    for row in left:
        yield f"not expected {json.dumps(row)}"


def _compared_rejects(expected: list[Any], found: list[Any]) -> Iterator[str]:
    """Rejects are as expected in what a case says of them; a reason may be a part of the whole."""
    left = [
        {name: each["attributes"].get(f"penstock.{name}", "") for name in ("reason", "step")} | {"body": each["body"]}
        for each in found
    ]
    for row in expected:
        wanted = {name: each if name == "body" else str(each) for name, each in row.items()}
        fits = [
            each
            for each in left
            if wanted.get("reason", "") in each["reason"]
            and wanted.get("step", each["step"]) == each["step"]
            and ("body" not in wanted or _body(wanted["body"]) == each["body"])
        ]
        if fits:
            left.remove(fits[0])
        else:
            yield f"missing {json.dumps(row, default=str)}"
    for each in left:
        yield f"not expected {json.dumps(each)}"


def _records(server: Connection, queue: str) -> list[Any]:
    """All that is in a queue; nothing if it was never made."""
    found: list[Any] = []
    offset = 0
    while True:
        try:
            page = server.ask("GET", f"/v1/queues/{queue}/records?offset={offset}&max={_PAGE}")
        except ServerFailed as error:
            if error.status == 404:
                return []
            raise
        for record in page["records"]:
            body = record["body"] if "body" in record else f"base64:{record['body_base64']}"
            found.append({"body": body, "attributes": record.get("attributes") or {}})
        if page["next_offset"] >= page["end_offset"]:
            return found
        offset = page["next_offset"]


def unknown_sinks(pipeline: Pipeline, cases: list[Case], file: Path) -> list[Problem]:
    """Cases that expect rows of what is no sink: of a pipeline whose rows themselves say their queue, any name goes."""
    queues = {each.target for each in pipeline.outputs.values() if each.kind == "queue"}
    if "" in queues:
        return []
    known = [*pipeline.outputs, *queues]
    return [
        Problem(
            Place(str(file)),
            f"{case.name!r} expects rows of {name!r}, which is not a sink or table{meant(name, known)}",
        )
        for case in cases
        for name in case.expect
        if name not in known
    ]
