"""The HTTP server, spoken to over real sockets, byte by byte where it matters."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
import struct
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocols.http import BodyLeft, BodyRefused, Exchange, Handler, HttpServer, Request, Terms
from penstock.protocols.http.connection import PUMPED_AT_ONCE
from penstock.server.budget import Budget
from penstock.server.settings import HttpLimits

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PATIENCE_S = 60.0
"""After this long without an answer, the server is said to hang."""
QUICK = HttpLimits(header_timeout_s=0.08, body_timeout_s=0.08, idle_timeout_s=0.08)


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class Server:
    """A server under test, and the requests that its handler saw."""

    def __init__(self, http: HttpServer, port: int) -> None:
        self.http = http
        self.port = port

    async def connect(self) -> Client:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def talk(self, sent: bytes, *, half_close: bool = False) -> bytes:
        """Send, and read until the server closes."""
        reader, writer = await self.connect()
        writer.write(sent)
        if half_close:
            writer.write_eof()
        received = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        return received


@asynccontextmanager
async def serving(
    handler: Handler | None = None, limits: HttpLimits | None = None, **options: Any
) -> AsyncIterator[Server]:
    http = HttpServer(handler or echo, limits, **options)
    server = Server(http, await http.start("127.0.0.1", 0))
    try:
        yield server
    finally:
        await http.drain(0)


def echo(exchange: Exchange) -> None:
    """Answers with what it was asked."""
    request = exchange.request
    lines = [request.method, request.path, request.query, *(f"{k}={v}" for k, v in request.headers.items())]
    exchange.respond(200, [("x-lines", str(len(lines)))], "\n".join(lines).encode() + b"\n\n" + request.body)


class Holding:
    """A handler that answers nothing by itself."""

    def __init__(self, *, waits: bool = False) -> None:
        self.exchanges: list[Exchange] = []
        self.abandoned = 0
        self.arrived = asyncio.Event()
        self._waits = waits

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        self.arrived.set()
        if self._waits:
            exchange.on_abandoned = self._count

    def _count(self) -> None:
        self.abandoned += 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).decode()
    status_line, *lines = head[:-4].split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(status_line.split()[1]), headers, body


def responses_in(received: bytes) -> list[tuple[int, bytes]]:
    """Every response of a closed connection, each complete; nothing is left over."""
    found = []
    while received:
        head, separator, rest = received.partition(b"\r\n\r\n")
        assert separator, f"a torn response: {received!r}"
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        assert status, f"not a response: {head!r}"
        if status[1] == b"100":
            received = rest
            continue
        length = re.search(rb"content-length: (\d+)", head)
        assert length, head
        body, received = rest[: int(length[1])], rest[int(length[1]) :]
        assert len(body) == int(length[1])
        found.append((int(status[1]), body))
    return found


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


# -- requests and responses --------------------------------------------------------------------------------------------


def test_a_request_arrives_whole_and_its_response_is_framed() -> None:
    async def main() -> None:
        async with serving() as server:
            reader, writer = await server.connect()
            writer.write(
                b"POST /a%20b?c=%20 HTTP/1.1\r\nHost: h\r\nX-One: 1\r\nx-one: 2\r\nContent-Length: 5\r\n\r\nhello"
            )
            status, headers, body = await read_response(reader)
            assert status == 200
            assert body.decode() == "POST\n/a b\nc=%20\nhost=h\nx-one=1, 2\ncontent-length=5\n\nhello"
            assert headers["x-lines"] == "6"
            assert re.fullmatch(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", headers["date"])
            writer.close()

    run(main())


@pytest.mark.parametrize("value", [b"", b"x", b"host:80"])
def test_a_second_host_is_refused_even_if_it_is_the_same(value: bytes) -> None:
    async def main() -> None:
        async with serving() as server:
            received = await server.talk(b"GET / HTTP/1.1\r\nHost: %s\r\nhost: %s\r\n\r\n" % (value, value))
            ((status, reason),) = responses_in(received)
            assert (status, b"more than one Host" in reason) == (400, True)

    run(main())


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["x-a", "X-A", "x-b"]), st.sampled_from(["", "1", "22"])), max_size=6))
def test_values_of_repeated_headers_are_joined_in_their_order(pairs: list[tuple[str, str]]) -> None:
    expected: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        expected[key] = f"{expected[key]}, {value}" if key in expected else value
    seen: list[dict[str, str]] = []

    def handler(exchange: Exchange) -> None:
        seen.append({name: value for name, value in exchange.request.headers.items() if name.startswith("x-")})
        echo(exchange)

    async def main() -> None:
        async with serving(handler) as server:
            lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
            await server.talk(f"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode())

    run(main())
    assert seen == [expected]


def test_requests_of_one_connection_have_one_client_and_others_have_another() -> None:
    clients: list[int] = []

    def handler(exchange: Exchange) -> None:
        clients.append(exchange.client)
        echo(exchange)

    async def main() -> None:
        async with serving(handler) as server:
            connections = [await server.connect() for _ in range(2)]
            for _ in range(2):
                for reader, writer in connections:
                    writer.write(GET)
                    await read_response(reader)
            for _, writer in connections:
                writer.close()

    run(main())
    first, second, *again = clients
    assert first != second
    assert again == [first, second]


def test_a_request_may_come_in_pieces_of_one_byte() -> None:
    async def main() -> None:
        async with serving() as server:
            reader, writer = await server.connect()
            writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in b"POST /long/target?q=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            status, _, body = await read_response(reader)
            assert status == 200
            assert body.startswith(b"POST\n/long/target\nq=1\n")
            assert body.endswith(b"\n\nabc")
            writer.close()

    run(main())


def test_chunked_bodies_are_joined_and_trailers_passed_over() -> None:
    async def main() -> None:
        async with serving() as server:
            received = await server.talk(
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
                b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
            )
            [(status, body)] = responses_in(received)
            assert status == 200
            assert body.endswith(b"\n\nabcde")
            assert b"x-trailer" not in body

    run(main())


def test_pipelined_requests_are_answered_in_order_even_when_handled_late() -> None:
    async def main() -> None:
        handler = Holding()
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(20)))
            for n in range(20):
                await until(lambda n=n: len(handler.exchanges) == n + 1)  # type: ignore[misc]
                await asyncio.sleep(0)
                assert len(handler.exchanges) == n + 1, "one at a time"
                handler.exchanges[n].respond(200, (), handler.exchanges[n].request.path.encode())
                assert (await read_response(reader))[2] == b"/%d" % n
            writer.close()

    run(main())


def test_one_who_pipelines_without_end_is_not_read_from_but_gets_every_answer() -> None:
    async def main() -> None:
        handler = Holding()
        count = 10_000
        async with serving(handler, HttpLimits(pipelined_max=4)) as server:
            reader, writer = await server.connect()
            writer.write(GET * count + LAST)
            await handler.arrived.wait()
            await asyncio.sleep(0.05)
            [connection] = server.http._connections
            held = len(connection._waiting)
            assert held < count / 2, "the rest stays with the client"
            server.http.handler = lambda exchange: (exchange.respond(200, (), b""), None)[1]
            handler.exchanges[0].respond(200, (), b"")
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert len(responses_in(received)) == count + 1
            writer.close()

    run(main())


def test_thousands_of_requests_in_one_read_leave_their_turn_to_others_and_keep_their_order() -> None:
    async def main() -> None:
        turn, turns = 0, []

        async def others() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def handler(exchange: Exchange) -> None:
            turns.append(turn)
            exchange.respond(200, (), exchange.request.path.encode())

        async with serving(handler) as server:
            counting = asyncio.create_task(others())
            sent = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(5_000))
            received = await server.talk(sent, half_close=True)
            counting.cancel()
        assert [body for _, body in responses_in(received)] == [b"/%d" % n for n in range(5_000)]
        assert max(Counter(turns).values()) <= 2 * PUMPED_AT_ONCE, "one turn's work, or two reads in one turn"

    run(main())


def test_who_pipelines_and_does_not_read_is_not_answered_without_end() -> None:
    async def main() -> None:
        async with serving(lambda exchange: (exchange.respond(200, (), b"x" * 60_000), None)[1]) as server:
            reader, writer = await server.connect()
            writer.write(GET * 500 + LAST)
            await until(lambda: server.http.counters.requests > 0)
            await asyncio.sleep(0.1)
            assert server.http.counters.requests < 400
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert received.count(b"HTTP/1.1 200 ") == 501
            writer.close()

    run(main())


def test_what_is_cut_off_behind_pipelined_requests_is_refused_after_their_answers() -> None:
    async def main() -> None:
        async with serving() as server:
            received = await server.talk(GET * 300 + b"GET /half", half_close=True)
        assert [status for status, _ in responses_in(received)] == [200] * 300 + [408]

    run(main())


def test_connections_live_and_end_as_the_client_asks() -> None:
    async def main() -> None:
        async with serving() as server:
            assert len(responses_in(await server.talk(GET * 3 + LAST))) == 4
            old = await server.talk(b"GET / HTTP/1.0\r\n\r\n")
            assert b"connection: close" in old
            kept = await server.talk(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + LAST)
            assert [status for status, _ in responses_in(kept)] == [200, 200]
            assert b"connection: keep-alive" in kept

    run(main())


def test_head_gets_no_body() -> None:
    async def main() -> None:
        async with serving() as server:
            received = await server.talk(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert received.endswith(b"\r\n\r\n")
            assert re.search(rb"content-length: [1-9]", received)

    run(main())


def test_a_client_that_waits_for_leave_to_send_gets_it() -> None:
    async def main() -> None:
        async with serving() as server:
            reader, writer = await server.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"ok")
            assert (await read_response(reader))[2].endswith(b"\n\nok")
            writer.close()

    run(main())


@pytest.mark.parametrize("body", [b"", b"hello"])
def test_an_offer_to_speak_another_protocol_is_passed_over(body: bytes) -> None:
    async def main() -> None:
        async with serving() as server:
            offer = b"POST /p HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            received = await server.talk(offer + b"Content-Length: %d\r\n\r\n" % len(body) + body + LAST)
            first, last = responses_in(received)
            assert first[0] == last[0] == 200
            assert first[1].startswith(b"POST\n/p\n")
            assert first[1].endswith(b"\n\n" + body)

    run(main())


def test_any_number_of_such_offers_may_come_at_once() -> None:
    async def main() -> None:
        async with serving() as server:
            offer = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok"
            received = await server.talk(2_000 * offer + LAST)
            assert [status for status, _ in responses_in(received)] == 2_001 * [200]

    run(main())


def test_a_large_response_reaches_a_slow_reader_whole() -> None:
    async def main() -> None:
        content = random.Random(1).randbytes(5_000_000)
        async with serving(lambda exchange: (exchange.respond(200, (), content), None)[1]) as server:
            reader, writer = await server.connect()
            writer.write(GET + LAST)
            await asyncio.sleep(0.05)
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert [body for _, body in responses_in(received)] == [content, content]
            writer.close()

    run(main())


def test_a_handler_that_fails_is_a_500_and_the_connection_goes_on() -> None:
    def handler(exchange: Exchange) -> None:
        if exchange.request.path == "/a":
            raise RuntimeError("a bug")
        exchange.respond(200, (), b"fine")

    async def main() -> None:
        async with serving(handler) as server:
            received = responses_in(await server.talk(GET + LAST))
            assert [status for status, _ in received] == [500, 200]
            assert b"a bug" not in received[0][1]

    run(main())


def test_a_response_header_cannot_hold_a_second_one() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, [("x-name", "a\r\nset-cookie: b")], b"")

    async def main() -> None:
        async with serving(handler) as server:
            received = await server.talk(LAST)
            assert [status for status, _ in responses_in(received)] == [200]
            assert b"\r\nx-name: a set-cookie: b\r\n" in received

    run(main())


def test_an_observer_hears_of_every_response() -> None:
    async def main() -> None:
        heard: list[tuple[str, int]] = []
        async with serving(observer=lambda exchange, status: heard.append((exchange.request.path, status))) as server:
            await server.talk(GET + LAST)
        assert heard == [("/a", 200), ("/last", 200)]

    run(main())


def test_targets_are_split_as_servers_and_proxies_see_them() -> None:
    assert Request("GET", b"http://host:1/a%2Fb?c", {}, b"").path == "/a/b"
    assert Request("GET", b"/caf%C3%A9?caf%C3%A9", {}, b"").query == "caf%C3%A9"
    assert Request("OPTIONS", b"*", {}, b"").path == "*"


# -- hanging up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_hanging_up_on_a_request_that_waits_is_noticed_once(how: str) -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            await handler.arrived.wait()
            if how == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if how == "half":
                writer.write_eof()
            else:
                writer.close()
            await until(lambda: handler.abandoned == 1)
            assert handler.exchanges[0].is_abandoned
            assert handler.exchanges[0].respond(200, (), b"late") is False
            if how == "half":
                [(status, reason)] = responses_in(await reader.read())
                assert status == 400
                assert b"hung up" in reason
            await until(lambda: server.http.connections_open == 0)
            assert handler.abandoned == 1
            writer.close()

    run(main())


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_response_notices_a_client_that_hung_up_in_the_same_turn_of_the_loop(how: str) -> None:
    """The handler keeps the loop until the client has left: the loop cannot know of it yet."""
    responded: list[bool] = []

    async def main() -> None:
        def handler(exchange: Exchange) -> None:
            exchange.on_abandoned = lambda: pytest.fail("respond has told already")
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "half":
                client.shutdown(socket.SHUT_WR)
            else:
                client.close()
            responded.append(exchange.respond(200, (), b"late"))

        async with serving(handler) as server:
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(GET)
            await until(lambda: bool(responded) and server.http.connections_open == 0)
            assert responded == [False]
            assert server.http.counters.abandoned == 1
            if how == "half":
                with client:
                    [(status, reason)] = responses_in(client.recv(1_000))
                assert status == 400
                assert b"hung up" in reason

    run(main())


@pytest.mark.parametrize("requests", [1, 50])
@pytest.mark.parametrize("how", ["close", "half"])
def test_a_client_that_hung_up_before_its_request_began_to_wait_leaves_no_connection_open(
    how: str, requests: int
) -> None:
    """The loop has heard of the end already, and does not tell again; or it does not read any more, and never hears."""

    async def main() -> None:
        handler = Holding()
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET * requests)
            await handler.arrived.wait()
            if how == "half":
                writer.write_eof()
            else:
                writer.close()
            await asyncio.sleep(0.05)
            [exchange] = handler.exchanges
            exchange.on_abandoned = lambda: pytest.fail("it asks, and need not be told")
            assert exchange.has_hung_up()
            if how == "half":
                [(status, reason)] = responses_in(await asyncio.wait_for(reader.read(), PATIENCE_S))
                assert status == 400
                assert b"hung up" in reason
            await until(lambda: server.http.connections_open == 0)
            assert server.http.counters.abandoned == 1
            writer.close()

    run(main())


def test_a_client_that_stops_sending_is_answered_if_its_request_does_not_wait() -> None:
    async def main() -> None:
        handler = Holding()
        async with serving(handler) as server:
            talking = asyncio.create_task(server.talk(GET, half_close=True))
            await handler.arrived.wait()
            await asyncio.sleep(0.02)
            assert handler.exchanges[0].respond(200, (), b"still here") is True
            assert responses_in(await talking) == [(200, b"still here")]

    run(main())


def test_an_answered_request_is_not_abandoned_afterwards() -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            await handler.arrived.wait()
            handler.exchanges[0].respond(200, (), b"")
            await read_response(reader)
            writer.close()
            await until(lambda: server.http.connections_open == 0)
            assert handler.abandoned == 0

    run(main())


# -- limits ------------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, bytes, int]] = [
    ("nonsense", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, 400),
    ("a method that is none", b"FETCH / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    ("a newer HTTP", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("no host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    ("a header without a colon", b"GET / HTTP/1.1\r\nHost: x\r\nnonsense\r\n\r\n", 400),
    ("two lengths", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    (
        "length and chunks",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("a length that is none", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n", 400),
    ("a chunk that is none", b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    ("a proxy's request", b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ("a long body", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", 413),
    ("an endless length", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 19 + b"\r\n\r\n", 413),
    (
        "long chunks",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"200\r\n"
        + b"a" * 512
        + b"\r\n" * 1
        + b"200\r\n"
        + b"a" * 512
        + b"\r\n",
        413,
    ),
    ("a long header", b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 1001 + b"\r\n\r\n", 431),
    ("a long target", b"GET /" + b"a" * 1001 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ("a header without an end", b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: 1\r\n" * 200, 431),
    ("another expectation", b"POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n", 417),
]


@pytest.mark.parametrize(("sent", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_who_is_refused_hears_why(sent: bytes, status: int) -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(header_bytes_max=1_000, body_bytes_max=1_000)) as server:
            reader, writer = await server.connect()
            writer.write(sent)
            got, headers, reason = await read_response(reader)
            assert got == status
            assert headers["connection"] == "close"
            assert reason.strip()
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            assert server.http.counters.rejections == {status: 1}
            assert server.http.counters.requests == 0
            writer.close()

    run(main())


@pytest.mark.parametrize("start", [b"X: ", b"X: y\r\n" * 10_000])
def test_a_trailer_without_end_is_refused(start: bytes) -> None:
    async def main() -> None:
        async with serving() as server:
            reader, writer = await server.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
            for _ in range(4):
                await asyncio.sleep(0.01)
                writer.write(start + b"y" * 20_000)
            status, _, reason = await read_response(reader)
            assert (status, reason) == (431, b"the trailer is larger than 32768 bytes\n")
            writer.close()

    run(main())


def test_a_body_that_has_to_be_read_to_see_whose_it_is_takes_no_room_of_those_who_are_known() -> None:
    head, piece = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n", b"a" * 250_000

    def check_header(exchange: Exchange) -> None:
        exchange.is_known = False

    def handler(exchange: Exchange) -> None:
        exchange.is_known = exchange.request.path == "/known"
        exchange.respond(200, (), b"")

    async def main() -> None:
        budget = Budget(64 * 1024 * 1024)
        async with serving(handler, check_header=check_header, budget=budget) as server:
            reader, writer = await server.connect()
            for path, is_known in ((b"unknown", False), (b"known", False), (b"any", True)):
                writer.write(head % path + piece)
                claimed = budget if is_known else budget.unauthenticated
                await until(lambda claimed=claimed: claimed.held_bytes == 500_000)  # type: ignore[misc]
                assert budget.held_bytes + budget.unauthenticated.held_bytes == 500_000
                writer.write(piece)
                assert (await read_response(reader))[0] == 200
                assert budget.held_bytes + budget.unauthenticated.held_bytes == 0
            writer.close()

    run(main())


@pytest.mark.parametrize("wanted", [b"Content-Length: 500000", b"Transfer-Encoding: chunked"])
def test_a_body_that_comes_too_slowly_is_refused_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, wanted: bytes
) -> None:
    monkeypatch.setattr("penstock.server.budget.PACE_S", 0.1)

    async def main() -> None:
        budget = Budget(64 * 1024 * 1024)
        async with serving(budget=budget) as server:
            reader, writer = await server.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + wanted + b"\r\n\r\n3e8\r\n" + b"a" * 1_000)
            await until(lambda: budget.held_bytes > 0)
            status, _, reason = await read_response(reader)
            assert (status, reason) == (408, b"the body came too slowly: fewer than 16384 bytes a second\n")
            assert budget.held_bytes == 0
            writer.close()

    run(main())


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: "])
def test_a_header_without_end_behind_a_request_that_waits_is_not_read_on(start: bytes) -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET + start)
            await handler.arrived.wait()
            [connection] = server.http._connections
            writer.write(b"y" * 30_000_000)
            await until(lambda: connection._is_read_paused)
            await asyncio.sleep(0.05)
            assert connection._fed_bytes < 2_000_000
            assert connection._transport is not None
            assert not connection._transport.is_reading()
            handler.exchanges[0].respond(200, (), b"")
            assert (await read_response(reader))[0] == 200
            assert (await read_response(reader))[0] == 431
            writer.close()

    run(main())


def test_the_limits_are_exact() -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(body_bytes_max=1_000)) as server:
            for size, status in ((1_000, 200), (1_001, 413)):
                head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size
                received = await server.talk(head + b"a" * size, half_close=True)
                assert [found for found, _ in responses_in(received)] == [status]

    run(main())


def test_headers_that_nobody_reads_are_checked_and_counted_and_not_kept() -> None:
    async def main() -> None:
        unread = frozenset({"user-agent"})
        async with serving(limits=HttpLimits(header_bytes_max=200), unread=unread) as server:
            head = b"GET / HTTP/1.1\r\nHost: x\r\nUSER-agent: %s\r\nX-A: b\r\nConnection: close\r\n\r\n"
            for _ in range(2):
                [(status, body)] = responses_in(await server.talk(head % b"somebody"))
                assert status == 200
                assert b"x-a=b" in body
                assert b"somebody" not in body
            assert responses_in(await server.talk(head % (b"s" * 200)))[0][0] == 431
            assert responses_in(await server.talk(head % b"\x01"))[0][0] == 400

    run(main())


def test_spaces_around_a_value_are_no_part_of_it() -> None:
    async def main() -> None:
        async with serving() as server:
            head = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: \t b c \t\r\nConnection: close\r\n\r\n"
            [(status, body)] = responses_in(await server.talk(head))
            assert status == 200
            assert b"\nx-a=b c\n" in body

    run(main())


def test_a_large_body_in_the_same_read_is_no_large_header() -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(header_bytes_max=200)) as server:
            head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n"
            assert responses_in(await server.talk(head + b"a" * 3_000))[0][0] == 200

    run(main())


def test_the_reason_reaches_a_client_that_goes_on_sending() -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(body_bytes_max=1_000)) as server:
            reader, writer = await server.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n")
            for _ in range(200):
                writer.write(b"a" * 100_000)
                await writer.drain()
            assert (await read_response(reader))[0] == 413
            writer.close()

    run(main())


def test_what_came_before_nonsense_is_answered_first() -> None:
    async def main() -> None:
        handler = Holding()
        async with serving(handler) as server:
            talking = asyncio.create_task(server.talk(GET + b"nonsense\r\n\r\n"))
            await handler.arrived.wait()
            await asyncio.sleep(0.02)
            handler.exchanges[0].respond(200, (), b"first")
            assert [status for status, _ in responses_in(await talking)] == [200, 400]

    run(main())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HT", b"the header took longer"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab", b"the body took longer"),
    ],
)
def test_slow_requests_time_out_with_a_reason(sent: bytes, words: bytes) -> None:
    async def main() -> None:
        async with serving(limits=QUICK) as server:
            [(status, reason)] = responses_in(await server.talk(sent))
            assert status == 408
            assert words in reason

    run(main())


def test_a_client_that_drips_bytes_gains_no_time() -> None:
    async def main() -> None:
        async with serving(limits=QUICK) as server:
            reader, writer = await server.connect()

            async def drip() -> None:
                for byte in GET * 100:
                    writer.write(bytes([byte]) if byte != 13 else b"x")
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert (await read_response(reader))[0] in (400, 408)
            dripping.cancel()
            writer.close()

    run(main())


def test_idle_connections_are_closed_and_waiting_ones_are_not() -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler, QUICK) as server:
            idle_reader, idle_writer = await server.connect()
            reader, writer = await server.connect()
            writer.write(GET)
            assert await asyncio.wait_for(idle_reader.read(), PATIENCE_S) == b""
            await asyncio.sleep(0.1)
            handler.exchanges[0].respond(200, (), b"patience")
            assert (await read_response(reader))[2] == b"patience"
            idle_writer.close()
            writer.close()

    run(main())


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def main() -> None:
        content = bytes(20_000_000)
        async with serving(lambda exchange: (exchange.respond(200, (), content), None)[1], QUICK) as server:
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(GET * 5)
            await until(lambda: server.http.counters.requests == 1)
            await until(lambda: server.http.connections_open == 0)
            assert server.http.counters.requests == 1, "the next request is not begun"
            sock.close()

    run(main())


def test_a_connection_that_comes_while_the_server_stops_is_told_so() -> None:
    async def main() -> None:
        async with serving() as server:
            server.http.is_draining = True
            [(status, reason)] = responses_in(await server.talk(GET))
            assert (status, b"being stopped" in reason) == (503, True)

    run(main())


def test_one_connection_too_many_is_told_so_and_others_go_on() -> None:
    async def main() -> None:
        async with serving(limits=HttpLimits(connections_max=2)) as server:
            clients = [await server.connect() for _ in range(2)]
            for reader, writer in clients:
                writer.write(GET)
                assert (await read_response(reader))[0] == 200
            [(status, reason)] = responses_in(await server.talk(GET))
            assert status == 503
            assert b"too many connections" in reason
            clients[0][1].close()
            await until(lambda: server.http.connections_open == 1)
            assert responses_in(await server.talk(LAST))[0][0] == 200
            clients[1][1].close()

    run(main())


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_drain_answers_what_is_in_flight_and_closes_the_rest() -> None:
    async def main() -> None:
        handler = Holding()
        http = HttpServer(handler)
        port = await http.start("127.0.0.1", 0)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        half_reader, half_writer = await asyncio.open_connection("127.0.0.1", port)
        half_writer.write(GET[:20])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await handler.arrived.wait()
        draining = asyncio.create_task(http.drain(PATIENCE_S))
        assert await asyncio.wait_for(idle_reader.read(), PATIENCE_S) == b""
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        assert not draining.done()
        handler.exchanges[0].respond(200, (), b"in time")
        status, headers, body = await read_response(reader)
        assert (status, headers["connection"], body) == (200, "close", b"in time")
        half_writer.write(GET[20:])
        await until(lambda: len(handler.exchanges) == 2)
        handler.exchanges[1].respond(200, (), b"this one too")
        assert (await read_response(half_reader))[2] == b"this one too"
        await asyncio.wait_for(draining, PATIENCE_S)
        assert http.connections_open == 0
        for each in (idle_writer, half_writer, writer):
            each.close()

    run(main())


def test_settled_does_not_wait_for_those_who_wait() -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            await handler.arrived.wait()
            server.http.stop_accepting()
            assert await server.http.settled(PATIENCE_S) is True
            handler.exchanges[0].on_abandoned = None
            assert await server.http.settled(0.01) is False
            handler.exchanges[0].respond(200, (), b"empty")
            assert (await read_response(reader))[2] == b"empty"
            writer.close()

    run(main())


def test_who_is_left_after_the_grace_hears_that_the_server_stops() -> None:
    async def main() -> None:
        handler = Holding(waits=True)
        http = HttpServer(handler)
        port = await http.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await handler.arrived.wait()
        draining = asyncio.create_task(http.drain(0.01))
        status, _, reason = await read_response(reader)
        assert status == 503
        assert b"stops" in reason
        writer.close()
        await draining
        assert handler.abandoned == 1

    run(main())


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_requests_over_tls_are_answered_and_known_as_such(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*made, "-days", "1", "-keyout", str(key), "-out", str(certificate), *subject], check=True, capture_output=True
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def handler(exchange: Exchange) -> None:
        exchange.respond(200, (), f"{exchange.request.is_tls} {exchange.request.peer}".encode())

    async def main() -> None:
        http = HttpServer(handler)
        port = await http.start("127.0.0.1", 0, context)
        trusting = ssl.create_default_context(cafile=str(certificate))
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        writer.write(GET)
        assert (await read_response(reader))[2] == b"True 127.0.0.1"
        writer.write(b"nonsense\r\n\r\n")
        assert (await read_response(reader))[0] == 400
        writer.close()
        await http.drain(PATIENCE_S)

    run(main())


# -- many clients ------------------------------------------------------------------------------------------------------


def test_a_thousand_requests_wait_at_once_and_are_all_answered() -> None:
    count = 1_000

    async def main() -> None:
        handler = Holding(waits=True)
        async with serving(handler) as server:
            clients = [await server.connect() for _ in range(count)]
            for _, writer in clients:
                writer.write(GET)
            await until(lambda: len(handler.exchanges) == count)
            for exchange in handler.exchanges:
                exchange.respond(200, (), b"")
            for reader, writer in clients:
                assert (await read_response(reader))[0] == 200
                writer.close()

    run(main())


# -- fuzzing -----------------------------------------------------------------------------------------------------------

SEEDS = [
    GET,
    b"POST /q?a=b HTTP/1.1\r\nHost: localhost:9324\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"X-Amz-Target: AmazonSQS.SendMessage\r\nContent-Length: 20\r\n\r\n" + b'{"MessageBody":"hi"}',
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
    b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
PIECES = [
    b"\r\n",
    b"\r\n\r\n",
    b":",
    b" ",
    b"\0",
    b"0\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"\xff",
    b"HTTP/1.1",
    b"chunked",
]


def mutated(source: random.Random) -> bytes:
    """One to three requests, with some bytes changed, dropped, doubled or put in between."""
    data = bytearray(b"".join(source.choice(SEEDS) for _ in range(source.randint(1, 3))))
    for _ in range(source.randint(1, 6)):
        place = source.randrange(len(data) + 1)
        kind = source.randrange(4)
        if kind == 0 and place < len(data):
            data[place] = source.randrange(256)
        elif kind == 1:
            del data[place : place + source.randint(1, 12)]
        elif kind == 2:
            data[place:place] = source.choice(PIECES)
        else:
            data[place:place] = data[place : place + source.randint(1, 30)]
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_no_bytes_make_the_server_hang_or_close_without_a_word(seed: int) -> None:
    """Every connection ends with complete responses, at least one if anything but blank lines was sent."""
    source = random.Random(seed)
    cases = [mutated(source) for _ in range(150)]

    async def one(server: Server, sent: bytes) -> None:
        reader, writer = await server.connect()
        cut = len(sent) // 2 if seed % 2 else len(sent)
        writer.write(sent[:cut])
        await asyncio.sleep(0)
        writer.write(sent[cut:])
        writer.write_eof()
        try:
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
        except TimeoutError:
            pytest.fail(f"hangs: {sent!r}")
        answers = responses_in(received)
        assert answers or not sent.strip(b"\r\n"), f"closed without a word: {sent!r}"
        assert all(status == 200 or 400 <= status < 500 for status, _ in answers), (sent, answers)
        writer.close()

    async def main() -> None:
        async with serving(limits=HttpLimits(header_timeout_s=1, body_timeout_s=1)) as server:
            for start in range(0, len(cases), 50):
                await asyncio.gather(*(one(server, sent) for sent in cases[start : start + 50]))
            assert responses_in(await server.talk(LAST))[0][0] == 200
            await until(lambda: server.http.connections_open == 0)

    run(main())


# -- bodies and answers in parts, and other protocols ------------------------------------------------------------------


tasks: set[asyncio.Future[Any]] = set()


def begin(work: Coroutine[Any, Any, Any]) -> None:
    """Let it run, and do not forget it."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def in_parts(parts: list[bytes], nbytes: int | None = None) -> Handler:
    """A handler that answers part by part."""

    def handler(exchange: Exchange) -> None:
        begin(exchange.respond_in_parts(200, (("x-a", "b"),), parts, nbytes))

    return handler


