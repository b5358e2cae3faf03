"""A channel: one reader's progress over a whole queue."""

from __future__ import annotations

from penstock.client.sync.receiver import Receiver
from penstock.core.commands import (
    ChannelStats,
    DeleteChannel,
    PauseChannel,
    PurgeChannel,
    QueueStats,
    Stats,
)
from penstock.core.errors import ChannelNotFound


class Channel(Receiver):
    """Every channel gets every message of its queue; within a channel each message goes to one receiver."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel

    def pause(self) -> None:
        """Hand nothing out until `unpause`."""
        self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=True))

    def unpause(self) -> None:
        """Hand out again."""
        self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=False))

    def purge(self) -> int:
        """Drop all that waits here or is in flight; other channels keep theirs. Returns how many messages."""
        count: int = self._caller.call(PurgeChannel(queue=self._queue, channel=self._channel))
        return count

    def delete(self) -> None:
        """Delete the channel, and what was kept for it alone."""
        self._caller.call(DeleteChannel(queue=self._queue, channel=self._channel))

    def stats(self) -> ChannelStats:
        """Exact counts of this channel."""
        stats: Stats = self._caller.call(QueueStats(name=self._queue))
        if self._channel not in stats.channels:
            raise ChannelNotFound(f"queue {self._queue!r} has no channel {self._channel!r}")
        return stats.channels[self._channel]

    def __repr__(self) -> str:
        return f"<Channel {self._channel!r} of {self._queue!r}>"
