"""A real node in a thread, with REST on a socket of loopback, and a client that speaks plain HTTP."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import __version__
from penstock.core.commands import Command
from penstock.protocols.rest.app import RestFrontEnd
from penstock.server.node import Services
from penstock.server.partition_map import PartitionMaps
from penstock.server.settings import Settings, parse
from tests.shards import LoopThread, ShardedNode, stepping_clock, waiting

PATIENCE_S = 60.0


class _Front(RestFrontEnd):
    """REST, perhaps of a node that is not alone."""

    maps: PartitionMaps | None = None

    async def start(self, services: Services) -> Any:
        services.partition_maps = self.maps
        return await super().start(services)


class Server:
    """Starts in its own thread and loop; everything else may be called from the test's thread."""

    def __init__(self, directory: Path, text: str = "", maps: PartitionMaps | None = None) -> None:
        self.settings: Settings = parse(text).overridden("server", data=str(directory), http_port=0)
        self.directory = directory
        self.clock = stepping_clock()
        self._maps = maps
        self._thread = LoopThread()
        self._loop = self._thread.loop
        self._started: Future[str] = Future()
        self._stopping = asyncio.Event()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        self.url = self._started.result(30)

    async def _serve(self) -> None:
        front = _Front(0, __version__)
        front.maps = self._maps
        self.node = ShardedNode(self.settings, [front], __version__, clock=self.clock)
        try:
            ready = await self.node.start()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(ready.listening["http"].url)
        await self._stopping.wait()
        await self.node.stop()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **options)

    def call(self, command: Command) -> Any:
        """A command past the front end."""
        shard = self.node.services.shard
        return asyncio.run_coroutine_threadsafe(shard.call(command), self._loop).result(30)

    def do(self, function: Callable[[], Any]) -> Any:
        """Run something in the server's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def advance(self, seconds: float) -> None:
        """Let time pass, and let the shard notice."""
        self.clock.advance(seconds)
        asyncio.run_coroutine_threadsafe(self.node.services.shard.tick(), self._loop).result(30)

    def waiting(self, queue: str, channel: str = "main") -> int:
        """How many receives wait for messages of a queue."""
        return int(self.do(lambda: waiting(self.node.services.shard, queue, channel)))

    def stop(self) -> None:
        if self._serving.done():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._serving.result(30)
        self._thread.close()


def eventually(claim: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def needed(program: str) -> None:
    """Skip, loudly, without this program; under CI, fail."""
    if shutil.which(program) is None:
        reason = f"{program} is not installed: what it would show is NOT tested"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
