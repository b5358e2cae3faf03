"""What the tests talk to: `penstock serve` or the real nsqd, each a process of its own on free ports of loopback.

The conformance tests run against Penstock. With NSQ_TESTS_AGAINST=nsqd they run against nsqd instead (it is built with
Go): that is how we know that they expect the right things. Where Penstock differs on purpose, a test asks `is_nsqd`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
from botocore.config import Config

from bench import nsq_tools
from tests import clustered
from tests.kafka import unique_prefix
from tests.package import PACKAGE
from tests.ports import free_port
from tests.protocols.nsq.clients.wire import Address, Connection

ROOT = Path(__file__).resolve().parents[4]
HOST = "127.0.0.1"
START_S_MAX = 60.0
AGAINST_NSQD = os.environ.get("NSQ_TESTS_AGAINST") == "nsqd"


class Process:
    """A program that listens, its directory and its log. It may be killed and started again, on the same ports."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.log_path = directory / "log"
        self.process: subprocess.Popen[bytes]

    def run(self, command: list[str], is_ready: Callable[[], bool]) -> None:
        with self.log_path.open("ab") as log:
            environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
            self.process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        until(
            lambda: is_ready() or self.process.poll() is not None, 3 * START_S_MAX if clustered.NODES else START_S_MAX
        )
        assert self.process.poll() is None, self.log_path.read_text()

    def kill(self) -> None:
        """As a power failure would; without effect on one that has ended."""
        self.process.kill()
        self.process.wait(START_S_MAX)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S_MAX)

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def worked_s(self) -> float:
        """How long it had a processor: other than the time by the clock, that says nothing of what runs beside it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def failures_logged(self) -> list[str]:
        """What the log has of things that must not happen."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if "Traceback" in line or re.match(r"\S+Z error ", line)]


class Broker(Process):
    """Something that serves NSQ's TCP and HTTP protocols."""

    is_nsqd = False
    tcp_port = 0
    http_port = 0

    def start(self) -> Broker:
        raise NotImplementedError

    @property
    def address(self) -> Address:
        return (HOST, self.tcp_port)

    @property
    def tcp_address(self) -> str:
        return f"{HOST}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.http_port}"

    def connect(self, **identity: Any) -> Connection:
        """A new connection, identified when anything is given."""
        connection = Connection(self.address)
        if identity:
            connection.identify(**identity)
        return connection

    def subscriber(self, topic: str, channel: str = "ch", ready: int = 0, **identity: Any) -> Connection:
        return self.connect(**identity).subscribe(topic, channel, ready)

    def publish(self, topic: str, *bodies: bytes) -> None:
        with self.connect() as connection:
            connection.publish(topic, *bodies)

    def http(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        return http_call(HOST, self.http_port, method, path, body, headers)

    def post(self, path: str, body: bytes = b"", **query: str) -> bytes:
        """A POST that must succeed."""
        status, answer = self.http("POST", f"{path}?{urlencode(query)}", body)
        assert status == 200, (status, answer)
        return answer

    def stats(self, **query: str) -> Any:
        status, answer = self.http("GET", f"/stats?{urlencode({'format': 'json', **query})}")
        assert status == 200, (status, answer)
        return json.loads(answer)

    def topic(self, name: str) -> Any:
        """The statistics of a topic; None if there is none."""
        return next((each for each in self.stats(topic=name)["topics"] or [] if each["topic_name"] == name), None)

    def channel(self, topic: str, name: str = "ch") -> Any:
        """The statistics of a channel; None if there is none."""
        channels = (self.topic(topic) or {"channels": []})["channels"]
        return next((each for each in channels if each["channel_name"] == name), None)


class Penstock(Broker):
    """`penstock serve`, as users run it."""

    def __init__(self, directory: Path, *flags: str, settings: str = "") -> None:
        super().__init__(directory)
        self.data = directory / "data"
        self._flags = list(flags)
        if settings:
            (directory / "penstock.toml").write_text(settings)
            self._flags += ["--config", str(directory / "penstock.toml")]
        self._ports = {"sqs": 0, "http": 0, "nsq-tcp": 0, "nsq-http": 0}

    def start(self) -> Penstock:
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(self.data), "--ready-file", str(ready_file)]
        for name, port in self._ports.items():
            command += [f"--{name}-port", str(port)]
        self.run([*command, *self._flags], ready_file.exists)
        listening = json.loads(ready_file.read_text())["listening"]
        names = {"nsq-tcp": "nsq"}
        self._ports = {name: listening[names.get(name, name)]["port"] for name in self._ports}
        self.tcp_port, self.http_port = self._ports["nsq-tcp"], self._ports["nsq-http"]
        return self

    @property
    def sqs_url(self) -> str:
        return f"http://{HOST}:{self._ports['sqs']}"

    def sqs(self) -> Any:
        """boto3, without retries, which would hide things."""
        return boto3.client(
            "sqs",
            endpoint_url=self.sqs_url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 0}),
        )

    def metrics(self) -> str:
        return http_call(HOST, self._ports["http"], "GET", "/metrics")[1].decode()


