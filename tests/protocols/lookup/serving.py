"""A lookup service in a thread, on free ports of this machine; and a node as it sees one: a raw socket."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ParamSpec

from penstock.protocols.lookup.service import LookupReady, LookupService
from penstock.server.settings import Settings

Arguments = ParamSpec("Arguments")
PATIENCE_S = 60.0
HOST = "127.0.0.1"


class RunningLookup:
    """Starts in its own thread and loop; everything else is called from the test's thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.service: LookupService
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started: Future[LookupReady] = Future()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), daemon=True)
        self._thread.start()
        listening = self._started.result(PATIENCE_S).listening
        self.tcp_port, self.http_port = listening["lookup"].port, listening["lookup-http"].port

    async def _run(self) -> None:
        try:
            self.service = LookupService(self._settings, "test")
            async with self.service as ready:
                self._started.set_result(ready)
                await self._stopping.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.tcp_port}"

    def get(self, path: str) -> Any:
        """The answer to a request that succeeds."""
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str) -> None:
        status, answer = self.ask("POST", path)
        assert (status, answer) == (200, "")

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        return ask(self.http_port, method, path, headers=headers)

    def producers(self, topic: str, more: str = "") -> list[str]:
        """The broadcast addresses that a lookup gives, in its order; none for a topic that is not known."""
        status, found = self.ask("GET", f"/lookup?topic={topic}{more}")
        return [each["broadcast_address"] for each in found["producers"]] if status == 200 else []


@contextmanager
def lookup_service(**settings: Any) -> Iterator[RunningLookup]:
    service = RunningLookup(Settings().overridden("lookup", **{"tcp_port": 0, "http_port": 0, **settings}))
    try:
        yield service
    finally:
        service.stop()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """One request: the status, and what came back, decoded if it is JSON."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read().decode()
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.status, json.loads(content) if is_json else content
    finally:
        connection.close()


class FakeNode:
    """What a node is on the wire. With `magic=None` it says nothing by itself."""

    def __init__(self, port: int, magic: bytes | None = b"  V1") -> None:
        self.socket = socket.create_connection((HOST, port), timeout=PATIENCE_S)
        if magic is not None:
            self.socket.sendall(magic)

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def command(self, line: str, body: bytes | None = None) -> bytes:
        data = line.encode() + b"\n"
        self.send(data if body is None else data + struct.pack(">i", len(body)) + body)
        return self.response()

    def identify(self, name: str, tcp_port: int = 4150, http_port: int = 4151) -> dict[str, Any]:
        body = {"broadcast_address": name, "tcp_port": tcp_port, "http_port": http_port}
        body |= {"version": "1.3.0", "hostname": f"{name}.example", "something_new": True}
        return dict(json.loads(self.command("IDENTIFY", json.dumps(body).encode())))

    def response(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive(4))
        return self.receive(size)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, f"closed after {data!r}"
            data += piece
        return data

    def is_closed(self) -> bool:
        """Waits for the end; False if something else comes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True


def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def in_a_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run
