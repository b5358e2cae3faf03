"""A client that leaves while the store fails: what it held is ready when the store can write, not when leases end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import penstock
from penstock import __version__
from penstock.core.commands import CreateQueue, Receive, Send
from penstock.core.errors import StoreError
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind, record
from penstock.protocols.nsq.server import NsqFrontEnd
from penstock.protocols.rest.app import RestFrontEnd
from penstock.server.auth import Credentials
from penstock.server.clock import SystemClock
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter
from penstock.server.node import Services
from penstock.server.settings import LogSettings, Settings
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.store.errors import CommitFailed, DiskFull
from tests.protocols.nsq.clients.wire import Connection
from tests.server.stores import TroubledStore

HOUR_MS = 3_600_000
PATIENCE_S = 60


class ForgetfulStore(TroubledStore):
    """A store that cannot write the end of a session while a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreError | None = None
        self.refused = 0
        self.on_commit = self._refuse_ends

    def _refuse_ends(self, changes: Changes) -> None:
        prefix = record(Kind.SESSION)[:1]
        if self.error is not None and any(
            key.startswith(prefix) and value is None for key, value in changes.records.items()
        ):
            self.refused += 1
            raise self.error


def over_a_websocket(port: int) -> Callable[[], Any]:
    ps = penstock.connect(f"penstock://127.0.0.1:{port}")
    assert ps.queue("orders").receive(wait=PATIENCE_S) is not None
    return ps.close


def over_nsq(port: int) -> Callable[[], Any]:
    connection = Connection(("127.0.0.1", port))
    connection.subscribe("orders", "main", ready=1)
    connection.message()
    return connection.close


@pytest.mark.parametrize("error", [CommitFailed("the disk does not answer"), DiskFull("no space left")])
@pytest.mark.parametrize(("front_end", "client"), [(RestFrontEnd, over_a_websocket), (NsqFrontEnd, over_nsq)])
def test_what_a_client_held_that_left_while_the_store_failed_is_ready_when_it_works_again(
    front_end: Callable[..., Any], client: Callable[[int], Callable[[], Any]], error: StoreError
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            store = ForgetfulStore()
            shard = AsyncShard(Shard(store.open, SystemClock(), lambda: bytes(64)))
            stack.push_async_callback(shard.close)
            served = front_end(0, __version__) if front_end is RestFrontEnd else front_end(0)
            address = await served.start(services_of(shard))
            stack.push_async_callback(served.drain, 0)
            await shard.call(CreateQueue(name="orders", config=QueueConfig(lease_ms=HOUR_MS)))
            await shard.call(Send(queue="orders", bodies=[b"x"]))
            leave = await asyncio.to_thread(client, address.port)
            await shard.call(Send(queue="other", bodies=[b"a durable step, which takes the lease along"]))
            store.error = error
            await asyncio.to_thread(leave)
            deadline_s = time.monotonic() + PATIENCE_S
            while not store.refused:
                assert time.monotonic() < deadline_s, "nobody ended the session"
                await asyncio.sleep(0.01)
            store.error = None
            assert (await shard.call(Receive(queue="orders", wait_ms=PATIENCE_S * 1_000))).count == 1
            assert not shard.identity.sessions

    asyncio.run(main())


def services_of(shard: AsyncShard) -> Services:
    return Services(
        shard=shard,
        settings=Settings(),
        credentials=Credentials(),
        meter=RequestMeter(),
        request_log=RequestLog(LogSettings(requests="none")),
        metric_sources=[],
    )
