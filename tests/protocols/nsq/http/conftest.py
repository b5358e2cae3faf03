from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.protocols.nsq.http.serving import RunningNode, node

_names = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Tests share it, each with topics of its own."""
    with node(tmp_path_factory.mktemp("node"), latency_percentiles=[0.5, 0.99]) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """A name that nobody else uses."""
    return f"topic{next(_names)}"
