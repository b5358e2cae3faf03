"""A queue is deleted and made again with other partitions, again and again, at a server with three processes.

Which process a connection gets is up to the kernel, so each of them has an idea of the queue that is out of date at
some time. Everything that was answered with yes is in the queue that is there, and nobody hears of partitions.
"""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.core.storage.chunk import Chunk
from penstock.wire.pieces import Target, encode_section
from tests.compat.server import PATIENCE_S, Server, serving, until

WORKERS = 3
ROUNDS = 12
SENDERS = 10
RUN = 6
GROUPS = 11

Send = Callable[[range], None]


class Queue:
    """One queue, and ways to send to it."""

    def __init__(self, server: Server, clients: list[penstock.Penstock]) -> None:
        self._port = server.http_port
        self._clients = clients

    def ways(self) -> list[Send]:
        return [self.rest, self.rest_without_groups, self.bulk, *(self._by(client) for client in self._clients)]

    def make(self, partitions: int) -> None:
        self._ask("POST", "/v1/queues", {"name": "q", "settings": {"partitions": partitions}})

    def delete(self) -> None:
        self._ask("DELETE", "/v1/queues/q")

    def rest(self, numbers: range) -> None:
        for number in numbers:
            self._ask("POST", "/v1/queues/q/messages", {"body": str(number), "group": _group(number)})

    def rest_without_groups(self, numbers: range) -> None:
        for number in numbers:
            self._ask("POST", "/v1/queues/q/messages", {"body": str(number)})

    def bulk(self, numbers: range) -> None:
        bodies, groups = [b"%d" % number for number in numbers], [_group(number).encode() for number in numbers]
        self._post("/v1/bulk/send", b"".join(encode_section(Target("q"), Chunk.of(0, 0, bodies, groups=groups))))

    def received(self) -> list[int]:
        reply = self._ask("POST", "/v1/queues/q/receive", {"max": 1_000, "wait": 0.2, "lease": 600})
        return [int(message["body"]) for message in reply["messages"]]

    def _by(self, client: penstock.Penstock) -> Send:
        def send(numbers: range) -> None:
            for number in numbers:
                client.queue("q").send(b"%d" % number, group=_group(number))

        return send

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        given = None if body is None else json.dumps(body).encode()
        return self._post(path, given, method, {"content-type": "application/json"})

    def _post(self, path: str, body: bytes | None, method: str = "POST", headers: dict[str, str] | None = None) -> Any:
        """A connection each: any of the processes may get it."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            said = response.read()
            assert response.status < 300, (method, path, response.status, said)
            return json.loads(said) if said and headers else None
        finally:
            connection.close()


def _group(number: int) -> str:
    return f"g{number % GROUPS}"


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    directory: Path = tmp_path_factory.mktemp("again")
    with ExitStack() as stack:
        server = stack.enter_context(serving(directory, shards=WORKERS))
        url = f"penstock://127.0.0.1:{server.http_port}"
        yield Queue(server, [stack.enter_context(penstock.connect(url)) for _ in range(WORKERS)])


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_sent_to_a_queue_that_was_just_made_again_is_there(queue: Queue, seed: int) -> None:
    chosen = random.Random(seed)
    with ThreadPoolExecutor(SENDERS) as senders:
        for _ in range(ROUNDS):
            queue.make(chosen.choice([1, 2, 3, 4]))
            runs = [range(number * RUN, (number + 1) * RUN) for number in range(SENDERS)]
            sends = [senders.submit(chosen.choice(queue.ways()), run) for run in runs]
            for send in sends:
                send.result()
            found: list[int] = []

            def is_all_there(found: list[int] = found) -> bool:
                found += queue.received()
                return len(found) >= SENDERS * RUN

            until(is_all_there)
            assert sorted(found) == list(range(SENDERS * RUN))
            queue.delete()
