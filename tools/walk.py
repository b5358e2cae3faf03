"""How far a message walks: the calls of Penstock's own functions from the socket to the disk and back.

    python -m tools.walk [--json] [--calls WALK]

Each walk runs a server in this process, on a temporary directory, and counts on the thread of its event loop: the calls
of functions in `src/penstock`, the files that they are in, and how often the walk changes from one file to another. The
walk is made several times and the shortest counts: timers and the first time belong to no message. `--calls` lists the
calls of one walk in their order. The websocket's walks have both ends in them, the client and the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import penstock
from penstock import assembly
from penstock.server.settings import Settings

PACKAGE = str(Path(penstock.__file__).parent) + "/"
REPEATS = 5
PAUSE_S = 0.15
"""Between walks: long enough for what a step leaves to be done later."""


class Walk(NamedTuple):
    """What was called on the way: (file, function)."""

    calls: list[tuple[str, str]]

    @property
    def files(self) -> int:
        """In how many files."""
        return len({file for file, _ in self.calls})

    @property
    def changes(self) -> int:
        """How often the next call is in another file."""
        return sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:], strict=False))


Step = Callable[[], Awaitable[Any]]


async def measure(step: Step) -> Walk:
    """The shortest of some walks."""
    found: list[Walk] = []
    for _ in range(REPEATS):
        calls: list[tuple[str, str]] = []

        def note(frame: FrameType, event: str, _argument: Any, calls: list[tuple[str, str]] = calls) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
                calls.append((frame.f_code.co_filename[len(PACKAGE) :], frame.f_code.co_qualname))

        await asyncio.sleep(PAUSE_S)
        sys.setprofile(note)
        try:
            await step()
        finally:
            sys.setprofile(None)
        found.append(Walk(calls))
    return min(found, key=lambda walk: len(walk.calls))


class Http:
    """One connection that speaks SQS's JSON; nothing of Penstock is in it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, action: str, **body: Any) -> dict[str, Any]:
        """One request and its answer."""
        data = json.dumps(body).encode()
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.{action}\r\n"
        head += f"Content-Type: application/x-amz-json-1.0\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.split("content-length:")[1].split("\r\n")[0])
        answered = await self._reader.readexactly(length)
        assert answer.startswith("http/1.1 200"), answered
        return dict(json.loads(answered or b"{}"))


async def sqs(host: str, port: int) -> AsyncIterator[tuple[str, Walk]]:
    """Send, receive, delete, one message each."""
    http = Http(*await asyncio.open_connection(host, port))
    url = (await http.call("CreateQueue", QueueName="walked"))["QueueUrl"]
    receipts: list[str] = []

    async def receive() -> None:
        received = await http.call("ReceiveMessage", QueueUrl=url)
        receipts.append(received["Messages"][0]["ReceiptHandle"])

    yield "SQS SendMessage", await measure(lambda: http.call("SendMessage", QueueUrl=url, MessageBody="tea"))
    yield "SQS ReceiveMessage", await measure(receive)
    yield (
        "SQS DeleteMessage",
        await measure(lambda: http.call("DeleteMessage", QueueUrl=url, ReceiptHandle=receipts.pop())),
    )


async def nsq(host: str, port: int) -> AsyncIterator[tuple[str, Walk]]:
    """From PUB to FIN, through a subscriber that is there already."""
    producer, consumer = [await asyncio.open_connection(host, port) for _ in range(2)]

    async def frame(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    async def publish_to_fin() -> None:
        producer[1].write(b"PUB walked\n\x00\x00\x00\x03tea")
        pushed, _ = await asyncio.gather(frame(consumer[0]), frame(producer[0]))
        consumer[1].write(b"FIN " + pushed[14:30] + b"\n")
        await asyncio.sleep(PAUSE_S)  # a FIN is not answered

    producer[1].write(b"  V2")
    consumer[1].write(b"  V2SUB walked ch\nRDY 1\n")
    await frame(consumer[0])
    yield "NSQ PUB to FIN", await measure(publish_to_fin)


async def websocket(host: str, port: int) -> AsyncIterator[tuple[str, Walk]]:
    """Send, receive and ack through `penstock.connect_async`."""
    async with penstock.connect_async(f"penstock://{host}:{port}", transport="websocket") as ps:
        queue = ps.queue("walked")

        async def send_to_ack() -> None:
            await queue.send(b"tea")
            message = await queue.receive()
            assert message is not None
            await message.ack()

        yield "websocket send to ack", await measure(send_to_ack)


@asynccontextmanager
async def server() -> AsyncIterator[dict[str, Any]]:
    """Where each front end of a server in this process listens."""
    with tempfile.TemporaryDirectory() as directory:
        ports = {"sqs_port": 0, "http_port": 0, "nsq_tcp_port": 0, "nsq_http_port": 0}
        async with assembly.node(Settings().overridden("server", data=directory, **ports)) as ready:
            yield dict(ready.listening)


async def walks() -> dict[str, Walk]:
    """All of them, by name."""
    found: dict[str, Walk] = {}
    for name, walk in (("sqs", sqs), ("nsq", nsq), ("http", websocket)):
        async with server() as listening:
            async for title, walked in walk(listening[name].host, listening[name].port):
                found[title] = walked
    return found


def main(arguments: list[str]) -> None:
    """Print what was counted."""
    parser = argparse.ArgumentParser(description="Count the calls on the way of a message.")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--calls", metavar="WALK", help="list the calls of one walk, by (a part of) its name")
    chosen = parser.parse_args(arguments)
    found = asyncio.run(walks())
    if chosen.calls:
        for title, walk in found.items():
            if chosen.calls.lower() in title.lower():
                print(f"== {title}", *(f"{file}  {function}" for file, function in walk.calls), sep="\n")
    elif chosen.json:
        print(json.dumps({title: [len(walk.calls), walk.files, walk.changes] for title, walk in found.items()}))
    else:
        print(f"{'walk':24}{'calls':>8}{'files':>8}{'changes of file':>18}")
        for title, walk in found.items():
            print(f"{title:24}{len(walk.calls):8}{walk.files:8}{walk.changes:18}")


if __name__ == "__main__":
    main(sys.argv[1:])
