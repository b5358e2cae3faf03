"""The servers that bench/sqs.py compares, each a process of its own on loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench import elasticmq
from bench.sqs_load import Address, Server

HOST = "127.0.0.1"
_ROOT = Path(__file__).resolve().parent.parent
_START_S_MAX = 60
_STOP_S_MAX = 30

PENSTOCK = "Penstock"
ELASTICMQ = "ElasticMQ"
MOTO = "moto"
EMPTY = "empty handler"


@contextmanager
def penstock_server(directory: Path, *flags: str) -> Iterator[Server]:
    """Penstock, as `penstock serve` starts it: every acknowledgement after its `fdatasync`."""
    ready_file = directory / "ready.json"
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory / "data"), *ports, *flags]
    with process([*command, "--ready-file", str(ready_file)], directory, ready_file.exists) as pid:
        yield Server(Address(HOST, json.loads(ready_file.read_text())["listening"]["sqs"]["port"]), pid)


@contextmanager
def elasticmq_server(directory: Path) -> Iterator[Server]:
    """ElasticMQ, in memory."""
    address = Address(HOST, free_port())
    with process(elasticmq.command(*address), directory, lambda: answers(address)) as pid:
        yield Server(address, pid)


@contextmanager
def moto_server(directory: Path) -> Iterator[Server]:
    """Moto's stand-alone server, in memory."""
    address = Address(HOST, free_port())
    command = [sys.executable, "-m", "moto.server", "-H", address.host, "-p", str(address.port)]
    with process(command, directory, lambda: answers(address)) as pid:
        yield Server(address, pid)


@contextmanager
def empty_server(directory: Path) -> Iterator[Server]:
    """Penstock's HTTP front end, with nothing behind it."""
    port_file = directory / "port"
    with process([sys.executable, "-m", "bench.empty_handler", str(port_file)], directory, port_file.exists) as pid:
        yield Server(Address(HOST, int(port_file.read_text())), pid)


@contextmanager
def process(command: Sequence[str], directory: Path, is_ready: Callable[[], bool]) -> Iterator[int]:
    """A server's process id; it runs until the block's end. What it prints goes to a file."""
    printed = directory / "printed"
    with printed.open("wb") as output:
        child = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_for(is_ready, child, printed)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for(is_ready: Callable[[], bool], child: subprocess.Popen[bytes], printed: Path) -> None:
    """Wait until a server is there, or raise with what it printed last."""
    deadline_s = time.monotonic() + _START_S_MAX
    while not is_ready():
        if child.poll() is not None or time.monotonic() > deadline_s:
            last = printed.read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{child.args!r} does not serve; it printed: {last}")
        time.sleep(0.05)


def answers(address: Address) -> bool:
    """Whether a server answers a call of SQS."""
    try:
        ask(address, "ListQueues", {})
    except OSError:
        return False
    return True


def ask(address: Address, action: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The result of one call."""
    headers = {
        "X-Amz-Target": f"AmazonSQS.{action}",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request",
    }
    connection = HTTPConnection(*address, timeout=_START_S_MAX)
    try:
        connection.request("POST", "/", json.dumps(parameters), headers)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{action} got {response.status}: {body[:2_000]!r}")
    return dict(json.loads(body)) if body else {}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
