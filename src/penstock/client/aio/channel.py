"""A channel: one reader's progress over a whole queue."""

from __future__ import annotations

from penstock.client.aio.receiver import AsyncReceiver
from penstock.core.commands import ChannelStats, DeleteChannel, PauseChannel, PurgeChannel, QueueStats, Stats
from penstock.core.errors import ChannelNotFound


class AsyncChannel(AsyncReceiver):
    """Every channel gets every message of its queue; within a channel each message goes to one receiver."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel

    async def pause(self) -> None:
        """Hand nothing out until `unpause`."""
        await self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=True))

    async def unpause(self) -> None:
        """Hand out again."""
        await self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=False))

    async def purge(self) -> int:
        """Drop all that waits here or is in flight; other channels keep theirs. Returns how many messages."""
        count: int = await self._caller.call(PurgeChannel(queue=self._queue, channel=self._channel))
        return count

    async def delete(self) -> None:
        """Delete the channel, and what was kept for it alone."""
        await self._caller.call(DeleteChannel(queue=self._queue, channel=self._channel))

    async def stats(self) -> ChannelStats:
        """Exact counts of this channel."""
        stats: Stats = await self._caller.call(QueueStats(name=self._queue))
        if self._channel not in stats.channels:
            raise ChannelNotFound(f"queue {self._queue!r} has no channel {self._channel!r}")
        return stats.channels[self._channel]

    def __repr__(self) -> str:
        return f"<Channel {self._channel!r} of {self._queue!r}>"
