"""Ready pipelines from the command line: killed, stopped, and told what is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.landing import Landing
from penstock.pipelines.ready.archives import read_archive
from tests.compat.server import Server, until
from tests.spark.running import Queues

PATIENCE_S = 240


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "pipeline", "run", *arguments]


def begin(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    variables = os.environ | {"PYSPARK_PYTHON": sys.executable}
    return subprocess.Popen(
        command(*arguments), cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def kill_tree(process: subprocess.Popen[str]) -> None:
    """The driver and its JVM, as a machine that loses power."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait(PATIENCE_S)


@pytest.mark.timeout(900)
def test_an_archive_that_is_killed_and_stopped_has_each_message_once(
    spark: Any, queues: Queues, tmp_path: Path
) -> None:
    name, path = queues.send(20_000), tmp_path / "archive"
    arguments = ["archive", "--queue", name, "--path", str(path), "--url", queues.url, "--batch", "500"]
    landing = Landing(path)
    killed = begin(tmp_path, *arguments, "--no-compact")
    until(lambda: len(landing.files()) >= 3 or killed.poll() is not None, PATIENCE_S)
    assert killed.poll() is None
    kill_tree(killed)
    before = len(landing.files())
    stopped = begin(tmp_path, *arguments, "--continuous", "--every", "0 seconds")
    until(lambda: len(landing.files()) > before or stopped.poll() is not None, PATIENCE_S)
    stopped.send_signal(signal.SIGTERM)
    told = stopped.communicate(timeout=PATIENCE_S)[0]
    assert stopped.returncode == 3, told
    assert "the next run goes on from here" in told
    last = begin(tmp_path, *arguments, "--batch", "100000")
    told = last.communicate(timeout=PATIENCE_S)[0]
    assert last.returncode == 0, told
    found = sorted(int(bytes(row.value)) for row in read_archive(spark, path).select("value").collect())
    assert found == list(range(20_000))


@pytest.mark.parametrize(
    ("arguments", "status", "what"),
    [
        (["replay"], 2, "Missing option"),
        (["report", "--table", "nowhere"], 3, "has no windows"),
        (["archive", "--path", "a", "--fromat", "delta"], 2, "No such option"),
        (["nosuch"], 2, "nosuch"),
    ],
)
def test_what_is_wrong_is_one_message_and_a_status(
    arguments: list[str], status: int, what: str, tmp_path: Path
) -> None:
    process = begin(tmp_path, *arguments)
    told = process.communicate(timeout=PATIENCE_S)[0]
    assert (process.returncode, what in told) == (status, True), told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("queues", "what"), [(["--queue", "nosuch.dead"], "nosuch.dead"), ([], "which dead-letter queues")]
)
def test_a_redrive_of_nothing_is_refused_before_spark_starts(
    queues: list[str], what: str, server: Server, tmp_path: Path
) -> None:
    arguments = command("redrive", "--url", f"http://127.0.0.1:{server.http_port}", *queues)
    without_java = os.environ | {"JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(arguments, env=without_java, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode != 0
    assert what in ended.stderr, ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_every_ready_pipeline_has_help(tmp_path: Path) -> None:
    from penstock.cli.pipelines import READY_NAMES
    from penstock.cli.ready import commands
    from penstock.pipelines.ready import FILES

    assert set(FILES) < set(commands.functions)
    assert all(name in READY_NAMES for name in commands.functions)
    assert all(file.is_file() for file in FILES.values())
    shown = subprocess.run(command("rollup", "--help"), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (shown.returncode, "--window" in shown.stdout) == (0, True)
