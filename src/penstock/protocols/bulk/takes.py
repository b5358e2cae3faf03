"""Takes that may come twice. Who got no answer asks again, and has no names for the messages that were in it.

So a take has a name. When the same name comes again, the messages of the first time go back before any are taken: they
would be leased to nobody, for as long as leases last. Only the server that was asked knows the name, until it stops.
"""

from __future__ import annotations

import asyncio

from penstock.core.commands import Delivery, GiveBack, Receive, Span
from penstock.server.shards import Shards

NAMES_MAX = 1_000


class _Take:
    """One take, and how to undo it when it is over."""

    __slots__ = ("is_over", "undo")

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.undo: GiveBack | None = None


class Takes:
    """The last takes of a server, by name."""

    def __init__(self, shard: Shards) -> None:
        self._shard = shard
        self._takes: dict[str, _Take] = {}

    async def receive(self, name: str, command: Receive) -> Delivery:
        """Lease messages; those that were leased under this name before go back first."""
        before = self._takes.pop(name, None)
        self._takes[name] = take = _Take()
        if len(self._takes) > NAMES_MAX:
            del self._takes[next(iter(self._takes))]
        try:
            if before is not None:
                await before.is_over.wait()
                take.undo = before.undo  # until it is done: if it fails, the next who asks again has it done
            if take.undo is not None and take.undo.spans:
                await self._shard.call(take.undo)
            take.undo = None
            delivery: Delivery = await self._shard.call(command)
            take.undo = GiveBack(queue=delivery.queue, channel=delivery.channel, spans=spans_of(delivery))
            return delivery
        finally:
            take.is_over.set()


def spans_of(delivery: Delivery) -> list[Span]:
    """The messages of a delivery, as they are settled."""
    return [span for run in delivery.runs for span in run.spans()]
