"""Channels: what a new one sees, pauses, purges."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from tests.simulation.model.sending import Sending
from tests.simulation.model.verdict import Outcome, demand


class Channels(Sending):
    """Rules of channels as such."""

    def _accept_CreateChannel(self, command: c.CreateChannel, outcome: Outcome) -> None:
        if not self._refused(outcome, self._missing(command.queue)):
            demand(command.channel in self.queues[command.queue].channels, f"{command} made nothing")

    def channel_made(self, name: str, channel_name: str, start: str | int, seen: list[c.Seen], now_ms: int) -> None:
        """A command made a channel: what does it see? The driver browsed it, and tells before the command itself."""
        self.now_ms = max(self.now_ms, now_ms)
        queue = self.queues[name]
        channel = self._new_channel(queue, channel_name)
        since_ms = start if isinstance(start, int) else 0
        may = {s for s, m in queue.messages.items() if m.sent_ms >= since_ms and start != "tail"}
        must = may & queue.stored
        if self.went_back and since_ms:
            may, must = set(queue.messages), set()
        got = {one.sequence for one in seen}
        what = f"{name}/{channel_name} from {start}"
        demand(must <= got <= may, f"{what} starts with {sorted(got)}; must {sorted(must)}, may {sorted(may)}")
        for sequence in sorted(got):
            self._offer(channel, queue.messages[sequence])
        queue.stored |= got
        self._may_be_gone(queue, list(queue.stored))

    def _accept_DeleteChannel(self, command: c.DeleteChannel, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        del queue.channels[command.channel]
        if queue.channels:
            self._may_be_gone(queue, list(queue.stored))
        else:
            queue.stored.clear()
            queue.was_open_ended = True
        self._end_waiters(command.queue, command.channel, e.ChannelNotFound)

    def _accept_PauseChannel(self, command: c.PauseChannel, outcome: Outcome) -> None:
        if not self._refused(outcome, self._missing(command.queue, command.channel)):
            self.queues[command.queue].channels[command.channel].paused = command.paused

    def _accept_PurgeChannel(self, command: c.PurgeChannel, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        copies = queue.channels[command.channel].copies
        demand(outcome == len(copies), f"purged {outcome} messages, not {len(copies)}")
        sequences = list(copies)
        copies.clear()
        self._may_be_gone(queue, sequences)
        for sequence in sequences:
            self._excuse(command.queue, sequence)
