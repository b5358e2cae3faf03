"""Who may keep room from others, and for how long: seen from outside, on every port."""

from __future__ import annotations

import json
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.core.commands import Browse
from penstock.wire.frames import masked_frame
from penstock.wire.requests import encode_requests
from tests.attacks.attacks import CONTINUATION, FRAGMENT, fragment
from tests.attacks.target import ACCESS_KEY, MIB, SECRET_KEY, SETTINGS, TOKEN, Target, target
from tests.attacks.test_attacks import exchanged, head, signed, websocket
from tests.server.serving import tls_config

LATE_SECONDS = 25.0
BEARER = f"authorization: Bearer {TOKEN}"
KIB = 1024
TIGHT = SETTINGS.replace(f"buffer_bytes_max = {64 * MIB}", f"buffer_bytes_max = {8 * MIB}\nroom_timeout_s = 2")
TIGHT += "\n[websocket]\nheartbeat_s = 3\n"
QUEUE = "stored"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    assert "room_timeout_s" in TIGHT
    with target(tmp_path_factory.mktemp("room"), TIGHT) as made:
        for _ in range(8):
            body = json.dumps({"body": "x" * (240 * KIB)}).encode()
            sent = head(f"/v1/queues/{QUEUE}/messages", len(body), BEARER, "content-type: application/json") + body
            assert exchanged(made.ports.http, sent).startswith(b"HTTP/1.1 201")
        yield made


def signed_request(body: bytes, action: str) -> bytes:
    """An SQS request of somebody who has the secret."""
    headers = {"Host": "localhost", "X-Amz-Target": f"AmazonSQS.{action}"}
    request = AWSRequest("POST", "http://localhost/", headers, body)
    SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "sqs", "us-east-1").add_auth(request)
    return head("/", len(body), *(f"{name}: {value}" for name, value in request.headers.items() if name != "Host"))


def nsq_pub(size: int) -> bytes:
    return b"  V2AUTH\n" + len(TOKEN).to_bytes(4, "big") + TOKEN.encode() + b"PUB topic\n" + size.to_bytes(4, "big")


def connect(port: int, sent: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), LATE_SECONDS)
    connection.sendall(sent)
    return connection


def begun(server: Target, protocol: str, size: int) -> socket.socket:
    """A request that has begun: its length is known, and some of its body is there."""
    ports, some = server.ports, b"[" * KIB
    if protocol == "websocket":
        opened = websocket(server, TOKEN)
        opened.sendall(b"\x82\xff" + size.to_bytes(8, "big") + b"\x00" * 4 + some)
        return opened
    port, sent = {
        "sqs": (ports.sqs, signed_request(b"x" * size, "SendMessage")),
        "rest": (ports.http, head("/v1/queues/in/messages", size, BEARER)),
        "bulk": (ports.http, head("/v1/bulk/staging/token/piece", size, BEARER).replace(b"POST", b"PUT", 1)),
        "nsq": (ports.nsq, nsq_pub(size)),
        "nsq-http": (ports.nsq_http, head("/pub?topic=topic", size, BEARER)),
    }[protocol]
    return connect(port, sent + some)


PROTOCOLS = ("sqs", "rest", "bulk", "nsq", "nsq-http", "websocket")
TOO_SLOW = dict.fromkeys(PROTOCOLS, b"HTTP/1.1 408") | {
    "nsq": b"E_PUB_FAILED",
    "websocket": (1008).to_bytes(2, "big") + b"the body came too slowly: fewer than",
}
BUSY = dict.fromkeys(PROTOCOLS, b"HTTP/1.1 503") | {
    "nsq": b"E_PUB_FAILED",
    "websocket": (1013).to_bytes(2, "big"),
}


def answers(opened: dict[str, socket.socket], dripping: bytes = b"") -> dict[str, bytes]:
    """What each hears until it is over, while it goes on sending a byte a second."""
    heard = dict.fromkeys(opened, b"")
    left = dict(opened)
    deadline_s = time.monotonic() + LATE_SECONDS
    while left and time.monotonic() < deadline_s:
        ready, _, _ = select.select(list(left.values()), [], [], 0.0 if not dripping else 1.0)
        for protocol, connection in list(left.items()):
            try:
                if connection in ready:
                    piece = connection.recv(65_536)
                    heard[protocol] += piece
                    if not piece:
                        del left[protocol]
                elif dripping:
                    connection.sendall(dripping)
            except OSError:
                del left[protocol]
    return heard


