"""Connecting to a server: from a URL to a handle."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl

from penstock.client.aio.penstock import AsyncPenstock
from penstock.client.remote.address import ROUTINGS, TRANSPORTS, Address, Options, RoutingName, TransportName, shown
from penstock.client.remote.background import ThreadedCaller
from penstock.client.remote.routed import open_caller
from penstock.client.sync.penstock import Penstock
from penstock.client.times import Seconds, length_ms
from penstock.core.errors import InvalidRequest

_IN_A_HEADER = re.compile(r"([!-~]([ -~]*[!-~])?)?")
"""What a token may be made of: it travels in a header."""
BUSY_POLL_SECONDS_MAX = 0.1
"""Longer, and it is no moment any more, but a processor."""


def connect(
    url: str,
    *,
    token: str | None = None,
    name: str = "",
    transport: TransportName | None = None,
    timeout: Seconds = 60.0,
    connect_timeout: Seconds = 10.0,
    retry_for: Seconds | None = None,
    heartbeat: Seconds = 10.0,
    prefetch: int | Mapping[str, int] = 0,
    routing: RoutingName | None = None,
    tls: ssl.SSLContext | None = None,
) -> Penstock:
    """Connect to a server: `penstock://host:9325`, or `penstocks://host:9325` for TLS. The same API as `open`.

    `token`: a bearer token, or `access_key:secret_key`. `name`: the name of this client in the history of failed
    deliveries. `transport`: "websocket", "long_poll" or "poll"; by default the first of them that works. `timeout`:
    how long a call waits for its answer, reconnecting included. `retry_for`: how long to try to reconnect (None:
    forever). `prefetch`: how many messages to fetch before `receive` asks for them, one number or one for each queue.
    `routing`: "direct" sends commands straight to the node of a cluster that has the queue. By default, the server that
    you connect to forwards them. In the URL: `penstock://host:9325?routing=direct`.
    """
    url, routing = _routing(url, routing)
    options = _options(token, name, transport, timeout, connect_timeout, retry_for, heartbeat, prefetch, routing, tls)
    return Penstock(ThreadedCaller.connect(Address.parse(url), options))


def connect_async(
    url: str,
    *,
    token: str | None = None,
    name: str = "",
    transport: TransportName | None = None,
    timeout: Seconds = 60.0,
    connect_timeout: Seconds = 10.0,
    retry_for: Seconds | None = None,
    heartbeat: Seconds = 10.0,
    prefetch: int | Mapping[str, int] = 0,
    routing: RoutingName | None = None,
    tls: ssl.SSLContext | None = None,
    busy_poll: Seconds = 0.0,
) -> AsyncConnecting:
    """As `connect`, for the tasks of one event loop: `async with penstock.connect_async(url) as ps`.

    `busy_poll`: how long to poll for the next frame before the event loop sleeps. About 0.0003 saves the time that
    waking up takes, and costs processor time: see docs/python-api.md.
    """
    url, routing = _routing(url, routing)
    options = _options(
        token, name, transport, timeout, connect_timeout, retry_for, heartbeat, prefetch, routing, tls, busy_poll
    )
    address = Address.parse(url)
    return AsyncConnecting(lambda: open_caller(address, options))


class AsyncConnecting:
    """A connection about to be made: `async with` it, or `await` it."""

    def __init__(self, connecting: Callable[[], Any]) -> None:
        self._connecting = connecting
        self._penstock: AsyncPenstock | None = None

    async def _connect(self) -> AsyncPenstock:
        return AsyncPenstock(await self._connecting())

    def __await__(self) -> Generator[Any, None, AsyncPenstock]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncPenstock:
        self._penstock = await self._connect()
        return self._penstock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._penstock is not None
        await asyncio.shield(self._penstock.close())


def _options(
    token: str | None,
    name: str,
    transport: TransportName | None,
    timeout: Seconds,
    connect_timeout: Seconds,
    retry_for: Seconds | None,
    heartbeat: Seconds,
    prefetch: int | Mapping[str, int],
    routing: RoutingName,
    tls: ssl.SSLContext | None,
    busy_poll: Seconds = 0.0,
) -> Options:
    if token is not None and (not isinstance(token, str) or not _IN_A_HEADER.fullmatch(token)):
        raise InvalidRequest(
            "the token must be ASCII text without line breaks, and without spaces around it: if it was read from a "
            "file, strip it"
        )
    if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidRequest(f"name is {name!r}: it must be text")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise InvalidRequest(f"tls is {tls!r}: give an ssl.SSLContext, or None and an address with penstocks://")
    if transport is not None and transport not in TRANSPORTS:
        raise InvalidRequest(f"there is no transport {transport!r}; the transports are: {', '.join(TRANSPORTS)}")
    credits = prefetch.values() if isinstance(prefetch, Mapping) else [prefetch]
    if any(not isinstance(credit, int) or credit < 0 for credit in credits):
        raise InvalidRequest(f"prefetch is {prefetch!r}: give a number of messages (0 or more), or one for each queue")
    if routing == "direct" and isinstance(prefetch, int) and prefetch:
        raise InvalidRequest(
            "queues with prefetch are not routed, so prefetch for every queue contradicts routing='direct': name the "
            "queues to prefetch, or leave out one of the two"
        )
    return Options(
        token=token,
        name=name,
        transport=transport,
        timeout=_seconds(timeout, "timeout"),
        connect_timeout=_seconds(connect_timeout, "connect_timeout"),
        retry_for=None if retry_for is None else _seconds(retry_for, "retry_for"),
        heartbeat=_seconds(heartbeat, "heartbeat"),
        prefetch=prefetch if isinstance(prefetch, int) else dict(prefetch),
        routing=routing,
        tls=tls,
        busy_poll=_busy_poll(busy_poll),
    )


def _routing(url: str, routing: RoutingName | None) -> tuple[str, RoutingName]:
    """A URL without its `?routing=...`, and what it said; an argument counts more.

    >>> _routing("penstock://host?routing=direct", None), _routing("penstock://host", None)
    (('penstock://host', 'direct'), ('penstock://host', 'forward'))
    """
    if not isinstance(url, str):
        raise InvalidRequest(f"{url!r} is not the address of a server: write penstock://host:9325")
    bare, mark, query = url.partition("?")
    said = parse_qsl(query, keep_blank_values=True)
    if mark and [name for name, _ in said] != ["routing"]:
        raise InvalidRequest(f"{shown(url)}: after the ? of a server's address there can only be routing=direct")
    chosen = routing or (said[0][1] if said else "forward")
    if chosen not in ROUTINGS:
        raise InvalidRequest(f"there is no routing {chosen!r}; the routings are: {', '.join(ROUTINGS)}")
    return bare, chosen


def _busy_poll(length: Seconds) -> float:
    """So short a time is told in fractions of a millisecond, and other lengths of time here are not.

    >>> _busy_poll(0.00025), _busy_poll(timedelta(milliseconds=1))
    (0.00025, 0.001)
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= BUSY_POLL_SECONDS_MAX:
        raise InvalidRequest(f"busy_poll is {length!r}: it must be from 0 to {BUSY_POLL_SECONDS_MAX} seconds")
    return float(seconds)


def _seconds(length: Seconds, what: str) -> float:
    ms = length_ms(length, what)
    if not ms:
        raise InvalidRequest(f"{what} is {length!r}: it must be more than 0 seconds")
    return ms / 1_000
