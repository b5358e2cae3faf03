"""Attacks on a real server: it keeps to its memory, gives it back, and answers others meanwhile.

The limits are generous, because machines that run tests are busy. `python -m tests.attacks.soak` prints the figures.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from penstock.wire.frames import masked_frame
from penstock.wire.requests import VERSION, Hello, encode_requests
from tests.attacks.attacks import ATTACKS, CONTINUATION, FRAGMENT, fragment
from tests.attacks.soak import MEMORY_BYTES_MORE, RETURN_SECONDS
from tests.attacks.target import ACCESS_KEY, BUDGET_BYTES, MIB, QUEUE, TOKEN, Target, Watch, attack, target

ATTACK_SECONDS = 2.0
HEALTH_SECONDS_MAX = 5.0
LATE_SECONDS = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("attacked")) as made:
        made.fill()
        yield made


@pytest.fixture(scope="module")
def rest_bytes(server: Target) -> int:
    """What the server has before anybody attacks it."""
    server.health_seconds()
    return server.memory_bytes()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_costs_others_neither_memory_nor_much_time(name: str, server: Target, rest_bytes: int) -> None:
    server.forget_peak()
    with attack(name, server, ATTACK_SECONDS) as attacker:
        watch = Watch(server)
        attacker.wait()
        watch.stop()
    assert attacker.returncode == 0
    assert max(watch.seconds) < HEALTH_SECONDS_MAX
    assert server.peak_bytes() < rest_bytes + BUDGET_BYTES + MEMORY_BYTES_MORE
    deadline_s = time.monotonic() + RETURN_SECONDS
    while server.memory_bytes() > rest_bytes + MEMORY_BYTES_MORE // 2:
        assert time.monotonic() < deadline_s, f"{server.memory_bytes() / MIB:.0f} MiB have not come back"
        time.sleep(0.1)


def exchanged(port: int, sent: bytes, until: bytes = b"\r\n\r\n") -> bytes:
    """What the server answers to this, before it gets any more."""
    with socket.create_connection(("127.0.0.1", port), LATE_SECONDS) as connection:
        connection.sendall(sent)
        answer = b""
        while until not in answer and (piece := connection.recv(65_536)):
            answer += piece
    return answer


def head(target: str, size: int, *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "host: localhost", *headers, f"content-length: {size}", "", ""]
    return "\r\n".join(lines).encode()


def signed(access_key: str, age_s: float) -> tuple[str, str, str]:
    """Headers of an SQS request, under a signature that cannot be right."""
    at = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y%m%dT%H%M%SZ")
    text = f"AWS4-HMAC-SHA256 Credential={access_key}/{at[:8]}/us-east-1/sqs/aws4_request"
    text += f", SignedHeaders=host;x-amz-date;x-amz-target, Signature={'0' * 64}"
    return "x-amz-target: AmazonSQS.SendMessage", f"x-amz-date: {at}", f"authorization: {text}"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (("x-amz-target: AmazonSQS.SendMessage",), b"MissingAuthenticationToken"),
        (("x-amz-target: AmazonSQS.SendMessage", "authorization: nonsense"), b"IncompleteSignature"),
        (signed("NOBODY", 0), b"InvalidClientTokenId"),
        (signed(ACCESS_KEY, 3_600), b"SignatureDoesNotMatch"),
        ((), b"MissingAuthenticationToken"),
    ],
)
def test_sqs_refuses_who_is_not_known_before_the_body_is_there(
    server: Target, headers: tuple[str, ...], code: bytes
) -> None:
    answer = exchanged(server.ports.sqs, head("/", MIB, *headers) + b"{", until=code)
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert code in answer
    assert b"connection: close" in answer


def test_sqs_reads_the_body_of_a_known_key_to_see_what_was_signed(server: Target) -> None:
    body = b"{}" + b" " * MIB
    answer = exchanged(server.ports.sqs, head("/", len(body), *signed(ACCESS_KEY, 0)) + body, until=b"DoesNotMatch")
    assert b"SignatureDoesNotMatch" in answer


@pytest.mark.parametrize(("port", "path"), [("nsq_http", "/mpub?topic=orders"), ("http", "/v1/queues/orders/messages")])
def test_http_refuses_who_is_not_known_before_the_body_is_there(server: Target, port: str, path: str) -> None:
    assert exchanged(getattr(server.ports, port), head(path, MIB) + b"x").startswith(b"HTTP/1.1 401")


def test_who_polls_says_hello_in_a_small_body(server: Target) -> None:
    assert exchanged(server.ports.http, head("/v1/commands", MIB) + b"x").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("command", [b"PUB topic\n", b"MPUB topic\n", b"DPUB topic 10\n"])
def test_nsq_refuses_to_publish_before_auth_when_the_line_is_there(server: Target, command: bytes) -> None:
    sent = b"  V2" + command + MIB.to_bytes(4, "big")
    assert b"E_AUTH_FIRST AUTH required before" in exchanged(
        server.ports.nsq, sent, until=b"E_AUTH_FIRST AUTH required"
    )


@pytest.mark.parametrize("command", [b"IDENTIFY\n", b"AUTH\n"])
def test_nsq_takes_small_bodies_before_auth(server: Target, command: bytes) -> None:
    answer = exchanged(server.ports.nsq, b"  V2" + command + MIB.to_bytes(4, "big"), until=b"16384")
    assert b"body too big 1048576 > 16384" in answer


def test_nsq_may_be_told_everything_in_one_breath(server: Target) -> None:
    sent = b"  V2AUTH\n" + len(TOKEN).to_bytes(4, "big") + TOKEN.encode() + b"PUB topic\n" + b"\x00\x00\x00\x02ok"
    assert exchanged(server.ports.nsq, sent, until=b"OK").endswith(b"OK")


UPGRADE = (
    b"GET /v1/ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nsec-websocket-version: 13\r\n\r\n"
)


def closed_with(connection: socket.socket) -> int:
    """The code of the frame that ends a websocket."""
    answer = b""
    while piece := connection.recv(65_536):
        answer += piece
    assert answer[:1] == b"\x88", answer[:50]
    return int.from_bytes(answer[2:4], "big")


def websocket(server: Target, token: str | None = None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.ports.http), LATE_SECONDS)
    connection.sendall(UPGRADE)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
    if token is not None:
        connection.sendall(masked_frame(encode_requests([(1, Hello(version=VERSION, token=token))])))
        assert connection.recv(65_536)
    return connection


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (fragment(b"\x82", b"x" * 20_000), 1009),
        (b"\x82\xff" + (60 * MIB).to_bytes(8, "big") + b"\x00" * 4, 1009),
        (fragment(FRAGMENT, b"") + fragment(CONTINUATION, b"") * 100, 1008),
        (fragment(b"\x89", b"?") * 100, 1008),
    ],
)
def test_a_websocket_without_hello_ends_early(server: Target, sent: bytes, code: int) -> None:
    with websocket(server) as connection:
        connection.sendall(sent)
        pongs = sent.startswith(b"\x89")
        if pongs:
            while (piece := connection.recv(65_536)) and b"\x88" not in piece:
                pass
            assert code.to_bytes(2, "big") in piece
        else:
            assert closed_with(connection) == code


def test_a_message_in_too_many_fragments_ends_the_connection(server: Target) -> None:
    with websocket(server, TOKEN) as connection:
        connection.sendall(fragment(FRAGMENT, b"") + fragment(CONTINUATION, b"x") * 5_000)
        assert closed_with(connection) == 1008


def test_small_requests_are_answered_while_large_ones_hold_all_there_is(server: Target) -> None:
    """And a large one waits, and is done when the others are gone."""
    size = 8 * MIB
    bearer = f"authorization: Bearer {TOKEN}"
    opened = []
    for _ in range(BUDGET_BYTES // size):
        connection = socket.create_connection(("127.0.0.1", server.ports.http), LATE_SECONDS)
        connection.sendall(head(f"/v1/queues/{QUEUE}-in/messages", size, bearer) + b"[")
        opened.append(connection)
    body = json.dumps({"body": "small"}).encode()
    json_type = "content-type: application/json"
    small = head("/v1/queues/orders/messages", len(body), bearer, json_type) + body
    large_body = json.dumps({"body": "x" * (MIB * 3 // 4)}).encode()
    large = head("/v1/queues/orders/messages", len(large_body), bearer, json_type) + large_body
    with socket.create_connection(("127.0.0.1", server.ports.http), LATE_SECONDS) as waiting:
        waiting.settimeout(1.0)
        waiting.sendall(large[: len(large) // 2])
        assert exchanged(server.ports.http, small).startswith(b"HTTP/1.1 201")
        with pytest.raises(TimeoutError):
            waiting.sendall(large[len(large) // 2 :])
            waiting.recv(1)
        for connection in opened:
            connection.close()
        waiting.settimeout(LATE_SECONDS)
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 201")


def test_pipelined_requests_are_answered_in_their_order(server: Target) -> None:
    many = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2_000
    with socket.create_connection(("127.0.0.1", server.ports.http), LATE_SECONDS) as connection:
        connection.sendall(many + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200 OK") == 2_001
    assert answer.endswith(b'{"status":"ok"}')
