"""A shard in this process, for handles: what they were given is looked at before it gets there.

A process that was forked has a copy of the shard, and the same open files: what both write there would overwrite each
other. So only the process that opened a store uses it, and closes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from penstock.client.checking import check
from penstock.client.identity import Identity
from penstock.core.commands import Command, Damage
from penstock.core.errors import InvalidRequest
from penstock.server.tasks import AsyncShard
from penstock.server.threads import ThreadedShard

_S = TypeVar("_S", bound=ThreadedShard | AsyncShard)


class _Own(Generic[_S]):
    """What threads and tasks have of it alike."""

    read_only = False

    def __init__(self, shard: _S) -> None:
        self._shard = shard
        self._pid = os.getpid()

    def now_ms(self) -> int:
        """The shard's time."""
        return self._shard.now_ms()

    @property
    def identity(self) -> Identity:
        """Who names messages and reads receipts."""
        return self._shard.identity

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged chunks."""
        return self._shard.reports

    @property
    def _is_ours(self) -> bool:
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        if not self._is_ours:
            raise InvalidRequest(
                "this store was opened before a fork, by the parent, and one process at a time can have it: open "
                "another one in the child, or have a server (penstock serve) and use penstock.connect in both"
            )


class OwnShard(_Own[ThreadedShard]):
    """A `ThreadedShard` that takes nothing but commands."""

    def call(self, command: Command) -> Any:
        """The reply, or the error raised."""
        self._check_process()
        check(command)
        return self._shard.call(command)

    def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        self._shard.sleep(seconds)

    def close(self) -> None:
        """Close the store. In a child after a fork it is the parent's, and stays open."""
        if self._is_ours:
            self._shard.close()


class AsyncOwnShard(_Own[AsyncShard]):
    """An `AsyncShard` that takes nothing but commands, from tasks of its own loop."""

    def __init__(self, shard: AsyncShard) -> None:
        super().__init__(shard)
        self._loop = asyncio.get_running_loop()

    def call(self, command: Command) -> Coroutine[Any, Any, Any]:
        """The reply, or the error raised."""
        self._check_process()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest("this store belongs to another event loop, and nothing was done: open it in this one")
        check(command)
        return self._shard.call(command)

    async def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        await self._shard.sleep(seconds)

    async def close(self) -> None:
        """Close the store. In a child after a fork it is the parent's, and stays open."""
        if self._is_ours:
            await self._shard.close()
