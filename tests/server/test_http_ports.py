"""Every HTTP port speaks the same HTTP: what one of them makes of an odd request, all do."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served, read_answer, served

GUARDED = '[[credentials]]\nname = "root"\naccess_key = "AK"\nsecret_key = "secret"\ntoken = "token"\n'
CALLS = {"sqs": "/?Action=CreateQueue&QueueName=q1", "http": "/v1/queues", "nsq-http": "/stats?format=json"}
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("open")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("guarded"), GUARDED) as server:
        yield server


def heard(connection: socket.socket, seconds: float = 5.0) -> bytes:
    """What comes until the server closes, or is silent."""
    connection.settimeout(seconds)
    came = b""
    try:
        while piece := connection.recv(65_536):
            came += piece
            connection.settimeout(0.5)
    except TimeoutError:
        pass
    return came


@pytest.mark.parametrize(
    ("front_end", "path", "body"),
    [
        ("http", "/v1/queues", '{"name": "offered"}'),
        ("sqs", "/", "Action=CreateQueue&QueueName=offered2"),
        ("nsq-http", "/pub?topic=offered3", "x"),
    ],
)
def test_an_offer_of_another_protocol_loses_no_body(server: Served, front_end: str, path: str, body: str) -> None:
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    kind = "application/json" if front_end == "http" else "application/x-www-form-urlencoded"
    asked = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{offer}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    status, said = server.talk(front_end, f"{asked}\r\n{body}")
    assert status in (200, 201), said


def test_a_websocket_that_is_asked_for_behind_another_request_does_not_overtake_it(server: Served) -> None:
    server.talk("http", 'POST /v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n{"name": "poll"}')
    body = '{"wait": 0.5}'
    poll = f"POST /v1/queues/poll/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with server.connect("http") as connection:
        connection.sendall(f"{poll}GET /v1/ws HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n".encode())
        came = heard(connection)
    first, second = came.index(b"HTTP/1.1 200 OK"), came.index(b"HTTP/1.1 101 ")
    assert first < second


@pytest.mark.parametrize("path", ["/v1/commands", "/v1/queues", "/v1/bulk/send"])
def test_a_length_of_thousands_of_digits_is_refused_at_once(server: Served, path: str) -> None:
    started_s = time.monotonic()
    with server.connect("http") as connection:
        length = "0" * 5_000 + "2"
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{{}}".encode())
        came = heard(connection)
    assert came.startswith(b"HTTP/1.1 413 ")
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("path", ["/healthz", "/version", "/v1/docs", "/metrics", "/v1/problems/unauthorized"])
def test_a_method_that_a_page_does_not_have_is_a_problem_as_everywhere(server: Served, path: str) -> None:
    status, body = server.talk("http", f"OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, json.loads(body)["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize("front_end", CALLS)
@pytest.mark.parametrize("host", ["localhost\t", "\t localhost \t", "LOCALHOST:1 "])
def test_blanks_around_a_host_do_not_count(server: Served, front_end: str, host: str) -> None:
    assert server.talk(front_end, f"GET {CALLS[front_end]} HTTP/1.1\r\nHost:{host}\r\n\r\n")[0] == 200


EXPECTING = "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/bulk/send", "/v1/bulk/staging/token/piece"])
def test_who_may_not_call_is_not_told_to_go_on(guarded: Served, path: str) -> None:
    verb = "PUT" if "staging" in path else "POST"
    with guarded.connect("http") as connection:
        connection.sendall(f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\n{EXPECTING}".encode())
        assert heard(connection).startswith(b"HTTP/1.1 401 ")


def test_a_page_that_may_not_call_is_not_told_to_go_on(server: Served) -> None:
    for front_end, path in {"http": "/v1/queues", "sqs": "/", "nsq-http": "/pub?topic=t"}.items():
        with server.connect(front_end) as connection:
            origin = "Origin: https://evil.example\r\n"
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{origin}{EXPECTING}".encode())
            assert heard(connection).startswith(b"HTTP/1.1 403 "), front_end


def test_who_may_call_is_told_to_go_on(guarded: Served) -> None:
    with guarded.connect("http") as connection:
        token = "Authorization: Bearer token\r\n"
        body = b'{"name": "told"}'
        asked = f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(f"POST /v1/queues HTTP/1.1\r\nHost: localhost\r\n{token}{asked}".encode())
        connection.settimeout(5)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_answer(connection)[0] == 201


def test_a_path_with_a_slash_at_its_end_leads_to_the_one_without(server: Served) -> None:
    with server.connect("http") as connection:
        connection.sendall(b"GET /v1/queues/?limit=3 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        came = heard(connection, 1)
    assert came.startswith(b"HTTP/1.1 307 ")
    assert b"location: /v1/queues?limit=3\r\n" in came


def test_a_page_is_shown_to_who_asks_for_its_head_alone(server: Served) -> None:
    with server.connect("http") as connection:
        connection.sendall(b"HEAD /version HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        came = heard(connection, 1)
    assert came.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert came.endswith(b"\r\n\r\n")


def test_a_stop_tells_websockets_that_it_is_one(tmp_path: Path) -> None:
    with served(tmp_path) as server, server.connect("http") as connection:
        connection.sendall(f"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n".encode())
        assert connection.recv(4_096).startswith(b"HTTP/1.1 101 ")
        server.process.terminate()
        assert heard(connection) == b"\x88\x02" + (1012).to_bytes(2, "big")
        assert server.process.wait(20) == 0
