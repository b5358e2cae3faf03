"""How fast do messages go from queues to Spark and back, against Spark's own Parquet files of the same rows?

Everything runs in one Spark session with two cores: first a turn that does not count, then turns one after the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.measure import (
    BODY_BYTES,
    Ratio,
    Scale,
    at_least,
    at_most,
    empty_directory,
    parse_scale,
    plain,
    quartiles,
    report,
    table,
)
from penstock.core.storage.chunk import Chunk
from penstock.spark.options import Where
from penstock.spark.server import Connection
from penstock.spark.source import KAFKA_COLUMNS, PenstockDataSource
from penstock.spark.worker_python import worker_python
from penstock.wire.pieces import Target, encode_section

ROOT = Path(__file__).resolve().parent.parent
TURNS = 5
PARTITIONS = 2
_CHUNK = 4_000
_SILENT = """
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
"""


class Bench:
    """A session, a server, and the same rows as a queue and as Parquet files."""

    def __init__(self, directory: Path, scale: Scale) -> None:
        self.directory = directory
        self.count = scale.count(1_000_000, 20_000)
        self.turns = scale.turns(TURNS)
        self.probes = scale.count(20, 3)
        self._names = 0
        self.trigger_rates: dict[str, list[float]] = {}
        """Of streams, by name: rows a second of their batches alone, without what comes before the first."""
        self.spark = _session(directory)
        self.server = _Server(directory)

    def name(self, what: str) -> str:
        """A name that nobody has used."""
        self._names += 1
        return f"{what}-{self._names}"

    def prepare(self) -> None:
        """Write the rows down, in both forms."""
        with contextlib.closing(Connection(Where(url=self.server.url))) as connection:
            values = bodies_like_data(self.count)
            for low in range(0, self.count, _CHUNK):
                section = encode_section(Target("rows"), Chunk.of(0, 0, values[low : low + _CHUNK]))
                connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})
        self.penstock(url=True).write.parquet(str(self.directory / "rows.parquet"))

    def penstock(self, *, url: bool, stream: bool = False) -> Any:
        """The queue, by server or by directory."""
        where = {"url": self.server.url} if url else {"path": str(self.server.data)}
        reader = self.spark.readStream if stream else self.spark.read
        options = {"subscribe": "rows", "minPartitions": str(PARTITIONS)} | where
        if stream:
            options |= {"startingOffsets": "earliest"}
        return reader.format("penstock").options(**options).load()

    def parquet(self, *, stream: bool = False) -> Any:
        """The same rows as files."""
        reader = self.spark.readStream if stream else self.spark.read
        return reader.schema(self.penstock(url=True).schema).parquet(str(self.directory / "rows.parquet"))

    def memory(self) -> Any:
        """As many rows, in Arrow batches that a source in Python has ready: no such source can be faster."""
        self.spark.dataSource.register(_Ready)
        return self.spark.read.format("ready").options(rows=str(self.count)).load()

    # -- what is measured --

    def read(self, frame: Any) -> float:
        """Rows a second, read whole and thrown away."""
        started_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return self.count / (time.perf_counter() - started_s)

    def follow(self, name: str, frame: Any) -> float:
        """Rows a second of a stream over everything, thrown away; from its start to its end."""
        started_s = time.perf_counter()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self.directory / self.name("cp")))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started_s
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        assert rows == self.count, f"the stream read {rows} of {self.count} rows"
        triggers_ms = sum(progress.durationMs["triggerExecution"] for progress in query.recentProgress)
        self.trigger_rates.setdefault(name, []).append(1_000 * self.count / triggers_ms)
        return self.count / seconds

    def write_stream(self, sink: Callable[[Any], Any]) -> float:
        """Rows a second of a stream of Spark's own into a sink."""
        source = self.spark.readStream.schema(self.parquet().schema).parquet(str(self.directory / "rows.parquet"))
        started_s = time.perf_counter()
        writer = sink(source.select("value").writeStream)
        query = writer.option("checkpointLocation", str(self.directory / self.name("cp"))).trigger(availableNow=True)
        query.start().awaitTermination()
        return self.count / (time.perf_counter() - started_s)

    def to_penstock(self, writer: Any) -> Any:
        """A sink that is a queue."""
        return writer.format("penstock").options(url=self.server.url, topic=self.name("sink"))

    def to_parquet(self, writer: Any) -> Any:
        """A sink that is files."""
        return writer.format("parquet").option("path", str(self.directory / self.name("sink")))

    def readers(self) -> dict[str, Callable[[], float]]:
        """Who reads in turns."""
        return {
            "memory": lambda: self.read(self.memory()),
            "parquet": lambda: self.read(self.parquet()),
            "directory": lambda: self.read(self.penstock(url=False)),
            "server": lambda: self.read(self.penstock(url=True)),
        }

    def streams(self) -> dict[str, Callable[[], float]]:
        """Who follows in turns."""
        return {
            "parquet stream": lambda: self.follow("parquet batches", self.parquet(stream=True)),
            "stream": lambda: self.follow("batches", self.penstock(url=True, stream=True)),
        }

    def sinks(self) -> dict[str, Callable[[], float]]:
        """Who writes in turns."""
        return {
            "parquet sink": lambda: self.write_stream(self.to_parquet),
            "sink": lambda: self.write_stream(self.to_penstock),
        }

    # -- latency --

    def latency_s(self, source: Any, send: Callable[[int], None]) -> float:
        """Seconds from sending one row until a sink has it, the median of some."""
        seen: list[int] = []
        query = (
            source.writeStream.foreachBatch(lambda frame, _: seen.extend(row.number for row in frame.collect()))
            .option("checkpointLocation", str(self.directory / self.name("cp")))
            .trigger(processingTime="0 seconds")
            .start()
        )
        times = []
        try:
            for number in range(self.probes + 2):
                time.sleep(0.3 + 0.037 * (number % 7))
                started_s = time.perf_counter()
                send(number)
                deadline_s = started_s + 60
                while number not in seen:
                    assert time.perf_counter() < deadline_s, f"row {number} never came: {query.exception()}"
                    time.sleep(0.002)
                times.append(time.perf_counter() - started_s)
        finally:
            query.stop()
        return statistics.median(times[2:])

    def penstock_latency_s(self) -> float:
        """Of a queue."""
        queue = self.name("latency")
        with contextlib.closing(Connection(Where(url=self.server.url))) as connection:

            def send(number: int) -> None:
                section = encode_section(Target(queue), Chunk.of(0, 0, [b"%d" % number]))
                connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})

            connection.fetch("POST", "/v1/queues", json.dumps({"name": queue}), _JSON)
            options = {"url": self.server.url, "subscribe": queue, "startingOffsets": "earliest"}
            source = self.spark.readStream.format("penstock").options(**options).load()
            return self.latency_s(source.selectExpr("cast(cast(value as string) as int) as number"), send)

    def files_latency_s(self) -> float:
        """Of a directory of files, Spark's own stream."""
        directory = self.directory / self.name("latency")
        directory.mkdir()

        def send(number: int) -> None:
            partial = self.directory / "partial.json"
            partial.write_text(json.dumps({"number": number}) + "\n")
            partial.rename(directory / f"{number}.json")

        source = self.spark.readStream.schema("number int").json(str(directory))
        return self.latency_s(source, send)

    def close(self) -> None:
        """Stop session and server."""
        self.spark.stop()
        self.server.stop()


