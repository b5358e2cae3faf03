"""Channels: what a new one sees, pauses, purges."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from tests.simulation.model.sending import Sending
from tests.simulation.model.state import Channel, Queue
from tests.simulation.model.verdict import Outcome, demand


class Channels(Sending):
    """Rules of channels as such."""

    def _accept_CreateChannel(self, command: c.CreateChannel, outcome: Outcome) -> None:
        must = self._missing(command.queue)
        if not must and command.channel not in self.queues[command.queue].channels and command.offset is not None:
            in_range = 0 <= command.offset <= (self.queues[command.queue].next_sequence or 0)
            must += [] if in_range else [e.InvalidRequest]
        if not self._refused(outcome, must):
            demand(command.channel in self.queues[command.queue].channels, f"{command} made nothing")

    def channel_made(
        self,
        name: str,
        channel_name: str,
        start: str | int,
        seen: list[c.Seen],
        now_ms: int,
        offset: int | None = None,
    ) -> None:
        """A command made a channel: what does it see? The driver browsed it, and tells before the command itself."""
        self.now_ms = max(self.now_ms, now_ms)
        queue = self.queues[name]
        if offset is not None:
            start = "head"
        elif start == "first":
            start = "tail" if queue.channels else "head"
        channel = self._new_channel(queue, channel_name)
        since_ms = start if isinstance(start, int) else 0
        channel.start = self._start_of(queue, start) if offset is None else offset
        shown = {s: m for s, m in queue.messages.items() if not queue.is_held(s) and s >= (offset or 0)}
        may = {s for s, m in shown.items() if m.sent_ms >= since_ms and start != "tail"}
        must = may & queue.stored
        if self.went_back and since_ms:
            may, must = set(shown), set()
        got = {one.sequence for one in seen}
        what = f"{name}/{channel_name} from {start}"
        demand(must <= got <= may, f"{what} starts with {sorted(got)}; must {sorted(must)}, may {sorted(may)}")
        for sequence in sorted(got):
            self._offer(channel, queue.messages[sequence])
        queue.stored |= got
        self._may_be_gone(queue, list(queue.stored))

    def _start_of(self, queue: Queue, start: str | int) -> int:
        """The first sequence number that a new channel is about."""
        end = queue.next_sequence or 0
        if start == "tail":
            return end if queue.held_from is None else queue.held_from
        if start == "head":
            return 0
        return min((s for s, m in queue.messages.items() if m.sent_ms >= int(start)), default=end)

    def _starts_at(self, channel: Channel, sequence: int) -> None:
        channel.start = max(channel.start, sequence)
        channel.turns.clear()

    def _accept_DeleteChannel(self, command: c.DeleteChannel, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        if command.unless_subscribed and self._is_awaited(command.queue, command.channel):
            return
        del queue.channels[command.channel]
        if queue.channels:
            self._may_be_gone(queue, list(queue.stored))
        elif command.purge_last and not queue.consumers:
            self._purge(queue, None)
        else:
            queue.stored = {sequence for sequence in queue.stored if queue.is_held(sequence)}
            queue.was_open_ended = True
        self._end_waiters(command.queue, command.channel, e.ChannelNotFound)

    def _is_awaited(self, queue: str, channel: str) -> bool:
        """Whether anybody waits for a channel's messages; not those whose time is over."""
        mine = [waiter for waiter in self.waiters if (waiter.queue, waiter.channel) == (queue, channel)]
        return any(waiter.deadline_ms is None or waiter.deadline_ms > self.now_ms for waiter in mine)

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
        self._starts_at(queue.channels[command.channel], queue.held_from or 0)
        self._may_be_gone(queue, sequences)
        for sequence in sequences:
            self._excuse(command.queue, sequence)

    def _accept_PauseQueue(self, command: c.PauseQueue, outcome: Outcome) -> None:
        """Nothing that is sent from now on is shown; or all of it, to whoever is about it, in order."""
        if self._refused(outcome, self._missing(command.queue)):
            return
        queue = self.queues[command.queue]
        if command.paused:
            queue.held_from = (queue.next_sequence or 0) if queue.held_from is None else queue.held_from
            return
        held, queue.held_from = queue.held(), None
        for message in held:
            for channel in queue.channels.values():
                if message.sequence >= channel.start:
                    self._offer(channel, message)
        self._may_be_gone(queue, [message.sequence for message in held])

    def _accept_PurgeBacklog(self, command: c.PurgeBacklog, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue)):
            return
        queue = self.queues[command.queue]
        if not queue.channels:
            self._purge(queue, outcome)
            return
        held = [message.sequence for message in queue.held()]
        demand(outcome == len(held), f"dropped {outcome} messages of a backlog of {len(held)}")
        for sequence in held:
            self._forget(queue, sequence)

    def _accept_AckUpTo(self, command: c.AckUpTo, outcome: Outcome) -> None:
        """All that was sent before an offset is done for a channel, whatever its state, shown or not."""
        must = self._missing(command.queue, command.channel)
        if not must and not 0 <= command.offset <= (self.queues[command.queue].next_sequence or 0):
            must.append(e.InvalidRequest)
        if self._refused(outcome, must):
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        copies = [copy for copy in channel.ordered() if copy.message.sequence < command.offset]
        demand(outcome == len(copies), f"{outcome} messages were passed, not {len(copies)}")
        self._starts_at(channel, command.offset)
        for copy in copies:
            self._done(queue, channel, copy)
            self._excuse(command.queue, copy.message.sequence)
        channel.acked += len(copies)
