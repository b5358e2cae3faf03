"""`penstock pipeline` as users run it: exit statuses, signals, kills, and what `status` says meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.checkpoints import State, state_directory, status_of
from penstock.pipelines.definition import load
from penstock.pipelines.where import Where
from tests.compat.server import until
from tests.spark.running import PATIENCE_S, Queues

MESSAGES = 1_500
DEFINITION = """\
name: orders
dead_letters: "{q}-rejects"
trigger: 50 ms
source: {queue: "{q}-q", options: {maxOffsetsPerTrigger: 250}}
steps:
  - {name: numbers, parse: csv, schema: n bigint, checks: {not a tenth: n % 10 <> 0}}
sinks:
  - {name: to_queue, queue: "{q}-out"}
  - {name: to_files, parquet: out}
"""
LONG_S = 2 * PATIENCE_S
PLAIN = DEFINITION.replace("{q}", "t")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "pipeline", *words]


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)


def test_validate_says_what_a_pipeline_does_and_status_2_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(PLAIN)
    done = run(tmp_path, "validate", "orders.yaml")
    assert done.returncode == 0, done.stderr
    assert "rejects" in done.stdout
    (tmp_path / "orders.yaml").write_text(PLAIN.replace("parse:", "pares:"))
    for verb in ("validate", "run", "status"):
        done = run(tmp_path, verb, "orders.yaml")
        assert done.returncode == 2
        assert "penstock: orders.yaml:6: steps[0].pares: there is no key 'pares' (did you mean parse?)" in done.stderr
        assert "Traceback" not in done.stderr


def test_status_of_a_pipeline_that_never_ran(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(PLAIN)
    assert "orders: never run" in run(tmp_path, "status", "orders.yaml").stdout


@pytest.mark.parametrize("words", [("--conf", "spark"), ("--trigger", "often")])
def test_wrong_flags_are_refused_before_anything_starts(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "orders.yaml").write_text(PLAIN)
    assert run(tmp_path, "run", "orders.yaml", *words).returncode == 2


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Those that a test has started; none is left after it."""
    started: list[Process] = []
    yield started
    for each in started:
        each.process.kill()
        each.process.wait(PATIENCE_S)


class Process:
    """A pipeline that runs in a process of its own."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.directory = queues.directory
        words = ("run", "orders.yaml", "--continuous", "--json", "--master", "local[2]", "--url", queues.url)
        self.output = (self.directory / "output").open("ab")
        self.process = subprocess.Popen(
            command(*words), cwd=self.directory, stdout=self.output, stderr=self.output, env=os.environ | {"CI": "true"}
        )

    def status(self) -> dict[str, Any]:
        done = run(self.directory, "status", "orders.yaml", "--json", "--url", self.queues.url)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def lags(self) -> list[int]:
        """How far behind each query is by its checkpoint and the queue's end."""
        pipeline = load(self.directory / "orders.yaml")
        state = State(state_directory(pipeline, None))
        assert self.process.poll() is None, (self.directory / "output").read_text()
        found = status_of(pipeline, state, Where(url=self.queues.url))
        return [each.get("lag", MESSAGES) for each in found["queries"]]

    def said(self) -> dict[str, int]:
        """The rows of each query, by the status file."""
        file = self.directory / ".penstock" / "orders" / "status.json"
        assert self.process.poll() is None, (self.directory / "output").read_text()
        status: Any = json.loads(file.read_text()) if file.exists() else {"queries": [], "pid": 0}
        return {each["query"]: each["rows"] for each in status["queries"] if status["pid"] == self.process.pid}

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.output.close()
        return self.process.wait(PATIENCE_S)


@pytest.mark.timeout(600)
def test_killed_and_started_again_each_row_is_where_it_belongs_once(queues: Queues, processes: list[Process]) -> None:
    (queues.directory / "orders.yaml").write_text(DEFINITION.replace("{q}", queues.prefix))
    queues.send(MESSAGES)
    first = Process(queues)
    processes.append(first)
    until(lambda: sum(first.said().values()) >= 500, LONG_S)
    assert first.status()["state"] == "running"
    second = run(queues.directory, "run", "orders.yaml")
    assert (second.returncode, "another process" in second.stderr) == (1, True)
    first.end(signal.SIGKILL)
    status = first.status()
    assert status["state"] == "failed"
    assert "it was killed" in status["reason"]

    again = Process(queues)
    processes.append(again)
    until(lambda: sum(again.lags()) == 0, LONG_S)
    assert again.end(signal.SIGTERM) == 3, (queues.directory / "output").read_text()
    status = again.status()
    assert (status["state"], status["reason"]) == ("stopped", "it was told to stop")
    assert {each["state"] for each in status["queries"]} == {"stopped"}

    good = [n for n in range(MESSAGES) if n % 10]
    out = [json.loads(record["body"])["n"] for record in queues.records("out")]
    assert sorted(out) == good
    rejected = Counter(record["body"] for record in queues.records("rejects"))
    assert rejected == Counter(str(n) for n in range(0, MESSAGES, 10))
    files = queues.spark.read.parquet(str(queues.directory / "out")).collect()
    assert sorted(row.n for row in files) == good


def test_sql_prints_rows_for_programs(queues: Queues) -> None:
    queues.send(3)
    words = [
        "sql",
        f"select value, offset from queue('{queues.name()}') order by offset",
        "--csv",
        "--data",
        queues.data,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "value,offset\n0,0\n1,1\n2,2\n"), done.stderr
