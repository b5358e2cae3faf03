"""A request, and a request in flight: what a handler gets, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from penstock.server.budget import Share

BLOCK_BYTES = 1024 * 1024
"""What is read ahead of the handler, about."""


class BodyLeft(Exception):
    """The client has hung up before its body was there."""


class BodyRefused(Exception):
    """The body is not read on: too large, too slow, or not HTTP. The connection ends after the answer."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


class BodyStream:
    """Filled by the connection, emptied by the handler; the client is not read from while it is full."""

    __slots__ = ("_error", "_nbytes", "_on_taken", "_parts", "_waiter", "is_complete")

    def __init__(self, on_taken: Callable[[], None]) -> None:
        self._on_taken = on_taken
        self._parts: list[bytes] = []
        self._nbytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_complete = False

    @property
    def is_full(self) -> bool:
        """Whether no more should be read for now."""
        return self._nbytes >= BLOCK_BYTES

    async def block(self) -> list[bytes]:
        """The next parts, about `BLOCK_BYTES` together; none at the body's end."""
        while not (self.is_full or self.is_complete or self._error is not None):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        parts, self._parts, self._nbytes = self._parts, [], 0
        self._on_taken()
        return parts

    def feed(self, part: bytes) -> None:
        self._parts.append(part)
        self._nbytes += len(part)
        if self._nbytes >= BLOCK_BYTES:
            self._wake()

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more will come."""
        if not self.is_complete and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Headers = Sequence[tuple[str, str]]
Parts = Iterable[Any] | AsyncGenerator[Any, None]
"""The bytes of an answer; or, if they come over time, a generator of them. It is closed when the client is gone."""
PLAIN_TEXT: Headers = (("content-type", "text/plain; charset=utf-8"),)


class Request:
    """A request, complete unless it has a `stream`."""

    __slots__ = (
        "body",
        "headers",
        "is_old",
        "is_tls",
        "is_upgrade",
        "method",
        "path",
        "peer",
        "query",
        "raw_target",
        "stream",
    )

    def __init__(
        self,
        method: str,
        raw_target: bytes,
        headers: dict[str, str],
        body: bytes,
        peer: str = "",
        is_tls: bool = False,
    ) -> None:
        self.method = method
        self.raw_target = raw_target
        """As the client sent it."""
        self.headers = headers
        """Names in lower case; values of repeated ones joined by ", "."""
        self.body = body
        self.peer = peer
        """The client's address."""
        self.is_tls = is_tls
        self.is_old = False
        """HTTP/1.0, which does not know bodies in chunks. Not told where it makes no difference."""
        self.is_upgrade = False
        """Whether it asks for a websocket, at a path that has one."""
        self.stream: BodyStream | None = None
        """The body, if the header check wanted it as it comes and it did not come at once; `body` is empty then."""
        self.path, self.query = ("/", "") if raw_target == b"/" else split_target(raw_target)
        """`path` is decoded, `query` is not."""

    def __repr__(self) -> str:
        return f"Request({self.method} {self.path}, {len(self.body)} bytes)"


def split_target(target: bytes) -> tuple[str, str]:
    """The decoded path and the raw query of a request's target, which may be a whole URL (to a proxy).

    >>> split_target(b"/orders%20new?x=%20"), split_target(b"http://host:9324?a")
    (('/orders new', 'x=%20'), ('/', 'a'))
    """
    path, query = split_raw_target(target)
    return unquote(path, "utf-8", "replace") if "%" in path else path, query


def split_raw_target(target: bytes) -> tuple[str, str]:
    """As `split_target`, with the path as it was sent.

    >>> split_raw_target(b"/orders%20new?x")
    ('/orders%20new', 'x')
    """
    path, _, query = target.decode("latin-1").partition("?")
    if not path.startswith("/"):
        _, separator, rest = path.partition("://")
        if separator:
            path = "/" + rest.partition("/")[2]
    return path.partition("#")[0], query.partition("#")[0]


class Upgraded(Protocol):
    """What a connection speaks after an upgrade: an asyncio protocol that can be asked to end."""

    def take_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """The connection is this protocol's from now on; so much has come already."""

    def pause_writing(self) -> None:
        """The client does not read."""

    def shut_down(self) -> None:
        """The server stops: say so, and close."""

    def leave(self) -> None:
        """Close at once."""


