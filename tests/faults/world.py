"""One seed: a server process, a client process, a proxy between them, and faults; then the reckoning."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select

import penstock
from tests.faults.client import DRAINED, effects, engine_of, orders
from tests.faults.promises import Promises, demand
from tests.faults.proxy import Proxy
from tests.package import PACKAGE
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 60
DRAIN_SECONDS_MAX = 120
PROGRESS_SECONDS_MAX = 5
PROGRESS_BYTES = 500
EVERYTHING = 10_000_000
TRANSPORTS = ("websocket", "websocket", "long_poll", "poll", None)
SETTINGS = """
[server]
stop_grace_s = 2

[websocket]
heartbeat_s = 0.5
session_ttl_s = 2

[log]
requests = "none"
"""


class World:
    """Everything that belongs to one seed."""

    def __init__(self, directory: Path, seed: int, database: str | None = None) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.data = directory / "data"
        self.log_path = directory / "log"
        self.database = database or f"sqlite:///{directory / 'user.db'}"
        self.transport = self.rng.choice(TRANSPORTS)
        self.counts: Counter[str] = Counter()
        self.promises = Promises()
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.client: subprocess.Popen[bytes] | None = None
        self.proxy = Proxy(self.port)
        (directory / "penstock.toml").write_text(SETTINGS)

    def run(self, faults: int) -> None:
        """Live through so many faults, drain, and check."""
        try:
            self.start_server()
            self.start_client()
            for _ in range(faults):
                self.wait_for_progress()
                time.sleep(self.rng.random() * 0.3)
                self.fault()
            self.heal()
            self.kill_client()
            self.drain()
            self.stop_server()
            self.check()
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing behind."""
        for process in (self.client, self.server):
            if process is not None:
                process.kill()
                process.wait()
        with suppress(RuntimeError):
            self.proxy.close()

    def wait_for_progress(self) -> None:
        """Faults are for clients that work: wait until this one has done something since the last fault, or can not."""
        before, deadline = self._logged_bytes(), time.monotonic() + PROGRESS_SECONDS_MAX
        while self._logged_bytes() < before + PROGRESS_BYTES and time.monotonic() < deadline:
            time.sleep(0.01)

    def _logged_bytes(self) -> int:
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    # -- faults --

    def fault(self) -> None:
        """One of them."""
        network = [self.proxy.cut, self.proxy.reset, self.truncate, self.half_close, self.stall, self.black_hole]
        processes = [self.kill_server, self.restart_server, self.kill_and_start_client]
        fault = self.rng.choice([*network, self.shut, *processes, *processes])
        self.counts[fault.__name__] += 1
        fault()

    def truncate(self) -> None:
        self.proxy.truncate(self.rng.choice([1, 7, 100, 3_000]))

    def half_close(self) -> None:
        self.proxy.half_close(to_server=self.rng.random() < 0.5)

    def stall(self) -> None:
        self.proxy.stall(True)
        time.sleep(self.rng.random() * 0.8)
        self.proxy.stall(False)

    def black_hole(self) -> None:
        self.proxy.black_hole(True)
        time.sleep(self.rng.random() * 1.5)
        self.proxy.black_hole(False)

    def shut(self) -> None:
        self.proxy.shut(True)
        self.proxy.reset()
        time.sleep(self.rng.random() * 0.4)
        self.proxy.shut(False)

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()
        time.sleep(self.rng.random() * 0.3)
        self.start_server()

    def restart_server(self) -> None:
        self.stop_server()
        self.start_server()

    def kill_client(self) -> None:
        assert self.client is not None
        demand(self.client.poll() is None, f"the client ended by itself: {self.printed('client')}")
        self.client.kill()
        self.client.wait()
        self.promises = Promises()
        self.promises.read(self.log_path.read_text().splitlines() if self.log_path.exists() else [])

    def kill_and_start_client(self) -> None:
        self.kill_client()
        self.start_client()

    def heal(self) -> None:
        """A network without faults, for whoever connects from now on."""
        self.proxy.stall(False)
        self.proxy.black_hole(False)
        self.proxy.shut(False)

    # -- processes --

    def start_server(self) -> None:
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        ports = [each for name in ("sqs", "nsq-tcp", "nsq-http") for each in (f"--{name}-port", "0")]
        flags = ["--data", str(self.data), "--config", str(self.directory / "penstock.toml"), *ports]
        flags += ["--http-port", str(self.port), "--ready-file", str(ready)]
        self.server = self._start("server", ["-m", "penstock", "serve", *flags])
        _wait(ready.exists, self.server, lambda: f"the server did not start: {self.printed('server')}")

    def stop_server(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        status = self.server.wait(START_SECONDS_MAX)
        demand(status == 0, f"the server ended with {status}: {self.printed('server')}")

    def start_client(self, *, drain: bool = False) -> None:
        numbers = [*self.promises.tried, *(n for each in self.promises.at_most_tried.values() for n in each)]
        arguments: dict[str, Any] = {
            "url": f"penstock://127.0.0.1:{self.proxy.port}",
            "transport": self.transport,
            "seed": self.rng.randrange(1 << 30),
            "first_number": max([*numbers, *self._ordered()], default=0) + 1_000,
            "log": str(self.log_path),
            "database": self.database,
            "drain": drain,
        }
        self.client = self._start("client", ["-m", "tests.faults.client", json.dumps(arguments)])
        if not drain:
            printed = self.directory / "client.out"
            ready = lambda: b"ready" in printed.read_bytes()  # noqa: E731
            _wait(ready, self.client, lambda: f"the client did not start: {self.printed('client')}")

    def drain(self) -> None:
        """Let a client without faults bring everything through."""
        self.start_client(drain=True)
        assert self.client is not None
        try:
            status = self.client.wait(DRAIN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            demand(False, f"not drained: {self.left()}, {self.printed('client')}")
        demand(status == 0, f"the draining client ended with {status}: {self.printed('client')}")
        self.promises = Promises()
        self.promises.read(self.log_path.read_text().splitlines())

    def left(self) -> str:
        """What is still in the queues."""
        with penstock.connect(f"penstock://127.0.0.1:{self.port}", timeout=10) as ps:
            return ", ".join(str(ps.queue(name).stats().channels["main"]) for name in DRAINED)

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": f"{PACKAGE}:{ROOT}"}
        with (self.directory / f"{name}.out").open("wb") as out:
            return subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=out, env=environment, cwd=ROOT)

    def printed(self, name: str) -> str:
        return (self.directory / f"{name}.out").read_text(errors="replace")[-3_000:]

    # -- the reckoning --

    def check(self) -> None:
        """Compare what is there with what was promised."""
        with penstock.open(self.data) as ps:
            out, in_line = _numbers(ps, "out"), _numbers(ps, "sorted")
            waiting = [number for queue in DRAINED for number in _numbers(ps, queue)]
        engine = engine_of(self.database)
        with engine.connect() as connection:
            made = [row.number for row in connection.execute(select(orders.c.number))]
            had_effect = [row.number for row in connection.execute(select(effects.c.number))]
        engine.dispose()
        self.promises.check(out, in_line, waiting, made, had_effect)
        self.counts["sent"] += len(self.promises.sent)
        self.counts["came through"] += len(out) + len(in_line)
        self.counts["in line"] += len(in_line)
        self.counts["orders"] += len(made)
        self.counts["at most"] += sum(map(len, self.promises.handled.values()))

    def _ordered(self) -> list[int]:
        if not self.promises.tried:
            return []
        engine = engine_of(self.database)
        with engine.connect() as connection:
            numbers = [row.number for row in connection.execute(select(orders.c.number))]
        engine.dispose()
        return numbers


def _numbers(ps: penstock.Penstock, queue: str) -> list[int]:
    return [int(message.body) for message in ps.queue(queue).browse(limit=EVERYTHING)]


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not ready():
        demand(process.poll() is None and time.monotonic() < deadline, why())
        time.sleep(0.01)
