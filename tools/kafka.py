"""Apache Kafka for tests, benchmarks and developers: one broker or three, real ones, on free ports of the loopback.

    with kafka_cluster(brokers=3) as kafka:
        connect(kafka.bootstrap)
        kafka.kill(1)

Maven fetches the jars from Maven Central once, into `build/kafka`; the first broker leaves an archive of its classes
there, with which the next ones start in a third of the time. Each broker is a process of its own in KRaft mode,
broker and controller in one; data and logs are in a temporary directory that goes with the cluster. A broker keeps its
ports over a restart. A small process beside each kills the broker when whoever started it dies without stopping it.

By hand: `make kafka-up`, or `make kafka-up BROKERS=3`, prints where the brokers are, and `make kafka-down` stops them.
`python -m tools.kafka where` prints the bootstrap servers of what is up.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

VERSION = "4.2.1"
"""4.3.0 and 4.3.1 may leave transactions without an end (KAFKA-20734)."""
HEAP_MB = 512
QUICK_TO_START = "-XX:TieredStopAtLevel=1"
"""A JVM with this is sooner there, and slower then: for tests."""

DEFAULT_SETTINGS = {
    "broker.heartbeat.interval.ms": 2000,
    "broker.session.timeout.ms": 9000,
    "group.consumer.min.heartbeat.interval.ms": 5000,
    "group.consumer.min.session.timeout.ms": 45_000,
    "group.initial.rebalance.delay.ms": 3000,
    "group.min.session.timeout.ms": 6000,
    "offsets.topic.num.partitions": 50,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.state.log.num.partitions": 50,
}
"""Kafka's own, where `server_settings` has shorter times for tests: what a user's brokers have."""

_SCALA = "2.13"
_LOG4J = "2.25.4"
_HOME = Path(__file__).resolve().parent.parent / "build" / "kafka"
_STATE = _HOME / "up.json"
_FETCH_SECONDS_MAX = 600
_START_SECONDS_MAX = 120
_STOP_SECONDS_MAX = 30
_STARTS_MAX = 3
_PORTS = range(20_000, 32_000)
"""Below the ports that connections are given for their own end: a stopped broker finds its ports free."""
_STARTED = "Kafka Server started"

_DEPENDENCIES = (
    f"org.apache.kafka:kafka_{_SCALA}:{VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J}",
)

_PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.tools</groupId>
  <artifactId>fetched</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""

_LOGGING = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""


class KafkaError(RuntimeError):
    """Kafka can be neither found nor got nor started; the text says why, and what to do."""


# -- the jars --


def jars() -> Path:
    """The directory with Kafka's jars. Fetched at the first call, then kept."""
    return fetched(_HOME / VERSION, f"Kafka {VERSION}", _DEPENDENCIES)


def fetched(home: Path, what: str, dependencies: Sequence[str]) -> Path:
    """The directory with the jars of `group:artifact:version`s and of all that they need: fetched once, then kept."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise KafkaError(f"`{program}` is not installed: {what} needs Java 17 or later, and Maven to be fetched")
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if not (home / "jars").is_dir():
            _fetch(home, what, dependencies)
    return home / "jars"


@contextmanager
def locked(home: Path, name: str = "lock") -> Iterator[None]:
    """One process at a time: the others find the work done."""
    with open(home / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(home: Path, what: str, dependencies: Sequence[str]) -> None:
    wanted = "\n".join(_DEPENDENCY.format(*dependency.split(":")) for dependency in dependencies)
    (home / "pom.xml").write_text(_PROJECT.format(dependencies=wanted))
    partial = home / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    try:
        ended = subprocess.run(copy, cwd=home, capture_output=True, text=True, timeout=_FETCH_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise KafkaError(f"Maven did not fetch {what} within {_FETCH_SECONDS_MAX} seconds") from None
    if ended.returncode:
        raise KafkaError(f"Maven could not fetch {what}: {last_lines(ended.stdout + ended.stderr)}")
    partial.rename(home / "jars")


def _class_archive(found: Path) -> Path | None:
    """What makes a JVM start quickly: the classes that a broker loads, made by a broker that runs for a moment."""
    home = found.parent
    archive, partial = home / "classes.jsa", home / "classes.partial"
    with locked(home, "classes.lock"):
        if not archive.exists():
            partial.unlink(missing_ok=True)
            with suppress(KafkaError):
                teacher = KafkaCluster(1, java_options=(f"-XX:ArchiveClassesAtExit={partial}",), is_archived=False)
                try:
                    teacher.stop(0)
                finally:
                    teacher.close()
            if partial.exists():
                partial.rename(archive)
            else:
                archive.touch()  # this JVM makes none: nobody has to try again
    return archive if archive.stat().st_size else None


def last_lines(text: str, count: int = 15) -> str:
    """What a program said last."""
    return "\n".join(text.strip().splitlines()[-count:])


# -- a cluster --


@dataclass
class _Broker:
    """One broker: where it lives, and its process while it runs."""

    number: int
    directory: Path
    port: int
    controller_port: int
    data: Path
    """Where it keeps its partitions."""
    fronts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Further listeners: the port where the broker listens, and the one that it tells clients."""
    process: subprocess.Popen[bytes] | None = None
    guard: subprocess.Popen[bytes] | None = None
    log_start: int = 0
    """How long the log was when the process was started."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings_path(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    def said(self) -> str:
        """What it has logged since it was started."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")


