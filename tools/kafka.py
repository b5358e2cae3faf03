"""Apache Kafka for tests, benchmarks and developers: one broker or three, real ones, on free ports of the loopback.

    with kafka_cluster(brokers=3) as kafka:
        connect(kafka.bootstrap)
        kafka.kill(1)

Maven fetches the jars from Maven Central once, into `build/kafka`; the first broker leaves an archive of its classes
there, with which the next ones start in a third of the time. Each broker is a process of its own in KRaft mode,
broker and controller in one (`tools/servers.py`). A broker keeps its ports over a restart.

By hand: `make kafka-up`, or `make kafka-up BROKERS=3`, prints where the brokers are, and `make kafka-down` stops them.
`python -m tools.kafka where` prints the bootstrap servers of what is up.
"""

from __future__ import annotations

import argparse
import base64
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.servers import (
    QUICK_TO_START,
    Server,
    ServerError,
    Servers,
    down,
    fetched,
    free_ports,
    last_lines,
    locked,
    remember,
    where,
)

VERSION = "4.2.1"
"""4.3.0 and 4.3.1 may leave transactions without an end (KAFKA-20734)."""
HEAP_MB = 512
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
_START_SECONDS_MAX = 120
_STARTS_MAX = 3
_STARTED = "Kafka Server started"

_DEPENDENCIES = (
    f"org.apache.kafka:kafka_{_SCALA}:{VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOG4J}",
)

_LOGGING = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""


# -- the jars --


def jars() -> Path:
    """The directory with Kafka's jars. Fetched at the first call, then kept."""
    return fetched(_HOME / VERSION, f"Kafka {VERSION}", _DEPENDENCIES)


def _class_archive(found: Path) -> Path | None:
    """What makes a JVM start quickly: the classes that a broker loads, made by a broker that runs for a moment."""
    home = found.parent
    archive, partial = home / "classes.jsa", home / "classes.partial"
    with locked(home, "classes.lock"):
        if not archive.exists():
            partial.unlink(missing_ok=True)
            with suppress(ServerError):
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


# -- a cluster --


@dataclass(kw_only=True)
class _Broker(Server):
    """One broker."""

    port: int
    controller_port: int
    data: Path
    """Where it keeps its partitions."""
    fronts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Further listeners: the port where the broker listens, and the one that it tells clients."""
    log_start: int = 0
    """How long the log was when the process was started."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings_path(self) -> Path:
        return self.directory / "server.properties"

    def said(self) -> str:
        """What it has logged since it was started."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_start)
            return log.read().decode(errors="replace")


class KafkaCluster(Servers[_Broker]):
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
        self._fronts = dict(fronts or {})
        self._disks = dict(disks or {})
        super().__init__(Path(tempfile.mkdtemp(prefix="penstock-kafka-", dir=directory)), guarded=guarded)
        try:
            self._start_somewhere(brokers, dict(properties or {}))
        except BaseException:
            self.close()
            raise

    # Where it is.

    @property
    def bootstrap(self) -> str:
        """Every broker's address, as clients want them: `127.0.0.1:20001,127.0.0.1:20002`."""
        return ",".join(broker.address for broker in self._servers)

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
        return self._servers[number].address

    def front_port(self, name: str, number: int) -> int:
        """Where a broker listens for those who come by way of `fronts[name]`."""
        return self._servers[number].fronts[name][0]

    def data(self, number: int) -> Path:
        """Where a broker keeps its partitions."""
        return self._servers[number].data

    # Starting.

    def _start_somewhere(self, count: int, properties: dict[str, object]) -> None:
        """Start them all; once more on other ports if somebody was faster on one of these."""
        for attempt in range(_STARTS_MAX):
            self._lay_out(count, properties)
            try:
                for broker in self._servers:
                    self._spawn(broker)
                for broker in self._servers:
                    self._wait_until_started(broker)
                return
            except ServerError as error:
                if "Address already in use" not in str(error) or attempt == _STARTS_MAX - 1:
                    raise
                for broker in self._servers:
                    self._end(broker)

    def _lay_out(self, count: int, properties: dict[str, object]) -> None:
        ports = iter(free_ports((2 + len(self._fronts)) * count))
        self._servers = [
            _Broker(
                number=number,
                directory=self.directory / f"broker-{number}",
                port=next(ports),
                controller_port=next(ports),
                data=self._disks.get(number, self.directory / f"broker-{number}") / "data",
                fronts={name: (next(ports), told[number]) for name, told in self._fronts.items()},
            )
            for number in range(count)
        ]
        (self.directory / "log4j2.properties").write_text(_LOGGING)
        for broker in self._servers:
            shutil.rmtree(broker.directory, ignore_errors=True)
            shutil.rmtree(broker.data, ignore_errors=True)
            broker.directory.mkdir()
            broker.log_path.touch()
            settings = {**server_settings(self._servers, broker), **properties}
            broker.settings_path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._format()

    def _format(self) -> None:
        cluster_id = new_cluster_id()
        archive = [option for option in self._java_options if "SharedArchiveFile" in option]
        tool = self._java(*archive, "-Xmx128m", QUICK_TO_START, "kafka.tools.StorageTool", "format")
        commands = [[*tool, "-t", cluster_id, "-c", str(broker.settings_path)] for broker in self._servers]
        running = [subprocess.Popen(it, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for it in commands]
        said = [process.communicate(timeout=_START_SECONDS_MAX)[0] for process in running]
        for process, text in zip(running, said, strict=True):
            if process.returncode:
                raise ServerError(f"Kafka's storage could not be formatted: {last_lines(text)}")

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return ["java", "-cp", f"{self._jars}/*", logging, *arguments]

    def _command(self, broker: _Broker) -> list[str]:
        memory = ("-Xms128m", f"-Xmx{self._heap_mb}m", "-XX:+ExitOnOutOfMemoryError")
        return self._java(*self._java_options, *memory, "kafka.Kafka", str(broker.settings_path))

    def _spawn(self, broker: _Broker) -> None:
        broker.log_start = broker.log_path.stat().st_size
        super()._spawn(broker)

    def _wait_until_started(self, broker: _Broker) -> None:
        assert broker.process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while _STARTED not in broker.said():
            if broker.process.poll() is not None:
                raise ServerError(f"broker {broker.number} ended at once: {last_lines(broker.said(), 30)}")
            if time.monotonic() > deadline:
                raise ServerError(f"broker {broker.number} did not start: {last_lines(broker.said(), 30)}")
            time.sleep(0.05)


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
    down(state)
    cluster = KafkaCluster(brokers, heap_mb=heap_mb, guarded=False)
    return remember(cluster, cluster.bootstrap, state)


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
            print("stopped" if down(_STATE) else "nothing is up")
        else:
            print(where(_STATE) or "nothing is up")
    except ServerError as error:
        raise SystemExit(f"kafka: {error}") from None


if __name__ == "__main__":
    main()
