"""A broker that stands still keeps Kafka from saying who is alive; shards get new owners all the same."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient

from penstock.cluster.heartbeats import SILENCE_S, Heartbeats
from penstock.server.settings import parse
from tests.cluster.nodes import PATIENCE_S, SHARDS, ProcessNode, settings_text, until
from tests.kafka import needed_cluster, unique_prefix
from tools.kafka import KafkaCluster

SESSION_S = 4.0
BROKERS = 3


def test_after_a_silence_of_all_nobody_is_taken_for_dead() -> None:
    beats = Heartbeats()
    for name in "abc":
        beats.heard(name, 0.0)
    beats.heard("a", 100.0)
    assert beats.alive(within_s=5.0) == {"a", "b", "c"}
    for beat in range(1, 10):
        beats.heard("a", 100.0 + beat * 2 * SILENCE_S)
    assert beats.alive(within_s=5.0) == {"a", "b", "c"}, "each of these was a silence of all, too"
    for beat in range(10):
        beats.heard("a", 155.0 + beat)
    assert beats.alive(within_s=5.0) == {"a"}


def _leader_of(kafka: KafkaCluster, topic: str) -> int:
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(topic, timeout=30).topics[topic]
    return int(found.partitions[0].leader)


def _settings(kafka: KafkaCluster, cluster: str, name: str, directory: Path) -> str:
    text = settings_text(kafka, cluster, name, directory / name, session_s=SESSION_S)
    return text.replace("replication_factor = 1", "replication_factor = 3").replace(
        "min_insync_replicas = 1", "min_insync_replicas = 2"
    )


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_TEST_CLUSTER"), reason="three brokers and a minute: it is in make cluster-test"
)
def test_the_shards_of_a_killed_node_are_served_again_while_a_broker_stands_still(tmp_path: Path) -> None:
    cluster = unique_prefix("silence")
    with needed_cluster(BROKERS, {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}) as kafka:
        nodes = [
            ProcessNode.with_settings(name, tmp_path, _settings(kafka, cluster, name, tmp_path)) for name in ("a", "b")
        ]
        paused: int | None = None
        try:
            for node in nodes:
                node.start()
            options = parse(_settings(kafka, cluster, "cli", tmp_path)).kafka_options()
            until(lambda: len(nodes[1].served) == SHARDS // 2, "an even share")
            paused = next(each for each in range(BROKERS) if each != _leader_of(kafka, options.partitions_topic))
            kafka.pause(paused)
            nodes[1].kill()
            until(lambda: _serves_everything(nodes[0]), "an owner of every shard")
        finally:
            if paused is not None:
                kafka.resume(paused)
            for node in nodes:
                node.kill()


def _serves_everything(node: ProcessNode) -> bool:
    """As its metrics say: Kafka need not be asked for that."""
    with urlopen(f"{node.listening['http']['url']}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return sum(line.startswith("penstock_shard_epoch{") for line in text.splitlines()) == SHARDS
