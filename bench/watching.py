"""What do watchers cost? The server's CPU time for a message with the history on, and with five browsers, to without.

    python -m bench.watching [--seconds 2] [--rounds 30] [--browsers 5]

Three servers in processes of their own: one without a history, one with it, and one with it that browsers look at, each
with a stream like the console's overview. They get full load in turns, a slice each, round after round: clients that
send, receive and acknowledge in batches of 100, on eight queues. What is compared is the CPU time of each server's process
(user and system) in its slices divided by the messages that it acknowledged in them; other work on the machine counts
little in that, and what is slow for a while is slow for all three. The error that is printed is the standard error over
rounds. Each kind is also measured while it has nothing else to do: the share of a core that it takes.
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
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
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


async def measure(kinds: list[Kind], rounds: int, seconds: float, browsers: int) -> None:
    """All of them, in turns."""
    watching = [asyncio.create_task(browse(kinds[-1].url)) for _ in range(browsers)]
    await asyncio.gather(*(slice_of(kind, 2.0) for kind in kinds))
    await asyncio.sleep(2)
    for kind, share in zip(kinds, await asyncio.gather(*(alone(kind, 20.0) for kind in kinds)), strict=True):
        print(f"{kind.name:10} {share:8.2%} of a core, with nothing else to do", flush=True)
    found: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    for number in range(rounds):
        for kind in (*kinds[number % 3 :], *kinds[: number % 3]):
            found[kind.name].append(await slice_of(kind, seconds))
    for each in watching:
        each.cancel()
    none = found[kinds[0].name]
    print(f"{kinds[0].name:10} {statistics.median(none):8.2f} us of CPU a message (median of {rounds} slices)")
    for name, values in list(found.items())[1:]:
        ratios = [value / base for value, base in zip(values, none, strict=True)]
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        middle = statistics.median(values) / statistics.median(none)
        means = f"{statistics.mean(ratios):.4f} +- {error:.4f} (mean of rounds)"
        print(f"{name:10} {statistics.median(values):8.2f} us; {middle:.4f} times none (medians), {means}")


async def run(seconds: float, rounds: int, browsers: int) -> None:
    """Start a server of each kind, and measure."""
    async with AsyncExitStack() as stack:
        kinds: list[Kind] = []
        for name in ("none", "history", "browsers"):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            server, url = stack.enter_context(serving(directory, history=name != "none"))
            clients = [await stack.enter_async_context(penstock.connect_async(url)) for _ in range(QUEUES)]
            kinds.append(Kind(name, server.pid, url, clients))
        await measure(kinds, rounds, seconds, browsers)


def main() -> None:
    """Measure in turns, and print a ratio for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--browsers", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(run(given.seconds, given.rounds, given.browsers))


if __name__ == "__main__":
    main()
