"""The floor of a latency with a sync in it: a server that appends what it reads to a file, syncs it, and echoes it.

It keeps no queues, and understands nothing. Its client sends, and looks at the clock when the echo comes. So this is no
contender: it is what the disk, the loopback and two Python event loops take by themselves.

    python -m bench.client_floor FILE PORT     # the server, as bench/client.py starts it
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvloop

from bench.client_servers import listens
from bench.measure import BODY_BYTES
from bench.sqs_load import Address, Server
from bench.sqs_servers import HOST, free_port, process

FILE_BYTES = 64 * 1024 * 1024
"""Allocated before: a sync of a file that grows has to sync its length as well."""


class _Echo(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._offset = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._offset = self._offset if self._offset + len(data) <= FILE_BYTES else 0
        self._offset += os.pwrite(self._file, data, self._offset)
        os.fdatasync(self._file)
        self._transport.write(data)


async def _serve(path: Path, port: int) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(file, 0, FILE_BYTES)
    for offset in range(0, FILE_BYTES, 1024 * 1024):
        os.pwrite(file, bytes(1024 * 1024), offset)
    os.fsync(file)
    server = await asyncio.get_running_loop().create_server(lambda: _Echo(file), HOST, port)
    await server.serve_forever()


@contextmanager
def floor_server(directory: Path) -> Iterator[Server]:
    """The server, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "bench.client_floor", str(directory / "file"), str(port)]
    with process(command, directory, lambda: listens(port)) as pid:
        yield Server(Address(HOST, port), pid)


class FloorPeer(asyncio.Protocol):
    """As much of `client_peers.Peer` as a latency needs: what is sent comes back, to whoever listens."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._rest = b""
        self._handler: Callable[[bytes], None] = lambda body: None
        self._left = 0
        self._over = asyncio.Event()

    @classmethod
    async def connect(cls, port: int) -> FloorPeer:
        """Connect."""
        _, peer = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Something has come back."""
        data = self._rest + data
        whole = len(data) // BODY_BYTES * BODY_BYTES
        for start in range(0, whole, BODY_BYTES):
            self._handler(data[start : start + BODY_BYTES])
        self._rest = data[whole:]
        self._left -= whole // BODY_BYTES
        if self._left <= 0:
            self._over.set()

    async def create(self, queue: str) -> None:
        """There are no queues."""

    async def send(self, queue: str, body: bytes) -> None:
        """Send one message."""
        self._transport.write(body)

    async def listen(self, queue: str, count: int, handler: Callable[[bytes], None]) -> float:
        """Hand on what comes back, until so many have."""
        self._handler, self._left = handler, count
        self._over.clear()
        await self._over.wait()
        return 0.0

    async def close(self) -> None:
        self._transport.close()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
