"""What do watchers cost? The server's CPU time for a message with the history on, and with five browsers, to without.

    python -m bench.watching [--rounds 100] [--looks 20] [--browsers 5]

Two servers never cost the same: where each has its memory makes a difference of one per cent. So a server is compared
with itself. It is under full load all the time, from eight clients that send, receive and acknowledge: in batches of
100, then one by one. Compared is the CPU time of its process (user and system) divided by the messages that it
acknowledged.

Its history is switched on and off by signals. A round is two slices of a second of either kind, in random order. As
always, the history looks at messages four times a second, and takes a point for every ten seconds that it was on. How
much the two slices without a history differ says what a difference between kinds is worth.

The browsers each have a stream like that of the console's overview. They come and go in turns, the history is on. A
slice with them begins when all have looked for some seconds, and counts their work, but not the opening of the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx

import penstock
from penstock import cli
from penstock.client.aio.queue import AsyncQueue
from penstock.protocols.rest import overview
from penstock.server.events import LatencySampler
from penstock.server.history import TICK_S, History

BATCH = 100
CLIENTS = 8
"""Each on a queue of its own."""
SLICE_S = 1.0
BROWSED_S = 3.0
SETTLE_S = 2.5
ON, OFF = signal.SIGUSR1, signal.SIGUSR2
WATCHED = "/v1/overview/queues?sort=name&descending=false&after=0&limit=100", "/v1/history?range=hour"


class Switched(History):
    """The history of a server that is on only between two signals, and takes its points then."""

    _slices = 0

    def start(self) -> None:
        """Wait for signals."""
        asyncio.get_running_loop().add_signal_handler(ON, self._switch_on)
        asyncio.get_running_loop().add_signal_handler(OFF, self._switch_off)

    def _switch_on(self) -> None:
        for shard in self._shards.local_shards():
            shard.latencies = self._samplers.setdefault(id(shard), LatencySampler())
            shard.latencies._spent_ms = self._shards.now_ms()  # no looks were saved up while it was off
        self._slices += 1
        if self._slices % int(TICK_S / SLICE_S) == 0:
            self._task = asyncio.get_running_loop().create_task(self.tick(time.time()))

    def _switch_off(self) -> None:
        for shard in self._shards.local_shards():
            shard.latencies = None


def serve(arguments: Sequence[str]) -> None:
    """As `penstock serve`, with a history that is switched by signals."""
    overview.History = Switched  # type: ignore[attr-defined]
    sys.argv = ["penstock", "serve", *arguments]
    cli.main()


@contextmanager
def serving(directory: str) -> Iterator[tuple[int, str]]:
    """Such a server in a process of its own, and its URL."""
    ready = Path(directory) / "ready"
    ports = [f"--{name}-port=0" for name in ("sqs", "http", "nsq-tcp", "nsq-http")]
    command = [sys.executable, "-m", "bench.watching", "serve", "--data", f"{directory}/data", *ports]
    server = subprocess.Popen([*command, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert server.poll() is None, "the server did not start"
            time.sleep(0.05)
        yield server.pid, json.loads(ready.read_text())["listening"]["http"]["url"]
    finally:
        server.terminate()
        server.wait()


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, all its threads together: to the nanosecond, and not in ticks of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


class Load:
    """Clients that send, receive and acknowledge until they are cancelled, and how many messages they are through."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.done = 0

    async def batches(self, queue: AsyncQueue) -> None:
        """In batches of 100."""
        while True:
            await queue.send_many([b"x" * 200] * BATCH)
            batch = await queue.receive_batch(BATCH, wait=1)
            await batch.ack()
            self.done += len(batch)

    async def singles(self, queue: AsyncQueue) -> None:
        """One by one."""
        while True:
            await queue.send(b"x" * 200)
            message = await queue.receive(wait=1)
            if message is not None:
                await message.ack()
                self.done += 1

    async def slice(self, seconds: float) -> float:
        """Microseconds of the server's CPU for a message, from now on."""
        before_s, before = cpu_s(self._pid), self.done
        await asyncio.sleep(seconds)
        return (cpu_s(self._pid) - before_s) / (self.done - before) * 1e6


