"""Spark sessions for tests, and queues to try them on."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from penstock.core.storage.chunk import Chunk
from penstock.spark.options import Where
from penstock.spark.server import Connection
from penstock.spark.worker_python import worker_python
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import Server, until

SILENT = Path(__file__).with_name("log4j2.properties")
PATIENCE_S = 90
_numbers = itertools.count(1)


def need_java() -> None:
    """Spark needs a JVM; a machine without one cannot run these tests, except in CI, where that is an error."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        reason = "SPARK TESTS DID NOT RUN: there is no Java on this machine"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def session(master: str, directory: Path, **settings: str) -> Any:
    """A Spark session that is quiet, local, and leaves nothing behind."""
    need_java()
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = worker_python() if master.startswith("local[") else sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log4j = f"-Dlog4j2.configurationFile=file:{SILENT}"
    builder = SparkSession.builder.master(master).appName("penstock tests")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": log4j,
        "spark.executor.extraJavaOptions": log4j,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.streaming.pollingDelay": "10ms",
    }
    for name, value in (fixed | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Queues:
    """Queues of a test's own, on a server that all tests share."""

    def __init__(self, server: Server, spark: Any, directory: Path) -> None:
        self.server = server
        self.spark = spark
        self.directory = directory
        self.prefix = f"t{next(_numbers)}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}"

    def wait_for_tasks(self) -> None:
        """Until Spark runs no task: those of a job that was given up go on for a while."""
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        until(lambda: not any(each.numRunningTasks() for each in tracker.getExecutorInfos()), PATIENCE_S)

    @property
    def data(self) -> str:
        return str(self.server.data)

    def name(self, short: str = "q") -> str:
        return f"{self.prefix}-{short}"

    def rest(self, verb: str, path: str, body: Any = None) -> Any:
        """A call of the REST API, as any client would make it."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=verb)
        with urllib.request.urlopen(request, timeout=30) as response:
            found = response.read()
        return json.loads(found) if found else None

    def create(self, short: str = "q", channels: tuple[str, ...] = ("main",), **settings: Any) -> str:
        self.rest("POST", "/v1/queues", {"name": self.name(short), "settings": settings, "channels": channels})
        return self.name(short)

    def send(self, count: int, short: str = "q", start: int = 0, chunk: int = 1_000, **columns: Any) -> str:
        """Messages with the numbers from `start` on as bodies, so many a chunk."""
        name = self.name(short)
        with contextlib.closing(Connection(Where(url=self.url))) as connection:
            for low in range(start, start + count, chunk):
                bodies = [b"%d" % number for number in range(low, min(low + chunk, start + count))]
                given = {what: [value] * len(bodies) for what, value in columns.items()}
                section = encode_section(Target(name), Chunk.of(0, 0, bodies, **given))
                connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})
        return name

    def channels(self, short: str = "q") -> dict[str, Any]:
        """The channels of a queue, with their counts."""
        found = self.rest("GET", f"/v1/queues/{self.name(short)}/channels")
        return {channel["name"]: channel for channel in found["channels"]}

    def records(self, short: str = "q") -> list[Any]:
        """Everything that is in a queue, by the REST API."""
        found: list[Any] = []
        offset = 0
        while True:
            page = self.rest("GET", f"/v1/queues/{self.name(short)}/records?offset={offset}&max=10000")
            found += page["records"]
            if page["next_offset"] >= page["end_offset"] or page["next_offset"] == offset:
                return found
            offset = page["next_offset"]

    # -- Spark --

    def reader(self, short: str | None = "q", *, path: bool = False, **options: Any) -> Any:
        return self._from(self.spark.read, short, path, options)

    def stream(self, short: str | None = "q", *, path: bool = False, **options: Any) -> Any:
        return self._from(self.spark.readStream, short, path, {"startingOffsets": "earliest"} | options)

    def _from(self, reader: Any, short: str | None, path: bool, options: dict[str, Any]) -> Any:
        where = {"path": self.data} if path else {"url": self.url}
        what = {} if short is None else {"subscribe": self.name(short)}
        given = {name: value for name, value in (where | what | options).items() if value is not None}
        return reader.format("penstock").options(**given).load()

    def numbers(self, frame: Any) -> list[int]:
        return sorted(int(bytes(row.value)) for row in frame.select("value").collect())

    def run(self, frame: Any, output: str = "out", checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        """A stream into Parquet, to its end."""
        query = self.start(frame, output, checkpoint, **(trigger or {"availableNow": True}))
        assert query.awaitTermination(PATIENCE_S), "the stream did not end"
        return query

    def start(self, frame: Any, output: str = "out", checkpoint: str = "checkpoint", **trigger: Any) -> Any:
        writer = frame.selectExpr("cast(value as string) as value", "offset", "topic").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.directory / checkpoint))
        return (
            writer.trigger(**trigger).start(str(self.directory / output))
            if trigger
            else writer.start(str(self.directory / output))
        )

    def output(self, output: str = "out") -> list[int]:
        frame = self.spark.read.schema("value string, offset bigint, topic string").parquet(
            str(self.directory / output)
        )
        return sorted(int(row.value) for row in frame.collect())
