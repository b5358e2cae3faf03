"""Nodes in this process, on a real Kafka or ZooKeeper: who owns what as nodes come, go and are drained."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.cluster.membership import kafka as membership
from penstock.cluster.membership.view import NoCluster
from penstock.cluster.node import NameTaken
from penstock.core.commands import Ack, Receive, Send
from penstock.core.errors import InvalidRequest
from penstock.server.metrics import render
from penstock.server.settings import InvalidSettings, parse
from tests.cluster.backends import backend  # noqa: F401
from tests.cluster.nodes import SHARDS, Backend, ThreadNode, look, settings_text, thread_node, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tests.server.bare import bodies, spans
from tools.kafka import KafkaCluster

QUEUES = [f"q{number}" for number in range(8)]


def cli(cluster: Backend, name: str, *arguments: str) -> Any:
    where = [*cluster.flags, "--cluster", name, "--json"]
    result = CliRunner().invoke(app, ["cluster", *arguments, *where])
    assert result.exit_code == 0, result.output
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


def send(node: ThreadNode, body: bytes) -> None:
    for queue in QUEUES:
        node.call(Send(queue=queue, bodies=[body]))


def receive_and_ack(node: ThreadNode) -> list[bytes]:
    found = []
    for queue in QUEUES:
        delivery = node.call(Receive(queue=queue, limit=10, wait_ms=10_000))
        found += bodies(delivery)
        assert not node.call(Ack(queue=queue, spans=spans(delivery))).refused
    return found


def test_nodes_share_the_shards_and_give_them_away_when_they_leave(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("nodes")
    with thread_node(backend, name, "a", tmp_path) as a:
        until(lambda: a.own_shards == list(range(SHARDS)), "all shards")
        send(a, b"one")
        with thread_node(backend, name, "b", tmp_path) as b:
            until(lambda: len(b.own_shards) == len(a.own_shards) == SHARDS // 2, "an even share")
            assert receive_and_ack(b) == [b"one"] * len(QUEUES)
            _wishes_are_followed(backend, name, a, b)
            send(b, b"two")
        until(lambda: a.own_shards == list(range(SHARDS)), "everything")
        assert receive_and_ack(a) == [b"two"] * len(QUEUES)
        _metrics_tell_of_each_shard(a)
    with thread_node(backend, name, "c", tmp_path) as c:
        until(lambda: c.own_shards == list(range(SHARDS)), "all shards")
        send(c, b"three")
        assert receive_and_ack(c) == [b"three"] * len(QUEUES)


def _wishes_are_followed(cluster: Backend, name: str, a: ThreadNode, b: ThreadNode) -> None:
    moving = a.own_shards[0]
    cli(cluster, name, "move", str(moving), "b", "--wait", "60")
    assert moving in b.own_shards or until(lambda: moving in b.own_shards, "the news")
    cli(cluster, name, "drain", "b", "--wait", "60")
    until(lambda: not b.own_shards, "a drain")
    rows: list[dict[str, Any]] = []

    def shows_a_serving_all() -> bool:
        rows[:] = cli(cluster, name, "show")
        states = {row["node"]: row["state"] for row in rows if "node" in row}
        served_by = [row["served_by"] for row in rows if "shard" in row]
        return (served_by, states) == (["a"] * SHARDS, {"a": "serving", "b": "draining"})

    until(shows_a_serving_all, "all served by the other")
    assert [row["wish"] for row in rows if row.get("shard") == moving] == ["b"]
    cli(cluster, name, "move", str(moving), "any")
    cli(cluster, name, "undrain", "b")
    until(lambda: len(b.own_shards) == SHARDS // 2, "a share after the drain")
    with pytest.raises(InvalidRequest, match="no node 'x' is alive"):
        look(a.node._settings).drain("x")


def _metrics_tell_of_each_shard(node: ThreadNode) -> None:
    async def shown() -> str:
        return render(node.node.services.metric_sources).decode()

    text = asyncio.run_coroutine_threadsafe(shown(), node._loop).result(30)
    for shard in range(SHARDS):
        assert f'penstock_shard_commits_total{{node="{node.name}",shard="{shard}"}}' in text
        assert f'penstock_shard_backlog{{node="{node.name}",shard="{shard}"}} 0.0' in text
    assert "# TYPE penstock_forwarded_commands_total counter" in text


def test_a_node_that_comes_back_does_not_take_what_was_its_own_once(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = unique_prefix("history")
    with thread_node(backend, name, "a", tmp_path) as a:
        with thread_node(backend, name, "b", tmp_path) as b:
            until(lambda: len(b.own_shards) == SHARDS // 2, "an even share")
        until(lambda: a.own_shards == list(range(SHARDS)), "everything")
        _read_slowly(monkeypatch)
        caplog.clear()
        with thread_node(backend, name, "b", tmp_path) as b:
            until(lambda: len(b.own_shards) == SHARDS // 2, "an even share once more")
    assert not [record.getMessage() for record in caplog.records if "is given up" in record.getMessage()]


def _read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said of a shard long ago is there for a moment before what was said of it later."""
    at_once = membership.KafkaMembership._tell

    def later(self: membership.KafkaMembership, listener: Any, *what: Any) -> None:
        if not self.has_caught_up:
            time.sleep(0.02)
        at_once(self, listener, *what)

    monkeypatch.setattr(membership, "READ_RECORDS_MAX", 1)
    monkeypatch.setattr(membership.KafkaMembership, "_tell", later)


