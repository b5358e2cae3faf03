"""What somebody may do to a server who wants it gone: each attack is a coroutine, run by a process of its own.

    python -m tests.attacks.attacks NAME PORTS SECONDS

Attackers hold on to what they have, and come again when they are thrown out. Those whose names end with `_inside` know
a token; the others know nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.core.commands import Browse
from penstock.wire.frames import masked_frame
from penstock.wire.requests import VERSIONS, Hello, encode_requests
from tests.attacks.target import ACCESS_KEY, MIB, QUEUE, SECRET_KEY, TOKEN, Ports

PIECE = b"\x00" * 65_536
_MASK = b"\x00\x00\x00\x00"
FRAGMENT, CONTINUATION, PING = b"\x02", b"\x00", b"\x89"
_PAUSE_S = 0.05
_BEARER = f"authorization: Bearer {TOKEN}\r\n"
_AUTH = b"AUTH\n" + len(TOKEN).to_bytes(4, "big") + TOKEN.encode()


class Line:
    """A connection of an attacker: it writes without reading, or reads and throws away."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, *, reads: bool = True) -> Line:
        """Connect."""
        line = cls(*await asyncio.open_connection("127.0.0.1", port, limit=65_536))
        line.read_all() if reads else line.read_nothing()
        return line

    def read_all(self) -> None:
        """Read, and throw away."""
        self._draining = asyncio.ensure_future(self._drain())

    def read_nothing(self) -> None:
        """Leave everything to the server."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    async def _drain(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self.reader.read(65_536):
                pass
            self._writer.close()

    async def send(self, data: bytes) -> None:
        """Write, as fast as the server takes it."""
        self._writer.write(data)
        await self._writer.drain()
        if self._writer.is_closing():
            raise ConnectionResetError

    async def send_bytes(self, count: int) -> None:
        """Write so many bytes that mean nothing."""
        while count > 0:
            await self.send(PIECE[:count])
            count -= len(PIECE)

    async def hold(self, until_s: float) -> None:
        """Keep the connection."""
        while time.monotonic() < until_s and not self._writer.is_closing():
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Let it go."""
        self._writer.close()


async def websocket(port: int, *, token: str | None = None, reads: bool = True) -> Line:
    """A websocket; with a token, one that has said Hello."""
    line = Line(*await asyncio.open_connection("127.0.0.1", port, limit=65_536))
    head = "GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    await line.send(f"{head}sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nsec-websocket-version: 13\r\n\r\n".encode())
    await line.reader.readuntil(b"\r\n\r\n")
    if token is not None:
        await line.send(masked_frame(encode_requests([(1, Hello(version=VERSIONS.newest, token=token))])))
        await line.reader.read(65_536)
    line.read_all() if reads else line.read_nothing()
    return line


def fragment(first: bytes, payload: bytes) -> bytes:
    """A frame of a client, under a mask that changes nothing."""
    if len(payload) < 126:
        return first + bytes((0x80 | len(payload),)) + _MASK + payload
    return first + b"\xff" + len(payload).to_bytes(8, "big") + _MASK + payload


Attack = Callable[[Ports, float], Awaitable[None]]
"""Attack these ports until then."""


async def _again(once: Callable[[], Awaitable[None]], until_s: float) -> None:
    """Over and over: who is thrown out comes again."""
    while time.monotonic() < until_s:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                await once()
        await asyncio.sleep(_PAUSE_S)


async def _many(count: int, once: Callable[[], Awaitable[None]], until_s: float) -> None:
    await asyncio.gather(*(_again(once, until_s) for _ in range(count)))


async def empty_fragments(ports: Ports, until_s: float, token: str | None = None) -> None:
    """One websocket, and continuation frames with nothing in them."""
    many = fragment(CONTINUATION, b"") * 10_000

    async def once() -> None:
        line = await websocket(ports.http, token=token)
        await line.send(fragment(FRAGMENT, b""))
        while time.monotonic() < until_s:
            await line.send(many)

    await _again(once, until_s)


