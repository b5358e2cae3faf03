"""How does one source tree's HTTP port do against another's? `python -m bench.http_stack --before OTHER/src`

Both serve from memory, each in a process of its own; they take turns, and ratios are taken turn by turn. A ratio above
1 says that this tree is better. Beside the rate stands the ratio of the server's processor time for the same work: it
tells more where others use the machine as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import uvloop

from bench.measure import empty_directory, quartiles, table
from bench.sqs_load import Address, Server
from penstock.core.storage.chunk import Chunk
from penstock.wire.frames import Frames, masked_frame
from penstock.wire.pieces import Target, encode_section

HOST = "127.0.0.1"
CONNECTIONS = 16
ROUNDS = 150
"""Of send, receive and acknowledge, for each connection."""
PIECE_MESSAGES, MESSAGE_BYTES, PIECES = 4_000, 4_000, 8
IDLE = 1_000
_ROOT = Path(__file__).resolve().parent.parent
Work = Callable[[Server], float]
"""Gives how much was done; how long that took is measured around it."""


@contextmanager
def serving(source: Path, directory: Path) -> Iterator[Server]:
    """A server of a source tree."""
    ready_file = directory / "ready.json"
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "penstock", "serve", "--data", ":memory:", *ports, "--ready-file", str(ready_file)]
    with (directory / "printed").open("wb") as printed:
        child = subprocess.Popen(
            command, cwd=directory, env={**os.environ, "PYTHONPATH": str(source)}, stdout=printed, stderr=printed
        )
    try:
        while not ready_file.exists():
            if child.poll() is not None:
                raise RuntimeError((directory / "printed").read_text())
            time.sleep(0.005)
        port = json.loads(ready_file.read_text())["listening"]["http"]["port"]
        yield Server(Address(HOST, port), child.pid)
    finally:
        child.terminate()
        child.wait(30)


# -- the work ----------------------------------------------------------------------------------------------------------


def rest(server: Server) -> float:
    """Send, receive and acknowledge messages one by one, over connections that stay open."""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        writer.write(f"{head}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", answer)
        assert found is not None, answer
        return await reader.readexactly(int(found[1]))

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        at = f"/v1/queues/q{number}"
        for _ in range(ROUNDS):
            await ask(reader, writer, f"{at}/messages", b'{"body":"a message of some bytes, as most are"}')
            answer = await ask(reader, writer, f"{at}/receive", b'{"max":1}')
            found = re.search(rb'"receipt":"([^"]+)"', answer)
            assert found is not None, answer
            await ask(reader, writer, f"{at}/ack", b'{"receipt":"%s"}' % found[1])
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*map(client, range(CONNECTIONS)))

    uvloop.run(clients())
    return CONNECTIONS * ROUNDS * 3


def websocket(server: Server) -> float:
    """Send, receive and acknowledge messages one by one, over websockets."""
    pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        lines = ["GET /v1/ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]
        writer.write("\r\n".join(lines).encode())
        await reader.readuntil(b"\r\n\r\n")
        frames = Frames(masked=False, bytes_max=65_535)

        async def ask(command: list[object]) -> object:
            writer.write(masked_frame(pack([[1, command]])))
            while True:
                payloads, _, _ = frames.split(await reader.read(65_536))
                for payload in payloads:
                    for answer in unpack(payload)[1]:
                        return answer[2]

        await ask(["Hello", 1])
        queue = f"w{number}"
        for _ in range(ROUNDS):
            await ask(["Send", queue, [b"a message of some bytes, as most are"]])
            delivery = await ask(["Receive", queue, "main", 1])
            assert isinstance(delivery, list)
            chunk, attempt, _, _ = delivery[6][0]
            base = Chunk.decode(chunk).base
            await ask(["Ack", queue, [[base, base, attempt]]])
        writer.close()

    async def clients() -> None:
        await asyncio.gather(*map(client, range(CONNECTIONS)))

    uvloop.run(clients())
    return CONNECTIONS * ROUNDS * 3


def bulk_write(server: Server) -> float:
    """Stage pieces and publish them; in megabytes."""
    body = b"".join(encode_section(Target("bulk"), Chunk.of(0, 0, [b"x" * MESSAGE_BYTES] * PIECE_MESSAGES)))
    connection = HTTPConnection(*server.address)
    for number in range(PIECES):
        connection.request("PUT", f"/v1/bulk/staging/token{number}/a", body)
        answer = connection.getresponse()
        assert answer.status == 204, answer.read()
        answer.read()
        published = {"token": f"token{number}", "pieces": ["a"], "name": "bench", "number": number + 1}
        connection.request("POST", "/v1/bulk/publish", json.dumps(published), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    return PIECES * len(body) / 1e6


def bulk_read(server: Server) -> float:
    """Read what was written as Arrow; in megabytes."""
    connection = HTTPConnection(*server.address)
    total, offset = 0, 0
    buffer = bytearray(1 << 20)
    while offset < PIECES * PIECE_MESSAGES:
        asked = {"queue": "bulk", "offset": offset, "end": PIECES * PIECE_MESSAGES, "limit": 100_000}
        connection.request("POST", "/v1/bulk/read", json.dumps(asked), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        offset = int(answer.headers["penstock-next-offset"])
        while count := answer.readinto(buffer):
            total += count
    return total / 1e6


def idle_kilobytes(server: Server) -> float:
    """What a connection that has asked once takes of the server's memory."""

    def resident() -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())
        assert found is not None
        return int(found[1])

    before, held = resident(), []
    for _ in range(IDLE):
        connection = socket.create_connection(server.address)
        connection.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n")
        connection.recv(4_096)
        held.append(connection)
    grown = resident() - before
    for connection in held:
        connection.close()
    return grown / IDLE


def main() -> None:
    """Compare, and print a table."""
    parser = argparse.ArgumentParser(description="Compare the HTTP ports of two source trees.")
    parser.add_argument("--before", type=Path, required=True, help="the other tree's src directory")
    parser.add_argument("--turns", type=int, default=5)
    chosen = parser.parse_args()
    sources = {"before": chosen.before.resolve(), "after": _ROOT / "src"}
    works: dict[str, Work] = {"REST send, receive, ack": rest, "websocket send, receive, ack": websocket}
    works |= {"bulk write": bulk_write, "bulk read": bulk_read}
    found: dict[str, dict[str, list[float]]] = {}

    def note(what: str, name: str, value: float) -> None:
        found.setdefault(what, {"before": [], "after": []})[name].append(value)

    for _ in range(chosen.turns):
        for name, source in sources.items():
            started_s = time.perf_counter()
            with empty_directory() as directory, serving(source, directory) as server:
                note("start", name, 1 / (time.perf_counter() - started_s))
                note("memory of an idle connection", name, 1 / max(0.1, idle_kilobytes(server)))
                for what, work in works.items():
                    started_s, cpu_s = time.perf_counter(), server.cpu_s()
                    amount = work(server)
                    note(what, name, amount / (time.perf_counter() - started_s))
                    note(f"{what}: processor time", name, amount / max(0.01, server.cpu_s() - cpu_s))
    rows = []
    for what, rates in found.items():
        ratio = quartiles([after / before for before, after in zip(rates["before"], rates["after"], strict=True)])
        rows.append([what, str(ratio)])
    print(table(["after / before: more is better", "median (quartiles)"], rows))


if __name__ == "__main__":
    main()
