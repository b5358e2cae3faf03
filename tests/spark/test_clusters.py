"""The connector on clusters: executors in other processes, which get what they need with the job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compat.server import ROOT, Server, serving
from tests.ports import free_port
from tests.spark.running import SILENT, need_java

PATIENCE_S = 240


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server") as server:
        yield server


def run_job(master: str, server: Server, directory: Path, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.jobs", "round-trip", master, f"http://127.0.0.1:{server.http_port}"]
    finished = subprocess.run(
        [*command, str(directory)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert finished.returncode == 0, finished.stderr[-5_000:]
    result: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return result


def assert_all_there(result: dict[str, Any]) -> None:
    assert result["rows"] == 20_000
    assert result["total"] == sum(range(20_000))
    assert result["out"] == 20_000


def test_two_executors_of_a_local_cluster_read_and_write(own_server: Server, tmp_path: Path) -> None:
    need_java()
    result = run_job("local-cluster[2,1,1024]", own_server, tmp_path)
    assert_all_there(result)
    assert len(result["executors"]) == 2


def test_a_standalone_cluster_whose_workers_lack_penstock_gets_it_with_the_job(
    own_server: Server, tmp_path: Path
) -> None:
    need_java()
    bare = python_without_penstock(tmp_path)
    assert subprocess.run([bare, "-c", "import penstock"], capture_output=True, env=clean()).returncode != 0
    with standalone(tmp_path) as master:
        settings = {"spark.executorEnv.PYSPARK_PYTHON": str(bare), "spark.pyspark.python": str(bare)}
        settings["spark.pyspark.driver.python"] = sys.executable
        result = run_job(master, own_server, tmp_path, SHIP="1", SPARK_SETTINGS=json.dumps(settings))
    assert_all_there(result)
    assert len(result["executors"]) == 2


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python_without_penstock(directory: Path) -> Path:
    """This Python with all its libraries but one: its `sitecustomize` takes the checkout off the path."""
    hooks = directory / "hooks"
    hooks.mkdir()
    checkout = (str(ROOT), str(ROOT / "src"))
    (hooks / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [path for path in sys.path if path.rstrip('/') not in {checkout!r}]\n"
    )
    python = directory / "bare-python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hooks}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers, started from the pip package."""
    import pyspark

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    java = f"-Dlog4j2.configurationFile=file:{SILENT}"
    environment = clean() | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": java, "SPARK_NO_DAEMONIZE": "1"}
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> None:
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(spark_class), *arguments], stdout=log, stderr=log, env=environment, cwd=directory
            )
            stack.callback(process.wait, 30)
            stack.callback(process.kill)

        deploy = "org.apache.spark.deploy"
        start("master", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        wait_for_port(port)
        for number in (1, 2):
            start(
                f"worker-{number}",
                f"{deploy}.worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(directory / f"work-{number}"), master),
            )
        yield master


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "the master never listened"
            time.sleep(0.1)
