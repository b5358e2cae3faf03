"""What nodes answer to load balancers while Kafka or ZooKeeper stands still: soon, and what is so."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import penstock
from penstock.server.settings import parse
from tests.cluster.backends import backend  # noqa: F401
from tests.cluster.nodes import SHARDS, Backend, ThreadNode, settings_text, until
from tests.kafka import unique_prefix
from tools.kafka import KafkaCluster
from tools.zookeeper import ZooKeeperEnsemble

SOON_S = 2.0
"""HAProxy's and Envoy's checks wait for so long in what we advise. Nodes answer within half a second when they can."""
QUEUES = [f"q{number}" for number in range(4 * SHARDS)]
"""In every shard some."""


class Answer(NamedTuple):
    path: str
    status: int
    body: dict[str, Any]
    took_s: float


class Balancer(threading.Thread):
    """Asks a node all the time whether it lives, and whether it is ready."""

    def __init__(self, node: ThreadNode) -> None:
        super().__init__(daemon=True)
        self.url: str = node.node.services.partition_maps.current().urls[node.name]  # type: ignore[union-attr]
        self.answers: list[Answer] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.wait(0.1):
            for path in ("/livez", "/readyz"):
                began_s = time.monotonic()
                connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=30.0)
                connection.request("GET", path)
                answer = connection.getresponse()
                body = msgspec.json.decode(answer.read() or b"{}")
                self.answers.append(Answer(path, answer.status, body, time.monotonic() - began_s))
                connection.close()

    def until_ready_is(self, status: int, word: str) -> None:
        """Wait until it says so, from now on."""
        since = len(self.answers)

        def is_said() -> bool:
            new = [it for it in self.answers[since:] if it.path == "/readyz"]
            return any((it.status, it.body["status"]) == (status, word) for it in new)

        until(is_said, f"{word} at {self.url}", 120.0)


@contextmanager
def nodes(backend: Backend, directory: Path) -> Iterator[list[ThreadNode]]:  # noqa: F811
    """Two, whose commits may take two seconds."""
    name, found = unique_prefix("health"), list[ThreadNode]()
    with ExitStack() as stack:
        for each in "ab":
            text = settings_text(backend, name, each, directory / each, session_s=4.0)
            found.append(ThreadNode(parse(f"{text}commit_timeout_s = 2\n")))
            stack.callback(found[-1].stop)
        until(lambda: all(len(node.own_shards) == SHARDS // 2 for node in found), "an even share")
        yield found


def _send_everywhere(url: str) -> None:
    with penstock.connect(url, timeout=5.0) as ps:
        for queue in QUEUES:
            threading.Thread(target=lambda queue=queue: _send(ps, queue), daemon=True).start()
        time.sleep(1.0)


def _send(ps: penstock.Penstock, queue: str) -> None:
    with suppress(penstock.PenstockError):
        ps.queue(queue).send(b"x")


def test_liveness_waits_for_nobody_and_readiness_says_what_is_not_served(
    backend: KafkaCluster | ZooKeeperEnsemble,  # noqa: F811
    tmp_path: Path,
) -> None:
    with nodes(backend, tmp_path) as (a, b):
        balancers = [Balancer(node) for node in (a, b)]
        with penstock.connect(balancers[0].url) as ps:
            for queue in QUEUES:
                ps.create_queue(queue)
        for each in balancers:
            each.start()
            each.until_ready_is(200, "ok")
        backend.pause(0)
        try:
            _send_everywhere(balancers[0].url)
            for each in balancers:
                each.until_ready_is(503, "failing")
        finally:
            backend.resume(0)
        for each in balancers:
            each.until_ready_is(200, "ok")
            each.ending.set()
        for each in balancers:
            each.join(30.0)
    for each in balancers:
        assert {it.status for it in each.answers if it.path == "/livez"} == {200}
        assert max(it.took_s for it in each.answers) < SOON_S
        ready = [it for it in each.answers if it.path == "/readyz"]
        assert any(it.status == 200 and it.body["status"] == "degraded" and it.body["waiting"] for it in ready)
        assert all(it.body["reason"] and it.body["unserved"] for it in ready if it.status == 503)
