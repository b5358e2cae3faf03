"""Dedupe and join: pipelines in Spark's language, told by parameters what to read and where to write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.checkpoints import State
from penstock.pipelines.definition import Pipeline
from penstock.pipelines.errors import InvalidDefinition
from penstock.pipelines.library import PARAMETER
from penstock.pipelines.python_file import read_python
from penstock.pipelines.ready import FILES
from penstock.pipelines.runner import Runner
from penstock.pipelines.where import Where
from tests.pipelines.running import Noted
from tests.spark.running import Queues


@pytest.fixture(autouse=True)
def no_parameters_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith(PARAMETER)]:
        monkeypatch.delenv(name)


def told(monkeypatch: pytest.MonkeyPatch, ready: str, **parameters: str) -> Pipeline:
    for name, value in parameters.items():
        monkeypatch.setenv(f"{PARAMETER}{name.strip('_').upper()}", value)
    return read_python(FILES[ready])


def run(spark: Any, where: Where, pipeline: Pipeline, directory: Path) -> None:
    state = State(directory / pipeline.name)
    state.accept(pipeline, reset=False)
    outcome = Runner(spark, pipeline, where, state, Noted()).run()
    assert (outcome.state, outcome.reason) == ("done", "")


def test_the_same_body_is_copied_once_also_over_several_runs(
    spark: Any, queues: Queues, where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = queues.send(100, "in")
    queues.send(100, "in")
    pipeline = told(monkeypatch, "dedupe", from_=name, to=queues.name("out"))
    for _ in range(2):
        run(spark, where, pipeline, tmp_path)
        queues.send(110, "in", start=90)
    run(spark, where, pipeline, tmp_path)
    assert queues.numbers(queues.reader("out")) == list(range(200))


def test_alike_by_key_leaves_messages_without_one_alone(
    spark: Any, queues: Queues, where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = queues.send(5, "in", groups=b"a")
    queues.send(5, "in", start=10, groups=b"b")
    queues.send(5, "in", start=20)
    run(spark, where, told(monkeypatch, "dedupe", from_=name, to=queues.name("out"), by="key"), tmp_path)
    found = queues.numbers(queues.reader("out"))
    assert found[2:] == [20, 21, 22, 23, 24]
    assert found[0] < 5 <= 10 <= found[1] < 15


def test_two_queues_are_joined_by_key(
    spark: Any, queues: Queues, where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (b"1", b"2", b"3"):
        queues.send(1, "orders", start=int(key) * 10, groups=key)
    for key in (b"2", b"3", b"4"):
        queues.send(1, "payments", start=int(key) * 100, groups=key)
    names = {"left": queues.name("orders"), "right": queues.name("payments"), "to": queues.name("paid")}
    run(spark, where, told(monkeypatch, "join", **names), tmp_path)
    rows = queues.reader("paid").collect()
    bodies = sorted((json.loads(bytes(row.value)) for row in rows), key=lambda each: str(each["on"]))
    assert [(each["on"], each["left"], each["right"]) for each in bodies] == [("2", "20", "200"), ("3", "30", "300")]
    assert {bytes(row.key) for row in rows} == {b"2", b"3"}


@pytest.mark.parametrize(
    ("ready", "parameters", "says"),
    [
        ("dedupe", {"from_": "in", "to": "out", "within": "soon"}, "within is 'soon'"),
        ("dedupe", {"from_": "in", "to": "in"}, "into itself"),
        ("dedupe", {"from_": "in"}, "the parameter 'to' has no value and no default: set PENSTOCK_PARAMETER_TO"),
        ("join", {"left": "a", "right": "b", "to": "a"}, "cannot get the result"),
        ("join", {"left": "a", "right": "b", "to": "c", "within": "soon"}, "within is 'soon'"),
    ],
)
def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, ready: str, parameters: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidDefinition, match=says):
        told(monkeypatch, ready, **parameters)


def test_sql_that_is_none_is_said_with_its_place(
    spark: Any, queues: Queues, where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = queues.send(1, "in")
    pipeline = told(monkeypatch, "dedupe", from_=name, to=queues.name("out"), by="colour")
    with pytest.raises(InvalidDefinition, match=r"dedupe.py:\d+: unique: .*UNRESOLVED_COLUMN.*colour"):
        run(spark, where, pipeline, tmp_path)
