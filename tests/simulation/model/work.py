"""Units of work: all of it or nothing."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from tests.simulation.model.sending import Sending
from tests.simulation.model.settling import Settling
from tests.simulation.model.state import Copy
from tests.simulation.model.verdict import Outcome, demand


class Work(Settling, Sending):
    """Rules of units of work."""

    def _accept_CommitWork(self, command: c.CommitWork, outcome: Outcome) -> None:
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
        if self._refused(outcome, faults):
            return
        for ack, copies in settled:
            self._acked(ack.queue, ack.channel, copies)
        demand(len(outcome) == len(command.sends), f"{len(outcome)} answers to {len(command.sends)} sends")
        for send, sent in zip(command.sends, outcome, strict=True):
            self._sent(send, sent)
