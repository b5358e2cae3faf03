"""Messages as Arrow record batches: how Spark, pyarrow and the REST API's Arrow stream see a run of messages.

A chunk's offsets and bodies are the two buffers of an Arrow binary array, so `value` is wrapped and not copied; so is
`key`, the group. A slice of a chunk is the same buffers with an Arrow offset. The batch keeps the chunk's memory alive.

    offset     int64, not null                  the message's sequence number: where it stands in its queue
    timestamp  timestamp[us, UTC], not null     when it was first sent (a moved message keeps its first time)
    key        binary                           the group; null when it has none
    value      binary, not null                 the body
    headers    list<struct<key: string, value: binary>>   the attributes, when asked for; null when it has none

What a message that was moved between queues (a dead letter, a redriven one) has behind it comes when it is asked for by
name (`DEAD_COLUMNS`); all of it is null in other messages:

    deadReason   string                                     why it failed last
    deadOrigin   struct<queue, channel, offset, id>         where it was moved from
    attempts     int32                                      how often it was handed out there
    history      list<struct<attempt, receivedAt, failedAt, session, error>>
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.core.queues.attributes import AttributeValue, decode_attributes
from penstock.core.queues.origin import Origin
from penstock.core.storage.chunk import BinaryColumn, Chunk, Section

HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

_TIME = pa.timestamp("us", tz="UTC")
_DEAD = {
    "deadReason": pa.string(),
    "deadOrigin": pa.struct(
        [("queue", pa.string()), ("channel", pa.string()), ("offset", pa.int64()), ("id", pa.string())]
    ),
    "attempts": pa.int32(),
    "history": pa.list_(
        pa.struct(
            [
                ("attempt", pa.int32()),
                ("receivedAt", _TIME),
                ("failedAt", _TIME),
                ("session", pa.string()),
                ("error", pa.string()),
            ]
        )
    ),
}
DEAD_COLUMNS = tuple(_DEAD)
_FIELDS = {
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", _TIME, nullable=False),
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary(), nullable=False),
    "headers": pa.field("headers", HEADERS),
    **{name: pa.field(name, kind) for name, kind in _DEAD.items()},
}
COLUMNS = tuple(_FIELDS)
BASE_COLUMNS = COLUMNS[:4]
WITH_HEADERS = COLUMNS[:5]

_COPIED_BYTES = 64 * 1024
"""Buffers below this are copied: handing one to a socket costs more."""


@cache
def record_schema(columns: tuple[str, ...] = BASE_COLUMNS) -> Any:
    """The schema of a batch with these columns.

    >>> record_schema().names
    ['offset', 'timestamp', 'key', 'value']
    """
    return pa.schema([_FIELDS[name] for name in columns])


def record_batch(chunk: Chunk, start: int, stop: int, columns: tuple[str, ...] = BASE_COLUMNS) -> Any:
    """The messages of a chunk from index `start` up to, not including, `stop`, as a `pyarrow.RecordBatch`.

    >>> chunk = Chunk.of(100, 5, [b"one", b"two", b"three"], groups=[None, b"g", None])
    >>> record_batch(chunk, 1, 3, ("offset", "key", "value")).to_pylist()
    [{'offset': 101, 'key': b'g', 'value': b'two'}, {'offset': 102, 'key': None, 'value': b'three'}]
    """
    arrays = [_array(chunk, start, stop, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=record_schema(columns))


def _array(chunk: Chunk, start: int, stop: int, column: str) -> Any:
    match column:
        case "offset":
            return pa.array(np.arange(chunk.base + start, chunk.base + stop, dtype=np.int64))
        case "timestamp":
            return _timestamps(chunk, start, stop)
        case "key":
            return _keys(chunk.column(Section.GROUPS), start, stop)
        case "value":
            return _binary(chunk.offsets, chunk.bodies, start, stop)
        case "headers":
            return _headers(chunk, start, stop)
        case _:
            return _dead(chunk, start, stop, column)


def stream_parts(schema: Any, batches: Iterable[Any]) -> list[bytes | memoryview]:
    """An Arrow stream of batches, in parts: large buffers are the batches' own memory, small ones are put together.

    >>> chunk = Chunk.of(100, 5, [b"one", b"two", b"three"])
    >>> parts = stream_parts(record_schema(), [record_batch(chunk, 0, 2), record_batch(chunk, 2, 3)])
    >>> pa.ipc.open_stream(b"".join(parts)).read_all()["value"].to_pylist()
    [b'one', b'two', b'three']
    """
    sink = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.taken()


class _Parts:
    """A file that keeps what is written to it, and copies only what is small."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._small: list[Any] = []

    def write(self, data: Any) -> int:
        """Bytes, or a buffer of Arrow's."""
        size = len(data)
        if size < _COPIED_BYTES:
            self._small.append(data)
        else:
            self._put_together()
            self._parts.append(memoryview(data).cast("B"))
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> list[bytes | memoryview]:
        self._put_together()
        return self._parts

    def _put_together(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []


def _binary(offsets: NDArray[np.int32], data: Any, start: int, stop: int, validity: Any = None) -> Any:
    if not offsets.flags.aligned:
        offsets = offsets.copy()
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), stop - start, buffers, offset=start)


