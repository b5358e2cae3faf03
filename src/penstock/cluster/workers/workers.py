"""`penstock serve --workers N`: the parent of N processes that share ports and queues.

    data/cluster.json   how many shards there are, what their names and receipts are made of; never changes
    data/shard-<i>      the store of worker i
    data/links          the workers' Unix sockets, by which they reach each other

The parent serves nobody. It finds the ports, starts the workers, says once that all of them serve, passes signals on,
and starts a worker again that has died, with a backoff; commands for its shard wait meanwhile. When the parent dies,
the workers notice (the end of their control socket) and stop in order.

Each worker has listening sockets of its own for the same ports (SO_REUSEPORT), made by the parent: the system shares
the connections out evenly, and what is sent to a worker that died is not stuck in a queue that nobody reads. The parent
keeps a socket that is bound and does not listen, so that the ports stay taken while a worker is away.

A control socket carries lines of JSON: from the parent the worker's `Task`, then `Settings` whenever they have changed,
then `"close"`; from the worker its `Ready`, then `"settled"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from penstock.core.backoff import backoff
from penstock.core.errors import PenstockError
from penstock.server.node import Ready, cannot_listen, told_of_taking
from penstock.server.settings import InvalidSettings, Settings
from penstock.store.layout import CLUSTER_NAME, DIRECTORY_MODE, JOURNAL_NAME, TABLE_NAME
from penstock.store.lock import DirectoryLock, refuse_cache, refuse_incomplete
from penstock.store.memory import MEMORY

log = logging.getLogger("penstock.workers")

FORMAT = 1
ENTROPY_BYTES = 64
SECRET_BYTES = 32
BACKLOG = 1_024
RESTART_S = 0.1
RESTART_S_MAX = 5.0
WELL_S = 30.0
"""A worker that has served for so long is started again at once when it dies."""
STOP_MARGIN_S = 10.0
"""What a worker gets to stop beyond its own grace, before it is killed."""
STEP_S = 0.005
CLOSE = b'"close"'
LINE_BYTES_MAX = 16 * 1024 * 1024


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fixed when a directory is first served by several workers."""

    format: int
    shards: int
    entropy: bytes
    """What names and receipts are made of."""
    secret: bytes
    """What the workers know, and nobody else."""

    def __repr__(self) -> str:
        return f"ClusterFile(shards={self.shards})"


class Task(msgspec.Struct, frozen=True):
    """What a worker is told."""

    settings: Settings
    index: int
    workers: int
    entropy: bytes
    secret: bytes
    listeners: dict[str, int]
    """The descriptors of the sockets that it listens on, by front end."""

    def __repr__(self) -> str:
        return f"Task({self.index} of {self.workers})"


class WorkerFailed(PenstockError):
    """A worker could not start."""


# -- the directory -----------------------------------------------------------------------------------------------------


def open_cluster_file(data: Path, workers: int) -> ClusterFile:
    """What the directory was made with; made now if it is new. `InvalidSettings` if it was made for something else."""
    path = data / CLUSTER_NAME
    refuse_incomplete(data)
    if path.exists():
        found = read_cluster_file(path)
        if found.shards != workers:
            raise InvalidSettings(
                f"{data} was made with {found.shards} workers, and cannot be served with {workers}: start it with "
                f"--workers {found.shards}; or serve a new directory with --workers {workers}, and move the messages"
            )
        return found
    if (data / JOURNAL_NAME).exists() or (data / TABLE_NAME).exists():
        raise InvalidSettings(
            f"{data} holds the queues of a single process, which cannot be divided: serve it without --workers; "
            f"or serve a new directory with --workers {workers}, and move the messages"
        )
    refuse_cache(data)
    made = ClusterFile(FORMAT, workers, os.urandom(ENTROPY_BYTES), os.urandom(SECRET_BYTES))
    write_cluster_file(path, made)
    return made


