"""A node with its HTTP front end, in a thread of the test's process: for tests that block."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path

from penstock import __version__
from penstock.protocols.rest.app import RestFrontEnd
from penstock.server.clock import Clock
from penstock.server.node import Node
from penstock.server.settings import parse

START_SECONDS_MAX = 60


class ThreadedNode:
    """Serves a directory on a free port until it is stopped. `text` is a penstock.toml."""

    def __init__(self, directory: Path, text: str = "", *, clock: Clock | None = None) -> None:
        self._clock = clock
        self._settings = parse(text).overridden("server", data=str(directory), http_port=0)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.port = self._started.result(START_SECONDS_MAX)

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_SECONDS_MAX)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        front_ends = [RestFrontEnd(0, __version__)]
        async with Node(self._settings, front_ends, __version__, clock=self._clock) as ready:
            self._started.set_result(ready.listening["http"].port)
            await self._stopping.wait()
