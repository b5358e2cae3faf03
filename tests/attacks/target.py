"""A real server under attack: how much memory it has, and how long `/healthz` takes, both seen from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import penstock

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1024 * 1024
TOKEN = "a-token-of-the-tests"
ACCESS_KEY, SECRET_KEY = "AKTESTS", "a-secret-of-the-tests"
QUEUE, QUEUE_BYTES, BODY_BYTES = "large", 30 * MIB, 256 * 1024
START_SECONDS_MAX = 60
HEALTH_SECONDS_MAX = 60
BUDGET_BYTES = 64 * MIB
SETTINGS = f"""
[server]
sqs_port = 0
http_port = 0
nsq_tcp_port = 0
nsq_http_port = 0
buffer_bytes_max = {BUDGET_BYTES}

[http]
body_timeout_s = 20

[[credentials]]
access_key = "{ACCESS_KEY}"
secret_key = "{SECRET_KEY}"
token = "{TOKEN}"

[log]
requests = "none"
"""


class Ports(msgspec.Struct):
    """Where a server listens."""

    sqs: int
    http: int
    nsq: int
    nsq_http: int


class Target:
    """A `penstock serve` of its own, with credentials."""

    def __init__(self, directory: Path, settings: str = SETTINGS) -> None:
        ready, toml = directory / "ready.json", directory / "penstock.toml"
        toml.write_text(settings)
        self._log = (directory / "log").open("wb")
        command = [sys.executable, "-m", "penstock", "serve", "--config", str(toml)]
        command += ["--data", str(directory / "data"), "--ready-file", str(ready)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log)
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the server did not start: {(directory / 'log').read_text()}")
            time.sleep(0.02)
        listening = json.loads(ready.read_text())["listening"]
        self.ports = Ports(**{name.replace("-", "_"): each["port"] for name, each in listening.items()})

    @property
    def is_running(self) -> bool:
        """Whether the server has survived so far."""
        return self._process.poll() is None

    def memory_bytes(self) -> int:
        """What is resident now."""
        return self._status("VmRSS")

    def peak_bytes(self) -> int:
        """The most that was resident since the last `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """The peak is what is resident now."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

    def health_seconds(self) -> float:
        """How long `/healthz` takes, over a connection of its own."""
        started_s = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.ports.http), HEALTH_SECONDS_MAX) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"/healthz answered {answer[:200]!r}")
        return time.monotonic() - started_s

    def fill(self) -> None:
        """Send the messages that attackers with a token will ask for, and not read."""
        with penstock.connect(f"penstock://127.0.0.1:{self.ports.http}", token=TOKEN) as client:
            queue = client.queue(QUEUE)
            for _ in range(QUEUE_BYTES // BODY_BYTES // 10):
                queue.send_many([os.urandom(BODY_BYTES)] * 10)

    def stop(self) -> None:
        """End the server, in order if it can."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Watch:
    """Asks for `/healthz` over and over, in a thread, and remembers how long each took."""

    def __init__(self, target: Target, pause_s: float = 0.02) -> None:
        self._target = target
        self._pause_s = pause_s
        self._is_over = threading.Event()
        self.seconds: list[float] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(self._pause_s):
                self.seconds.append(self._target.health_seconds())
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """The last question has been answered."""
        self._is_over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def percentile(self, share: float) -> float:
        """How long it took at most, in this share of the cases."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, round(share * len(ordered)))]


@contextmanager
def target(directory: Path, settings: str = SETTINGS) -> Iterator[Target]:
    """A server, for as long as it is needed."""
    made = Target(directory, settings)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def attack(name: str, aimed_at: Target, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """An attack, run by a process of its own."""
    ports = msgspec.json.encode(aimed_at.ports).decode()
    command = [sys.executable, "-m", "tests.attacks.attacks", name, ports, str(seconds)]
    attacker = subprocess.Popen(command, cwd=ROOT)
    try:
        yield attacker
    finally:
        if attacker.poll() is None:
            attacker.kill()
        attacker.wait()
