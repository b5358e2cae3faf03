from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.adapter import World, directory_store, memory_store

WORLDS = ["threads-memory", "threads-directory", "tasks-memory"]
"""Both APIs and both stores; the fourth pair only where the disk is the point."""
ABOUT_THE_DISK = ("test_restart", "test_unit_of_work")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        about_the_disk = metafunc.module.__name__.endswith(ABOUT_THE_DISK)
        metafunc.parametrize("world", [*WORLDS, "tasks-directory"] if about_the_disk else WORLDS, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    api, store = request.param.split("-")
    opener = memory_store() if store == "memory" else directory_store(tmp_path / "data")
    world = World(opener, tasks=api == "tasks", commit_in_thread=store == "directory")
    yield world
    world.close()


@pytest.fixture
def ps(world: World) -> Any:
    return world.ps
