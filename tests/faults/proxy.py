"""A TCP proxy that misbehaves when it is told to: it cuts, delays, half-closes, truncates and swallows.

It runs in a thread of its own. Each fault hits every connection that is open at that moment, except a black hole, a
closed door and slowness, which also hit those that come while they last, and a `Cut`, which hits one connection: the
first that carries something in its direction.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal

PIECE_BYTES = 64 * 1024
START_SECONDS_MAX = 60
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing sends a reset, not an end."""

Direction = Literal["requests", "answers"]
DIRECTIONS: tuple[Direction, ...] = ("requests", "answers")
"""To the server, and from it."""
Ending = Literal["reset", "end", "half_close"]
ENDINGS: tuple[Ending, ...] = ("reset", "end", "half_close")
"""Both sides are reset; both sides come to their end; or only who would have got the rest does."""


class Cut:
    """Lets exactly `after` bytes through in one direction of one connection, and ends it. None: it only counts."""

    def __init__(self, direction: Direction, after: int | None, ending: Ending = "reset") -> None:
        self.direction = direction
        self.after = after
        self.ending = ending
        self.passed = 0
        self.boundaries = [0]
        """After how many bytes a piece ended: there frames and heads begin and end."""
        self.is_done = False
        self._link: Link | None = None

    def concerns(self, link: Link, direction: Direction) -> bool:
        """Whether this connection is the one; the first that carries something is."""
        if direction != self.direction or self._link not in (None, link):
            return False
        self._link = link
        return True

    def pass_on(self, piece: bytes) -> bytes:
        """What of a piece gets through."""
        if self.after is not None:
            piece = piece[: self.after - self.passed]
        self.passed += len(piece)
        self.boundaries.append(self.passed)
        self.is_done = self.passed == self.after
        return piece

    def __str__(self) -> str:
        return f"{self.ending} after {self.after} bytes of {self.direction}"


class Proxy:
    """Forwards its port to the server's port, until it is closed."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.accepted = 0
        self._links: set[Link] = set()
        self._is_black_hole = False
        self._is_shut = False
        self._delay_s = 0.0
        self._cut: Cut | None = None
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        assert self._listening.wait(START_SECONDS_MAX), "the proxy did not start"

    def close(self) -> None:
        """Cut everything, and listen no more."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_SECONDS_MAX)
        assert not self._thread.is_alive()

    # -- faults --

    def cut(self) -> None:
        """End every connection in order, as a server that stops does."""
        self._do(self._for_all(lambda link: link.end()))

    def reset(self) -> None:
        """Reset every connection."""
        self._do(self._for_all(lambda link: link.reset()))

    def truncate(self, count: int) -> None:
        """Let so many bytes more through in each direction, then reset: frames break in the middle."""
        self._do(self._for_all(lambda link: link.truncate(count)))

    def cut_one(self, cut: Cut | None) -> None:
        """Have one connection cut at a certain byte, counted from now on; None: none any more."""

        async def change() -> None:
            self._cut = cut

        self._do(change())

    def half_close(self, *, to_server: bool) -> None:
        """End one direction of every connection; the other goes on."""
        self._do(self._for_all(lambda link: link.half_close(to_server=to_server)))

    def stall(self, is_stalled: bool) -> None:
        """Hold back what comes, and let all of it go later: a slow network."""
        self._do(self._for_all(lambda link: link.stall(is_stalled)))

    def slow(self, delay_s: float) -> None:
        """Keep every piece back for so long, also on connections that come later; 0 ends it."""

        async def change() -> None:
            self._delay_s = delay_s
            for link in list(self._links):
                link.delay_s = delay_s

        self._do(change())

    def black_hole(self, is_on: bool) -> None:
        """Take what comes and drop it, without a word to anybody. Who was in it when it ends is reset."""

        async def change() -> None:
            self._is_black_hole = is_on
            for link in list(self._links):
                if is_on:
                    link.swallows = True
                elif link.swallows:
                    link.reset()

        self._do(change())

    def lose_answers(self) -> None:
        """Drop what the server says on the connections that are open now; what it is told still arrives."""
        self._do(self._for_all(lambda link: link.lose_answers()))

    def shut(self, is_shut: bool) -> None:
        """Reset whoever connects."""

        async def change() -> None:
            self._is_shut = is_shut

        self._do(change())

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    # -- inside --

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)

    async def _for_all(self, do: Any) -> None:
        for link in list(self._links):
            do(link)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stopping.wait()
        server.close()
        for link in list(self._links):
            link.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._is_shut:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            _reset(writer)
            return
        link = Link((reader, writer), (server_reader, server_writer), lambda: self._cut)
        link.swallows = self._is_black_hole
        link.delay_s = self._delay_s
        self._links.add(link)
        with suppress(asyncio.CancelledError):  # when the proxy closes; asyncio's streams would complain of it
            await link.run()
        self._links.discard(link)


Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One connection through the proxy: two sides."""

    def __init__(self, client: Side, server: Side, cut: Callable[[], Cut | None]) -> None:
        self._client = client
        self._server = server
        self._cut = cut
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._left: int | None = None
        self._ended: set[asyncio.StreamWriter] = set()
        """Nothing is written there any more."""
        self.swallows = False
        self.delay_s = 0.0

    async def run(self) -> None:
        """Carry bytes both ways until both have ended."""
        client_reader, client_writer = self._client
        server_reader, server_writer = self._server
        with suppress(OSError):
            await asyncio.gather(
                self._carry("requests", client_reader, server_writer),
                self._carry("answers", server_reader, client_writer),
            )
        self.end()

    async def _carry(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._flowing.wait()
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.swallows:
                continue
            if writer in self._ended:
                continue
            if self._left is not None:
                piece, self._left = piece[: self._left], self._left - len(piece)
            cut = self._cut()
            if cut is not None and cut.concerns(self, direction):
                self._write_up_to(cut, piece, writer)
                continue
            writer.write(piece)
            await writer.drain()
            if self._left is not None and self._left <= 0:
                self.reset()
        if not self.swallows:
            self._end_of(writer)

    def _write_up_to(self, cut: Cut, piece: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(cut.pass_on(piece))
        if not cut.is_done:
            return
        if cut.ending == "reset":
            self.reset()
        elif cut.ending == "end":
            self.end()
        else:
            self._end_of(writer)

    def _end_of(self, writer: asyncio.StreamWriter) -> None:
        """No more goes there; what comes for it is dropped."""
        if writer not in self._ended and not writer.is_closing():
            self._ended.add(writer)
            writer.write_eof()

    def end(self) -> None:
        self._flowing.set()
        for _, writer in (self._client, self._server):
            writer.close()

    def reset(self) -> None:
        self._flowing.set()
        for _, writer in (self._client, self._server):
            _reset(writer)

    def lose_answers(self) -> None:
        self._ended.add(self._client[1])

    def truncate(self, count: int) -> None:
        self._left = count

    def half_close(self, *, to_server: bool) -> None:
        self._end_of((self._server if to_server else self._client)[1])

    def stall(self, is_stalled: bool) -> None:
        if is_stalled:
            self._flowing.clear()
        else:
            self._flowing.set()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
