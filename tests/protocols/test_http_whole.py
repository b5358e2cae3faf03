"""Requests that come whole are what the parser makes of the same bytes, or are left to it."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from penstock.protocols.http.whole import whole_request
from penstock.server.settings import HttpLimits

LIMITS = HttpLimits()

BOTO3 = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:9324\r\nAccept-Encoding: identity\r\nX-Amz-Target: AmazonSQS.SendMessage\r\n"
    b"Content-Type: application/x-amz-json-1.0\r\nUser-Agent: Boto3/1.40 md/Botocore#1.40\r\n"
    b"X-Amz-Date: 20260101T000000Z\r\nAuthorization: AWS4-HMAC-SHA256 Credential=A/B, Signature=0\r\n"
    b'amz-sdk-invocation-id: 01234567\r\namz-sdk-request: attempt=1\r\nContent-Length: 7\r\n\r\n{"a":1}'
)
CURL = b"GET /ping?x=%20 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"
KEPT = b"POST /pub?topic=t HTTP/1.1\r\nHost:h\r\nConnection: Keep-Alive\r\ncontent-length:\t3 \r\n\r\nabc"
COMMON = (BOTO3, CURL, KEPT)

UNCOMMON = {
    "no end": CURL[:-2],
    "more than one": CURL + CURL,
    "less than said": BOTO3[:-1],
    "more than said": BOTO3 + b"!",
    "1.0": CURL.replace(b"1.1", b"1.0"),
    "a method that is not known": CURL.replace(b"GET", b"MKCOL"),
    "a whole URL": CURL.replace(b"/ping", b"http://localhost/ping"),
    "no host": CURL.replace(b"Host", b"Hosts"),
    "two hosts": CURL.replace(b"Host: localhost", b"Host: localhost\r\nhost: localhost"),
    "a header twice": CURL.replace(b"Accept: */*", b"Accept: a\r\nACCEPT: b"),
    "chunks": KEPT.replace(b"content-length:\t3 ", b"Transfer-Encoding: chunked"),
    "an expectation": BOTO3.replace(b"amz-sdk-request: attempt=1", b"Expect: 100-continue"),
    "an offer": CURL.replace(b"Accept: */*", b"Connection: Upgrade\r\nUpgrade: h2c"),
    "the end of the connection": KEPT.replace(b"Keep-Alive", b"close"),
    "a space before the colon": BOTO3.replace(b"Content-Length:", b"Content-Length :"),
    "no colon": CURL.replace(b"Accept: */*", b"Accept"),
    "no name": CURL.replace(b"Accept: */*", b": a"),
    "a folded line": CURL.replace(b"Accept: */*", b"Accept: a\r\n b"),
    "a line's end alone": CURL.replace(b"Accept: */*", b"Accept: a\nb: c"),
    "a control character": CURL.replace(b"curl/8", b"curl\x008"),
    "beyond ASCII": CURL.replace(b"curl/8", b"curl\xe98"),
    "a length that is no number": BOTO3.replace(b"Length: 7", b"Length: +7"),
    "an empty length": KEPT.replace(b"content-length:\t3 ", b"content-length:"),
    "a length without end": BOTO3.replace(b"Length: 7", b"Length: 0000000000007"),
    "a body too large": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (LIMITS.body_bytes_max + 1)
    + bytes(LIMITS.body_bytes_max + 1),
    "a header too large": CURL.replace(b"curl/8", b"c" * LIMITS.header_bytes_max),
}

Seen = tuple[bytes, bytes, dict[str, str], bytes]


class Parsed:
    """What the parser makes of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.target = b""
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = 0
        self.keeps_alive = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_url(self, piece: bytes) -> None:
        self.target += piece

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")))

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete += 1
        self.keeps_alive = self.parser.should_keep_alive()


def check_against_parser(data: bytes) -> bool:
    """Whether it is taken; if so, the parser agrees."""
    request = whole_request(data, LIMITS, "peer", False)
    if request is None:
        return False
    parsed = Parsed(data)
    assert parsed.complete == 1
    assert parsed.keeps_alive
    assert parsed.parser.get_http_version() == "1.1"
    assert parsed.parser.get_method() == request.method.encode()
    assert parsed.target == request.raw_target
    assert len(parsed.headers) == len(request.headers)
    assert dict(parsed.headers) == request.headers
    assert parsed.body == request.body
    return True


@pytest.mark.parametrize("data", COMMON)
def test_common_requests_are_taken(data: bytes) -> None:
    for _ in range(2):  # the second time from memory
        assert check_against_parser(data)


@pytest.mark.parametrize("why", UNCOMMON)
def test_others_are_left_to_the_parser(why: str) -> None:
    assert whole_request(UNCOMMON[why], LIMITS, "peer", False) is None


PIECES = st.sampled_from(
    (
        b"\r\n",
        b"\n",
        b"\r",
        b":",
        b" ",
        b"\t",
        b"\x00",
        b"\x7f",
        b"\xff",
        b"0",
        b"1",
        b",",
        b"Host: a\r\n",
        b"chunked",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"X: y\r\n",
        b"Upgrade: a\r\n",
    )
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 20), PIECES | st.binary(max_size=4)), min_size=1, max_size=4
)


@settings(max_examples=2_000)
@given(st.sampled_from(COMMON), CHANGES)
def test_whatever_is_taken_is_what_the_parser_sees(data: bytes, changes: list[tuple[int, int, bytes]]) -> None:
    for start, length, piece in changes:
        data = data[:start] + piece + data[start + length :]
    event("taken" if check_against_parser(data) else "left to the parser")


TOKENS = st.sampled_from(["x-a", "X-B", "accept", "Content-Type", "x'y", "X_1"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]),
    st.dictionaries(TOKENS, VALUES, max_size=5),
    st.binary(max_size=50),
)
def test_well_formed_requests_are_taken(method: str, headers: dict[str, str], body: bytes) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"{method} /a HTTP/1.1\r\nHost: h\r\n{''.join(lines)}Content-Length: {len(body)}\r\n\r\n"
    assert check_against_parser(head.encode() + body)
