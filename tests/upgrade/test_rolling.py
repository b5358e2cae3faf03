"""Nodes of one build are replaced by another, one by one, under load, up and down again; every message is counted."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

import penstock
from penstock.cluster.membership.inspection import Inspection
from penstock.server.settings import parse
from penstock.wire.links import read_greeting, read_introduction
from penstock.wire.requests import Versions
from tests.cluster.books import Books
from tests.cluster.load import LEASE_S, Load, Ports, create_queues, left_in_queues
from tests.cluster.nodes import SHARDS, ProcessNode, settings_text, thread_node, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.upgrade import builds
from tools.kafka import KafkaCluster
from tools.servers import free_ports

NAMES = ("a", "b", "c")
SESSION_S = 6.0
PACE_S = 0.3
SERVICE_S_MAX = 60.0
DRAIN_S_MAX = 120.0
MISUNDERSTOOD = re.compile(r"InvalidRequest| 400 |cannot be read|no reply|version")


class Cluster:
    """Three nodes, each of a build, on ports that they keep."""

    def __init__(self, broker: KafkaCluster, directory: Path, build: Path) -> None:
        name = unique_prefix("rolling")
        self.nodes: dict[str, ProcessNode] = {}
        self.ports: dict[str, Ports] = {}
        for node in NAMES:
            ports = self.ports[node] = Ports(*free_ports(3))
            text = settings_text(broker, name, node, directory / node, session_s=SESSION_S)
            text = text.replace("sqs_port = 0", f"sqs_port = {ports.sqs}")
            text = text.replace("http_port = 0", f"http_port = {ports.http}", 1)
            text = text.replace("nsq_tcp_port = 0", f"nsq_tcp_port = {ports.nsq}")
            self.nodes[node] = ProcessNode.with_settings(node, directory, text)
            self.nodes[node].environment = builds.environment(build)
            self._options = parse(text).kafka_options()

    def start(self) -> None:
        """All at once."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait()

    def replace(self, name: str, build: Path) -> None:
        """Stop a node, and start it with another build."""
        self.nodes[name].stop()
        self.nodes[name].environment = builds.environment(build)
        self.nodes[name].start()

    def move_a_shard(self, source: str, target: str) -> None:
        """One of a node's shards goes to another node, by hand, and back to where the controller wants it."""
        until(lambda: self.served_by(source), f"a shard of {source}")
        shard = self.served_by(source)[0]
        Inspection(self._options).move(shard, target)
        until(lambda: shard in self.served_by(target), f"shard {shard} at {target}")
        Inspection(self._options).move(shard, None)

    def served_by(self, name: str) -> list[int]:
        """The shards that a node serves."""
        return [row["shard"] for row in Inspection(self._options).rows() if row["served_by"] == name]

    def kill(self) -> None:
        """Nothing is left running."""
        for node in self.nodes.values():
            node.kill()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, kafka: KafkaCluster, tmp_path: Path) -> Iterator[Cluster]:  # noqa: F811
    """Three nodes of a build."""
    found = Cluster(kafka, tmp_path, request.param)
    try:
        found.start()
        yield found
    finally:
        found.kill()


def pumping(stack: ExitStack, build: Path, url: str, queue: str, end: Path) -> Callable[[], dict[str, list[str]]]:
    """A client of a build in a process of its own; call what is returned for what it has to tell, when it has ended."""
    command = [sys.executable, str(builds.HERE / "pump.py"), url, queue, str(end)]
    process = subprocess.Popen(command, env=builds.environment(build), stdout=subprocess.PIPE)
    stack.callback(process.kill)
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"

    def told() -> dict[str, list[str]]:
        out, _ = process.communicate(timeout=DRAIN_S_MAX)
        return msgspec.json.decode(out, type=dict[str, list[str]])

    return told


def await_service(books: Books) -> None:
    """Every queue takes messages again."""
    since_s = time.monotonic()
    until(lambda: not books.unserved_since(since_s), f"service for {books.unserved_since(since_s)}", SERVICE_S_MAX)


