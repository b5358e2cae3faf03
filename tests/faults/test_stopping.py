"""A server that stops does not answer for what it did not do: the client asks the next one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.remote.address import TransportName
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from penstock.store.embedded import open_store
from tests.client.serving import Server, serve


async def served(directory: Path, port: int = 0) -> Server:
    return await serve(Shard(lambda: open_store(directory), SystemClock(), lambda: bytes(range(64))), port=port)


@pytest.mark.parametrize("transport", ["websocket", "long_poll", "poll"])
def test_a_call_between_the_end_of_the_store_and_that_of_the_connections_goes_to_the_next_server(
    tmp_path: Path, transport: TransportName
) -> None:
    async def run() -> Any:
        server = await served(tmp_path)
        async with penstock.connect_async(server.url, transport=transport, timeout=20) as ps:
            await ps.queue("orders").send(b"before")
            server.services.is_stopping = True
            await server.shard.close()
            outcomes = [
                asyncio.ensure_future(ps.queue("orders").send(b"after")),
                asyncio.ensure_future(ps.queue("orders").receive(wait=15)),
                asyncio.ensure_future(ps.queue("orders").stats()),
            ]
            await asyncio.sleep(0.1)
            await server.stop()
            again = await served(tmp_path, server.port)
            sent, message, stats = await asyncio.gather(*outcomes)
            await again.stop()
            return sent.sequence, message.body, stats.sent  # type: ignore[attr-defined]

    sequence, body, sent = asyncio.run(run())
    assert (sequence, body) == (1, b"before")
    assert sent in (1, 2)
