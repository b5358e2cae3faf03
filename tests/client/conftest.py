from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.adapter import World, directory_store, memory_store


@pytest.fixture(params=["threads-memory", "threads-directory", "tasks-memory", "tasks-directory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    api, store = request.param.split("-")
    opener = memory_store() if store == "memory" else directory_store(tmp_path / "data")
    world = World(opener, tasks=api == "tasks", commit_in_thread=store == "directory")
    yield world
    world.close()


@pytest.fixture
def ps(world: World) -> Any:
    return world.ps
