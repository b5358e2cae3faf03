"""Commands and replies between nodes: as with clients (`penstock.wire`), all of a turn of the loop in one frame.

    commands   [[[number, shard, command, caller], ...], [number of a receive that was withdrawn, ...]]
    replies    [[number, kind, value], ...]       kind: see `penstock.wire.answers`; an error: [error, made of]

A command is an array: its name, then its fields in the order of `penstock.core.commands`, defaults included. Nodes
trust each other, so every command of the core travels, and all of it. Two things are exchanged on the way: bodies that
are in one piece stay in one piece (`Packed`), and the ticket of a subscription is the number of its command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from penstock.core import commands
from penstock.core.commands import Command
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.packed_error import PackedError, is_made_of_more, pack_error, unpack_error
from penstock.core.storage.chunk import PackedBodies
from penstock.server.shard import Tick
from penstock.wire.answers import UNREADABLE, Answer, BadAnswer, encode
from penstock.wire.requests import Vocabulary

Numbered: TypeAlias = tuple[int, int, Any, int]
"""A command with its number on the link, its shard, and a number for who waits for its commit; 0: nobody who may be
waited for (see `server.tasks.CommitDelay`). In the place of one that cannot be understood, `InvalidRequest`: what is
wrong with
it."""
Reply: TypeAlias = tuple[int, int, Any]
"""The command's number, what came of it, and the value, packed."""


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


COMMANDS: tuple[type[Command], ...] = (*commands.COMMANDS, Tick)
"""Every command that travels: all of the core's, and the shard's own."""
SINCE: dict[type[Command], int] = {kind: kind.traits.since for kind in COMMANDS if kind.traits.since}
"""Command -> the version of links that brought it, for those that the first build's does not have."""
SETTINGS_SINCE: dict[str, int] = {}
"""Setting of a queue -> the version of links that brought it, for those that the first build does not have. They cannot
be set before every node knows them: an earlier one could not open the shard."""

_TWINS: dict[type[Command], Any] = {commands.Send: _SendOnWire} | {
    kind: _twin(kind, _EXCHANGED)
    for kind in COMMANDS
    if kind is not commands.Send and any(each.type in _EXCHANGED for each in msgspec.structs.fields(kind))
}
_KINDS: dict[type, type[Command]] = {twin: kind for kind, twin in _TWINS.items()}


def _frame(command: Any) -> Any:
    return tuple[list[tuple[int, int, command, int]], list[int]]


_vocabulary = Vocabulary([_TWINS.get(kind, kind) for kind in COMMANDS], _frame)


def encode_commands(numbered: Sequence[Numbered], withdrawn: Sequence[int] = ()) -> bytes:
    """The commands of a turn, and the numbers of receives that are withdrawn.

    >>> decode_commands(encode_commands([(7, 2, commands.QueueStats(name="orders"), 0)], [5]))
    ([(7, 2, QueueStats(name='orders', once=None, of_queue=0), 0)], [5])
    """
    return encode((numbered, withdrawn))


def decode_commands(payload: bytes) -> tuple[list[Numbered], list[int]]:
    """The commands, as the core knows them. `BadFrame` if the bytes as a whole are something else."""
    numbered, withdrawn = _vocabulary.decode(payload)
    for index, (number, shard, command, caller) in enumerate(numbered):
        if command.__class__ in _KINDS:
            numbered[index] = (number, shard, _untwinned(command), caller)
    return numbered, withdrawn


def _untwinned(twin: Any) -> Command | InvalidRequest:
    try:
        return _as_known(twin)
    except ValueError as error:
        return InvalidRequest(f"the bodies cannot be read: {error}")


def _as_known(twin: Any) -> Command:
    kind = _KINDS[twin.__class__]
    fields = msgspec.structs.asdict(twin)
    if kind is commands.Send:
        packed = fields["bodies"]
        if packed.__class__ is Packed:
            fields["bodies"] = PackedBodies(packed.data, np.frombuffer(packed.offsets, dtype="<i4"))
    else:
        for name, value in fields.items():
            if value.__class__ is list:
                fields[name] = [_as_known(each) if each.__class__ is _SendOnWire else each for each in value]
    return kind(**fields)


# -- replies -----------------------------------------------------------------------------------------------------------

_decode_replies = msgspec.msgpack.Decoder(list[Answer]).decode
_decode_error = msgspec.msgpack.Decoder(tuple[PackedError, list[Any] | None]).decode


def encode_replies(replies: Sequence[Reply]) -> bytes:
    """The replies of a turn. Values are as `penstock.wire.packing` and `pack_failure` make them."""
    return encode(replies)


def decode_replies(payload: bytes) -> list[Answer]:
    """The replies, their values still packed: what they are depends on the commands."""
    try:
        return _decode_replies(payload)
    except UNREADABLE as error:
        raise BadAnswer(f"these are no replies: {error}") from None


def pack_failure(error: BaseException) -> tuple[PackedError, list[Any] | None]:
    """An error as it travels. Those with a constructor of their own travel with what it was given."""
    if isinstance(error, PenstockError) and is_made_of_more(type(error)):
        made_of: Any = error.__reduce__()[1]
        if isinstance(made_of, tuple) and all(isinstance(each, int | str | None) for each in made_of):
            return pack_error(error), list(made_of)
    return pack_error(error), None


def unpack_failure(raw: msgspec.Raw) -> PenstockError:
    """The error, to be raised."""
    try:
        return unpack_error(*_decode_error(raw))
    except UNREADABLE as error:
        raise BadAnswer(f"this is no error: {error}") from None
