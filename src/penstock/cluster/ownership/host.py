"""The shards of this process: the place that takes their commands.

A shard that is given up goes in order: from now on its commands are answered with `ShardMoved`, so that whoever sent
them asks the next owner; those in flight are done and answered; receives that wait, and subscriptions, end with
`ShardMoved`; then the store is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from penstock.cluster.base import ShardMoved
from penstock.core.commands import Command, Delivery
from penstock.server.shard import Call, ShardClosed, give_back
from penstock.server.tasks import AsyncShard, CallbackCall


class ShardHost:
    """This process's shards, by number. A `Place`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._served: dict[int, AsyncShard] = {}

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """The shards that are served here, as they are now."""
        return MappingProxyType(self._served)

    def add(self, shard: int, served: AsyncShard) -> None:
        """Serve a shard from now on."""
        assert shard not in self._served, f"shard {shard} is served here already"
        self._served[shard] = served

    async def release(self, shard: int) -> None:
        """Serve a shard no longer: returns when all of it is committed and closed. One that is not here is fine.

        An error says that its last commit may have failed. The shard is gone from here in any case.
        """
        served = self._served.pop(shard, None)
        if served is not None:
            await served.close(ShardMoved(shard))

    async def close(self) -> None:
        """The process ends: commit what is left, end every wait with no messages, close every store."""
        closing = list(self._served.values())
        results = await asyncio.gather(*(served.close() for served in closing), return_exceptions=True)
        self._served.clear()
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard; `ShardMoved`, in the loop's next turn, if it is not here."""
        served = self._served.get(shard)
        if served is not None:
            try:
                return served.submit(command, on_settled, caller)
            except ShardClosed:
                pass
        call = CallbackCall(command, on_settled)
        call.error = ShardMoved(shard)
        self._loop.call_soon(call.settle)
        return call

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left, and hears no more of it. Messages that it got go back."""
        if call.home is None:
            call.on_settled = _ignore
        else:
            call.home.withdraw(call)

    def give_back(self, shard: int, delivery: Delivery) -> None:
        """Messages that a shard here has handed out, and nobody takes, are ready again."""
        self.submit(shard, give_back(delivery), _ignore)


def _ignore(_call: Call) -> None:
    """Nobody waits any more."""
