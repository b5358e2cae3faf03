"""What an operator does to messages that he names by number: nobody's lease is asked."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from tests.simulation.model.failing import Failing
from tests.simulation.model.state import Channel, Copy, Queue
from tests.simulation.model.verdict import Outcome, demand


class Intervening(Failing):
    """Rules of messages that are looked up, deleted and rescheduled."""

    def _accept_DeleteMessages(self, command: c.DeleteMessages, outcome: Outcome) -> None:
        must = self._missing(command.queue, command.channel)
        if not must and command.channel is None and not self.queues[command.queue].channels:
            must = [e.InvalidRequest]
        if not self._refused(outcome, must):
            queue = self.queues[command.queue]
            names = list(queue.channels) if command.channel is None else [command.channel]
            self._change(queue, names, command.sequences, outcome, self._done)

    def _accept_RescheduleMessages(self, command: c.RescheduleMessages, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        due_ms = command.due_ms if command.delay_ms is None else self.now_ms + command.delay_ms

        def put_off(queue: Queue, channel: Channel, copy: Copy) -> None:
            if copy.state is State.LEASED:
                self._fail(queue, channel, copy, max(0, due_ms - self.now_ms), command.error)
            elif due_ms > self.now_ms:
                copy.state, copy.deadline_ms = State.DELAYED, due_ms
            elif copy.state is State.DELAYED:
                copy.state, copy.deadline_ms = State.READY, 0

        self._change(self.queues[command.queue], [command.channel], command.sequences, outcome, put_off)

    def _change(
        self,
        queue: Queue,
        names: list[str],
        sequences: list[int],
        changed: c.Changed,
        change: Callable[[Queue, Channel, Copy], None],
    ) -> None:
        done: set[int] = set()
        for name in names:
            channel = queue.channels[name]
            for sequence in sorted(set(sequences) & set(channel.copies)):
                done.add(sequence)
                channel.turns.clear()
                change(queue, channel, channel.copies[sequence])
                self._excuse(queue.name, sequence)
        missing = sorted(set(sequences) - done)
        demand(
            (changed.count, changed.missing) == (len(done), missing),
            f"{queue.name}: changed {changed}, and should have changed {sorted(done)} and not {missing}",
        )

    def _accept_LookUp(self, command: c.LookUp, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue)):
            return
        queue = self.queues[command.queue]
        found = {life.sequence: life for life in outcome}
        for sequence in set(command.sequences):
            life, message = found.get(sequence), queue.messages.get(sequence)
            demand(life is not None or sequence not in queue.stored, f"{queue.name}: {sequence} was not found")
            if life is None:
                continue
            demand(message is not None and life.body == message.body, f"{queue.name}: {life} is not {message}")
            for each in life.channels:
                copy = queue.channels[each.channel].copies.get(sequence)
                if queue.is_held(sequence):
                    continue
                right = (State.DONE, 0) if copy is None else (copy.state, copy.attempts)
                told = (each.state, each.attempts if copy is not None else 0)
                demand(told == right, f"{queue.name}: {sequence} in {each.channel} is {told}, and should be {right}")
