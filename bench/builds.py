"""What do the compiled build and credentials change? The server's processor time for a message, at each front end.

    python -m bench.builds [--quick] [--before SOURCES]

Up to four servers take turns: from the sources and compiled (`make compile`), each without and with credentials. With
`--before` it is two: the sources, and those of another version, without credentials. A message is sent, received and
acknowledged, one at a time, by 16 clients at once; SQS also in batches of 10. Over NSQ messages are published only.
What is counted is processor time of the server's process: a busy machine changes it less than rates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import penstock
from bench import sqs_credentials
from bench.measure import Contender, Measured, Scale, at_most, empty_directory, plain, report, table, take_turns
from bench.sqs_credentials import ACCESS_KEY, SECRET
from bench.sqs_load import Address, Load, Script, Server, text
from tools import compile as compiler

CLIENTS = 16
TURNS = 5
SETTLE_S, COUNT_S = 0.2, 1.0
BODY_BYTES = 100
COMPILED_TARGET, SIGNED_TARGET = 0.8, 1.3
RATIO, SIGNED = "compiled to sources", "with to without credentials"
TOKEN = f"{ACCESS_KEY}:{SECRET}"
_RECEIPT = re.compile(rb'"receipt": ?"([^"]+)"')

TEXT = """
The server's processor time for a message of 100 bytes, in microseconds; less is better. It is sent, received and
acknowledged, one at a time, by 16 clients at once; over NSQ it is published. The servers took turns. The builds are
compared without credentials, and credentials on the compiled build. SQS checks a signature of each request, REST a
token; a websocket and NSQ check once for a connection.
"""


class Serving(NamedTuple):
    """A server, and where its front ends are."""

    server: Server
    ports: dict[str, int]
    has_credentials: bool


@contextmanager
def serving(directory: Path, *, sources: Path, has_credentials: bool) -> Iterator[Serving]:
    """A server of one build."""
    with sqs_credentials.server(directory, has_credentials=has_credentials, sources=str(sources)) as server:
        listening = json.loads((directory / "ready.json").read_text())["listening"]
        yield Serving(server, {name: each["port"] for name, each in listening.items()}, has_credentials)


# -- loads: each gives the processor time for a message, in microseconds ----------------------------------------------


def over_sqs(batch: int) -> Callable[[Serving, str, float], float]:
    """Send, receive, delete: three requests for a message, or for a batch of them."""

    def load(one: Serving, queue: str, count_s: float) -> float:
        sqs_credentials.create(one.server.address, queue)
        url = f"http://{one.server.address.host}:{one.server.address.port}/000000000000/{queue}"
        scripts = [sqs_credentials.working(one.server.address, url, at * 1_000_000, batch) for at in range(CLIENTS)]
        return Load(one.server, scripts).run(SETTLE_S, count_s).server_cpu_us * 3 / batch

    return load


def over_rest(one: Serving, queue: str, count_s: float) -> float:
    """Send, receive, acknowledge: three requests for a message."""
    server = Server(Address(one.server.address.host, one.ports["http"]), one.server.pid)
    authorization = f"Authorization: Bearer {TOKEN}\r\n" if one.has_credentials else ""

    def ask(what: str, content: dict[str, object]) -> bytes:
        body = json.dumps(content).encode()
        head = f"POST /v1/queues/{queue}/{what} HTTP/1.1\r\nHost: {server.address.host}\r\n{authorization}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def working(number: int) -> Script:
        while True:
            yield ask("messages", {"body": text(number, BODY_BYTES)})
            received = yield ask("receive", {"max": 1})
            for receipt in _RECEIPT.findall(received):
                yield ask("ack", {"receipt": receipt.decode()})

    return Load(server, [working(at) for at in range(CLIENTS)]).run(SETTLE_S, count_s).server_cpu_us * 3


def over_websocket(one: Serving, queue: str, count_s: float) -> float:
    """Send, receive, acknowledge, by tasks that share a connection of the Python client."""

    async def work() -> float:
        done = 0
        url = f"http://{one.server.address.host}:{one.ports['http']}"
        async with await penstock.connect_async(url, token=TOKEN if one.has_credentials else None) as ps:
            orders = ps.queue(queue)

            async def one_by_one() -> None:
                nonlocal done
                while time.perf_counter() < until_s:
                    await orders.send(text(done, BODY_BYTES))
                    message = await orders.receive(wait=5)
                    if message is not None:
                        await message.ack()
                    done += 1

            for seconds in (SETTLE_S, count_s):
                until_s = time.perf_counter() + seconds
                done, before_s = 0, one.server.cpu_s()
                await asyncio.gather(*(one_by_one() for _ in range(CLIENTS)))
        return (one.server.cpu_s() - before_s) / done * 1_000_000

    return asyncio.run(work())


def over_nsq(one: Serving, queue: str, count_s: float) -> float:
    """Publish, 16 at once on a connection."""
    with socket.create_connection((one.server.address.host, one.ports["nsq"])) as connected:
        stream = connected.makefile("rb")
        connected.sendall(b"  V2")
        if one.has_credentials:
            connected.sendall(b"AUTH\n" + struct.pack(">I", len(TOKEN)) + TOKEN.encode())
            _answer(stream.read(4), stream.read)
        body = text(0, BODY_BYTES).encode()
        publish = (f"PUB {queue}\n".encode() + struct.pack(">I", len(body)) + body) * CLIENTS
        for seconds in (SETTLE_S, count_s):
            until_s, done, before_s = time.perf_counter() + seconds, 0, one.server.cpu_s()
            while time.perf_counter() < until_s:
                connected.sendall(publish)
                for _ in range(CLIENTS):
                    while _answer(stream.read(4), stream.read) == b"_heartbeat_":
                        connected.sendall(b"NOP\n")
                done += CLIENTS
        return (one.server.cpu_s() - before_s) / done * 1_000_000


def _answer(size: bytes, read: Callable[[int], bytes]) -> bytes:
    """A frame's content; an error frame is raised."""
    frame = read(int.from_bytes(size))
    if frame[:4] == b"\x00\x00\x00\x01":
        raise RuntimeError(f"NSQ: {frame[4:]!r}")
    return frame[4:]