def read_cluster_file(path: Path) -> ClusterFile:
    """What a directory was made with; `InvalidSettings` if that cannot be read."""
    try:
        version = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).get("format")
        if version is None or msgspec.json.decode(version) != FORMAT:
            raise InvalidSettings(f"{path} is of a version of Penstock that this one does not know")
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be read: {error}") from None


def write_cluster_file(path: Path, made: ClusterFile) -> None:
    """Whole or not at all, and durable before anything depends on it; for nobody else's eyes."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(made) + b"\n")
        file.flush()
        os.fsync(descriptor)
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# -- the ports ---------------------------------------------------------------------------------------------------------


class SharedPort:
    """A port that is ours, and on which several sockets may listen."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
                0
            ]
            if port:
                _bound(family, address, shared=False).close()  # others that share theirs would let us in
            self._held = _bound(family, address, shared=True)
        except OSError as error:
            raise cannot_listen(name, host, port, error) from error
        self._family = family
        self._address = self._held.getsockname()

    def listener(self) -> socket.socket:
        """One more socket that listens."""
        made = _bound(self._family, self._address, shared=True)
        made.listen(BACKLOG)
        return made

    def close(self) -> None:
        """Let go of the port."""
        self._held.close()


def _bound(family: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # the protocol: asyncio sets TCP_NODELAY by it
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


# -- the parent --------------------------------------------------------------------------------------------------------


class Worker:
    """One worker process after another, with the same shard."""

    def __init__(self, index: int, command: list[str]) -> None:
        self.index = index
        self.is_ready = asyncio.Event()
        self.is_settled = False
        self.ready: Ready | None = None
        self.process: asyncio.subprocess.Process | None = None
        self._command = command
        self._writer: asyncio.StreamWriter | None = None

    async def start(self, make_task: Callable[[dict[str, int]], Task], listeners: Mapping[str, socket.socket]) -> None:
        """Start a process with sockets of its own; they are closed here."""
        ours, theirs = socket.socketpair()
        try:
            inherited = [theirs.fileno(), *(each.fileno() for each in listeners.values())]
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                pass_fds=inherited,
                start_new_session=True,  # what is typed at a terminal is for the parent, which passes it on
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for listener in listeners.values():
                listener.close()
        task = make_task(dict(zip(listeners, inherited[1:], strict=True)))
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES_MAX)
        self._writer.write(msgspec.json.encode(task) + b"\n")
        self._listening = asyncio.get_running_loop().create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError, ValueError, msgspec.DecodeError):
            while line := await reader.readline():
                if line == b'"settled"\n':
                    self.is_settled = True
                else:
                    self.ready = msgspec.json.decode(line, type=Ready)
                    self.is_ready.set()

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.returncode is None

    def tell(self, line: bytes) -> None:
        """`CLOSE`: all have answered their requests. Or settings, as JSON."""
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                self._writer.write(line + b"\n")

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on."""
        if self.process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for the process to end. Returns its status."""
        assert self.process is not None
        status = await self.process.wait()
        self.is_ready.clear()
        self._listening.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        return status


