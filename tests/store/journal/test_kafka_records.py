"""How commits look in Kafka, without Kafka: what is read back is what was written, however the log was compacted."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.store.errors import StoreDamaged, StoreVersion
from penstock.store.journal.kafka_records import (
    FORMAT_VERSION,
    MESSAGE_OVERHEAD_BYTES,
    Assembly,
    Marker,
    Message,
    Splits,
    part_key,
)

LIMIT = MESSAGE_OVERHEAD_BYTES + 1100
"""Values above about 1100 bytes are split."""

values = st.one_of(
    st.none(), st.binary(max_size=20), st.integers(1000, 6000).map(lambda size: bytes([size % 256]) * size)
)
commits = st.lists(st.dictionaries(st.sampled_from([b"a", b"b", b"", b"\x03\0\0\0\0"]), values, max_size=3), max_size=8)


def written(history: list[dict[bytes, bytes | None]]) -> tuple[list[Message], Splits]:
    """The log of a history."""
    splits = Splits()
    log: list[Message] = []
    for number, commit in enumerate(history, 1):
        log += splits.messages(commit, number, LIMIT)
        splits.settle(committed=True)
    return log, splits


def compacted(log: list[Message], cut: int, *, tombstones: bool) -> list[Message]:
    """What Kafka's cleaner makes of a log up to a cut: of each key the newest there; perhaps without tombstones."""
    newest = {key: offset for offset, (key, _) in enumerate(log[:cut])}
    kept = [(key, value) for offset, (key, value) in enumerate(log[:cut]) if newest[key] == offset]
    return [(key, value) for key, value in kept if value is not None or tombstones] + log[cut:]


def read(
    log: list[Message], values: dict[bytes, bytes] | None = None, counts: dict[bytes, int] | None = None
) -> tuple[dict[bytes, bytes], Assembly]:
    """What a log says, over what a table holds."""
    table, assembly = dict(values or {}), Assembly("test", counts)
    for key, value in log:
        assembly.take(key, value)
    for key, value in assembly.take_values().items():
        table.pop(key, None)
        if value is not None:
            table[key] = value
    assembly.check_end()
    return table, assembly


def model(history: list[dict[bytes, bytes | None]]) -> dict[bytes, bytes]:
    state: dict[bytes, bytes | None] = {}
    for commit in history:
        state.update(commit)
    return {key: value for key, value in state.items() if value is not None}


@given(commits, st.data())
def test_any_history_is_read_back_from_any_compacted_log(
    history: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    log, _ = written(history)
    log = compacted(log, data.draw(st.integers(0, len(log))), tombstones=True)
    log = compacted(log, data.draw(st.integers(0, len(log))), tombstones=data.draw(st.booleans()))
    assert read(log)[0] == model(history)


@given(commits, commits)
def test_a_reader_that_knows_the_first_commits_catches_up_and_again_does_no_harm(
    before: list[dict[bytes, bytes | None]], later: list[dict[bytes, bytes | None]]
) -> None:
    log, _ = written(before)
    whole, splits = written(before + later)
    table, assembly = read(whole[len(log) :], model(before))
    assert table == model(before + later)
    assert read(whole, table)[0] == table
    known = Splits(written(before)[1].counts)
    known.note(assembly.counts)
    assert known.counts == splits.counts


@given(commits, st.data())
def test_a_log_is_read_on_from_wherever_no_part_waits_for_its_head(
    history: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    log, splits = written(history)
    cut = data.draw(st.integers(0, len(log)))
    table, assembly = read(log[:cut])
    assume(assembly.is_whole)
    rest = compacted(log[cut:], data.draw(st.integers(0, len(log) - cut)), tombstones=True)
    assert read(rest, table, splits.counts)[0] == model(history)


@given(commits)
def test_nothing_is_left_of_what_was_deleted(history: list[dict[bytes, bytes | None]]) -> None:
    deleted: dict[bytes, bytes | None] = {key: None for commit in history for key in commit}
    log, splits = written([*history, deleted])
    assert compacted(log, len(log), tombstones=False) == []
    assert splits.counts == {}


@given(commits)
def test_no_message_is_larger_than_the_limit(history: list[dict[bytes, bytes | None]]) -> None:
    log, _ = written(history)
    assert all(len(key) + len(value or b"") < LIMIT for key, value in log)


def test_values_that_were_not_committed_are_not_in_parts() -> None:
    splits = Splits()
    list(splits.messages({b"k": b"x" * 5000}, 1, LIMIT))
    splits.settle(committed=False)
    assert splits.counts == {}


def test_a_value_whose_parts_are_gone_is_damage() -> None:
    log, _ = written([{b"k": b"x" * 5000}])
    with pytest.raises(StoreDamaged, match=r"parts of 1 values are missing, of b'k' for one"):
        read([message for message in log if message[0] != part_key(b"k", 1)])


def test_a_message_of_somebody_else_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="key of no known kind"):
        read([(b"hello", b"world")])
    with pytest.raises(StoreDamaged, match="key of no known kind"):
        read([(b"", b"world")])


def test_a_marker_of_a_later_format_is_refused_and_says_what_to_do() -> None:
    later = bytes([FORMAT_VERSION + 1]) + b"whatever comes"
    with pytest.raises(StoreVersion, match=r"written in format 2; this version of Penstock knows 1"):
        Marker.decode(later, "demo.offset")


@pytest.mark.parametrize("value", [None, b"", bytes([FORMAT_VERSION]), bytes([FORMAT_VERSION]) * 40])
def test_a_marker_that_is_none_is_damage(value: bytes | None) -> None:
    with pytest.raises(StoreDamaged, match="marker"):
        Marker.decode(value, "demo.offset")
