"""Units of work: all of it or nothing; with a mark, once."""

from __future__ import annotations

import msgspec

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.queues.config import QueueConfig
from tests.simulation.model.acknowledging import Acknowledging
from tests.simulation.model.sending import Sending
from tests.simulation.model.state import Copy
from tests.simulation.model.verdict import Outcome, demand


class Work(Acknowledging, Sending):
    """Rules of units of work."""

    def _accept_CommitWork(self, command: c.CommitWork, outcome: Outcome) -> None:
        if command.mark is not None and self._is_marked(command, outcome):
            return
        faults: list[type[Exception]] = []
        settled: list[tuple[c.Ack, list[Copy]]] = []
        for ack in command.acks:
            missing = self._missing(ack.queue, ack.channel)
            faults += [*missing, e.WorkRefused] if missing else []
            if not missing:
                good, bad = self._ackable(ack)
                settled.append((ack, good))
                faults += [e.WorkRefused] if bad else []
        for send in command.sends:
            faults += self._send_faults(send)
        may = [e.StageNotFound] if command.stage else []  # purged, deleted, forgotten after an hour, or by a restart
        if self._refused(outcome, faults or self._rate_faults(command.sends), may):
            return
        if command.check_only:
            demand(outcome == [], f"work that was only to be checked was answered with {outcome}")
            return
        for ack, copies in settled:
            self._acked(ack.queue, ack.channel, copies)
            self._remember(ack, copies)
        demand(isinstance(outcome, list), f"work that was not done before was answered with {outcome}")
        demand(len(outcome) == len(command.sends), f"{len(outcome)} answers to {len(command.sends)} sends")
        for send, sent in zip(command.sends, outcome, strict=True):
            self._sent(send, sent)
        if command.stage:
            self._published(command.stage)
        if command.mark is not None:
            self.marks[command.mark[0]] = command.mark[1]

    def _accept_StageWork(self, command: c.StageWork, outcome: Outcome) -> None:
        if command.drop:
            self.stages.pop(command.stage, None)
            return
        faults = [fault for send in command.sends for fault in self._send_faults(send)]
        may = [e.StageNotFound] if command.stage else []
        if self._refused(outcome, faults or self._rate_faults(command.sends), may):
            return
        demand(isinstance(outcome, c.Staged), f"sends were staged with {outcome}")
        can_wait = all(self._can_wait(send) for send in command.sends)
        demand(bool(outcome.refused) != can_wait, f"{command.sends!r:.300} were staged with {outcome}")
        if outcome.refused:
            return
        for send in command.sends:
            if send.queue not in self.queues:
                self._new_queue(send.queue, QueueConfig(), send.channels)
        self.stages.setdefault(outcome.stage, []).extend(command.sends)

    def _can_wait(self, send: c.Send) -> bool:
        """Whether nobody has to look at the messages when they get their numbers."""
        config = self.queues[send.queue].config if send.queue in self.queues else QueueConfig()
        delay_ms = config.delay_ms if send.delay_ms is None else send.delay_ms
        return not (config.is_fifo or send.dedup_ids is not None or delay_ms or send.due_ms is not None)

    def _published(self, number: int) -> None:
        """What was staged is there: queue by queue and priority by priority, in the order in which these came up."""
        demand(number in self.stages, f"stage {number} was committed, and never was")
        runs: dict[tuple[str, int], list[c.Send]] = {}
        for send in self.stages.pop(number):
            runs.setdefault((send.queue, send.priority), []).append(send)
        for sends in runs.values():
            for send in sends:
                queue = self.queues[send.queue]
                sent = c.Sent(queue.queue_id or 0, queue.next_sequence or 0, len(send.bodies))
                queue_id = queue.queue_id
                queue.queue_id = None
                self._sent(msgspec.structs.replace(send, delay_ms=0, bodies=list(send.bodies)), sent)
                queue.queue_id = queue_id

    def _is_marked(self, command: c.CommitWork, outcome: Outcome) -> bool:
        """Whether the mark alone decides: the work was done, or others were since it was planned."""
        assert command.mark is not None
        name, number = command.mark
        last = self.marks.get(name, -1)
        if number < 0:
            return self._refused(outcome, [e.InvalidRequest])
        if number <= last:
            done = c.AlreadyDone(name, last)
            demand(outcome == done, f"{name} is at {last}, and {number} was answered with {outcome}")
            return True
        if command.mark_after is not None and command.mark_after != last:
            return self._refused(outcome, [e.MarkMoved])
        return False

    def _accept_LastMark(self, command: c.LastMark, outcome: Outcome) -> None:
        last = self.marks.get(command.name, -1)
        demand(outcome == last, f"the last mark of {command.name} is {outcome}, not {last}")

    def _accept_RecallWork(self, command: c.RecallWork, outcome: Outcome) -> None:
        assert command.mark is not None
        name, number = command.mark
        last = self.marks.get(name, -1)
        right = c.AlreadyDone(name, last) if number <= last else None
        demand(outcome == right, f"work {number} of {name} is recalled as {outcome}, not as {right}")