def drained(port: int, books: Books) -> list[str]:
    """Wait until nothing is left in the queues: what is, if that takes too long."""
    deadline_s, left = time.monotonic() + DRAIN_S_MAX, ["unknown"]
    while (left or books.missing()) and time.monotonic() < deadline_s:
        with suppress(penstock.PenstockError):
            left = left_in_queues(port)
        time.sleep(0.5)
    time.sleep(LEASE_S / 4)
    return left


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [builds.FIRST], indirect=True, ids=["first"])
def test_a_cluster_is_upgraded_node_by_node_under_load(cluster: Cluster, tmp_path: Path) -> None:
    _roll(cluster, tmp_path, builds.SOURCES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cluster", [builds.SOURCES], indirect=True, ids=["own"])
def test_a_cluster_is_downgraded_node_by_node_under_load(cluster: Cluster, tmp_path: Path) -> None:
    _roll(cluster, tmp_path, builds.FIRST)


def _roll(cluster: Cluster, tmp_path: Path, build: Path) -> None:
    books, end = Books(), tmp_path / "end"
    create_queues(cluster.ports["a"].http)
    with ExitStack() as stack:
        url = f"penstock://127.0.0.1:{cluster.ports['a'].http}"
        clients = {"earlier": builds.FIRST, "own": builds.SOURCES}
        pumps = [pumping(stack, build, url, name, end) for name, build in clients.items()]
        loads = [Load(name, cluster.ports[name], books, 1, PACE_S) for name in NAMES]
        for load in loads:
            stack.callback(load.join)
            stack.callback(load.stop)
        books.begin()
        await_service(books)
        for name in NAMES:
            cluster.replace(name, build)
            await_service(books)
            if name == "a":  # what one build writes is read by the other, and the other way round
                cluster.move_a_shard("a", "c")
                await_service(books)
                cluster.move_a_shard("c", "a")
                await_service(books)
        for load in loads:
            load.stop_sending()
        books.end()
        end.touch()
        left = drained(cluster.ports["a"].http, books)
        told = [pump() for pump in pumps]
    report = books.report(f"rolling to {build.name}", 1, left, [], [])
    print(report)
    assert report.is_good, report
    misunderstood = [error for error in report.errors if MISUNDERSTOOD.search(error)]
    assert (
        not misunderstood
    )  # what else fails is covered by a retry: nobody listens, the server stops, a session is over
    for each in told:
        assert each["sent"] and not each["errors"] and not set(each["sent"]) - set(each["received"])
    assert sum(len(cluster.served_by(name)) for name in NAMES) == SHARDS


def test_a_node_of_the_first_build_does_not_join_a_cluster_that_it_cannot_talk_to(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    versions = Versions(4, 5)
    for place in ("cluster.links.server", "cluster.node", "cluster.placement.controller"):
        monkeypatch.setattr(f"penstock.{place}.VERSIONS", versions)
    monkeypatch.setattr("penstock.cluster.links.connection.read_greeting", partial(read_greeting, versions=versions))
    monkeypatch.setattr(
        "penstock.cluster.links.server.read_introduction", partial(read_introduction, versions=versions)
    )
    name = unique_prefix("later")
    text = settings_text(kafka, name, "first", tmp_path / "first", session_s=SESSION_S)
    first = ProcessNode.with_settings("first", tmp_path, text)
    first.environment = builds.environment(builds.FIRST)
    with thread_node(kafka, name, "later", tmp_path, session_s=SESSION_S) as later:
        until(lambda: later.own_shards == list(range(SHARDS)), "all shards")
        try:
            first.launch()
            until(lambda: not first.is_running, "the end of the earlier node")
        finally:
            first.kill()
        assert "speaks version 4 of links, and this one version 2" in first.log
        assert later.own_shards == list(range(SHARDS))