@asynccontextmanager
async def loading(pid: int, url: str, kind: str) -> AsyncIterator[Load]:
    """A server under full load of a kind."""
    load = Load(pid)
    async with penstock.connect_async(url) as ps:
        work = getattr(load, kind)
        tasks = [asyncio.create_task(work(ps.queue(f"{kind}-{each}"))) for each in range(CLIENTS)]
        await asyncio.sleep(SETTLE_S)
        yield load
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


@asynccontextmanager
async def watched(url: str, browsers: int) -> AsyncIterator[None]:
    """Browsers look at a server, and have looked for some seconds."""
    watching = [asyncio.create_task(_browse(url)) for _ in range(browsers)]
    await asyncio.sleep(SETTLE_S)
    yield
    for each in watching:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each


async def _browse(url: str) -> None:
    """What a browser with the console's overview open asks for: one stream."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=30) as http,
        http.stream("GET", "/v1/live", params={"watch": WATCHED}) as stream,
    ):
        async for _ in stream.aiter_bytes():
            pass


async def alone(pid: int, seconds: float) -> float:
    """The share of a core that a server takes with nothing to do."""
    before_s = cpu_s(pid)
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before_s) / seconds


async def run(rounds: int, looks: int, browsers: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as directory, serving(directory) as (pid, url):
        for kind in ("batches", "singles"):
            print(f"== {kind}", flush=True)
            async with loading(pid, url, kind) as load:
                await compare_history(pid, load, rounds)
                await compare_browsers(url, load, looks, browsers)
        print("== nothing to do", flush=True)
        await asyncio.sleep(SETTLE_S)
        print(f"{'the server':28} {await alone(pid, 10.0):8.2%} of a core", flush=True)
        async with watched(url, browsers):
            print(f"{f'with {browsers} browsers':28} {await alone(pid, 10.0):8.2%} of a core", flush=True)


async def compare_history(pid: int, load: Load, rounds: int) -> None:
    """Slices with the history and without. It is on afterwards."""
    chance = random.Random(1)
    found: dict[signal.Signals, list[tuple[float, float]]] = {ON: [], OFF: []}
    for _ in range(rounds):
        order = [ON, ON, OFF, OFF]
        chance.shuffle(order)
        costs: dict[signal.Signals, list[float]] = {ON: [], OFF: []}
        for switch in order:
            os.kill(pid, switch)
            costs[switch].append(await load.slice(SLICE_S))
        for switch, (first, second) in costs.items():
            found[switch].append((first, second))
    os.kill(pid, ON)
    off, on = found[OFF], found[ON]
    tell("without a history, to itself", [one for one, _ in off], [other for _, other in off])
    tell("with the history, to without", [sum(pair) for pair in on], [sum(pair) for pair in off])


async def compare_browsers(url: str, load: Load, looks: int, browsers: int) -> None:
    """Slices with browsers and without, in turns."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(looks):
        for is_watched in (number % 2 == 0, number % 2 == 1):
            if is_watched:
                async with watched(url, browsers):
                    found[True].append(await load.slice(BROWSED_S))
            else:
                await asyncio.sleep(SETTLE_S)
                found[False].append(await load.slice(BROWSED_S))
    tell(f"with {browsers} browsers, to none", found[True], found[False])


def tell(what: str, one: list[float], other: list[float]) -> None:
    """Print a ratio: the mean of rounds with its standard error, and that of the medians."""
    ratios = [value / base for value, base in zip(one, other, strict=True)]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    middle = statistics.median(one) / statistics.median(other)
    mean = statistics.mean(ratios)
    print(f"{what:28} {mean:.4f} +- {error:.4f} (mean of {len(ratios)}), {middle:.4f} (medians)", flush=True)


def main() -> None:
    """Measure, and print a ratio for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--looks", type=int, default=20)
    parser.add_argument("--browsers", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(run(given.rounds, given.looks, given.browsers))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2:])
    else:
        main()
