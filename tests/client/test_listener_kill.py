"""Units of work of listeners, while clients and servers are killed: nothing is lost, half done, or done twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.server.clock import SystemClock
from penstock.server.shard import Shard
from tests.client.adapter import ENTROPY, LoopThread, directory_store
from tests.client.serving import serve
from tests.ports import free_port
from tests.shards import not_for_clusters

pytestmark = not_for_clusters("processes that are killed share a directory (tests/cluster kills nodes)")

KILLS = int(os.environ.get("PENSTOCK_KILLS", "15"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
SECONDS_MAX = 120


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def moved(ps: penstock.Penstock, queue: str = "out") -> list[int]:
    return sorted(int(record.body) for record in ps.queue(queue).consumer("check").read(10_000))


def test_units_are_done_once_although_listeners_are_killed(tmp_path: Path) -> None:
    loop = LoopThread()
    server = loop.run(serve(Shard(directory_store(tmp_path), SystemClock(), lambda: ENTROPY)))
    command = [sys.executable, "-m", "tests.client.crashing_listeners", server.url, str(SEED), str(KILLS)]
    sent = 0
    with penstock.connect(server.url) as ps:
        ps.create_queue("in", max_receives=0)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            while process.stdout.readline() != "calm\n":
                assert process.poll() is None
                ps.queue("in").send_many([str(number) for number in range(sent, sent + 5)])
                sent += 5
                time.sleep(0.02)
            until(lambda: ps.queue("in").stats().messages == 0)
            process.stdin.close()
            process.wait(30)
        assert moved(ps) == moved(ps, "copy") == list(range(sent))
    loop.run(server.stop())
    loop.close()


class ServerProcess:
    """`penstock serve`, which can be killed and comes up again on the same ports."""

    def __init__(self, directory: Path) -> None:
        ports = {flag: free_port() for flag in ("--http-port", "--sqs-port", "--nsq-tcp-port", "--nsq-http-port")}
        self.url = f"penstock://127.0.0.1:{ports['--http-port']}"
        self._command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory)]
        self._command += [word for flag, port in ports.items() for word in (flag, str(port))]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def connect(self) -> penstock.Penstock:
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return penstock.connect(self.url)
            except penstock.ConnectionLost:
                assert self._process.poll() is None, "the server did not start"
                assert time.monotonic() < deadline
                time.sleep(0.05)


@pytest.mark.parametrize("seed", [SEED])
def test_units_are_done_once_although_the_server_is_killed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    count = 1_500
    server = ServerProcess(tmp_path)
    try:
        with server.connect() as ps:
            ps.create_queue("in", max_receives=0)
            ps.queue("in").send_many([str(number) for number in range(count)])

            def move(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
                time.sleep(0.004)
                tx.put("out", message.body)

            with ps.listen("in", move, workers=4, lease=2, prefetch=8) as listener:
                for kill in range(1, 5):
                    until(lambda kill=kill: listener.metrics.handled > kill * count // 8)
                    time.sleep(chance.uniform(0.0, 0.05))
                    server.kill()
                    server.start()
                until(lambda: ps.queue("in").stats().messages == 0)
            assert moved(ps) == list(range(count))
    finally:
        server.kill()


def test_units_are_done_once_although_messages_leave_unsynced_and_the_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    each, senders = 300, 8
    acknowledged: set[int] = set()
    server = ServerProcess(tmp_path)
    try:
        with server.connect() as ps, server.connect() as other:
            ps.create_queue("in", max_receives=0, deliver_unsynced=True)

            def move(message: penstock.Message, tx: penstock.UnitOfWork) -> None:
                tx.put("out", message.body)

            def send(first: int) -> None:
                for number in range(first, first + each):
                    other.queue("in").send(str(number))
                    acknowledged.add(number)

            threads = [threading.Thread(target=send, args=(at * each,)) for at in range(senders)]
            with ps.listen("in", move, workers=4, lease=2):
                for thread in threads:
                    thread.start()
                for kill in range(1, 6):
                    until(lambda kill=kill: len(acknowledged) > kill * each)
                    time.sleep(chance.uniform(0.0, 0.02))
                    server.kill()
                    server.start()
                for thread in threads:
                    thread.join(SECONDS_MAX)
                until(lambda: ps.queue("in").stats().messages == 0)
            assert moved(ps) == sorted(acknowledged) == list(range(senders * each))
    finally:
        server.kill()
