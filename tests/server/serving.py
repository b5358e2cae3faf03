"""`penstock serve` as a process of its own, with every front end on a free port, and raw sockets to them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.package import PACKAGE

PATIENCE_S = 60.0
PORTS = ("sqs", "http", "nsq", "nsq-http")
NO_PORTS = ("--sqs-port", "0", "--http-port", "0", "--nsq-tcp-port", "0", "--nsq-http-port", "0")


class Served:
    """A process that serves."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process
        self.ports: dict[str, int] = {}

    def wait_until_ready(self) -> None:
        ready = self.directory / "ready.json"
        until(lambda: ready.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log
        self.ports = {name: where["port"] for name, where in json.loads(ready.read_text())["listening"].items()}

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def connect(self, front_end: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[front_end]), PATIENCE_S)

    def talk(self, front_end: str, request: str) -> tuple[int, str]:
        """Send one request as it is, over a connection of its own: the status and the body of the answer."""
        with self.connect(front_end) as connection:
            connection.sendall(request.encode("latin-1"))
            return read_answer(connection)


def read_answer(connection: socket.socket) -> tuple[int, str]:
    """The status and the body of an answer, up to the length that it announces."""
    came = b""
    while b"\r\n\r\n" not in came:
        piece = connection.recv(65_536)
        assert piece, f"no answer, only {came!r}"
        came += piece
    head, _, body = came.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += connection.recv(65_536)
    return int(head.split()[1]), body.decode()


@contextmanager
def served(
    directory: Path, config: str = "", *flags: str, before: Sequence[str] = (), command: str = "serve"
) -> Iterator[Served]:
    """A server in a new process; `before` is put before its command, as in `prlimit --nofile=150`."""
    (directory / "penstock.toml").write_text(config)
    asked = ["--config", str(directory / "penstock.toml"), "--ready-file", str(directory / "ready.json")]
    if command == "serve":
        asked += ["--data", str(directory / "data"), *NO_PORTS]
    asked += flags
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "penstock", command, *asked],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        )
    server = Served(directory, process)
    try:
        server.wait_until_ready()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def until(claim: Callable[[], object]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


def tls_config(directory: Path) -> str:
    """Settings with a new certificate."""
    made = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "certificate.pem")]
    asked = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*asked, *made], check=True, stderr=subprocess.DEVNULL)
    return f'[server]\ntls_certificate = "{directory}/certificate.pem"\ntls_key = "{directory}/key.pem"\n'
