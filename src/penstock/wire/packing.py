"""The replies of the core as they travel. `penstock.wire.answers` says how they look, and has them as structs.

Here they are tuples: on the wire both are the same arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.commands import Delivery, Records, Run, Seen
from penstock.core.errors import PenstockError
from penstock.core.packed_error import pack_error
from penstock.core.storage.chunk import Chunk, PackedBodies


def pack_custom(value: Any) -> Any:
    """What MessagePack has no type for, as it travels: see `penstock.wire.requests.unpack_custom`."""
    if isinstance(value, PenstockError):
        return pack_error(value)
    if isinstance(value, PackedBodies):
        offsets = np.ascontiguousarray(value.offsets, dtype="<i4").tobytes()
        return {"data": value.data, "offsets": offsets, "length": None}
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).data.cast("B") if value.size else b""
    if isinstance(value, np.integer):
        return int(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def pack_reply(reply: Any, receipt_key: bytes = b"") -> Any:
    """A reply of the core as it travels. Deliveries need the key of their queue's receipts."""
    kind = reply.__class__
    if kind is Delivery:
        return _pack_delivery(reply, receipt_key)
    if kind is Records:
        runs = [_pack_run(run) for run in reply.runs]
        return (reply.queue, reply.queue_id, runs, reply.next_offset, reply.end_offset)
    if kind is list and reply and reply[0].__class__ is Seen:
        return [_pack_seen(seen) for seen in reply]
    return reply


def _pack_delivery(delivery: Delivery, receipt_key: bytes) -> tuple[Any, ...]:
    return (
        delivery.queue,
        delivery.queue_id,
        delivery.channel,
        delivery.channel_id,
        delivery.received_ms,
        delivery.deadline_ms,
        list(map(_pack_run, delivery.runs)),
        receipt_key,
    )


def _pack_run(run: Run) -> tuple[Any, ...]:
    attempt, first_ms = run.attempt, run.first_ms
    return (
        _pack_chunk(run.chunk, run.start, run.stop),
        attempt if isinstance(attempt, int) else np.asarray(attempt, dtype="<u4").tobytes(),
        first_ms if isinstance(first_ms, int) else np.asarray(first_ms, dtype="<i8").tobytes(),
        run.failures,
    )


def _pack_seen(seen: Seen) -> tuple[Any, ...]:
    chunk = _pack_chunk(seen.chunk, seen.index, seen.index + 1)
    return (chunk, seen.state, seen.attempts, seen.deadline_ms, seen.failures, seen.priority)


def _pack_chunk(chunk: Chunk, start: int, stop: int) -> bytes:
    part = chunk if start == 0 and stop == chunk.count else chunk.slice(start, stop)
    return b"".join(part.parts())
