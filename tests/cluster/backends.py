"""What clusters live in, for tests that run on each: a session's Kafka, or a session's ZooKeeper."""

from __future__ import annotations

import pytest

from tests.cluster.nodes import Backend
from tests.kafka import shared_kafka
from tests.zookeeper import shared_zookeeper


@pytest.fixture(params=["kafka", "zookeeper"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Started by whoever needs it first, and shared."""
    return shared_kafka() if request.param == "kafka" else shared_zookeeper()
