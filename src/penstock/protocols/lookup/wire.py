r"""The bytes between a node and a lookup service: nsqlookupd's protocol V1, and one command of our own.

After the magic `"  V1"`, a node sends commands: a line, and for some of them a body.

    IDENTIFY\n [4 bytes: size] [JSON: broadcast_address, tcp_port, http_port, version, hostname]
    REGISTER topic [channel]\n
    UNREGISTER topic [channel]\n
    PING\n
    LOADS\n [4 bytes: size] [JSON: topic → [depth, readers, {channel → [depth, readers]}]]

Every command is answered by `[4 bytes: size] [text]`: JSON for IDENTIFY, else `OK` or an error. LOADS is ours: a node
sends it only to a service whose answer to IDENTIFY holds `"commands": ["LOADS"]`, as nsqlookupd's does not.

No sockets here: `CommandReader` and `ResponseReader` take bytes in any pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from penstock.server.budget import UNKNOWN_BYTES_MAX

MAGIC = b"  V1"
LOADS = "LOADS"
LINE_BYTES_MAX = 1_024
BODY_BYTES_MAX = 1024 * 1024
_SIZE = struct.Struct(">i")
_WITH_BODY = frozenset({"IDENTIFY", LOADS})


class Refusal(Exception):
    """What a node sent cannot be followed; the connection ends after the error was sent."""

    def __init__(self, code: str, reason: str = "") -> None:
        super().__init__(f"{code} {reason}" if reason else code)


class LookupCommand(NamedTuple):
    """One command of a node."""

    name: str
    arguments: list[str]
    body: bytes = b""


class CommandReader:
    r"""Bytes in, commands out.

    >>> list(CommandReader().feed(b"  V1REGISTER orders billing\nPING\nPI"))
    [LookupCommand(name='REGISTER', arguments=['orders', 'billing'], body=b''),
     LookupCommand(name='PING', arguments=[], body=b'')]
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_greeted = False
        self._pending: LookupCommand | None = None
        """A command whose body is not there yet."""
        self._is_introduced = False
        """A node has said who it is: before that, bodies are small."""

    def feed(self, data: bytes) -> Iterator[LookupCommand]:
        """The commands that are complete now. Raises `Refusal` behind the last that can be followed."""
        self._buffer += data
        position = 0
        try:
            while True:
                command, position = self._next(position)
                if command is None:
                    return
                yield command
        finally:
            del self._buffer[:position]

    def _next(self, position: int) -> tuple[LookupCommand | None, int]:
        if not self._is_greeted:
            if len(self._buffer) < len(MAGIC):
                return None, position
            if not self._buffer.startswith(MAGIC):
                raise Refusal("E_BAD_PROTOCOL")
            self._is_greeted = True
            position = len(MAGIC)
        if self._pending is None:
            end = self._buffer.find(b"\n", position)
            if end - position > LINE_BYTES_MAX or (end < 0 and len(self._buffer) - position > LINE_BYTES_MAX):
                raise Refusal("E_INVALID", f"a command is at most {LINE_BYTES_MAX} bytes long")
            if end < 0:
                return None, position
            command = _command(bytes(self._buffer[position:end]))
            position = end + 1
            if command.name not in _WITH_BODY:
                return command, position
            self._pending = command
        return self._with_body(self._pending, position)

    def _with_body(self, command: LookupCommand, position: int) -> tuple[LookupCommand | None, int]:
        start = position + _SIZE.size
        if len(self._buffer) < start:
            return None, position
        (size,) = _SIZE.unpack_from(self._buffer, position)
        limit = BODY_BYTES_MAX if self._is_introduced else UNKNOWN_BYTES_MAX
        if not 0 <= size <= limit:
            raise Refusal("E_BAD_BODY", f"{command.name} body of {size} bytes: at most {limit} are taken")
        if len(self._buffer) < start + size:
            return None, position
        self._pending = None
        self._is_introduced = True
        return command._replace(body=bytes(self._buffer[start : start + size])), start + size


def _command(line: bytes) -> LookupCommand:
    name, *arguments = line.decode("utf-8", "replace").strip().split(" ")
    return LookupCommand(name, arguments)


class ResponseReader:
    r"""Bytes in, responses out.

    >>> list(ResponseReader().feed(response(b"OK") + response(b"E_INVALID no")[:5]))
    [b'OK']
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The responses that are complete now. Raises `Refusal` for what cannot be one."""
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) >= position + _SIZE.size:
                (size,) = _SIZE.unpack_from(self._buffer, position)
                if not 0 <= size <= BODY_BYTES_MAX:
                    raise Refusal("E_BAD_BODY", f"a response of {size} bytes")
                end = position + _SIZE.size + size
                if len(self._buffer) < end:
                    return
                found, position = bytes(self._buffer[position + _SIZE.size : end]), end
                yield found
        finally:
            del self._buffer[:position]


def response(text: bytes) -> bytes:
    return _SIZE.pack(len(text)) + text


def identify(identity: msgspec.Struct) -> bytes:
    return _bodied("IDENTIFY", msgspec.json.encode(identity))


def register(topic: str, channel: str | None = None) -> bytes:
    r"""A node has a topic, or a channel.

    >>> register("orders"), register("orders", "billing")
    (b'REGISTER orders\n', b'REGISTER orders billing\n')
    """
    return f"REGISTER {topic}{'' if channel is None else ' ' + channel}\n".encode()


def unregister(topic: str, channel: str | None = None) -> bytes:
    """A node has a topic, or a channel, no longer."""
    return b"UN" + register(topic, channel)


def ping() -> bytes:
    """A node is alive."""
    return b"PING\n"


def loads(body: bytes) -> bytes:
    """What waits on a node."""
    return _bodied(LOADS, body)


def _bodied(name: str, body: bytes) -> bytes:
    return name.encode() + b"\n" + _SIZE.pack(len(body)) + body
