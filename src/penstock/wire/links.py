"""Frames of a link: how two nodes cut their stream of bytes, and how they introduce themselves.

What is in the frames is what clients and servers say to each other, and more of it (`cluster/links/wire.py`).

    frame      length of what follows (u32, little-endian), kind (u8), payload

    the node that listens                    the node that connects
    GREETING  magic, oldest version, [cluster, node, nonce, newest version]
                                             INTRODUCTION  magic, version, [cluster, node, incarnation, nonce, proof]
    ADMISSION  [proof, limits]     or REFUSAL text, and the end; from both
                                             COMMANDS
    REPLIES                                  BEAT: nothing to say, and alive; from both

The version of an INTRODUCTION is the one that both speak. A proof is an HMAC-SHA256, with the cluster's secret, of who
proves, that version, both nonces, and both names: each side shows that it knows the secret, and neither can show it by
repeating what it heard. (What follows is neither encrypted nor sealed: links belong into a network that is trusted.)
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TypeVar

import msgspec

from penstock.core.errors import PenstockError, StoreError
from penstock.wire.requests import BadFrame, Versions

MAGIC = b"PSLK"
VERSIONS = Versions(oldest=2, newest=4)
"""Of the links, and of the commands that travel on them, those that this build speaks (`docs/upgrading.md`).

2   the first build's
3   `TallyQueues`
4   `LookUp`, `DeleteMessages`, `RescheduleMessages`, `NameQueue`, `ListSessions`, `CountQueues`, `StageWork`;
    `in_time` of `Ack`, `late` of `Extend`
"""
NONCE_BYTES = 32
HANDSHAKE_BYTES_MAX = 4_096
"""Frames of who has not introduced itself."""
HEAD = struct.Struct("<IB")
_LENGTH_BYTES = 4
_COPIED_BYTES = 16 * 1024


class FrameKind(IntEnum):
    GREETING = 1
    INTRODUCTION = 2
    ADMISSION = 3
    REFUSAL = 4
    COMMANDS = 5
    REPLIES = 6
    BEAT = 7


_KINDS = frozenset(FrameKind)


class LinkRefused(StoreError):
    """The other node does not want to talk to this one: another cluster, secret or version."""


class FrameReader:
    """Takes bytes as they come, gives frames: (kind, payload).

    >>> reader = FrameReader(100)
    >>> data = frame(FrameKind.REFUSAL, b"no")
    >>> list(reader.feed(data[:4])), list(reader.feed(data[4:] + data))
    ([], [(<FrameKind.REFUSAL: 4>, b'no'), (<FrameKind.REFUSAL: 4>, b'no')])
    """

    __slots__ = ("_missing", "_parts", "_size", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """Of a payload; may be changed at any time."""
        self._parts: list[bytes] = []
        self._size = 0
        self._missing = HEAD.size
        """How many bytes there must be before it is worth looking."""

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """The frames that are complete now. `BadFrame` ends it: nothing after that can be trusted."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._missing:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, end = 0, len(data)
        while end - at >= HEAD.size:
            length, kind = HEAD.unpack_from(data, at)
            self._check(length, kind)
            stop = at + _LENGTH_BYTES + length
            if stop > end:
                self._missing = stop - at
                break
            yield FrameKind(kind), data[at + HEAD.size : stop]
            at = stop
        else:
            self._missing = HEAD.size
        if at < end:
            self._parts.append(data[at:] if at else data)
        self._size = end - at

    def _check(self, length: int, kind: int) -> None:
        if kind not in _KINDS:
            raise BadFrame(f"there is no frame of kind {kind}: this is no link")
        if not 1 <= length <= self.limit_bytes + 1:
            raise BadFrame(f"a frame of {length} bytes: at most {self.limit_bytes} are taken")


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """A frame, in one piece."""
    return HEAD.pack(len(payload) + 1, kind) + payload


def frame_parts(kind: FrameKind, payload: bytes) -> list[bytes]:
    """A frame to be written; a large payload is not copied."""
    head = HEAD.pack(len(payload) + 1, kind)
    return [head + payload] if len(payload) < _COPIED_BYTES else [head, payload]


