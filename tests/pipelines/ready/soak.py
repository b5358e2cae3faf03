"""Ready pipelines under fire: `python -m tests.pipelines.ready.soak --kills 20 [--pipeline replay] [--seed 7]`.

A long one goes in pieces: each of these commands adds ten kills, and the one that reaches fifty checks the outcome.

    python -m tests.pipelines.ready.soak --pipeline file --messages 1000000 --kills 50 --piece 10 --keep DIR

Each pipeline runs from the command line against a server. SIGKILL hits the pipeline with all its processes, or the
server, at random moments; both are started again. In the end it runs undisturbed, and everything must be where it
belongs, once.

    archive   every message in the files once, also those that were sent between two kills
    replay    every message of an archive in another queue once
    redrive   every dead letter back in its queue once, and none left
    rollup    as many messages counted as were sent (its server is not killed: it may lose its last events)
    file      a pipeline of one's own, checks and three sinks, on two executors: every row in each sink, or in the dead
              letters, once. SIGKILL hits the driver alone, the JVM alone, an executor, the server, or all but that
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import penstock
from penstock.core.storage.chunk import Chunk
from penstock.pipelines.ready.landing import Landing
from penstock.spark.options import Where
from penstock.spark.place import Part, Range
from penstock.spark.server import Connection, ServerPlace
from penstock.spark.worker_python import worker_python
from penstock.wire.arrow import BASE_COLUMNS
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import Server, until

PATIENCE_S = 600
COMPLETE_S = 3_600
TRIES = 5
EVENTS = "penstock.events"


class Trial:
    """One pipeline, its command line, and what is expected of it."""

    name = ""
    victims: tuple[str, ...] = ("pipeline", "pipeline", "server")
    """What SIGKILL hits, one of them at a time."""

    def __init__(self, directory: Path, server: Server, messages: int) -> None:
        self.directory = directory
        self.server = server
        self.messages = messages
        self.url = f"http://127.0.0.1:{server.http_port}"

    def prepare(self) -> None:
        """Make what it works on."""

    def arguments(self) -> list[str]:
        """After `penstock pipeline run`, but for the server."""
        raise NotImplementedError

    def progress(self) -> object:
        """Something that changes as soon as a run is past its start, so that a kill hits its work."""
        raise NotImplementedError

    def after_kill(self) -> None:
        """What the world does meanwhile."""

    def check(self) -> None:
        """Raise `AssertionError` unless everything is where it belongs, once."""
        raise NotImplementedError

    # -- helpers --

    def send(self, queue: str, low: int, high: int) -> None:
        """Numbers, as messages."""
        with contextlib.closing(Connection(Where(url=self.url))) as connection:
            section = encode_section(Target(queue), Chunk.of(0, 0, [b"%d" % each for each in range(low, high)]))
            connection.fetch("POST", "/v1/bulk/send", b"".join(section), {})

    def numbers(self, queue: str) -> list[int]:
        """Every message that was ever sent to a queue of which nothing was acknowledged."""
        return [int(body) for body in self.bodies(queue)]

    def bodies(self, queue: str) -> list[bytes]:
        """Their bodies."""
        with contextlib.closing(ServerPlace(Where(url=self.url))) as place:
            end = place.find([queue])[Part(queue, 0)].end
            batches = place.batches(Range(queue, 0, end, 0), BASE_COLUMNS)
            return [value for batch in batches for value in batch["value"].to_pylist()]


class Archive(Trial):
    name = "archive"

    def prepare(self) -> None:
        self.sent = 0
        self.after_kill()

    def after_kill(self) -> None:
        self.send("in", self.sent, self.sent + self.messages)
        self.sent += self.messages

    def arguments(self) -> list[str]:
        return [self.name, "--queue", "in", "--path", "archive", "--batch", str(max(1, self.messages // 10))]

    def progress(self) -> object:
        return len(Landing(self.directory / "archive").files())

    def check(self) -> None:
        files = Landing(self.directory / "archive").files()
        found = [int(value) for file in files for value in pq.ParquetFile(file).read(["value"])["value"].to_pylist()]
        each_once(found, self.sent)


class Replay(Trial):
    name = "replay"

    def prepare(self) -> None:
        self.send("history", 0, self.messages)

    def arguments(self) -> list[str]:
        return [
            self.name,
            "--from",
            "history",
            "--to",
            "out",
            "--state",
            "state.json",
            "--rate",
            str(max(1, self.messages // 60)),
        ]

    def progress(self) -> object:
        state = self.directory / "state.json"
        return state.read_bytes() if state.exists() else None

    def check(self) -> None:
        each_once(self.numbers("out"), self.messages)


class Redrive(Trial):
    name = "redrive"

    def prepare(self) -> None:
        with penstock.connect(self.url.replace("http", "penstock", 1)) as ps:
            ps.create_queue("in", max_receives=1)
            self.send("in", 0, self.messages)
            while taken := ps.queue("in").receive(max=1_000):
                ps.queue("in").release([message.receipt for message in taken], error="no")

    def arguments(self) -> list[str]:
        return [self.name, "--queue", "in.dead", "--send", "--rate", str(max(1, self.messages // 60))]

    def progress(self) -> object:
        with contextlib.closing(Connection(Where(url=self.url))) as connection:
            return connection.ask("GET", "/v1/queues/in/channels/main")["ready"]

    def check(self) -> None:
        found, left = [], []
        with penstock.connect(self.url.replace("http", "penstock", 1)) as ps:
            while taken := ps.queue("in").receive(max=1_000):
                found += [int(message.body) for message in taken]
                ps.queue("in").ack([message.receipt for message in taken])
            left = ps.queue("in.dead").browse(limit=10)
        assert not left, f"{len(left)} or more dead letters are left"
        each_once(found, self.messages)


class Rollup(Trial):
    name = "rollup"
    victims = ("pipeline",)

    def prepare(self) -> None:
        self.sent = 0
        self.after_kill()

    def after_kill(self) -> None:
        for _ in range(20):
            self.send("in", 0, 7)
            self.sent += 7
        with contextlib.closing(ServerPlace(Where(url=self.url))) as place:
            until(lambda: self._told(place) == self.sent, PATIENCE_S)

    def _told(self, place: ServerPlace) -> int:
        at = place.find([EVENTS]).get(Part(EVENTS, 0))
        if at is None:
            return 0
        batches = place.batches(Range(EVENTS, 0, at.end, 0), BASE_COLUMNS)
        events = [json.loads(value) for batch in batches for value in batch["value"].to_pylist()]
        return sum(each["count"] for each in events if each.get("queue") == "in" and each["what"] == "sent")

    def arguments(self) -> list[str]:
        return [self.name, "--table", "metrics", "--window", "1 second", "--report", "report.html"]

    def progress(self) -> object:
        return sum(1 for _ in (self.directory / "metrics").rglob("*"))

    def check(self) -> None:
        found = 0
        for file in (self.directory / "metrics" / "windows").rglob("*.parquet"):
            if "_penstock" not in file.parts:
                rows = pq.ParquetFile(file).read().to_pylist()
                found += sum(row["sent"] for row in rows if row["queue"] == "in")
        assert found == self.sent, f"{found} messages were counted, and {self.sent} were sent"


class OfOnesOwn(Trial):
    name = "file"
    victims = ("executor", "server", "jvm", "driver", "pipeline")

    def prepare(self) -> None:
        (self.directory / "orders.yaml").write_text(
            f"""
            name: orders
            dead_letters: out.dead
            source: {{queue: in, options: {{maxOffsetsPerTrigger: {max(250, self.messages // 200)}}}}}
            restart: {{times: 20, pause_s: 0.5, pause_s_max: 2}}
            steps:
              - {{name: numbers, parse: csv, schema: n bigint, checks: {{no tenth: n % 10 <> 0}}}}
            sinks:
              - {{name: to_queue, queue: out}}
              - {{name: to_files, parquet: files}}
              - {{name: to_lake, delta: lake}}
            """
        )
        for low in range(0, self.messages, 10_000):
            self.send("in", low, min(low + 10_000, self.messages))

    def arguments(self) -> list[str]:
        conf = ("spark.driver.memory=700m", "spark.executor.memory=512m", "spark.sql.shuffle.partitions=2")
        given = [word for each in conf for word in ("--conf", each)]
        return ["orders.yaml", "--master", "local-cluster[2,1,512]", *given]

    def progress(self) -> object:
        commits = (self.directory / ".penstock" / "orders" / "checkpoints").glob("*/commits/*")
        return len([each for each in commits if each.name.isdigit()])

    def check(self) -> None:
        import deltalake

        good = [n for n in range(self.messages) if n % 10]
        expected = Counter(good)
        log = self.directory / "files" / "_spark_metadata"
        named = {
            json.loads(line)["path"].removeprefix("file://")
            for each in log.iterdir()
            if not each.name.startswith(".")
            for line in each.read_text().splitlines()[1:]
        }
        assert Counter(n for file in named for n in pq.read_table(file)["n"].to_pylist()) == expected, "files"
        lake = deltalake.DeltaTable(str(self.directory / "lake")).to_pyarrow_table()
        assert Counter(lake["n"].to_pylist()) == expected, "lake"
        assert Counter(json.loads(body)["n"] for body in self.bodies("out")) == expected, "queue"
        bad = Counter(range(0, self.messages, 10))
        assert Counter(int(body) for body in self.bodies("out.dead")) == bad, "dead letters"


TRIALS: dict[str, type[Trial]] = {each.name: each for each in (Archive, Replay, Redrive, Rollup, OfOnesOwn)}


def each_once(found: list[int], count: int) -> None:
    """Every number below `count`, and none twice."""
    have, expected = Counter(found), Counter(range(count))
    missing, extra = expected - have, have - expected
    assert have == expected, (
        f"{missing.total()} missing ({sorted(missing)[:5]}), {extra.total()} too many ({sorted(extra)[:5]})"
    )


class Run:
    """One run of a pipeline, in a process group of its own."""

    def __init__(self, trial: Trial) -> None:
        self._log_path = trial.directory / "run.log"
        command = [sys.executable, "-m", "penstock", "pipeline", "run", *trial.arguments()]
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--url", trial.url],
                cwd=trial.directory,
                env=os.environ | {"PYSPARK_PYTHON": worker_python()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self, what: str) -> list[int]:
        """Some of its processes: they are all in one session, whatever their parents are."""
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):
                if os.getsid(int(each.name)) == self.process.pid:
                    command = (each / "cmdline").read_bytes()
                    is_executor = b"CoarseGrainedExecutorBackend" in command
                    kind = (
                        "executor"
                        if is_executor
                        else "jvm"
                        if b"org.apache.spark.deploy.SparkSubmit" in command
                        else ""
                    )
                    if what == kind or (what == "driver" and int(each.name) == self.process.pid):
                        found.append(int(each.name))
        return found

    def kill(self) -> None:
        """Driver, JVM, workers, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def log(self) -> str:
        """What it said."""
        return self._log_path.read_text(errors="replace")[-5_000:]


@contextlib.contextmanager
def running(trial: Trial) -> Iterator[Run]:
    """A run that has ended when the block has."""
    run = Run(trial)
    try:
        yield run
    finally:
        run.kill()


SURVIVED = ("server", "executor")
"""What a run goes on without."""


def kill_once(trial: Trial, run: Run, victim: str, chance: random.Random) -> bool:
    """One kill in a run. False if the run was done before it was hit."""
    before = trial.progress()
    if chance.random() < 0.8:  # the others are hit wherever they are
        until(lambda: run.process.poll() is not None or trial.progress() != before, PATIENCE_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(chance.uniform(0.0, 4.0))
        return False
    if victim == "pipeline":
        run.kill()
    elif victim == "server":
        trial.server.kill()
        trial.server.start()
    else:
        there = run.processes(victim)
        if not there:
            return False
        os.kill(chance.choice(there), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(chance.uniform(0.0, 10.0))
    return True


def complete(trial: Trial) -> None:
    """Run it to its end, undisturbed."""
    said = ""
    for _ in range(TRIES):
        with running(trial) as run:
            if run.process.wait(COMPLETE_S) == 0:
                return
            said = run.log()
    raise AssertionError(f"{trial.name} fails:\n{said}")


class Kept:
    """How many kills have hit in the pieces so far, by victim. In a file, so that a later piece goes on from it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "hits.json"
        self.is_new = not self._path.exists()
        self.hits: Counter[str] = Counter({} if self.is_new else json.loads(self._path.read_text()))

    def keep(self) -> None:
        """Write them down."""
        self._path.write_text(json.dumps(self.hits))


def soak(
    name: str, directory: Path, *, kills: int, messages: int, chance: random.Random, piece: int | None = None
) -> Counter[str]:
    """One pipeline under fire, all of it or one more piece. Returns what the kills have hit; checks after the last."""
    home = directory / "server"
    home.mkdir(parents=True, exist_ok=True)
    config = home / "penstock.toml"
    config.write_text("[events]\nenabled = true\nflush_s = 0.1\n")
    server = Server(home, "--config", str(config)).start()
    kept = Kept(directory)
    run: Run | None = None
    try:
        trial = TRIALS[name](directory, server, messages)
        if kept.is_new:
            trial.prepare()
            kept.keep()
        before = kept.hits.total()
        for number in range(before, min(kills, before + (piece or kills))):
            if run is None or run.process.poll() is not None:
                run = Run(trial)
            victim = trial.victims[number] if kills <= len(trial.victims) else chance.choice(trial.victims)
            if kill_once(trial, run, victim, chance):
                kept.hits[victim] += 1
                kept.keep()
            print(f"{name}: {dict(kept.hits)}, the last one the {victim}", flush=True)
            if victim not in SURVIVED:
                run.kill()
            trial.after_kill()
        if run is not None:
            run.kill()
        if piece is None or kept.hits.total() >= kills:
            complete(trial)
            trial.check()
    finally:
        if run is not None:
            run.kill()
        server.kill()
    return kept.hits


def main() -> None:
    """Every pipeline, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each pipeline")
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--pipeline", choices=TRIALS, action="append")
    parser.add_argument("--piece", type=int, help="so many kills now, and the rest later; needs --keep")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a directory that stays between the pieces")
    options = parser.parse_args()
    if (options.piece is None) != (options.keep is None):
        parser.error("give --piece and --keep together")
    names = options.pipeline or list(TRIALS)
    if options.piece and any(TRIALS[name].after_kill is not Trial.after_kill for name in names):
        parser.error("archive and rollup send between the kills: they cannot go in pieces")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # what was started is ended on the way out
    for name in names:
        began_s = time.monotonic()
        print(f"{name}: seed {options.seed}", flush=True)
        if options.keep is None:
            directory = Path(tempfile.mkdtemp(prefix=f"penstock-soak-{name}-"))
        else:
            directory = options.keep / name
        chance = random.Random(f"{options.seed} {name}")
        hits = soak(name, directory, kills=options.kills, messages=options.messages, chance=chance, piece=options.piece)
        is_over = options.piece is None or hits.total() >= options.kills
        outcome = "everything once" if is_over else "to be continued"
        print(
            f"{name}: {hits.total()} kills hit {dict(hits)}, {outcome} ({time.monotonic() - began_s:.0f} s)", flush=True
        )
        if is_over:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
