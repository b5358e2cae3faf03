"""Nodes of a cluster for tests: in threads of this process, or as processes of their own, on Kafka or ZooKeeper."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock import __version__
from penstock.cluster.membership.view import ClusterView
from penstock.cluster.node import ClusterNode
from penstock.core.commands import Command
from penstock.core.errors import PenstockError
from penstock.protocols.rest.app import RestFrontEnd
from penstock.server.engines import ENGINES
from penstock.server.settings import Settings, parse
from tools.kafka import KafkaCluster

RETRY_TIMEOUT_S = 60.0
START_S_MAX = 200.0
"""A process on a machine that does a lot besides, and a Kafka that was just started, take their time."""
SHARDS = 4


class Backend(Protocol):
    """What a cluster lives in: a `KafkaCluster` or a `ZooKeeperEnsemble` that runs."""

    engine: str

    @property
    def flags(self) -> list[str]:
        """How the command line finds it."""

    def settings_text(self, *, copies: int = 1, addresses: Sequence[str] = ()) -> str:
        """The section of penstock.toml by which nodes find it."""

    def close(self) -> None:
        """End it."""


def look(settings: Settings) -> ClusterView:
    """What can be seen of a cluster from outside."""
    found: ClusterView = ENGINES[settings.server.engine].load_cluster()(settings).look()
    return found


def settings_text(backend: Backend, cluster: str, node: str, data: Path, *, session_s: float, more: str = "") -> str:
    """A penstock.toml."""
    return f"""
[server]
data = "{data}"
engine = "{backend.engine}"
sqs_port = 0
http_port = 0
nsq_tcp_port = 0
nsq_http_port = 0
stop_grace_s = 30
{more}
[cluster]
name = "{cluster}"
shards = {SHARDS}
node = "{node}"
link_port = 0
session_timeout_s = {session_s}
move_pause_s = 0.2
{backend.settings_text()}"""


def bare_settings(
    kafka: KafkaCluster,
    cluster: str,
    node: str,
    data: Path,
    shards: int,
    *,
    cluster_more: str = "",
    kafka_more: str = "",
) -> str:
    """A penstock.toml that says nothing about time, unless it is told to: for measurements with default settings."""
    return f"""
[server]
data = "{data}"
engine = "kafka"
sqs_port = 0
http_port = 0
nsq_tcp_port = 0
nsq_http_port = 0
[cluster]
name = "{cluster}"
shards = {shards}
node = "{node}"
link_port = 0
{cluster_more}
[kafka]
bootstrap = "{kafka.bootstrap}"
{kafka_more}
"""


def until(is_so: Callable[[], Any], what: str = "it", seconds_max: float = RETRY_TIMEOUT_S) -> Any:
    """Poll, with a generous deadline."""
    deadline = time.monotonic() + seconds_max
    while True:
        found = is_so()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come about in {seconds_max:g} s"
        time.sleep(0.05)


class ThreadNode:
    """A node in a thread, with its REST front end."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.cluster.node_name
        self.fatal: list[Exception] = []
        self.failure: PenstockError | None = None
        """With what it ended, if it could not go on."""
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started: Future[None] = Future()
        self.node: ClusterNode
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        try:
            self._started.result(RETRY_TIMEOUT_S * 2)
        except BaseException:
            self._thread.join(RETRY_TIMEOUT_S)
            raise

    def call(self, command: Command) -> Any:
        """Take a command through this node's router."""
        asked = asyncio.run_coroutine_threadsafe(self.node.services.shard.call(command), self._loop)
        return asked.result(RETRY_TIMEOUT_S)

    @property
    def own_shards(self) -> list[int]:
        """The shards that this node serves, as it sees the map."""
        return self.node.maps.current().own_shards

    def stop(self) -> None:
        """As on SIGTERM."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(RETRY_TIMEOUT_S)
            assert not self._thread.is_alive(), "the node does not stop"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            elif self.fatal and isinstance(error, PenstockError):
                self.failure = error
            else:
                raise
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        front_ends = [RestFrontEnd(0, __version__)]
        self.node = ClusterNode(self._settings, front_ends, __version__, on_fatal=self.fatal.append)
        async with self.node:
            self._started.set_result(None)
            await self._stopping.wait()


@contextlib.contextmanager
def thread_node(
    backend: Backend, cluster: str, name: str, directory: Path, *, session_s: float = 3.0, more: str = ""
) -> Iterator[ThreadNode]:
    """A node that is stopped when the block ends."""
    node = ThreadNode(parse(settings_text(backend, cluster, name, directory / name, session_s=session_s, more=more)))
    try:
        yield node
    finally:
        node.stop()


class ProcessNode:
    """`penstock serve` with an engine of clusters, as a process."""

    def __init__(self, backend: Backend, cluster: str, name: str, directory: Path, *, session_s: float) -> None:
        self._set_up(name, directory, settings_text(backend, cluster, name, directory / name, session_s=session_s))

    @classmethod
    def with_settings(cls, name: str, directory: Path, text: str) -> ProcessNode:
        """A node with a penstock.toml of the caller's own."""
        node = cls.__new__(cls)
        node._set_up(name, directory, text)
        return node

    def _set_up(self, name: str, directory: Path, text: str) -> None:
        self.name = name
        self._directory = directory
        self._config = directory / f"{name}.toml"
        self._config.write_text(text)
        self._ready = directory / f"{name}.ready"
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] | None = None
        """Of its process; None: this one's."""
        self.listening: dict[str, Any] = {}

    @property
    def served(self) -> list[int]:
        """The shards that it serves, as the cluster's records say."""
        seen = look(parse(self._config.read_text()))
        return [row["shard"] for row in seen.rows() if row["served_by"] == self.name]

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self._directory / f"{self.name}.log").read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start, and do not wait."""
        self._ready.unlink(missing_ok=True)
        with open(self._directory / f"{self.name}.log", "ab") as log:
            command = [sys.executable, "-m", "penstock", "serve", "--config", str(self._config)]
            command += ["--ready-file", str(self._ready)]
            self._process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until it serves."""
        until(lambda: self._ready.exists() or not self.is_running, "a start", START_S_MAX)
        assert self._ready.exists(), self.log
        self.listening = msgspec.json.decode(self._ready.read_bytes())["listening"]

    @property
    def sqs_url(self) -> str:
        return str(self.listening["sqs"]["url"])

    @property
    def memory_mb(self) -> float:
        """What its process has in memory."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1_000 for line in lines if line.startswith("VmRSS:"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(RETRY_TIMEOUT_S) == 0, self.log

    def kill(self) -> None:
        """SIGKILL, whatever state it is in. Once more does nothing."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(RETRY_TIMEOUT_S)
