"""Queues and channels that come and go in a node's shards, for its front ends; also because shards come and go.

A queue with several partitions may be in several shards of a node. It comes with the first of them, and goes with the
last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from penstock.core.commands import CatalogEvent
from penstock.server.tasks import AsyncShard

log = logging.getLogger("penstock.router")


class ShardEvents:
    """Hears the shards of this process, and tells who listens."""

    def __init__(self, served: Mapping[int, AsyncShard]) -> None:
        self._served = served
        self.listeners: list[Callable[[CatalogEvent], None]] = []
        self._heard: dict[int, AsyncShard] = {}
        """The shards whose events we hear."""

    def mind(self) -> None:
        """Hear of what happens in the shards that are here now; those that came or went bring or take their queues."""
        for shard, served in list(self._heard.items()):
            if self._served.get(shard) is not served:
                del self._heard[shard]
                self._tell_all(shard, served, came=False)
        for shard, served in self._served.items():
            if shard not in self._heard:
                self._heard[shard] = served
                served.listeners.append(partial(self._hear, shard, served))
                self._tell_all(shard, served, came=True)

    def _hear(self, shard: int, served: AsyncShard, event: CatalogEvent) -> None:
        if self._heard.get(shard) is served and not self._is_also_elsewhere(shard, event):
            self._tell(event)

    def _is_also_elsewhere(self, shard: int, event: CatalogEvent) -> bool:
        """Whether another shard of this node has the same queue or channel: then nothing came or went here."""
        for other, served in self._heard.items():
            queue = None if other == shard else served.identity.queues.get(event.queue)
            if queue is not None and (event.channel is None or event.channel in queue.channels):
                return True
        return False

    def _tell_all(self, shard: int, served: AsyncShard, *, came: bool) -> None:
        end = "created" if came else "deleted"
        for name, queue in list(served.identity.queues.items()):
            channels = [CatalogEvent(f"channel {end}", name, channel) for channel in queue.channels]  # type: ignore[arg-type]
            events = [CatalogEvent(f"queue {end}", name)]  # type: ignore[arg-type]
            for event in [*events, *channels] if came else [*channels, *events]:
                if not self._is_also_elsewhere(shard, event):
                    self._tell(event)

    def _tell(self, event: CatalogEvent) -> None:
        for listener in list(self.listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed")
