"""A naive broker: plain objects, one per message and channel, no cleverness. It judges the real one.

How it works. The model is an acceptor: it never decides by itself what the broker answers. It is told each command with
its outcome (`accept`), each reply of a waiting receiver (`woken`) and the end of each step (`finish`), demands that the
outcome is one which the rules allow, and complete, and then follows it. Where the rules leave a choice (which group of
a fair queue, which sequence number a dead letter gets), the broker's choice is adopted; where they leave none, the
outcome must be exactly that.

One thing is only known within bounds, because it depends on how messages lie together in chunks: whether a message that
every channel is done with is still stored. `Queue.messages` is what may be stored, `Queue.stored` what must be.

Dead letters and redriven messages arrive in a queue without a reply that names their sequence numbers. They wait in
`Queue.incoming` until the driver has read the queue's log and calls `arrived`.

A model can be pickled: a crash takes it back to the last commit.
"""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.queues.config import DEDUP_WINDOW_MS
from tests.simulation.model.channels import Channels
from tests.simulation.model.consumers import Consumers
from tests.simulation.model.intervening import Intervening
from tests.simulation.model.looking import Looking
from tests.simulation.model.queues import Queues
from tests.simulation.model.redrives import Redrives
from tests.simulation.model.sizes import Sizes
from tests.simulation.model.time import Time
from tests.simulation.model.verdict import Outcome, Violation, demand
from tests.simulation.model.waiting import Waiting
from tests.simulation.model.work import Work

__all__ = ["Model", "Outcome", "Violation", "demand"]


class Model(Queues, Waiting, Work, Channels, Consumers, Intervening, Looking, Redrives, Sizes, Time):
    """The rules, and the state that follows from what the broker did."""

    def accept(self, command: c.Command, outcome: Outcome, now_ms: int) -> None:
        """One command and what came of it."""
        self.now_ms = max(self.now_ms, now_ms)
        known = self.done_before(command, now_ms)
        if known is not None:
            demand(
                repr(outcome) == known,
                f"{command!r:.300} was answered with {known:.300}, and now with {outcome!r:.300}",
            )
            return
        judge = getattr(self, f"_accept_{type(command).__name__}")
        judge(command, outcome)
        if command.once is not None and not isinstance(outcome, e.PenstockError):
            self.done = {number: reply for number, reply in self.done.items() if number >= command.once.answered}
            self.done[command.once.number] = repr(outcome)
            self.done_ms = self.now_ms

    def done_before(self, command: c.Command, now_ms: int) -> str | None:
        """What a command with this name was answered, if it was done before and is remembered."""
        if command.once is None or max(self.now_ms, now_ms) >= self.done_ms + DEDUP_WINDOW_MS:
            self.done = self.done if command.once is None else {}
            return None
        return self.done.get(command.once.number)
