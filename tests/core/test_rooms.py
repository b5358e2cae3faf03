"""The rooms of a broker: each command is done in one of them."""

from __future__ import annotations

import pytest

from penstock.core import commands
from penstock.core.broker import Broker
from penstock.core.commands import Command, QueueStats, handlers_of
from penstock.store.memory import MemoryStore


@pytest.fixture
def broker() -> Broker:
    return Broker.open(MemoryStore(), 0, bytes(64))


def test_every_command_is_done_by_something(broker: Broker) -> None:
    kinds = {kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)}
    every = {kind for kind in kinds if not kind.__name__.startswith("_")}
    assert set(broker.handlers) == every - {Command}


def test_no_command_is_done_in_two_rooms() -> None:
    class Room:
        def _queue_stats(self) -> None:
            """Does it."""

    with pytest.raises(AssertionError, match="QueueStats: 2 methods are called queue_stats"):
        handlers_of([QueueStats], [Room(), Room()])
    with pytest.raises(AssertionError, match="QueueStats: 0 methods are called queue_stats"):
        handlers_of([QueueStats], [object()])
