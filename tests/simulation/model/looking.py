"""Looking: browsing and counters."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Channel, Message, Queue, same_history
from tests.simulation.model.verdict import Outcome, demand


class Looking(Ground):
    """Rules of what can be seen without consuming."""

    def _accept_Browse(self, command: c.Browse, outcome: Outcome) -> None:
        if command.channel == c.MAIN and self._missing(command.queue, c.MAIN) == [e.ChannelNotFound]:
            self._check_look_without_channel(command, outcome)
            return
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        channel = self.queues[command.queue].channels[command.channel]
        expected = [
            copy
            for copy in channel.ordered()
            if copy.message.sequence > command.after
            and copy.state in command.states
            and (command.contains is None or command.contains in copy.message.body)
        ][: command.limit]
        where = f"{command.queue}/{command.channel}"
        got = [one.sequence for one in outcome]
        right = [copy.message.sequence for copy in expected]
        demand(got == right, f"{where}: browsing shows {got}, not {right}")
        for one, copy in zip(outcome, expected, strict=True):
            deadline_ms = 0 if copy.state is State.READY else copy.deadline_ms
            shown = (one.state, one.attempts, one.deadline_ms)
            demand(
                shown == (copy.state, copy.attempts, deadline_ms),
                f"{where}: {one.sequence} shows {shown}, not {(copy.state, copy.attempts, deadline_ms)}",
            )
            demand(bytes(one.chunk.body(one.index)) == copy.message.body, f"{where}: wrong body of {one.sequence}")
            same = same_history(copy.history, one.failures)
            demand(same, f"{where}: history of {one.sequence} shows {one.failures}, not {copy.history}")

    def _check_look_without_channel(self, command: c.Browse, seen: list[c.Seen]) -> None:
        """The main channel is not there yet: what it would start with is shown, and nothing is made."""
        queue = self.queues[command.queue]
        shown = [one.sequence for one in seen]
        demand(shown == sorted(shown) and len(shown) <= command.limit, f"{queue.name}: browsing shows {shown}")
        for one in seen:
            message = queue.messages.get(one.sequence)
            demand(message is not None and one.attempts == 0, f"{queue.name}: no message {one.sequence}, or attempts")
            demand(not queue.is_held(one.sequence), f"{queue.name}: {one.sequence} is held back, and shown")
        is_whole = command.contains is None and len(command.states) == len(c.Browse(queue="").states)
        if is_whole and len(seen) < command.limit:
            wanted = {sequence for sequence in queue.stored if not queue.is_held(sequence)}
            missing = {sequence for sequence in wanted if sequence > command.after} - set(shown)
            demand(not missing, f"{queue.name}: browsing does not show {missing}")

    def _accept_TallyQueues(self, command: c.TallyQueues, outcome: Outcome) -> None:
        """What the overview of the console shows of each queue."""
        self._refused(outcome, [])
        names = sorted(name for name in self.queues if name > command.after)[: command.limit]
        told = [each.name for each in outcome]
        demand(told == names, f"counted were {told}, and should have been {names}")
        for each in outcome:
            queue = self.queues[each.name]
            channels = list(queue.channels.values())
            right = {
                "sent": queue.sent,
                **{name: sum(getattr(one, name) for one in channels) for name in ("acked", "failed", "dead")},
                **{
                    state.name.lower(): sum(one.count(state) for one in channels)
                    for state in (State.READY, State.LEASED)
                },
            }
            if channels:
                right["delayed"] = sum(one.count(State.DELAYED) for one in channels)
            shown = {name: getattr(each, name) for name in right}
            demand(shown == right, f"{each.name} counts {shown}, and should count {right}")

    def _accept_QueueStats(self, command: c.QueueStats, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        queue = self.queues[command.name]
        where = f"stats of {command.name}"
        demand(outcome.sent == queue.sent, f"{where}: sent {outcome.sent}, not {queue.sent}")
        demand(queue.next_sequence in (None, outcome.next_sequence), f"{where}: next is {outcome.next_sequence}")
        live = {s for channel in queue.channels.values() for s in channel.copies} | queue.stored
        low, high = len(live), self._stored_most(queue)
        demand(low <= outcome.messages <= high, f"{where}: {outcome.messages} messages, from {low} to {high} expected")
        body_bytes = sum(len(queue.messages[sequence].body) for sequence in live if sequence in queue.messages)
        demand(outcome.bytes >= body_bytes, f"{where}: {outcome.bytes} bytes, at least {body_bytes} expected")
        put_off = {
            sequence
            for channel in queue.channels.values()
            for sequence, copy in channel.copies.items()
            if copy.state is State.DELAYED and not copy.attempts
        }
        delayed = sum(message.due_ms > self.now_ms or each in put_off for each, message in queue.messages.items())
        demand(0 <= outcome.delayed <= delayed, f"{where}: {outcome.delayed} delayed, not {delayed}")
        demand(set(outcome.channels) == set(queue.channels), f"{where}: channels {set(outcome.channels)}")
        self._check_backlog(where, queue, outcome)
        for name, channel in queue.channels.items():
            self._check_channel_stats(f"{where}/{name}", queue, channel, outcome.channels[name])
        self._check_consumers(where, queue, outcome.consumers)

    def _check_backlog(self, where: str, queue: Queue, stats: c.Stats) -> None:
        """What no channel has been shown: all while there are none, else what came since the pause."""
        is_paused = queue.held_from is not None
        demand(stats.paused == is_paused, f"{where}: paused is {stats.paused}, not {is_paused}")
        backlog = len(queue.held()) if queue.channels else stats.messages
        demand(stats.backlog == backlog, f"{where}: a backlog of {stats.backlog}, not {backlog}")

    def _check_channel_stats(self, where: str, queue: Queue, channel: Channel, stats: c.ChannelStats) -> None:
        for state in (State.READY, State.LEASED, State.DELAYED):
            shown, count = getattr(stats, state.name.lower()), channel.count(state)
            demand(shown == count, f"{where}: {shown} {state.name}, not {count}")
        for name in ("acked", "failed", "dead", "paused"):
            shown, right = getattr(stats, name), getattr(channel, name)
            demand(shown == right, f"{where}: {name} is {shown}, not {right}")
        messages = [copy.message for copy in channel.copies.values()]
        self._check_oldest(where, messages, stats.oldest_ms)
        mine = [w for w in self.waiters if (w.queue, w.channel) == (queue.name, channel.name)]
        least = sum(waiter.deadline_ms is not None and waiter.deadline_ms > self.now_ms for waiter in mine)
        demand(least <= stats.waiting_receivers <= len(mine), f"{where}: {stats.waiting_receivers} wait, not {least}")

    def _check_oldest(self, where: str, messages: list[Message], shown_ms: int | None) -> None:
        """The oldest message's time. What is not due yet may be left out; a dead letter may tell its first time."""
        sent = {m.sent_ms for m in messages} | {m.origin.sent_ms for m in messages if m.origin}
        latest = min((m.sent_ms for m in messages if m.due_ms <= self.now_ms), default=None)
        if shown_ms is None:
            demand(latest is None, f"{where}: no oldest message, but one was sent at {latest}")
        else:
            right = shown_ms in sent and (latest is None or shown_ms <= latest or self.went_back)
            demand(right, f"{where}: oldest is {shown_ms}, not {latest}")

    def _check_consumers(self, where: str, queue: Queue, shown: dict[str, int]) -> None:
        right = {name: consumer.offset for name, consumer in queue.consumers.items()}
        demand(shown == right, f"{where}: consumers are {shown}, not {right}")
