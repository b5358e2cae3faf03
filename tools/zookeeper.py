"""Apache ZooKeeper for tests, benchmarks and developers: one server or three, real ones, on free ports of the loopback.

    with zookeeper_ensemble(servers=3) as zookeeper:
        connect(zookeeper.hosts)
        zookeeper.kill(1)

Maven fetches the jars from Maven Central once, into `build/zookeeper`. Each server is a process of its own
(`tools/servers.py`), and keeps its ports over a restart.

By hand: `make zookeeper-up`, or `make zookeeper-up SERVERS=3`, prints where the servers are, and `make zookeeper-down`
stops them.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.servers import QUICK_TO_START, Server, ServerError, Servers, down, fetched, free_ports, last_lines, remember

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


@dataclass(kw_only=True)
class _Server(Server):
    """One server."""

    port: int
    peer_port: int
    election_port: int


def jars() -> Path:
    """Where ZooKeeper's jars are; fetched if they are not there."""
    return fetched(_HOME / VERSION, f"ZooKeeper {VERSION}", _DEPENDENCIES)


class ZooKeeperEnsemble(Servers[_Server]):
    """Servers 0, 1, ... that run. Use `zookeeper_ensemble`, or call `close` in a `finally`."""

    engine = "zookeeper"

    def __init__(
        self, servers: int = 1, *, properties: Mapping[str, object] | None = None, guarded: bool = True
    ) -> None:
        self._jars = jars()
        super().__init__(Path(tempfile.mkdtemp(prefix="penstock-zookeeper-")), guarded=guarded)
        (self.directory / "logback.xml").write_text(_LOGGING)
        ports = iter(free_ports(3 * servers))
        self._servers = [
            _Server(
                number=number,
                directory=self.directory / f"server-{number}",
                port=next(ports),
                peer_port=next(ports),
                election_port=next(ports),
            )
            for number in range(servers)
        ]
        try:
            for server in self._servers:
                self._lay_out(server, dict(properties or {}))
                self._spawn(server)
            for server in self._servers:
                self._wait_until_started(server)
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

    def front_port(self, name: str, number: int) -> int:
        """Where a server listens for those who come by a way of their own: where it listens for all."""
        return self._servers[number].port

    def leader(self) -> int:
        """The server that leads, or the only one."""
        return next(it.number for it in self._servers if _mode(it.port) in ("leader", "standalone"))

    def _command(self, server: _Server) -> list[str]:
        command = ["java", "-cp", f"{self._jars}/*", f"-Dlogback.configurationFile={self.directory / 'logback.xml'}"]
        command += [QUICK_TO_START, "-Xms64m", f"-Xmx{HEAP_MB}m", "-XX:+ExitOnOutOfMemoryError"]
        return [*command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(server.directory / "zoo.cfg")]

    def _wait_until_started(self, server: _Server) -> None:
        assert server.process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not _mode(server.port):
            if server.process.poll() is not None or time.monotonic() > deadline:
                said = last_lines(server.log_path.read_text(errors="replace"), 30)
                raise ServerError(f"ZooKeeper server {server.number} did not start: {said}")
            time.sleep(0.05)


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
    down(_STATE)
    ensemble = ZooKeeperEnsemble(servers, guarded=False)
    return remember(ensemble, ensemble.hosts, _STATE)


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
            print("stopped" if down(_STATE) else "nothing is up")
    except ServerError as error:
        raise SystemExit(f"zookeeper: {error}") from None


if __name__ == "__main__":
    main()