@pytest.mark.timeout(120)
def test_a_large_body_of_which_a_byte_a_second_comes_is_given_up_on_every_port(server: Target) -> None:
    with ExitStack() as stack:
        opened = {each: stack.enter_context(begun(server, each, 512 * KIB)) for each in PROTOCOLS}
        fragments = stack.enter_context(websocket(server, TOKEN))
        fragments.sendall(
            fragment(FRAGMENT, b"x" * (300 * KIB))
            + CONTINUATION
            + b"\xff"
            + (100 * KIB).to_bytes(8, "big")
            + b"\x00" * 4
        )
        opened["fragments"] = fragments
        heard = answers(opened, b"x")
    expected = TOO_SLOW | {"fragments": TOO_SLOW["websocket"]}
    assert {each: expected[each] in heard[each] for each in opened} == dict.fromkeys(opened, True), {
        each: said[-150:] for each, said in heard.items()
    }
    assert b"HTTP/1.1 4" in whole(server), "what they held is there again"


def whole(server: Target) -> bytes:
    """The answer to a body that takes nearly all the room that bodies have."""
    size = 5 * MIB
    return exchanged(server.ports.http, head("/v1/queues/in/messages", size, BEARER) + b"[" * size)


@pytest.mark.timeout(120)
def test_who_waits_for_room_is_told_to_try_again_on_every_port(server: Target) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(begun(server, "rest", 3 * MIB))
        opened = {each: stack.enter_context(begun(server, each, 640 * KIB)) for each in PROTOCOLS if each != "sqs"}
        body = msgspec.json.encode({"QueueUrl": f"http://localhost/000000000000/{QUEUE}", "MaxNumberOfMessages": 8})
        receives = signed_request(body, "ReceiveMessage") + body
        opened["receive"] = stack.enter_context(connect(server.ports.sqs, receives))
        opened["browse"] = stack.enter_context(websocket(server, TOKEN))
        opened["browse"].sendall(masked_frame(encode_requests([(2, Browse(queue=QUEUE, limit=8))])))
        heard = {each: until_said(connection) for each, connection in opened.items()}
    expected = BUSY | {"receive": b"ServiceUnavailable", "browse": b"there is no room for the answer"}
    assert {each: expected[each] in heard[each] for each in opened} == dict.fromkeys(opened, True), {
        each: said[-150:] for each, said in heard.items()
    }
    assert b"HTTP/1.1 4" in whole(server)


def until_said(connection: socket.socket) -> bytes:
    """What is said within some time; pings do not count."""
    heard, deadline_s = b"", time.monotonic() + 10.0
    connection.settimeout(0.5)
    while time.monotonic() < deadline_s:
        try:
            piece = connection.recv(65_536)
        except (TimeoutError, ConnectionResetError):
            if len(heard.replace(b"\x89", b"")) > 200:
                break
            continue
        heard += piece
        if not piece:
            break
    return heard


def test_who_knows_only_the_id_of_an_access_key_keeps_no_room_from_others(server: Target) -> None:
    with ExitStack() as stack:
        for _ in range(12):
            wrong = head("/", MIB, *signed(ACCESS_KEY, 0)) + b"x" * KIB
            stack.enter_context(connect(server.ports.sqs, wrong))
        time.sleep(0.2)
        started_s = time.monotonic()
        assert b"HTTP/1.1 4" in whole(server)
        assert time.monotonic() - started_s < 1.5, "nobody was waited for"


def test_a_websocket_is_not_cut_off_while_its_message_comes_or_waits_for_room(server: Target) -> None:
    """It cannot say that it is alive in the middle of a frame."""
    with ExitStack() as stack:
        slow = stack.enter_context(websocket(server, TOKEN))
        size = 400 * KIB
        slow.sendall(b"\x82\xff" + size.to_bytes(8, "big") + b"\x00" * 4)
        for _ in range(16):
            slow.sendall(b"\xc1" * (size // 16))
            time.sleep(0.5)
        slow.settimeout(0.3)
        heard = b""
        with pytest.raises(TimeoutError):
            while piece := slow.recv(65_536):
                heard += piece
        assert b"keepalive" not in heard


@pytest.mark.timeout(120)
def test_a_tls_handshake_has_ten_seconds_on_every_port(tmp_path: Path) -> None:
    with target(tmp_path, SETTINGS.replace("[server]\n", tls_config(tmp_path), 1)) as server, ExitStack() as stack:
        ports = (server.ports.sqs, server.ports.http, server.ports.nsq_http)
        opened = [stack.enter_context(connect(port, b"")) for port in ports]
        started_s = time.monotonic()
        for connection in opened:
            connection.settimeout(LATE_SECONDS)
            assert connection.recv(1) == b""
        assert time.monotonic() - started_s < 20
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for port in ports:
            context.wrap_socket(connect(port, b"")).close()
