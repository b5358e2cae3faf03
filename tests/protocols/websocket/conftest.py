from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from tests.client.adapter import LoopThread
from tests.client.serving import Server, serve
from tests.shards import open_shards, stepping_clock


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Servers on free ports, each over a store in memory."""
    loop = LoopThread()
    made: list[Server] = []

    def make(**options: Any) -> Server:
        stores: dict[int, Store] = {}

        async def start() -> Server:
            shards = open_shards(lambda number: stores.setdefault(number, MemoryStore()), stepping_clock())
            return await serve(shards, **options)

        made.append(loop.run(start()))
        return made[-1]

    yield make
    for server in made:
        loop.run(server.stop())
    loop.close()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server()
