"""Long polls: answered as soon as a message is there, empty at their end, and without loss when the client leaves."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.protocols.sqs.refusals import refused
from tests.protocols.sqs.serving import Server

PATIENCE_S = 60


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def poll(server: Server, url: str, **options: Any) -> list[str]:
    answer = server.client().receive_message(QueueUrl=url, **{"WaitTimeSeconds": 20, **options})
    return [message["Body"] for message in answer.get("Messages", [])]


def test_a_long_poll_answers_as_soon_as_a_message_is_there(
    server: Server, sqs: Any, name: str, url: str, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(poll, server, url)
    until(lambda: server.waiting(name) == 1)
    started = time.monotonic()
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert waiting.result(PATIENCE_S) == ["x"]
    assert time.monotonic() - started < 15


def test_a_long_poll_that_finds_nothing_ends_empty(
    server: Server, sqs: Any, name: str, url: str, pool: ThreadPoolExecutor
) -> None:
    waiting = pool.submit(poll, server, url, WaitTimeSeconds=5)
    until(lambda: server.waiting(name) == 1)
    server.advance(6)
    assert waiting.result(PATIENCE_S) == []


def test_the_queue_may_say_how_long_a_receive_waits(
    server: Server, sqs: Any, name: str, make: Callable[..., str], pool: ThreadPoolExecutor
) -> None:
    url = make("patient", ReceiveMessageWaitTimeSeconds="20")
    waiting = pool.submit(lambda: server.client().receive_message(QueueUrl=url))
    until(lambda: server.waiting(f"{name}-patient") == 1)
    assert poll(server, url, WaitTimeSeconds=0) == []
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert waiting.result(PATIENCE_S)["Messages"][0]["Body"] == "x"


def test_a_long_poll_gets_a_message_whose_visibility_ends(
    server: Server, sqs: Any, name: str, url: str, pool: ThreadPoolExecutor
) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    poll(server, url, VisibilityTimeout=15)
    waiting = pool.submit(poll, server, url)
    until(lambda: server.waiting(name) == 1)
    server.advance(15)
    assert waiting.result(PATIENCE_S) == ["x"]


def test_those_who_wait_are_served_in_turn(
    server: Server, sqs: Any, name: str, url: str, pool: ThreadPoolExecutor
) -> None:
    waiting = []
    for number in range(3):
        waiting.append(pool.submit(poll, server, url))
        until(lambda expected=number + 1: server.waiting(name) == expected)  # type: ignore[misc]
    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(number))
    assert [each.result(PATIENCE_S) for each in waiting] == [["0"], ["1"], ["2"]]


def test_a_deleted_queue_ends_the_wait_with_an_error(
    server: Server, sqs: Any, name: str, url: str, pool: ThreadPoolExecutor
) -> None:
    def expect_refusal() -> None:
        with refused("AWS.SimpleQueueService.NonExistentQueue"):
            poll(server, url)

    waiting = pool.submit(expect_refusal)
    until(lambda: server.waiting(name) == 1)
    sqs.delete_queue(QueueUrl=url)
    waiting.result(PATIENCE_S)


def raw_receive(server: Server, url: str) -> socket.socket:
    """A long poll whose client can hang up."""
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(
        b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ReceiveMessage\r\n"
        b"Content-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def test_a_client_that_hangs_up_takes_no_message_with_it(server: Server, sqs: Any, name: str, url: str) -> None:
    connection = raw_receive(server, url)
    until(lambda: server.waiting(name) == 1)
    connection.close()
    until(lambda: server.waiting(name) == 0)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("commit_in_thread", [False, True])
def test_a_message_sent_while_clients_hang_up_is_there_for_the_next_one(tmp_path: Any, commit_in_thread: bool) -> None:
    server = Server(tmp_path / "data", commit_in_thread=commit_in_thread)
    try:
        sqs = server.client()
        url = sqs.create_queue(QueueName="race", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        for number in range(40):
            connections = [raw_receive(server, url) for _ in range(2)]
            until(lambda: server.waiting("race") == 2)
            for connection in connections:
                connection.close()
            sqs.send_message(QueueUrl=url, MessageBody=str(number))
            (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
            assert message["Body"] == str(number)
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            assert server.waiting("race") == 0
    finally:
        server.stop()


def test_a_stop_ends_long_polls_empty(tmp_path: Any, pool: ThreadPoolExecutor) -> None:
    server = Server(tmp_path / "data")
    url = server.client().create_queue(QueueName="stopping")["QueueUrl"]
    waiting = [pool.submit(poll, server, url) for _ in range(4)]
    until(lambda: server.waiting("stopping") == 4)
    server.stop()
    assert [each.result(PATIENCE_S) for each in waiting] == [[], [], [], []]


def test_after_the_store_is_closed_requests_are_told_to_come_back(tmp_path: Any) -> None:
    server = Server(tmp_path / "data")
    sqs = server.client()
    url = sqs.create_queue(QueueName="closed")["QueueUrl"]
    import asyncio

    asyncio.run_coroutine_threadsafe(server.shard.close(), server._loop).result(PATIENCE_S)
    with refused("ServiceUnavailable", 503):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    server.stop()


def test_a_thousand_long_polls_wait_with_little_memory(server: Server, sqs: Any, name: str, url: str) -> None:
    def memory_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = memory_bytes()
    connections = [raw_receive(server, url) for _ in range(1_000)]
    until(lambda: server.waiting(name) == 1_000)
    used = memory_bytes() - before
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(3)])
    answered = 0
    for connection in connections[:3]:
        response = http.client.HTTPResponse(connection)
        response.begin()
        answered += len(json.loads(response.read())["Messages"])
    for connection in connections:
        connection.close()
    until(lambda: server.waiting(name) == 0)
    assert answered == 3
    assert used < 20 * 1024 * 1024
