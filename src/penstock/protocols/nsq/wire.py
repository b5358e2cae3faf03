"""NSQ's protocol V2: bytes to commands, and frames to bytes. Pure: no socket, no clock.

A client sends lines, some with a body behind them; a size is four bytes, big-endian:

    IDENTIFY\\n <size> <JSON>          SUB <topic> <channel>\\n       RDY <count>\\n
    AUTH\\n <size> <secret>            FIN <id>\\n                    CLS\\n
    PUB <topic>\\n <size> <body>       REQ <id> <timeout ms>\\n       NOP\\n
    DPUB <topic> <delay ms>\\n <size> <body>                         TOUCH <id>\\n
    MPUB <topic>\\n <size> <count> (<size> <body>)*

The server sends frames: <size> <type> <data>, where the size counts type and data. A message's data:

    0  time sent, ns (i64)    8  attempts (u16)    10  id: 16 hexadecimal digits    26  body

How it works. `Parser.feed` takes what was read and gives the commands that are whole. It never takes the rest of the
buffer apart again for the next command, and if a body is not there yet, it waits until so many bytes have come. What
comes in runs is taken as such: FIN (and TOUCH) lines have one length each, so a run of them is looked at as a table
with a row for each, and their ids are read with one call; an MPUB whose messages have one length is a table as well.
Runs of PUB to one topic become one command.

Frames of a run of messages are made as one table: the head's constant part, the ids, and the bodies are three columns.

An id is the message's sequence number in its topic, below 16 bits that follow from the topic: FIN finds its message
without a list of ids, and an id of another topic is not mistaken for one.
"""

from __future__ import annotations

import re
import struct
from binascii import Error as BadHex
from binascii import hexlify, unhexlify
from collections.abc import Callable
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import Run
from penstock.core.storage.chunk import PackedBodies
from penstock.server.budget import UNKNOWN_BYTES_MAX

NSQ_VERSION = "1.3.0"
"""The nsqd and nsqlookupd whose behaviour this is; tools compare it with those of other nodes."""
NAME_LENGTH_MAX = 64
EPHEMERAL = "#ephemeral"
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?\Z")


def is_name(name: str) -> bool:
    """Whether NSQ takes this as the name of a topic or of a channel.

    >>> is_name("orders"), is_name("orders#ephemeral"), is_name("orders#old"), is_name(""), is_name("o" * 65)
    (True, True, False, False, False)
    """
    return len(name) <= NAME_LENGTH_MAX and _NAME.match(name) is not None


def is_ephemeral(name: str) -> bool:
    """Whether the topic or channel goes with its last client."""
    return name.endswith(EPHEMERAL)


MAGIC = b"  V2"
LINE_BYTES_MAX = 16 * 1024
COMMANDS_MAX = 500
"""How many commands are given at once. A run of PUB to one topic, of FIN, TOUCH or REQ is one."""
ID_LENGTH = 16
AUTH_FIRST = "E_AUTH_FIRST"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
_HEAD = struct.Struct(">ii")
_SIZE = struct.Struct(">i")
_MESSAGE_HEAD = struct.Struct(">IIqH")
_MESSAGE_BYTES = _MESSAGE_HEAD.size + ID_LENGTH
"""What comes before a message's body in its frame."""
_ATTEMPTS_MAX = 0xFFFF
_MS_NS = 1_000_000
_SEQUENCE_BITS = 48
_SEQUENCES_MAX = 1024 << 48
"""The upper bits of a sequence number are its partition's, of a queue with several."""
_FIRST_BLOCK = 64
"""How many lines of a possible run are looked at first; more if all of these belong to it."""
_BLOCK = 4_096

# -- commands ----------------------------------------------------------------------------------------------------------


class WireCommand(msgspec.Struct):
    """Base of what a client can say."""


class Identify(WireCommand):
    """What the client says of itself, as JSON."""

    body: bytes


class Auth(WireCommand):
    """The client's secret."""

    secret: bytes


class Subscribe(WireCommand):
    """SUB."""

    topic: str
    channel: str


class Publish(WireCommand):
    """PUB, DPUB or MPUB; several PUBs in a row to one topic are one command."""

    verb: str
    topic: str
    bodies: list[bytes] | PackedBodies
    replies: int = 1
    """How many commands this stands for."""
    delay_ms: int | None = None
    nbytes: int = 0


