"""Three nodes of a cluster, for suites that were written for one server: `PENSTOCK_TEST_CLUSTER=3`.

They are on a real Kafka, or with `PENSTOCK_TEST_ENGINE=zookeeper` on a real ZooKeeper. Its servers
(`PENSTOCK_TEST_BROKERS`, three) and the nodes are started once in a session, when the first test needs them. Nodes
live in threads of the test's process, each with its own loop, its own shards, and real links to the others; they share
a clock, which tests set forward or stop. Each server that a test starts is a front end of one of the nodes, of each in
turn: it has a router of its own (`LentRouter`), so that it can be stopped while the node goes on.

After each test the queues that are new are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from penstock.cluster.base import ShardHost
from penstock.cluster.node import ClusterNode
from penstock.cluster.routing.routed import Routed
from penstock.cluster.routing.router import Router
from penstock.core.commands import Command, DeleteQueue, EndSession, ListQueues, Receive
from penstock.core.errors import PenstockError, QueueNotFound
from penstock.server.clock import SystemClock
from penstock.server.settings import Settings, parse
from penstock.server.shard import Call, ShardClosed
from penstock.server.tasks import AsyncShard, CallbackCall
from tests.cluster.nodes import Backend
from tests.kafka import loudly, unique_prefix
from tools.kafka import KafkaCluster
from tools.servers import QUICK_TO_START

NODES = int(os.environ.get("PENSTOCK_TEST_CLUSTER", "0"))
BROKERS = int(os.environ.get("PENSTOCK_TEST_BROKERS", "3"))
ENGINE = os.environ.get("PENSTOCK_TEST_ENGINE", "kafka")
SHARDS = 4
SERVER_SCOPE: Literal["function", "package"] = "function" if NODES else "package"
"""Of servers that tests share: with a cluster each has one of its own, of the next node; that costs little there."""
START_S_MAX = 120.0
RETRY_TIMEOUT_S = 60.0


def settings_text(backend: Backend, cluster: str, node: str) -> str:
    """A penstock.toml's sections about the cluster."""
    return f"""
[cluster]
name = "{cluster}"
shards = {SHARDS}
node = "{node}"
link_port = 0
session_timeout_s = 10
move_pause_s = 3600
{backend.settings_text(copies=3 if BROKERS >= 3 else 1)}"""


def started_backend() -> Backend:
    """Brokers of Kafka, or servers of ZooKeeper."""
    if ENGINE == "kafka":
        with loudly():
            return KafkaCluster(BROKERS, java_options=(QUICK_TO_START,))
    from tests import zookeeper
    from tools.zookeeper import ZooKeeperEnsemble

    with zookeeper.loudly():
        return ZooKeeperEnsemble(BROKERS)


class ClusterClock(SystemClock):
    """The clock of all nodes. It runs, or stands still, and can be set forward; it never goes back."""

    __slots__ = ("_ahead_ms", "_still_ms")

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ms = 0
        self._still_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms if self._still_ms is None else self._still_ms

    def stand_still(self) -> ClusterClock:
        self._still_ms = self.now_ms()
        return self

    def run(self) -> ClusterClock:
        now_ms, self._still_ms = self.now_ms(), None
        self._ahead_ms += max(0, now_ms - self.now_ms())
        return self

    def advance_ms(self, passed_ms: int) -> None:
        if self._still_ms is None:
            self._ahead_ms += passed_ms
        else:
            self._still_ms += passed_ms

    def advance(self, seconds: float) -> None:
        self.advance_ms(round(seconds * 1_000))


class Home:
    """A node in a thread, without front ends of its own."""

    def __init__(self, settings: Settings, clock: ClusterClock) -> None:
        self.loop = asyncio.new_event_loop()
        self.failures: list[Exception] = []
        self._settings = settings
        self._clock = clock
        self._stopping = asyncio.Event()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it serves."""
        self._started.result(START_S_MAX)

    def run(self, work: Any) -> Any:
        """A coroutine, in the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(RETRY_TIMEOUT_S)

    @property
    def router(self) -> Router:
        """The node's own."""
        return cast(Router, self.node.services.shard)

    def begin_stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it never started
            self.loop.call_soon_threadsafe(self._stopping.set)

    def join(self) -> None:
        self._thread.join(RETRY_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    async def _serve(self) -> None:
        self.node = ClusterNode(self._settings, [], "test", clock=self._clock, on_fatal=self.failures.append)
        async with self.node:
            self._started.set_result(None)
            await self._stopping.wait()


class Cluster:
    """The session's servers and nodes."""

    def __init__(self) -> None:
        self.clock = ClusterClock()
        self._turns = itertools.count()
        self._opened = contextlib.ExitStack()
        self.homes: list[Home] = []
        backend = started_backend()
        self._opened.callback(backend.close)
        try:
            self._start_nodes(backend)
        except BaseException:
            self.close()
            raise

    def _start_nodes(self, backend: Backend) -> None:
        directory = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))
        self._opened.callback(self._stop_nodes)
        name = unique_prefix("suites")
        for node in (f"n{number}" for number in range(NODES)):
            text = f'[server]\ndata = "{directory / node}"\nengine = "{ENGINE}"\nstop_grace_s = 1\n'
            self.homes.append(Home(parse(text + settings_text(backend, name, node)), self.clock))
        for home in self.homes:
            home.wait()

    def _stop_nodes(self) -> None:
        for home in self.homes:
            home.begin_stop()
        for home in self.homes:
            home.join()

    def close(self) -> None:
        """Stop everything."""
        self._opened.close()

    def next_home(self) -> Home:
        """A node, each in its turn."""
        return self.homes[next(self._turns) % len(self.homes)]

    def home_here(self) -> Home:
        """The node in whose loop we are."""
        loop = asyncio.get_running_loop()
        return next(home for home in self.homes if home.loop is loop)

    def everywhere(self) -> list[AsyncShard]:
        """Every shard in its order, whoever has it."""
        served = {number: shard for home in self.homes for number, shard in home.router.served.items()}
        return [served[number] for number in sorted(served)]

    async def tick(self) -> None:
        """A step in every shard; what they have for each other arrives as well."""
        steps = [asyncio.run_coroutine_threadsafe(home.router.tick(), home.loop) for home in self.homes]
        await asyncio.gather(*map(asyncio.wrap_future, steps))
        while any(served.identity.outbox_targets() for served in self.everywhere()):
            await asyncio.sleep(0.001)

    def queues(self) -> set[str]:
        """Every queue's name."""
        home = self.homes[0]
        found: list[str] = []
        while True:
            names = home.run(home.router.call(ListQueues(after=found[-1] if found else "")))
            found += names
            if not names:
                return set(found)

    def delete(self, names: set[str]) -> None:
        """Delete these queues."""
        self.homes[0].run(self._delete(names))

    async def _delete(self, names: set[str]) -> None:
        router = self.homes[0].router
        answers = await asyncio.gather(*(router.call(DeleteQueue(name=name)) for name in names), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, QueueNotFound):
                raise answer


