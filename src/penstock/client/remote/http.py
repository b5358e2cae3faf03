"""A small HTTP client: POST, wait for the response, keep the connection for the next one."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

import httptools

from penstock.client.remote.address import Address


class BrokenConnection(ConnectionError):
    """The connection ended before the response. `was_silent`: not a byte of a response had come."""

    def __init__(self, reason: str, *, was_silent: bool) -> None:
        super().__init__(reason)
        self.was_silent = was_silent


class Response:
    """A response, as far as anybody here cares."""

    __slots__ = ("body", "content_type", "status")

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self.body = b""


class HttpConnection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._response = Response()
        self._parts: list[bytes] = []
        self._keep = True
        self._waiter: asyncio.Future[Response] | None = None
        self._heard = False
        self.requests = 0
        """How many requests were sent over it."""

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None) -> HttpConnection:
        loop = asyncio.get_running_loop()
        host, name = address.ip or address.host, address.host if tls else None
        _, connection = await loop.create_connection(
            lambda: cls(address), host, address.port, ssl=tls, server_hostname=name
        )
        return connection

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return self._keep and self._socket is not None and not self._socket.is_closing() and self._waiter is None

    async def post(self, path: str, headers: dict[str, str], body: bytes) -> Response:
        """Send a request and wait for its response. Cancelling it ends the connection."""
        assert self._socket is not None and self._waiter is None
        self.requests += 1
        self._response, self._parts, self._heard = Response(), [], False
        self._parser = httptools.HttpResponseParser(self)
        self._waiter = asyncio.get_running_loop().create_future()
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._address.authority}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._socket.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        try:
            return await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = None

    def close(self) -> None:
        self._keep = False
        if self._socket is not None:
            self._socket.close()

    # -- what asyncio does --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._parser is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the response is not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._keep = False
        self._fail(f"the connection ended: {error or 'the other side closed it'}")

    def _fail(self, reason: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(BrokenConnection(reason, was_silent=not self._heard))

    # -- what the parser does --

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._response.content_type = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self._response.status = self._parser.get_status_code()
        self._response.body = b"".join(self._parts)
        self._keep = self._keep and self._parser.should_keep_alive()
        self._parser = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._response)
        if not self._keep:
            self.close()
