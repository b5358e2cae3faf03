"""A proxy that loses answers on purpose: what the client sends arrives, what the server says does not."""

from __future__ import annotations

import asyncio
import contextlib


class LossyProxy:
    """Passes bytes between clients and a server, until it is told to do worse."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.answers_lost = False
        """Nothing that the server says gets through."""
        self.connections = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"

    async def cut(self) -> None:
        """End every connection, in the middle of whatever it is."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        """Take no more connections, and end those that there are."""
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, server_writer, False), self._pass(server_reader, writer, True))
        self._writers -= {writer, server_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not (is_answer and self.answers_lost):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()
