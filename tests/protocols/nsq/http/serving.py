"""A node in a thread with both sides of NSQ, on a real directory and free ports."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from penstock.core.commands import Command
from penstock.protocols.nsq.http import NsqHttpFrontEnd
from penstock.protocols.nsq.server import NsqFrontEnd
from penstock.protocols.nsq.topics import Topics
from penstock.server.node import Ready
from penstock.server.settings import Settings, parse
from tests.protocols.lookup.serving import HOST, PATIENCE_S, ask
from tests.protocols.nsq.clients.wire import Connection
from tests.shards import ShardedNode


class RunningNode:
    """Starts in its own thread and loop; everything else is called from the test's thread."""

    def __init__(self, settings: Settings) -> None:
        self._node = ShardedNode(settings, [NsqFrontEnd(0), NsqHttpFrontEnd(0)], "test")
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started: Future[Ready] = Future()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)
        self._thread.start()
        listening = self._started.result(PATIENCE_S).listening
        self.tcp_port, self.port = listening["nsq"].port, listening["nsq-http"].port

    async def _run(self) -> None:
        try:
            async with self._node as ready:
                self._started.set_result(ready)
                await self._stopping.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    @property
    def topics(self) -> Topics:
        return Topics.of(self._node.services)

    def connect(self, **identity: Any) -> Connection:
        """A client over TCP."""
        connection = Connection((HOST, self.tcp_port))
        if identity:
            connection.identify(**identity)
        return connection

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, command: Command) -> Any:
        """A command past the front end."""
        return self.run(self._node.services.shard.call(command))

    def do(self, function: Callable[[], Any]) -> Any:
        """Run something in the node's loop."""

        async def run() -> Any:
            return function()

        return self.run(run())

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, Any]:
        return ask(self.port, method, path, body, headers)

    def post(self, path: str, body: bytes = b"", **query: str) -> Any:
        """A POST that succeeds."""
        status, answer = self.ask("POST", f"{path}?{urlencode(query)}", body)
        assert status == 200, answer
        return answer

    def stats(self, **query: str) -> Any:
        status, answer = self.ask("GET", f"/stats?{urlencode({'format': 'json', **query})}")
        assert status == 200, answer
        return answer

    def topic(self, name: str) -> Any:
        (found,) = self.stats(topic=name)["topics"]
        return found


@contextmanager
def node(directory: Path, toml: str = "", **nsq: Any) -> Iterator[RunningNode]:
    settings = parse(toml).overridden("server", data=str(directory / "data")).overridden("nsq", **nsq)
    running = RunningNode(settings)
    try:
        yield running
    finally:
        running.stop()


def basic(access_key: str, secret_key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{access_key}:{secret_key}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