def test_what_clients_have_in_hand_stays_theirs_when_another_node_stops(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    name = unique_prefix("in-hand")
    with thread_node(backend, name, "a", tmp_path) as a:
        with thread_node(backend, name, "b", tmp_path) as b:
            until(lambda: len(b.own_shards) == SHARDS // 2, "an even share")
            url = a.node._record_of_node.urls["http"].replace("http", "penstock", 1)
            with penstock.connect(url) as client:
                for queue in QUEUES:
                    client.queue(queue).send(b"work")
                messages = [client.queue(queue).receive(wait=30) for queue in QUEUES]
                assert all(messages)
                b.stop()  # in order, as SIGTERM does it
                until(lambda: a.own_shards == list(range(SHARDS)), "everything")
                with penstock.connect(url) as other:
                    assert [other.queue(queue).receive() for queue in QUEUES] == [None] * len(QUEUES)
                for message in messages:
                    assert message is not None
                    message.ack()
                stats = [client.queue(queue).stats() for queue in QUEUES]
        assert [(each.channels["main"].acked, each.channels["main"].failed) for each in stats] == [(1, 0)] * len(QUEUES)


def test_of_two_processes_with_one_name_the_second_goes_on(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("twins")
    with (
        thread_node(backend, name, "a", tmp_path) as first,
        thread_node(backend, name, "a", tmp_path / "other") as second,
    ):
        until(lambda: first.fatal, "a word to the first")
        assert isinstance(first.fatal[0], NameTaken)
        first.stop()
        assert first.failure is first.fatal[0]
        until(lambda: second.own_shards == list(range(SHARDS)), "all shards")
        send(second, b"one")
        assert receive_and_ack(second) == [b"one"] * len(QUEUES)
        states = [row["state"] for row in cli(backend, name, "show") if "node" in row]
        assert (states, second.fatal) == (["serving"], [])


def test_a_cluster_that_was_never_started_is_not_there(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("nowhere")
    with pytest.raises(NoCluster, match=name):
        look(parse(settings_text(backend, name, "a", tmp_path, session_s=6)))


def test_a_node_of_another_name_does_not_take_the_topics_of_a_cluster(kafka: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("renamed")
    with thread_node(kafka, name, "a", tmp_path):
        pass
    text = settings_text(kafka, "other", "b", tmp_path / "b", session_s=3)
    text = text.replace('name = "other"', f'name = "other"\nprefix = "{name}"')
    with pytest.raises(InvalidSettings, match=f"topics of {name} belong to the cluster '{name}'.*'other'"):
        ThreadNode(parse(text))
