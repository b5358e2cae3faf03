"""A topic with several partitions is one topic: on one shard trivially, and on several (`cluster/test_suites.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.commands import CreateQueue, QueueStats, Send
from penstock.core.queues.config import QueueConfig
from tests.protocols.nsq.clients.wire import fin, req
from tests.protocols.nsq.http.serving import RunningNode, node

MESSAGES = 24
PATIENCE_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningNode]:
    with node(tmp_path) as running:
        yield running


def test_a_client_gets_and_settles_the_messages_of_all_partitions(server: RunningNode) -> None:
    server.call(CreateQueue(name="topic", config=QueueConfig(partitions=3), channels=("ch",)))
    groups: list[str | None] = [f"g{number}" for number in range(MESSAGES)]
    server.call(Send(queue="topic", bodies=[b"%d" % number for number in range(MESSAGES)], groups=groups))
    with server.connect() as client:
        client.subscribe("topic", "ch", ready=6)
        seen: set[bytes] = set()
        first = client.message()
        client.send(req(first))  # and it comes again
        while len(seen) < MESSAGES:
            message = client.message(seconds=PATIENCE_S)
            seen.add(message.body)
            client.send(fin(message))
        deadline = time.monotonic() + PATIENCE_S
        while (left := server.call(QueueStats(name="topic")).messages) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == 0
