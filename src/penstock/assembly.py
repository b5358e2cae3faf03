"""A node put together with its front ends, run as a process until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from penstock import __version__
from penstock.protocols.front_end import HttpFrontEnd
from penstock.protocols.http import Handler
from penstock.protocols.rest.server import RestFrontEnd
from penstock.protocols.sqs.server import SqsFrontEnd
from penstock.server.node import FrontEnd, Node, Ready, Services
from penstock.server.settings import Settings


def run(chosen: Settings, ready_file: Path | None) -> None:
    """Serve until a signal comes. Returns when everything is committed and closed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(chosen, lambda ready: announce(ready, ready_file)))


async def _serve(chosen: Settings, on_ready: Callable[[Ready], None]) -> None:
    """Serve until a signal comes, then stop in order. A second signal ends the process at once."""
    _allow_many_files()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: os._exit(1) if stopping.is_set() else stopping.set())
    async with Node(chosen, front_ends(chosen), __version__) as ready:
        gc.collect()
        gc.freeze()
        on_ready(ready)
        await stopping.wait()


def front_ends(chosen: Settings) -> list[FrontEnd]:
    """Every protocol that a node speaks."""
    return [
        HttpFrontEnd("sqs", chosen.server.sqs_port, sqs_handler),
        RestFrontEnd(chosen.server.http_port, __version__),
    ]


def sqs_handler(services: Services) -> Handler:
    """The SQS front end of a node."""
    return SqsFrontEnd(services.shard, services.settings.sqs, services.credentials).handle


def announce(ready: Ready, ready_file: Path | None) -> None:
    """Say where everything listens: a line for people, and the file, whole or not at all, for programs."""
    if ready_file is not None:
        partial = ready_file.with_name(f"{ready_file.name}.{os.getpid()}.partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(ready)) + b"\n")
        partial.replace(ready_file)
    print(ready.line(), flush=True)


def _allow_many_files() -> None:
    """Every connection is an open file: take as many as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
