"""A server and the way to it, both under fire: what the soaks of listeners and of outboxes share.

`Fire` starts `penstock serve` behind a proxy. `burn` does one bad thing, by chance: it kills the server, which comes up
again on its ports, or breaks every connection in one of several ways. Who works goes through `url`; who counts goes
straight to the server, through `direct_url`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.compat.server import Server
from tests.faults.proxy import Proxy

START_SECONDS_MAX = 300.0
"""Much, since a soak may run on a machine that has other things to do."""
SETTINGS = """
[websocket]
heartbeat_s = 1
session_ttl_s = 2

[log]
requests = "none"
"""


class Fire:
    """`with Fire(directory, seed) as fire:` serves and burns; `counts` says what happened."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        config = directory / "penstock.toml"
        config.write_text(SETTINGS)
        self._ready_file = directory / "ready.json"
        self._server = Server(directory, "--config", str(config))
        self._start_server()
        self._proxy = Proxy(self._server.http_port)
        self.url = f"penstock://127.0.0.1:{self._proxy.port}"
        self.direct_url = f"penstock://127.0.0.1:{self._server.http_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(RuntimeError):
            self._proxy.close()
        self._server.kill()

    def burn(self) -> None:
        """One fault."""
        network = (self._cut, self._reset, self._truncate, self._half_close, self._stall)
        fault = self._chance.choice((*network, self._kill_server, self._kill_server))
        fault()
        self.counts["server kills" if fault == self._kill_server else "connections broken"] += 1

    def _cut(self) -> None:
        self._proxy.cut()

    def _reset(self) -> None:
        self._proxy.reset()

    def _truncate(self) -> None:
        self._proxy.truncate(self._chance.choice([1, 7, 100, 3_000]))

    def _half_close(self) -> None:
        self._proxy.half_close(to_server=self._chance.random() < 0.5)

    def _stall(self) -> None:
        self._proxy.stall(True)
        time.sleep(self._chance.uniform(0.0, 0.5))
        self._proxy.stall(False)
        self._proxy.reset()

    def _kill_server(self) -> None:
        self._server.kill()
        self._start_server()

    def _start_server(self) -> None:
        self._server.begin()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready_file.exists() and self._server.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._server.wait_until_ready()
