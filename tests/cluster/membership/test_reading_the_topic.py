"""The partitions topic is read to its end although somebody always writes to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.membership.kafka import make_partitions_topic
from penstock.cluster.membership.ledger import LoadRecord, encode
from penstock.server.settings import parse
from penstock.store.errors import LogUnsafe
from tests.cluster.nodes import ThreadNode, settings_text, thread_node
from tests.kafka import kafka, unique_prefix  # noqa: F401
from tools.kafka import KafkaCluster

INTERVAL_S = 0.02


class Chatter(threading.Thread):
    """Writes loads without a pause, as the nodes of a large cluster do."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._ending = threading.Event()

    def write(self, key: str, value: bytes) -> None:
        self._producer.produce(self._topic, key=key.encode(), value=value)
        self._producer.flush(60)

    def run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            self.write("load/elsewhere", encode(LoadRecord(at_ms=1)))

    def __enter__(self) -> Chatter:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.set()
        self.join(60)


def test_a_topic_that_never_falls_silent_is_read_to_its_end(kafka: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("chatter")
    options = parse(settings_text(kafka, name, "a", tmp_path, session_s=3)).kafka_options()
    make_partitions_topic(options)
    with Chatter(kafka.bootstrap, options.partitions_topic) as chatter:
        chatter.write("load/elsewhere", encode(LoadRecord(at_ms=0)))
        with thread_node(kafka, name, "a", tmp_path) as a:
            assert a.own_shards
            assert Inspection(options).rows()[0]["served_by"] == "a"


def test_what_somebody_else_writes_into_the_topic_is_left_alone(kafka: KafkaCluster, tmp_path: Path) -> None:  # noqa: F811
    name = unique_prefix("strangers")
    options = parse(settings_text(kafka, name, "a", tmp_path, session_s=3)).kafka_options()
    make_partitions_topic(options)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(options.partitions_topic, key=b"\xff\xfe", value=b"\x00")
    assert producer.flush(60) == 0
    with thread_node(kafka, name, "a", tmp_path) as a:
        assert a.own_shards
        assert Inspection(options).rows()[0]["served_by"] == "a"


def test_a_topic_that_will_not_do_is_said_in_a_line_and_not_as_a_bug(
    kafka: KafkaCluster,  # noqa: F811
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = unique_prefix("many")
    settings = parse(settings_text(kafka, name, "a", tmp_path, session_s=3))
    topic = NewTopic(settings.kafka_options().partitions_topic, 3, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([topic])[topic.topic].result(60)
    with pytest.raises(LogUnsafe, match="has 3 partitions: it must have one"):
        ThreadNode(settings)
    said = [record for record in caplog.records if record.name == "penstock.cluster"]
    assert any("3 partitions" in record.getMessage() for record in said)
    assert not any(record.exc_info for record in said)
