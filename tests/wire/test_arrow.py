from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from penstock.core.queues.attributes import TypedText, encode_attributes
from penstock.core.queues.origin import Origin
from penstock.core.storage.chunk import Chunk
from penstock.wire.arrow import WITH_HEADERS, record_batch, record_schema

BODIES = [b"zero", b"", b"two" * 100, b"three"]


def stored(chunk: Chunk) -> Chunk:
    return Chunk.decode(b"".join(chunk.parts()))


@pytest.mark.parametrize("in_memory", [True, False])
def test_every_slice_of_a_chunk_holds_its_messages(in_memory: bool) -> None:
    chunk = Chunk.of(1_000, 7_000, list(BODIES), groups=[b"a", None, b"c", None])
    chunk = chunk if in_memory else stored(chunk)
    for start in range(4):
        for stop in range(start + 1, 5):
            batch = record_batch(chunk, start, stop)
            batch.validate(full=True)
            assert batch.schema == record_schema()
            assert batch["offset"].to_pylist() == list(range(1_000 + start, 1_000 + stop))
            assert batch["value"].to_pylist() == BODIES[start:stop]
            assert batch["key"].to_pylist() == [b"a", None, b"c", None][start:stop]


def test_bodies_are_wrapped_and_not_copied() -> None:
    data = b"".join(Chunk.of(0, 0, [b"x" * 1_000] * 100).parts())
    batch = record_batch(Chunk.decode(data), 10, 90)
    _, offsets, bodies = batch["value"].buffers()
    start = pa.py_buffer(data).address
    assert start <= offsets.address < start + len(data)
    assert start <= bodies.address < start + len(data)


def test_a_slice_of_a_slice_is_the_same_messages() -> None:
    part = stored(Chunk.of(10, 0, list(BODIES), groups=[None, b"g", b"h", None])).slice(1, 4)
    assert record_batch(part, 1, 3).select(["offset", "key", "value"]).to_pylist() == [
        {"offset": 12, "key": b"h", "value": BODIES[2]},
        {"offset": 13, "key": None, "value": BODIES[3]},
    ]


def test_the_timestamp_is_when_a_message_was_first_sent() -> None:
    moved = Origin("id", "orders", "main", 7, 1_500, 3, 0, []).encode()
    batch = record_batch(Chunk.of(0, 9_000, [b"dead", b"sent here"], origins=[moved, None]), 0, 2)
    seconds = [time.timestamp() for time in batch["timestamp"].to_pylist()]
    assert seconds == [1.5, 9.0]
    assert batch["timestamp"][0].as_py().tzinfo is not None
    assert record_batch(Chunk.of(0, 9_000, [b"dead", b"x"], origins=[moved, None]), 1, 2)["timestamp"][
        0
    ].as_py() == datetime.datetime.fromtimestamp(9, datetime.UTC)


def test_attributes_are_headers_when_asked_for() -> None:
    attributes = [
        None,
        encode_attributes({"kind": "order", "raw": b"\xff", "size": 3}),
        encode_attributes({"price": TypedText.of("12.50", "Number")}),
    ]
    chunk = stored(Chunk.of(0, 0, [b"a", b"b", b"c"], attributes=attributes))
    batch = record_batch(chunk, 0, 3, WITH_HEADERS)
    assert batch.schema == record_schema(WITH_HEADERS)
    assert batch["headers"].to_pylist() == [
        None,
        [{"key": "kind", "value": b"order"}, {"key": "raw", "value": b"\xff"}, {"key": "size", "value": b"3"}],
        [{"key": "price", "value": b"12.50"}],
    ]
    assert "headers" not in record_batch(chunk, 0, 3).schema.names


def test_headers_are_null_where_nobody_set_attributes() -> None:
    batch = record_batch(Chunk.of(0, 0, [b"a", b"b"]), 0, 2, WITH_HEADERS)
    assert batch["headers"].to_pylist() == [None, None]


def test_a_chunk_at_an_odd_address_is_read_all_the_same() -> None:
    data = b"\x00" * 5 + b"".join(Chunk.of(0, 0, list(BODIES), groups=[b"a", None, b"c", None]).parts())
    batch = record_batch(Chunk.decode(memoryview(data)[5:]), 1, 4)
    batch.validate(full=True)
    assert batch["value"].to_pylist() == BODIES[1:]
    assert batch["key"].to_pylist() == [None, b"c", None]


def test_a_slice_goes_through_an_ipc_stream_with_its_own_bytes_only() -> None:
    chunk = Chunk.of(0, 0, [b"x" * 10_000] * 100)
    batch = record_batch(chunk, 40, 41)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    assert data.size < 20_000
    assert pa.ipc.open_stream(data).read_all().to_pylist() == batch.to_pylist()
