"""What a server answers, on the wire: MessagePack, many answers in one frame.

    frame     [server's time in ms, [answer, ...]]
    answer    [id, kind, value]      kind 0: the reply; 1: an error [[class, bases...], text]; 2: a push's delivery;
                                     3: the error that ended a push; 4: it was not done, because another node owns
                                     the queue: [the map's version, node, URL]

What a reply looks like depends on the command. Messages travel as chunks: a slice of the stored form (see
`penstock.core.storage.chunk`), cut and checked in one piece, so that a run of a thousand costs as much as a single one:

    delivery  [queue, queue id, channel, channel id, received ms, deadline ms, [run, ...], receipt key]
    run       [chunk, attempt, first received ms, [failure, ...]]      attempt and time: one number for all messages, or
                                                                       bytes: uint32 or int64 for each, little-endian
    records   [queue, queue id, [run, ...], next offset, end offset]
    seen      [chunk of one message, state, attempts, deadline ms, [failure, ...]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from penstock.core import commands
from penstock.core.commands import Command, Delivery, Failure, Records, Run, Seen
from penstock.core.delivery.states import State
from penstock.core.errors import PenstockError
from penstock.core.packed_error import PackedError, pack_error, unpack_error
from penstock.core.storage.chunk import Chunk
from penstock.wire import requests


class Kind(IntEnum):
    """What an answer is."""

    REPLY = 0
    ERROR = 1
    PUSH = 2
    PUSH_ENDED = 3
    MOVED = 4


class Limits(msgspec.Struct):
    """What a client may ask of the server."""

    frame_bytes_max: int
    requests_max: int
    """Requests without an answer."""
    receive_max: int
    """Messages in one delivery."""
    credit_max: int


class Welcome(msgspec.Struct):
    """The reply to `Hello`."""

    version: int
    server: str
    """Which Penstock it is."""
    realm: int
    """What message ids are made of: see `penstock.core.delivery.receipt`."""
    session: int
    """The session of this conversation: what is received without naming another session is held by it."""
    session_ttl_ms: int
    """0: the session ends with the connection. Otherwise: so long after the last request."""
    limits: Limits
    damage: list[commands.Damage] = []


class Moved(msgspec.Struct, array_like=True):
    """The answer to a command that came to a node which does not own its queue, under `Route`: it was not done."""

    map_version: int
    owner: str
    """The node that owns it, by that map."""
    url: str = ""


class _WireRun(msgspec.Struct, array_like=True):
    chunk: memoryview
    attempt: int | bytes
    first_ms: int | bytes
    failures: list[Failure]


class WireDelivery(msgspec.Struct, array_like=True):
    """A delivery on the wire."""

    queue: str
    queue_id: int
    channel: str
    channel_id: int
    received_ms: int
    deadline_ms: int
    runs: list[_WireRun]
    receipt_key: bytes


class _WireRecords(msgspec.Struct, array_like=True):
    queue: str
    queue_id: int
    runs: list[_WireRun]
    next_offset: int
    end_offset: int


class _WireSeen(msgspec.Struct, array_like=True):
    chunk: memoryview
    state: State
    attempts: int
    deadline_ms: int
    failures: list[Failure]
    priority: int = 0


class KeyedDelivery(Delivery):
    """A delivery as a client gets it: with the key of its queue's receipts."""

    receipt_key: bytes = b""


# -- from the server ---------------------------------------------------------------------------------------------------


