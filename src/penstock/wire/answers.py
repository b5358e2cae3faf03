"""What a server answers, on the wire: MessagePack, many answers in one frame.

    frame     [server's time in ms, [answer, ...]]
    answer    [id, kind, value]      kind 0: the reply; 1: an error [[class, bases...], text]; 2: a push's delivery;
                                     3: the error that ended a push; 4: it was not done, because another node owns
                                     the queue: [the map's version, node, URL]; to a node, because it has withdrawn it

Nodes are answered in the same way (`cluster/links/wire.py`): without the time, and their errors carry more.

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
from penstock.core.errors import PenstockError, StoreError
from penstock.core.packed_error import PackedError, unpack_error
from penstock.core.storage.chunk import Chunk
from penstock.wire.packing import pack_custom
from penstock.wire.requests import Hello, unpack_custom


class Kind(IntEnum):
    """What an answer is."""

    REPLY = 0
    ERROR = 1
    PUSH = 2
    PUSH_ENDED = 3
    MOVED = 4
    """To a client: it was not done, and belongs to another node."""
    WITHDRAWN = 4
    """To a node: it was not done. It is a receive that the node has withdrawn, and it had got nothing."""


class BadAnswer(StoreError):
    """Bytes that are no answers, or none to this command: the other side speaks another language."""


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


encode = msgspec.msgpack.Encoder(enc_hook=pack_custom).encode


def encode_answers(now_ms: int, answers: Sequence[tuple[int, int, Any]]) -> bytes:
    """A frame. Values are replies as `penstock.wire.packing` makes them, or packed errors."""
    return encode((now_ms, answers))


# -- at the client -----------------------------------------------------------------------------------------------------


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


class _Decoders(dict[type[Command], Callable[[msgspec.Raw], Any]]):
    """Command -> what reads its reply."""

    def __missing__(self, kind: type[Command]) -> Callable[[msgspec.Raw], Any]:
        if kind.traits.reply is None:
            decode: Callable[[msgspec.Raw], Any] = _nothing
        else:
            decode = msgspec.msgpack.Decoder(reply_on_wire(kind), dec_hook=unpack_custom).decode
        self[kind] = decode
        return decode


def _nothing(_raw: msgspec.Raw) -> None:
    """The reply to a command that has none."""


_decoders = _Decoders({Hello: msgspec.msgpack.Decoder(Welcome).decode})
_decode_error = msgspec.msgpack.Decoder(PackedError).decode
_decode_moved = msgspec.msgpack.Decoder(Moved).decode
_decode_delivery = msgspec.msgpack.Decoder(WireDelivery).decode
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, PenstockError)
"""What comes of reading what is no answer."""

Answer = tuple[int, int, msgspec.Raw]

decode_answers = msgspec.msgpack.Decoder(tuple[int, list[Answer]]).decode
"""A frame: the server's time, and the answers with their values still packed."""


def unpack_reply(kind: type[Command], raw: msgspec.Raw) -> Any:
    """The reply to a command of this kind; `BadAnswer` if it is none."""
    try:
        reply = _decoders[kind](raw)
        if not kind.traits.has_messages:
            return reply
        if isinstance(reply, WireDelivery):
            return _unpack_delivery(reply)
        if isinstance(reply, _WireRecords):
            runs = [_unpack_run(run) for run in reply.runs]
            return Records(reply.queue, reply.queue_id, runs, reply.next_offset, reply.end_offset)
        return reply if reply is None else [_unpack_seen(seen) for seen in reply]
    except UNREADABLE as error:
        raise BadAnswer(f"this is no reply to {kind.__name__}: {error}") from None


def unpack_delivery(raw: msgspec.Raw) -> Any:
    """What a push brought: to a client, a `KeyedDelivery`."""
    try:
        return _unpack_delivery(_decode_delivery(raw))
    except UNREADABLE as error:
        raise BadAnswer(f"this is no delivery: {error}") from None


def unpack_failure(raw: msgspec.Raw) -> PenstockError:
    try:
        return unpack_error(_decode_error(raw))
    except UNREADABLE as error:
        raise BadAnswer(f"this is no error: {error}") from None


def unpack_moved(raw: msgspec.Raw) -> Moved:
    """Where a command belongs that was not done."""
    return _decode_moved(raw)


def _unpack_delivery(delivery: WireDelivery) -> Delivery:
    fields = (
        delivery.queue,
        delivery.queue_id,
        delivery.channel,
        delivery.channel_id,
        delivery.received_ms,
        delivery.deadline_ms,
        list(map(_unpack_run, delivery.runs)),
    )
    key = delivery.receipt_key
    return KeyedDelivery(*fields, receipt_key=key) if key else Delivery(*fields)


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
