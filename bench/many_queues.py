"""Do many queues slow a server down, or those who look at it: metrics, statistics, lists, coming and going?

Two servers, each a process of its own with a directory, one with few queues and one with many. They are asked the same
things in turns. A server measures itself how long its event loop was held: the processor time of the loop's thread
between two ticks of a clock in that loop, so that a busy machine does not count. Times are taken at the client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Ratio, at_most, empty_directory, plain, quartiles, report, table
from penstock import process
from penstock.assembly import front_ends
from penstock.core.commands import CreateQueue, Send
from penstock.server.node import Node
from penstock.server.settings import Settings

AT_ONCE = 250
"""Queues that are made in one step."""
TICK_S = 0.0005
HELD_MS_MAX = 5.0
TEXT = """
A server with {large:,} queues against one with {small:,}, each started on a directory that has them; one queue in ten
has a message. *Held* is the longest time for which an answer kept the event loop busy: processor time of its thread
between two ticks, which are half a millisecond apart. Nobody else is served meanwhile, so this is what an answer costs
others. *To idle* compares it with the same loop without requests. *Took* is the time at the client. It depends on what
the answer has to look at: `/metrics` and `/v1/stats` add up every queue, and NSQ's `/stats` has an entry for each. A
page of a list is 100 queues on either server.
"""
QUESTIONS: dict[str, tuple[str, str, str, dict[str, str], str]] = {
    "/metrics": ("http", "GET", "/metrics", {}, ""),
    "/v1/stats": ("http", "GET", "/v1/stats", {}, ""),
    "a page of /v1/stats/queues": ("http", "GET", "/v1/stats/queues?limit=100", {}, ""),
    "a page of /v1/queues": ("http", "GET", "/v1/queues?limit=100", {}, ""),
    "a page of SQS's ListQueues": (
        "sqs",
        "POST",
        "/",
        {"content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.ListQueues"},
        '{"MaxResults": 100}',
    ),
    "NSQ's /stats": ("nsq-http", "GET", "/stats?format=json", {}, ""),
    "a queue comes and goes": ("http", "", "", {}, ""),
}


# -- the server --------------------------------------------------------------------------------------------------------


class Held:
    """How long the loop was held, at most: read and set back by whoever asks."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        """Tick for ever."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            before = now

    def take(self) -> float:
        """The longest time since the last time."""
        longest, self.longest_s = self.longest_s, 0.0
        return longest


async def make(directory: Path, queues: int) -> None:
    """Make so many queues in a directory."""
    node = Node(settings_for(directory), [], "bench")
    await node.start()
    shard = node.services.shard
    started_at = time.process_time()
    for at in range(0, queues, AT_ONCE):
        names = [f"queue-{number:07d}" for number in range(at, min(queues, at + AT_ONCE))]
        await asyncio.gather(*(shard.call(CreateQueue(name=name)) for name in names))
        await asyncio.gather(*(shard.call(Send(queue=name, bodies=[b"one"])) for name in names[::10]))
    say({"made_s": time.process_time() - started_at})
    await node.stop()


def settings_for(directory: Path) -> Settings:
    """A server on ports of its own."""
    ports = {"sqs_port": 0, "http_port": 0, "nsq_tcp_port": 0, "nsq_http_port": 0}
    return Settings().overridden("server", data=str(directory), **ports)


class Opened(msgspec.Struct):
    """Where a server listens, and what it took to open its directory."""

    ports: dict[str, int]
    opened_s: float

    def line(self) -> str:
        """For whoever has started it."""
        return msgspec.json.encode(self).decode()


