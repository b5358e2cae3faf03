"""Clients that leave in the middle of whatever they do, on every port: the log has no traceback and no error for it.

A client is a run of bytes, and a way to leave: it closes, resets the connection, or says its last and does not read.
It leaves after some of the bytes, or after all of them with the answer unread or read in part. Somebody who stays is
served all the time.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.protocols.nsq.clients.wire import identify, mpub, pub, sized, sub
from tests.server.serving import Served, served, tls_config

LARGE = 3_000_000
"""An answer of this size does not fit into the sockets of somebody who does not read."""
STEPS = 6
WAYS = ("close", "reset", "half")


def post(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("Host: localhost", *headers, f"Content-Length: {len(body)}"))
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def sqs(action: str, **fields: object) -> bytes:
    body = json.dumps({"QueueUrl": "http://localhost/000000000000/q", **fields}).encode()
    return post("/", body, "Content-Type: application/x-amz-json-1.0", f"X-Amz-Target: AmazonSQS.{action}")


def rest(path: str, body: object, *headers: str) -> bytes:
    return post(path, json.dumps(body).encode(), "Content-Type: application/json", *headers)


def frame(*requests: object) -> bytes:
    """A frame of a websocket's client, with a mask of zeros."""
    payload = msgspec.msgpack.encode(list(requests))
    assert len(payload) < 126
    return bytes([0x82, 0x80 | len(payload), 0, 0, 0, 0]) + payload


UPGRADE = post(
    "/v1/ws",
    b"",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    method="GET",
).replace(b"Content-Length: 0\r\n", b"")
HELLO = frame([0, ["Hello", 1]])
LOOKUP_IDENTITY = json.dumps({"broadcast_address": "n", "tcp_port": 1, "http_port": 2, "version": "1"}).encode()

CLIENTS: list[tuple[str, bytes]] = [
    ("sqs", sqs("SendMessage", MessageBody="tea" * 1_000)),
    ("sqs", sqs("ReceiveMessage", WaitTimeSeconds=20, QueueUrl="http://localhost/000000000000/empty")),
    ("sqs", post("/", b"Action=ListQueues", "Content-Type: application/x-www-form-urlencoded") * 40),
    ("sqs", post("/", b"2\r\nab\r\n", "Transfer-Encoding: chunked").replace(b"Content-Length: 7\r\n", b"")),
    ("http", rest("/v1/queues/q/messages", {"body": "tea" * 1_000})),
    ("http", rest("/v1/queues/empty/receive", {"wait": 20})),
    ("http", post("/v1/queues/large/records?max=100", b"", method="GET")),
    ("http", rest("/v1/bulk/read", {"queue": "large", "start": 0, "end": 100})),
    ("http", post("/v1/bulk/staging/t-1/p-1", bytes(100_000), method="PUT")),
    ("http", post("/v1/bulk/send", bytes(10_000))),
    ("http", rest("/v1/bulk/take", {"queue": "empty", "wait_ms": 20_000})),
    ("http", post("/v1/commands", msgspec.msgpack.encode([[0, ["Hello", 1]]]))),
    ("http", post("/metrics", b"", method="GET")),
    ("http", post("/healthz", b"", method="GET") * 40),
    ("http", UPGRADE),
    ("http", UPGRADE + HELLO + frame([1, ["StartPush", "empty", "main", 10]])),
    ("http", UPGRADE + HELLO + frame([1, ["StartPush", "large", "main", 10]])),
    ("http", UPGRADE + HELLO + bytes([0x82, 0xFE, 0x7F, 0xFF, 0, 0, 0, 0]) + bytes(100)),
    ("nsq", b"  V2" + identify(client_id="c") + pub("q", b"tea" * 1_000) + mpub("q", [b"tea"] * 100)),
    ("nsq", b"  V2" + identify(feature_negotiation=True, deflate=True)),
    ("nsq", b"  V2" + sub("large", "c") + b"RDY 100\n"),
    ("nsq", b"  V2" + sub("empty", "c") + b"RDY 1\n" + b"FIN 0123456789abcdef\n"),
    ("nsq-http", post("/pub?topic=q", b"tea" * 1_000)),
    ("nsq-http", post("/mpub?topic=q", b"tea\n" * 1_000)),
    ("nsq-http", post("/stats?format=json", b"", method="GET") * 40),
]
LOOKUP_CLIENTS: list[tuple[str, bytes]] = [
    ("lookup", b"  V1IDENTIFY\n" + sized(LOOKUP_IDENTITY) + b"REGISTER t c\nPING\n"),
    ("lookup-http", post("/topic/create?topic=t", b"") + post("/lookup?topic=t", b"", method="GET") * 40),
]


