"""A request in flight: what a handler gets, and answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from penstock.protocols.http.request import Request

_now_s: Final = time.perf_counter
Headers = Sequence[tuple[str, str]]
PLAIN_TEXT: Headers = (("content-type", "text/plain; charset=utf-8"),)


class Answering(Protocol):
    """Where responses go: a connection."""

    def answer(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        """Write the response to the request in flight."""
        ...

    def answer_well(self, exchange: Exchange, lines: str, body: bytes) -> None:
        """As `answer` with 200, for header lines that are ASCII, and known to be as they have to be."""
        ...

    def has_hung_up(self) -> bool:
        """Whether the client is gone, although the loop has not said so yet; the request in flight is given up then."""
        ...


class Exchange:
    """A request in flight, and the way back. The labels are for the log and the metrics: the handler sets them."""

    __slots__ = (
        "_connection",
        "_started",
        "action",
        "is_known",
        "on_abandoned",
        "outcome",
        "principal",
        "queue",
        "request",
        "request_id",
    )

    def __init__(self, connection: Answering, request: Request, started: float) -> None:
        self._connection: Answering | None = connection
        self._started = started
        self.request = request
        self.on_abandoned: Callable[[], None] | None = None
        """Set by a handler that waits; called once if the client hangs up before `respond`.

        `respond` looks again, and returns False for one who has hung up in this turn of the loop."""
        self.is_known: bool | None = None
        """False: the client has still to prove who it is. True: it has, and so have those who ask after it here."""
        self.request_id = ""
        self.principal = ""
        self.action = ""
        self.queue = ""
        self.outcome = ""
        """"ok" or the error's code; by default told from the status."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for the response any more: answered, or the client is gone."""
        return self._connection is None

    @property
    def client(self) -> int:
        """Who asks: the same number for all requests of one connection; nobody else has it at the same time."""
        return id(self._connection)

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Answer, once. False if the client is gone, and the response with it."""
        connection = self._connection
        if connection is None or (self.on_abandoned is not None and connection.has_hung_up()):
            return False
        connection.answer(self, status, headers, body)
        return True

    def respond_well(self, lines: str, body: bytes) -> bool:
        """As `respond` with 200, for a handler that has the header lines at hand: ASCII, each ended by CR LF.

        They go out as they are: nothing that a client said may be in them unchecked.
        """
        connection = self._connection
        if connection is None or (self.on_abandoned is not None and connection.has_hung_up()):
            return False
        connection.answer_well(self, lines, body)
        return True

    def seconds(self) -> float:
        """How long this request is in the handler's hands."""
        return _now_s() - self._started

    def end(self) -> None:
        """Cut the way back. For the connection alone."""
        self._connection = None
        self.on_abandoned = None


Handler = Callable[[Exchange], None]
Observer = Callable[[Exchange, int], None]
"""Told of every response: the exchange and the status."""