class Answering(Protocol):
    """Where responses go: a connection."""

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Write the response to the request in flight."""

    def answer_well(self, exchange: Exchange, lines: str, body: bytes) -> None:
        """As `answer` with 200, for header lines that are ASCII, and known to be as they have to be."""

    async def answer_in_parts(
        self, exchange: Exchange, status: int, headers: Headers, parts: Parts, nbytes: int | None
    ) -> bool:
        """As `answer`, part by part, as fast as the client reads."""

    def upgrade(self, exchange: Exchange, make: Callable[[Callable[[Upgraded], None]], Upgraded]) -> None:
        """Hand the connection over."""

    def has_hung_up(self) -> bool:
        """Whether the client is gone, although the loop has not said so yet; the request in flight is given up then."""

    def hand_claim(self, share: Share) -> None:
        """What is held for the body of the request in flight is held by this share from now on."""

    def is_open(self) -> bool:
        """Whether nothing has closed the connection yet."""


class Terms:
    """On which terms a body is read that does not come with its header: up to which size, and whole or as it comes."""

    __slots__ = ("bytes_max", "is_streamed")

    def __init__(self, bytes_max: int, is_streamed: bool = False) -> None:
        self.bytes_max = bytes_max
        self.is_streamed = is_streamed


class Exchange:
    """A request in flight, and the way back. The labels are for the log and the metrics: the handler sets them."""

    __slots__ = (
        "action",
        "client",
        "connection",
        "context",
        "headers",
        "is_known",
        "keeps_alive",
        "on_abandoned",
        "outcome",
        "principal",
        "protocol",
        "queue",
        "request",
        "request_id",
        "scope",
        "started_s",
        "unheard",
    )

    def __init__(self, connection: Answering, request: Request, keeps_alive: bool) -> None:
        self.connection: Answering | None = connection
        """The way back, until it is cut: for the connection alone."""
        self.client = id(connection)
        """Who asks: the same number for all requests of one connection; nobody else has it at the same time."""
        self.started_s = 0.0
        """When the handler got it, by `perf_counter`."""
        self.request = request
        self.keeps_alive = keeps_alive
        """Whether the connection stays open after this."""
        self.on_abandoned: Callable[[], None] | None = None
        """Set by a handler that waits; called once if the client hangs up before `respond`.

        `respond` looks again, and returns False for one who has hung up in this turn of the loop."""
        self.unheard: Observer | None = None
        """Set when the client has hung up: told of the answer that it would have got."""
        self.is_known: bool | None = None
        """False: the client has still to prove who it is. True: it has, and so have those who ask after it here."""
        self.headers: Headers = ()
        """What the response has beside the handler's own headers."""
        self.context: object = None
        """For the header check, to leave something to the handler."""
        self.protocol = ""
        """If it is not the server's own."""
        self.request_id = ""
        self.principal = ""
        self.action = ""
        self.queue = ""
        self.scope: dict[str, str] | None = None
        """What the audit log tells of a change beside these."""
        self.outcome = ""
        """"ok" or the error's code; by default told from the status."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the response any more: answered, or the client is gone."""
        return self.connection is None

    @property
    def is_gone(self) -> bool:
        """As `is_abandoned`; and if the connection is closing, although it has not been said to be over."""
        connection = self.connection
        return connection is None or not connection.is_open()

    def has_hung_up(self) -> bool:
        """As `is_gone`; and if the client has closed its side, which the system is asked. It is given up then."""
        connection = self.connection
        return connection is None or connection.has_hung_up()

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Answer, once. False if the client is gone, and the response with it."""
        connection = self.connection
        if connection is None or (self.on_abandoned is not None and connection.has_hung_up()):
            return self._tell_unheard(status)
        connection.answer(self, status, headers, body)
        return True

    def _tell_unheard(self, status: int) -> bool:
        if self.unheard is not None:
            self.unheard(self, status)
        return False

    def respond_well(self, lines: str, body: bytes) -> bool:
        """As `respond` with 200, for a handler that has the header lines at hand: ASCII, each ended by CR LF.

        They go out as they are: nothing that a client said may be in them unchecked.
        """
        connection = self.connection
        if connection is None or (self.on_abandoned is not None and connection.has_hung_up()):
            return self._tell_unheard(200)
        connection.answer_well(self, lines, body)
        return True

    async def respond_in_parts(self, status: int, headers: Headers, parts: Parts, nbytes: int | None) -> bool:
        """As `respond`, part by part, as fast as the client reads. `nbytes`: of all of them, if that is known."""
        connection = self.connection
        if connection is None or (self.on_abandoned is not None and connection.has_hung_up()):
            return False
        return await connection.answer_in_parts(self, status, headers, parts, nbytes)

    def upgrade(self, make: Callable[[Callable[[Upgraded], None]], Upgraded]) -> None:
        """Instead of an answer: another protocol speaks to the client from now on. It answers the request itself.

        It is made here, and given what it has to call when its connection is lost.
        """
        if self.connection is not None:
            self.connection.upgrade(self, make)

    def hand_claim(self, share: Share) -> None:
        """Let the handler's own share hold what its body takes of the budget: until it lets go, or closes the share."""
        if self.connection is not None:
            self.connection.hand_claim(share)


Handler = Callable[[Exchange], None]
Refusal = Callable[[Exchange], bool]
"""Answers a request that is not to be let in; False if it is."""
HeaderCheck = Callable[[Exchange], Terms | None]
"""Shown a request whose body is still to come: it answers one that no body can make right; or says on which terms the
body is read, with None for the server's own."""
Observer = Callable[[Exchange, int], None]
"""Told of every response: the exchange and the status."""
Rendered = tuple[Headers, bytes]
Render = Callable[[int, str, str], Rendered]
"""What is said to who is refused before a handler sees a request: from a status, a code and a reason."""


def render_plainly(status: int, code: str, reason: str) -> Rendered:
    return PLAIN_TEXT, f"{reason}\n".encode()
