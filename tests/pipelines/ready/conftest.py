"""One Spark session for all tests here, as tests/spark has it; and a server that records events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipelines.where import Where
from tests.compat.server import Server, serving
from tests.spark.conftest import no_streams_left, queues, spark
from tests.spark.running import Queues

__all__ = ["no_streams_left", "queues", "server", "spark", "where"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("recording-server")
    config = directory / "penstock.toml"
    config.write_text("[events]\nenabled = true\nflush_s = 0.1\n")
    with serving(directory, "--config", str(config)) as running:
        yield running


@pytest.fixture
def where(queues: Queues) -> Where:
    return Where(queues.url)


@pytest.fixture
def archive_path(tmp_path: Path) -> Path:
    return tmp_path / "archive"
