"""pynsq, as its users use it, on an event loop of a test's own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import nsq

PATIENCE_S = 60.0


class Reader:
    """A pynsq reader, and what it was given."""

    def __init__(self, topic: str, channel: str = "ch", handler: Callable[[Any], Any] | None = None, **options: Any):
        self.messages: list[tuple[bytes, int]] = []
        self._handler = handler or (lambda message: True)
        self.reader = nsq.Reader(
            topic=topic,
            channel=channel,
            message_handler=self._handle,
            lookupd_poll_interval=options.pop("lookupd_poll_interval", 1),
            lookupd_poll_jitter=0.0,
            **options,
        )

    def _handle(self, message: Any) -> Any:
        self.messages.append((bytes(message.body), message.attempts))
        return self._handler(message)

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.messages]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    async def got(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count)
        return self.bodies

    async def close(self) -> None:
        self.reader.close()
        for connection in list(self.reader.conns.values()):
            connection.close()
        await asyncio.sleep(0)


class Writer:
    """A pynsq writer whose calls can be awaited."""

    def __init__(self, *addresses: str, **options: Any) -> None:
        self.writer = nsq.Writer(list(addresses), reconnect_interval=0.2, **options)

    async def connected(self, count: int = 1) -> Writer:
        await until(lambda: len(self.writer.conns) >= count)
        return self

    async def call(self, verb: str, *arguments: Any) -> Any:
        """`pub`, `mpub` or `dpub`; the answer, or the error raised."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def note(_connection: Any, data: Any) -> None:
            if not answered.done():
                answered.set_result(data)

        getattr(self.writer, verb)(*arguments, callback=note)
        data = await asyncio.wait_for(answered, PATIENCE_S)
        if isinstance(data, nsq.Error):
            raise data
        return data

    async def close(self) -> None:
        for connection in list(self.writer.conns.values()):
            connection.close()
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def closing(*things: Any) -> Any:
    """Readers and writers that are closed in the end."""
    try:
        yield things
    finally:
        for thing in things:
            await thing.close()