class Workers:
    """`async with Workers(settings, ports, version) as ready`: all workers serve, until the block ends."""

    def __init__(
        self, settings: Settings, ports: Mapping[str, int], version: str, command: Iterable[str] | None = None
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._version = version
        self._command = [sys.executable, "-m", "penstock.worker"] if command is None else list(command)
        self._count = settings.server.workers
        self._opened = contextlib.ExitStack()
        self._shared: list[SharedPort] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self.workers: list[Worker] = []

    async def __aenter__(self) -> Ready:
        """Start everything. If any of it fails, nothing is left running."""
        try:
            return await self._start()
        except BaseException:
            await self._stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> Ready:
        server = self._settings.server
        if server.data == MEMORY:
            raise InvalidSettings("several workers need a directory: give --data")
        data = Path(server.data)
        data.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        self._opened.callback(DirectoryLock(data).release)
        self._file = open_cluster_file(data, self._count)
        for name, port in self._ports.items():
            shared = SharedPort(name, server.host, port)
            self._opened.callback(shared.close)
            self._shared.append(shared)
        self.workers = [Worker(index, self._command) for index in range(self._count)]
        for worker in self.workers:
            await self._launch(worker)
        await self._all_ready()
        self._supervisors = [asyncio.create_task(self._supervise(worker)) for worker in self.workers]
        first = self.workers[0].ready
        assert first is not None
        return Ready(self._version, os.getpid(), server.data, first.listening)

    def take_settings(self, settings: Settings) -> str:
        """Let every worker follow other settings, as far as a running one can, and say what came of it.

        Raises `InvalidSettings`, and changes nothing, if they cannot be followed.
        """
        settings.check()
        credentials = settings.open_credentials()
        if credentials.are_required != bool(self._settings.credentials):
            raise InvalidSettings("the first credential, or none any more, takes a restart")
        taken, new, later = self._settings.taking(settings)
        taken.check()
        self._settings = taken  # a worker that is started again begins with them
        logging.getLogger().setLevel(taken.log.level.upper())
        for worker in self.workers:
            worker.tell(msgspec.json.encode(taken))
        return told_of_taking(new, later)

    async def _launch(self, worker: Worker) -> None:
        listeners = {shared.name: shared.listener() for shared in self._shared}

        def make_task(numbers: dict[str, int]) -> Task:
            return Task(self._settings, worker.index, self._count, self._file.entropy, self._file.secret, numbers)

        await worker.start(make_task, listeners)

    async def _all_ready(self) -> None:
        """Wait until all serve; `WorkerFailed` if one of them ends before."""
        ends = [asyncio.create_task(worker.ended()) for worker in self.workers]
        ready = asyncio.create_task(self._until_ready())
        tasks: list[asyncio.Task[Any]] = [ready, *ends]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for worker, end in zip(self.workers, ends, strict=True):
                if end.done():
                    raise WorkerFailed(
                        f"{worker.index + 1} of {self._count} workers ended with status {end.result()} before it was "
                        "ready: what it said stands above"
                    )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_ready(self) -> None:
        for worker in self.workers:
            await worker.is_ready.wait()

    async def _supervise(self, worker: Worker) -> None:
        """Start a worker again whenever it dies."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            started_s = loop.time()
            status = await worker.ended()
            if self._stopping.is_set():
                return
            failures = 1 if loop.time() - started_s > WELL_S else failures + 1
            pause_s = backoff(failures, RESTART_S, RESTART_S_MAX)
            log.error("worker %d ended with status %d: it is started again in %g s", worker.index, status, pause_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            if self._stopping.is_set():
                return
            try:
                await self._launch(worker)
            except OSError as error:  # no memory, say: it is tried again, as if it had ended
                log.error("worker %d cannot be started: %s", worker.index, error)
            if self._stopping.is_set():  # whoever stops the others has not seen this one
                worker.signal(signal.SIGKILL)

    async def _stop(self) -> None:
        """End the workers in step: all answer their requests, then all close their shards."""
        self._stopping.set()
        running = [worker for worker in self.workers if worker.is_running]
        for worker in running:  # one that is not ready serves nobody, and may wait for another one for ever
            worker.signal(signal.SIGTERM if worker.is_ready.is_set() else signal.SIGKILL)
        ends = [asyncio.create_task(worker.ended()) for worker in running]
        if ends:
            closing = asyncio.create_task(self._close_in_step(running))
            grace_s = 2 * self._settings.server.stop_grace_s + STOP_MARGIN_S
            _, late = await asyncio.wait(ends, timeout=grace_s)
            if late:
                log.error("%d workers did not stop in %g s, and are killed", len(late), grace_s)
                for worker in running:
                    worker.signal(signal.SIGKILL)
                await asyncio.wait(late)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        self._opened.close()

    async def _close_in_step(self, running: list[Worker]) -> None:
        while not all(worker.is_settled or not worker.is_running for worker in running):
            await asyncio.sleep(STEP_S)
        for worker in running:
            worker.tell(CLOSE)
