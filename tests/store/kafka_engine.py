"""What tests of the Kafka engine share: topics of their own on the session's broker."""

from __future__ import annotations

from typing import Any

from penstock.store.journal.kafka_options import KafkaOptions
from tests.kafka import unique_prefix
from tools.kafka import KafkaCluster

ALONE: dict[str, Any] = {"shards": 1, "replication_factor": 1, "min_insync_replicas": 1, "commit_timeout_s": 60.0}


def options_for(kafka: KafkaCluster, **changes: Any) -> KafkaOptions:
    """Options of a cluster that nobody else has."""
    prefix = unique_prefix()
    return KafkaOptions(kafka.bootstrap, prefix, prefix, **{**ALONE, **changes})