# -- introductions -----------------------------------------------------------------------------------------------------


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Who listens."""

    cluster: str
    node: str
    nonce: bytes
    newest: int = 0
    """The newest version that it speaks; 0: it speaks one only."""


class Introduction(msgspec.Struct, array_like=True, frozen=True):
    """Who connects."""

    cluster: str
    node: str
    incarnation: bytes
    """Another one each time that the node's process starts: what the one before had open is over."""
    nonce: bytes
    proof: bytes


class Admission(msgspec.Struct, array_like=True, frozen=True):
    """The node that connected is let in."""

    proof: bytes
    frame_bytes_max: int
    in_flight_max: int
    """How many commands, waiting receives not counted, it may have in flight."""


_Who = TypeVar("_Who", Greeting, Introduction)
_decode_greeting = msgspec.msgpack.Decoder(Greeting).decode
_decode_introduction = msgspec.msgpack.Decoder(Introduction).decode
_decode_admission = msgspec.msgpack.Decoder(Admission).decode


def introduce(kind: FrameKind, who: Greeting | Introduction, version: int) -> bytes:
    """A frame that starts with the version, so that any version can read that much."""
    return frame(kind, MAGIC + bytes([version]) + msgspec.msgpack.encode(who))


def read_greeting(payload: bytes, versions: Versions = VERSIONS) -> tuple[Greeting, int]:
    """Who listens, and the version that both speak; `LinkRefused` if there is none."""
    oldest = _version_in(payload)
    if oldest > versions.newest:  # whatever follows is of that version
        raise LinkRefused(_apart(Versions(oldest, oldest), versions))
    greeting = _introduced(payload, _decode_greeting)
    theirs = Versions(oldest, max(oldest, greeting.newest))
    agreed = versions.agreed(theirs)
    if agreed is None:
        raise LinkRefused(_apart(theirs, versions))
    return greeting, agreed


def read_introduction(payload: bytes, versions: Versions = VERSIONS) -> tuple[Introduction, int]:
    """Who connects, and the version that it has chosen; `LinkRefused` if that is not spoken here."""
    version = _version_in(payload)
    chosen = Versions(version, version)
    if versions.agreed(chosen) is None:
        raise LinkRefused(_apart(chosen, versions))
    return _introduced(payload, _decode_introduction), version


def read_admission(payload: bytes) -> Admission:
    """That this node is let in."""
    try:
        return _decode_admission(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"this is no admission: {error}") from None


def _apart(theirs: Versions, own: Versions) -> str:
    return (
        f"the other node speaks version {theirs} of links, and this one version {own}: upgrade the one with the "
        "lower number"
    )


def _version_in(payload: bytes) -> int:
    if payload[: len(MAGIC)] != MAGIC or len(payload) <= len(MAGIC):
        raise BadFrame("this is no link of Penstock")
    return payload[len(MAGIC)]


def _introduced(payload: bytes, decode: Callable[[bytes], _Who]) -> _Who:
    try:
        return decode(payload[len(MAGIC) + 1 :])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"this is no introduction: {error}") from None


def client_proof(secret: bytes, version: int, greeting: Greeting, newcomer: Introduction) -> bytes:
    """What the node that connects shows."""
    return _proof(secret, b"connects", version, greeting, newcomer)


def server_proof(secret: bytes, version: int, greeting: Greeting, newcomer: Introduction) -> bytes:
    """What the node that listens shows."""
    return _proof(secret, b"listens", version, greeting, newcomer)


def _proof(secret: bytes, who: bytes, version: int, greeting: Greeting, newcomer: Introduction) -> bytes:
    names = (greeting.cluster, greeting.node, newcomer.cluster, newcomer.node)
    said = msgspec.msgpack.encode((who, version, *names, newcomer.incarnation, greeting.nonce, newcomer.nonce))
    return hmac.digest(secret, said, hashlib.sha256)


def is_proven(expected: bytes, shown: bytes) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(expected, shown)


def refusal(error: PenstockError) -> bytes:
    """The last frame to a node that is not let in."""
    return frame(FrameKind.REFUSAL, str(error).encode()[: HANDSHAKE_BYTES_MAX - 1])
