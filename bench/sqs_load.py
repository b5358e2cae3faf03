"""Load for an SQS server: connections that each send a request, wait for its response, and send the next.

How it works. What one connection says is a *script*: a generator that yields requests, ready to be sent, and gets the
body of each response. One thread serves all connections by epoll. It does as little as it can for a response: finds
its end, notes how long it took, and sends what the script says next; it shares a small machine with the server that it
measures. The headers are those that botocore sends, a signature included, since real clients make servers read them.

A response that is not 200 ends the run with an error: a server is not measured by how fast it refuses. A server that
says that it closes the connection (moto's, after each response) is connected to again, within the measured time.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Script = Generator[bytes, bytes, None]
"""Yields requests, gets the bodies of their responses."""

BATCH = 10
"""Messages in a batch: the most that SQS allows."""
_VARIETY = 100
"""Requests that are made before the clock starts; a script sends them in turns."""
_READ_BYTES = 256 * 1024
_STALL_S = 30

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECEIPT = re.compile(rb'"ReceiptHandle": ?"([^"]+)"')


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class Server(NamedTuple):
    """A process to be loaded."""

    address: Address
    pid: int

    def cpu_s(self) -> float:
        """The processor time that all its threads have taken so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        user, system = fields[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# -- requests ----------------------------------------------------------------------------------------------------------


def request(address: Address, action: str, parameters: dict[str, Any]) -> bytes:
    """A request in AWS JSON 1.0, as botocore would send it. Nobody checks its signature."""
    body = json.dumps(parameters).encode()
    return outline(address, action) % (len(body), body)


def outline(address: Address, action: str) -> bytes:
    """A request, with places for the length of its body and for the body."""
    signature = "0123456789abcdef" * 4
    return (
        "POST / HTTP/1.1\r\n"
        f"Host: {address.host}:{address.port}\r\n"
        "Accept-Encoding: identity\r\n"
        f"X-Amz-Target: AmazonSQS.{action}\r\n"
        "Content-Type: application/x-amz-json-1.0\r\n"
        "User-Agent: Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux md/arch#x86_64 lang/python#3.11 cfg/retry-mode\r\n"
        "X-Amz-Date: 20260101T000000Z\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/sqs/aws4_request, "
        f"SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature={signature}\r\n"
        "amz-sdk-invocation-id: 01234567-89ab-4cde-8f01-23456789abcd\r\n"
        "amz-sdk-request: attempt=1\r\n"
        "Content-Length: "
    ).encode() + b"%d\r\n\r\n%s"


def text(number: int, size: int) -> str:
    """A message's body, unlike the others.

    >>> text(7, 20)
    '0000000007 penstock '
    """
    return (f"{number:010d} " + "penstock " * size)[:size]


def send_requests(address: Address, queue_url: str, *, body_bytes: int, batch: int) -> list[bytes]:
    """Requests that send: a message each, or a batch."""
    numbers = itertools.count()
    if batch == 1:
        bodies = (text(next(numbers), body_bytes) for _ in range(_VARIETY))
        return [request(address, "SendMessage", {"QueueUrl": queue_url, "MessageBody": body}) for body in bodies]
    return [
        request(
            address,
            "SendMessageBatch",
            {
                "QueueUrl": queue_url,
                "Entries": [{"Id": str(n), "MessageBody": text(next(numbers), body_bytes)} for n in range(batch)],
            },
        )
        for _ in range(_VARIETY)
    ]


# -- scripts -----------------------------------------------------------------------------------------------------------


class Tally:
    """What the scripts of one run saw."""

    def __init__(self) -> None:
        self.sent = 0
        self.deleted = 0


def sending(requests: Sequence[bytes], start: int, batch: int, tally: Tally) -> Script:
    """Send, and nothing else."""
    for one in itertools.cycle([*requests[start:], *requests[:start]]):
        response = yield one
        tally.sent += batch
        check(response)


def working(requests: Sequence[bytes], start: int, batch: int, tally: Tally, address: Address, url: str) -> Script:
    """Send, receive as many, delete those; again and again."""
    receive = request(address, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": batch})
    delete = deletion(address, url) if batch == 1 else batch_deletion(address, url)
    for one in itertools.cycle([*requests[start:], *requests[:start]]):
        response = yield one
        tally.sent += batch
        check(response)
        receipts = _RECEIPT.findall((yield receive))
        if receipts:
            response = yield delete(receipts)
            tally.deleted += len(receipts)
            check(response)


def check(response: bytes) -> None:
    """Raise if a batch failed in part: its status is 200 all the same."""
    if b'"Failed":[{' in response or b'"Failed": [{' in response:
        raise RuntimeError(f"a batch failed: {response[:500]!r}")


Deletion = Callable[[list[bytes]], bytes]


def deletion(address: Address, url: str) -> Deletion:
    """Makes requests that delete one message."""
    frame = outline(address, "DeleteMessage")
    body = b'{"QueueUrl": "%s", "ReceiptHandle": "%%s"}' % url.encode()

    def delete(receipts: list[bytes]) -> bytes:
        content = body % receipts[0]
        return frame % (len(content), content)

    return delete


def batch_deletion(address: Address, url: str) -> Deletion:
    """Makes requests that delete what was received."""
    frame = outline(address, "DeleteMessageBatch")
    start = b'{"QueueUrl": "%s", "Entries": [' % url.encode()
    ids = [b'{"Id": "%d", "ReceiptHandle": "' % number for number in range(BATCH)]

    def delete(receipts: list[bytes]) -> bytes:
        entries = [ids[index] + receipt + b'"}' for index, receipt in enumerate(receipts)]
        content = start + b", ".join(entries) + b"]}"
        return frame % (len(content), content)

    return delete


# -- connections -------------------------------------------------------------------------------------------------------


class Lane:
    """A connection and what it has to say."""

    __slots__ = ("buffer", "is_spent", "request", "script", "socket", "started_s")

    def __init__(self, connected: socket.socket, script: Script) -> None:
        self.socket = connected
        self.script = script
        self.request = next(script)
        self.buffer = b""
        self.is_spent = False
        """The server closes the connection, and said so."""
        self.started_s = 0.0

    def read(self) -> bytes | None:
        """The body of the response, once it is complete."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError(f"the server hung up without a response: {self.buffer[:2_000]!r}")
        buffer = self.buffer + data if self.buffer else data
        end = buffer.find(b"\r\n\r\n")
        length = _CONTENT_LENGTH.search(buffer, 0, end) if end >= 0 else None
        if length is None or len(buffer) < end + 4 + int(length[1]):
            self.buffer = buffer
            return None
        if not buffer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 201 ")):
            raise RuntimeError(f"the server refused {self.request[:2_000]!r}: {buffer[:2_000]!r}")
        self.buffer = b""
        self.is_spent = buffer.find(b"\r\nConnection: close", 0, end) >= 0
        return buffer[end + 4 :]


@dataclass(frozen=True)
class Outcome:
    """What a run gave."""

    rate: float
    """Completed requests a second."""
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    """Processor time that the server took for a request, over all its threads."""
    client_cpu: float
    """The share of a core that the load generator itself took. Near 1, it measured itself."""


class Load:
    """Many connections to one server, each with its script."""

    def __init__(self, server: Server, scripts: Sequence[Script]) -> None:
        self._server = server
        self._poll = select.epoll()
        self._lanes: dict[int, Lane] = {}
        for script in scripts:
            self._watch(Lane(self._connect(), script))

    def run(self, settle_s: float, count_s: float) -> Outcome:
        """Load the server; what comes back in the first `settle_s` seconds is not counted."""
        for lane in list(self._lanes.values()):
            self._send(lane)
        self._serve_until(time.perf_counter() + settle_s)
        started_s, client_s, server_s = time.perf_counter(), time.process_time(), self._server.cpu_s()
        latencies_s = self._serve_until(started_s + count_s, responses_min=1)
        seconds = time.perf_counter() - started_s
        client_s, server_s = time.process_time() - client_s, self._server.cpu_s() - server_s
        self._finish()
        latencies_s.sort()
        return Outcome(
            rate=len(latencies_s) / seconds,
            p50_ms=quantile(latencies_s, 0.5) * 1_000,
            p99_ms=quantile(latencies_s, 0.99) * 1_000,
            server_cpu_us=server_s / len(latencies_s) * 1_000_000,
            client_cpu=client_s / seconds,
        )

    def _serve_until(self, end_s: float, responses_min: int = 0) -> list[float]:
        """Let the scripts go on until then, and until there are some responses. How long each response took."""
        latencies_s: list[float] = []
        lanes, now_s = self._lanes, time.perf_counter
        while now_s() < end_s or len(latencies_s) < responses_min:
            for number in self._readable():
                lane = lanes[number]
                response = lane.read()
                if response is not None:
                    latencies_s.append(now_s() - lane.started_s)
                    lane.request = lane.script.send(response)
                    self._send(lane)
        return latencies_s

    def _finish(self) -> None:
        """Take the responses that are still owed, so that the server rests when the next one is measured."""
        while self._lanes:
            for number in self._readable():
                lane = self._lanes[number]
                if lane.read() is not None:
                    self._unwatch(lane)
                    lane.socket.close()
        self._poll.close()

    def _readable(self) -> list[int]:
        ready = self._poll.poll(_STALL_S)
        if not ready:
            raise RuntimeError(f"the server has not answered for {_STALL_S} s")
        return [number for number, _ in ready]

    def _send(self, lane: Lane) -> None:
        lane.started_s = time.perf_counter()
        if lane.is_spent:
            self._unwatch(lane)
            lane.socket.close()
            lane.socket = self._connect()
            self._watch(lane)
        lane.socket.sendall(lane.request)

    def _watch(self, lane: Lane) -> None:
        self._lanes[lane.socket.fileno()] = lane
        self._poll.register(lane.socket.fileno(), select.EPOLLIN)

    def _unwatch(self, lane: Lane) -> None:
        del self._lanes[lane.socket.fileno()]
        self._poll.unregister(lane.socket.fileno())

    def _connect(self) -> socket.socket:
        connected = socket.create_connection(self._server.address)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the others does not reach.

    >>> quantile([1.0, 2.0, 9.0], 0.5)
    2.0
    """
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
