"""A request that comes again with its Idempotency-Key is not done again."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import msgspec

from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server

KEY = {"idempotency-key": "k1"}
BATCH = "application/vnd.penstock.batch+msgpack"


def test_a_send_that_is_repeated_sends_once(http: httpx.Client, name: str) -> None:
    at, body = f"/v1/queues/{name}/messages", [{"body": "a"}, {"body": "b", "priority": 1}]
    first = done(http.post(at, json=body, headers=KEY), 201)
    assert done(http.post(at, json=body, headers=KEY), 201) == first
    done(http.post(at, json=body, headers={"idempotency-key": "k2"}), 201)
    assert sorted(bodies(receive(http, name))) == ["a", "a", "b", "b"]


def test_the_same_key_for_another_request_is_another_request(http: httpx.Client, name: str) -> None:
    for queue in (f"{name}-1", f"{name}-2"):
        for body in ("a", "b"):
            done(http.post(f"/v1/queues/{queue}/messages", json={"body": body}, headers=KEY), 201)
        assert bodies(receive(http, queue)) == ["a", "b"]


def test_a_batch_that_is_repeated_is_sent_once(http: httpx.Client, name: str) -> None:
    body = msgspec.msgpack.encode({"bodies": [b"x"] * 100})
    for _ in range(3):
        response = http.post(f"/v1/queues/{name}/messages", content=body, headers={**KEY, "content-type": BATCH})
        assert response.status_code == 201
    assert len(receive(http, name, 1_000)) == 100


def test_an_ack_that_is_repeated_counts_as_done(http: httpx.Client, name: str) -> None:
    send(http, name, "a", "b")
    receipts = [message["receipt"] for message in receive(http, name)]
    at = f"/v1/queues/{name}/ack"
    first = done(http.post(at, json={"receipts": receipts}, headers=KEY))
    assert done(http.post(at, json={"receipts": receipts}, headers=KEY)) == first == {"settled": 2, "refused": []}
    assert done(http.post(at, json={"receipts": receipts}))["settled"] == 0


def test_a_unit_of_work_that_is_repeated_is_done_once(http: httpx.Client, name: str) -> None:
    send(http, name, "a")
    (message,) = receive(http, name)
    body = {"receipts": [message["receipt"]], "sends": [{"queue": f"{name}-out", "body": "x"}]}
    first = done(http.post("/v1/work", json=body, headers=KEY))
    assert done(http.post("/v1/work", json=body, headers=KEY)) == first
    assert bodies(receive(http, f"{name}-out")) == ["x"]


def test_a_restart_does_not_forget_what_was_done(serve: Callable[..., Server]) -> None:
    server = serve()
    with server.client() as http:
        first = done(http.post("/v1/queues/q/messages", json={"body": "a"}, headers=KEY), 201)
    server.stop()
    again = Server(server.directory)
    try:
        with again.client() as http:
            assert done(http.post("/v1/queues/q/messages", json={"body": "a"}, headers=KEY), 201) == first
            assert len(receive(http, "q")) == 1
    finally:
        again.stop()


def test_a_key_that_is_too_long_is_refused(http: httpx.Client, name: str) -> None:
    headers = {"idempotency-key": "x" * 257}
    refused(http.post(f"/v1/queues/{name}/messages", json={"body": "a"}, headers=headers), 400, "invalid_request")