async def pings(ports: Ports, until_s: float, token: str | None = None) -> None:
    """One websocket, and pings whose answers nobody reads."""
    many = fragment(PING, b"x" * 100) * 1_000

    async def once() -> None:
        line = await websocket(ports.http, token=token, reads=False)
        while time.monotonic() < until_s:
            await line.send(many)

    await _again(once, until_s)


async def unfinished_messages(ports: Ports, until_s: float, token: str | None = None) -> None:
    """Twenty websockets with 60 MB of a message each that has no end."""

    async def once() -> None:
        line = await websocket(ports.http, token=token)
        await line.send(fragment(FRAGMENT, PIECE))
        for _ in range(60 * MIB // len(PIECE) - 1):
            await line.send(fragment(CONTINUATION, PIECE))
        await line.hold(until_s)

    await _many(20, once, until_s)


async def unfinished_frames(ports: Ports, until_s: float, token: str | None = None) -> None:
    """Twenty websockets with one frame each of 60 MB, of which the last byte is missing."""

    async def once() -> None:
        line = await websocket(ports.http, token=token)
        await line.send(b"\x82\xff" + (60 * MIB).to_bytes(8, "big") + _MASK)
        await line.send_bytes(60 * MIB - 1)
        await line.hold(until_s)

    await _many(20, once, until_s)


async def nsq_bodies(ports: Ports, until_s: float, auth: bytes = b"") -> None:
    """Two hundred NSQ clients with an MPUB each of 5 MB, of which the last byte is missing."""

    async def once() -> None:
        line = await Line.open(ports.nsq)
        size = 5 * MIB
        await line.send(b"  V2" + auth + b"MPUB topic\n" + size.to_bytes(4, "big"))
        await line.send_bytes(size - 1)
        await line.hold(until_s)

    await _many(200, once, until_s)


async def _http_bodies(port: int, target: str, headers: str, size: int, until_s: float, count: int = 100) -> None:
    async def once() -> None:
        line = await Line.open(port)
        await line.send(
            f"POST {target} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {size}\r\n\r\n".encode()
        )
        await line.send_bytes(size - 1)
        await line.hold(until_s)

    await _many(count, once, until_s)


async def sqs_bodies(ports: Ports, until_s: float) -> None:
    """A hundred SQS requests that nobody has signed, with 8 MB each, of which the last byte is missing."""
    await _http_bodies(ports.sqs, "/", "x-amz-target: AmazonSQS.SendMessage\r\n", 8 * MIB, until_s)


async def sqs_bodies_inside(ports: Ports, until_s: float) -> None:
    """The same with an access key that is known, and a signature that will not do."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{now[:8]}/us-east-1/sqs/aws4_request, "
    signature += f"SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
    headers = f"x-amz-target: AmazonSQS.SendMessage\r\nx-amz-date: {now}\r\nauthorization: {signature}\r\n"
    await _http_bodies(ports.sqs, "/", headers, 8 * MIB, until_s)


async def nsq_http_bodies(ports: Ports, until_s: float) -> None:
    """A hundred requests to NSQ's HTTP port, with 5 MB each."""
    await _http_bodies(ports.nsq_http, "/mpub?topic=topic&binary=true", "", 5 * MIB, until_s)


async def rest_bodies(ports: Ports, until_s: float, headers: str = "") -> None:
    """A hundred REST requests with 8 MB each, of which the last byte is missing."""
    await _http_bodies(ports.http, f"/v1/queues/{QUEUE}-in/messages", headers, 8 * MIB, until_s)


async def polled_bodies(ports: Ports, until_s: float, headers: str = "") -> None:
    """Twenty requests of clients that poll, with 60 MB each."""
    await _http_bodies(ports.http, "/v1/commands", headers, 60 * MIB, until_s, 20)


async def unread_answers_inside(ports: Ports, until_s: float) -> None:
    """Ten clients that ask for 30 MB forty times, and read nothing."""
    path = f"/v1/queues/{QUEUE}/messages?limit=1000"
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()

    async def once() -> None:
        line = await Line.open(ports.http, reads=False)
        await line.send(request * 40)
        await line.hold(until_s)
        line.close()

    await _many(10, once, until_s)


async def unread_pushes_inside(ports: Ports, until_s: float) -> None:
    """Ten websockets that look at 30 MB forty times, and read nothing."""
    frames = [masked_frame(encode_requests([(number, Browse(queue=QUEUE, limit=120))])) for number in range(2, 42)]

    async def once() -> None:
        line = await websocket(ports.http, token=TOKEN, reads=False)
        for frame in frames:
            await line.send(frame)
        await line.hold(until_s)
        line.close()

    await _many(10, once, until_s)


async def sqs_unread_answers_inside(ports: Ports, until_s: float) -> None:
    """A hundred SQS clients that receive ten messages of 256 KiB, forty times over, and read nothing."""
    url = f"http://localhost:{ports.sqs}/000000000000/{QUEUE}"
    body = msgspec.json.encode({"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0})
    headers = {"Host": "localhost", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
    request = AWSRequest("POST", "http://localhost/", headers, body)
    SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "sqs", "us-east-1").add_auth(request)
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    sent = f"POST / HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body

    async def once() -> None:
        line = await Line.open(ports.sqs, reads=False)
        await line.send(sent * 40)
        await line.hold(until_s)
        line.close()

    await _many(100, once, until_s)


async def nsq_unread_messages_inside(ports: Ports, until_s: float) -> None:
    """A hundred NSQ clients, each on a channel of its own, that read no message."""
    numbers = itertools.count()

    async def once() -> None:
        line = await Line.open(ports.nsq, reads=False)
        await line.send(b"  V2" + _AUTH + f"SUB {QUEUE} c{next(numbers)}#ephemeral\nRDY 1000\n".encode())
        await line.hold(until_s)
        line.close()

    await _many(100, once, until_s)


async def slow_headers(ports: Ports, until_s: float) -> None:
    """Four hundred connections to each HTTP port, whose headers never end."""

    async def slow(port: int) -> None:
        line = await Line.open(port)
        await line.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        while time.monotonic() < until_s:
            await line.send(b"x-more: and more\r\n")
            await asyncio.sleep(0.5)

    ports_of_http = (ports.sqs, ports.http, ports.nsq_http)
    await asyncio.gather(*(_many(400, lambda port=port: slow(port), until_s) for port in ports_of_http))  # type: ignore[misc]


def _inside(attack: Callable[..., Awaitable[None]], key: str, value: object) -> Attack:
    return lambda ports, until_s: attack(ports, until_s, **{key: value})


async def nobody(ports: Ports, until_s: float) -> None:
    """No attack: what the machine, and the watching, cost by themselves."""
    await asyncio.sleep(until_s - time.monotonic())


ATTACKS: dict[str, Attack] = {
    "nobody": nobody,
    "empty_fragments": empty_fragments,
    "pings": pings,
    "unfinished_messages": unfinished_messages,
    "unfinished_frames": unfinished_frames,
    "nsq_bodies": nsq_bodies,
    "sqs_bodies": sqs_bodies,
    "nsq_http_bodies": nsq_http_bodies,
    "rest_bodies": rest_bodies,
    "polled_bodies": polled_bodies,
    "slow_headers": slow_headers,
    "empty_fragments_inside": _inside(empty_fragments, "token", TOKEN),
    "pings_inside": _inside(pings, "token", TOKEN),
    "unfinished_messages_inside": _inside(unfinished_messages, "token", TOKEN),
    "unfinished_frames_inside": _inside(unfinished_frames, "token", TOKEN),
    "nsq_bodies_inside": _inside(nsq_bodies, "auth", _AUTH),
    "sqs_bodies_inside": sqs_bodies_inside,
    "rest_bodies_inside": _inside(rest_bodies, "headers", _BEARER),
    "polled_bodies_inside": _inside(polled_bodies, "headers", _BEARER + "penstock-session: 1\r\n"),
    "unread_answers_inside": unread_answers_inside,
    "unread_pushes_inside": unread_pushes_inside,
    "sqs_unread_answers_inside": sqs_unread_answers_inside,
    "nsq_unread_messages_inside": nsq_unread_messages_inside,
}


if __name__ == "__main__":
    name, ports_given, seconds = sys.argv[1:]
    given = msgspec.json.decode(ports_given, type=Ports)
    asyncio.run(ATTACKS[name](given, time.monotonic() + float(seconds)))  # type: ignore[arg-type]