class KafkaCluster:
    """Brokers 0, 1, ... that run. Use `kafka_cluster`, or call `close` in a `finally`.

    `fronts` are further listeners for who shall reach the brokers by other ports, those of proxies: to each name (of
    letters, digits and underscores) the port for every broker, which it tells its clients.

    `disks` are directories for the data of some brokers, by number; the others keep it beside their logs.
    """

    engine = "kafka"

    def __init__(
        self,
        brokers: int = 1,
        *,
        heap_mb: int = HEAP_MB,
        properties: Mapping[str, object] | None = None,
        directory: Path | None = None,
        guarded: bool = True,
        java_options: Sequence[str] = (),
        is_archived: bool = True,
        fronts: Mapping[str, Sequence[int]] | None = None,
        disks: Mapping[int, Path] | None = None,
    ) -> None:
        self._jars = jars()
        archive = _class_archive(self._jars) if is_archived else None
        self._java_options = [*java_options, *([f"-XX:SharedArchiveFile={archive}"] if archive else [])]
        self._heap_mb = heap_mb
        self._guarded = guarded
        self._fronts = dict(fronts or {})
        self._disks = dict(disks or {})
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir=directory))
        self._brokers: list[_Broker] = []
        try:
            self._start_somewhere(brokers, dict(properties or {}))
        except BaseException:
            self.close()
            raise

    # Where it is.

    @property
    def bootstrap(self) -> str:
        """Every broker's address, as clients want them: `127.0.0.1:20001,127.0.0.1:20002`."""
        return ",".join(broker.address for broker in self._brokers)

    @property
    def flags(self) -> list[str]:
        """How Penstock's command line finds it."""
        return ["--bootstrap", self.bootstrap]

    def settings_text(self, *, copies: int = 1, addresses: Sequence[str] = ()) -> str:
        """The section of penstock.toml by which nodes find it, with so many copies of everything."""
        in_sync = max(1, copies - 1)
        counts = f"replication_factor = {copies}\nmin_insync_replicas = {in_sync}\n"
        return f'[kafka]\nbootstrap = "{",".join(addresses) or self.bootstrap}"\n{counts}'

    def address(self, number: int) -> str:
        """One broker's address."""
        return self._brokers[number].address

    def front_port(self, name: str, number: int) -> int:
        """Where a broker listens for those who come by way of `fronts[name]`."""
        return self._brokers[number].fronts[name][0]

    def is_running(self, number: int) -> bool:
        """Whether a broker's process is there; one whose disk is full ends by itself."""
        process = self._brokers[number].process
        return process is not None and process.poll() is None

    def pid(self, number: int) -> int:
        """The process of a broker that runs."""
        return self._running(number).pid

    def log(self, number: int) -> Path:
        """What a broker says."""
        return self._brokers[number].log_path

    def data(self, number: int) -> Path:
        """Where a broker keeps its partitions."""
        return self._brokers[number].data

    # What can be done to a broker.

    def start(self, number: int, *, wait: bool = True) -> None:
        """Start a broker that was stopped or killed, with the data that it has."""
        broker = self._brokers[number]
        assert broker.process is None, f"broker {number} runs already"
        self._spawn(broker)
        if wait:
            self._wait_until_started(broker)

    def stop(self, number: int) -> None:
        """Ask a broker to end, and wait until it has: its partitions move to others first, where there are others."""
        self._end(self._brokers[number], signal.SIGTERM)

    def kill(self, number: int) -> None:
        """kill -9."""
        self._end(self._brokers[number], signal.SIGKILL)

    def pause(self, number: int) -> None:
        """SIGSTOP: it says nothing more, and its connections stay."""
        self._running(number).send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT after `pause`."""
        self._running(number).send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End every broker, and remove what they kept."""
        for broker in self._brokers:
            self._end(broker, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self, number: int) -> subprocess.Popen[bytes]:
        process = self._brokers[number].process
        assert process is not None, f"broker {number} does not run"
        return process

    # Starting.

    def _start_somewhere(self, count: int, properties: dict[str, object]) -> None:
        """Start them all; once more on other ports if somebody was faster on one of these."""
        for attempt in range(_STARTS_MAX):
            self._lay_out(count, properties)
            try:
                for broker in self._brokers:
                    self._spawn(broker)
                for broker in self._brokers:
                    self._wait_until_started(broker)
                return
            except KafkaError as error:
                if "Address already in use" not in str(error) or attempt == _STARTS_MAX - 1:
                    raise
                for broker in self._brokers:
                    self._end(broker, signal.SIGKILL)

    def _lay_out(self, count: int, properties: dict[str, object]) -> None:
        ports = iter(free_ports((2 + len(self._fronts)) * count))
        self._brokers = [
            _Broker(
                number,
                self.directory / f"broker-{number}",
                next(ports),
                next(ports),
                self._disks.get(number, self.directory / f"broker-{number}") / "data",
                {name: (next(ports), told[number]) for name, told in self._fronts.items()},
            )
            for number in range(count)
        ]
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        for broker in self._brokers:
            shutil.rmtree(broker.directory, ignore_errors=True)
            shutil.rmtree(broker.data, ignore_errors=True)
            broker.directory.mkdir()
            broker.log_path.touch()
            settings = {**server_settings(self._brokers, broker), **properties}
            broker.settings_path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._format()

    def _format(self) -> None:
        cluster_id = new_cluster_id()
        archive = [option for option in self._java_options if "SharedArchiveFile" in option]
        tool = self._java(*archive, "-Xmx128m", QUICK_TO_START, "kafka.tools.StorageTool", "format")
        commands = [[*tool, "-t", cluster_id, "-c", str(broker.settings_path)] for broker in self._brokers]
        running = [subprocess.Popen(it, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for it in commands]
        said = [process.communicate(timeout=_START_SECONDS_MAX)[0] for process in running]
        for process, text in zip(running, said, strict=True):
            if process.returncode:
                raise KafkaError(f"Kafka's storage could not be formatted: {last_lines(text)}")

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return ["java", "-cp", f"{self._jars}/*", logging, *arguments]

    def _java_for_broker(self, *arguments: str) -> list[str]:
        return self._java(*self._java_options, *arguments)

    def _spawn(self, broker: _Broker) -> None:
        memory = ("-Xms128m", f"-Xmx{self._heap_mb}m", "-XX:+ExitOnOutOfMemoryError")
        command = self._java_for_broker(*memory, "kafka.Kafka", str(broker.settings_path))
        broker.log_start = broker.log_path.stat().st_size
        with open(broker.log_path, "ab") as log:
            broker.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if self._guarded:
            broker.guard = guard(broker.process.pid)

    def _wait_until_started(self, broker: _Broker) -> None:
        assert broker.process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while _STARTED not in broker.said():
            if broker.process.poll() is not None:
                raise KafkaError(f"broker {broker.number} ended at once: {last_lines(broker.said(), 30)}")
            if time.monotonic() > deadline:
                raise KafkaError(f"broker {broker.number} did not start: {last_lines(broker.said(), 30)}")
            time.sleep(0.05)

    def _end(self, broker: _Broker, how: signal.Signals) -> None:
        process, broker.process = broker.process, None
        if process is None:
            return
        process.send_signal(how)
        if how != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS_MAX)
        process.kill()
        process.wait()
        if broker.guard is not None:
            broker.guard.kill()
            broker.guard.communicate()
            broker.guard = None