def _pack_custom(value: Any) -> Any:
    if isinstance(value, PenstockError):
        return pack_error(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel")


_encoder = msgspec.msgpack.Encoder(enc_hook=_pack_custom)


def encode_answers(now_ms: int, answers: Sequence[tuple[int, int, Any]]) -> bytes:
    """A frame. Values are replies as `penstock.wire.packing` makes them, or packed errors."""
    return _encoder.encode((now_ms, answers))


# -- at the client -----------------------------------------------------------------------------------------------------


def _unpack_custom(kind: type, value: Any) -> Any:
    if kind is PenstockError:
        return unpack_error(msgspec.convert(value, PackedError))
    raise NotImplementedError(f"{kind.__name__} does not travel")


_WITH_MESSAGES: dict[Any, Any] = {
    Delivery | None: WireDelivery | None,
    Records: _WireRecords,
    list[Seen]: list[_WireSeen],
}
"""Replies that travel in a form of their own."""


def reply_on_wire(kind: type[Command]) -> Any:
    """What the reply to a command is decoded as."""
    reply = kind.traits.reply
    return _WITH_MESSAGES[reply] if kind.traits.has_messages else reply


_decoders: dict[type[Command], Callable[[msgspec.Raw], Any]] = {
    kind: msgspec.msgpack.Decoder(reply_on_wire(kind), dec_hook=_unpack_custom, strict=True).decode
    for kind in commands.COMMANDS
    if kind.traits.public and kind.traits.reply is not None
}
_decoders[requests.Hello] = msgspec.msgpack.Decoder(Welcome, strict=True).decode
_decode_error = msgspec.msgpack.Decoder(PackedError).decode
_decode_moved = msgspec.msgpack.Decoder(Moved).decode
_decode_delivery = msgspec.msgpack.Decoder(WireDelivery).decode

Answer = tuple[int, int, msgspec.Raw]

decode_answers = msgspec.msgpack.Decoder(tuple[int, list[Answer]]).decode
"""A frame: the server's time, and the answers with their values still packed."""


def unpack_reply(kind: type[Command], raw: msgspec.Raw) -> Any:
    """The reply to a command of this kind."""
    decode = _decoders.get(kind)
    if decode is None:
        return None
    reply = decode(raw)
    if not kind.traits.has_messages:
        return reply
    return _keyed_delivery(reply) if isinstance(reply, WireDelivery) else unpacked(kind, reply)


def unpacked(kind: type[Command], reply: Any) -> Any:
    """The reply to a command of this kind, when it was decoded as what `reply_on_wire` says."""
    if isinstance(reply, WireDelivery):
        return unpacked_delivery(reply)
    if isinstance(reply, _WireRecords):
        runs = [_unpack_run(run) for run in reply.runs]
        return Records(reply.queue, reply.queue_id, runs, reply.next_offset, reply.end_offset)
    if kind is commands.Browse:
        return [_unpack_seen(seen) for seen in reply]
    return reply


def unpack_delivery(raw: msgspec.Raw) -> KeyedDelivery:
    """What a push brought."""
    return _keyed_delivery(_decode_delivery(raw))


def unpack_failure(raw: msgspec.Raw) -> PenstockError:
    """The error in an answer."""
    return unpack_error(_decode_error(raw))


def unpack_moved(raw: msgspec.Raw) -> Moved:
    """Where a command belongs that was not done."""
    return _decode_moved(raw)


def unpacked_delivery(delivery: WireDelivery) -> Delivery:
    """A delivery as the core has it."""
    return Delivery(
        delivery.queue,
        delivery.queue_id,
        delivery.channel,
        delivery.channel_id,
        delivery.received_ms,
        delivery.deadline_ms,
        list(map(_unpack_run, delivery.runs)),
    )


def _keyed_delivery(delivery: WireDelivery) -> KeyedDelivery:
    return KeyedDelivery(
        delivery.queue,
        delivery.queue_id,
        delivery.channel,
        delivery.channel_id,
        delivery.received_ms,
        delivery.deadline_ms,
        list(map(_unpack_run, delivery.runs)),
        receipt_key=delivery.receipt_key,
    )


def _unpack_run(run: _WireRun) -> Run:
    chunk, attempt, first_ms = Chunk.decode(run.chunk), run.attempt, run.first_ms
    return Run(
        chunk,
        0,
        chunk.count,
        attempt if isinstance(attempt, int) else np.frombuffer(attempt, dtype="<u4"),
        first_ms if isinstance(first_ms, int) else np.frombuffer(first_ms, dtype="<i8"),
        run.failures,
    )


def _unpack_seen(seen: _WireSeen) -> Seen:
    chunk = Chunk.decode(seen.chunk)
    return Seen(chunk, 0, seen.state, seen.attempts, seen.deadline_ms, seen.failures, seen.priority)
