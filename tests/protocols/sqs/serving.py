"""A real server in a thread: a directory, a shard, HTTP on a socket, the SQS front end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock.core.commands import Command
from penstock.protocols.http import HttpLimits, HttpServer
from penstock.protocols.sqs.server import SqsFrontEnd
from penstock.server.auth import Credentials
from penstock.server.settings import SqsSettings
from tests.shards import LoopThread, open_shards, stepping_clock, stores_in, waiting

REGION = "us-east-1"
ACCOUNT = "000000000000"


class Server:
    """Starts in its own thread and loop; everything else may be called from the test's thread."""

    def __init__(
        self,
        directory: Path,
        settings: SqsSettings | None = None,
        credentials: Credentials | None = None,
        *,
        commit_in_thread: bool = False,
        limits: HttpLimits | None = None,
    ) -> None:
        self._directory = directory
        self._settings = settings or SqsSettings()
        self._credentials = credentials or Credentials([])
        self._commit_in_thread = commit_in_thread
        self._limits = limits or HttpLimits()
        self.clock = stepping_clock()
        self.port = 0
        self._thread = LoopThread()
        self._loop = self._thread.loop
        self._thread.run(self._start())

    async def _start(self) -> None:
        stores = stores_in(self._directory)
        self.shard = open_shards(stores, self.clock, commit_in_thread=self._commit_in_thread)
        self.front_end = SqsFrontEnd(self.shard, self._settings, self._credentials)
        self.http = HttpServer(self.front_end.handle, self._limits)
        self.port = await self.http.start("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, command: Command) -> Any:
        """A command past the front end."""
        return asyncio.run_coroutine_threadsafe(self.shard.call(command), self._loop).result(30)

    def do(self, function: Callable[[], Any]) -> Any:
        """Run something in the server's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def advance(self, seconds: float) -> None:
        """Let time pass, and let the shard notice."""
        self.clock.advance(seconds)
        asyncio.run_coroutine_threadsafe(self.shard.tick(), self._loop).result(30)

    def waiting(self, queue: str) -> int:
        """How many receives wait for messages of a queue."""
        return int(self.do(lambda: waiting(self.shard, queue)))

    def stop(self) -> None:
        async def stop() -> None:
            self.http.stop_accepting()
            await self.http.settled(5)
            await self.shard.close()
            await self.http.drain(5)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._thread.close()

    def client(self, **options: Any) -> Any:
        """boto3, as anybody would use it."""
        return boto3.client(
            "sqs",
            endpoint_url=self.url,
            region_name=options.pop("region", REGION),
            aws_access_key_id=options.pop("access_key", "test"),
            aws_secret_access_key=options.pop("secret_key", "test"),
            config=Config(retries={"max_attempts": 0}, **options),
        )
