"""A service as a process: until a signal ends it, in order; and how it says that it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

from penstock.server.budget import FEWEST
from penstock.server.settings import InvalidSettings
from penstock.signals import was_ignored, was_kept

YOUNG_MAX = 20_000
"""How many new objects there are before somebody looks for cycles among them."""


_SWITCH_S = 0.0005
"""How long another thread, such as the store's applier, may keep the interpreter when the loop wants it back, which is
after every sync. Python's own 5 ms are many times what a commit takes."""


_Announced = TypeVar("_Announced", bound=msgspec.Struct)


def run(
    service: contextlib.AbstractAsyncContextManager[_Announced],
    ready_file: Path | None,
    greeting: Callable[[_Announced], str],
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Returns when everything is closed. A second signal ends the process at once.

    What the service says when it listens becomes the ready file, and the greeting for people. `on_hangup` is called at
    every SIGHUP, once everything listens, and at once for one that was kept until then (`signals.keep`). Where it says
    that the terminal was closed in which the service was started, the service stops, unless it was started by `nohup`.
    """
    tell = partial(announce, ready_file=ready_file, greeting=greeting)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(service, tell, on_hangup))


async def _serve(
    service: contextlib.AbstractAsyncContextManager[_Announced],
    tell: Callable[[_Announced], None],
    on_hangup: Callable[[], None] | None,
) -> None:
    _allow_many_files()
    sys.setswitchinterval(_SWITCH_S)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    stops_with_terminal = _has_terminal() and not was_ignored(signal.SIGHUP)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: os._exit(1) if stopping.is_set() else stopping.set())
    async with contextlib.AsyncExitStack() as running:
        starting = loop.create_task(running.enter_async_context(service))
        if await _comes_before(starting, stopping):
            tell(starting.result())
            if on_hangup is not None:

                def hung_up() -> None:
                    if stops_with_terminal and not _has_terminal():
                        stopping.set()
                    else:
                        on_hangup()

                loop.add_signal_handler(signal.SIGHUP, hung_up)
                if was_kept(signal.SIGHUP):
                    hung_up()
            seldom_look_for_garbage()
            await stopping.wait()


def _has_terminal() -> bool:
    """Whether there is a terminal that this process belongs to. One that was closed is none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def _comes_before(starting: asyncio.Task[_Announced], stopping: asyncio.Event) -> bool:
    """Whether a service starts before a signal comes. It may wait for others for long: then it is given up."""
    signalled = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if starting.done():
        return True
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return False


def seldom_look_for_garbage() -> None:
    """What is there now stays. From now on, look for cycles when many objects are new, and not at every few requests.

    These leave none, and the look costs some percent of the time. What cycles may hold meanwhile is a few megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, 10, 10)


def announce(ready: _Announced, ready_file: Path | None, greeting: Callable[[_Announced], str]) -> None:
    """Say where everything listens: a greeting for people, and the file, whole or not at all, for programs."""
    if ready_file is not None:
        said = msgspec.json.format(msgspec.json.encode(ready)) + b"\n"
        partial = ready_file.with_name(f"{ready_file.name}.{os.getpid()}.partial")
        try:
            if ready_file.exists() and not ready_file.is_file():  # such as /dev/stderr: it must not become a file
                ready_file.write_bytes(said)
            else:
                partial.write_bytes(said)
                partial.replace(ready_file)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise InvalidSettings(f"--ready-file: {ready_file} cannot be written: {error.strerror}") from None
    if sys.__stdout__ is not None:  # who has closed it wants no line, and a server all the same
        print(greeting(ready), flush=True)


def _allow_many_files() -> None:
    """Every connection is an open file: take as many as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < hard < FEWEST:
        raise InvalidSettings(f"the limit of open files is {hard}: a server needs {FEWEST} at least, raise ulimit -n")
    # macOS takes no more than this for what it calls unlimited
    soft = 10_240 if sys.platform == "darwin" and hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