def test_an_answer_of_unknown_length_comes_in_chunks_and_the_next_one_behind_it() -> None:
    async def main() -> None:
        async with serving(in_parts([b"one", b"", b"twelve bytes"])) as server:
            received = await server.talk(GET + LAST)
            chunked = b"3\r\none\r\nc\r\ntwelve bytes\r\n0\r\n\r\n"
            assert received.count(chunked) == 2
            assert received.count(b"transfer-encoding: chunked\r\n") == 2
            assert b"content-length" not in received

    run(main())


def test_an_answer_of_known_length_has_no_chunks_and_who_asks_for_its_head_gets_that_alone() -> None:
    async def main() -> None:
        async with serving(in_parts([b"one", b"two"], 6)) as server:
            received = await server.talk(GET.replace(b"GET", b"HEAD") + LAST)
            first, second = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
            assert first.endswith(b"content-length: 6\r\n\r\n")
            assert second.endswith(b"content-length: 6\r\n\r\nonetwo")

    run(main())


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n"])
def test_who_does_not_know_chunks_gets_the_answers_end_by_the_connections(more: bytes) -> None:
    async def main() -> None:
        async with serving(in_parts([b"one", b"two"])) as server:
            received = await server.talk(b"GET / HTTP/1.0\r\n" + more + b"\r\n")
            assert received.endswith(b"\r\n\r\nonetwo")
            assert b"chunked" not in received

    run(main())


