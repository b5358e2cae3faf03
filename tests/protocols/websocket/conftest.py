from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.store.memory import MemoryStore
from tests.client.adapter import LoopThread
from tests.client.serving import Server, serve


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Servers on free ports, each over a store in memory."""
    loop = LoopThread()
    made: list[Server] = []

    def make(**options: Any) -> Server:
        store = MemoryStore()

        async def start() -> Server:
            return await serve(Shard(lambda: store, SystemClock(), lambda: os.urandom(64)), **options)

        made.append(loop.run(start()))
        return made[-1]

    yield make
    for server in made:
        loop.run(server.stop())
    loop.close()


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server()
