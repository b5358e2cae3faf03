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
from tests.core.driver import BrokerDriver


def stored(store: MemoryStore) -> list[Any]:
    """The record of the queue `hit`, as it is stored."""
    found = [msgspec.msgpack.decode(value) for _, value in store.scan(bytes([Kind.QUEUE]))]
    return next(record for record in found if record[0] == "hit")


def set_by_a_later_build(settings: dict[str, Any], *needs: str) -> MemoryStore:
    """A store with the queues `hit` and `well`, the first of them with settings that this build does not know."""
    driver = BrokerDriver()
    driver.create("hit", lease_ms=5_000)
    driver.create("well")
    driver.send(b"1", queue="hit")
    record = stored(driver.store)
    record[1] |= settings
    record[5:] = [list(needs)]
    changes = Changes()
    changes.put_record(keys.record(Kind.QUEUE, driver.broker.queues["hit"].id), msgspec.msgpack.encode(record))
    driver.store.commit(changes)
    return driver.store


def test_settings_of_a_later_build_are_kept_when_others_are_changed() -> None:
    driver = BrokerDriver(set_by_a_later_build({"colour": "blue", "shape": {"corners": [3, None]}}))
    driver.change("hit", lease_ms=7_000)
    assert stored(driver.store)[1] == {"lease_ms": 7_000, "colour": "blue", "shape": {"corners": [3, None]}}
    again = BrokerDriver(driver.store)
    assert again.do(c.DescribeQueue(name="hit")).config.lease_ms == 7_000
    assert again.receive(1, queue="hit")


def test_a_setting_that_must_be_known_keeps_its_queue_out_by_name_and_no_other() -> None:
    driver = BrokerDriver(set_by_a_later_build({"colour": "blue"}, "colour"), checks=False)
    with pytest.raises(QueueDamaged, match="does not know the setting colour"):
        driver.send(b"2", queue="hit")
    driver.send(b"2", queue="well")
    assert stored(driver.store)[1] == {"lease_ms": 5_000, "colour": "blue"}


@pytest.mark.parametrize("changed", [{"policy": "consume_twice"}, {"backoff": {"shape": "stairs"}}])
def test_a_value_that_is_not_known_keeps_its_queue_out(changed: dict[str, Any]) -> None:
    driver = BrokerDriver(set_by_a_later_build(changed), checks=False)
    with pytest.raises(QueueDamaged, match=r"Invalid enum value .* - at `\$\.(policy|backoff\.shape)`"):
        driver.send(b"2", queue="hit")
    driver.send(b"2", queue="well")
