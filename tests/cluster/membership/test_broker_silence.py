"""A broker stands still: clusters can be looked at, and shards get new owners all the same."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from penstock.cluster.membership.inspection import Inspection
from penstock.server.settings import parse
from penstock.store.journal.kafka_options import KafkaOptions
from tests.cluster.nodes import RETRY_TIMEOUT_S, SHARDS, ProcessNode, settings_text, until
from tests.kafka import needed_cluster, unique_prefix
from tools.kafka import KafkaCluster

SESSION_S = 4.0
LOOK_S_MAX = 2.0
SHOWN_S_MAX = 5.0
"""With a new process, on a machine that does a lot besides."""
BROKERS = 3
SOON = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
"""When Kafka replaces a broker that stands still."""
NEVER = {"broker.session.timeout.ms": 600_000, "replica.lag.time.max.ms": 600_000}
three_brokers = pytest.mark.skipif(
    not os.environ.get("PENSTOCK_TEST_CLUSTER"), reason="three brokers and a minute: it is in make cluster-test"
)


def _leader_of(options: KafkaOptions) -> int:
    topic = options.partitions_topic
    found = (
        AdminClient({"bootstrap.servers": options.bootstrap}).list_topics(topic, timeout=RETRY_TIMEOUT_S).topics[topic]
    )
    return int(found.partitions[0].leader)


def _settings(kafka: KafkaCluster, cluster: str, name: str, directory: Path) -> str:
    text = settings_text(kafka, cluster, name, directory / name, session_s=SESSION_S)
    return text.replace("replication_factor = 1", "replication_factor = 3").replace(
        "min_insync_replicas = 1", "min_insync_replicas = 2"
    )


@contextlib.contextmanager
def _two_nodes(
    kafka: KafkaCluster,
    cluster: str,
    directory: Path,
) -> Iterator[tuple[list[ProcessNode], KafkaOptions]]:
    nodes = [
        ProcessNode.with_settings(name, directory, _settings(kafka, cluster, name, directory)) for name in ("a", "b")
    ]
    try:
        for node in nodes:
            node.start()
        until(lambda: len(nodes[1].served) == SHARDS // 2, "an even share")
        yield nodes, parse(_settings(kafka, cluster, "cli", directory)).kafka_options()
    finally:
        for node in nodes:
            node.kill()


@contextlib.contextmanager
def _standing(kafka: KafkaCluster, broker: int) -> Iterator[None]:
    kafka.pause(broker)
    try:
        yield
    finally:
        kafka.resume(broker)


def _shown(options: KafkaOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """What `penstock cluster show` says, soon: nodes, shards, and what it complains of."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "penstock", "cluster", "show", "--json"]
    command += ["--bootstrap", options.bootstrap, "--cluster", options.cluster]
    done = subprocess.run(command, capture_output=True, timeout=RETRY_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert time.monotonic() - began_s < SHOWN_S_MAX
    rows = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    complaints = [line for line in done.stderr.decode().splitlines() if line.startswith("penstock:")]
    return [row for row in rows if "node" in row], [row for row in rows if "shard" in row], "".join(complaints)


def _looks_soon(options: KafkaOptions, what: str) -> None:
    """What `penstock cluster show` does takes so long at most, the start of a process not counted."""
    began_s = time.monotonic()
    Inspection(options, is_quick=True)
    took_s = time.monotonic() - began_s
    print(f"a look with {what}: {took_s:.2f} s")
    assert took_s < LOOK_S_MAX, what


def _states(options: KafkaOptions) -> dict[str, str]:
    return {row["node"]: row["state"] for row in _shown(options)[0]}


@three_brokers
def test_the_shards_of_a_killed_node_are_served_again_while_a_broker_stands_still(tmp_path: Path) -> None:
    cluster = unique_prefix("silence")
    with needed_cluster(BROKERS, SOON) as kafka, _two_nodes(kafka, cluster, tmp_path) as (nodes, options):
        for broker in range(BROKERS):
            with _standing(kafka, broker):
                for _ in range(3):
                    _looks_soon(options, f"broker {broker} standing still")
                until(lambda: _states(options) == {"a": "serving", "b": "serving"}, f"a look without broker {broker}")
        with _standing(kafka, next(each for each in range(BROKERS) if each != _leader_of(options))):
            nodes[1].kill()
            until(lambda: _serves_everything(nodes[0]), "an owner of every shard")
            until(lambda: _states(options).get("b", "gone") == "gone", "a look without b")
        for broker in range(BROKERS):
            kafka.kill(broker)
            for _ in range(3):
                _looks_soon(options, f"broker {broker} killed")
            until(lambda: _states(options).get("a") == "serving", f"a look without broker {broker}")
            kafka.start(broker)


@three_brokers
def test_what_cannot_be_known_while_the_leader_of_the_topic_stands_still_is_said_soon(tmp_path: Path) -> None:
    """Kafka does not replace it: the topic cannot be read, however long one waits."""
    with needed_cluster(BROKERS, NEVER) as kafka, _two_nodes(kafka, unique_prefix("apart"), tmp_path) as (_, options):
        leader = _leader_of(options)
        with _standing(kafka, leader):
            nodes, shards, complaints = _shown(options)
        assert f"broker {leader} leads it, and does not answer" in complaints
        assert "which nodes are alive" not in complaints
        assert not nodes
        assert [(row["shard"], row["state"]) for row in shards] == [(each, "not known") for each in range(SHARDS)]
        until(lambda: _states(options) == {"a": "serving", "b": "serving"}, "everything, when it goes on")
        assert list(shards[0]) == list(_shown(options)[1][0])


def _serves_everything(node: ProcessNode) -> bool:
    """As its metrics say: Kafka need not be asked for that."""
    with urlopen(f"{node.listening['http']['url']}/metrics", timeout=RETRY_TIMEOUT_S) as answer:
        text = answer.read().decode()
    return sum(line.startswith("penstock_shard_epoch{") for line in text.splitlines()) == SHARDS
