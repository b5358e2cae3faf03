"""`run_forever` in a process of its own, which is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from tests.client.node import ThreadedNode
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("the listener's process has its own store")

THREADS = """
import os, sys, time, penstock
with penstock.open(sys.argv[1]) as ps:
    @ps.listener("in", workers=2)
    def handle(message, tx):
        os.write(1, b"begun\\n")  # in one piece: two workers say so at once
        while handle.state == "running" or handle.in_hand > 2:  # until what is not begun went back
            time.sleep(0.005)
        tx.put("out", message.body)
    print("finished", handle.run_forever(timeout=60), flush=True)
"""
TASKS = """
import asyncio, sys, penstock
async def main():
    async with penstock.open_async(sys.argv[1]) as ps:
        @ps.listener("in", workers=2)
        async def handle(message, tx):
            print("begun", flush=True)
            while handle.state == "running" or handle.in_hand > 2:  # until what is not begun went back
                await asyncio.sleep(0.005)
            tx.put("out", message.body)
        print("finished", await ps.run_listeners(timeout=60), flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("script", [THREADS, TASKS], ids=["threads", "tasks"])
def test_a_listener_that_is_told_to_end_finishes_what_is_in_hand(
    script: str, number: signal.Signals, tmp_path: Path
) -> None:
    with penstock.open(tmp_path) as ps:
        ps.queue("in").send_many([b"1", b"2", b"3", b"4"])
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
            process.send_signal(number)
            rest, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "finished True\n")
    with penstock.open(tmp_path) as ps:
        assert sorted(message.body for message in ps.queue("out").receive(9)) == [b"1", b"2"]
        left = ps.queue("in").receive(9)
        assert [(message.body, message.attempts) for message in left] == [(b"3", 1), (b"4", 1)]


AWAY = """
import sys, penstock
with penstock.connect(sys.argv[1], timeout=60) as ps:
    @ps.listener("in")
    def handle(message): ...
    print("connected", flush=True)
    sys.stdin.readline()
    handle.run_forever()
"""
AWAY_TASKS = """
import asyncio, sys, penstock
async def main():
    async with penstock.connect_async(sys.argv[1], timeout=60) as ps:
        @ps.listener("in")
        async def handle(message): ...
        print("connected", flush=True)
        sys.stdin.readline()
        await handle.run_forever()
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("script", [AWAY, AWAY_TASKS], ids=["threads", "tasks"])
def test_a_listener_that_cannot_start_because_the_server_is_away_can_be_told_to_end(
    script: str, number: signal.Signals, tmp_path: Path
) -> None:
    node = ThreadedNode(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", script, node.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "connected\n"
            node.stop()
            process.stdin.write("\n")
            process.stdin.flush()
            time.sleep(0.5)
            process.send_signal(number)
            assert process.wait(timeout=20)
        finally:
            process.kill()
