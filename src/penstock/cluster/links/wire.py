"""Commands and replies between nodes: MessagePack, all of a turn of the loop in one frame.

    commands   [[[number, shard, command, caller], ...], [number of a receive that was withdrawn, ...]]
    replies    [[number, kind, value], ...]       kind: see `Kind`

A command is an array: its name, then its fields in the order of `penstock.core.commands`, defaults included. Nodes
trust each other, so every command of the core travels, and all of it. Two things are exchanged on the way: bodies that
are in one piece stay in one piece (`Packed`), and the ticket of a subscription is the number of its command.

Replies are packed as for clients (`penstock.wire.answers`): messages travel as chunks, cut out of the stored form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core import commands
from penstock.core.commands import Command, Delivery, Records, Seen
from penstock.core.errors import PenstockError, StoreError
from penstock.core.packed_error import PackedError, is_made_of_more, pack_error, unpack_error
from penstock.core.storage.chunk import PackedBodies
from penstock.core.traits import Home, Traits
from penstock.server.shard import Tick
from penstock.wire import answers, packing
from penstock.wire.requests import known_part, lengths_of

Numbered: TypeAlias = tuple[int, int, Command, int]
"""A command with its number on the link, its shard, and a number for who waits for its commit; 0: nobody who may be
waited for (see `server.siblings`)."""
Reply: TypeAlias = tuple[int, int, Any]
"""The command's number, a `Kind`, and the value, packed."""


class Kind(IntEnum):
    """What came of a command."""

    REPLY = 0
    ERROR = 1
    PUSH = 2
    """A delivery to the subscription that the command made."""
    PUSH_ENDED = 3
    """The error that ended a subscription."""
    WITHDRAWN = 4
    """A receive was withdrawn, and had got nothing."""


class BadPayload(StoreError):
    """Bytes that are no commands, or no replies: the other node speaks another language."""


# -- commands ----------------------------------------------------------------------------------------------------------


class Packed(msgspec.Struct):
    """Bodies end to end, as `PackedBodies` has them. (A map, so that it is told from a list of bodies.)"""

    data: bytes
    offsets: bytes
    """int32, little-endian."""
    length: int | None = None
    """The length of each body, when all have the same; then there are no offsets."""


def _twin(kind: type[Command], exchanged: dict[Any, Any]) -> Any:
    """The struct that a command is decoded as: the same fields, some of them with other types."""
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        of_type = exchanged.get(each.type, each.type)
        if each.required:
            fields.append((each.name, of_type))
        elif each.default_factory is not msgspec.NODEFAULT:
            fields.append((each.name, of_type, msgspec.field(default_factory=each.default_factory)))
        else:
            fields.append((each.name, of_type, each.default))
    return msgspec.defstruct(
        f"{kind.__name__}OnWire", fields, kw_only=True, array_like=True, tag=kind.__name__, forbid_unknown_fields=True
    )


_EXCHANGED: dict[Any, Any] = {list[bytes] | PackedBodies: list[bytes] | Packed}
_SendOnWire = _twin(commands.Send, _EXCHANGED)
_EXCHANGED[list[commands.Send]] = list.__class_getitem__(_SendOnWire)


class AskNode(Command):
    """Ask the node itself, and no shard. Replies with bytes."""

    traits = Traits(reply=bytes, home=Home.SHARD)

    what: Literal["metrics"]


COMMANDS: tuple[type[Command], ...] = (*commands.COMMANDS, Tick, AskNode)
"""Every command that travels: all of the core's, the shard's own, and what nodes ask each other."""
SINCE: dict[type[Command], int] = {commands.TallyQueues: 3}
"""Command -> the version of links that brought it, for those that the first build's does not have."""
SETTINGS_SINCE: dict[str, int] = {}
"""Setting of a queue -> the version of links that brought it, for those that the first build does not have. They cannot
be set before every node knows them: an earlier one could not open the shard."""
_LENGTHS = lengths_of(COMMANDS)

_TWINS: dict[type[Command], Any] = {commands.Send: _SendOnWire} | {
    kind: _twin(kind, _EXCHANGED)
    for kind in COMMANDS
    if kind is not commands.Send and any(each.type in _EXCHANGED for each in msgspec.structs.fields(kind))
}
_KINDS: dict[type, type[Command]] = {twin: kind for kind, twin in _TWINS.items()}


def _pack_custom(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).data.cast("B") if value.size else b""
    if isinstance(value, PackedBodies):
        return _pack_bodies(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, PenstockError):
        return pack_error(value)
    raise NotImplementedError(f"{type(value).__name__} does not travel")


def _pack_bodies(bodies: PackedBodies) -> Packed:
    return Packed(bodies.data, np.ascontiguousarray(bodies.offsets, dtype="<i4").tobytes())


def _unpack_bodies(packed: Packed) -> PackedBodies:
    return PackedBodies(packed.data, np.frombuffer(packed.offsets, dtype="<i4"))


def _unpack_custom(kind: Any, value: Any) -> Any:
    if kind is PenstockError:
        return unpack_error(msgspec.convert(value, PackedError))
    if getattr(kind, "__origin__", None) is np.ndarray:
        return np.frombuffer(value, dtype="<i8")
    raise NotImplementedError(f"{kind} does not travel")


_ANY: Any = reduce(or_, (_TWINS.get(kind, kind) for kind in COMMANDS))
_encoder = msgspec.msgpack.Encoder(enc_hook=_pack_custom)
_decode_commands = msgspec.msgpack.Decoder(
    tuple[list[tuple[int, int, _ANY, int]], list[int]],
    dec_hook=_unpack_custom,
).decode


