"""One way to drive both APIs: tests are written as for threads, and `Driven` runs the API for tasks in its own loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.connecting import connect, connect_async
from penstock.client.opening import AsyncOwnShard, OwnShard
from penstock.client.remote.address import TransportName
from penstock.client.sync.penstock import Penstock
from penstock.server.settings import Settings, WebsocketSettings
from penstock.server.shard import Shard
from penstock.server.tasks import AsyncShard
from penstock.server.threads import ThreadedShard
from penstock.store.base import Store
from penstock.store.embedded import EmbeddedStore, open_store
from penstock.store.memory import MemoryStore
from tests import clustered
from tests.client.serving import Server, serve
from tests.clustered import LentRouter
from tests.shards import LoopThread as LoopThread
from tests.shards import WatchedRouter, open_shards, stepping_clock, still_clock

ENTROPY = bytes(range(64))

PATIENT = Settings(websocket=WebsocketSettings(session_ttl_s=10_000_000))
"""Heartbeats come in real time, and here time is made to jump."""

Test = TypeVar("Test", bound=Callable[..., None])


def in_process_only(test: Test) -> Test:
    """For tests of what is different over the network, on purpose: leases end with the connection."""
    test.in_process_only = True  # type: ignore[attr-defined]
    return test


class Driven:
    """An object of the API for tasks that can be used as one for threads."""

    def __init__(self, inner: Any, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if inspect.ismethod(value):
            return lambda *args, **kwargs: self._plain(value(*map(_undriven, args), **kwargs))
        return self._plain(value)

    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return bool(self._inner)

    def __getitem__(self, part: Any) -> Any:
        return self._plain(self._inner[part])

    def __iter__(self) -> Any:
        return iter(self._plain(list(self._inner)))

    def __enter__(self) -> Any:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._loop.run(self._inner.__aexit__(*exception))

    def _plain(self, value: Any) -> Any:
        if asyncio.iscoroutine(value):
            value = self._loop.run(value)
        if type(value) is list:
            return [self._plain(each) for each in value]
        if type(value).__name__.startswith("Async"):
            return Driven(value, self._loop)
        return value


def _undriven(value: Any) -> Any:
    return value._inner if isinstance(value, Driven) else value


class World:
    """A store, a clock that stands still, and the API over them; may be restarted, and may crash.

    With a `transport` the API is a client's, and the store is behind a real server on the loopback.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        *,
        tasks: bool,
        commit_in_thread: bool = False,
        transport: TransportName | None = None,
    ) -> None:
        self.clock = still_clock()
        self.commit_in_thread = commit_in_thread
        self.transport = transport
        self._open_store = open_store
        self._more_stores: dict[int, Store] = {}
        self._loop = LoopThread() if tasks or transport else None
        self._tasks = tasks
        self._server: Server | None = None
        self._driver: Any = None
        self.ps: Any = None
        self.open()

    def open(self) -> None:
        if self.transport is not None:
            self._open_server(self.transport)
            return
        self.shards = [Shard(self._open_store, self.clock, lambda: ENTROPY, in_process=True)]
        if self._loop is None:
            self._driver = ThreadedShard(self.shards[0])
            self.ps = Penstock(OwnShard(self._driver))
            return

        async def start() -> tuple[AsyncShard, AsyncPenstock]:
            shard = AsyncShard(self.shards[0], commit_in_thread=self.commit_in_thread)
            return shard, AsyncPenstock(AsyncOwnShard(shard))

        inner, ps = self._loop.run(start())
        self._driver = Driven(inner, self._loop)
        self.ps = Driven(ps, self._loop)

    async def _serve(self) -> Server:
        shards = open_shards(self._store, self.clock)
        if isinstance(shards, WatchedRouter | LentRouter):
            self.shards = [served.shard for served in shards.everywhere()]
        else:
            assert isinstance(shards, AsyncShard)
            self.shards = [shards.shard]
        return await serve(shards, settings=PATIENT)

    def _store(self, number: int) -> Store:
        """The store of a shard; there is more than one if the tests are told so."""
        return self._open_store() if number == 0 else self._more_stores.setdefault(number, MemoryStore())

    def _open_server(self, transport: TransportName) -> None:
        assert self._loop is not None
        self._server = self._loop.run(self._serve())
        self._driver = Driven(self._server.shard, self._loop)
        if self._tasks:

            async def connected() -> AsyncPenstock:
                return await connect_async(self.url, transport=transport)

            self.ps = Driven(self._loop.run(connected()), self._loop)
        else:
            self.ps = connect(self.url, transport=transport)

    @property
    def url(self) -> str:
        """Where the server is."""
        assert self._server is not None
        return self._server.url

    def call(self, command: Any) -> Any:
        return self._driver.call(command)

    def advance(self, seconds: float) -> None:
        """Time passes, and the shard notices."""
        self.clock.advance_ms(round(seconds * 1_000))
        self._driver.tick()

    def restart(self) -> None:
        """Close in good order, and open again."""
        self.shut()
        self.open()

    def shut(self) -> None:
        """Close in good order: the client, and the server behind it, so that everything is in the store."""
        self.ps.close()
        if self._server is not None:
            assert self._loop is not None
            self._loop.run(self._server.stop())

    def crash(self) -> None:
        """The process dies: nothing is written any more. Then it starts again."""
        if clustered.NODES:
            pytest.skip("not for clusters: the store of one process breaks (tests/cluster kills nodes)")
        stores = [shard._store for shard in self.shards]
        for shard in self.shards:
            shard._store_is_good = False
        self.shut()
        for store in stores:
            if isinstance(store, EmbeddedStore):
                store.close(apply=False)
        self.open()

    def wait_for_receivers(self, queue: str, count: int = 1) -> None:
        """Until so many receives wait; by plain poll none ever does: until one has asked, and asks again."""
        if self.transport == "poll":
            self._wait_for_polls()
            return
        deadline = 60_000
        while self.ps.queue(queue).stats().channels["main"].waiting_receivers != count:
            deadline -= 1
            assert deadline, "no receiver came to wait"
            threading.Event().wait(0.001)

    def _wait_for_polls(self) -> None:
        assert self._server is not None
        key, deadline = ("poll", "Receive", "ok"), 60_000
        first = self._server.answered().get(key, 0)
        while self._server.answered().get(key, 0) < first + 2:
            deadline -= 1
            assert deadline, "nobody polls"
            threading.Event().wait(0.001)

    def close(self) -> None:
        self.shut()
        if self._loop is not None:
            self._loop.close()


def memory_store() -> Callable[[], Store]:
    store = MemoryStore()
    return lambda: store


def directory_store(path: Path) -> Callable[[], Store]:
    return lambda: open_store(path)


async def serve_shards(open_store: Callable[[], Store], **options: Any) -> Server:
    """A server in real time, over as many shards as the environment says; `open_store` is for the first."""
    more: dict[int, Store] = {}

    def store(number: int) -> Store:
        return open_store() if number == 0 else more.setdefault(number, MemoryStore())

    return await serve(open_shards(store, stepping_clock()), **options)
