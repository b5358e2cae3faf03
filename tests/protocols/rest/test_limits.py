"""Limits of REST's connections: sizes, times, counts. Whoever is refused hears why."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from penstock.core.commands import Send
from tests.protocols.rest.asking import done, refused
from tests.protocols.rest.serving import PATIENCE_S, Server, eventually

HEAD = b"POST /v1/queues HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def talk(server: Server, *parts: bytes) -> bytes:
    """Send, then read until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        for part in parts:
            connection.sendall(part)
        answer = b""
        try:
            while part := connection.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


def test_a_body_that_is_too_large_is_refused(serve: Callable[..., Server]) -> None:
    server = serve("[http]\nbody_bytes_max = 1000")
    with server.client() as http:
        announced = http.post("/v1/queues", content=b"x" * 1_001, headers={"content-type": "application/json"})
        assert "1000 bytes" in refused(announced, 413, "body_too_large")
        done(http.post("/v1/queues", json={"name": "a"}), 201)
    chunked = b"transfer-encoding: chunked\r\n\r\n" + (b"1f4\r\n" + b"x" * 500 + b"\r\n") * 3 + b"0\r\n\r\n"
    assert talk(server, HEAD + chunked).startswith(b"HTTP/1.1 413 ")


def test_a_header_that_is_too_large_is_refused(serve: Callable[..., Server]) -> None:
    server = serve("[http]\nheader_bytes_max = 2000")
    answer = talk(server, HEAD + b"x: " + b"y" * 3_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"header_too_large"' in answer
    assert talk(server, b"GET /" + b"y" * 3_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"x%d: y\r\n" % number for number in range(500))
    assert talk(server, HEAD + many + b"\r\n").startswith(b"HTTP/1.1 431 ")
    with server.client() as http:
        done(http.get("/v1/queues"))


def test_a_length_of_thousands_of_digits_is_a_problem_of_the_client(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        connection.sendall(HEAD + b"content-length: " + b"0" * 5_000 + b"2\r\n\r\n{}")
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        HEAD + b"x: ",
        HEAD + b"y",
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ",
    ],
)
def test_a_header_without_end_is_refused_long_before_its_time_is_up(server: Server, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(start)
        for _ in range(4):
            time.sleep(0.02)
            connection.sendall(b"y" * 12_000)
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"header_too_large"' in answer


def test_slow_headers_and_bodies_are_not_waited_for(serve: Callable[..., Server]) -> None:
    server = serve("[http]\nheader_timeout_s = 0.2\nbody_timeout_s = 0.2\nidle_timeout_s = 1")
    assert talk(server, HEAD).startswith(b"HTTP/1.1 408 ")
    assert talk(server, HEAD + b"content-length: 10\r\n\r\n{").startswith(b"HTTP/1.1 408 ")
    assert talk(server) == b""


GUARDED = '[[credentials]]\nname = "root"\naccess_key = "A"\nsecret_key = "s"\ntoken = "t"\n'


def problem(connection: socket.socket) -> bytes:
    """One answer, whole."""
    answer = b""
    while not answer.endswith(b"}") and (part := connection.recv(65_536)):
        answer += part
    return answer


def test_who_is_refused_before_its_body_came_hears_why_and_the_connection_ends(serve: Callable[..., Server]) -> None:
    server = serve(GUARDED)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        connection.sendall(HEAD + b"content-length: 2\r\n\r\n")
        answer = problem(connection)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close\r\n" in answer
        connection.sendall(b"{}")
        assert connection.recv(65_536) == b""


def test_a_client_that_does_not_read_is_not_waited_for(serve: Callable[..., Server]) -> None:
    server = serve("[http]\nbody_timeout_s = 0.3")
    server.call(Send(queue="q", bodies=[b"x" * 1_000_000] * 20))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE_S)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(b"GET /v1/queues/q/records HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        eventually(lambda: connections(server) == 0)


def connections(server: Server) -> int:
    front = server.node._started[0]
    return int(front._server.connections_open)  # type: ignore[attr-defined]


def test_more_connections_than_there_may_be_are_refused(serve: Callable[..., Server]) -> None:
    server = serve("[http]\nconnections_max = 3")
    held = [socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) for _ in range(3)]
    assert talk(server).startswith(b"HTTP/1.1 503 ")
    held.pop().close()
    with server.client() as http:

        def is_let_in() -> bool:
            try:
                return http.get("/healthz").status_code == 200
            except httpx.HTTPError:
                return False

        eventually(is_let_in)
    for each in held:
        each.close()


def test_what_is_no_http_is_refused(server: Server) -> None:
    for rubbish in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET \xff\xfe HTTP/1.1\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        answer = talk(server, rubbish)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code":"malformed_request"' in answer


def test_a_store_that_takes_nothing_is_told_to_the_caller(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as http:
        done(http.post("/v1/queues", json={"name": "q"}), 201)
        server.do(lambda: asyncio.ensure_future(server.node.services.shard.close()))
        eventually(lambda: http.get("/healthz").status_code == 503)
        response = http.post("/v1/queues/q/messages", json={"body": "a"})
        refused(response, 503, "shard_closed")
        assert response.headers["retry-after"] == "1"


def test_a_server_that_stops_takes_nothing_new(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as http:
        done(http.post("/v1/queues", json={"name": "q"}), 201)
        server.node.services.is_stopping = True
        refused(http.get("/v1/queues"), 503, "stopping")
        server.node.services.is_stopping = False


def test_sessions_are_counted(serve: Callable[..., Server]) -> None:
    server = serve("[rest]\nsessions_max = 2")
    with server.client() as http:
        for _ in range(2):
            done(http.post("/v1/sessions", json={}), 201)
        refused(http.post("/v1/sessions", json={}), 429, "over_limit")
