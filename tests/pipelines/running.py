"""Pipelines run in the tests' own session, with everything noted that a display is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from penstock.pipelines.checkpoints import State, state_directory
from penstock.pipelines.definition import Pipeline, load
from penstock.pipelines.progress import Batch, QueryProgress
from penstock.pipelines.runner import Outcome, Runner
from penstock.pipelines.sessions import by_value
from penstock.pipelines.where import Where
from tests.package import PACKAGE
from tests.ports import free_port
from tests.spark.running import SILENT, Queues
from tests.spark.test_clusters import wait_for_port

BIN = Path(pyspark.__file__).parent / "bin"


class Noted:
    """A display that remembers."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, Batch]] = []
        self.notes: list[str] = []
        self.on_note: Callable[[], None] = lambda: None
        self.on_batch: Callable[[], None] = lambda: None

    def batch(self, query: QueryProgress, batch: Batch) -> None:
        self.batches.append((query.name, batch))
        self.on_batch()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note()

    def refresh(self, queries: list[QueryProgress]) -> None:
        pass

    def close(self) -> None:
        pass


class Bench:
    """A definition in a directory, and runs of it."""

    def __init__(self, queues: Queues, text: str, name: str = "orders.yaml") -> None:
        self.queues = queues
        self.file = queues.directory / name
        self.display = Noted()
        self.write(text)

    def write(self, text: str) -> None:
        """The definition; `{q}` in it is the prefix of the test's own queues."""
        self.file.write_text(textwrap.dedent(text).replace("{q}", self.queues.prefix))

    @property
    def pipeline(self) -> Pipeline:
        return load(self.file)

    @property
    def state(self) -> State:
        return State(state_directory(self.pipeline, None))

    def run(
        self, *, once: bool = True, reset: bool = False, stop: threading.Event | None = None, where: Where | None = None
    ) -> Outcome:
        self.display.batches.clear()
        pipeline, state = self.pipeline, self.state
        with state.locked():
            state.accept(pipeline, reset=reset)
            calls = [view.function.call for view in pipeline.views.values() if view.function is not None]
            by_value(sorted({call.__module__ for call in calls}))
            where = where or Where(url=self.queues.url)
            stop = stop or threading.Event()
            return Runner(self.queues.spark, pipeline, where, state, self.display, once, stop).run()

    def check(self) -> None:
        """As `validate --analyse` does."""
        Runner(self.queues.spark, self.pipeline, Where(url=self.queues.url), self.state, self.display).check()

    def rows(self) -> dict[str, int]:
        """How many rows each query has read in the last run."""
        found: dict[str, int] = {}
        for name, batch in self.display.batches:
            found[name] = found.get(name, 0) + batch.rows
        return found

    def path(self, name: str) -> Path:
        return self.file.parent / name

    def files(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        frame = self.queues.spark.read.parquet(str(self.path(name)))
        return sorted(tuple(row) for row in frame.select(*columns).collect())


@contextmanager
def connect_server(master: str, directory: Path, **settings: str) -> Iterator[str]:
    """A server of Spark Connect on this machine, whose executors are those of the master."""
    port = free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.memory": "700m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(PACKAGE),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{SILENT}",
    }
    given = [word for name, value in (conf | settings).items() for word in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [str(BIN / "spark-submit"), "--master", master, *given, "--class", main, "spark-internal"]
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (directory / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            wait_for_port(port)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait(30)
