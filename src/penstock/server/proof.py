"""Proof of ownership: what a shard has to know when another process can take its store over.

A store on Kafka can be taken over at any moment: the new owner fences this one, whose next commit then fails. Leases
are committed lazily, so an owner that was fenced, and does not know yet, could hand out from memory. Therefore:

- A step hands out messages only while the last successful commit *began* less than `seconds` ago. Otherwise the step
  commits first; if another owner has the shard, that fails, and nothing leaves.
- The same is asked once more right before the replies leave: the process may have been stopped in between. If the proof
  has grown old meanwhile, the deliveries are withheld.
- After a commit that failed, for whatever reason, the shard is *lost*: it is not opened again here, because opening it
  would fence whoever has it now. Whoever gave the proof decides what follows.

A new owner waits for `seconds` after its fencing, so the two never hand out at the same time. Both measure lengths of
time, each with its own clock; no clock is compared with another's. The clock goes on while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core.errors import PenstockError

PROOF_S = 2.0
"""How long a commit proves that the shard is still ours."""


def steady_s() -> float:
    """Seconds that never go back, and go on while the machine sleeps, where the system offers such a clock.

    >>> steady_s() <= steady_s()
    True
    """
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Proof:
    """When a shard was last known to be ours, and what happens when it is not.

    >>> proof = Proof(lambda: PenstockError("gone"), now_s=iter([10.0, 11.0, 12.5]).__next__)
    >>> proof.renewed(10.0)
    >>> proof.holds(), proof.holds(), proof.holds()
    (True, True, False)
    """

    def __init__(
        self,
        moved: Callable[[], PenstockError],
        on_lost: Callable[[Exception], None] = lambda error: None,
        *,
        seconds: float = PROOF_S,
        now_s: Callable[[], float] = steady_s,
    ) -> None:
        self.moved = moved
        """Makes the error for calls that were not done because the shard is not ours any more."""
        self.on_lost = on_lost
        """Told once, in the thread that commits, when a commit has failed: the shard is of no use any more."""
        self.now_s = now_s
        self.withheld = 0
        """Deliveries that did not leave because the proof had grown old."""
        self._seconds = seconds
        self._began_s: float | None = None

    def renewed(self, began_s: float) -> None:
        """A commit that began then was successful."""
        self._began_s = began_s

    def holds(self) -> bool:
        """Whether messages may leave now without another commit."""
        return self._began_s is not None and self.now_s() - self._began_s < self._seconds
