"""The controller on a real Kafka: what one does that was the controller, and does not know yet that it is no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cluster.membership.kafka import kafka_controller
from penstock.cluster.membership.ledger import Ledger
from penstock.server.settings import parse
from penstock.wire.requests import Versions
from tests.cluster.nodes import SHARDS, settings_text, thread_node, until
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster


def test_a_controller_decides_again_after_a_former_one_came_back_for_a_moment(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    """One that was cut off writes its name as soon as it can; then it hears that another one has taken its place."""
    name = unique_prefix("former")
    options = parse(settings_text(kafka, name, "former", tmp_path / "former", session_s=3.0)).kafka_options()
    with thread_node(kafka, name, "a", tmp_path) as a:
        until(lambda: a.own_shards == list(range(SHARDS)), "all shards")
        former = kafka_controller(options, "former", Ledger(), session_timeout_s=3.0, cool_down_s=0.2)
        former.turn()
        former.step_down()
        with thread_node(kafka, name, "b", tmp_path) as b:
            until(lambda: len(b.own_shards) == len(a.own_shards) == SHARDS // 2, "a decision")


def test_a_node_that_the_controller_cannot_talk_to_gets_no_shards(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = unique_prefix("apart")
    with thread_node(kafka, name, "a", tmp_path) as a:
        until(lambda: a.own_shards == list(range(SHARDS)), "all shards")
        monkeypatch.setattr("penstock.cluster.node.VERSIONS", Versions(7, 8))
        with thread_node(kafka, name, "later", tmp_path) as later:
            monkeypatch.undo()
            with thread_node(kafka, name, "b", tmp_path) as b:
                until(lambda: len(b.own_shards) == len(a.own_shards) == SHARDS // 2, "a decision")
                assert not later.own_shards
    told = [record.getMessage() for record in caplog.records if "it gets no shards" in record.getMessage()]
    assert told == [
        "node later speaks version 7 to 8 of links, and this one version 2 to 4: it gets no shards until the one with "
        "the lower number is upgraded"
    ]
