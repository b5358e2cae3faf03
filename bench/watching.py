"""What do watchers cost? The server's CPU time for a message with the history on, and with five browsers, to without.

    python -m bench.watching [--seconds 20] [--turns 4] [--browsers 5]

One server in a process of its own, at full load: clients that send, receive and acknowledge in batches of 100, on eight
queues. Turns alternate between none, the history, and the history with browsers that hold `/v1/live` open and ask for
the first page of queues every two seconds, as the console does. What is compared is the CPU time of the server's
process (user and system) divided by the messages that it has acknowledged: other work on the machine counts little in
that. The ratio is that of the medians. Where the machine is not quiet, it says nothing about single percents; so each
kind is also measured on a server that has nothing else to do: the share of a core that it takes.
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
from contextlib import contextmanager
from pathlib import Path

import httpx

import penstock

QUEUES = 8
BATCH = 100


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def work(url: str, queue: str, until_s: float) -> int:
    """Send, receive and acknowledge until a time; how many messages."""
    done = 0
    async with penstock.connect_async(url) as ps:
        handle = ps.queue(queue)
        while time.monotonic() < until_s:
            await handle.send_many([b"x" * 200] * BATCH)
            batch = await handle.receive_batch(BATCH, wait=1)
            done += len(batch)
            await batch.ack()
    return done


async def browse(url: str, until_s: float) -> None:
    """What a browser with the console open asks for."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http, http.stream("GET", "/v1/live?queue=q0") as stream:
        events = stream.aiter_bytes()
        next_s = 0.0
        while time.monotonic() < until_s:
            await anext(events)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + 2
                await http.get("/v1/overview/queues?limit=50&sort=sent&descending=true")


async def load(url: str, seconds: float, browsers: int) -> int:
    """How many messages went through."""
    until_s = time.monotonic() + seconds
    watching = [asyncio.create_task(browse(url, until_s)) for _ in range(browsers)]
    done = await asyncio.gather(*(work(url, f"q{number}", until_s) for number in range(QUEUES)))
    await asyncio.gather(*watching)
    return sum(done)


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


def turn(history: bool, browsers: int, seconds: float) -> float:
    """Microseconds of the server's CPU for a message."""
    with tempfile.TemporaryDirectory() as directory, serving(directory, history) as (server, url):
        asyncio.run(load(url, 2.0, 0))
        before_s = cpu_s(server.pid)
        done = asyncio.run(load(url, seconds, browsers))
        return (cpu_s(server.pid) - before_s) / done * 1e6


def alone(history: bool, browsers: int, seconds: float) -> float:
    """The share of a core that watching takes on a server with 50 queues and nothing else to do."""

    async def watched(url: str) -> None:
        async with penstock.connect_async(url) as ps:
            for number in range(50):
                await ps.queue(f"q{number}").send(b"x")
        before_s = cpu_s(server.pid)
        until_s = time.monotonic() + seconds
        await asyncio.gather(asyncio.sleep(seconds), *(browse(url, until_s) for _ in range(browsers)))
        used_s.append(cpu_s(server.pid) - before_s)

    used_s: list[float] = []
    with tempfile.TemporaryDirectory() as directory, serving(directory, history) as (server, url):
        asyncio.run(watched(url))
    return used_s[0] / seconds


def main() -> None:
    """Measure in turns, and print a ratio for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--browsers", type=int, default=5)
    given = parser.parse_args()
    kinds = {"none": (False, 0), "history": (True, 0), "browsers": (True, given.browsers)}
    for name, (history, browsers) in kinds.items():
        print(
            f"{name:10} {alone(history, browsers, given.seconds):8.2%} of a core, with nothing else to do", flush=True
        )
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(given.turns):
        for name, (history, browsers) in kinds.items():
            found[name].append(turn(history, browsers, given.seconds))
            print(f"{name:10} {found[name][-1]:8.2f} us of CPU a message", flush=True)
    least = {name: min(values) for name, values in found.items()}
    middle = {name: statistics.median(values) for name, values in found.items()}
    for name in ("history", "browsers"):
        print(
            f"{name}: {middle[name] / middle['none']:.4f} times the CPU of none (medians), "
            f"{least[name] / least['none']:.4f} (least)"
        )


if __name__ == "__main__":
    main()
