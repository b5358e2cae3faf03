from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.cluster.membership.kafka import kafka_controller
from penstock.cluster.membership.ledger import (
    ClusterRecord,
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
from penstock.cluster.placement.plan import LEISURE, RATIO, STAY_COOL_DOWNS, Member, ShardLoad, plan
from penstock.store.journal.kafka_options import KafkaOptions

COOL_DOWN_S = 5.0
MOVES_MAX = 2_000

loads = st.builds(
    ShardLoad,
    number=st.just(0),
    owner=st.sampled_from(["", "a", "b", "c", "gone"]),
    rate=st.floats(0, 1e6),
    commits=st.floats(0, 1e4),
    byte_rate=st.floats(0, 1e9),
)
shard_lists = st.lists(loads, min_size=1, max_size=24).map(
    lambda found: [replace(shard, number=number) for number, shard in enumerate(found)]
)
member_lists = st.lists(
    st.builds(Member, st.sampled_from(["a", "b", "c", "d"]), st.booleans()),
    min_size=1,
    max_size=4,
    unique_by=lambda member: member.name,
)
wish_maps = st.dictionaries(st.integers(0, 23), st.sampled_from(["a", "b", "elsewhere"]), max_size=4)


def followed(shards: list[ShardLoad], moves: dict[int, str], now_s: float) -> list[ShardLoad]:
    """The shards after the moves were made."""
    return [
        replace(shard, owner=moves[shard.number], moved_s=now_s) if shard.number in moves else shard for shard in shards
    ]


def settled(
    members: list[Member], shards: list[ShardLoad], wishes: dict[int, str]
) -> tuple[list[ShardLoad], list[dict[int, str]]]:
    """Let the controller work until it has nothing left to do; time is no object."""
    now_s = 0.0
    made: list[dict[int, str]] = []
    for _ in range(MOVES_MAX):
        now_s += LEISURE * COOL_DOWN_S
        moves = plan(members, shards, wishes, now_s, COOL_DOWN_S)
        if not moves:
            return shards, made
        made.append(moves)
        shards = followed(shards, moves, now_s)
    raise AssertionError(f"still moving after {MOVES_MAX} plans")


def owners(shards: list[ShardLoad]) -> tuple[str, ...]:
    return tuple(shard.owner for shard in shards)


def counts(shards: list[ShardLoad]) -> dict[str, int]:
    return {name: owners(shards).count(name) for name in owners(shards)}


def idle(count: int, owner: str = "") -> list[ShardLoad]:
    return [ShardLoad(number, owner) for number in range(count)]


@given(member_lists, shard_lists, wish_maps)
def test_after_one_plan_every_shard_has_one_owner_among_the_living(
    members: list[Member], shards: list[ShardLoad], wishes: dict[int, str]
) -> None:
    after = followed(shards, plan(members, shards, wishes, 0.0, COOL_DOWN_S), 0.0)
    assert {shard.owner for shard in after} <= {member.name for member in members}
    assert [shard.number for shard in after] == [shard.number for shard in shards]


@given(member_lists, shard_lists, wish_maps)
def test_with_steady_loads_planning_ends_and_no_assignment_comes_twice(
    members: list[Member], shards: list[ShardLoad], wishes: dict[int, str]
) -> None:
    seen, now_s = {owners(shards)}, 0.0
    for _ in range(MOVES_MAX):
        now_s += LEISURE * COOL_DOWN_S
        moves = plan(members, shards, wishes, now_s, COOL_DOWN_S)
        if not moves:
            return
        shards = followed(shards, moves, now_s)
        assert owners(shards) not in seen, "ping-pong"
        seen.add(owners(shards))
    raise AssertionError("no end")


@given(member_lists, shard_lists, wish_maps)
def test_what_has_settled_stays_however_often_it_is_planned(
    members: list[Member], shards: list[ShardLoad], wishes: dict[int, str]
) -> None:
    shards, _ = settled(members, shards, wishes)
    assert plan(members, shards, wishes, 1e9, COOL_DOWN_S) == {}


@given(member_lists, shard_lists)
def test_draining_nodes_end_up_empty_if_anybody_else_is_there(members: list[Member], shards: list[ShardLoad]) -> None:
    shards, _ = settled(members, shards, {})
    if any(not member.is_draining for member in members):
        draining = {member.name for member in members if member.is_draining}
        assert not draining & set(owners(shards))


@given(member_lists, shard_lists)
def test_beyond_orphans_one_shard_moves_at_a_time(members: list[Member], shards: list[ShardLoad]) -> None:
    alive = {member.name for member in members}
    orphans = [shard.number for shard in shards if shard.owner not in alive]
    moves = plan(members, shards, {}, 0.0, COOL_DOWN_S)
    newcomers = alive - {shard.owner for shard in shards}
    assert sorted(moves) == orphans if orphans else len(moves) <= 1 or set(moves.values()) <= newcomers


def test_the_first_node_gets_everything() -> None:
    assert counts(settled([Member("a")], idle(16), {})[0]) == {"a": 16}


def test_without_loads_shards_are_spread_by_count() -> None:
    shards, moves = settled([Member("a"), Member("b")], idle(4, "a"), {})
    assert counts(shards) == {"a": 2, "b": 2}
    assert moves == [{0: "b", 1: "b"}], "who has nothing gets its share at once"
    assert counts(settled([Member("a"), Member("b"), Member("c")], idle(16), {})[0]) == {"a": 6, "b": 5, "c": 5}


def test_a_node_that_was_started_again_gets_its_share_at_once_and_not_shard_by_shard() -> None:
    members = [Member(name) for name in "abc"]
    shards = [ShardLoad(number, "ab"[number % 2], rate=100.0, moved_s=99.0) for number in range(12)]
    moves = plan(members, shards, {}, now_s=100.0, cool_down_s=5.0)
    assert set(moves.values()) == {"c"} and len(moves) == 4


def test_an_odd_shard_stays_where_it_is() -> None:
    shards = [ShardLoad(0, "a"), ShardLoad(1, "a"), ShardLoad(2, "b")]
    assert plan([Member("a"), Member("b")], shards, {}, 0.0, COOL_DOWN_S) == {}


def test_one_busy_shard_gets_company_only_elsewhere() -> None:
    shards = [ShardLoad(0, "a", rate=10_000.0), *(ShardLoad(number, "a") for number in range(1, 4))]
    after, _ = settled([Member("a"), Member("b")], shards, {})
    assert owners(after) == ("a", "b", "b", "b")


def test_a_difference_below_the_ratio_moves_nothing() -> None:
    shards = [*idle(12, "a"), *(ShardLoad(number, "b") for number in range(12, 22))]
    assert RATIO > 12 / 10
    assert plan([Member("a"), Member("b")], shards, {}, 0.0, COOL_DOWN_S) == {}


def test_balance_waits_for_the_cool_down_and_for_shards_on_their_way() -> None:
    members = [Member("a"), Member("b")]
    just_moved = [*idle(5, "a"), ShardLoad(5, "b", moved_s=100.0)]
    assert plan(members, just_moved, {}, 100.0 + COOL_DOWN_S - 1, COOL_DOWN_S) == {}
    assert plan(members, just_moved, {}, 100.0 + COOL_DOWN_S, COOL_DOWN_S) != {}
    on_its_way = [*idle(5, "a"), ShardLoad(5, "b", is_settled=False)]
    assert plan(members, on_its_way, {}, 1e6, COOL_DOWN_S) == {}


def test_orphans_wait_for_nobody() -> None:
    shards = [ShardLoad(0, "b", is_settled=False, moved_s=100.0), ShardLoad(1, "gone"), ShardLoad(2, "gone")]
    assert plan([Member("a"), Member("b")], shards, {}, 100.0, COOL_DOWN_S) == {1: "a", 2: "a"}


def test_a_backlog_that_nobody_consumes_is_no_load() -> None:
    ledger = Ledger()
    records: dict[str, Record] = {"cluster": ClusterRecord(identity="i", shards=16, entropy=b"e" * 64)}
    for number in range(16):
        owner = "ab"[number % 2]
        records[f"node/{owner}"] = NodeRecord(incarnation="1", link="127.0.0.1:9")
        records[f"shard/{number}"] = ShardRecord(owner=owner, epoch=1)
        records[f"serving/{number}"] = ServingRecord(node=owner, epoch=1)
    dead_letters = {number: LoadOfShard(backlog=10**7, bytes=10**10) for number in (0, 2)}
    records["load/a"] = LoadRecord(at_ms=0, shards=dead_letters)
    for offset, (key, record) in enumerate(records.items()):
        ledger.apply(offset, key, encode(record))
    controller = kafka_controller(KafkaOptions("127.0.0.1:9", "nobody", "nobody"), "b", ledger, 3.0, COOL_DOWN_S)
    shards = [controller._shard_load(number) for number in range(16)]
    assert plan([Member("a"), Member("b")], shards, {}, 1e6, COOL_DOWN_S) == {}


@pytest.mark.parametrize("was_served", [False, True])
def test_a_shard_that_its_owner_could_not_open_goes_to_another_node_however_busy_that_is(was_served: bool) -> None:
    """One that was served comes back, where its cache is."""
    ledger = Ledger()
    records: dict[str, Record] = {
        "cluster": ClusterRecord(identity="i", shards=2, entropy=b"e" * 64),
        "node/a": NodeRecord(incarnation="1", link="127.0.0.1:9"),
        "node/b": NodeRecord(incarnation="1", link="127.0.0.1:9"),
        "shard/0": ShardRecord(owner="a", epoch=3),
        "serving/0": ServingRecord(node="a", epoch=3 if was_served else 2),
        "released/0": ReleasedRecord(node="a", epoch=3, reason="OSError: No space left on device"),
        "shard/1": ShardRecord(owner="b", epoch=1),
        "serving/1": ServingRecord(node="b", epoch=1),
        "load/b": LoadRecord(at_ms=0, shards={1: LoadOfShard(rate=1e6)}),
    }
    for offset, (key, record) in enumerate(records.items()):
        ledger.apply(offset, key, encode(record))
    options = KafkaOptions("127.0.0.1:9", "nobody", "nobody")
    controller = kafka_controller(options, "b", ledger, session_timeout_s=3.0, cool_down_s=COOL_DOWN_S)
    controller.liveness.presume("ab", 0.0)
    written: dict[str, Record] = {}
    controller._write = written.update  # type: ignore[method-assign, assignment]
    controller._decide(0.0)
    assert written == {"shard/0": ShardRecord(owner="a" if was_served else "b", epoch=4)}


def test_a_shard_moved_by_hand_goes_there_and_stays() -> None:
    shards, _ = settled([Member("a"), Member("b")], idle(4, "a"), {0: "b", 1: "b", 2: "b"})
    assert owners(shards) == ("b", "b", "b", "a")


def test_a_wish_for_a_node_that_is_not_there_or_leaves_is_kept_for_later() -> None:
    members = [Member("a"), Member("b", is_draining=True)]
    assert plan(members, idle(2, "a"), {0: "b", 1: "gone"}, 0.0, COOL_DOWN_S) == {}


def test_the_last_node_keeps_its_shards_although_it_drains() -> None:
    assert plan([Member("a", is_draining=True)], idle(2, "a"), {}, 0.0, COOL_DOWN_S) == {}
    assert plan([Member("a", is_draining=True)], idle(2), {}, 0.0, COOL_DOWN_S) == {0: "a", 1: "a"}


def test_loads_that_swing_do_not_swing_shards() -> None:
    members, shards, now_s, moves = [Member("a"), Member("b")], idle(4, "a"), 0.0, 0
    for round_ in range(100):
        now_s += 1
        swinging = [
            replace(shard, rate=1_000.0 if (shard.number + round_) % 2 else 10.0, is_settled=True) for shard in shards
        ]
        change = plan(members, swinging, {}, now_s, COOL_DOWN_S)
        moves += len(change)
        shards = followed(shards, change, now_s)
    assert moves <= 100 / (COOL_DOWN_S * STAY_COOL_DOWNS) * len(shards)
