"""How fast do messages go from queues to Spark and back, against Spark's own Parquet files of the same rows?

Everything runs in one Spark session with two cores: first a turn that does not count, then turns one after the other.

A large run goes in pieces, each shorter than a few minutes. The rows are loaded once, into a directory that stays:

    python -m bench.spark --messages 5000000 --keep DIR load
    python -m bench.spark --messages 5000000 --keep DIR read ask
    python -m bench.spark --messages 5000000 --keep DIR print
"""

from __future__ import annotations

import argparse
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
    at_least,
    at_most,
    empty_directory,
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

    def __init__(self, directory: Path, count: int, probes: int) -> None:
        self.directory = directory
        self.count = count
        self.probes = probes
        self._names = 0
        self._run = time.time_ns()
        self.trigger_rates: dict[str, list[float]] = {}
        """Of streams, by name: rows a second of their batches alone, without what comes before the first."""
        self.spark = _session(directory)
        self.server = _Server(directory)

    def name(self, what: str) -> str:
        """A name that nobody has used."""
        self._names += 1
        return f"{what}-{self._run}-{self._names}"

    def prepare(self) -> None:
        """Write the rows down, in both forms."""
        with contextlib.closing(Connection(Where(url=self.server.url))) as connection:
            for low in range(0, self.count, _CHUNK):
                values = bodies_like_data(min(_CHUNK, self.count - low), seed=low)
                section = encode_section(Target("rows"), Chunk.of(0, 0, values))
                connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})
        self.penstock(url=True).write.parquet(str(self.directory / "rows.parquet"))
        for frame in (self.parquet(), self.penstock(url=True), self.penstock(url=False)):
            assert frame.count() == self.count

    def penstock(self, *, url: bool, stream: bool = False, columns: str = "", **more: str) -> Any:
        """The queue, by server or by directory."""
        where = {"url": self.server.url} if url else {"path": str(self.server.data)}
        reader = self.spark.readStream if stream else self.spark.read
        if columns:
            reader = reader.schema(columns)
        options = {"subscribe": "rows", "minPartitions": str(PARTITIONS)} | where | more
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

    def askers(self) -> dict[str, Callable[[], float]]:
        """Who wants a part of it, and who wants all."""
        return {
            "everything": lambda: self.read(self.penstock(url=True)),
            "filtered": lambda: self.read(self.penstock(url=True).where(f"offset >= {self.count - 10}")),
            "last ten": lambda: self.read(self.penstock(url=True, startingOffsets="latest-10")),
            "offsets alone": lambda: self.read(self.penstock(url=True, columns="offset bigint")),
            "offsets and keys": lambda: self.read(self.penstock(url=True, columns="offset bigint, key binary")),
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
        ready.unlink(missing_ok=True)
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


class Turns:
    """What was measured so far, turn by turn: rates, and seconds of processor time. In a file, if it shall stay."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = json.loads(path.read_text()) if path.exists() else {"rates": {}, "spent_s": {}}
        self.rates: dict[str, list[float]] = kept["rates"]
        self.spent_s: dict[str, list[float]] = kept["spent_s"]

    def take(self, contenders: dict[str, Callable[[], float]], turns: int, *, warm_up: bool) -> None:
        """Let them run in turns, after one that does not count, if wanted."""
        for turn in range(-1 if warm_up else 0, turns):
            for name, contender in contenders.items():
                before_s = processor_s()
                rate = contender()
                if turn >= 0:
                    self.rates.setdefault(name, []).append(rate)
                    self.spent_s.setdefault(name, []).append(processor_s() - before_s)
        self.keep()

    def keep(self) -> None:
        """Write them down."""
        self._path.write_text(json.dumps({"rates": self.rates, "spent_s": self.spent_s}))


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


def bodies_like_data(count: int, seed: int = 7) -> list[bytes]:
    """Values that a file format cannot make much smaller: random, in hexadecimal, so about half is left.

    >>> len(bodies_like_data(3)[0])
    200
    """
    text = np.random.default_rng(seed).bytes(count * BODY_BYTES // 2).hex().encode()
    return [text[low : low + BODY_BYTES] for low in range(0, len(text), BODY_BYTES)]


PIECES = ("load", "read", "ask", "stream", "sink", "latency", "print")


def measure(bench: Bench, turns: Turns, pieces: list[str], count: int, *, warm_up: bool) -> None:
    """Do some pieces of it."""
    if "load" in pieces:
        bench.prepare()
    for piece, contenders in (
        ("read", bench.readers()),
        ("ask", bench.askers()),
        ("stream", bench.streams()),
        ("sink", bench.sinks()),
    ):
        if piece in pieces:
            turns.take(contenders, count, warm_up=warm_up)
    for name, found in bench.trigger_rates.items():
        turns.rates.setdefault(name, []).extend(found[-count:])
    if "latency" in pieces:
        turns.rates["latency"] = [bench.penstock_latency_s()]
        turns.rates["files latency"] = [bench.files_latency_s()]
    turns.keep()


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs: no figure to quote")
    parser.add_argument("--messages", type=int, help="how many rows (1,000,000)")
    parser.add_argument("--turns", type=int, help=f"how often each contender runs ({TURNS})")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a directory that keeps rows and figures between runs")
    parser.add_argument("pieces", nargs="*", metavar="piece", help=f"{', '.join(PIECES)}; none: all")
    options = parser.parse_args()
    if unknown := set(options.pieces) - set(PIECES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(PIECES)}")
    pieces = options.pieces or list(PIECES)
    count = options.messages or (20_000 if options.quick else 1_000_000)
    turns_count = options.turns or (1 if options.quick else TURNS)
    with contextlib.ExitStack() as stack:
        directory = options.keep or stack.enter_context(empty_directory())
        directory.mkdir(parents=True, exist_ok=True)
        turns = Turns(directory / "turns.json")
        if pieces != ["print"]:
            bench = Bench(directory, count, 3 if options.quick else 20)
            stack.callback(shutil.rmtree, directory / "local", ignore_errors=True)
            stack.callback(bench.close)
            measure(bench, turns, pieces, turns_count, warm_up=not options.quick)
    if "print" in pieces:
        print_tables(turns, count)


def print_tables(turns: Turns, count: int) -> None:
    """What was measured, as tables. Pieces that were not done have no rows."""
    rows = []
    for what, name, other, target in (
        ("batch from a directory", "directory", "parquet", 0.6),
        ("batch from a server", "server", "parquet", 0.3),
        ("stream from a server to noop", "stream", "parquet stream", 0.6),
        ("its batches alone, without its start", "batches", "parquet batches", None),
        ("stream into a queue, exactly once", "sink", "parquet sink", 0.8),
    ):
        if name in turns.rates:
            found = ratio(turns.rates, name, other)
            cells = [plain(float(np.median(turns.rates[each]))) for each in (name, other)]
            rows.append([what, *cells, str(found), "" if target is None else at_least(target, found)])
    costs = []
    for what, name, other, most in (
        ("batch from a directory", "directory", "parquet", 1.5),
        ("batch from a server", "server", "parquet", 1.5),
        ("batch from a server, against ready batches in memory", "server", "memory", None),
        ("ready batches in memory", "memory", "parquet", None),
        ("stream into a queue, exactly once", "sink", "parquet sink", None),
        ("the last ten messages, against reading all", "last ten", "everything", 0.05),
        ("the last ten messages, against a filter over all", "last ten", "filtered", 0.05),
        ("offsets alone, against all columns", "offsets alone", "everything", None),
        ("offsets and keys, against all columns", "offsets and keys", "everything", None),
    ):
        if name in turns.spent_s:
            cost = ratio(turns.spent_s, name, other)
            cells = [plain(float(np.median(turns.spent_s[each]))) for each in (name, other)]
            costs.append([what, *cells, str(cost), "" if most is None else at_most(most, cost.median)])
    tables = [
        table(["what", "Penstock", "Parquet", "ratio", "target"], rows),
        "Seconds of processor time: of the JVM, Python workers and the server, together.",
        table(["what", "it", "against", "ratio", "target"], costs),
    ]
    if "latency" in turns.rates:
        penstock_s, files_s = turns.rates["latency"][0], turns.rates["files latency"][0]
        cells = [plain(each) for each in (penstock_s, files_s, penstock_s / files_s)]
        latency = ["seconds from send to sink", *cells, at_most(1.5, penstock_s / files_s)]
        tables.append(table(["what", "Penstock", "files", "ratio", "target"], [latency]))
    report(
        "spark. Queues to Spark and back, against Spark's own Parquet",
        f"{plain(count)} messages of {BODY_BYTES} random hexadecimal digits, {PARTITIONS} partitions on "
        f"{PARTITIONS} cores, rows a second. Streams read everything there is (`availableNow`). The fastest trigger is "
        "`processingTime` of 0 s; its rival is a stream of JSON files.",
        *tables,
    )


if __name__ == "__main__":
    main()
