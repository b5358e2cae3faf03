"""What is read in one go is what httptools reads; whatever that would refuse, or take otherwise, is left to it."""

from __future__ import annotations

import asyncio
import itertools
import string
from typing import Any

import httptools
import pytest
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.protocols.http import Exchange, HttpServer
from penstock.protocols.http.whole import read_whole

PATIENCE_S = 60.0
LIMIT = 4_096
BOTO = (
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:9324\r\nAccept-Encoding: identity\r\n"
    b"X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"User-Agent: Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux\r\nX-Amz-Date: 20260101T000000Z\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, "
    b"Signature=0123456789abcdef\r\namz-sdk-request: attempt=1\r\nContent-Length: 16\r\n\r\n"
    b'{"QueueUrl":"q"}'
)


class Reading:
    """What httptools makes of some bytes."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = 0
        self.keeps_alive = False
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, piece: bytes) -> None:
        self.target += piece

    def on_header(self, name: bytes, value: bytes | None) -> None:
        self.headers.append((name.lower().decode("latin-1"), (value or b"").decode("latin-1")))

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete += 1
        self.keeps_alive = self.parser.should_keep_alive()


def check_like_httptools(data: bytes) -> None:
    """If the bytes are taken for one ordinary request, httptools sees that same one, and is ready for the next."""
    found = read_whole(data, LIMIT, LIMIT)
    if found is None:
        return
    target, headers, body = found
    reading = Reading()
    reading.parser.feed_data(data)
    assert reading.complete == 1
    assert reading.parser.get_method() == b"POST"
    assert reading.parser.get_http_version() == "1.1"
    assert (reading.target, dict(reading.headers), reading.body) == (target, headers, body)
    assert len(reading.headers) == len(headers)
    assert reading.keeps_alive
    reading.headers.clear()
    reading.target = b""
    reading.parser.feed_data(BOTO)
    assert reading.complete == 2, "something of the first request was still to come"
    assert reading.target == b"/"


# -- requests put together of good and bad parts -----------------------------------------------------------------------

_TOKEN = string.ascii_letters + string.digits + "!#$%&'*+.^_`|~-"
names = st.one_of(
    st.sampled_from(["Host", "host", "Content-Length", "content-length", "Transfer-Encoding", "Connection", "X-A"]),
    st.sampled_from(["Expect", "Upgrade", "Keep-Alive", "Proxy-Connection", "Cookie", "x-amz-target", "TE"]),
    st.text(_TOKEN, min_size=1, max_size=8),
    st.text(max_size=6),
)
values = st.one_of(
    st.sampled_from(
        ["h", "0", "2", "02", "+2", "2, 2", "²", "0x2", "-1", "chunked", "close", "keep-alive", "Keep-Alive"]
    ),
    st.sampled_from(
        ["", " ", "\t", " x", "x ", "x\t", "a: b", "a\x00b", "a\rb", "a\nb", "a\x7fb", "\x85x", "x\xa0", "é"]
    ),
    st.text(max_size=8),
)
separators = st.sampled_from([": ", ": ", ": ", ": ", ":", " : ", ":  ", ":\t", " "])
ends = st.sampled_from(["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n ", "\r\r\n"])
lines = st.sampled_from(
    [
        "POST / HTTP/1.1",
        "POST / HTTP/1.1",
        "POST /a?b=%20 HTTP/1.1",
        "POST / HTTP/1.0",
        "GET / HTTP/1.1",
        "POST  / HTTP/1.1",
        "POST /\x7f HTTP/1.1",
        "POST /é HTTP/1.1",
        "POST * HTTP/1.1",
        "POST /# HTTP/1.1",
        " POST / HTTP/1.1",
        "post / HTTP/1.1",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Something like a request."""
    body = draw(st.sampled_from([b"", b"hi", b"hi\r\n", b"POST / HTTP/1.1\r\n"]))
    headers = draw(st.lists(st.tuples(names, separators, values, ends), max_size=3))
    if draw(st.booleans()):
        headers.append(("Host", ": ", "h", "\r\n"))
    if draw(st.booleans()):
        headers.append(("Content-Length", ": ", str(len(body)), "\r\n"))
    headers = draw(st.permutations(headers))
    head = draw(lines) + draw(ends) + "".join("".join(header) for header in headers) + draw(ends)
    return head.encode("latin-1", "replace") + body


@given(requests())
@example(BOTO)
@example(BOTO.replace(b"amz-sdk-request: attempt=1", b"Transfer-Encoding: chunked"))
@example(BOTO.replace(b"Content-Length: 16", b"Content-Length: 16\r\nContent-Length: 16"))
@example(BOTO.replace(b"identity\r\n", b"identity\r\n folded\r\n"))
@example(BOTO.replace(b"identity", b"iden\rtity"))
def test_what_is_taken_in_one_go_is_what_httptools_reads(data: bytes) -> None:
    check_like_httptools(data)


