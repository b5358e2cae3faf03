"""The rooms of a broker: each command is done in one of them."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.core import commands
from penstock.core.broker import Broker
from penstock.core.commands import Command
from penstock.store.memory import MemoryStore


@pytest.fixture
def broker() -> Broker:
    return Broker.open(MemoryStore(), 0, bytes(64))


def test_every_command_is_done_by_something(broker: Broker) -> None:
    every = {kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)}
    assert set(broker.handlers) == every - {Command}


def test_no_command_is_done_in_two_rooms(broker: Broker) -> None:
    rooms = (
        broker.catalog,
        broker.sending,
        broker.receiving,
        broker.settling,
        broker.work,
        broker.session_register,
        broker.reading,
        broker.redrives,
    )
    times = Counter(kind for room in rooms for kind in room.handlers())
    assert {kind: count for kind, count in times.items() if count > 1} == {}
    assert set(times) <= set(broker.handlers)