def test_parts_are_made_as_fast_as_the_client_reads_and_no_faster() -> None:
    made = 0

    def parts() -> Any:
        nonlocal made
        for _ in range(200):
            made += 1
            yield b"x" * 1_000_000

    def handler(exchange: Exchange) -> None:
        begin(exchange.respond_in_parts(200, (), parts(), 200_000_000))

    async def main() -> None:
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.1)
            assert made < 50
            left = 200_000_000
            while left:
                left -= len(await reader.read(1 << 20))
            assert made == 200
            writer.write(LAST)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200"), "the connection is still good"
            writer.close()

    run(main())


def test_an_answer_that_fails_on_its_way_ends_the_connection_so_that_the_client_sees_it() -> None:
    def parts() -> Any:
        yield b"one"
        raise ValueError("there is a bug")

    failed = asyncio.Event()

    def handler(exchange: Exchange) -> None:
        async def answer() -> None:
            with pytest.raises(ValueError, match="bug"):
                await exchange.respond_in_parts(200, (), parts(), None)
            failed.set()

        begin(answer())

    async def main() -> None:
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            try:
                received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            except ConnectionResetError:
                received = b""
            assert not received.endswith(b"0\r\n\r\n")
            await asyncio.wait_for(failed.wait(), PATIENCE_S)
            writer.close()

    run(main())


