from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.server import Server, serving

collect_ignore = ["airflow/walk.py"]  # a program for the Python that has Airflow

_names = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Shared by all tests that do not kill it, each with queues of its own."""
    with serving(tmp_path_factory.mktemp("compat")) as server:
        yield server


@pytest.fixture(scope="package")
def sqs(server: Server) -> Any:
    return server.client()


@pytest.fixture
def name() -> str:
    """A queue's name that nobody else uses."""
    return f"compat-{next(_names)}"


@pytest.fixture
def url(sqs: Any, name: str) -> str:
    """A new standard queue."""
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])
