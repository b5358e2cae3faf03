"""Exactly once, whatever is killed, however often: `python -m tests.spark.soak --kills 50 --messages 1000000`.

A queue is copied by two streams, into Parquet files and (transformed) into another queue. They run on a
standalone cluster with two executors. Meanwhile SIGKILL hits, at random moments:

    driver      the Spark program and its JVM, at once
    jvm         its JVM alone: the program sees streams that fail, and ends
    executor    one of the two executors: Spark starts another one, and does its tasks again
    server      the server

What was killed is started again, unless Spark does it. In the end every message must be there once, in both places. A
driver that fails by itself (Spark gives a Python ten seconds to start, and a busy machine does not) is started again,
as its owner would do: that is a crash like the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from penstock.core.storage.chunk import Chunk
from penstock.spark.options import Where
from penstock.spark.place import Part, Range
from penstock.spark.server import Connection, ServerPlace
from penstock.wire.arrow import BASE_COLUMNS
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import ROOT, Server, serving
from tests.spark.test_clusters import standalone

VICTIMS = ("driver", "jvm", "executor", "server")
_RUN = 4_000
ENDLESS_S = 3_600
PATIENCE_S = 120
FAILURES_MAX = 10


def send_numbers(url: str, count: int) -> None:
    """The numbers below `count`, as messages of queue `in`."""
    with contextlib.closing(Connection(Where(url=url))) as connection:
        for low in range(0, count, _RUN):
            bodies = [b"%d" % number for number in range(low, min(low + _RUN, count))]
            section = encode_section(Target("in"), Chunk.of(0, 0, bodies))
            connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})


class Driver:
    """The Spark program, in a process group of its own."""

    def __init__(
        self, url: str, directory: Path, batch_messages: int, job: str = "copy", master: str = "local[2]"
    ) -> None:
        self._command = [sys.executable, "-m", "tests.spark.jobs", job, master, url, str(directory)]
        self._log_path = directory / "driver.log"
        here = {"spark.executorEnv.PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        self._environment = os.environ | {"BATCH_MESSAGES": str(batch_messages), "SPARK_SETTINGS": json.dumps(here)}
        self.process: subprocess.Popen[bytes]
        self.failures = 0

    def start(self) -> None:
        """Start it; it goes on from its checkpoints."""
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, cwd=ROOT, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def is_running(self) -> bool:
        """Whether its streams have begun."""
        return self.process.poll() is None and b"running" in self._log_path.read_bytes()

    def kill(self) -> None:
        """Driver, JVM and all, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def kill_jvm(self) -> bool:
        """Its JVM alone. The program has to end by itself, and to say that it failed; False if it was done before."""
        for jvm in descendants(self.process.pid, "SparkSubmit"):
            os.kill(jvm, signal.SIGKILL)
        return self.process.wait(PATIENCE_S) != 0

    def start_after_failure(self) -> None:
        """It ended by itself, and not well."""
        self.failures += 1
        assert self.failures <= FAILURES_MAX, f"the driver failed {self.failures} times:\n{self.log()}"
        self.start()

    def log(self) -> str:
        """What it said."""
        return self._log_path.read_text(errors="replace")[-5_000:]


def descendants(pid: int, named: str) -> list[int]:
    """The processes below a process that were started with a command like this."""
    found = []
    with contextlib.suppress(OSError):  # it has ended
        if named in Path(f"/proc/{pid}/cmdline").read_text():
            found.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child), named)
    return found


def soak(
    directory: Path, *, messages: int, kills: Iterator[str], batch_messages: int, chance: random.Random
) -> Counter[str]:
    """Copy under fire. Returns what was killed how often; raises `AssertionError` unless everything is there once."""
    (directory / "server").mkdir()
    with standalone(directory) as master, serving(directory / "server") as server:
        url = f"http://127.0.0.1:{server.http_port}"
        driver = Driver(url, directory, batch_messages, master=master)
        hits: Counter[str] = Counter()
        send_numbers(url, messages)
        driver.start()
        try:
            for victim in kills:
                while not (done := not wait_for(driver)):
                    time.sleep(chance.uniform(0.2, 6.0))
                    if kill(victim, driver, server, chance):
                        hits[victim] += 1
                        print(f"{hits.total()}: {victim} killed", flush=True)
                        break
                if done:
                    break
            while driver.process.wait(ENDLESS_S) != 0:
                driver.start_after_failure()
            check(url, directory, messages)
        finally:
            driver.kill()
    return hits


def kill(victim: str, driver: Driver, server: Server, chance: random.Random) -> bool:
    """Kill it, and start again what does not start by itself. False if there is nothing to kill."""
    if driver.process.poll() is not None:
        return False
    match victim:
        case "server":
            server.kill()
            server.start()
        case "driver":
            driver.kill()
            driver.start()
        case "jvm":
            if not driver.kill_jvm():
                return False
            driver.start()
        case "executor":
            executors = descendants(os.getpid(), "CoarseGrainedExecutorBackend")
            if not executors:
                return False
            os.kill(chance.choice(executors), signal.SIGKILL)
    return True


def wait_for(driver: Driver) -> bool:
    """Until its streams run; False if it is done already."""
    deadline = time.monotonic() + 300
    while not driver.is_running():
        ended = driver.process.poll()
        if ended == 0:
            return False
        if ended is not None:
            driver.start_after_failure()
        assert time.monotonic() < deadline, f"the driver never began:\n{driver.log()}"
        time.sleep(0.05)
    return True


def check(url: str, directory: Path, messages: int) -> None:
    """Every number once, in the files and in the queue."""
    expected = Counter(str(number) for number in range(messages))
    files = Counter(files_output(directory / "files"))
    assert files == expected, f"Parquet: {difference(files, expected)}"
    out = Counter(value.removeprefix("copy of ") for value in queue_output(url))
    assert out == expected, f"queue: {difference(out, expected)}"


def files_output(directory: Path) -> list[str]:
    """What the file sink has committed: what its log names, and nothing else that lies there."""
    names: set[str] = set()
    logs = sorted((directory / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0]))
    for log in logs:
        for line in log.read_text().splitlines()[1:]:
            names.add(Path(json.loads(line)["path"]).name)
    return [value for name in sorted(names) for value in pq.read_table(directory / name)["value"].to_pylist()]


def queue_output(url: str) -> list[str]:
    """Every message of queue `out`."""
    with contextlib.closing(ServerPlace(Where(url=url))) as place:
        at = place.find(["out"])[Part("out", 0)]
        batches = place.batches(Range("out", 0, at.end, 0), BASE_COLUMNS)
        return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


def difference(found: Counter[str], expected: Counter[str]) -> str:
    """What is missing, and what is there too often."""
    missing, extra = expected - found, found - expected
    return f"{missing.total()} missing ({list(missing)[:5]}), {extra.total()} too many ({list(extra)[:5]})"


def main() -> None:
    """The full one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(options.kills)]
    chance.shuffle(victims)
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory:
        hits = soak(
            Path(directory), messages=options.messages, kills=iter(victims), batch_messages=options.batch, chance=chance
        )
    print(f"{options.messages} messages, {dict(hits)} killed: each once in the files and in the queue", flush=True)


if __name__ == "__main__":
    main()