class Ready(WireCommand):
    """RDY."""

    count: int


class Finish(WireCommand):
    """A run of FIN. The ids are parts of one list."""

    parts: list[NDArray[np.uint64]]

    @property
    def ids(self) -> NDArray[np.uint64]:
        """The ids in the order in which they came."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


class Touch(Finish):
    """A run of TOUCH."""


class Requeue(Finish):
    """A run of REQ with one timeout."""

    timeout_ms: int = 0


class UnknownId(WireCommand):
    """FIN, REQ or TOUCH of something that cannot be an id of ours."""

    verb: str
    id: str


class Close(WireCommand):
    """CLS."""


class Nop(WireCommand):
    """NOP: the answer to a heartbeat."""


class Invalid(WireCommand):
    """What cannot be understood, or is too large: the connection ends with this error."""

    code: str
    reason: str


# -- parsing -----------------------------------------------------------------------------------------------------------


class _Incomplete(Exception):
    """The command goes on behind the end of the buffer, at least up to `need` bytes from the buffer's start."""

    def __init__(self, need: int) -> None:
        self.need = need


class Refused(Exception):
    """The command cannot be understood."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason


class Parser:
    """The commands of one connection, behind the magic.

    >>> parser = Parser(message_bytes_max=100, body_bytes_max=200, delay_ms_max=1000)
    >>> parser.feed(b"NOP\\nPUB orders\\n\\x00\\x00\\x00\\x02o")
    [Nop()]
    >>> parser.feed(b"k")
    [Publish(verb='PUB', topic='orders', bodies=[b'ok'], replies=1, delay_ms=None, nbytes=2)]
    >>> parser.feed(b"SELL orders\\n")
    [Invalid(code='E_INVALID', reason='invalid command SELL')]
    """

    __slots__ = (
        "_body_bytes_max",
        "_delay_ms_max",
        "_message_bytes_max",
        "_need",
        "_pieces",
        "has_more",
        "is_known",
        "is_over",
        "rest",
        "verb",
    )

    def __init__(
        self, message_bytes_max: int, body_bytes_max: int, delay_ms_max: int, *, is_known: bool = True
    ) -> None:
        self._message_bytes_max = message_bytes_max
        self._body_bytes_max = body_bytes_max
        self._delay_ms_max = delay_ms_max
        self._pieces: list[bytes] = []
        self._need = 0
        self.rest = 0
        """How many bytes wait for more."""
        self.has_more = False
        """Whether what was read has more commands than are given at once: feed it nothing, and they come."""
        self.is_known = is_known
        """Whether the client has said who it is. Before that nothing is published, and bodies are small."""
        self.is_over = False
        """Something was invalid: what follows cannot be understood any more."""
        self.verb = ""
        """The verb of the command that has begun and is not whole yet, if it is known."""

    @property
    def wanted(self) -> int:
        """How many bytes the command has, at least, that has begun and is not whole; 0 if there is none."""
        return max(self.rest, self._need) if self.rest and not self.has_more else 0

    @property
    def _introduction_bytes_max(self) -> int:
        """How long a client's words about itself may be: less before it has said who it is."""
        return self._body_bytes_max if self.is_known else min(self._body_bytes_max, UNKNOWN_BYTES_MAX)

    def end(self) -> None:
        """Nobody wants more commands: let go of what was read."""
        self.is_over = True
        self.has_more = False
        self._pieces.clear()
        self.rest = 0

    def feed(self, data: bytes) -> list[WireCommand]:
        """The commands that are whole now; of very many the first."""
        if self.is_over:
            return []
        if self.rest:
            self._pieces.append(data)
            self.rest += len(data)
            if self.rest < self._need:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
            self.rest = 0
        self.verb = ""
        commands: list[WireCommand] = []
        at = self._parse(data, commands)
        if at < len(data) and not self.is_over:
            self._pieces.append(data[at:] if at else data)
            self.rest = len(data) - at
            self._need -= at
        return commands

    def _parse(self, data: bytes, commands: list[WireCommand]) -> int:
        """Take commands off the buffer. Returns where the first that is not whole begins."""
        at, end = 0, len(data)
        self.has_more = False
        try:
            while at < end and len(commands) < COMMANDS_MAX:
                start = at
                if data.startswith(b"FIN ", at) and data.startswith(b"FIN ", at + 21):
                    at = _parse_run(data, at, b"FIN ", 21, Finish, commands)
                elif data.startswith(b"TOUCH ", at) and data.startswith(b"TOUCH ", at + 23):
                    at = _parse_run(data, at, b"TOUCH ", 23, Touch, commands)
                if at > start:
                    continue
                newline = data.find(b"\n", at, at + LINE_BYTES_MAX + 1)
                if newline < 0:
                    if end - at > LINE_BYTES_MAX:
                        raise Refused("E_INVALID", f"a command's line is longer than {LINE_BYTES_MAX} bytes")
                    raise _Incomplete(end + 1)
                stop = newline - 1 if newline > at and data[newline - 1] == 13 else newline
                parameters = data[at:stop].split(b" ")
                parse = _VERBS.get(parameters[0])
                if parse is None:
                    raise Refused("E_INVALID", f"invalid command {_text(parameters[0])[:100]}")
                self.verb = parameters[0].decode()
                at = parse(self, data, newline + 1, parameters, commands)
                self.verb = ""
            self._need = at
            self.has_more = at < end
        except _Incomplete as incomplete:
            self._need = incomplete.need
        except Refused as refused:
            commands.append(Invalid(refused.code, refused.reason))
            self.is_over = True
        return at

    # -- one wire verb, one method --

    def _identify(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        stop = _end(data, at, "IDENTIFY", "body", self._introduction_bytes_max)
        commands.append(Identify(data[at + 4 : stop]))
        return stop

    def _auth(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        if len(parameters) != 1:
            raise Refused("E_INVALID", "AUTH invalid number of parameters")
        stop = _end(data, at, "AUTH", "body", self._introduction_bytes_max)
        self.is_known = True  # or the connection ends, when this is followed
        commands.append(Auth(data[at + 4 : stop]))
        return stop

    def _subscribe(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        if len(parameters) < 3:
            raise Refused("E_INVALID", "SUB insufficient number of parameters")
        topic = _topic("SUB", parameters[1])
        channel = _text(parameters[2])
        if not is_name(channel):
            raise Refused("E_BAD_CHANNEL", f"SUB channel name {_quoted(channel)} is not valid")
        commands.append(Subscribe(topic, channel))
        return at

    def _publish(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        if len(parameters) < 2:
            raise Refused("E_INVALID", "PUB insufficient number of parameters")
        topic = _topic("PUB", parameters[1])
        if not self.is_known:
            raise Refused(AUTH_FIRST, "AUTH required before PUB")
        stop = _end(data, at, "PUB", "message", self._message_bytes_max)
        last = commands[-1] if commands else None
        if isinstance(last, Publish) and last.verb == "PUB" and last.topic == topic:
            assert isinstance(last.bodies, list)
            last.bodies.append(data[at + 4 : stop])
            last.replies += 1
            last.nbytes += stop - at - 4
        else:
            commands.append(Publish("PUB", topic, [data[at + 4 : stop]], nbytes=stop - at - 4))
        return stop

    def _publish_later(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        if len(parameters) < 3:
            raise Refused("E_INVALID", "DPUB insufficient number of parameters")
        topic = _topic("DPUB", parameters[1])
        delay_ms = _number(parameters[2])
        if delay_ms is None:
            raise Refused("E_INVALID", f"DPUB could not parse timeout {_text(parameters[2])[:100]}")
        if delay_ms > self._delay_ms_max:
            raise Refused("E_INVALID", f"DPUB timeout {delay_ms} out of range 0-{self._delay_ms_max}")
        if not self.is_known:
            raise Refused(AUTH_FIRST, "AUTH required before DPUB")
        stop = _end(data, at, "DPUB", "message", self._message_bytes_max)
        body = data[at + 4 : stop]
        commands.append(Publish("DPUB", topic, [body], delay_ms=delay_ms, nbytes=len(body)))
        return stop

    def _publish_many(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        if len(parameters) < 2:
            raise Refused("E_INVALID", "MPUB insufficient number of parameters")
        topic = _topic("MPUB", parameters[1])
        if not self.is_known:
            raise Refused(AUTH_FIRST, "AUTH required before MPUB")
        stop = _end(data, at, "MPUB", "body", self._body_bytes_max)
        bodies = parse_bodies(data, at + 4, stop, self._message_bytes_max)
        commands.append(Publish("MPUB", topic, bodies, nbytes=stop - at - 4))
        return stop

    def _ready(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        count = 1
        if len(parameters) > 1:
            found = _number(parameters[1])
            if found is None:
                raise Refused("E_INVALID", f"RDY could not parse count {_text(parameters[1])[:100]}")
            count = found
        commands.append(Ready(count))
        return at

    def _finish(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        found = _id("FIN", 2, parameters)
        if found is None:
            commands.append(UnknownId("FIN", _text(parameters[1])))
        else:
            _add_ids(commands, Finish, np.array([found], dtype=np.uint64))
        return at

    def _touch(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        found = _id("TOUCH", 2, parameters)
        if found is None:
            commands.append(UnknownId("TOUCH", _text(parameters[1])))
        else:
            _add_ids(commands, Touch, np.array([found], dtype=np.uint64))
        return at

    def _requeue(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        found = _id("REQ", 3, parameters)
        timeout_ms = _number(parameters[2])
        if timeout_ms is None:
            raise Refused("E_INVALID", f"REQ could not parse timeout {_text(parameters[2])[:100]}")
        timeout_ms = min(timeout_ms, self._delay_ms_max)
        if found is None:
            commands.append(UnknownId("REQ", _text(parameters[1])))
            return at
        ids = np.array([found], dtype=np.uint64)
        last = commands[-1] if commands else None
        if isinstance(last, Requeue) and last.timeout_ms == timeout_ms:
            last.parts.append(ids)
        else:
            commands.append(Requeue([ids], timeout_ms))
        return at

    def _close(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        commands.append(Close())
        return at

    def _nop(self, data: bytes, at: int, parameters: list[bytes], commands: list[WireCommand]) -> int:
        commands.append(Nop())
        return at


_VERBS: dict[bytes, Callable[[Parser, bytes, int, list[bytes], list[WireCommand]], int]] = {
    b"IDENTIFY": Parser._identify,
    b"AUTH": Parser._auth,
    b"SUB": Parser._subscribe,
    b"PUB": Parser._publish,
    b"DPUB": Parser._publish_later,
    b"MPUB": Parser._publish_many,
    b"RDY": Parser._ready,
    b"FIN": Parser._finish,
    b"TOUCH": Parser._touch,
    b"REQ": Parser._requeue,
    b"CLS": Parser._close,
    b"NOP": Parser._nop,
}


def _end(data: bytes, at: int, verb: str, what: str, limit: int) -> int:
    """Where a body, or a message, ends whose size stands at `at`."""
    if len(data) < at + 4:
        raise _Incomplete(at + 4)
    size: int = _SIZE.unpack_from(data, at)[0]
    code, name = ("E_BAD_BODY", "body") if what == "body" else ("E_BAD_MESSAGE", "message body")
    if size <= 0:
        raise Refused(code, f"{verb} invalid {name} size {size}")
    if size > limit:
        raise Refused(code, f"{verb} {what} too big {size} > {limit}")
    stop = at + 4 + size
    if len(data) < stop:
        raise _Incomplete(stop)
    return stop


def parse_bodies(data: bytes, at: int, stop: int, message_bytes_max: int) -> list[bytes] | PackedBodies:
    """The messages of an MPUB body, which goes from `at` to `stop`: as one piece, if all have one length."""
    count = _SIZE.unpack_from(data, at)[0] if stop - at >= 4 else 0
    if count <= 0 or count > (stop - at - 4) // 4:
        raise Refused("E_BAD_BODY", f"MPUB invalid message count {count}")
    at += 4
    size: int = _SIZE.unpack_from(data, at)[0]
    if count > 1 and 0 < size <= message_bytes_max and count * (4 + size) == stop - at:
        sizes = np.ndarray((count,), ">i4", data, at, (4 + size,))
        if bool((sizes == size).all()):
            table = np.ndarray((count, size), np.uint8, data, at + 4, (4 + size, 1))
            return PackedBodies.even(table.tobytes(), size)
    return _parse_each(data, at, stop, count, message_bytes_max)


def _parse_each(data: bytes, at: int, stop: int, count: int, message_bytes_max: int) -> list[bytes]:
    bodies = []
    unpack = _SIZE.unpack_from
    for index in range(count):
        if stop - at < 4:
            raise Refused("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
        size = unpack(data, at)[0]
        at += 4
        if not 0 < size <= message_bytes_max or size > stop - at:
            raise Refused("E_BAD_MESSAGE", _bad_size(index, size, message_bytes_max))
        bodies.append(data[at : at + size])
        at += size
    if at != stop:
        raise Refused("E_BAD_BODY", f"MPUB has {stop - at} bytes behind its last message")
    return bodies


def _bad_size(index: int, size: int, message_bytes_max: int) -> str:
    if size <= 0:
        return f"MPUB invalid message({index}) body size {size}"
    if size > message_bytes_max:
        return f"MPUB message too big {size} > {message_bytes_max}"
    return "MPUB failed to read message body"


# -- runs of FIN and TOUCH ---------------------------------------------------------------------------------------------


def _parse_run(data: bytes, at: int, verb: bytes, stride: int, kind: type[Finish], commands: list[WireCommand]) -> int:
    word = int.from_bytes(verb[:4], "little")
    block = _FIRST_BLOCK
    while (count := min((len(data) - at) // stride, block)) > 0:
        words = np.ndarray((count,), "<u4", data, at, (stride,))
        ends = np.ndarray((count,), np.uint8, data, at + stride - 1, (stride,))
        good = (words == word) & (ends == 10)
        if len(verb) > 4:
            spaces = np.ndarray((count,), "<u2", data, at + 4, (stride,))
            good &= spaces == int.from_bytes(verb[4:], "little")
        length = count if bool(good.all()) else int(good.argmin())
        if not length:
            break
        digits = np.ndarray((length, ID_LENGTH), np.uint8, data, at + len(verb), (stride, 1))
        try:
            raw = unhexlify(digits.tobytes())
        except BadHex:
            break  # one by one, then
        _add_ids(commands, kind, np.frombuffer(raw, dtype=">u8").astype(np.uint64))
        at += length * stride
        if length < count:
            break
        block = _BLOCK
    return at


def _add_ids(commands: list[WireCommand], kind: type[Finish], ids: NDArray[np.uint64]) -> None:
    last = commands[-1] if commands else None
    if last.__class__ is kind:
        assert isinstance(last, Finish)
        last.parts.append(ids)
    else:
        commands.append(kind([ids]))


def _id(verb: str, count: int, parameters: list[bytes]) -> int | None:
    """The number behind a message id; None if it cannot be one of ours."""
    if len(parameters) < count:
        raise Refused("E_INVALID", f"{verb} insufficient number of params")
    text = parameters[1]
    if len(text) != ID_LENGTH:
        raise Refused("E_INVALID", "invalid message ID")
    try:
        return int.from_bytes(unhexlify(text), "big")
    except BadHex:
        return None


def _number(text: bytes) -> int | None:
    """A number as nsqd reads it: digits, perhaps none. One that is far too large is as good as any other such."""
    if not text:
        return 0
    return int(text) if text.isdigit() and len(text) < 20 else None


@lru_cache(maxsize=4_096)
def _topic(verb: str, name: bytes) -> str:
    """A topic's name. (Those that are none raise, and so are not kept.)"""
    topic = _text(name)
    if not is_name(topic):
        raise Refused("E_BAD_TOPIC", f"{verb} topic name {_quoted(topic)} is not valid")
    return topic


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _quoted(text: str) -> str:
    return msgspec.json.encode(text[:100]).decode()


# -- frames ------------------------------------------------------------------------------------------------------------


def frame(kind: int, data: bytes) -> bytes:
    """A frame.

    >>> frame(RESPONSE, b"OK")
    b'\\x00\\x00\\x00\\x06\\x00\\x00\\x00\\x00OK'
    """
    return _HEAD.pack(len(data) + 4, kind) + data


OK_FRAME = frame(RESPONSE, b"OK")
HEARTBEAT_FRAME = frame(RESPONSE, HEARTBEAT)
CLOSE_WAIT_FRAME = frame(RESPONSE, b"CLOSE_WAIT")


def error_frame(code: str, reason: str) -> bytes:
    """An error, in nsqd's words: its code, a space, and what is wrong."""
    return frame(ERROR, f"{code} {reason}".encode())


@lru_cache(maxsize=4_096)
def tag_of(queue_id: int) -> int:
    """The part of a message's id that follows from its topic.

    >>> f"{tag_of(7) + 1:016x}"
    '8454000000000001'
    """
    return ((queue_id * 0x9E3779B97F4A7C15 >> 40) & 0xFFFF) << _SEQUENCE_BITS


def sequences_of(ids: NDArray[np.uint64], tag: int) -> NDArray[np.int64]:
    """The sequence numbers of messages; -1 for an id that is not of this topic.

    >>> sequences_of(np.array([tag_of(7) + 1, tag_of(8) + 1], dtype=np.uint64), tag_of(7)).tolist()
    [1, -1]
    """
    sequences = (ids ^ np.uint64(tag)).view(np.int64)
    foreign = (sequences < 0) | (sequences >= _SEQUENCES_MAX)
    if bool(foreign.any()):
        sequences = np.where(foreign, -1, sequences)
    return sequences


def message_frames(run: Run, tag: int, keep: NDArray[np.bool_] | None = None) -> memoryview | bytes:
    """The frames of a run of messages, end to end; of those to `keep`, if not all."""
    chunk, count = run.chunk, run.stop - run.start
    if count == 1 and keep is None:
        body = chunk.body(run.start)
        attempt = run.attempt if isinstance(run.attempt, int) else int(run.attempt[0])
        head = _MESSAGE_HEAD.pack(
            _MESSAGE_BYTES - 4 + len(body), MESSAGE, chunk.sent_ms * _MS_NS, min(attempt, _ATTEMPTS_MAX)
        )
        return b"%b%016x%b" % (head, (chunk.base + run.start) ^ tag, body)
    offsets = chunk.offsets[run.start : run.stop + 1]
    lengths = np.diff(offsets)
    size = int(lengths[0])
    if bool((lengths == size).all()):
        frames = np.empty((count, _MESSAGE_BYTES + size), dtype=np.uint8)
        _fill_heads(frames, run, tag, size)
        if size:
            bodies = np.frombuffer(chunk.bodies, np.uint8, count * size, int(offsets[0]))
            frames[:, _MESSAGE_BYTES:] = bodies.reshape(count, size)
        return (frames if keep is None else frames[keep]).reshape(-1).data
    return _uneven_frames(run, tag, offsets, lengths, keep)


def _fill_heads(frames: NDArray[np.uint8], run: Run, tag: int, size: int) -> None:
    """Write what comes before the bodies, as if all had one size."""
    attempt = run.attempt if isinstance(run.attempt, int) else 0
    fixed = _MESSAGE_HEAD.pack(
        _MESSAGE_BYTES - 4 + size, MESSAGE, run.chunk.sent_ms * _MS_NS, min(attempt, _ATTEMPTS_MAX)
    )
    count, stop = len(frames), _MESSAGE_HEAD.size
    frames[:, :stop] = np.frombuffer(fixed, np.uint8)
    if not isinstance(run.attempt, int):
        attempts = np.minimum(run.attempt, _ATTEMPTS_MAX).astype(">u2")
        frames[:, stop - 2 : stop] = attempts.view(np.uint8).reshape(count, 2)
    first = run.chunk.base + run.start
    ids = np.arange(first, first + count, dtype=np.uint64) ^ np.uint64(tag)
    digits = hexlify(ids.astype(">u8").tobytes())
    frames[:, stop:_MESSAGE_BYTES] = np.frombuffer(digits, np.uint8).reshape(count, ID_LENGTH)


def _uneven_frames(
    run: Run, tag: int, offsets: NDArray[np.int32], lengths: NDArray[np.int32], keep: NDArray[np.bool_] | None
) -> memoryview:
    """Frames of messages of different lengths: heads and bodies each go to their places with one assignment."""
    count = len(lengths)
    heads = np.empty((count, _MESSAGE_BYTES), dtype=np.uint8)
    _fill_heads(heads, run, tag, 0)
    heads[:, :4] = (lengths + (_MESSAGE_BYTES - 4)).astype(">u4").view(np.uint8).reshape(count, 4)
    starts = (offsets[:-1] - offsets[0]) + np.arange(count, dtype=np.int64) * _MESSAGE_BYTES
    total = int(offsets[-1] - offsets[0]) + count * _MESSAGE_BYTES
    frames = np.empty(total, dtype=np.uint8)
    is_body = np.ones(total, dtype=np.bool_)
    places = starts[:, None] + np.arange(_MESSAGE_BYTES)
    frames[places] = heads
    is_body[places] = False
    frames[is_body] = np.frombuffer(run.chunk.bodies, np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))
    if keep is not None:
        frames = frames[np.repeat(keep, lengths + _MESSAGE_BYTES)]
    return frames.data
