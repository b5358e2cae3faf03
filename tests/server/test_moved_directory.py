"""A server whose data directory is moved, replaced or deleted says so, and writes to no other directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from tests.server.serving import Served, served, until
from tests.store.test_moved_directory import WAYS, contents, move

REASON = "was moved, replaced or deleted while it was open"


def ready(server: Served) -> tuple[int, str]:
    return server.talk("http", "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")


def send(server: Served, front_end: str) -> tuple[int, str]:
    if front_end == "http":
        body = '{"body":"x"}'
        head = "POST /v1/queues/orders/messages HTTP/1.1\r\nContent-Type: application/json"
    elif front_end == "sqs":
        body = json.dumps({"QueueUrl": "http://x/000000000000/orders", "MessageBody": "x"})
        head = (
            "POST / HTTP/1.1\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
            "Authorization: AWS4-HMAC-SHA256 Credential=a/20200101/x/sqs/aws4_request, SignedHeaders=host, Signature=0"
        )
    else:
        body, head = "x", "POST /pub?topic=orders HTTP/1.1"
    return server.talk(front_end, f"{head}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}")


@pytest.mark.parametrize("way", WAYS)
def test_every_front_end_refuses_and_the_log_says_it_once(tmp_path: Path, way: Callable[[Path], None]) -> None:
    with served(tmp_path, "[log]\nlevel = 'info'") as server:
        for front_end in ("http", "sqs", "nsq-http"):
            assert send(server, front_end)[0] in (200, 201)
        assert ready(server)[0] == 200
        way(server.data)
        before = contents(server.data)
        until(lambda: ready(server)[0] == 503)  # although nobody sends
        assert REASON in json.loads(ready(server)[1])["reason"]
        for front_end, status, said in (("http", 503, "directory_moved"), ("sqs", 503, "ServiceUnavailable")):
            answered, body = send(server, front_end)
            assert (answered, said in body) == (status, True), body
        assert send(server, "nsq-http")[0] >= 500
    assert server.process.returncode == 0
    told = [line for line in server.log.splitlines() if REASON in line and " penstock.s" in line]
    assert len(told) == 1, "besides what each request says"
    assert "Traceback" not in server.log
    left = {name: body for name, body in contents(server.data).items() if not name.startswith("audit")}
    assert left == {name: body for name, body in before.items() if not name.startswith("audit")}
    if way.__name__ in ("move", "delete"):
        assert not server.data.exists()


def test_a_restore_without_a_stop_leaves_both_directories_whole(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        send(server, "http")
        shutil.copytree(server.data, tmp_path / "backup")
        move(server.data)
        shutil.copytree(tmp_path / "backup", server.data)
        until(lambda: send(server, "http")[0] == 503)
    with penstock.open(tmp_path / "broken") as ps:
        assert ps.queue("orders").stats().messages >= 1
    with penstock.open(server.data) as ps:
        assert ps.queue("orders").stats().messages <= 1


def test_the_server_goes_on_when_the_directory_is_back(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert send(server, "http")[0] == 201
        move(server.data)
        until(lambda: ready(server)[0] == 503)
        (tmp_path / "broken").rename(server.data)
        until(lambda: ready(server)[0] == 200)
        assert send(server, "http")[0] == 201
    assert "the data directory is back: the store was opened again" in server.log
    with penstock.open(server.data) as ps:
        assert ps.queue("orders").stats().messages == 2
