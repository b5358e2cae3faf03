"""A client of NSQ's protocol V2 that does exactly what it is told: bytes on a socket, and frames as they come."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

PATIENCE_S = 60.0
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
Address = tuple[str, int]


class Frame(NamedTuple):
    kind: int
    data: bytes


class Message(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def sized(body: bytes) -> bytes:
    """A body after its size."""
    return struct.pack(">i", len(body)) + body


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + sized(body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return b"DPUB %s %d\n" % (topic.encode(), delay_ms) + sized(body)


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    return b"MPUB %s\n" % topic.encode() + sized(many(bodies))


def many(bodies: Iterable[bytes]) -> bytes:
    """The body of an MPUB: a count, then sized messages."""
    each = [sized(body) for body in bodies]
    return struct.pack(">i", len(each)) + b"".join(each)


def identify(**options: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(options).encode())


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def fin(message: Message) -> bytes:
    return b"FIN %s\n" % message.id


def req(message: Message, delay_ms: int = 0) -> bytes:
    return b"REQ %s %d\n" % (message.id, delay_ms)


def touch(message: Message) -> bytes:
    return b"TOUCH %s\n" % message.id


class Connection:
    """One connection. Heartbeats are answered, and not shown, unless they are asked for."""

    def __init__(self, address: Address, magic: bytes = b"  V2") -> None:
        self.socket = socket.create_connection(address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self.send(magic)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        self.socket.sendall(b"".join(pieces))

    def receive(self) -> bytes:
        """Some bytes; none when the server has closed."""
        return self.socket.recv(1 << 18)

    # -- frames --

    def raw_frame(self, seconds: float = PATIENCE_S) -> Frame | None:
        """The next frame, a heartbeat perhaps; None when the server has closed. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self._has_frame():
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self.receive()
            except ConnectionError:
                data = b""
            if not data:
                assert not self._buffer, f"closed in the middle of a frame: {bytes(self._buffer[:100])!r}"
                return None
            self._buffer += data
        self.socket.settimeout(PATIENCE_S)
        size, kind = struct.unpack_from(">ii", self._buffer)
        data = bytes(self._buffer[8 : 4 + size])
        del self._buffer[: 4 + size]
        return Frame(kind, data)

    def _has_frame(self) -> bool:
        return len(self._buffer) >= 4 and len(self._buffer) >= 4 + int(struct.unpack_from(">i", self._buffer)[0])

    def frame(self, seconds: float = PATIENCE_S) -> Frame | None:
        """The next frame that is no heartbeat."""
        deadline = time.monotonic() + seconds
        while True:
            frame = self.raw_frame(deadline - time.monotonic())
            if frame != Frame(RESPONSE, HEARTBEAT):
                return frame
            self.send(b"NOP\n")

    def response(self) -> bytes:
        frame = self.frame()
        assert frame is not None, "the server closed the connection"
        assert frame.kind == RESPONSE, frame
        return frame.data

    def error(self) -> str:
        frame = self.frame()
        assert frame is not None, "the server closed the connection without a word"
        assert frame.kind == ERROR, frame
        return frame.data.decode()

    def message(self, seconds: float = PATIENCE_S) -> Message:
        frame = self.frame(seconds)
        assert frame is not None, "the server closed the connection"
        assert frame.kind == MESSAGE, frame
        timestamp_ns, attempts = struct.unpack_from(">qH", frame.data)
        return Message(timestamp_ns, attempts, frame.data[10:26], frame.data[26:])

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def is_silent(self, seconds: float = 0.3) -> bool:
        """Whether nothing but heartbeats comes for so long."""
        try:
            frame = self.frame(seconds)
        except TimeoutError:
            return True
        assert frame is not None, "the server closed the connection"
        return False

    def arriving(self, seconds: float = 0.3) -> list[Message]:
        """What comes until nothing has come for so long."""
        found = []
        try:
            while True:
                found.append(self.message(seconds))
        except TimeoutError:
            return found

    def is_closed(self) -> bool:
        """Whether the server closes, after whatever it still had to say."""
        try:
            while self.frame() is not None:
                pass
        except TimeoutError:
            return False
        return True

    def is_open(self) -> bool:
        """Whether the server still answers."""
        self.send(pub("nobody-reads-this", b"x"))
        return self.response() == b"OK"

    # -- habits --

    def ask(self, command: bytes) -> bytes:
        """Send, and give the response."""
        self.send(command)
        return self.response()

    def publish(self, topic: str, *bodies: bytes) -> None:
        command = pub(topic, bodies[0]) if len(bodies) == 1 else mpub(topic, bodies)
        assert self.ask(command) == b"OK"

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> Connection:
        assert self.ask(sub(topic, channel)) == b"OK"
        if ready:
            self.send(b"RDY %d\n" % ready)
        return self

    def identify(self, **options: Any) -> Any:
        return json.loads(self.ask(identify(feature_negotiation=True, **options)))