def streaming(exchange: Exchange) -> Terms:
    return Terms(3_000_000, is_streamed=True)


class Taking:
    """A handler that takes a body as it comes, when it is let."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.taken = 0
        self.failure: Exception | None = None

    def __call__(self, exchange: Exchange) -> None:
        begin(self._take(exchange))

    async def _take(self, exchange: Exchange) -> None:
        stream = exchange.request.stream
        if stream is None:
            exchange.respond(200, (), b"%d at once" % len(exchange.request.body))
            return
        try:
            await self.go_on.wait()
            while parts := await stream.block():
                self.taken += sum(map(len, parts))
            exchange.respond(200, (), b"%d" % self.taken)
        except (BodyLeft, BodyRefused) as failure:
            self.failure = failure
            exchange.respond(getattr(failure, "status", 499), (), str(failure).encode())


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


def test_a_body_is_taken_as_it_comes_and_not_read_ahead_of_its_handler() -> None:
    async def main() -> None:
        taking = Taking()
        async with serving(taking, check_header=streaming) as server:
            reader, writer = await server.connect()
            writer.write(POST % 3_000_000 + b"x" * 3_000_000)
            await asyncio.sleep(0.1)
            held = server.http.budget.held_bytes
            assert 0 < held <= 2 * 1024 * 1024
            taking.go_on.set()
            assert (await read_response(reader))[::2] == (200, b"3000000")
            assert server.http.budget.held_bytes == 0
            writer.write(POST % 3 + b"abc" + LAST)
            assert (await read_response(reader))[::2] == (200, b"3 at once")
            assert (await read_response(reader))[::2] == (200, b"0 at once")
            writer.close()

    run(main())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (POST % 3_000_001 + b"x" * 10, 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f4240\r\n" + b"x" * 1_000_000, 400),
    ],
)
def test_a_stream_that_is_no_body_is_refused(sent: bytes, status: int) -> None:
    async def main() -> None:
        taking = Taking()
        taking.go_on.set()
        async with serving(taking, check_header=streaming) as server:
            reader, writer = await server.connect()
            writer.write(sent)
            await asyncio.sleep(0.05)
            writer.write(b"\r\nno length\r\n")
            assert (await read_response(reader))[0] == status
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()

    run(main())


def test_a_handler_hears_that_its_client_left_in_the_middle_of_the_body() -> None:
    async def main() -> None:
        taking = Taking()
        taking.go_on.set()
        async with serving(taking, check_header=streaming) as server:
            _, writer = await server.connect()
            writer.write(POST % 2_000_000 + b"x" * 1_000_000)
            await until(lambda: bool(server.http.counters.requests))
            writer.transport.abort()
            await until(lambda: taking.failure is not None)
            await until(lambda: server.http.budget.held_bytes == 0)

    run(main())


def test_an_answer_before_the_bodys_end_is_the_last_one() -> None:
    async def main() -> None:
        def handler(exchange: Exchange) -> None:
            exchange.respond(409, (), b"no")

        async with serving(handler, check_header=streaming) as server:
            reader, writer = await server.connect()
            writer.write(POST % 2_000_000 + b"x" * 1_000_000)
            status, headers, _ = await read_response(reader)
            assert (status, headers["connection"]) == (409, "close")
            writer.write(b"x" * 1_000_000 + GET)
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()

    run(main())


def test_a_large_answer_that_is_not_read_ends_its_connection() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, (), b"x" * 50_000_000)

    async def main() -> None:
        async with serving(handler, QUICK) as server:
            _, writer = await server.connect()
            writer.write(GET)
            await until(lambda: server.http.counters.requests == 1)
            await until(lambda: server.http.connections_open == 0)
            writer.close()

    run(main())


class Echoing(asyncio.Protocol):
    """Another protocol: says back what it hears."""

    def __init__(self, on_lost: Callable[[Any], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        self._transport = transport
        transport.write(b"switched " + data)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)

    def shut_down(self) -> None:
        assert self._transport is not None
        self._transport.write(b"over")
        self._transport.close()

    def leave(self) -> None:
        assert self._transport is not None
        self._transport.abort()


SWITCH = b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\r\n"


def test_a_connection_is_handed_over_in_its_turn_with_what_has_come() -> None:
    held: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        if exchange.request.is_upgrade:
            exchange.upgrade(Echoing)
        else:
            held.append(exchange)

    async def main() -> None:
        http = HttpServer(handler, websockets=frozenset(("/ws",)))
        server = Server(http, await http.start("127.0.0.1", 0))
        reader, writer = await server.connect()
        writer.write(GET + SWITCH + b"first")
        await until(lambda: bool(held))
        writer.write(b" second")
        await asyncio.sleep(0.05)
        held[0].respond(200, (), b"answered")
        assert (await read_response(reader))[2] == b"answered"
        assert await reader.readexactly(21) == b"switched first second"[:21]
        assert http.connections_open == 1
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        await http.drain(1)
        assert await reader.read() == b"over"
        assert http.connections_open == 0
        writer.close()

    run(main())


def test_who_asks_for_a_websocket_where_there_is_none_is_answered_as_if_it_had_not() -> None:
    async def main() -> None:
        async with serving() as server:
            received = await server.talk(SWITCH + LAST)
            assert [status for status, _ in responses_in(received)] == [200, 200]

    run(main())
