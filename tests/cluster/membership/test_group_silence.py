"""Who is alive, while a broker stands still: clusters can be looked at, and shards get new owners all the same."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock.cluster.membership.group import GroupAsker, GroupSilent, Opening, Question, nodes_group
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.membership.kafka import make_partitions_topic
from penstock.cluster.membership.ledger import Ledger, NodeRecord, encode
from penstock.cluster.placement.kafka import SILENCE_S, Heartbeats, kafka_controller
from penstock.server.settings import parse
from penstock.store.journal.kafka_options import KafkaOptions
from tests.cluster.nodes import RETRY_TIMEOUT_S, SHARDS, ProcessNode, settings_text, thread_node, until
from tests.kafka import kafka, needed_cluster, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster

SESSION_S = 4.0
BROKERS = 3
SOON = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
"""When Kafka replaces a broker that stands still."""
NEVER = {"broker.session.timeout.ms": 600_000, "replica.lag.time.max.ms": 600_000}
three_brokers = pytest.mark.skipif(
    not os.environ.get("PENSTOCK_TEST_CLUSTER"), reason="three brokers and a minute: it is in make cluster-test"
)


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


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_the_group_says_who_is_alive_also_after_whoever_asks_it_was_killed(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_prefix("asked")
    with thread_node(kafka, name, "a", tmp_path) as a:
        asker = GroupAsker(a.node._settings.kafka_options())
        try:
            asker.ask(RETRY_TIMEOUT_S)
            assert asker.answer(RETRY_TIMEOUT_S) == {"a"}
            assert asker.answer() is None, "nothing was asked"
            assert asker._process is not None
            os.kill(asker._process.pid, signal.SIGKILL)
            asker.ask(RETRY_TIMEOUT_S)
            with pytest.raises(GroupSilent, match="ended"):
                asker.answer(RETRY_TIMEOUT_S)
            asker.ask(RETRY_TIMEOUT_S)
            assert asker.answer(RETRY_TIMEOUT_S) == {"a"}
        finally:
            asker.close()
        seen = Inspection(a.node._settings.kafka_options())
        assert (seen.alive, seen.silence) == ({"a"}, None)


def test_a_group_that_does_not_answer_is_silent() -> None:
    asker = GroupAsker(KafkaOptions("127.0.0.1:9", "nobody", "nobody"))
    asker.ask(0.5)
    try:
        with pytest.raises(GroupSilent):
            asker.answer(RETRY_TIMEOUT_S)
    finally:
        asker.close()


@pytest.mark.parametrize("asked", [False, True])
def test_who_asks_for_a_node_that_is_killed_ends_without_a_word(asked: bool) -> None:
    """Its words would be in the node's log."""
    command = [sys.executable, "-m", "penstock.cluster.membership.group"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.close()
        if asked:
            lines = [Opening({"bootstrap.servers": "127.0.0.1:1"}, "nodes"), Question(0.5)]
            process.stdin.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        process.stdin.close()
        assert (process.stderr.read(), process.wait(RETRY_TIMEOUT_S)) == (b"", 0)


def test_a_controller_that_cannot_start_a_process_goes_on_by_what_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine, or for a user, that has no room for another process or another pipe."""

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    ledger = Ledger()
    ledger.apply(0, "node/a", encode(NodeRecord(incarnation="1", link="127.0.0.1:9")))
    options = KafkaOptions("127.0.0.1:9", "nobody", "nobody")
    controller = kafka_controller(options, "a", ledger, session_timeout_s=3.0, cool_down_s=0.2)
    controller.heard("a")
    monkeypatch.setattr(subprocess, "Popen", no_room)
    assert controller._alive(0.0) == ["a"]


def _leader_of(options: KafkaOptions) -> int:
    topic = options.partitions_topic
    found = (
        AdminClient({"bootstrap.servers": options.bootstrap}).list_topics(topic, timeout=RETRY_TIMEOUT_S).topics[topic]
    )
    return int(found.partitions[0].leader)


def _coordinator_of(options: KafkaOptions) -> int:
    """A Kafka that was just started may not have one yet."""
    group, admin = nodes_group(options), AdminClient({"bootstrap.servers": options.bootstrap})
    found: list[int] = []

    def is_known() -> bool:
        with contextlib.suppress(KafkaException):
            found.append(admin.describe_consumer_groups([group])[group].result(RETRY_TIMEOUT_S).coordinator.id)
        return bool(found)

    until(is_known, "a coordinator")
    return found[0]


def _settings(kafka: KafkaCluster, cluster: str, name: str, directory: Path) -> str:  # noqa: F811
    text = settings_text(kafka, cluster, name, directory / name, session_s=SESSION_S)
    return text.replace("replication_factor = 1", "replication_factor = 3").replace(
        "min_insync_replicas = 1", "min_insync_replicas = 2"
    )


@contextlib.contextmanager
def _two_nodes(
    kafka: KafkaCluster,  # noqa: F811
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
def _standing(kafka: KafkaCluster, broker: int) -> Iterator[None]:  # noqa: F811
    kafka.pause(broker)
    try:
        yield
    finally:
        kafka.resume(broker)


def _shown(options: KafkaOptions) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """What `penstock cluster show` says: nodes, shards, and what it complains of."""
    command = [sys.executable, "-m", "penstock", "cluster", "show", "--json"]
    command += ["--bootstrap", options.bootstrap, "--cluster", options.cluster]
    done = subprocess.run(command, capture_output=True, timeout=RETRY_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    rows = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    complaints = [line for line in done.stderr.decode().splitlines() if line.startswith("penstock:")]
    return [row for row in rows if "node" in row], [row for row in rows if "shard" in row], "".join(complaints)


def _states(options: KafkaOptions) -> dict[str, str]:
    return {row["node"]: row["state"] for row in _shown(options)[0]}


@three_brokers
def test_the_shards_of_a_killed_node_are_served_again_while_a_broker_stands_still(tmp_path: Path) -> None:
    cluster = unique_prefix("silence")
    with needed_cluster(BROKERS, SOON) as kafka, _two_nodes(kafka, cluster, tmp_path) as (nodes, options):  # noqa: F811
        for broker in range(BROKERS):
            with _standing(kafka, broker):
                until(lambda: _states(options) == {"a": "serving", "b": "serving"}, f"a look without broker {broker}")
        with _standing(kafka, next(each for each in range(BROKERS) if each != _leader_of(options))):
            nodes[1].kill()
            until(lambda: _serves_everything(nodes[0]), "an owner of every shard")
            until(lambda: _states(options).get("b", "gone") == "gone", "a look without b")


def _cluster_with_two_brokers(kafka: KafkaCluster, directory: Path) -> str:  # noqa: F811
    """The name of a cluster whose topic has another leader than its group has a coordinator."""
    while True:
        name = unique_prefix("apart")
        options = parse(_settings(kafka, name, "cli", directory)).kafka_options()
        make_partitions_topic(options)
        if _coordinator_of(options) != _leader_of(options):
            return name


@three_brokers
def test_what_cannot_be_known_while_the_coordinator_stands_still_is_said(tmp_path: Path) -> None:
    """Kafka does not replace it: then nodes cannot write that they are there, either."""
    with needed_cluster(BROKERS, NEVER) as kafka:  # noqa: F811
        cluster = _cluster_with_two_brokers(kafka, tmp_path)
        with _two_nodes(kafka, cluster, tmp_path) as (_, options):
            coordinator, leader = _coordinator_of(options), _leader_of(options)
            with _standing(kafka, next(each for each in range(BROKERS) if each not in (coordinator, leader))):
                until(lambda: _states(options) == {"a": "serving", "b": "serving"}, "the coordinator's word")
            with _standing(kafka, coordinator):
                nodes, shards, complaints = _shown(options)
        assert "does not say which nodes are alive" in complaints
        assert {row["node"]: row["state"] for row in nodes} == {"a": "not known", "b": "not known"}
        assert {row["served_by"] for row in shards} == {"a", "b"}
        assert {row["state"] for row in shards} == {"not known"}


@three_brokers
def test_what_cannot_be_known_while_the_leader_of_the_topic_stands_still_is_said(tmp_path: Path) -> None:
    """Kafka does not replace it: the topic cannot be read, however long one waits."""
    with needed_cluster(BROKERS, NEVER) as kafka:  # noqa: F811
        cluster = _cluster_with_two_brokers(kafka, tmp_path)
        with _two_nodes(kafka, cluster, tmp_path) as (_, options):
            leader = _leader_of(options)
            with _standing(kafka, leader):
                nodes, shards, complaints = _shown(options)
            assert f"broker {leader} leads it, and does not answer" in complaints
            assert "which nodes are alive" not in complaints
            assert [(row["node"], row["state"], row["shards"]) for row in nodes] == [
                ("a", "alive", None),
                ("b", "alive", None),
            ]
            assert [(row["shard"], row["state"]) for row in shards] == [(each, "not known") for each in range(SHARDS)]
            until(lambda: _states(options) == {"a": "serving", "b": "serving"}, "everything, when it goes on")
            whole_nodes, whole_shards, _ = _shown(options)
            assert list(nodes[0]) == list(whole_nodes[0]) and list(shards[0]) == list(whole_shards[0])


def _serves_everything(node: ProcessNode) -> bool:
    """As its metrics say: Kafka need not be asked for that."""
    with urlopen(f"{node.listening['http']['url']}/metrics", timeout=RETRY_TIMEOUT_S) as answer:
        text = answer.read().decode()
    return sum(line.startswith("penstock_shard_epoch{") for line in text.splitlines()) == SHARDS
