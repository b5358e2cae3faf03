"""Writes by way of several nodes: what a task stages is on one of them, and nobody else can publish it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

import penstock
from penstock.spark.errors import ServerFailed
from penstock.spark.sink import BatchSink, StreamSink
from tests.client.node import ThreadedNode
from tests.faults.proxy import Cut, Proxy
from tests.ports import free_port

SCHEMA = StructType().add("value", StringType())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path / "one")
    yield node
    node.stop()


@pytest.fixture
def proxy(one: ThreadedNode) -> Iterator[Proxy]:
    """Before the first node."""
    proxy = Proxy(one.port)
    yield proxy
    proxy.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[ThreadedNode]:
    node = ThreadedNode(tmp_path / "other")
    yield node
    node.stop()


def options(port: int, other: ThreadedNode, timeout: str = "20") -> dict[str, str]:
    return {"url": f"http://127.0.0.1:{port},127.0.0.1:{other.port}", "topic": "orders", "timeout": timeout}


def rows(*values: str) -> Iterator[Any]:
    return iter([pa.RecordBatch.from_pydict({"value": list(values)})])


def bodies(node: ThreadedNode) -> list[str]:
    with penstock.connect(node.url) as ps:
        if "orders" not in ps.queues():
            return []
        return sorted(message.text for message in ps.queue("orders").receive(max=100))


@contextmanager
def busy(target_port: int, answers: list[int], port: int = 0) -> Iterator[int]:
    """A node that answers some requests with these statuses (0: none of its own), and forwards all that come later."""

    class Forward(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, answer = answers.pop(0) if answers else 0, b""
            if not status:
                connection = http.client.HTTPConnection("127.0.0.1", target_port)
                connection.request(self.command, self.path, body, dict(self.headers))
                response = connection.getresponse()
                status, answer = response.status, response.read()
                connection.close()
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_PUT = do_POST = do_DELETE = forward

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Forward) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [503, 429, 408])
def test_a_busy_node_is_asked_again_and_keeps_the_whole_batch(
    one: ThreadedNode, other: ThreadedNode, status: int
) -> None:
    answers = [0, status, status, 0, 0, status]  # to the second piece, and to the publish
    with busy(one.port, answers) as port:
        sink = BatchSink(options(port, other), SCHEMA, False)
        sink.commit([sink.write(rows(str(number))) for number in range(3)])
    assert answers == []
    assert (bodies(one), bodies(other)) == (["0", "1", "2"], [])


def test_a_publish_whose_answer_is_lost_is_asked_for_again_at_the_same_node(
    one: ThreadedNode, other: ThreadedNode, proxy: Proxy
) -> None:
    sink = BatchSink(options(proxy.port, other), SCHEMA, False)
    written = sink.write(rows("a", "b"))
    proxy.cut_one(cut := Cut("answers", 1))
    sink.commit([written])
    assert cut.is_done
    assert (bodies(one), bodies(other)) == (["a", "b"], [])


def test_when_the_node_is_away_nobody_says_that_nothing_was_sent(
    one: ThreadedNode, other: ThreadedNode, proxy: Proxy
) -> None:
    sink = BatchSink(options(proxy.port, other, "1"), SCHEMA, False)
    written = sink.write(rows("a", "b"))
    proxy.shut(True)
    with pytest.raises(
        ServerFailed, match=r"not known whether the batch was published.*txnAppId and txnVersion"
    ) as told:
        sink.commit([written])
    assert "Nothing" not in str(told.value)
    proxy.shut(False)
    sink.commit([written])
    assert (bodies(one), bodies(other)) == (["a", "b"], [])


def test_a_stream_publishes_where_its_tasks_have_staged(one: ThreadedNode, other: ThreadedNode) -> None:
    """Spark makes the sink anew for the commit, when the node that was away may be there again."""
    port = free_port()
    tasks = StreamSink(options(port, other), SCHEMA, False)
    written, dropped = (tasks._writing.hand_over(rows(token), token, "spark-stream-7") for token in ("a", "b"))
    with busy(one.port, [], port):
        sink = StreamSink(options(port, other), SCHEMA, False)
        sink.commit([written], 0)
        assert (bodies(one), bodies(other)) == ([], ["a"])
        sink.abort([dropped], 1)
        with pytest.raises(ServerFailed, match="there is no piece"):
            sink.commit([dropped], 1)
