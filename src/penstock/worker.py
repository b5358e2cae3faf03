"""A worker of `penstock serve --workers N`: `python -m penstock.worker DESCRIPTOR`, started by its parent.

It is told over its control socket what to do; see `penstock.cluster.workers.workers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from penstock import __version__, assembly, process
from penstock.cluster.workers.node import WorkerNode
from penstock.cluster.workers.workers import CLOSE, Task
from penstock.core.errors import PenstockError
from penstock.server.log import configure
from penstock.server.node import Ready
from penstock.server.settings import Settings

log = logging.getLogger("penstock.worker")

EXIT_REFUSED = 2


class Parent:
    """The other end of the control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = b""
        self._may_close: asyncio.Event | None = None
        self._take_settings: Callable[[Settings], object] = lambda _: None
        self._is_gone = False
        self._is_serving = False
        self._is_stopping = False

    def read_task(self) -> Task:
        """What this worker shall do. Nothing else happens before that."""
        while b"\n" not in self._received:
            data = self._control.recv(1 << 16)
            if not data:
                raise SystemExit("the parent is gone")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return msgspec.json.decode(line, type=Task)

    def tell_ready(self, ready: Ready) -> None:
        """Everything listens."""
        self._is_serving = True
        self._send(msgspec.json.encode(ready))

    def watch(self, take_settings: Callable[[Settings], object]) -> None:
        """Stop in order when the parent is gone, and follow the settings that it sends."""
        self._may_close = asyncio.Event()
        self._take_settings = take_settings
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._hear)

    async def all_settled(self) -> None:
        """This worker has answered its requests: wait until the other workers have. One that never served had none."""
        self._is_stopping = True
        if not self._is_serving:
            return
        self._send(b'"settled"')
        if self._may_close is not None and not self._is_gone:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._may_close.wait(), STEP_S_MAX)

    def _hear(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        assert self._may_close is not None
        self._received += data
        while b"\n" in self._received:
            line, self._received = self._received.split(b"\n", 1)
            if line == CLOSE:
                self._may_close.set()
            elif self._is_serving and not self._is_stopping:
                try:
                    self._take_settings(msgspec.json.decode(line, type=Settings))
                except PenstockError as error:  # a file that the parent could still read
                    log.error("the settings stay as they were: %s", error)
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._is_gone = True
            self._may_close.set()
            if not self._is_stopping:
                self._is_stopping = True
                os.kill(os.getpid(), signal.SIGTERM)

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(line + b"\n")


STEP_S_MAX = 20.0
"""How long a worker waits for the other workers before it closes its shard."""


class _Watched:
    """The node, with an eye on the parent."""

    def __init__(self, node: WorkerNode, parent: Parent) -> None:
        self._node = node
        self._parent = parent

    async def __aenter__(self) -> Ready:
        self._parent.watch(self._node.take_settings)
        return await self._node.start()

    async def __aexit__(self, *_: object) -> None:
        await self._node.stop()


def main(descriptor: int) -> None:
    """Do what the parent says, until it says otherwise, or dies."""
    parent = Parent(socket.socket(fileno=descriptor))
    task = parent.read_task()
    configure(task.settings.log)
    listeners = {name: socket.socket(fileno=number) for name, number in task.listeners.items()}
    node = WorkerNode(
        task.settings,
        assembly.front_ends(task.settings),
        __version__,
        index=task.index,
        workers=task.workers,
        entropy=task.entropy,
        secret=task.secret,
        listeners=listeners,
        all_settled=parent.all_settled,
    )
    try:
        process.run_telling(_Watched(node, parent), parent.tell_ready)
    except PenstockError as error:
        print(f"penstock: worker {task.index}: {error}", file=sys.stderr)
        raise SystemExit(EXIT_REFUSED) from None


if __name__ == "__main__":
    main(int(sys.argv[1]))
