"""Units of work over two shards of a server that is killed: one result of each task in each shard, for one token."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import penstock
from penstock.core.errors import PenstockError
from tests.compat.server import Server, name_in, until

SHARDS = 2
RETRY_TIMEOUT_S = 60.0
KILLS = 2
TASKS = 120
THREADS = 3
LEASE_S = 10

QUEUES = {stem: [name_in(shard, stem) for shard in range(SHARDS)] for stem in ("tasks", "tokens", "results")}


class Workers:
    """Threads that take a task of one shard and a token of the other, and put a result into both."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.refused = 0
        self._threads = [
            threading.Thread(target=self._work, args=(number % SHARDS,), daemon=True)
            for number in range(THREADS * SHARDS)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, shard: int) -> None:
        while not self._over.is_set():
            try:
                with penstock.connect(self._url) as ps:
                    while not self._over.is_set():
                        self._unit(ps, shard)
            except (PenstockError, OSError):
                self.refused += 1

    def _unit(self, ps: penstock.Penstock, shard: int) -> None:
        with ps.unit_of_work() as unit:
            task = unit.take(QUEUES["tasks"][shard], wait=1, lease=LEASE_S)
            if task is None:
                return
            token = unit.take(QUEUES["tokens"][1 - shard], wait=1, lease=LEASE_S)
            if token is None:
                return
            for results in QUEUES["results"]:
                unit.put(results, task.body)
            unit.commit()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(RETRY_TIMEOUT_S)


def test_units_of_work_over_shards_of_a_server_that_is_killed_are_done_once(tmp_path: Path) -> None:
    server = Server(tmp_path, shards=SHARDS)
    try:
        server.start()
        url = f"penstock://127.0.0.1:{server.http_port}"
        with penstock.connect(url) as ps:
            for name in (name for names in QUEUES.values() for name in names):
                ps.create_queue(name, max_receives=0)  # nothing dies, however often it is tried
            for shard in range(SHARDS):
                ps.queue(QUEUES["tasks"][shard]).send_many([b"%d-%d" % (shard, each) for each in range(TASKS)])
                ps.queue(QUEUES["tokens"][shard]).send_many([b"token"] * 2 * TASKS)
        workers = Workers(url)
        try:
            with penstock.connect(url) as ps:
                _work_under_fire(server, ps)
        finally:
            workers.end()
        with penstock.connect(url) as ps:
            _check(ps)
    finally:
        server.kill()


def _messages(ps: penstock.Penstock, stem: str) -> int:
    """How many messages of the queues of this kind are not done; too many while the server is away."""
    try:
        channels = [ps.queue(name).stats().channels["main"] for name in QUEUES[stem]]
        return sum(channel.ready + channel.leased + channel.delayed for channel in channels)
    except PenstockError:
        return 1 << 30


def _work_under_fire(server: Server, ps: penstock.Penstock) -> None:
    for _ in range(KILLS):
        goal = max(0, _messages(ps, "tasks") - TASKS // 2)
        until(lambda goal=goal: _messages(ps, "tasks") <= goal, RETRY_TIMEOUT_S)
        server.kill()
        server.start()
    until(lambda: _messages(ps, "tasks") == 0, RETRY_TIMEOUT_S)
    until(lambda: _messages(ps, "results") == 2 * SHARDS * TASKS, RETRY_TIMEOUT_S)


def _check(ps: penstock.Penstock) -> None:
    expected = Counter(b"%d-%d" % (shard, each) for shard in range(SHARDS) for each in range(TASKS))
    for name in QUEUES["results"]:
        found = Counter[bytes]()
        while messages := ps.queue(name).receive(1_000):
            found.update(message.body for message in messages)
        assert found == expected
    until(lambda: _messages(ps, "tokens") == SHARDS * TASKS, RETRY_TIMEOUT_S)