def leave(connection: socket.socket, way: str) -> None:
    if way == "half":
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.01)
    elif way == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def come_and_go(server: Served, front_end: str, said: bytes, way: str) -> None:
    cuts = sorted({len(said) * step // STEPS for step in range(1, STEPS)} | {0, 1, len(said) - 1, len(said)})
    for cut in cuts:
        connection = server.connect(front_end)
        connection.sendall(said[:cut])
        leave(connection, way)
    for heard in (1, 20_000):
        connection = server.connect(front_end)
        connection.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            connection.sendall(said)
            connection.recv(heard)
        leave(connection, way)


def complaints(log: str) -> list[str]:
    """What is no plain line of the log, or tells of an error."""
    return [line for line in log.split("\n") if line.startswith("  ") or re.match(r"\S+ (error|critical) ", line)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("leaving"), '[log]\nrequests = "all"\n') as server:
        for name in ("q", "empty", "large"):
            assert server.talk("sqs", sqs("CreateQueue", QueueName=name).decode())[0] == 200
        for _ in range(4):
            assert server.talk("nsq-http", post("/pub?topic=large", bytes(LARGE // 4)).decode("latin-1"))[0] == 200
        yield server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", range(len(CLIENTS)))
def test_a_client_that_leaves_is_no_error(server: Served, client: int, way: str) -> None:
    front_end, said = CLIENTS[client]
    before = len(server.log)
    come_and_go(server, front_end, said, way)
    for stays in ("sqs", "http", "nsq-http"):
        path = {"sqs": "/?Action=ListQueues", "http": "/healthz", "nsq-http": "/ping"}[stays]
        assert server.talk(stays, post(path, b"", method="GET").decode())[0] == 200
    time.sleep(0.3)
    assert complaints(server.log[before:]) == []


@pytest.mark.parametrize("way", WAYS)
def test_nor_is_one_of_a_lookup_service(tmp_path: Path, way: str) -> None:
    with served(tmp_path, "", "--tcp-port", "0", "--http-port", "0", command="lookup") as server:
        for front_end, said in LOOKUP_CLIENTS:
            come_and_go(server, front_end, said, way)
    assert complaints(server.log) == []


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tls")
    with served(directory, tls_config(directory)) as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("front_end", ["sqs", "http", "nsq-http", "nsq"])
def test_nor_is_one_that_breaks_off_its_handshake(tls: Served, front_end: str, way: str) -> None:
    before = len(tls.log)
    hello = client_hello()
    if front_end == "nsq":
        hello = b"  V2" + identify(feature_negotiation=True, tls_v1=True) + hello
    come_and_go(tls, front_end, hello, way)
    come_and_go(tls, front_end, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", way)
    time.sleep(0.3)
    assert complaints(tls.log[before:]) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("front_end", "said"),
    [
        ("sqs", sqs("ReceiveMessage", WaitTimeSeconds=20)),
        ("http", post("/metrics", b"", method="GET")),
        ("http", UPGRADE + HELLO),
        ("nsq-http", post("/stats?format=json", b"", method="GET")),
    ],
)
def test_nor_is_one_that_leaves_without_the_end_that_tls_has(
    tls: Served, front_end: str, said: bytes, way: str
) -> None:
    before = len(tls.log)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for cut in (0, 1, len(said) // 2, len(said)):
        for reads in (False, True):
            connection = tls.connect(front_end)
            wrapped = context.wrap_socket(connection, suppress_ragged_eofs=True)
            wrapped.sendall(said[:cut])
            if reads and cut == len(said):
                wrapped.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    wrapped.recv(10)
            raw = socket.socket(fileno=wrapped.detach())
            leave(raw, way)
    time.sleep(0.3)
    assert complaints(tls.log[before:]) == []
