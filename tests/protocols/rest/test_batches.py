"""The binary batch type, as another language would speak it: plain MessagePack maps."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from tests.protocols.rest.asking import bodies, done, receive, refused, send
from tests.protocols.rest.serving import Server

BATCH = "application/vnd.penstock.batch+msgpack"


def post(http: httpx.Client, path: str, fields: dict[str, Any], status: int = 200) -> Any:
    response = http.post(path, content=msgspec.msgpack.encode(fields), headers={"content-type": BATCH})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == BATCH
    return msgspec.msgpack.decode(response.content)


def test_a_run_goes_in_out_and_is_acknowledged(http: httpx.Client, name: str) -> None:
    at = f"/v1/queues/{name}"
    sent = post(http, f"{at}/messages", {"bodies": [b"%d" % number for number in range(1_000)]}, 201)
    assert (sent["first"], sent["count"], sent["sequences"], sent["duplicates"]) == (0, 1_000, None, [])
    got = post(http, f"{at}/receive", {"max": 1_000, "wait": 0.0, "lease": 60})
    assert [body for run in got["runs"] for body in run["bodies"]] == [b"%d" % number for number in range(1_000)]
    assert [run["attempts"] for run in got["runs"]] == [1]
    assert got["spans"] == [[0, 999, 1]]
    settled = post(http, f"{at}/ack", {"queue_id": got["queue_id"], "spans": [[0, 499, 1], [600, 999, 1]]})
    assert settled == {"settled": 900, "refused": []}
    again = post(http, f"{at}/ack", {"queue_id": got["queue_id"], "spans": got["spans"]})
    assert again["settled"] == 100
    assert [(first, last, code) for first, last, code, _ in again["refused"]] == [
        (0, 499, "stale_receipt"),
        (600, 999, "stale_receipt"),
    ]


def test_columns_run_beside_the_bodies(http: httpx.Client, name: str) -> None:
    attributes = [{"n": 1, "b": b"\xff", "f": 1.5, "t": "x"}, None]
    fields = {"bodies": [b"a", b"b"], "attributes": attributes, "groups": ["g", None], "priority": 2}
    post(http, f"/v1/queues/{name}/messages", fields, 201)
    (run,) = post(http, f"/v1/queues/{name}/receive", {})["runs"]
    assert (run["attributes"], run["groups"]) == (attributes, ["g", None])


def test_batches_and_json_mix(http: httpx.Client, name: str) -> None:
    send(http, name, "from json")
    accepting = {"content-type": "application/json", "accept": BATCH}
    response = http.post(f"/v1/queues/{name}/receive", json={"lease": 0}, headers=accepting)
    assert msgspec.msgpack.decode(response.content)["runs"][0]["bodies"] == [b"from json"]
    post(http, f"/v1/queues/{name}/messages", {"bodies": [b"from a batch"], "delay": None}, 201)
    assert bodies(receive(http, name))[-1] == "from a batch"
    as_json = {"content-type": BATCH, "accept": "application/json"}
    response = http.post(f"/v1/queues/{name}/receive", content=msgspec.msgpack.encode({}), headers=as_json)
    assert done(response)["messages"] == []


def test_a_batch_is_released_and_extended(server: Server, http: httpx.Client, name: str) -> None:
    at = f"/v1/queues/{name}"
    post(http, f"{at}/messages", {"bodies": [b"a", b"b"]}, 201)
    got = post(http, f"{at}/receive", {"lease": 10})
    held = {"queue_id": got["queue_id"], "spans": got["spans"], "channel": "main"}
    assert post(http, f"{at}/extend", {**held, "lease": 100})["settled"] == 2
    server.advance(50)
    assert post(http, f"{at}/release", {**held, "error": "no", "delay": 0})["settled"] == 2
    again = receive(http, name)
    assert [message["failures"][0]["error"] for message in again] == ["no", "no"]
    assert post(http, f"/v1/queues/{name}/channels/main/ack", {**held})["settled"] == 0


def test_spans_of_a_queue_that_was_created_anew_are_refused(http: httpx.Client, name: str) -> None:
    at = f"/v1/queues/{name}"
    post(http, f"{at}/messages", {"bodies": [b"a"]}, 201)
    got = post(http, f"{at}/receive", {})
    http.delete(at)
    post(http, f"{at}/messages", {"bodies": [b"b"]}, 201)
    body = msgspec.msgpack.encode({"queue_id": got["queue_id"], "spans": got["spans"]})
    response = http.post(f"{at}/ack", content=body, headers={"content-type": BATCH})
    refused(response, 409, "foreign_receipt")


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("messages", b"", "malformed_body"),
        ("messages", b"\xc1", "malformed_body"),
        ("messages", msgspec.msgpack.encode({"bodies": []}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": ["text"]}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "delay": float("nan")}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "due": float("inf")}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "attributes": [{"x": [1]}]}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "attributes": []}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "groups": [""]}), "invalid_name"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "priority": 1 << 40}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "due": 1.7e308}), "invalid_request"),
        ("messages", msgspec.msgpack.encode({"bodies": [b"a"], "delay": -1.7e308}), "invalid_request"),
        ("receive", msgspec.msgpack.encode({"max": -1}), "invalid_request"),
        ("receive", msgspec.msgpack.encode({"wait": float("nan")}), "invalid_request"),
        ("receive", msgspec.msgpack.encode({"lease": 1e300}), "invalid_request"),
        ("ack", msgspec.msgpack.encode({"queue_id": 1, "spans": [[1, 2]]}), "invalid_request"),
        ("ack", msgspec.msgpack.encode({"queue_id": 1, "spans": [[1, 2, "x"]]}), "invalid_request"),
        ("ack", b"\x91" * 100_000, "invalid_request"),
    ],
)
def test_a_batch_that_is_wrong_is_refused(http: httpx.Client, name: str, path: str, body: bytes, code: str) -> None:
    send(http, name, "a")
    response = http.post(f"/v1/queues/{name}/{path}", content=body, headers={"content-type": BATCH})
    assert response.json()["code"] == code, response.text
    assert response.status_code == 400


@pytest.mark.parametrize("span", [[5, 3, 1], [-1, 0, 1], [0, 1 << 62, 1], [0, 0, 1 << 40], [0, 0, -1]])
def test_spans_that_cannot_be_are_refused(http: httpx.Client, name: str, span: list[int]) -> None:
    send(http, name, "a")
    got = post(http, f"/v1/queues/{name}/receive", {})
    body = msgspec.msgpack.encode({"queue_id": got["queue_id"], "spans": [span]})
    response = http.post(f"/v1/queues/{name}/ack", content=body, headers={"content-type": BATCH})
    refused(response, 400, "invalid_request")
