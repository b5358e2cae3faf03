"""A server that says goodbye while the client still has something to write: nothing is lost, and nothing goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import State

import penstock
from penstock.store.memory import MemoryStore
from tests.client.serving import serve
from tests.shards import not_for_clusters, open_shards, stepping_clock

GOODBYE = Frame(Opcode.CLOSE, (1012).to_bytes(2, "big")).serialize(mask=False)
UNREAD_BYTES = 3_500_000
"""More than two sockets hold, and less than the client lets gather before it waits."""
RECEIVE_BUFFER_BYTES = 4_096


class RudeProxy:
    """Carries bytes to a server. It can stop to hear its clients, say goodbye to them, and hang up."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._hears = asyncio.Event()
        self._hears.set()
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self._carry, sock=listener, limit=RECEIVE_BUFFER_BYTES)

    def stop_hearing(self) -> None:
        self._hears.clear()

    def say_goodbye(self) -> None:
        for client in self._clients:
            client.write(GOODBYE)

    def hang_up(self) -> None:
        """Ends every connection; the next ones are heard again."""
        self._hears.set()
        for client in self._clients:
            client.transport.abort()
        self._clients.clear()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.hang_up()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.append(writer)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            try:
                await asyncio.gather(self._pump(reader, back, self._hears), self._pump(there, writer, None))
            finally:
                back.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: asyncio.Event | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4_096):
                if may is not None:
                    await may.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.001)


@not_for_clusters("a server in the test's own loop")
def test_what_is_sent_after_the_servers_goodbye_goes_over_the_next_connection() -> None:
    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        server = await serve(open_shards(lambda _: MemoryStore(), stepping_clock()))
        proxy = RudeProxy(server.port)
        await proxy.start()
        try:
            async with penstock.connect_async(f"penstock://127.0.0.1:{proxy.port}", timeout=60) as ps:
                orders = await ps.create_queue("orders")
                link: Any = ps._caller._link  # type: ignore[attr-defined]
                proxy.stop_hearing()
                unread = asyncio.create_task(orders.send_many([b"x" * 100_000] * (UNREAD_BYTES // 100_000)))
                await until(lambda: link._socket.get_write_buffer_size() > 0)
                proxy.say_goodbye()
                await until(lambda: link._websocket.state is not State.OPEN)
                late = [asyncio.create_task(orders.send(b"late %d" % number)) for number in range(3)]
                for _ in range(3):
                    await asyncio.sleep(0)  # it would be written now
                assert not link._gone.done(), "the connection was to be closing, not closed"
                proxy.hang_up()
                assert len(await unread) == 35
                assert [(await each).sequence for each in late] == [35, 36, 37]
                assert (await orders.stats()).messages == 38
        finally:
            await proxy.stop()
            await server.stop()
        assert complaints == []

    asyncio.run(main())
