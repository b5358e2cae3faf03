"""Two nodes as processes on a real Kafka or ZooKeeper: restarted, stopped in mid-air, killed, while a client goes on.

Every message is sent and received by SQS, and counted by its body at the end. How long each failover took is printed,
not asserted: `tests.cluster.soak` does that on a machine that has nothing else to do.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.cluster.backends import backend  # noqa: F401
from tests.cluster.nodes import RETRY_TIMEOUT_S, SHARDS, Backend, ProcessNode, until
from tests.kafka import unique_prefix

SESSION_S = 10.0
PAUSE_S = 2.0
QUEUES = [f"q{number}" for number in range(6)]
BEGUN = re.compile(r"shard (\d+) is served here")
ENDED = re.compile(r"shard (\d+) is no longer served here")
UNREACHABLE = (BotoCoreError, ClientError)


def sqs(node: ProcessNode) -> Any:
    """A client that never tries again by itself."""
    options = Config(retries={"total_max_attempts": 1}, read_timeout=RETRY_TIMEOUT_S, connect_timeout=RETRY_TIMEOUT_S)
    credentials = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    return boto3.client("sqs", endpoint_url=node.sqs_url, config=options, **credentials)


class Traffic:
    """Sends to every queue and takes what comes, through one node, until it is told to end."""

    def __init__(self, node: ProcessNode, name: str) -> None:
        self.sent: list[str] = []
        self.acked: list[str] = []
        self.errors: list[Exception] = []
        self._client = sqs(node)
        self._name = name
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self._thread.join(2 * RETRY_TIMEOUT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            for queue in QUEUES:
                number += 1
                try:
                    self._pass_one(queue, f"{self._name}-{number}")
                except UNREACHABLE as error:
                    self.errors.append(error)
                    return

    def _pass_one(self, queue: str, body: str) -> None:
        url = self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        self._client.send_message(QueueUrl=url, MessageBody=body)
        self.sent.append(body)
        self.acked += take(self._client, url)


def take(client: Any, url: str) -> list[str]:
    """Receive and acknowledge: the bodies that were acknowledged."""
    taken = []
    for message in client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        taken.append(message["Body"])
    return taken


def send_to_all(client: Any, name: str, sent: set[str]) -> list[str]:
    """One message to each queue, noted; returns the queues' URLs."""
    urls = [client.get_queue_url(QueueName=queue)["QueueUrl"] for queue in QUEUES]
    for number, url in enumerate(urls):
        client.send_message(QueueUrl=url, MessageBody=f"{name}-{number}")
        sent.add(f"{name}-{number}")
    return urls


def drained(client: Any, expected: set[str]) -> set[str]:
    """Everything that is still there; what is leased by a receiver that is gone comes when its lease runs out."""
    found: set[str] = set()
    urls = [client.get_queue_url(QueueName=queue)["QueueUrl"] for queue in QUEUES]

    def complete() -> bool:
        for url in urls:
            found.update(take(client, url))
        return found >= expected

    until(complete, "every message that was sent")
    return found


@pytest.fixture
def pair(backend: Backend, tmp_path: Path) -> Iterator[tuple[ProcessNode, ProcessNode]]:  # noqa: F811
    name = unique_prefix("pair")
    a, b = (ProcessNode(backend, name, each, tmp_path, session_s=SESSION_S) for each in "ab")
    try:
        a.start()
        client = sqs(a)
        for queue in QUEUES:
            client.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "5"})
        b.start()
        _until_both_serve(a, b)
        yield a, b
    finally:
        a.kill()
        b.kill()


def test_a_node_that_is_restarted_a_node_that_stands_still_and_a_node_that_is_killed(
    pair: tuple[ProcessNode, ProcessNode],
) -> None:
    a, b = pair
    sent: set[str] = set()
    acked: set[str] = set()
    _a_pause_of_two_seconds_moves_no_shard(a, b)
    _a_rolling_restart_costs_clients_no_errors(a, b, sent, acked)
    _a_zombie_neither_commits_nor_hands_out(a, b, sent, acked)
    _what_a_killed_node_had_is_served_by_the_other(a, b, sent, acked)
    _a_node_that_is_ready_after_a_total_loss_is_served_in_every_shard(a, b)


def _a_pause_of_two_seconds_moves_no_shard(a: ProcessNode, b: ProcessNode) -> None:
    """`bench.failover --pauses` stops brokers as well."""
    until(lambda: len(a.served) == len(b.served), "an even share")  # before that, shards move for balance
    for node in (a, b):
        before = {each.name: BEGUN.findall(each.log) for each in (a, b)}
        node.signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        node.signal(signal.SIGCONT)
        time.sleep(2 * PAUSE_S)
        assert {each.name: BEGUN.findall(each.log) for each in (a, b)} == before, "a shard has moved"


def _a_rolling_restart_costs_clients_no_errors(a: ProcessNode, b: ProcessNode, sent: set[str], acked: set[str]) -> None:
    with Traffic(b, "restart") as traffic:
        a.stop()
        a.start()
        _until_both_serve(a, b)
    assert not traffic.errors
    assert traffic.sent
    sent.update(traffic.sent)
    acked.update(traffic.acked)


def _a_zombie_neither_commits_nor_hands_out(a: ProcessNode, b: ProcessNode, sent: set[str], acked: set[str]) -> None:
    """b is stopped past its session; a takes over, and all is acknowledged there; then b goes on as if nothing was."""
    client = sqs(b)
    urls = send_to_all(client, "zombie", sent)
    b.signal(signal.SIGSTOP)
    try:
        acked |= drained(sqs(a), sent - acked)
        until(lambda: not b.served, "a with everything that was b's")
        begun = Counter(BEGUN.findall(b.log))
        assert begun, "b never had anything"
    finally:
        b.signal(signal.SIGCONT)
    handed_out: list[str] = []
    for number, url in enumerate(urls):
        try:
            handed_out += [each["Body"] for each in client.receive_message(QueueUrl=url).get("Messages", [])]
            client.send_message(QueueUrl=url, MessageBody=f"woken-{number}")
            sent.add(f"woken-{number}")  # it was confirmed, so it has to be found
        except UNREACHABLE:
            continue
    assert not set(handed_out) & acked, "handed out after its ack was committed by another owner"
    until(lambda: begun <= Counter(ENDED.findall(b.log)), "b without what it had")


def _what_a_killed_node_had_is_served_by_the_other(
    a: ProcessNode, b: ProcessNode, sent: set[str], acked: set[str]
) -> None:
    _until_both_serve(a, b)
    client = sqs(a)
    send_to_all(client, "kill", sent)
    killed_s = time.monotonic()
    b.kill()
    acked |= drained(client, sent - acked)
    print(f"kill -9 to the last message elsewhere: {time.monotonic() - killed_s:.1f} s")
    assert sent <= acked, "nothing is lost"


def _a_node_that_is_ready_after_a_total_loss_is_served_in_every_shard(a: ProcessNode, b: ProcessNode) -> None:
    b.start()
    _until_both_serve(a, b)
    for node in (a, b):
        node.kill()
    before = {node.name: len(node.log) for node in (a, b)}
    for node in (a, b):
        node.launch()
    a.wait()
    begun = {shard for node in (a, b) for shard in BEGUN.findall(node.log[before[node.name] :])}
    assert begun == {str(shard) for shard in range(SHARDS)}, "ready, and not served"
    b.wait()


def _until_both_serve(a: ProcessNode, b: ProcessNode) -> None:
    until(lambda: a.served and b.served, "shards at both nodes")
