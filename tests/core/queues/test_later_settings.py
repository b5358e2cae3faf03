"""Settings that a later build has stored are kept through every rewrite, or refused by name if they must be known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core import commands as c
from penstock.core.errors import QueueDamaged
from penstock.core.storage import keys
from penstock.core.storage.changes import Changes
from penstock.core.storage.keys import Kind
from penstock.store.memory import MemoryStore
from tests.core.driver import Desk


def stored(store: MemoryStore) -> list[Any]:
    """The record of the queue `hit`, as it is stored."""
    found = [msgspec.msgpack.decode(value) for _, value in store.scan(bytes([Kind.QUEUE]))]
    return next(record for record in found if record[0] == "hit")


def set_by_a_later_build(settings: dict[str, Any], *needs: str) -> MemoryStore:
    """A store with the queues `hit` and `well`, the first of them with settings that this build does not know."""
    desk = Desk()
    desk.create("hit", lease_ms=5_000)
    desk.create("well")
    desk.send(b"1", queue="hit")
    record = stored(desk.store)
    record[1] |= settings
    record[5:] = [list(needs)]
    changes = Changes()
    changes.put_record(keys.record(Kind.QUEUE, desk.broker.queues["hit"].id), msgspec.msgpack.encode(record))
    desk.store.commit(changes)
    return desk.store


def test_settings_of_a_later_build_are_kept_when_others_are_changed() -> None:
    desk = Desk(set_by_a_later_build({"colour": "blue", "shape": {"corners": [3, None]}}))
    desk.change("hit", lease_ms=7_000)
    assert stored(desk.store)[1] == {"lease_ms": 7_000, "colour": "blue", "shape": {"corners": [3, None]}}
    again = Desk(desk.store)
    assert again.do(c.DescribeQueue(name="hit")).config.lease_ms == 7_000
    assert again.receive(1, queue="hit")


def test_a_setting_that_must_be_known_keeps_its_queue_out_by_name_and_no_other() -> None:
    desk = Desk(set_by_a_later_build({"colour": "blue"}, "colour"), checks=False)
    with pytest.raises(QueueDamaged, match="does not know the setting colour"):
        desk.send(b"2", queue="hit")
    desk.send(b"2", queue="well")
    assert stored(desk.store)[1] == {"lease_ms": 5_000, "colour": "blue"}


@pytest.mark.parametrize("changed", [{"policy": "consume_twice"}, {"backoff": {"shape": "stairs"}}])
def test_a_value_that_is_not_known_keeps_its_queue_out(changed: dict[str, Any]) -> None:
    desk = Desk(set_by_a_later_build(changed), checks=False)
    with pytest.raises(QueueDamaged, match=r"Invalid enum value .* - at `\$\.(policy|backoff\.shape)`"):
        desk.send(b"2", queue="hit")
    desk.send(b"2", queue="well")
