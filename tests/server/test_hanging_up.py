"""Clients that hang up in the very moment in which their message comes, over every protocol.

A long poll that its client has left takes no message: it is there for the next one, and the attempt does not count. A
connection that messages are pushed to (websocket, NSQ) holds what was written to it, however little of that has
arrived; when it ends, all of it is ready at once. Leases are twelve hours here: nothing comes back by itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import __version__
from penstock.assembly import front_ends
from penstock.core.commands import CreateQueue, PurgeQueue, Receive, Send
from penstock.core.delivery.channel import Channel
from penstock.core.queues.config import QueueConfig
from penstock.server.node import Node, Ready
from penstock.server.settings import parse
from penstock.server.shards import Shards
from tests.protocols.nsq.clients.wire import Connection

LEASE_MS = 12 * 3_600_000
PATIENCE_S = 40
"""Less than a websocket's client may leave an answer unread (60 s)."""
ROUNDS = 8
SIZE = 500_000
PUSHED = 40
"""Together much more than the sockets hold."""


class Site:
    """A server with every front end, and a queue in it."""

    def __init__(self, ready: Ready, shard: Shards) -> None:
        self.ready = ready
        self.shard = shard

    @property
    def channel(self) -> Channel:
        return self.shard.identity.queues["q"].channels["main"]  # type: ignore[return-value]

    async def until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s, "it did not come about"
            await asyncio.sleep(0.002)

    def post(self, front_end: str, path: str, body: dict[str, Any], **headers: str) -> socket.socket:
        """A request whose answer nobody has read yet."""
        content = json.dumps(body).encode()
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(content)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", self.ready.listening[front_end].port))
        connection.sendall(head.encode() + content)
        return connection


@asynccontextmanager
async def site(directory: Path, settings: str = "") -> AsyncIterator[Site]:
    made = parse(settings).overridden(
        "server", data=str(directory), sqs_port=0, http_port=0, nsq_tcp_port=0, nsq_http_port=0
    )
    node = Node(made, front_ends(made), __version__)
    async with node as ready:
        await node.services.shard.call(CreateQueue(name="q", config=QueueConfig(lease_ms=LEASE_MS)))
        yield Site(ready, node.services.shard)


def over_sqs(made: Site) -> socket.socket:
    request = {"QueueUrl": "http://x/000000000000/q", "WaitTimeSeconds": 20}
    kind, action = "application/x-amz-json-1.0", "AmazonSQS.ReceiveMessage"
    return made.post("sqs", "/", request, Content_Type=kind, X_Amz_Target=action)


def over_rest(made: Site) -> socket.socket:
    return made.post("http", "/v1/queues/q/receive", {"wait": 20}, Content_Type="application/json")


def hang_up(connection: socket.socket, how: str) -> None:
    """When this returns, the server's side of the connection knows of it."""
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("poll", [over_sqs, over_rest])
def test_a_long_poll_that_its_client_has_left_takes_no_message(
    tmp_path: Path, poll: Callable[[Site], socket.socket], how: str
) -> None:
    async def main() -> None:
        async with site(tmp_path) as made:
            for _ in range(ROUNDS):
                with poll(made) as connection:
                    await made.until(lambda: len(made.channel.wait_queue) == 1)
                    hang_up(connection, how)
                    await made.shard.call(Send(queue="q", bodies=[b"x"]))
                    delivery = await made.shard.call(Receive(queue="q", wait_ms=PATIENCE_S * 1_000))
                    assert [run.attempt for run in delivery.runs] == [1]
                    await made.shard.call(PurgeQueue(name="q"))
                    await made.until(lambda: not made.channel.wait_queue)

    asyncio.run(main())


def nsq_client(made: Site) -> socket.socket:
    client = Connection(("127.0.0.1", made.ready.listening["nsq"].port))
    client.subscribe("q", "main", ready=PUSHED)
    return client.socket


def websocket_client(made: Site) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", made.ready.listening["http"].port))
    lines = ["GET /v1/ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
    connection.sendall("\r\n".join(lines).encode())
    assert connection.recv(12) == b"HTTP/1.1 101"
    for request in [0, ["Hello", 1]], [1, ["StartPush", "q", "main", PUSHED]]:
        frame = msgspec.msgpack.encode([request])
        connection.sendall(bytes([0x82, 0x80 | len(frame), 0, 0, 0, 0]) + frame)
    return connection


@pytest.mark.parametrize("how", ["close", "reset", "half"])
@pytest.mark.parametrize("client", [nsq_client, websocket_client])
def test_what_was_half_written_to_a_client_is_ready_when_it_hangs_up(
    tmp_path: Path, client: Callable[[Site], socket.socket], how: str
) -> None:
    async def main() -> None:
        async with site(tmp_path) as made:
            with await asyncio.to_thread(client, made) as connection:
                await made.until(lambda: len(made.channel.wait_queue) == 1)
                for _ in range(PUSHED):
                    await made.shard.call(Send(queue="q", bodies=[bytes(SIZE)]))
                await made.until(lambda: made.channel.leased > 0)
                hang_up(connection, how)
                await made.until(lambda: made.channel.ready == PUSHED)

    asyncio.run(main())


def test_what_was_half_written_to_a_websocket_s_client_is_ready_when_that_does_not_say_that_it_is_alive(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with site(tmp_path, "[websocket]\nheartbeat_s = 0.5") as made:
            with await asyncio.to_thread(websocket_client, made):
                await made.until(lambda: len(made.channel.wait_queue) == 1)
                for _ in range(PUSHED):
                    await made.shard.call(Send(queue="q", bodies=[bytes(SIZE)]))
                await made.until(lambda: made.channel.leased > 0)
                await made.until(lambda: made.channel.ready == PUSHED)

    asyncio.run(main())
