"""A server over a directory with a damaged queue: it starts, serves the others, and says so in every protocol."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from socket import create_connection
from typing import Any

import pytest

import penstock
from penstock.core.storage import keys
from penstock.core.storage.keys import Kind
from penstock.store.layout import TABLE_NAME
from tests.server.test_node import Process

SETTINGS = """
[[queues]]
name = "orders"
delay = 1
"""


class Serving:
    """A server, and where it listens."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._listening = process.ready()["listening"]

    def port(self, name: str) -> int:
        found = self._listening[name]
        return int(found["port"] if isinstance(found, dict) else str(found).rpartition(":")[2])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    home = tmp_path_factory.mktemp("quarantine")
    with penstock.open(home / "data") as ps:
        for name in ("orders", "mails"):
            ps.queue(name).send("before")
    connection = sqlite3.connect(home / "data" / TABLE_NAME, isolation_level=None)
    connection.execute("UPDATE records SET value = value || x'00' WHERE key = ?", (keys.record(Kind.COUNTERS, 1),))
    connection.close()
    (home / "penstock.toml").write_text(SETTINGS)
    process = Process(home, "--config", str(home / "penstock.toml"))
    try:
        yield Serving(process)
    finally:
        process.process.terminate()
        _, _, errors = process.ended()
    assert errors.count("damage in the store: orders") == 1, "the log says it once"
    assert "Traceback" not in errors


def http(served: Serving, port: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{served.port(port)}{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_rest_says_queue_damaged_and_serves_the_others(served: Serving) -> None:
    status, body = http(served, "http", "/v1/queues/orders")
    problem: dict[str, Any] = json.loads(body)
    assert (status, problem["code"]) == (500, "queue_damaged")
    assert "'orders' is in quarantine" in problem["detail"]
    status, body = http(served, "http", "/v1/queues/mails")
    assert status == 200
    status, body = http(served, "http", "/v1/queues")
    assert json.loads(body)["queues"] == ["mails", "orders"]


def test_sqs_says_service_unavailable_and_why(served: Serving) -> None:
    for action in ("SendMessage", "ReceiveMessage", "GetQueueAttributes", "DeleteMessage", "PurgeQueue"):
        fields = {"QueueUrl": "http://127.0.0.1/000000000000/orders", "MessageBody": "x", "ReceiptHandle": "AAAA"}
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        status, body = http(served, "sqs", "/", json.dumps(fields).encode(), **headers)
        assert status == 503, (action, body)
        assert "in quarantine" in json.loads(body)["message"]


def test_nsq_says_that_publishing_failed(served: Serving) -> None:
    status, body = http(served, "nsq-http", "/pub?topic=orders", b"x")
    assert (status, b"in quarantine" in body) == (503, True)
    with create_connection(("127.0.0.1", served.port("nsq")), timeout=30) as connection:
        connection.sendall(b"  V2PUB orders\n\x00\x00\x00\x01x")
        answer = connection.recv(4096)
        assert answer[8:].startswith(b"E_PUB_FAILED")
        assert b"in quarantine" in answer


def test_python_clients_get_the_same_error_over_the_network(served: Serving) -> None:
    with penstock.connect(f"penstock://127.0.0.1:{served.port('http')}") as ps:
        with pytest.raises(penstock.QueueDamaged, match="'orders' is in quarantine"):
            ps.queue("orders").send("x")
        with pytest.raises(penstock.QueueDamaged):
            ps.queue("orders").receive(1)
        ps.queue("mails").send("after")
        assert [message.text for message in ps.queue("mails").receive(2)] == ["before", "after"]
        (report,) = ps.damage
        assert report.queue == "orders"


def test_metrics_count_it(served: Serving) -> None:
    _, body = http(served, "http", "/metrics")
    assert b"penstock_damaged_queues 1.0" in body
