"""The Kafka engine passes the conformance suite, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.store.base import Store
from penstock.store.embedded import StoreOptions
from penstock.store.kafka import KafkaStore, open_kafka, prepare_topics, wipe
from tests.kafka import kafka  # noqa: F401
from tests.store.conformance import Engine, StoreConformance
from tests.store.kafka_engine import options_for
from tools.kafka import KafkaCluster


def kafka_engine(kafka: KafkaCluster, directory: Path, store_options: StoreOptions, *, wiped: bool) -> Engine:  # noqa: F811
    options = options_for(kafka)
    topics = prepare_topics(options)

    def open_again() -> KafkaStore:
        return open_kafka(options, 0, directory, topics=topics, store_options=store_options)

    def reopen(store: Store) -> Store:
        assert isinstance(store, KafkaStore)
        store.close(apply=not wiped)
        if wiped:
            wipe(directory / "shard-0")
        return open_again()

    return Engine(open_again, reopen)


class TestKafkaStore(StoreConformance):
    """As nodes have it: opened again with its cache."""

    seeds = range(2)
    steps = 25

    @pytest.fixture
    def engine(self, kafka: KafkaCluster, tmp_path: Path) -> Engine:  # noqa: F811
        return kafka_engine(kafka, tmp_path, StoreOptions(), wiped=False)


class TestKafkaStoreFromItsLog:
    """At another machine each time: the cache is made anew from Kafka, in small pieces."""

    seeds = range(2, 4)
    steps = 25

    @pytest.fixture
    def engine(self, kafka: KafkaCluster, tmp_path: Path) -> Engine:  # noqa: F811
        options = StoreOptions(apply_live_bytes=2000, apply_written_bytes=4000, unapplied_bytes_max=8000)
        return kafka_engine(kafka, tmp_path, options, wiped=True)

    test_reopened_store_holds_the_same = StoreConformance.test_reopened_store_holds_the_same
    test_commit_far_larger_than_usual_is_kept = StoreConformance.test_commit_far_larger_than_usual_is_kept
    test_commit_of_thousands_of_parts_is_kept = StoreConformance.test_commit_of_thousands_of_parts_is_kept
    test_any_history_matches_the_model = StoreConformance.test_any_history_matches_the_model_and_survives_reopening
