"""Keys: they sort as the numbers in them do, and come apart as they were put together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.storage import keys
from penstock.core.storage.keys import ChunkKey, Kind, LaneKind, lane_code

ids = st.integers(0, (1 << 64) - 1)
small = st.integers(0, (1 << 32) - 1)
lanes = st.builds(lane_code, st.sampled_from(LaneKind), st.integers(0, 9), st.integers(0, (1 << 24) - 1))
chunk_keys = st.builds(ChunkKey, ids, lanes, ids, ids, small, small, ids)


@given(chunk_keys, chunk_keys)
def test_chunk_keys_sort_as_their_numbers_do(one: ChunkKey, other: ChunkKey) -> None:
    def numbers(key: ChunkKey) -> tuple[int, ...]:
        return (key.queue_id, key.lane, key.order, key.base, key.messages, key.size, key.aged_ms)

    assert (one.packed < other.packed) == (numbers(one) < numbers(other))
    assert (one == other) == (numbers(one) == numbers(other))


@given(chunk_keys)
def test_chunk_key_comes_apart_as_it_was(key: ChunkKey) -> None:
    again = ChunkKey.unpack(key.packed)
    assert again == key
    assert hash(again) == hash(key)
    assert (again.queue_id, again.lane, again.order, again.base) == (key.queue_id, key.lane, key.order, key.base)
    assert (again.messages, again.size, again.aged_ms) == (key.messages, key.size, key.aged_ms)


@given(st.sampled_from(LaneKind), st.integers(0, 9), st.integers(0, (1 << 24) - 1))
def test_lane_comes_apart_as_it_was(kind: LaneKind, priority: int, channel_id: int) -> None:
    lane = lane_code(kind, priority, channel_id)
    assert (keys.lane_kind(lane), keys.lane_priority(lane), keys.lane_channel(lane)) == (kind, priority, channel_id)
    assert 0 <= lane < 1 << 32


@given(chunk_keys)
def test_chunk_lies_under_its_lane_and_its_queue(key: ChunkKey) -> None:
    assert key.packed.startswith(keys.queue_chunks(key.queue_id))
    assert key.packed.startswith(keys.lane_chunks(key.queue_id, key.lane, key.order))


@given(chunk_keys, ids)
def test_listing_starts_at_the_first_chunk_with_that_base(key: ChunkKey, base: int) -> None:
    start = keys.lane_start(key.queue_id, key.lane, base, key.order)
    assert (key.packed >= start) == (key.base >= base)


@given(chunk_keys, lanes)
def test_moved_chunk_keeps_everything_but_its_lane(key: ChunkKey, lane: int) -> None:
    moved = key.moved(lane)
    assert (moved.lane, moved.order) == (lane, 0)
    assert (moved.base, moved.messages, moved.size, moved.aged_ms) == (key.base, key.messages, key.size, key.aged_ms)


@given(ids, small, lanes, ids)
def test_entry_comes_apart_as_it_was_and_lies_under_its_channel_and_lane(
    queue_id: int, channel_id: int, lane: int, base: int
) -> None:
    key = keys.entry_record(keys.lane_entries(queue_id, channel_id, lane), base)
    assert keys.unpack_entry(key) == (queue_id, channel_id, lane, base)
    assert key.startswith(keys.channel_entries(queue_id, channel_id))
    assert keys.number_of(key) == queue_id


@given(ids, lanes, ids, ids)
def test_buckets_and_far_entries_come_apart_and_lie_under_their_prefixes(
    queue_id: int, lane: int, order: int, base: int
) -> None:
    assert keys.unpack_bucket(keys.bucket_record(queue_id, lane, order)) == (queue_id, lane, order)
    entry = keys.far_entry(queue_id, lane, order, base)
    assert entry.startswith(keys.far_entries(queue_id, lane, order))


@given(ids, ids, ids)
def test_dedup_records_lie_under_their_bucket(queue_id: int, bucket: int, first: int) -> None:
    assert keys.dedup_record(queue_id, bucket, first).startswith(keys.dedup_bucket(queue_id, bucket))


@given(st.integers(0, (1 << 56) - 1), st.sampled_from(Kind), ids)
def test_no_record_lies_under_the_prefix_of_a_queues_chunks(queue_id: int, kind: Kind, number: int) -> None:
    assert not keys.record(kind, number).startswith(keys.queue_chunks(queue_id))


@given(ids, ids, st.sampled_from(Kind), st.sampled_from(Kind))
def test_records_of_different_kinds_or_queues_do_not_lie_under_each_other(
    one: int, other: int, kind: Kind, other_kind: Kind
) -> None:
    if (one, kind) != (other, other_kind):
        assert not keys.record(other_kind, other, b"rest").startswith(keys.record(kind, one))
