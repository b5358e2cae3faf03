"""A shard without a driver: a test says which calls share a step."""

from __future__ import annotations

from typing import Any

from penstock.core.commands import Command
from penstock.server.shard import Call, Shard, Step
from tests.client.adapter import ENTROPY
from tests.clock import ManualClock
from tests.server.stores import TroubledStore


class BareShard:
    """Steps by hand."""

    def __init__(self, store: TroubledStore, starts_after_ms: int = 0, **options: Any) -> None:
        self.clock = ManualClock()
        self.clock.advance_ms(starts_after_ms)
        self.shard = Shard(store.open, self.clock, lambda: ENTROPY, **options)

    def run(self, *commands: Command) -> list[Call]:
        """One step. Every call must be answered in it."""
        calls = [Call(command) for command in commands]
        step = Step(list(calls))
        self.shard.run(step)
        assert set(step.answered) == set(calls)
        return calls

    def do(self, command: Command) -> Any:
        """A step for one command: its reply."""
        return self.run(command)[0].result()

    def advance(self, seconds: float) -> None:
        """Time passes, and the shard notices."""
        self.clock.advance_ms(round(seconds * 1_000))
        self.run()


def bodies(delivery: Any) -> list[bytes]:
    return [run.chunk.body(index) for run in delivery.runs for index in range(run.start, run.stop)]


def spans(delivery: Any) -> list[Any]:
    return delivery.spans()
