"""Waiting for messages over REST: whoever waits gets them at once, and whoever leaves takes none with it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.protocols.rest.asking import bodies, done, receive, send
from tests.protocols.rest.serving import PATIENCE_S, Server, eventually


def begin_poll(server: Server, queue: str, wait: float = 60) -> socket.socket:
    """A long poll by hand, on a connection of its own."""
    body = json.dumps({"max": 10, "wait": wait}).encode()
    head = f"POST /v1/queues/{queue}/receive HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_a_poll_is_answered_as_soon_as_there_is_a_message(server: Server, http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    with ThreadPoolExecutor(1) as pool, server.client() as other:
        waiting = pool.submit(receive, other, name, 1, wait=60)
        eventually(lambda: server.waiting(name) == 1)
        sent_s = time.monotonic()
        send(http, name, "here")
        assert bodies(waiting.result(PATIENCE_S)) == ["here"]
        assert time.monotonic() - sent_s < 10


def test_a_poll_that_gets_nothing_ends_with_nothing(server: Server, http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    with ThreadPoolExecutor(1) as pool, server.client() as other:
        waiting = pool.submit(receive, other, name, 1, wait=60)
        eventually(lambda: server.waiting(name) == 1)
        server.advance(60)
        assert waiting.result(PATIENCE_S) == []


def test_the_queue_says_how_long_a_receive_waits(server: Server, http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name, "settings": {"receive_wait": 20}}), 201)
    with ThreadPoolExecutor(1) as pool, server.client() as other:
        waiting = pool.submit(receive, other, name, 1)
        eventually(lambda: server.waiting(name) == 1)
        assert receive(http, name, wait=0) == []
        send(http, name, "a")
        assert bodies(waiting.result(PATIENCE_S)) == ["a"]


def test_an_abandoned_poll_takes_no_message_with_it(server: Server, http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    for _ in range(5):
        begin_poll(server, name).close()
    with begin_poll(server, name):
        eventually(lambda: server.waiting(name) == 1)
    eventually(lambda: server.waiting(name) == 0)
    send(http, name, "a")
    (message,) = receive(http, name)
    assert (message["body"], message["attempt"]) == ("a", 1)


def test_a_client_that_leaves_as_its_message_comes_takes_none_with_it(
    server: Server, http: httpx.Client, name: str
) -> None:
    """The hanging up and the send race. What did not leave in time is here, as if never handed out."""
    at = f"/v1/queues/{name}"
    done(http.post("/v1/queues", json={"name": name, "settings": {"lease": 43_200}}), 201)
    here = 0
    for number in range(30):
        connection = begin_poll(server, name)
        eventually(lambda: server.waiting(name) == 1)
        leaving = threading.Thread(target=connection.close)
        leaving.start()
        send(http, name, str(number))
        leaving.join()
        eventually(lambda: server.waiting(name) == 0)
        found = receive(http, name)
        counts = done(http.get(f"{at}/channels/main"))
        assert counts["leased"] + counts["ready"] == 1  # here, or sent to the client before it left: never lost
        assert [message["attempt"] for message in found] in ([], [1])
        here += len(found)
        done(http.post(f"{at}/purge"))
    assert here


def test_a_delivery_to_a_client_that_is_gone_is_given_back(server: Server, http: httpx.Client, name: str) -> None:
    """The message comes in the same turn of the loop in which the connection ends."""
    done(http.post("/v1/queues", json={"name": name, "settings": {"lease": 43_200}}), 201)
    connection = begin_poll(server, name)
    eventually(lambda: server.waiting(name) == 1)

    def end_and_send() -> None:
        from penstock.core.commands import Send

        app = server.node.services.shard
        for each in list(_transports(server)):
            each.close()  # type: ignore[attr-defined]
        app.submit(Send(queue=name, bodies=[b"a"]), lambda _: None)

    server.do(end_and_send)
    connection.close()
    eventually(lambda: done(http.get(f"/v1/queues/{name}/channels/main"))["ready"] == 1)
    (message,) = receive(http, name)
    assert message["attempt"] == 1


def _transports(server: Server) -> list[object]:
    front = server.node._started[0]
    return [
        connection._transport
        for connection in front._server._connections  # type: ignore[attr-defined]
        if connection._in_flight is not None
    ]


def test_a_deleted_queue_ends_its_polls(server: Server, http: httpx.Client, name: str) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    with ThreadPoolExecutor(1) as pool, server.client() as other:
        waiting = pool.submit(other.post, f"/v1/queues/{name}/receive", json={"wait": 60})
        eventually(lambda: server.waiting(name) == 1)
        http.delete(f"/v1/queues/{name}")
        response = waiting.result(PATIENCE_S)
    assert (response.status_code, response.json()["code"]) == (404, "queue_not_found")


def test_a_stop_answers_those_who_wait(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as http:
        done(http.post("/v1/queues", json={"name": "q"}), 201)
    connection = begin_poll(server, "q")
    eventually(lambda: server.waiting("q") == 1)
    server.stop()
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    connection.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"messages":[]' in answer


@pytest.mark.parametrize("rounds", [30])
def test_pipelined_requests_are_answered_in_order(server: Server, http: httpx.Client, name: str, rounds: int) -> None:
    done(http.post("/v1/queues", json={"name": name}), 201)
    one = f"GET /v1/queues/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        connection.sendall(one * rounds)
        answer = b""
        while answer.count(b"HTTP/1.1 200 ") < rounds:
            part = connection.recv(65_536)
            assert part
            answer += part
