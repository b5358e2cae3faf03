"""Chunks: what goes in comes out, slices are slices, and no damage passes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ChunkDamaged
from penstock.core.storage.chunk import BinaryColumn, Chunk, PackedBodies

bodies_strategy = st.lists(st.binary(max_size=20), min_size=1, max_size=20)
_texts = st.text(min_size=1, max_size=5).filter(lambda text: text.isprintable())


@dataclass
class Given:
    """A chunk and the lists it was made of."""

    bodies: list[bytes]
    attributes: list[bytes | None]
    groups: list[str | None]
    dedup_ids: list[str | None]
    origins: list[bytes | None]
    due_ms: list[int] | None
    chunk: Chunk


@st.composite
def chunks(draw: st.DrawFn) -> Given:
    """Chunks with any sections, each value there or not."""
    bodies = draw(bodies_strategy)
    count = len(bodies)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        if draw(st.booleans()):
            return [None] * count
        return draw(st.lists(st.none() | values, min_size=count, max_size=count))

    attributes, origins = column(st.binary(min_size=1, max_size=9)), column(st.binary(min_size=1, max_size=9))
    groups, dedup_ids = column(_texts), column(_texts)
    due_ms = draw(st.none() | st.lists(st.integers(0, 1 << 60), min_size=count, max_size=count))
    chunk = Chunk.of(
        draw(st.integers(0, 1 << 60)),
        draw(st.integers(0, 1 << 60)),
        bodies,
        attributes=attributes,
        groups=[None if group is None else group.encode() for group in groups],
        dedup_ids=[None if name is None else name.encode() for name in dedup_ids],
        origins=origins,
        due_ms=due_ms,
    )
    return Given(bodies, attributes, groups, dedup_ids, origins, due_ms, chunk)


def _stored(chunk: Chunk) -> bytes:
    return b"".join(chunk.parts())


def _holds(chunk: Chunk, given: Given, start: int, stop: int) -> None:
    """Demand that a chunk is messages `start` to `stop` of what was given."""
    assert chunk.count == stop - start
    assert chunk.base == given.chunk.base + start
    assert chunk.sent_ms == given.chunk.sent_ms
    assert chunk.body_list() == given.bodies[start:stop]
    assert bytes(chunk.bodies) == b"".join(given.bodies[start:stop])
    assert chunk.group_list() == given.groups[start:stop]
    for index in range(stop - start):
        at = start + index
        assert chunk.body(index) == given.bodies[at]
        assert chunk.attributes(index) == given.attributes[at]
        assert chunk.group(index) == given.groups[at]
        assert chunk.dedup_id(index) == given.dedup_ids[at]
        assert chunk.origin(index) == given.origins[at]
        assert chunk.due(index) == (0 if given.due_ms is None else given.due_ms[at])
        assert chunk.sequence(index) == given.chunk.base + at
    sizes = [len(given.bodies[at]) + len(given.attributes[at] or b"") for at in range(start, stop)]
    assert chunk.size == sum(sizes)


@given(chunks())
def test_stored_chunk_comes_back_with_every_section(given: Given) -> None:
    count = len(given.bodies)
    _holds(given.chunk, given, 0, count)
    decoded = Chunk.decode(_stored(given.chunk))
    _holds(decoded, given, 0, count)
    assert _stored(decoded) == _stored(given.chunk)
    assert given.chunk.nbytes == len(_stored(given.chunk))


@given(chunks(), st.data())
def test_slice_is_the_naive_slice_before_and_after_storing(given: Given, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given.bodies) - 1))
    stop = data.draw(st.integers(start + 1, len(given.bodies)))
    for chunk in (given.chunk, Chunk.decode(_stored(given.chunk))):
        piece = chunk.slice(start, stop)
        _holds(piece, given, start, stop)
        _holds(Chunk.decode(_stored(piece)), given, start, stop)
        _holds(piece.slice(0, stop - start), given, start, stop)


@given(chunks(), st.data())
def test_run_of_bodies_is_the_naive_slice(given: Given, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(given.bodies) - 1))
    stop = data.draw(st.integers(start, len(given.bodies)))
    assert given.chunk.body_list(start, stop) == given.bodies[start:stop]
    assert Chunk.decode(_stored(given.chunk)).body_list(start, stop) == given.bodies[start:stop]


@given(chunks())
def test_arrow_wraps_a_stored_chunk_without_copying(given: Given) -> None:
    stored = _stored(given.chunk)
    chunk = Chunk.decode(stored)
    buffers = [None, pa.py_buffer(chunk.offsets), pa.py_buffer(chunk.bodies)]
    array = pa.Array.from_buffers(pa.binary(), chunk.count, buffers)
    array.validate(full=True)
    assert array.to_pylist() == given.bodies
    if len(chunk.bodies):
        start = pa.py_buffer(stored).address
        assert start <= array.buffers()[2].address < start + len(stored)
    assert (array.buffers()[1].address - pa.py_buffer(stored).address) % 4 == 0


def _rich() -> Chunk:
    return Chunk.of(
        7,
        1_000,
        [b"one", b"", b"three"],
        attributes=[b"a", None, b"c"],
        groups=[b"g", b"g", None],
        dedup_ids=[None, b"id", None],
        origins=[None, None, b"origin"],
        due_ms=[0, 5, 6],
    )


@pytest.mark.parametrize(
    "chunk", [_rich(), Chunk.of(0, 0, [b"x"]), Chunk.of(0, 0, [b""])], ids=["rich", "one", "empty"]
)
def test_every_flipped_byte_is_damage(chunk: Chunk) -> None:
    stored = _stored(chunk)
    for index in range(len(stored)):
        for mask in (1, 0x80, 0xFF):
            damaged = bytearray(stored)
            damaged[index] ^= mask
            with pytest.raises(ChunkDamaged):
                Chunk.decode(damaged)


def test_every_truncation_and_every_extension_is_damage() -> None:
    stored = _stored(_rich())
    for length in range(len(stored)):
        with pytest.raises(ChunkDamaged):
            Chunk.decode(stored[:length])
    for tail in (b"\0", b"x" * 8, stored):
        with pytest.raises(ChunkDamaged):
            Chunk.decode(stored + tail)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(ChunkDamaged):
        Chunk.decode(data)
    with pytest.raises(ChunkDamaged):
        Chunk.decode(b"PSCK" + data)


def test_a_chunk_without_due_times_leaves_the_rest_alone() -> None:
    chunk = _rich()
    without = chunk.without_due()
    assert [without.due(index) for index in range(3)] == [0, 0, 0]
    assert Chunk.decode(_stored(without)).due_ms is None
    assert [without.attributes(index) for index in range(3)] == [b"a", None, b"c"]
    assert without.body_list() == chunk.body_list()
    assert [chunk.due(index) for index in range(3)] == [0, 5, 6]


def test_sections_that_nobody_set_are_absent() -> None:
    plain = Chunk.of(0, 0, [b"x"] * 4, attributes=[None] * 4, groups=[None] * 4, dedup_ids=[b""] * 4)
    assert _stored(plain) == _stored(Chunk.of(0, 0, [b"x"] * 4))
    assert not plain.has_groups


def test_large_bodies_and_many_messages_come_back() -> None:
    large = Chunk.of(0, 0, [b"x" * 3_000_000, b"y" * 1_000_000])
    assert Chunk.decode(_stored(large)).body(1) == b"y" * 1_000_000
    many = Chunk.of(0, 0, [b"%d" % number for number in range(4_096)])
    assert Chunk.decode(_stored(many)).body_list() == [b"%d" % number for number in range(4_096)]


def test_decoding_copies_no_bodies() -> None:
    stored = _stored(Chunk.of(0, 0, [b"x" * 1_000] * 100))
    chunk = Chunk.decode(stored)
    assert isinstance(chunk.bodies, memoryview)
    assert chunk.bodies.obj is stored


@given(st.lists(st.none() | st.binary(max_size=6), min_size=1, max_size=12), st.data())
def test_binary_column_is_a_list_of_optional_bytes(values: list[bytes | None], data: st.DataObject) -> None:
    column = BinaryColumn.of(values)
    wanted = [value or None for value in values]
    assert column.values() == [column[index] for index in range(len(values))] == wanted
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert column.slice(start, stop).values() == wanted[start:stop]


@given(bodies_strategy, st.integers(1, 7), st.integers(1, 30))
def test_packed_bodies_in_parts_are_the_same_bodies(bodies: list[bytes], count_max: int, size_max: int) -> None:
    offsets = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    parts = [list(part) for part in PackedBodies(b"".join(bodies), offsets).parts(count_max, size_max)]
    assert [body for part in parts for body in part] == bodies
    assert all(len(part) <= count_max and (len(part) == 1 or len(b"".join(part)) <= size_max) for part in parts)


def _naive_form(base: int, sent_ms: int, bodies: list[bytes]) -> bytes:
    """The stored form of bare messages, as the top of `core/storage/chunk.py` describes it."""
    offsets = [sum(map(len, bodies[:index])) for index in range(len(bodies) + 1)]
    table = struct.pack(f"<{len(offsets)}i", *offsets)
    head = table + bytes(-(48 + len(table)) % 8)
    joined = b"".join(bodies)
    checked = struct.pack("<qqIIII", base, sent_ms, len(bodies), 0, 48 + len(head), len(joined)) + head + joined
    return b"PSCK" + struct.pack("<IQ", 1, xxhash.xxh3_64_intdigest(checked)) + checked


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), bodies_strategy, st.sampled_from([0, 1, 300, 5_000]))
def test_bare_messages_are_stored_alike_however_they_came(
    base: int, sent_ms: int, bodies: list[bytes], more: int
) -> None:
    bodies = [body + bytes(more) for body in bodies]
    offsets = np.cumsum([0, *map(len, bodies)]).astype(np.int32)
    for given_bodies in (bodies, PackedBodies(b"".join(bodies), offsets)):
        chunk = Chunk.of(base, sent_ms, given_bodies)
        assert b"".join(chunk.parts()) == _naive_form(base, sent_ms, bodies)
        assert chunk.nbytes == len(_naive_form(base, sent_ms, bodies))


@pytest.mark.parametrize("body", [b"", b"one"])
def test_a_chunk_of_one_message_has_its_table_when_somebody_asks(body: bytes) -> None:
    stored = b"".join(Chunk.of(100, 5, [body]).parts())
    chunk = Chunk.decode(stored)
    assert chunk.body(0) == body
    with pytest.raises(IndexError):
        chunk.body(1)
    assert chunk.offsets.tolist() == [0, len(body)]
    assert chunk.body(0) == body
    assert chunk.body_list() == [body]
    assert b"".join(Chunk.decode(stored).parts()) == stored
    assert b"".join(Chunk.decode(stored).slice(0, 1).parts()) == stored
