"""Connections that nobody uses do not take what the store needs to work."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.package import PACKAGE
from tests.server.serving import PORTS, Served, read_answer, served, tls_config

LIMIT = 150
IDLE = 300
TALK = {"sqs": "/?Action=ListQueues", "http": "/healthz", "nsq-http": "/ping"}


def limited(limit: int = LIMIT) -> tuple[str, ...]:
    program = shutil.which("prlimit")
    if program is None:
        pytest.skip("prlimit is not installed: limits of open files are NOT tested")
    return (program, f"--nofile={limit}:{limit}")


def send(connection: socket.socket, number: int) -> int:
    """Send to a queue of its own, by SQS, which is created for it."""
    for action, fields in (
        ("CreateQueue", {"QueueName": f"q{number}"}),
        ("SendMessage", {"MessageBody": "x" * 50_000}),
    ):
        body = json.dumps({"QueueUrl": f"http://localhost/000000000000/q{number}", **fields})
        connection.sendall(
            f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        status, said = read_answer(connection)
        assert status == 200, said
    return status


def crowd(server: Served, stack: ExitStack, ports: tuple[str, ...] = PORTS) -> list[tuple[str, socket.socket]]:
    """Many clients that connect and say nothing. Some are not let in: the kernel has them wait, or they are closed."""
    there = []
    for number in range(IDLE):
        front_end = ports[number % len(ports)]
        connection = stack.enter_context(socket.socket())
        connection.settimeout(0.05)
        try:
            connection.connect(("127.0.0.1", server.ports[front_end]))
        except OSError:
            continue
        there.append((front_end, connection))
    return there


@pytest.mark.parametrize("ports", [PORTS, ("sqs",), ("http",), ("nsq",)], ids=lambda ports: "+".join(ports))
def test_a_server_works_on_while_idle_connections_have_all_that_connections_may_have(
    tmp_path: Path, ports: tuple[str, ...]
) -> None:
    with served(tmp_path, before=limited()) as server, ExitStack() as stack:
        mine = stack.enter_context(server.connect("sqs"))
        send(mine, 0)
        idle = crowd(server, stack, ports)
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < LIMIT - 20, "the store has some left"
        for number in range(1, 60):
            send(mine, number)
        heard = 0
        for front_end, connection in idle[:20]:
            if front_end in TALK:
                connection.settimeout(10)
                connection.sendall(f"GET {TALK[front_end]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert read_answer(connection)[0] == 200
                heard += 1
        assert heard or ports == ("nsq",), "those who were let in are served"
        assert " error " not in server.log
        assert "file descriptors are in use: connections are refused; raise ulimit -n" in server.log
    assert "Traceback" not in server.log


def test_those_who_are_refused_hear_why_and_later_ones_get_in(tmp_path: Path) -> None:
    with served(tmp_path, before=limited()) as server:
        with ExitStack() as stack:
            refused = []
            for front_end, connection in crowd(server, stack, ("sqs", "http")):
                connection.settimeout(0.05)
                try:
                    refused.append((front_end, connection.recv(10_000).decode()))
                except OSError:
                    continue
            told = [said for _, said in refused if said]
            assert any("raise its limit of open files (ulimit -n)" in said for said in told)
            assert all(said.startswith("HTTP/1.1 503 ") for said in told)
        until_s = time.monotonic() + 10  # it has to notice first that they are gone
        for front_end in TALK:
            request = f"GET {TALK[front_end]} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            while (status := server.talk(front_end, request)[0]) == 503 and time.monotonic() < until_s:
                time.sleep(0.05)
            assert status == 200


def test_a_limit_that_leaves_nothing_for_clients_keeps_a_server_from_starting(tmp_path: Path) -> None:
    command = [*limited(100), sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path / "data")]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    said = "penstock: the limit of open files is 100: a server needs 128 at least, raise ulimit -n\n"
    assert (run.returncode, run.stderr) == (2, said)


@pytest.mark.parametrize("ports", [("sqs",), ("http",), ("nsq-http",)], ids=lambda ports: ports[0])
def test_connections_that_never_begin_their_tls_handshake_leave_descriptors_too(
    tmp_path: Path, ports: tuple[str, ...]
) -> None:
    with served(tmp_path, tls_config(tmp_path), before=limited()) as server, ExitStack() as stack:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        mine = stack.enter_context(context.wrap_socket(server.connect("sqs")))
        send(mine, 0)
        crowd(server, stack, ports)
        assert len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) < LIMIT - 20, "the store has some left"
        for number in range(1, 40):
            send(mine, number)
    assert " error " not in server.log
    assert "Traceback" not in server.log