class Serving:
    """A node that says, for each line that comes, how it is doing."""

    def __init__(self, directory: Path) -> None:
        settings = settings_for(directory)
        self._node = Node(settings, front_ends(settings), "bench")
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Opened:
        started_at = time.process_time()
        ready = await self._node.start()
        opened_s = time.process_time() - started_at
        held = Held()
        self._tasks = [asyncio.create_task(held.watch()), asyncio.create_task(self._tell(held))]
        return Opened({name: address.port for name, address in ready.listening.items()}, opened_s)

    async def _tell(self, held: Held) -> None:
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while await lines.readline():
            say({"held_s": held.take()})

    async def __aexit__(self, *failure: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self._node.stop()


def say(what: dict[str, Any]) -> None:
    """A line for whoever has started this process."""
    print(json.dumps(what), flush=True)


# -- the client --------------------------------------------------------------------------------------------------------


class Server:
    """A server in a process of its own, on a directory with so many queues."""

    def __init__(self, directory: Path, queues: int) -> None:
        making = self._start("--make", str(directory), "--queues", str(queues))
        self.made_s: float = self._read()["made_s"]
        assert making.wait(300) == 0
        self._start("--serve", str(directory))
        told = self._read()
        self._ports: dict[str, int] = told["ports"]
        self.opened_s: float = told["opened_s"]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.many_queues", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._process

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        told: dict[str, Any] = json.loads(line)
        return told

    def held_s(self) -> float:
        """The longest time that the loop was held since the last time."""
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        held_s: float = self._read()["held_s"]
        return held_s

    def ask(self, what: str) -> tuple[float, float]:
        """Ask for something: how long it took, and how long the loop was held."""
        self.held_s()
        started_at = time.perf_counter()
        self._ask(what)
        took_s = time.perf_counter() - started_at
        time.sleep(4 * TICK_S)
        return took_s, self.held_s()

    def _ask(self, what: str) -> None:
        front_end, method, path, headers, body = QUESTIONS[what]
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[front_end], timeout=120)
        with contextlib.closing(connection):
            if method:
                self._request(connection, method, path, body, headers)
            else:
                name = f"queue-0050000-{os.getpid()}"
                as_json = {"content-type": "application/json"}
                self._request(connection, "POST", "/v1/queues", json.dumps({"name": name}), as_json)
                self._request(connection, "DELETE", f"/v1/queues/{name}", "", {})

    @staticmethod
    def _request(
        connection: http.client.HTTPConnection, method: str, path: str, body: str, headers: dict[str, str]
    ) -> None:
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        answer.read()
        assert 200 <= answer.status < 300, f"{method} {path}: {answer.status}"

    def idle(self) -> float:
        """How long the loop is held when nobody asks for anything."""
        self.held_s()
        time.sleep(0.2)
        return self.held_s()

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        assert self._process.wait(120) == 0


@contextlib.contextmanager
def server(queues: int) -> Iterator[Server]:
    """A server with so many queues."""
    with empty_directory() as directory:
        started = Server(directory, queues)
        try:
            yield started
        finally:
            started.stop()


def measure(small: Server, large: Server, turns: int) -> Iterator[list[str]]:
    """A row for each question."""
    idle_ms = 1_000 * max(quartiles([large.idle() for _ in range(turns)]).median, TICK_S / 10)
    for what in QUESTIONS:
        few, many = [], []
        for turn in range(-1, turns):
            answers = small.ask(what), large.ask(what)
            if turn >= 0:
                few.append(answers[0])
                many.append(answers[1])
        held_ms = quartiles([1_000 * held_s for _, held_s in many])
        yield [
            what,
            milliseconds([took_s for took_s, _ in few]),
            milliseconds([took_s for took_s, _ in many]),
            str(quartiles([one[0] / other[0] for one, other in zip(many, few, strict=True)])),
            milliseconds([held_s for _, held_s in few]),
            f"{plain(held_ms.median)} ms",
            str(Ratio(held_ms.median / idle_ms, held_ms.low / idle_ms, held_ms.high / idle_ms)),
            at_most(HELD_MS_MAX, held_ms.median, " ms"),
        ]


def milliseconds(seconds: list[float]) -> str:
    """A median, as a cell.

    >>> milliseconds([0.001, 0.002, 0.5])
    '2 ms'
    """
    return f"{plain(1_000 * quartiles(seconds).median)} ms"


def main() -> None:
    """Measure and print; or, as a child, serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small version, to see that it runs: no figure to quote")
    parser.add_argument("--queues", type=int, default=100_000, help="how many are many")
    parser.add_argument("--few", type=int, default=100, help="how many are few")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        asyncio.run(make(options.make, options.queues))
    elif options.serve:
        process.run(Serving(options.serve), None, Opened.line)
    elif options.quick:
        measure_and_report(small=20, large=2_000, turns=1)
    else:
        measure_and_report(small=options.few, large=options.queues, turns=options.turns)


def measure_and_report(small: int, large: int, turns: int) -> None:
    """The benchmark itself."""
    with server(small) as few, server(large) as many:
        rows = list(measure(few, many, turns))
        making = (many.made_s / large) / (few.made_s / small)
        opened = many.opened_s / large * 1_000_000
    header = ["", f"took, {small:,}", f"took, {large:,}", "large to small"]
    header += [f"held, {small:,}", f"held, {large:,}", "to idle", "target"]
    text = TEXT.format(small=small, large=large).strip()
    text += (
        f"\n\nMaking a queue cost {plain(making)} times the processor time in the large directory as in the small one."
    )
    text += f" Opening the large one took {plain(opened)} us of processor time a queue."
    report("many. Many queues against few", text, table(header, rows))


if __name__ == "__main__":
    main()