def new_cluster_id(random_bytes: Callable[[], bytes] = lambda: uuid.uuid4().bytes) -> str:
    """An id as Kafka makes them: none that begins with a dash, which its tools would take for an option."""
    while True:
        found = base64.urlsafe_b64encode(random_bytes()).decode().rstrip("=")
        if not found.startswith("-"):
            return found


def server_settings(brokers: Sequence[_Broker], broker: _Broker) -> dict[str, object]:
    """A broker's `server.properties`: Kafka's defaults, but for places, sizes, and what makes tests short."""
    copies = min(3, len(brokers))
    in_sync = 2 if copies == 3 else 1
    own = broker.fronts.items()
    return {
        "process.roles": "broker,controller",
        "node.id": broker.number,
        "controller.quorum.voters": ",".join(f"{it.number}@127.0.0.1:{it.controller_port}" for it in brokers),
        "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://127.0.0.1:{broker.controller_port}"
        + "".join(f",{name}://127.0.0.1:{port}" for name, (port, _) in own),
        "advertised.listeners": f"PLAINTEXT://{broker.address}"
        + "".join(f",{name}://127.0.0.1:{told}" for name, (_, told) in own),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        + "".join(f",{name}:PLAINTEXT" for name, _ in own),
        "log.dirs": broker.data,
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 5000,
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 4,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "group.consumer.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "log.cleaner.backoff.ms": 500,
        "log.cleaner.dedupe.buffer.size": 16 << 20,
        "log.initial.task.delay.ms": 500,
        "file.delete.delay.ms": 1000,
        "controlled.shutdown.retry.backoff.ms": 500,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }


def free_ports(count: int) -> list[int]:
    """Ports of the loopback on which nobody listens."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise KafkaError(f"no {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def guard(pid: int) -> subprocess.Popen[bytes]:
    """A process that kills another one when the end of this pipe goes, that is, when this process dies."""
    script = 'cat >/dev/null; kill -KILL "$0" 2>/dev/null'
    return subprocess.Popen(
        ["sh", "-c", script, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def kafka_cluster(
    brokers: int = 1,
    *,
    heap_mb: int = HEAP_MB,
    properties: Mapping[str, object] | None = None,
    directory: Path | None = None,
    java_options: Sequence[str] = (),
) -> Iterator[KafkaCluster]:
    """Brokers that run until the block ends. `properties` go to every broker, over the settings that they have."""
    cluster = KafkaCluster(
        brokers, heap_mb=heap_mb, properties=properties, directory=directory, java_options=java_options
    )
    try:
        yield cluster
    finally:
        cluster.close()


# -- by hand --


def up(brokers: int, heap_mb: int = HEAP_MB, state: Path = _STATE) -> str:
    """Start brokers that outlive this process, and give their addresses."""
    if state.exists():
        down(state)
    state.parent.mkdir(parents=True, exist_ok=True)
    cluster = KafkaCluster(brokers, heap_mb=heap_mb, guarded=False)
    pids = [cluster.pid(number) for number in range(brokers)]
    state.write_text(
        json.dumps({"bootstrap": cluster.bootstrap, "directory": str(cluster.directory), "pids": pids}) + "\n"
    )
    return cluster.bootstrap


def down(state: Path = _STATE) -> bool:
    """Stop what `up` started; False if there is nothing."""
    if not state.exists():
        return False
    known = json.loads(state.read_text())
    directory = Path(known["directory"])
    ours = [pid for pid in known["pids"] if _is_broker(pid, directory)]
    for pid in ours:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS_MAX
    while any(_is_broker(pid, directory) for pid in ours) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in ours:
        if _is_broker(pid, directory):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)
    state.unlink()
    return True


def where(state: Path = _STATE) -> str | None:
    """The bootstrap servers of what is up."""
    return str(json.loads(state.read_text())["bootstrap"]) if state.exists() else None


def _is_broker(pid: int, directory: Path) -> bool:
    """Whether a process is one of that directory's brokers, and not one that got the number later."""
    try:
        return str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    """`python -m tools.kafka up|down|where`."""
    parser = argparse.ArgumentParser(prog="python -m tools.kafka", description="Run Apache Kafka on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start brokers, and print their addresses")
    starting.add_argument("--brokers", type=int, default=1, help="how many (1)")
    starting.add_argument("--heap-mb", type=int, default=HEAP_MB, help=f"each broker's heap ({HEAP_MB})")
    commands.add_parser("down", help="stop them")
    commands.add_parser("where", help="print the addresses of what is up")
    given = parser.parse_args()
    try:
        if given.command == "up":
            print(up(given.brokers, given.heap_mb))
        elif given.command == "down":
            print("stopped" if down() else "nothing is up")
        else:
            print(where() or "nothing is up")
    except KafkaError as error:
        raise SystemExit(f"kafka: {error}") from None


if __name__ == "__main__":
    main()