class PenstockCluster(Penstock):
    """Three processes of `penstock serve` on a real Kafka or ZooKeeper. Each connection and request is the next one's.

    What each node says of its part of a topic, as its statistics, is asked of all of them, and added up.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._opened = ExitStack()
        self._turns = itertools.count()
        self.nodes: list[Penstock] = []

    def start(self) -> PenstockCluster:
        backend = clustered.started_backend()
        self._opened.callback(backend.close)
        name = unique_prefix("nsq")
        for number in range(clustered.NODES):
            settings = f'[server]\nengine = "{clustered.ENGINE}"\n'
            settings += clustered.settings_text(backend, name, f"n{number}")
            node = Penstock(self.directory / f"n{number}", settings=settings)
            self._opened.callback(node.kill)
            self.nodes.append(node)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.start(), self.nodes))
        self.process = self.nodes[0].process
        return self

    @property
    def _next(self) -> Penstock:
        return self.nodes[next(self._turns) % len(self.nodes)]

    @property
    def tcp_port(self) -> int:  # type: ignore[override]
        return self._next.tcp_port

    @property
    def http_port(self) -> int:  # type: ignore[override]
        return self._next.http_port

    @property
    def sqs_url(self) -> str:
        return self._next.sqs_url

    def topic(self, name: str) -> Any:
        found = [part for part in (node.topic(name) for node in self.nodes) if part is not None]
        return _added_up(found) if found else None

    def kill(self) -> None:
        self._opened.close()

    def failures_logged(self) -> list[str]:
        return [line for node in self.nodes for line in node.failures_logged()]


def _added_up(parts: list[Any]) -> Any:
    """What several nodes say of their parts of a topic, or of a channel, as one would say it."""
    whole = dict(parts[0])
    for name, value in whole.items():
        values = [part[name] for part in parts]
        if name == "channels":
            named: dict[str, list[Any]] = {}
            for channel in itertools.chain.from_iterable(values):
                named.setdefault(channel["channel_name"], []).append(channel)
            whole[name] = [_added_up(named[each]) for each in sorted(named)]
        elif isinstance(value, bool):
            whole[name] = any(values)
        elif isinstance(value, int):
            whole[name] = sum(values)
        elif name == "clients":
            whole[name] = [client for each in values for client in each or ()]
    return whole


class Nsqd(Broker):
    """The real one."""

    is_nsqd = True

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory)
        self._flags = flags

    def start(self) -> Nsqd:
        self.tcp_port, self.http_port = self.tcp_port or free_port(), self.http_port or free_port()
        data = self.directory / "nsqd"
        data.mkdir(exist_ok=True)
        addresses = [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]
        addresses.append(f"--broadcast-address={HOST}")
        command = [nsq_tools.program("nsqd"), f"--data-path={data}", *addresses, *self._flags]
        self.run(command, lambda: listens(self.http_port))
        return self


class Lookup(Process):
    """Something that tells clients which brokers have a topic."""

    is_penstock = True

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory)
        self._flags = flags
        self.tcp_port = 0
        self.http_port = 0

    def start(self) -> Lookup:
        raise NotImplementedError

    @property
    def tcp_address(self) -> str:
        return f"{HOST}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.http_port}"

    def get(self, path: str) -> tuple[int, Any]:
        status, body = http_call(HOST, self.http_port, "GET", path)
        return status, json.loads(body)

    def producers(self, topic: str) -> set[int]:
        """The TCP ports of those who have a topic."""
        status, found = self.get(f"/lookup?topic={topic}")
        return {each["tcp_port"] for each in found["producers"]} if status == 200 else set()

    def channels(self, topic: str) -> list[str]:
        return list(self.get(f"/channels?topic={topic}")[1]["channels"])

    def nodes(self) -> list[Any]:
        return list(self.get("/nodes")[1]["producers"])


class PenstockLookup(Lookup):
    """`penstock lookup`, as users run it."""

    def start(self) -> PenstockLookup:
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        ports = ["--tcp-port", str(self.tcp_port), "--http-port", str(self.http_port)]
        command = [sys.executable, "-m", "penstock", "lookup", *ports, "--ready-file", str(ready_file), *self._flags]
        self.run(command, ready_file.exists)
        listening = json.loads(ready_file.read_text())["listening"]
        self.tcp_port, self.http_port = listening["lookup"]["port"], listening["lookup-http"]["port"]
        return self


class Nsqlookupd(Lookup):
    """The real one."""

    is_penstock = False

    def start(self) -> Nsqlookupd:
        self.tcp_port, self.http_port = self.tcp_port or free_port(), self.http_port or free_port()
        addresses = [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]
        addresses.append(f"--broadcast-address={HOST}")
        self.run([nsq_tools.program("nsqlookupd"), *addresses, *self._flags], lambda: listens(self.http_port))
        return self


@contextmanager
def looking_up(lookup: Lookup) -> Iterator[Any]:
    """A lookup service that has ended when the block has; its log must be clean."""
    try:
        yield lookup.start()
    finally:
        lookup.kill()
    if lookup.is_penstock:
        assert lookup.failures_logged() == []


@contextmanager
def running(broker: Broker) -> Iterator[Any]:
    """A broker that has ended when the block has; its log must be clean."""
    try:
        yield broker.start()
    finally:
        broker.kill()
    if not broker.is_nsqd:
        assert broker.failures_logged() == []


def http_call(
    host: str, port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=START_S_MAX)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def until(condition: Callable[[], object], seconds: float = START_S_MAX) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
