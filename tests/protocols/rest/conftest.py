from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import clustered
from tests.protocols.rest.serving import Server

_names = itertools.count(1)


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without credentials. Tests share it, each with queues of its own."""
    server = Server(tmp_path_factory.mktemp("open") / "data")
    yield server
    server.stop()


@pytest.fixture(scope=clustered.SERVER_SCOPE)
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def name() -> str:
    """A queue's name that nobody else uses."""
    return f"queue-{next(_names)}"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers with settings of their own, and stops them."""
    started: list[Server] = []

    def serve(text: str = "", **options: Any) -> Server:
        started.append(Server(tmp_path / f"data-{len(started)}", text, **options))
        return started[-1]

    yield serve
    for server in started:
        server.stop()
