"""What a client asks, on the wire: MessagePack, many requests in one frame.

    frame     [request, ...]
    request   [id, command]             the id is the client's choice; the answer carries it
    command   ["Send", "orders", [b"one", b"two"], ...]

A command is an array: its name, then its fields in the order of `penstock.core.commands`; fields at the end may be left
out where they have defaults. Only the commands in `COMMANDS` may come from outside. Send and CommitWork look a little
different on the wire (`Send`, `CommitWork` here). Beside them there are the commands of the conversation itself: who
calls, waits that are over, pushes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.core import commands
from penstock.core.commands import MAIN, Command
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.handlers.checks import known_fields, plain
from penstock.core.packed_error import PackedError, unpack_error
from penstock.core.queues.attributes import check_stored
from penstock.core.storage.chunk import CHUNK_BYTES_MAX, PackedBodies
from penstock.core.traits import Home, Repeat, Traits


class Versions(NamedTuple):
    """The versions that a build speaks: its own, and those before it down to the oldest.

    >>> print(Versions(1, 1), "and", Versions(2, 3))
    1 and 2 to 3
    """

    oldest: int
    newest: int

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"

    def agreed(self, other: Versions) -> int | None:
        """The newest version that both speak; None if there is none.

        >>> Versions(1, 2).agreed(Versions(2, 3)), Versions(1, 1).agreed(Versions(2, 3))
        (2, None)
        """
        common = min(self.newest, other.newest)
        return common if common >= max(self.oldest, other.oldest) else None


VERSIONS = Versions(oldest=1, newest=1)
"""The versions of this conversation that this build speaks. What a command looks like in each is in
`tests/upgrade/golden/commands.json`: whoever changes one raises the newest version (`docs/upgrading.md`). A command
that a server does not have is refused by its name."""
MEDIA_TYPE = "application/vnd.penstock.commands+msgpack"
SESSION_HEADER = "penstock-session"
RECEIVED_HEADER = "penstock-received"
"""Who polls: the numbers of the receives whose answers have come since it last said so, with commas between."""
SOCKET_PATH = "/v1/ws"
COMMANDS_PATH = "/v1/commands"


_OF_THE_CONVERSATION = Traits(right="any", public=True, repeat=Repeat.HARMLESS, home=Home.SHARD)


class _FirstHello(Command):
    """`Hello` as it was in version 1, whose servers pass over what comes after it."""

    traits = Traits(repeat=Repeat.HARMLESS, home=Home.SHARD)

    version: int
    """The oldest version that the client speaks."""
    token: str | None = None
    """For who cannot send an Authorization header: pages in browsers."""
    name: str = ""
    """Whom the session stands for, in the history of failed deliveries."""
    session: int = 0
    """For who polls and comes back: the session to go on with, if it is still there."""


class Hello(_FirstHello, kw_only=True, forbid_unknown_fields=False):
    """The first request of a conversation. Replies with `Welcome`, which says the version that both speak."""

    newest: int = 0
    """The newest version that the client speaks; 0: the same as the oldest."""

    @property
    def versions(self) -> Versions:
        """Those that the client speaks."""
        return Versions(self.version, max(self.version, self.newest))


class Cancel(Command):
    """A receive (by its request's id) need not wait any longer. It is answered, with no messages, at once."""

    traits = _OF_THE_CONVERSATION

    request: int


class StartPush(Command):
    """Push messages of a channel as they become ready, while there is credit. This request's id names the push."""

    traits = Traits(queue="queue", right="read", public=True, repeat=Repeat.HARMLESS, home=Home.SUBSCRIPTION)

    queue: str
    channel: str = MAIN
    credit: int = 0
    lease_ms: int | None = None

    @property
    def about(self) -> str | None:
        """Nothing: it stands at the node where the connection is, wherever the queue is."""
        return None


class AddPushCredit(Command):
    """Let a push send so many messages more."""

    traits = _OF_THE_CONVERSATION

    push: int
    credit: int


class StopPush(Command):
    """End a push. What was pushed stays leased."""

    traits = _OF_THE_CONVERSATION

    push: int


class Route(Command):
    """How what follows is to be treated, on this connection or, for who polls, in this frame: if it is another node's.

    With the version of the map by which the client has come here, such a command is not done, and answered with where
    it belongs (`Kind.MOVED`): if the node knows a newer map. Version 0, and so it begins: it is forwarded.
    """

    traits = _OF_THE_CONVERSATION

    version: int = 0


class Send(Command):
    """`penstock.core.commands.Send` on the wire: what an outsider may say of it."""

    queue: str
    bodies: list[bytes] | bytes
    """The bodies one by one; or end to end, with their lengths beside them, which is quicker for both sides."""
    lengths: bytes | None = None
    """uint32 for each body, little-endian, when they are end to end."""
    attributes: list[bytes | None] | None = None
    groups: list[str | None] | None = None
    dedup_ids: list[str | None] | None = None
    priority: int = 0
    delay_ms: int | None = None
    due_ms: int | None = None
    create: bool = True


class CommitWork(Command):
    """`penstock.core.commands.CommitWork` on the wire."""

    acks: list[commands.Ack]
    sends: list[Send]
    mark: tuple[str, int] | None = None


_LOOK_DIFFERENT: dict[str, type[Command]] = {kind.__name__: kind for kind in (Send, CommitWork)}
COMMANDS: tuple[type[Command], ...] = tuple(
    _LOOK_DIFFERENT.get(kind.__name__, kind) for kind in commands.COMMANDS if kind.traits.public
)
"""The commands of the core that may come from outside."""
CONVERSATION: tuple[type[Command], ...] = (Hello, Cancel, StartPush, AddPushCredit, StopPush, Route)

Request = tuple[int, Command]
Buffer = bytes | msgspec.Raw

_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bytes": "bytes", "null": "None"}
"""What MessagePack's kinds are called, as in `client/opening.py`."""
_SHOWN_MAX = 100
_PACKED_MIN = 16
"""From so many bodies on, they travel end to end."""

_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""A type unknown to MessagePack, half a surrogate pair, a number of more than 64 bits, too deep a nesting."""


class BadFrame(InvalidRequest):
    """Bytes that are no frame, or one that may not come now: nobody can be answered, and the conversation is over."""


def unpack_custom(kind: Any, value: Any) -> Any:
    """What MessagePack has no type for: errors, and arrays of numbers."""
    if kind is PenstockError:
        return unpack_error(msgspec.convert(value, PackedError))
    if getattr(kind, "__origin__", None) is np.ndarray:
        return np.frombuffer(value, dtype="<i8")
    raise NotImplementedError(f"{kind} does not travel")


class Vocabulary:
    """The commands of a conversation, and how frames of them are read. Clients have one, and nodes have one."""

    def __init__(self, kinds: Iterable[Any], frame: Callable[[Any], Any]) -> None:
        """`frame` says what a frame is made of, when it is told what stands for a command."""
        kinds = {str(kind.__struct_config__.tag): kind for kind in kinds}
        self.fields: dict[str, tuple[str, ...]] = {
            name: tuple(field for field in kind.__struct_fields__ if field != "of_queue")
            for name, kind in kinds.items()
        }
        """Command -> its fields, in their order on the wire. (`of_queue`, which follows `once`, is for nodes only.)"""
        self._lengths = {name: 1 + len(kind.__struct_fields__) for name, kind in kinds.items()}
        """Command -> how long its array is: its name, and its fields."""
        command = reduce(or_, kinds.values())
        self._decode = msgspec.msgpack.Decoder(frame(command), dec_hook=unpack_custom).decode
        self._decode_one = msgspec.msgpack.Decoder(command, dec_hook=unpack_custom).decode
        self._decode_raw = msgspec.msgpack.Decoder(frame(msgspec.Raw)).decode

    def decode(self, frame: bytes) -> Any:
        """What is in a frame; in the place of a command that cannot be understood, what is wrong with it.

        >>> decode_requests(msgspec.msgpack.encode([[7, ["Fly", "away"]]]))
        [(7, InvalidRequest("there is no command 'Fly'"))]

        What a newer build says in fields that this one does not know has to be nothing at all:

        >>> longer = ["Ack", "orders", [], "main", [], False, None, 0, False, None]
        >>> decode_requests(msgspec.msgpack.encode([[7, longer]]))[0][1].queue
        'orders'
        >>> decode_requests(msgspec.msgpack.encode([[7, [*longer[:-1], 1]]]))[0][1]
        InvalidRequest('Ack: what comes after queue, ..., once, in_time is not known here: the sender is a newer build')
        """
        try:
            return self._decode(frame)
        except (msgspec.ValidationError, RecursionError):
            pass
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFrame(f"this is not MessagePack: {error}") from None
        try:
            return self._one_by_one(self._decode_raw(frame))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"this is no frame of commands: {error}") from None

    def _one_by_one(self, value: Any) -> Any:
        if isinstance(value, msgspec.Raw):
            return self._command(value)
        if isinstance(value, list | tuple):
            return value.__class__(map(self._one_by_one, value))
        return value

    def _command(self, raw: Buffer) -> Command | InvalidRequest:
        try:
            command: Command = self._decode_one(raw)
            return command
        except msgspec.ValidationError as error:
            known = self._known_part(raw)
            return InvalidRequest(self._explained(raw, str(error))) if known is None else self._command(known)
        except RecursionError:
            return InvalidRequest("the command is nested too deeply")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return InvalidRequest(f"the command cannot be read: {error}")

    def _known_part(self, raw: Buffer) -> bytes | None:
        """A command of a newer build, if what it says in fields that this build does not know is nothing at all."""
        try:
            given = msgspec.msgpack.decode(raw)
            cut = known_fields(given, self._lengths)
            if cut[0] == "CommitWork":
                cut[1:3] = [[known_fields(part, self._lengths) for part in parts] for parts in cut[1:3]]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, ValueError):
            return None
        return None if cut == given else msgspec.msgpack.encode(cut)

    def _explained(self, raw: Buffer, complaint: str) -> str:
        """The complaint with the name of the field, which the decoder only knows by its place."""
        try:
            given = msgspec.msgpack.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return complaint
        if not isinstance(given, list) or not given or not isinstance(given[0], str):
            return "a command is an array that starts with its name"
        fields = self.fields.get(given[0])
        if fields is None:
            return f"there is no command {given[0]!r}"
        if len(given) > self._lengths[given[0]]:
            return f"{given[0]}: what comes after {', '.join(fields)} is not known here: the sender is a newer build"
        text, _, place = complaint.partition(" - at `$[")
        number, _, within = place.partition("]")
        if number.isdigit() and 1 <= int(number) <= len(fields):
            field, value = fields[int(number) - 1], given[int(number)]
            expected = re.fullmatch(r"Expected `([a-z |]+)`, got `\w+`", text)
            kinds = expected[1].split(" | ") if expected and within == "`" else ["unknown"]
            if all(kind in _WORDS for kind in kinds):
                return f"{field} is {value!r:.{_SHOWN_MAX}}: it must be {' or '.join(_WORDS[kind] for kind in kinds)}"
            return f"{given[0]}: {field}: {text}"
        return f"{given[0]}: {complaint}; its fields are: {', '.join(fields)}"


def _frame(command: Any) -> Any:
    return list[tuple[int, command]]


_vocabulary = Vocabulary((*COMMANDS, *CONVERSATION), _frame)
FIELDS = _vocabulary.fields
decode_requests: Callable[[bytes], list[tuple[int, Command | InvalidRequest]]] = _vocabulary.decode
"""The requests of a frame."""


def encode_requests(requests: Sequence[Request]) -> bytes:
    """A frame of commands as `outgoing` makes them; `InvalidRequest` if one of them holds what cannot travel.

    >>> decode_requests(encode_requests([(1, commands.QueueStats(name="orders"))]))
    [(1, QueueStats(name='orders', once=None, of_queue=0))]
    """
    try:
        return _encoder.encode(requests)
    except _UNENCODABLE as error:
        raise InvalidRequest(_untransportable(requests) or f"a command cannot be sent: {error}") from None


def _untransportable(requests: Sequence[Request]) -> str | None:
    """The first field that holds what cannot travel, and why it cannot."""
    for _, command in requests:
        for field in command.__struct_fields__:
            try:
                _encoder.encode(getattr(command, field))
            except _UNENCODABLE as error:
                return f"{type(command).__name__}: {field} cannot be sent: {error}"
    return None


def outgoing(command: Command) -> Command:
    """A command of the core as it travels."""
    if isinstance(command, commands.Send):
        return _outgoing_send(command)
    if isinstance(command, commands.CommitWork):
        return CommitWork(acks=command.acks, sends=[_outgoing_send(send) for send in command.sends], once=command.once)
    if isinstance(command, commands.Release):
        return _outgoing_release(command)
    return command


def _outgoing_release(release: commands.Release) -> commands.Release:
    """Errors name files, and a file's name may be no text: that must not keep its message from being released."""
    if not isinstance(release.error, str) or release.error.isascii():
        return release  # what is no text is refused further on
    return msgspec.structs.replace(release, error=release.error.encode("utf-8", "replace").decode())


def _outgoing_send(send: commands.Send) -> Send:
    bodies = list(send.bodies)
    lengths: bytes | None = None
    if len(bodies) >= _PACKED_MIN:
        lengths = np.fromiter(map(len, bodies), dtype="<u4", count=len(bodies)).tobytes()
    return Send(
        queue=send.queue,
        bodies=bodies if lengths is None else b"".join(bodies),
        lengths=lengths,
        attributes=send.attributes,
        groups=send.groups,
        dedup_ids=send.dedup_ids,
        priority=send.priority,
        delay_ms=send.delay_ms,
        due_ms=send.due_ms,
        create=send.create,
        once=send.once,
    )


def _incoming_send(send: Send) -> commands.Send:
    bodies = send.bodies
    if send.attributes is not None:
        for stored in set(send.attributes):  # messages that are sent together often have the same ones
            if stored:
                check_stored(stored)
    is_plain = send.attributes is None and send.groups is None and send.dedup_ids is None
    return commands.Send(
        queue=send.queue,
        bodies=_unpacked(bodies, send.lengths, is_plain) if isinstance(bodies, bytes) else bodies,
        attributes=send.attributes,
        groups=send.groups,
        dedup_ids=send.dedup_ids,
        priority=send.priority,
        delay_ms=send.delay_ms,
        due_ms=send.due_ms,
        create=send.create,
        once=send.once,
    )


def _incoming_work(work: CommitWork) -> commands.CommitWork:
    sends = [_incoming_send(send) for send in work.sends]
    return commands.CommitWork(acks=work.acks, sends=sends, mark=work.mark, once=work.once)


INCOMING: dict[type[Command], Callable[[Any], Command]] = {Send: _incoming_send, CommitWork: _incoming_work}
"""Makes commands of the core of those that travel in another form; `InvalidRequest` for what cannot be one."""


def _unpacked(data: bytes, lengths: bytes | None, is_plain: bool) -> list[bytes] | PackedBodies:
    """Bodies that came end to end. Messages that are nothing but a body go on as they are."""
    if lengths is None or len(lengths) % 4:
        raise InvalidRequest("bodies end to end need `lengths`: 4 bytes for each")
    offsets = np.zeros(len(lengths) // 4 + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(lengths, dtype="<u4"), out=offsets[1:])
    if offsets[-1] != len(data):
        raise InvalidRequest(f"the lengths add up to {offsets[-1]} bytes, and the bodies have {len(data)}")
    if is_plain and 0 < len(data) <= CHUNK_BYTES_MAX:
        return PackedBodies(data, offsets.astype(np.int32))
    return [data[low:high] for low, high in pairwise(offsets.tolist())]
