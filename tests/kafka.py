"""A real Kafka broker for tests: one for the whole session, started when the first test asks for it.

    from tests.kafka import kafka, needed_cluster  # `kafka` is a fixture

    def test_something(kafka: KafkaCluster) -> None: ...

It is shared: tests use topics, groups and transactional ids of their own (`unique_prefix`), and do not stop it. One
that has to stop or kill brokers takes its own from `needed_cluster`. Where Kafka cannot be had, the test is skipped
loudly, and fails in CI.
"""

from __future__ import annotations

import atexit
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START, ServerError

_shared: list[KafkaCluster] = []


@pytest.fixture(scope="session")
def kafka() -> KafkaCluster:
    """The session's broker. It ends with the process, so that modules which import this fixture share one."""
    return shared_kafka()


def shared_kafka() -> KafkaCluster:
    """The same, for other fixtures."""
    if not _shared:
        with loudly():
            _shared.append(KafkaCluster(1, java_options=(QUICK_TO_START,)))
        atexit.register(_shared[0].close)
    return _shared[0]


@contextmanager
def needed_cluster(brokers: int = 1, properties: Mapping[str, object] | None = None) -> Iterator[KafkaCluster]:
    """A cluster of the test's own, for the time of a block."""
    with loudly():
        cluster = KafkaCluster(brokers, properties=properties, java_options=(QUICK_TO_START,))
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def loudly() -> Iterator[None]:
    """What cannot be had for want of Kafka is skipped, or fails in CI."""
    try:
        yield
    except ServerError as error:
        reason = f"THIS TEST DID NOT RUN: it needs Apache Kafka, which cannot be had: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def unique_prefix(name: str = "test") -> str:
    """Something for the names of topics, groups and transactional ids that no other test has."""
    return f"{name}-{uuid.uuid4().hex[:12]}"
