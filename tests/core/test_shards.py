"""A store is one shard of so many, and stays it."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core import commands as c
from penstock.core.broker import Broker
from penstock.core.errors import InvalidConfig
from penstock.core.queues.partition import SHARD_SHIFT
from penstock.core.storage import keys
from penstock.core.storage.keys import Kind
from penstock.server.clock import SystemClock
from penstock.server.shard import Call, Shard, Step
from penstock.store.memory import MemoryStore

ENTROPY = bytes(range(64))


def new_store(shard: int, shards: int) -> MemoryStore:
    store = MemoryStore()
    broker = Broker.open(store, 0, ENTROPY, shard, shards)
    store.commit(broker.take_changes())
    return store


def test_queue_ids_of_a_shard_carry_its_number() -> None:
    broker = Broker.open(MemoryStore(), 0, ENTROPY, shard=5, shards=16)
    info = broker.handle(c.CreateQueue(name="orders"), 0)
    assert info.queue_id == (5 << SHARD_SHIFT) + 1
    receipt = broker.receipt(info.queue_id, 1, 0, 1)
    assert broker.open_receipt(receipt).queue_id >> SHARD_SHIFT == 5


def test_message_ids_of_shards_differ() -> None:
    brokers = [Broker.open(MemoryStore(), 0, ENTROPY, shard, 3) for shard in range(3)]
    ids = {each.message_id(each.handle(c.CreateQueue(name="a"), 0).queue_id, 0) for each in brokers}
    assert len(ids) == 3


def test_a_shard_is_opened_again_as_what_it_is() -> None:
    store = new_store(2, 4)
    again = Broker.open(store, 0, ENTROPY, 2, 4)
    assert (again.meta.shard, again.meta.shards) == (2, 4)
    assert again.handle(c.CreateQueue(name="a"), 0).queue_id == (2 << SHARD_SHIFT) + 1


@pytest.mark.parametrize(("shard", "shards"), [(0, 1), (1, 4), (2, 5), (0, 4)])
def test_a_shard_cannot_be_opened_as_another_one(shard: int, shards: int) -> None:
    store = new_store(2, 4)
    with pytest.raises(InvalidConfig, match=f"is shard 2 of 4, and was opened as shard {shard} of {shards}"):
        Broker.open(store, 0, ENTROPY, shard, shards)


def test_who_only_reads_takes_a_shard_as_it_is() -> None:
    assert Broker.open(new_store(2, 4), 0, b"", shard=None).meta.shard == 2


def test_a_store_from_before_there_were_shards_is_the_only_one() -> None:
    store = new_store(0, 1)
    broker = Broker.open(store, 0, ENTROPY)
    old_meta = msgspec.msgpack.encode(msgspec.structs.astuple(broker.meta)[:6])
    changes = broker.take_changes()
    changes.put_record(keys.record(Kind.META), old_meta)
    store.commit(changes)
    assert Broker.open(store, 0, ENTROPY).handle(c.CreateQueue(name="a"), 0).queue_id == 1
    with pytest.raises(InvalidConfig, match="is shard 0 of 1"):
        Broker.open(store, 0, ENTROPY, 0, 2)


@pytest.mark.parametrize(("shard", "shards"), [(4, 4), (-1, 4), (0, 0), (0, 1 << 20)])
def test_a_shard_is_one_of_those_there_are(shard: int, shards: int) -> None:
    with pytest.raises(InvalidConfig, match="shards count from 0"):
        Broker.open(MemoryStore(), 0, ENTROPY, shard, shards)


def test_the_shard_passes_its_number_on_to_its_broker() -> None:
    shard = Shard(MemoryStore, SystemClock(), lambda: ENTROPY, 3, 4)
    call = Call(c.CreateQueue(name="a"))
    shard.run(Step([call]))
    assert call.result().queue_id == (3 << SHARD_SHIFT) + 1
    shard.close()