_JSON = {"content-type": "application/json"}


class _Ready(DataSource):
    """The columns of a queue, from memory."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return PenstockDataSource({}).schema()

    def reader(self, schema: Any) -> DataSourceReader:
        return _ReadyReader(int(self.options["rows"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from penstock.spark.source import kafka_columns
        from penstock.wire.arrow import BASE_COLUMNS, record_batch

        chunk = Chunk.of(0, 0, bodies_like_data(_CHUNK))
        batch = kafka_columns("rows", record_batch(chunk, 0, _CHUNK, BASE_COLUMNS), tuple(KAFKA_COLUMNS))
        for _ in range(partition.value // _CHUNK):
            yield batch


class _Server:
    """`penstock serve` on free ports."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        ready = directory / "ready.json"
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(self.data), "--ready-file", str(ready)]
        ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
        self._process = subprocess.Popen([*command, *ports], stdout=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 60
        while not ready.exists():
            assert time.monotonic() < deadline_s and self._process.poll() is None, "the server did not start"
            time.sleep(0.05)
        self.url = json.loads(ready.read_text())["listening"]["http"]["url"]

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)


def _session(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    silent = directory / "log4j2.properties"
    silent.write_text(_SILENT)
    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").appName("penstock bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{silent}",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.streaming.pollingDelay": "10ms",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def in_turns(
    contenders: dict[str, Callable[[], float]], turns: int, spent_s: dict[str, list[float]], *, warm_up: bool
) -> dict[str, list[float]]:
    """Let them run in turns, after one that does not count, if wanted. `spent_s` gets the processor time of each."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1 if warm_up else 0, turns):
        for name, contender in contenders.items():
            before_s = processor_s()
            rate = contender()
            if turn >= 0:
                rates[name].append(rate)
                spent_s.setdefault(name, []).append(processor_s() - before_s)
    return rates


def processor_s() -> float:
    """Seconds of processor time of this process and all below it: Spark's JVM, its Python workers, the server."""
    parents: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))
    ours, found = {os.getpid()}, 0.0
    while True:
        below = {process for process, (parent, _) in parents.items() if parent in ours} - ours
        if not below:
            break
        ours |= below
    for process in ours:
        found += parents[process][1]
    return found