@given(st.data())
def test_changed_requests_are_taken_as_httptools_reads_them_or_not_at_all(data: st.DataObject) -> None:
    changed = bytearray(BOTO)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        piece = data.draw(st.sampled_from([b"\r", b"\n", b"\r\n", b":", b" ", b"\t", b"\0", b"0", b"a", b"\xff", b""]))
        changed[at : at + data.draw(st.integers(0, 2))] = piece
    check_like_httptools(bytes(changed))


@given(
    st.dictionaries(
        st.text(_TOKEN, min_size=1, max_size=12).filter(lambda name: name.lower() not in ODD),
        st.text(string.ascii_letters + string.digits + "/=;,.: -", min_size=1, max_size=20).filter(
            lambda value: value == value.strip()
        ),
        max_size=8,
    ),
    st.binary(max_size=200),
    st.sampled_from([b"/", b"/queue/orders", b"/pub?topic=a&defer=1"]),
)
def test_ordinary_requests_are_taken(headers: dict[str, str], body: bytes, target: bytes) -> None:
    by_name = {name.lower(): value for name, value in headers.items()}
    written = {"host": "h", **by_name, "content-length": str(len(body))}
    head = "".join(f"{name.title()}: {value}\r\n" for name, value in written.items()).encode()
    data = b"POST " + target + b" HTTP/1.1\r\n" + head + b"\r\n" + body
    assert read_whole(data, LIMIT, LIMIT) == (target, written, body)
    check_like_httptools(data)


ODD = {
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
} | {
    "transfer-encoding",
    "upgrade",
    "host",
}


@pytest.mark.parametrize("byte", [*range(32), 127])
def test_a_control_character_anywhere_is_left_to_httptools(byte: int) -> None:
    for place in (b"identity", b"SendMessage", b"HTTP/1.1\r\nHost"):
        data = BOTO.replace(place, place[:2] + bytes([byte]) + place[2:])
        assert byte == 9 or read_whole(data, LIMIT, LIMIT) is None
        check_like_httptools(data)


@pytest.mark.parametrize("name", ["Expect", "Transfer-Encoding", "Upgrade", "Proxy-Connection", "Trailer"])
def test_headers_that_change_the_conversation_are_left_to_httptools(name: str) -> None:
    assert read_whole(BOTO.replace(b"Accept-Encoding", name.encode()), LIMIT, LIMIT) is None
    assert read_whole(BOTO.replace(b"Accept-Encoding", name.lower().encode()), LIMIT, LIMIT) is None


def test_who_closes_says_so_to_httptools() -> None:
    kept, closed = (
        BOTO.replace(b"Accept-Encoding: identity", b"Connection: " + each) for each in (b"Keep-Alive", b"close")
    )
    assert read_whole(kept, LIMIT, LIMIT) is not None
    assert read_whole(closed, LIMIT, LIMIT) is None


def test_what_is_too_large_is_left_to_who_says_so() -> None:
    head_bytes = BOTO.index(b"\r\n\r\n") + 4
    assert read_whole(BOTO, head_bytes, 16) is not None
    assert read_whole(BOTO, head_bytes - 1, 16) is None
    assert read_whole(BOTO, head_bytes, 15) is None


@given(st.lists(st.integers(1, len(BOTO) * 3), max_size=6))
def test_requests_in_any_pieces_are_all_answered_in_order(cuts: list[int]) -> None:
    """Whole ones, pieces, and several at once on one connection: the two ways of reading take turns."""
    sent = b"".join(BOTO.replace(b"attempt=1", b"attempt=%d" % number) for number in range(1, 5))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(_seen(sent, sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})))
    assert seen == ["attempt=1", "attempt=2", "attempt=3", "attempt=4"]


async def _seen(sent: bytes, cuts: list[int]) -> list[str]:
    seen: list[str] = []

    def handle(exchange: Exchange) -> None:
        seen.append(exchange.request.headers["amz-sdk-request"])
        exchange.respond(200, (), exchange.request.body)

    server = HttpServer(handle)
    server.start_clock()
    connection: Any = server.make_connection()
    connection.connection_made(_Nowhere())
    for low, high in itertools.pairwise(cuts):
        connection.data_received(sent[low:high])
    connection.connection_lost(None)
    await server.drain(0)
    return seen


class _Nowhere(asyncio.Transport):
    """Takes what is written."""

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None: ...
