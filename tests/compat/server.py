"""`penstock serve` as users run it: a process of its own, a real directory, real ports; and clients for it."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock.core.queues.partition import partition_of
from penstock.store.layout import CLUSTER_NAME
from penstock.store.sharded import ENTROPY_BYTES, FORMAT, SECRET_BYTES, ClusterFile, write_cluster_file
from tests.package import PACKAGE

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-east-1"
ACCOUNT = "000000000000"
PATIENCE_S = 60.0


def divide(data: Path, shards: int) -> ClusterFile:
    """Make a directory with several shards, as `penstock serve --workers` of earlier builds did."""
    data.mkdir(parents=True, exist_ok=True)
    made = ClusterFile(FORMAT, shards, os.urandom(ENTROPY_BYTES), os.urandom(SECRET_BYTES))
    write_cluster_file(data / CLUSTER_NAME, made)
    return made


def name_in(shard: int, stem: str, shards: int = 2) -> str:
    """A queue name that belongs to a shard."""
    return next(name for number in range(100) if partition_of(name := f"{stem}-{number}", shards) == shard)


class Server:
    """One directory, and a process that serves it. It may be killed and started again, on the same ports."""

    def __init__(self, directory: Path, *flags: str, shards: int = 0) -> None:
        self.directory = directory
        self.data = directory / "data"
        if shards:
            divide(self.data, shards)
        self.log_path = directory / "log"
        self._flags = flags
        self._ports = {"sqs": 0, "http": 0}
        self.process: subprocess.Popen[bytes]

    def start(self) -> Server:
        """Start, and wait until it is ready."""
        self.begin()
        self.wait_until_ready()
        return self

    def begin(self) -> None:
        """Start without waiting."""
        ready_file = self.directory / "ready.json"
        ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(self.data), "--ready-file", str(ready_file)]
        for name, port in self._ports.items():
            command += [f"--{name}-port", str(port)]
        command += ["--nsq-tcp-port", "0", "--nsq-http-port", "0"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self._flags], stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(PACKAGE)}
            )

    def wait_until_ready(self) -> None:
        ready_file = self.directory / "ready.json"
        until(lambda: ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log_path.read_text()
        listening = json.loads(ready_file.read_text())["listening"]
        self._ports = {name: listening[name]["port"] for name in self._ports}

    def kill(self) -> None:
        """As a power failure would; without effect on one that has ended."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    @property
    def port(self) -> int:
        return self._ports["sqs"]

    @property
    def http_port(self) -> int:
        return self._ports["http"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def queue_url(self, name: str) -> str:
        return f"{self.url}/{ACCOUNT}/{name}"

    def client(self, **options: Any) -> Any:
        """boto3, as anybody would use it, but for the retries, which would hide things."""
        return boto3.client(
            "sqs",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(**{"retries": {"max_attempts": 0}, **options}),
        )

    def is_healthy(self) -> bool:
        return self._http("/healthz")[0] == 200

    def metric(self, line: str) -> float:
        """The value of a metric with these labels; 0 if it is not there."""
        for found in self._http("/metrics")[1].decode().splitlines():
            if found.startswith(line + " "):
                return float(found.rpartition(" ")[2])
        return 0.0

    def waiting(self, queue: str) -> int:
        """How many long polls wait for messages of a queue."""
        return int(self.metric(f'penstock_channel_waiting_receivers{{channel="main",queue="{queue}"}}'))

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def failures_logged(self) -> list[str]:
        """What the log has of things that must not happen."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        found = [number for number, line in enumerate(lines) if "Traceback" in line or "InternalFailure" in line]
        return ["\n".join(lines[max(0, number - 2) : number + 40]) for number in found]

    def _http(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports["http"], timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def serving(directory: Path, *flags: str, shards: int = 0) -> Iterator[Server]:
    """A server that has ended when the block has; its log must be clean."""
    server = Server(directory, *flags, shards=shards)
    try:
        yield server.start()
    finally:
        server.kill()
    assert server.failures_logged() == []


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def allow_many_sockets() -> None:
    """As many open files as the system lets us have; children inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
