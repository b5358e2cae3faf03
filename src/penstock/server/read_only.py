"""A shard that only looks: peek, browse, counts and consumers' reads, beside the process that has the store open.

Every call looks at the store as it is then. What is due but not yet done by the writer (a lease that just ran out)
shows as the writer left it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from penstock.core.broker import Broker
from penstock.core.commands import Command, Damage
from penstock.core.traits import Repeat
from penstock.server.clock import Clock
from penstock.server.shard import ShardClosed
from penstock.store.errors import StoreReadOnly
from penstock.store.view import StoreView

_NO_ENTROPY = bytes(64)
"""A store that was never written has no messages to name; what it is opened with does not matter."""


class ReadingShard:
    """As `ThreadedShard`, for reading."""

    read_only = True

    def __init__(self, store: StoreView, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._broker = Broker.open(store, clock.now_ms(), _NO_ENTROPY, shard=None)
        self._reports: dict[Damage, None] = dict.fromkeys(self._broker.take_reports())

    def call(self, command: Command) -> Any:
        """The reply to a command that changes nothing; `StoreReadOnly` for any other."""
        if command.traits.repeat is not Repeat.READ:
            name = type(command).__name__
            raise StoreReadOnly(f"{name} would change the store, which was opened read-only: open it without read_only")
        with self._lock:
            if self._closed:
                raise ShardClosed("the store is closed: open it again")
            now_ms = self._clock.now_ms()
            shown = self._store.position
            self._store.refresh()
            if self._store.position != shown:
                self._broker = Broker.open(self._store, now_ms, _NO_ENTROPY, shard=None)
            try:
                return self._broker.handle(command, now_ms)
            finally:
                self._reports |= dict.fromkeys(self._broker.take_reports())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._store.close()

    @property
    def identity(self) -> Broker:
        return self._broker

    @property
    def reports(self) -> list[Damage]:
        return list(self._reports)


class AsyncReadingShard:
    """As `AsyncShard`, for reading. Reads happen in a thread, so that the loop does not wait for the disk."""

    read_only = True

    def __init__(self, store: StoreView, clock: Clock) -> None:
        self._inner = ReadingShard(store, clock)

    async def call(self, command: Command) -> Any:
        """The reply to a command that changes nothing; `StoreReadOnly` for any other."""
        return await asyncio.to_thread(self._inner.call, command)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now_ms(self) -> int:
        return self._inner.now_ms()

    async def close(self) -> None:
        """Let go of the files."""
        await asyncio.to_thread(self._inner.close)

    @property
    def identity(self) -> Broker:
        return self._inner.identity

    @property
    def reports(self) -> list[Damage]:
        return self._inner.reports
