"""A server that stood still reads what has come meanwhile before it gives anybody up."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.protocols.lookup.serving import FakeNode, ask

PATIENCE_S = 60.0
TTL_S = 3
STILL_S = 5.0
JSON = {"Content-Type": "application/json"}


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A command of Penstock as a process, and where it listens."""
    ready = directory / "ready"
    command = [sys.executable, "-m", "penstock", *arguments, "--ready-file", str(ready)]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < deadline_s, (directory / "log").read_text()
            time.sleep(0.02)
        yield process, json.loads(ready.read_text())["listening"]
    finally:
        process.kill()
        process.wait()


@contextmanager
def standing_still(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def config(directory: Path, text: str) -> str:
    path = directory / "penstock.toml"
    path.write_text(text)
    return str(path)


def test_a_session_that_went_on_beating_survives_a_server_that_stood_still(tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    with started(tmp_path, "serve", "--data", str(tmp_path / "data"), *ports) as (process, listening):
        port = int(listening["http"]["port"])
        assert ask(port, "POST", "/v1/queues", b'{"name": "orders"}', JSON)[0] < 300
        status, found = ask(port, "POST", "/v1/sessions", json.dumps({"name": "w", "ttl": TTL_S}).encode(), JSON)
        assert status < 300, found
        session = found["session"]
        ask(port, "POST", "/v1/queues/orders/messages", b'{"body": "one"}', JSON)
        taken = {"session": session, "max": 1, "lease": 600}
        status, answer = ask(port, "POST", "/v1/queues/orders/receive", json.dumps(taken).encode(), JSON)
        assert status == 200 and answer["messages"], answer
        with standing_still(process), socket.create_connection(("127.0.0.1", port)) as beating:
            time.sleep(STILL_S)
            path = f"/v1/sessions/{session}/heartbeat"
            beating.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\n\r\n".encode())
            process.send_signal(signal.SIGCONT)
            assert beating.recv(4096).split()[1].startswith(b"2"), "the session was over"
        sessions = ask(port, "GET", "/v1/sessions")[1]["sessions"]
        assert [each["held"] for each in sessions if not each["is_connection"]] == [1]


def test_a_websocket_survives_a_server_that_stood_still(tmp_path: Path) -> None:
    text = f"""
[server]
data = "{tmp_path / "data"}"
sqs_port = 0
http_port = 0
nsq_tcp_port = 0
nsq_http_port = 0
[websocket]
heartbeat_s = 1
"""
    with (
        started(tmp_path, "serve", "--config", config(tmp_path, text)) as (process, listening),
        penstock.connect(f"penstock://127.0.0.1:{listening['http']['port']}", heartbeat=60) as ps,
    ):
        queue = ps.create_queue("orders")
        queue.send("one")
        message = queue.receive()
        assert message is not None
        time.sleep(0.5)
        with standing_still(process):
            time.sleep(STILL_S)
        time.sleep(0.5)
        assert queue.stats().channels["main"].leased == 1, "the connection was ended, and what it held went back"
        message.ack()


@pytest.mark.parametrize("times", [2])
def test_the_lookup_service_keeps_nodes_that_went_on_beating_while_it_stood_still(tmp_path: Path, times: int) -> None:
    text = f"[lookup]\ntcp_port = 0\nhttp_port = 0\ninactive_producer_timeout_s = {TTL_S}\n"
    with started(tmp_path, "lookup", "--config", config(tmp_path, text)) as (process, listening):
        tcp, http = int(listening["lookup"]["port"]), int(listening["lookup-http"]["port"])
        with FakeNode(tcp) as node:
            node.identify("node1")
            assert node.command("REGISTER orders") == b"OK"
            for _ in range(times):
                with standing_still(process):
                    time.sleep(STILL_S)
                    node.send(b"PING\n")
                time.sleep(0.3)
                status, found = ask(http, "GET", "/lookup?topic=orders")
                assert status == 200 and len(found["producers"]) == 1, "the node was given up"
                time.sleep(1.0)
                assert len(ask(http, "GET", "/lookup?topic=orders")[1]["producers"]) == 1
