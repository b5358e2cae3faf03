"""Apache ZooKeeper for tests, benchmarks and developers: one server or three, real ones, on free ports of the loopback.

    with zookeeper_ensemble(servers=3) as zookeeper:
        connect(zookeeper.hosts)
        zookeeper.kill(1)

Maven fetches the jars from Maven Central once, into `build/zookeeper`. Each server is a process of its own; data and
logs are in a temporary directory that goes with the ensemble. A server keeps its ports over a restart. A small process
beside each kills the server when whoever started it dies without stopping it.

By hand: `make zookeeper-up`, or `make zookeeper-up SERVERS=3`, prints where the servers are, and `make zookeeper-down`
stops them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.kafka import QUICK_TO_START, KafkaError, fetched, free_ports, guard, last_lines

VERSION = "3.9.4"
HEAP_MB = 512
TICK_MS = 500
"""ZooKeeper's unit of time. The shortest session is twice as long, the longest twenty times."""

_DEPENDENCIES = (
    f"org.apache.zookeeper:zookeeper:{VERSION}",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
"""The last two are what ZooKeeper's own package brings along, and its Maven project does not name."""
_HOME = Path(__file__).resolve().parent.parent / "build" / "zookeeper"
_STATE = _HOME / "up.json"
_START_SECONDS_MAX = 60
_LOGGING = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %m (%c)%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""


class ZooKeeperError(RuntimeError):
    """ZooKeeper can be neither got nor started; the text says why, and what to do."""


@dataclass
class _Server:
    """One server: where it lives, and its process while it runs."""

    number: int
    directory: Path
    port: int
    peer_port: int
    election_port: int
    process: subprocess.Popen[bytes] | None = None
    guard: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"


def jars() -> Path:
    """Where ZooKeeper's jars are; fetched if they are not there."""
    try:
        return fetched(_HOME / VERSION, f"ZooKeeper {VERSION}", _DEPENDENCIES)
    except KafkaError as error:
        raise ZooKeeperError(str(error)) from None


class ZooKeeperEnsemble:
    """Servers 0, 1, ... that run. Use `zookeeper_ensemble`, or call `close` in a `finally`."""

    engine = "zookeeper"

    def __init__(
        self, servers: int = 1, *, properties: Mapping[str, object] | None = None, guarded: bool = True
    ) -> None:
        self._jars = jars()
        self._guarded = guarded
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-zookeeper-"))
        (self.directory / "logback.xml").write_text(_LOGGING)
        ports = iter(free_ports(3 * servers))
        self._servers = [
            _Server(number, self.directory / f"server-{number}", next(ports), next(ports), next(ports))
            for number in range(servers)
        ]
        try:
            for server in self._servers:
                self._lay_out(server, dict(properties or {}))
                self._spawn(server)
            for server in self._servers:
                self._wait_until_it_serves(server)
        except BaseException:
            self.close()
            raise

    def _lay_out(self, server: _Server, properties: Mapping[str, object]) -> None:
        server.directory.mkdir()
        peers = {}
        if len(self._servers) > 1:
            peers = {f"server.{it.number}": f"127.0.0.1:{it.peer_port}:{it.election_port}" for it in self._servers}
        settings = {
            "tickTime": TICK_MS,
            "initLimit": 20,
            "syncLimit": 10,
            "dataDir": server.directory,
            "clientPort": server.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            **peers,
            **properties,
        }
        (server.directory / "myid").write_text(f"{server.number}\n")
        (server.directory / "zoo.cfg").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def hosts(self) -> str:
        """Every server's address, as clients want them: `127.0.0.1:20001,127.0.0.1:20002`."""
        return ",".join(self.address(server.number) for server in self._servers)

    @property
    def flags(self) -> list[str]:
        """How Penstock's command line finds it."""
        return ["--zookeeper", self.hosts]

    def settings_text(self, *, copies: int = 1, addresses: Sequence[str] = ()) -> str:
        """The section of penstock.toml by which nodes find it. How many copies there are is the ensemble's affair."""
        return f'[zookeeper]\nhosts = "{",".join(addresses) or self.hosts}"\n'

    def address(self, number: int) -> str:
        """One server's address."""
        return f"127.0.0.1:{self._servers[number].port}"

    def pid(self, number: int) -> int:
        """The process of a server that runs."""
        return self._running(number).pid

    def start(self, number: int, *, wait: bool = True) -> None:
        """Start a server that was killed, with the data that it has."""
        server = self._servers[number]
        assert server.process is None, f"server {number} runs already"
        self._spawn(server)
        if wait:
            self._wait_until_it_serves(server)

    def is_running(self, number: int) -> bool:
        """Whether a server's process is there."""
        process = self._servers[number].process
        return process is not None and process.poll() is None

    def stop(self, number: int) -> None:
        """SIGTERM."""
        _end(self._servers[number], signal.SIGTERM)

    def kill(self, number: int) -> None:
        """kill -9."""
        _end(self._servers[number])

    def front_port(self, name: str, number: int) -> int:
        """Where a server listens for those who come by a way of their own: where it listens for all."""
        return self._servers[number].port

    def pause(self, number: int) -> None:
        """SIGSTOP: it says nothing more, and its connections stay."""
        self._running(number).send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT after `pause`."""
        self._running(number).send_signal(signal.SIGCONT)

    def leader(self) -> int:
        """The server that leads, or the only one."""
        return next(it.number for it in self._servers if _mode(it.port) in ("leader", "standalone"))

    def close(self) -> None:
        """End every server, and remove what they kept."""
        for server in self._servers:
            _end(server)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self, number: int) -> subprocess.Popen[bytes]:
        process = self._servers[number].process
        assert process is not None, f"server {number} does not run"
        return process

    def _spawn(self, server: _Server) -> None:
        command = ["java", "-cp", f"{self._jars}/*", f"-Dlogback.configurationFile={self.directory / 'logback.xml'}"]
        command += [QUICK_TO_START, "-Xms64m", f"-Xmx{HEAP_MB}m", "-XX:+ExitOnOutOfMemoryError"]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(server.directory / "zoo.cfg")]
        with open(server.log_path, "ab") as log:
            server.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if self._guarded:
            server.guard = guard(server.process.pid)

    def _wait_until_it_serves(self, server: _Server) -> None:
        assert server.process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not _mode(server.port):
            if server.process.poll() is not None or time.monotonic() > deadline:
                said = last_lines(server.log_path.read_text(errors="replace"), 30)
                raise ZooKeeperError(f"ZooKeeper server {server.number} did not start: {said}")
            time.sleep(0.05)


def _end(server: _Server, how: signal.Signals = signal.SIGKILL) -> None:
    process, server.process = server.process, None
    if process is not None:
        process.send_signal(how)
        process.wait()
    if server.guard is not None:
        server.guard.kill()
        server.guard.communicate()
        server.guard = None


def _mode(port: int) -> str:
    """`leader`, `follower` or `standalone`, as a server says it; "" while it does not serve."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as asked:
        asked.sendall(b"srvr")
        asked.settimeout(2.0)
        said = b"".join(iter(lambda: asked.recv(4096), b"")).decode(errors="replace")
        for line in said.splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
    return ""


@contextmanager
def zookeeper_ensemble(
    servers: int = 1, *, properties: Mapping[str, object] | None = None
) -> Iterator[ZooKeeperEnsemble]:
    """Servers that run until the block ends. `properties` go to every `zoo.cfg`, over the settings that it has."""
    ensemble = ZooKeeperEnsemble(servers, properties=properties)
    try:
        yield ensemble
    finally:
        ensemble.close()


# -- by hand --


def up(servers: int) -> str:
    """Start servers that outlive this process, and give their addresses."""
    down()
    ensemble = ZooKeeperEnsemble(servers, guarded=False)
    pids = [ensemble.pid(number) for number in range(servers)]
    known = {"hosts": ensemble.hosts, "directory": str(ensemble.directory), "pids": pids}
    _STATE.write_text(json.dumps(known) + "\n")
    return ensemble.hosts


def down() -> bool:
    """Stop what `up` started; False if there is nothing."""
    if not _STATE.exists():
        return False
    known = json.loads(_STATE.read_text())
    for pid in known["pids"]:
        with suppress(OSError):
            if known["directory"].encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGTERM)
    shutil.rmtree(known["directory"], ignore_errors=True)
    _STATE.unlink()
    return True


def main() -> None:
    """`python -m tools.zookeeper up|down`."""
    parser = argparse.ArgumentParser(prog="python -m tools.zookeeper", description="Run ZooKeeper on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start servers, and print their addresses")
    starting.add_argument("--servers", type=int, default=1, help="how many (1)")
    commands.add_parser("down", help="stop them")
    given = parser.parse_args()
    try:
        if given.command == "up":
            print(up(given.servers))
        else:
            print("stopped" if down() else "nothing is up")
    except ZooKeeperError as error:
        raise SystemExit(f"zookeeper: {error}") from None


if __name__ == "__main__":
    main()