LOADS: dict[str, Callable[[Serving, str, float], float]] = {
    "SQS, singles": over_sqs(1),
    "SQS, batches of 10": over_sqs(10),
    "REST": over_rest,
    "websocket (Python client)": over_websocket,
    "NSQ, published": over_nsq,
}


def main() -> None:
    """Measure in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="just enough to see that it runs")
    parser.add_argument("--before", metavar="SOURCES", type=Path, help="the src directory of another version")
    given = parser.parse_args()
    scale = Scale(given.quick)
    count_s = 0.05 if scale.quick else COUNT_S
    builds = {"sources": compiler.SOURCES}
    if given.before is not None:
        builds = {"before": given.before, "sources": compiler.SOURCES}
    elif (compiler.OUTPUT / compiler.STAMP).exists():
        builds["compiled"] = compiler.OUTPUT
    kinds = {f"{build}{', credentials' * signed}": (build, signed) for build in builds for signed in (False, True)}
    if given.before is not None:
        kinds = {build: (build, False) for build in builds}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with empty_directory() as directory, ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(directory / name, sources=builds[build], has_credentials=signed))
            for name, (build, signed) in kinds.items()
        }
        turns = scale.turns(TURNS)
        measured = {row: _measure(row, servers, f"q{at}", turns, count_s) for at, row in enumerate(LOADS)}
    if given.before is not None:
        lines = [
            [row, *(plain(found.rate(name)) for name in kinds), str(found.ratio("sources", "before"))]
            for row, found in measured.items()
        ]
        header = ["us of processor time a message", *kinds, "sources to before"]
        report("builds. The sources, and those of another version", TEXT.strip(), table(header, lines))
        return
    best = list(builds)[-1]
    rows = []
    for row, found in measured.items():
        signed = found.ratio(f"{best}, credentials", best)
        compiled = found.ratio(best, "sources")
        verdicts = [at_most(COMPILED_TARGET, compiled.median)] if best == "compiled" else ["not compiled here"]
        figures = [plain(found.rate(name)) for name in kinds]
        rows.append([row, *figures, str(compiled), *verdicts, str(signed), at_most(SIGNED_TARGET, signed.median)])
    header = ["us of processor time a message", *kinds, RATIO, f"target, {RATIO}", SIGNED, f"target, {SIGNED}"]
    report("builds. The two builds, without and with credentials", TEXT.strip(), table(header, rows))


def _measure(row: str, servers: dict[str, Serving], queue: str, turns: int, count_s: float) -> Measured:
    """Every server in turns, with a queue of its own for each row."""

    def contender(one: Serving) -> Contender:
        # a process's time is counted in ticks: a short run may have had none
        return lambda _: max(1.0, LOADS[row](one, queue, count_s))

    return take_turns({name: contender(one) for name, one in servers.items()}, turns)


if __name__ == "__main__":
    main()