def ratio(rates: dict[str, list[float]], name: str, to: str) -> Ratio:
    """How many times one was the other, turn by turn."""
    return quartiles([one / other for one, other in zip(rates[name], rates[to], strict=True)])


def bodies_like_data(count: int) -> list[bytes]:
    """Values that a file format cannot make much smaller: random, in hexadecimal, so about half is left.

    >>> len(bodies_like_data(3)[0])
    200
    """
    text = np.random.default_rng(7).bytes(count * BODY_BYTES // 2).hex().encode()
    return [text[low : low + BODY_BYTES] for low in range(0, len(text), BODY_BYTES)]


@contextlib.contextmanager
def running(scale: Scale) -> Iterator[Bench]:
    """A bench that has ended when the block has."""
    with empty_directory() as directory:
        bench = Bench(directory, scale)
        try:
            yield bench
        finally:
            bench.close()
            shutil.rmtree(directory / "local", ignore_errors=True)


def main() -> None:
    """Measure, and print the tables."""
    scale = parse_scale(__doc__)
    with running(scale) as bench:
        bench.prepare()
        for frame in (bench.parquet(), bench.penstock(url=True), bench.penstock(url=False)):
            assert frame.count() == bench.count
        rates: dict[str, list[float]] = {}
        spent_s: dict[str, list[float]] = {}
        for contenders in (bench.readers(), bench.streams(), bench.sinks()):
            rates |= in_turns(contenders, bench.turns, spent_s, warm_up=not scale.quick)
        rates |= {name: found[-bench.turns :] for name, found in bench.trigger_rates.items()}
        files_s, penstock_s = bench.files_latency_s(), bench.penstock_latency_s()
    rows = []
    measured: tuple[tuple[str, str, str, float | None], ...] = (
        ("batch from a directory", "directory", "parquet", 0.6),
        ("batch from a server", "server", "parquet", 0.3),
        ("stream from a server to noop", "stream", "parquet stream", 0.6),
        ("its batches alone, without its start", "batches", "parquet batches", None),
        ("stream into a queue, exactly once", "sink", "parquet sink", 0.7),
    )
    for what, name, other, target in measured:
        found = ratio(rates, name, other)
        cells = [plain(float(np.median(rates[each]))) for each in (name, other)]
        rows.append([what, *cells, str(found), "" if target is None else at_least(target, found)])
    costs = []
    for what, name, other, most in (
        ("batch from a directory", "directory", "parquet", 1.5),
        ("batch from a server", "server", "parquet", 1.5),
        ("batch from a server, against ready batches in memory", "server", "memory", None),
        ("ready batches in memory", "memory", "parquet", None),
        ("stream into a queue, exactly once", "sink", "parquet sink", None),
    ):
        cost = ratio(spent_s, name, other)
        cells = [plain(float(np.median(spent_s[each]))) for each in (name, other)]
        costs.append([what, *cells, str(cost), "" if most is None else at_most(most, cost.median)])
    latency = [
        ["seconds from send to sink", plain(penstock_s), plain(files_s), plain(penstock_s / files_s)],
    ]
    latency[0].append(at_most(1.5, penstock_s / files_s))
    report(
        "spark. Queues to Spark and back, against Spark's own Parquet",
        f"{plain(bench.count)} messages of {BODY_BYTES} random hexadecimal digits, {PARTITIONS} partitions on "
        f"{PARTITIONS} cores, rows a second. Streams read everything there is (`availableNow`). The fastest trigger is "
        "`processingTime` of 0 s; its rival is a stream of JSON files.",
        table(["what", "Penstock", "Parquet", "ratio", "target"], rows),
        "Seconds of processor time: of the JVM, Python workers and the server, together.",
        table(["what", "it", "against", "ratio", "target"], costs),
        table(["what", "Penstock", "files", "ratio", "target"], latency),
    )


if __name__ == "__main__":
    main()
