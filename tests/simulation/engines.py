"""Where a simulated broker keeps its data, and how that place can fail."""

from __future__ import annotations

import random
from enum import Enum
from typing import Protocol

from penstock.core.changes import Changes
from penstock.store.base import Store
from penstock.store.memory import MemoryStore


class Fault(Enum):
    """How a broker's life can end."""

    BEFORE = "crash before the commit"
    AFTER = "crash after the commit, before the replies"
    DURING = "crash in the middle of the commit"
    FAILED = "commit failed, outcome unknown"
    FULL = "disk full"


class Kept(Enum):
    """What must be there after a fault."""

    BEFORE = "the state before the commit"
    AFTER = "the state after the commit"
    EITHER = "one of the two"


KEPT = {
    Fault.BEFORE: Kept.BEFORE,
    Fault.AFTER: Kept.AFTER,
    Fault.DURING: Kept.EITHER,
    Fault.FAILED: Kept.EITHER,
    Fault.FULL: Kept.BEFORE,
}


class Engine(Protocol):
    """A place for data that survives its stores."""

    def open(self) -> Store:
        """Open what is there."""
        ...

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> None:
        """The last commit of the store that is open now, which goes wrong. The store is not used afterwards."""
        ...

    def rest(self, rng: random.Random) -> None:
        """Between commits: time for work in the background."""
        ...


class MemoryEngine:
    """A store in memory: commits happen, or not."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    def suffer(self, fault: Fault, changes: Changes, rng: random.Random) -> None:
        kept = KEPT[fault]
        if kept is Kept.AFTER or (kept is Kept.EITHER and rng.random() < 0.5):
            self._store.commit(changes)

    def rest(self, rng: random.Random) -> None:
        pass
