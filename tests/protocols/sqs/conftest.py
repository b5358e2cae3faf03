from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.server.settings import SqsSettings
from tests import clustered
from tests.protocols.sqs.serving import Server

_names = itertools.count(1)


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Limits as on AWS. Tests share it, each with queues of its own."""
    server = Server(tmp_path_factory.mktemp("aws") / "data")
    yield server
    server.stop()


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def sqs(server: Server) -> Any:
    return server.client()


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def relaxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("relaxed") / "data", SqsSettings(limits="relaxed"))
    yield server
    server.stop()


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With AWS's pauses."""
    server = Server(tmp_path_factory.mktemp("pauses") / "data", SqsSettings(limits="strict"))
    yield server
    server.stop()


@pytest.fixture
def name() -> str:
    """A queue's name that nobody else uses."""
    return f"queue-{next(_names)}"


@pytest.fixture
def url(sqs: Any, name: str) -> str:
    """A new standard queue."""
    return str(sqs.create_queue(QueueName=name)["QueueUrl"])


@pytest.fixture
def fifo_url(sqs: Any, name: str) -> str:
    """A new FIFO queue."""
    return str(sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"])


@pytest.fixture
def make(sqs: Any, name: str) -> Callable[..., str]:
    """Makes further queues: `make("dead", VisibilityTimeout="5")`."""

    def make(suffix: str, **attributes: str) -> str:
        full_name = f"{name}-{suffix}" + (".fifo" if attributes.get("FifoQueue") == "true" else "")
        return str(sqs.create_queue(QueueName=full_name, Attributes=attributes)["QueueUrl"])

    return make
