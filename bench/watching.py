"""What do watchers cost? The server's CPU time for a message with the history on, and with five browsers, to without.

    python -m bench.watching [--seconds 1.5] [--rounds 25] [--browsers 5]

Four servers in processes of their own, two without a history and two with it, get full load in turns, a slice each,
round after round: clients that send, receive and acknowledge in batches of 100, on eight queues. One of those with a
history gets a second slice a round, in which browsers look at it, each with a stream like the console's overview.
Compared is the CPU time of a server's process (user and system) in its slices divided by the messages that it
acknowledged in them. Other work on the machine counts little in that, and what is slow for a while is slow for all.
How much two servers of one kind differ says what a difference between kinds is worth; the error is the standard error
over rounds. Each kind is also measured while it has nothing else to do: the share of a core that it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

import penstock
from penstock.client.aio.penstock import AsyncPenstock

QUEUES = 8
BATCH = 100


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, all its threads together: to the nanosecond, and not in ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


async def work(ps: AsyncPenstock, queue: str, until_s: float) -> int:
    """Send, receive and acknowledge until a time; how many messages."""
    done = 0
    handle = ps.queue(queue)
    while time.monotonic() < until_s:
        await handle.send_many([b"x" * 200] * BATCH)
        batch = await handle.receive_batch(BATCH, wait=1)
        done += len(batch)
        await batch.ack()
    return done


WATCHED = "/v1/overview/queues?sort=name&descending=false&after=0&limit=100", "/v1/history?range=hour"


async def browse(url: str) -> None:
    """What a browser with the console's overview open asks for: one stream."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=30) as http,
        http.stream("GET", "/v1/live", params={"watch": WATCHED}) as stream,
    ):
        async for _ in stream.aiter_bytes():
            pass


@contextmanager
def serving(directory: str, history: bool) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server in a process of its own, and its URL."""
    ready = Path(directory) / "ready"
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "penstock", "serve", "--data", f"{directory}/data", *ports]
    command += ["--ready-file", str(ready)]
    environment = os.environ | {"PENSTOCK_HISTORY_ENABLED": "true" if history else "false"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert server.poll() is None, "the server did not start"
            time.sleep(0.05)
        yield server, json.loads(ready.read_text())["listening"]["http"]["url"]
    finally:
        server.terminate()
        server.wait()


async def alone(server: Kind, seconds: float) -> float:
    """The share of a core that it takes with nothing to do."""
    before_s = cpu_s(server.pid)
    await asyncio.sleep(seconds)
    return (cpu_s(server.pid) - before_s) / seconds


class Kind(NamedTuple):
    """A server of one kind, and its clients."""

    name: str
    pid: int
    url: str
    clients: list[AsyncPenstock]


async def slice_of(kind: Kind, seconds: float) -> float:
    """Microseconds of the server's CPU for a message, in one slice of full load."""
    before_s, until_s = cpu_s(kind.pid), time.monotonic() + seconds
    done = await asyncio.gather(*(work(ps, f"q{number}", until_s) for number, ps in enumerate(kind.clients)))
    return (cpu_s(kind.pid) - before_s) / sum(done) * 1e6


@asynccontextmanager
async def watched(url: str, browsers: int) -> AsyncIterator[None]:
    """Browsers look at a server, and have looked for a moment."""
    watching = [asyncio.create_task(browse(url)) for _ in range(browsers)]
    await asyncio.sleep(0.3)
    yield
    for each in watching:
        each.cancel()
    await asyncio.wait(watching)


async def measure(kinds: list[Kind], rounds: int, seconds: float, browsers: int) -> None:
    """All of them, in turns."""
    for kind in kinds:
        await slice_of(kind, 1.0)
    await asyncio.sleep(1)
    for kind in kinds:
        print(f"{kind.name:10} {await alone(kind, 10.0):8.2%} of a core, with nothing else to do", flush=True)
    async with watched(kinds[-1].url, browsers):
        print(f"{browsers} browsers {await alone(kinds[-1], 10.0):8.2%} of a core, with nothing else to do", flush=True)
    found: dict[str, list[float]] = {name: [] for name in ("none 1", "none 2", "history 1", "history 2", "browsers")}
    for number in range(rounds):
        turn = number % len(kinds)
        for kind in (*kinds[turn:], *kinds[:turn]):
            found[kind.name].append(await slice_of(kind, seconds))
            if kind is kinds[-1]:
                async with watched(kind.url, browsers):
                    found["browsers"].append(await slice_of(kind, seconds))
    for name, values in found.items():
        print(f"{name:10} {statistics.median(values):8.3f} us of CPU a message (median of {rounds} slices)")
    both = {name: [*zip(found[f"{name} 1"], found[f"{name} 2"], strict=True)] for name in ("none", "history")}
    tell("one without a history to the other", found["none 1"], found["none 2"])
    tell("with a history to without", [sum(pair) for pair in both["history"]], [sum(pair) for pair in both["none"]])
    tell(f"with {browsers} browsers to without", found["browsers"], found["history 2"])


def tell(what: str, one: list[float], other: list[float]) -> None:
    """Print a ratio, round by round and of the medians."""
    ratios = [value / base for value, base in zip(one, other, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    middle = statistics.median(one) / statistics.median(other)
    print(f"{what}: {middle:.4f} (medians), {statistics.mean(ratios):.4f} +- {error:.4f} (mean of rounds)")


async def run(seconds: float, rounds: int, browsers: int) -> None:
    """Start the servers, and measure."""
    async with AsyncExitStack() as stack:
        kinds: list[Kind] = []
        for name in ("none 1", "history 1", "none 2", "history 2"):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            server, url = stack.enter_context(serving(directory, history="history" in name))
            clients = [await stack.enter_async_context(penstock.connect_async(url)) for _ in range(QUEUES)]
            kinds.append(Kind(name, server.pid, url, clients))
        await measure(kinds, rounds, seconds, browsers)


def main() -> None:
    """Measure in turns, and print a ratio for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--browsers", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(run(given.seconds, given.rounds, given.browsers))


if __name__ == "__main__":
    main()