def _keys(groups: BinaryColumn | None, start: int, stop: int) -> Any:
    if groups is None:
        return pa.nulls(stop - start, pa.binary())
    is_set = np.packbits(np.diff(groups.offsets) > 0, bitorder="little")
    return _binary(groups.offsets, groups.data, start, stop, pa.py_buffer(is_set))


def _timestamps(chunk: Chunk, start: int, stop: int) -> Any:
    times_us = np.full(stop - start, chunk.sent_ms * 1_000, dtype=np.int64)
    origins = chunk.column(Section.ORIGINS)
    if origins is not None:
        moved = np.flatnonzero(np.diff(origins.offsets[start : stop + 1])).tolist()
        for index in moved:
            times_us[index] = Origin.decode(origins[start + index] or b"").sent_ms * 1_000
    return pa.array(times_us).cast(pa.timestamp("us", tz="UTC"))


def _dead(chunk: Chunk, start: int, stop: int, column: str) -> Any:
    """A column of what moved messages have behind them. There are few of these, and none in most chunks."""
    origins = chunk.column(Section.ORIGINS)
    if origins is None:
        return pa.nulls(stop - start, _DEAD[column])
    found = [origins[index] for index in range(start, stop)]
    values = [None if each is None else _dead_value(Origin.decode(each), column) for each in found]
    return pa.array(values, type=_DEAD[column])


def _dead_value(origin: Origin, column: str) -> Any:
    match column:
        case "deadReason":
            return origin.failures[-1].error if origin.failures else None
        case "deadOrigin":
            return {"queue": origin.queue, "channel": origin.channel, "offset": origin.sequence, "id": origin.id}
        case "attempts":
            return origin.attempts
        case _:
            return [
                {
                    "attempt": each.attempt,
                    "receivedAt": each.received_ms * 1_000,
                    "failedAt": each.failed_ms * 1_000,
                    "session": each.session,
                    "error": each.error,
                }
                for each in origin.failures
            ]


def _headers(chunk: Chunk, start: int, stop: int) -> Any:
    attributes = chunk.column(Section.ATTRIBUTES)
    if attributes is None:
        return pa.nulls(stop - start, HEADERS)
    values = [attributes[index] for index in range(start, stop)]
    return pa.array([None if each is None else _header_list(each) for each in values], type=HEADERS)


def _header_list(stored: bytes) -> list[dict[str, Any]]:
    return [{"key": name, "value": header_bytes(value)} for name, value in decode_attributes(stored).items()]


def header_bytes(value: AttributeValue) -> bytes:
    """An attribute's value as a header's: bytes as they are, text as UTF-8, numbers as their text.

    >>> header_bytes("price"), header_bytes(b"raw"), header_bytes(12)
    (b'price', b'raw', b'12')
    """
    if isinstance(value, bytes):
        return bytes(value)
    return str(value).encode()
