from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.remote.address import TRANSPORTS
from tests import clustered
from tests.client.adapter import World, directory_store, memory_store

IN_PROCESS = ["threads-memory", "threads-directory", "tasks-memory"]
"""Both APIs and both stores; the fourth pair only where the disk is the point."""
NETWORK = ["threads-websocket", "tasks-websocket", "threads-long_poll", "tasks-poll"]
"""Both APIs against a server, by every transport."""
ABOUT_THE_DISK = ("test_restart", "test_unit_of_work")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        in_process = [] if clustered.NODES else IN_PROCESS
        worlds = in_process if getattr(metafunc.function, "in_process_only", False) else in_process + NETWORK
        if in_process and metafunc.module.__name__.endswith(ABOUT_THE_DISK):
            worlds = [*worlds, "tasks-directory"]
        metafunc.parametrize("world", worlds, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    api, where = request.param.split("-")
    opener = directory_store(tmp_path / "data") if where == "directory" else memory_store()
    transport = where if where in TRANSPORTS else None
    world = World(opener, tasks=api == "tasks", commit_in_thread=where == "directory", transport=transport)
    yield world
    world.close()


@pytest.fixture
def ps(world: World) -> Any:
    return world.ps
