from __future__ import annotations

import pytest

from penstock.cluster.membership.ledger import (
    ClusterRecord,
    DrainRecord,
    Ledger,
    LoadOfShard,
    LoadRecord,
    NodeRecord,
    Record,
    ReleasedRecord,
    ServingRecord,
    ShardRecord,
    encode,
)
from penstock.store.errors import StoreVersion


def ledger(*records: tuple[str, Record | None]) -> Ledger:
    found = Ledger()
    for offset, (key, record) in enumerate(records):
        found.apply(offset, key, None if record is None else encode(record))
    return found


NODE = ("node/a", NodeRecord(incarnation="1", link="h:1", urls={"http": "http://h:2"}))


def test_every_kind_of_record_comes_back_as_it_was() -> None:
    cluster = ClusterRecord(identity="i", shards=4, entropy=b"\x00\xff" * 32)
    load = LoadRecord(at_ms=5, shards={3: LoadOfShard(1.5, 7, 100, 2, 1)})
    found = ledger(("cluster", cluster), NODE, ("load/a", load), ("drain/a", DrainRecord(at_ms=1)))
    assert found.cluster == cluster
    assert found.loads["a"] == load
    assert found.nodes["a"] == NODE[1]
    assert found.is_draining("a")


def test_the_secret_is_not_shown() -> None:
    assert "entropy" not in repr(ClusterRecord(identity="i", shards=4, entropy=b"hidden" * 10))


def test_a_shard_that_was_released_is_served_by_nobody_until_somebody_serves_it_again() -> None:
    serving, released = ServingRecord(node="a", epoch=3), ReleasedRecord(node="a", epoch=3)
    assert ledger(NODE, ("serving/0", serving)).map_for("a", 1).owners == ("a",)
    assert ledger(NODE, ("serving/0", serving), ("released/0", released)).map_for("a", 1).owners == ("",)
    later = ServingRecord(node="a", epoch=4)
    assert ledger(NODE, ("released/0", released), ("serving/0", later)).map_for("a", 1).owners == ("a",)


def test_a_late_record_of_a_former_owner_changes_nothing() -> None:
    newer, older = ServingRecord(node="b", epoch=4), ServingRecord(node="a", epoch=3)
    assert ledger(("serving/0", newer), ("serving/0", older)).server_of(0) == "b"


def test_an_owner_that_let_go_of_its_shard_does_not_own_it() -> None:
    decided = ("shard/0", ShardRecord(owner="a", epoch=3))
    assert ledger(decided).owner_of(0) == "a"
    assert ledger(decided, ("released/0", ReleasedRecord(node="a", epoch=2))).owner_of(0) == "a"
    assert ledger(decided, ("released/0", ReleasedRecord(node="a", epoch=3))).owner_of(0) == ""


def test_the_map_names_no_owner_that_cannot_be_reached() -> None:
    assert ledger(("serving/0", ServingRecord(node="stranger", epoch=1))).map_for("a", 1).owners == ("",)


def test_only_what_changes_the_map_changes_its_version() -> None:
    before = ledger(NODE).map_version
    assert ledger(NODE, ("load/a", LoadRecord(at_ms=1))).map_version == before
    assert ledger(NODE, ("serving/0", ServingRecord(node="a", epoch=1))).map_version > before


def test_a_shard_that_was_given_up_is_another_version_of_the_map() -> None:
    serving, released = ServingRecord(node="a", epoch=3), ReleasedRecord(node="a", epoch=3)
    before = ledger(NODE, ("serving/0", serving))
    after = ledger(NODE, ("serving/0", serving), ("released/0", released))
    assert before.map_for("a", 1).owners != after.map_for("a", 1).owners
    assert after.map_version > before.map_version


def test_the_map_says_who_is_to_serve_a_shard_that_nobody_serves() -> None:
    decided = ("shard/0", ShardRecord(owner="b", epoch=3))
    found = ledger(NODE, decided).map_for("a", 2)
    assert (found.owners, found.next_owners) == (("", ""), ("b", ""))
    assert ledger(NODE, decided).map_version > ledger(NODE).map_version
    serving = ledger(NODE, decided, ("serving/0", ServingRecord(node="a", epoch=2))).map_for("b", 1)
    assert serving.next_owners == ("a",), "as long as it is served, it is where it is served"


def test_a_deleted_key_is_gone() -> None:
    assert not ledger(NODE, ("node/a", None)).nodes
    assert not ledger(("drain/a", DrainRecord()), ("drain/a", None)).drains


def test_keys_of_other_versions_are_left_alone() -> None:
    found = Ledger()
    found.apply(0, "moods/a", b"???")
    found.apply(1, "shard/x", b"???")
    assert not found.shards


@pytest.mark.parametrize("value", [b'{"v": 2}', b"{", b'{"v": 1}'])
def test_records_that_this_program_does_not_know_are_refused(value: bytes) -> None:
    with pytest.raises(StoreVersion, match="shard/0"):
        Ledger().apply(0, "shard/0", value)