class LentHost:
    """A node's host, which stays open when a router of it closes."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        return self._host.served

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        return self._host.submit(shard, command, on_settled, caller)

    def withdraw(self, call: CallbackCall) -> None:
        self._host.withdraw(call)

    async def close(self) -> None:
        """The node goes on."""


class LentRouter(Router):
    """One more router of a node, for one server of a test."""

    def __init__(self, cluster: Cluster, home: Home) -> None:
        node, own = home.node, home.router
        found = node.maps.ledger.cluster
        assert found is not None
        self.cluster = cluster
        self._home = home
        self._lent: dict[CallbackCall, None] = {}
        """Receives that are not answered yet."""
        self._leaving = False
        super().__init__(
            LentHost(cast(ShardHost, own._host)), node._place, node.maps, found.shards, found.entropy, cluster.clock
        )

    def everywhere(self) -> list[AsyncShard]:
        return self.cluster.everywhere()

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        if self._closing or (self._leaving and command.__class__ is not EndSession):
            call = Routed(command, on_settled, self, caller)
            self.fail_soon(call, ShardClosed("the node is stopping: ask another one"))
            return call
        if command.__class__ is not Receive:
            return super().submit(command, on_settled, caller)
        received = super().submit(command, self._answering(on_settled), caller)
        if not cast(Routed, received).is_over:
            self._lent[received] = None
        return received

    def _answering(self, on_settled: Callable[[Call], None]) -> Callable[[Call], None]:
        def answer(call: Call) -> None:
            self._lent.pop(cast(CallbackCall, call), None)
            on_settled(call)

        return answer

    def withdraw(self, call: CallbackCall) -> None:
        self._lent.pop(call, None)
        super().withdraw(call)

    async def tick(self) -> None:
        if self._closing:
            raise ShardClosed("the node is stopping: ask another one")
        await self.cluster.tick()

    async def close(self) -> None:
        """As a node's router does, but that the shards go on. Waits end first: without sessions they would fail."""
        if self._leaving:
            return
        self._leaving = True
        self._end_waits()
        for session in self.sessions:
            if session.bound:  # a connection's: it would end with its node
                with contextlib.suppress(PenstockError):
                    await self.call(EndSession(session=session.number))
        await super().close()
        self._end_waits()
        self._home.node.maps._listeners.remove(self._map_changed)
        heard = self._events._heard
        for shard, served in heard.items():
            served.listeners[:] = [each for each in served.listeners if not self._is_own(each, shard)]
        heard.clear()

    def _end_waits(self) -> None:
        for call in list(self._lent):
            self._end_wait(cast(Routed, call))

    def _is_own(self, listener: object, shard: int) -> bool:
        return isinstance(listener, partial) and listener.func == self._events._hear and listener.args[0] == shard


_cluster: list[Cluster] = []


def cluster() -> Cluster:
    """The session's; started by whoever asks first."""
    assert NODES, "PENSTOCK_TEST_CLUSTER does not ask for a cluster"
    if not _cluster:
        _cluster.append(Cluster())
    return _cluster[0]


def close_cluster() -> None:
    """The session is over."""
    while _cluster:
        _cluster.pop().close()


@contextlib.contextmanager
def tidied() -> Iterator[None]:
    """Queues that are new at the end of the block are deleted."""
    before = _cluster[0].queues() if _cluster else set()
    yield
    if _cluster:
        tidy = _cluster[0]
        tidy.clock.run()
        tidy.homes[0].run(tidy.tick())
        tidy.delete(tidy.queues() - before)
        tidy.clock.advance(1)  # what worked at them notices that they are gone
        tidy.homes[0].run(tidy.tick())
