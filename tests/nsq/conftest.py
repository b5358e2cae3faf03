from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.nsq.servers import AGAINST_NSQD, Broker, Nsqd, Penstock, running

_names = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Shared by all tests that do not kill it, each with topics of its own."""
    directory = tmp_path_factory.mktemp("nsq")
    with running(Nsqd(directory) if AGAINST_NSQD else Penstock(directory)) as server:
        yield server


@pytest.fixture
def topic() -> str:
    """A topic's name that nobody else uses."""
    return f"topic-{next(_names)}"