_decode_raw_commands = msgspec.msgpack.Decoder(tuple[list[tuple[int, int, msgspec.Raw, int]], list[int]]).decode
_decode_command = msgspec.msgpack.Decoder(_ANY, dec_hook=_unpack_custom).decode
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError)


class Unreadable(Command):
    """Stands for a command that cannot be read."""

    reason: str


def encode_commands(numbered: Sequence[Numbered], withdrawn: Sequence[int] = ()) -> bytes:
    """The commands of a turn, and the numbers of receives that are withdrawn.

    >>> decode_commands(encode_commands([(7, 2, commands.QueueStats(name="orders"), 0)], [5]))
    ([(7, 2, QueueStats(name='orders', once=None, of_queue=0), 0)], [5])
    """
    return _encoder.encode((numbered, withdrawn))


def decode_commands(payload: bytes) -> tuple[list[Numbered], list[int]]:
    """The commands, as the core knows them; `Unreadable` in the place of one that is none.

    `BadPayload` if the bytes as a whole are something else.
    """
    try:
        numbered, withdrawn = _decode_commands(payload)
        for index, (number, shard, command, caller) in enumerate(numbered):
            if command.__class__ in _KINDS:
                numbered[index] = (number, shard, _untwinned(command), caller)
        return numbered, withdrawn
    except _BROKEN:
        return _decode_one_by_one(payload)


def _decode_one_by_one(payload: bytes) -> tuple[list[Numbered], list[int]]:
    try:
        numbered, withdrawn = _decode_raw_commands(payload)
    except _BROKEN as error:
        raise BadPayload(f"these are no commands: {error}") from None
    return [(number, shard, _command(raw), caller) for number, shard, raw, caller in numbered], withdrawn


def _command(raw: bytes | msgspec.Raw) -> Command:
    try:
        command = _decode_command(raw)
        return _untwinned(command) if command.__class__ in _KINDS else command
    except _BROKEN as error:
        known = known_part(raw, _LENGTHS)
        return Unreadable(reason=str(error)) if known is None else _command(known)


def _untwinned(twin: Any) -> Command:
    kind = _KINDS[twin.__class__]
    fields = msgspec.structs.asdict(twin)
    if kind is commands.Send:
        if fields["bodies"].__class__ is Packed:
            fields["bodies"] = _unpack_bodies(fields["bodies"])
    else:
        for name, value in fields.items():
            if value.__class__ is list:
                fields[name] = [_untwinned(each) if each.__class__ is _SendOnWire else each for each in value]
    return kind(**fields)


# -- replies -----------------------------------------------------------------------------------------------------------


class _WireError(msgspec.Struct, array_like=True):
    """An error, and what it was made of when that is more than its text."""

    error: PackedError
    arguments: list[Any] | None = None


_decode_replies = msgspec.msgpack.Decoder(list[tuple[int, int, msgspec.Raw]]).decode
_decode_error = msgspec.msgpack.Decoder(_WireError).decode
_decode_delivery = msgspec.msgpack.Decoder(answers.WireDelivery).decode
_decoders: dict[type[Command], Callable[[Any], Any]] = {
    kind: msgspec.msgpack.Decoder(answers.reply_on_wire(kind), dec_hook=_unpack_custom).decode
    for kind in COMMANDS
    if kind.traits.reply is not None
}


def encode_replies(replies: Sequence[Reply]) -> bytes:
    """The replies of a turn. Values are as `pack_reply` and `pack_failure` make them."""
    return _encoder.encode(replies)


def decode_replies(payload: bytes) -> list[tuple[int, int, msgspec.Raw]]:
    """The replies, their values still packed: what they are depends on the commands."""
    try:
        return _decode_replies(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload(f"these are no replies: {error}") from None


def pack_reply(reply: Any) -> Any:
    """A reply of the core as it travels."""
    kind = reply.__class__
    if kind is Delivery or kind is Records or (kind is list and reply and reply[0].__class__ is Seen):
        return packing.pack_reply(reply)
    return reply


def unpack_reply(kind: type[Command], raw: msgspec.Raw) -> Any:
    """The reply to a command of this kind."""
    try:
        decode = _decoders.get(kind)
        reply = None if decode is None else decode(raw)
        return answers.unpacked(kind, reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, PenstockError) as error:
        raise BadPayload(f"this is no reply to {kind.__name__}: {error}") from None


def unpack_delivery(raw: msgspec.Raw) -> Delivery:
    """What was pushed to a subscription."""
    try:
        return answers.unpacked_delivery(_decode_delivery(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, PenstockError) as error:
        raise BadPayload(f"this is no delivery: {error}") from None


def pack_failure(error: BaseException) -> _WireError:
    """An error as it travels. Those with a constructor of their own travel with what it was given."""
    if isinstance(error, PenstockError) and is_made_of_more(type(error)):
        made_of: Any = error.__reduce__()[1]
        if isinstance(made_of, tuple) and all(isinstance(each, int | str | None) for each in made_of):
            return _WireError(pack_error(error), list(made_of))
    return _WireError(pack_error(error))


def unpack_failure(raw: msgspec.Raw) -> PenstockError:
    """The error, to be raised."""
    try:
        packed = _decode_error(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadPayload(f"this is no error: {error}") from None
    return unpack_error(packed.error, packed.arguments)


def sequences(values: Sequence[int]) -> NDArray[np.int64]:
    """Numbers as commands by sequence number have them.

    >>> sequences([3, 4])
    array([3, 4])
    """
    return np.asarray(values, dtype=np.int64)
