"""One Spark session for all tests here, a server process, and a fresh checkpoint for each stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.worker_python import worker_python
from tests.compat.server import Server, serving
from tests.spark.running import SILENT, Queues, session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("spark")
    made = session("local[2]", directory)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def no_streams_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def queues(server: Server, spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Queues:
    return Queues(server, spark, tmp_path)


os.environ.setdefault("PYSPARK_PYTHON", worker_python())
assert SILENT.exists()
