from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.server.partition_map import PartitionMaps
from tests.pages.browser import Browser
from tests.pages.console import SOURCE, fill
from tests.protocols.rest.serving import Server, needed

FETCH_SECONDS_MAX = 300


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests. Where Chromium has to be got first, that takes minutes, once."""
    browser = Browser()
    yield browser
    browser.stop()


@pytest.fixture(scope="session")
def packages() -> Path:
    """What the console is built and examined with, as its lock file says: fetched where it is not there yet."""
    for program in ("node", "npm"):
        needed(program)
    directory = SOURCE / "node_modules"
    fetched_for, wanted = directory / ".penstock-lock", (SOURCE / "package-lock.json").read_bytes()
    if not fetched_for.exists() or fetched_for.read_bytes() != wanted:
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        ended = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
        if ended.returncode:
            reason = f"npm ci failed: the page's build and accessibility are NOT tested: {ended.stderr[:1_000]}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        fetched_for.write_bytes(wanted)
    return directory


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def serve(text: str = "", maps: PartitionMaps | None = None) -> Server:
        started.append(Server(tmp_path / f"data-{len(started)}", text, maps))
        return started[-1]

    yield serve
    for server in started:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """A server with something to see: `orders`, and `mail` with six dead letters in two groups."""
    server = serve()
    fill(server)
    return server
