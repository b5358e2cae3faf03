from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.adapter import World
from tests.server.bare import BareShard
from tests.server.stores import TroubledStore


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


@pytest.fixture(params=["threads", "tasks", "tasks-committing-in-a-thread"])
def world(request: pytest.FixtureRequest, store: TroubledStore) -> Iterator[World]:
    in_thread = request.param == "tasks-committing-in-a-thread"
    world = World(store.open, tasks=request.param != "threads", commit_in_thread=in_thread)
    yield world
    world.close()


@pytest.fixture
def bare(store: TroubledStore) -> BareShard:
    return BareShard(store)


@pytest.fixture
def ps(world: World) -> Any:
    return world.ps
