"""A node: the store, its shard, and the front ends that serve them, started and stopped in order.

A stop loses nothing and keeps nobody waiting:

    1. no front end takes new connections; idle ones are closed
    2. requests in flight are answered; only those that wait for messages (long polls) are left
    3. the shard closes: the lazy rest is committed, and every wait ends with no messages
    4. those last responses leave, and the connections close

Front ends know bytes; the node knows none of them by name. `penstock.serve` puts them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.core.commands import ChangeQueue, CreateQueue, DescribeQueue, QueueInfo
from penstock.core.errors import QueueDamaged, QueueNotFound
from penstock.server.auth import Credentials
from penstock.server.budget import Budget
from penstock.server.clock import Clock, SystemClock
from penstock.server.engines import opener_for
from penstock.server.events import Recorder
from penstock.server.log import RequestLog
from penstock.server.metrics import RequestMeter, store_families, traffic_families
from penstock.server.partition_map import PartitionMaps, Steering
from penstock.server.settings import SECTIONS, DeclaredQueue, InvalidSettings, Settings, events_config
from penstock.server.shard import Shard
from penstock.server.shards import Shards
from penstock.server.tasks import AsyncShard
from penstock.store.base import Store

log = logging.getLogger("penstock.node")

ENTROPY_BYTES = 64


class Address(msgspec.Struct, frozen=True):
    """Where a front end listens."""

    host: str
    port: int
    url: str


@dataclass
class Services:
    """What a front end gets from its node."""

    shard: Shards
    settings: Settings
    credentials: Credentials
    meter: RequestMeter
    request_log: RequestLog
    metric_sources: list[Callable[[], Iterable[Metric]]]
    """A front end adds what it wants to be shown among the metrics."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What front ends share with each other: NSQ's `Topics` as "nsq", for its TCP and its HTTP side; its connections
    to lookup services as "lookup", for who shows them."""
    partition_maps: PartitionMaps | None = None
    """Which node owns what, if there are several; None: this one owns everything."""
    cluster: Steering | None = None
    """The cluster that this node is of, to be looked at and steered; None: it is of none."""
    listening: dict[str, Address] = field(default_factory=dict)
    """Where the front ends listen, by their names, as far as they have started."""
    is_stopping: bool = False
    budget: Budget = field(init=False)
    """What all connections of this process may hold together."""

    def __post_init__(self) -> None:
        limits = self.settings.server
        self.budget = Budget(limits.buffer_bytes_max, limits.room_timeout_s, limits.body_bytes_per_s_min)


class FrontEnd(Protocol):
    """A server of some protocol."""

    name: str

    async def start(self, services: Services) -> Address:
        """Listen."""

    def take_limits(self, services: Services) -> None:
        """The settings that a running server takes have changed: follow those that were copied."""

    def stop_accepting(self) -> None:
        """Take no new connections, close idle ones."""

    async def settled(self, grace_s: float) -> bool:
        """Wait until only requests that wait for messages are in flight; False if that takes too long."""

    async def drain(self, grace_s: float) -> None:
        """Answer what is left, then close everything."""


class Ready(msgspec.Struct, frozen=True):
    """What a node says when it serves: the content of `--ready-file`."""

    version: str
    pid: int
    data: str
    listening: dict[str, Address]

    def line(self) -> str:
        """For people: a single line."""
        where = ", ".join(f"{name} {address.url}" for name, address in self.listening.items())
        return f"penstock {self.version} ready: {where}, data {self.data}"


_PORTS = {"sqs": "--sqs-port", "http": "--http-port", "nsq": "--nsq-tcp-port", "nsq-http": "--nsq-http-port"}


def cannot_listen(name: str, host: str, port: int, error: OSError) -> InvalidSettings:
    """Why a front end has no port, and what to do about it."""
    return listening_failed(name, _PORTS[name], host, port, error)


def listening_failed(name: str, flag: str, host: str, port: int, error: OSError) -> InvalidSettings:
    """As `cannot_listen`, for any service: `flag` chooses the port."""
    if error.errno == errno.EADDRINUSE:
        reason = f"the port is taken. Choose another with {flag}; 0 picks one"
    elif error.errno == errno.EACCES:
        reason = f"this user may not use the port. Choose one above 1023 with {flag}"
    else:
        reason = f"{error.strerror or error}. Look at --host and {flag}"
    return InvalidSettings(f"{name} cannot listen on {host}:{port}: {reason}")


def told_of_taking(new: Sequence[str], later: Sequence[str]) -> str:
    """What a reload did, in a line.

    >>> told_of_taking(["[log] level"], ["[server] host"])
    'credentials were read again; changed: [log] level; these need a restart: [server] host'
    """
    changed = f"; changed: {', '.join(new)}" if new else ""
    return f"credentials were read again{changed}" + (f"; these need a restart: {', '.join(later)}" if later else "")


class Node:
    """`async with Node(settings, front_ends, version) as ready`, or `start` and `stop`."""

    def __init__(
        self, settings: Settings, front_ends: Sequence[FrontEnd], version: str, *, clock: Clock | None = None
    ) -> None:
        self._settings = settings.taking(settings)[0]  # its sections are this node's own: `take_settings` changes them
        self._front_ends = list(front_ends)
        self._version = version
        self._clock = clock or SystemClock()
        self._started: list[FrontEnd] = []
        self._opener = opener_for(settings.server.data, {})
        self._store: Store | None = None
        self._services: Services | None = None
        self._recording: list[Shard] = []
        self._recorder: Callable[[], Recorder] | None = None
        """Makes what writes a shard's events; None: they are not written."""
        """The shards that are here from beginning to end: what happens there goes to the events queue, if any."""

    @property
    def services(self) -> Services:
        """What the front ends got."""
        assert self._services is not None, "the node was not started"
        return self._services

    def take_settings(self, settings: Settings) -> str:
        """Follow other settings, as far as a running server can, and say what came of it.

        Raises `InvalidSettings`, and changes nothing, if they cannot be followed.
        """
        settings.check()
        credentials = settings.open_credentials()
        if credentials.are_required != self.services.credentials.are_required:
            raise InvalidSettings("adding the first credential, or removing the last one, needs a restart")
        taken, new, later = self._settings.taking(settings)
        taken.check()
        self.services.credentials.become(credentials)
        for title, struct in SECTIONS.items():
            # whoever holds a section sees what is new in it
            for name in struct.__struct_fields__:
                msgspec.structs.force_setattr(
                    getattr(self._settings, title), name, getattr(getattr(taken, title), name)
                )
        limits = taken.server
        self.services.budget.follow(limits.room_timeout_s, limits.body_bytes_per_s_min)
        for front_end in self._started:
            front_end.take_limits(self.services)
        logging.getLogger().setLevel(taken.log.level.upper())
        return told_of_taking(new, later)

    async def start(self) -> Ready:
        """Open the store, declare the queues, listen. If anything of that fails, nothing is left open."""
        self._settings.check()
        credentials = self._settings.open_credentials()
        self._services = Services(
            shard=await self._open_shards(),
            settings=self._settings,
            credentials=credentials,
            meter=RequestMeter(),
            request_log=RequestLog(self._settings.log),
            metric_sources=[self._store_metrics, self._traffic_metrics],
        )
        self._services.metric_sources.append(self._services.meter.families)
        try:
            await declare_queues(self._services.shard, self._settings.queues)
            if self._settings.events.enabled:
                await self._record()
            return Ready(self._version, os.getpid(), self._settings.server.data, await self._listen())
        except BaseException:
            await self.stop()
            raise

    async def _open_shards(self) -> Shards:
        """What the front ends will serve. Here: one shard, in the data directory."""
        shard = await asyncio.to_thread(Shard, self._open_store, self._clock, lambda: os.urandom(ENTROPY_BYTES))
        self._recording = [shard]
        return AsyncShard(shard, commit_in_thread=self._settings.server.commit_in_thread)

    async def _listen(self) -> dict[str, Address]:
        listening = self.services.listening
        for front_end in self._front_ends:
            try:
                listening[front_end.name] = await front_end.start(self.services)
            except OSError as error:
                server = self._settings.server
                port = getattr(server, _PORTS[front_end.name].removeprefix("--").replace("-", "_"))
                raise cannot_listen(front_end.name, server.host, port, error) from error
            self._started.append(front_end)
        return listening

    async def stop(self) -> None:
        """Answer what is in flight, end the waits, commit, close. Once more does nothing."""
        services, started = self._services, self._started
        if services is None or services.is_stopping:
            return
        services.is_stopping = True
        grace_s = self._settings.server.stop_grace_s
        for front_end in started:
            front_end.stop_accepting()
        settled = await asyncio.gather(*(front_end.settled(grace_s) for front_end in started))
        if not all(settled):
            log.warning("some requests were still in flight after %g s", grace_s)
        try:
            await services.shard.close()
        finally:
            await asyncio.gather(*(front_end.drain(grace_s) for front_end in started))
            services.request_log.flush()

    async def __aenter__(self) -> Ready:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def _record(self) -> None:
        """Write what happens to the events queue; it is there from the beginning, so that readers find it. Every shard
        writes the events of its own queues, to its own partition."""
        events = self._settings.events
        config = events_config(events).changed({"partitions": self._shard_count()})
        flush_ms = max(1, round(events.flush_s * 1_000))
        try:
            await self.services.shard.call(DescribeQueue(name=events.queue))
        except QueueNotFound:
            await self.services.shard.call(CreateQueue(name=events.queue, config=config, channels=()))
        except QueueDamaged as error:
            log.error("events are not written: %s", error)
            return
        self._recorder = lambda: Recorder(events.queue, config, sample=events.sample, flush_ms=flush_ms)
        for shard in self._own_shards():
            shard.record(self._recorder())

    def _shard_count(self) -> int:
        """Into how many the queues are divided."""
        return len(self._recording)

    def _own_shards(self) -> Iterable[Shard]:
        """Those that are in this process, now."""
        return self._recording

    def _open_store(self) -> Store:
        """Also called by the shard when it has to open the store again."""
        self._store = self._opener()
        return self._store

    def _traffic_metrics(self) -> Iterable[Metric]:
        return traffic_families(((), shard.broker.totals) for shard in self._recording)

    def _store_metrics(self) -> Iterable[Metric]:
        damaged = sum(len(shard.broker.quarantine) for shard in self._recording)
        yield GaugeMetricFamily("penstock_damaged_queues", "Queues in quarantine, which are not served.", value=damaged)
        if self._store is not None:
            yield from store_families(self._store.stats)


# -- declared queues ---------------------------------------------------------------------------------------------------


async def declare_queues(shard: Shards, queues: Iterable[DeclaredQueue]) -> None:
    """Create the queues that are not there; change the settings of those that are, as far as the file gives any."""
    declared = list(queues)
    for queue in declared:
        try:
            await _declare(shard, queue)
        except QueueDamaged as error:  # the others are served
            log.error("a declared queue could not be changed: %s", error)
    names = {queue.name for queue in declared}
    for queue in declared:
        dead_letter = queue.changes().get("dead_letter")
        if dead_letter is not None and dead_letter not in names:
            await _expect_queue(shard, dead_letter, f"the dead-letter queue of {queue.name!r}")


async def _declare(shard: Shards, queue: DeclaredQueue) -> None:
    changes = queue.changes()
    with contextlib.suppress(QueueNotFound):
        info: QueueInfo = await shard.call(DescribeQueue(name=queue.name))
        kind = changes.pop("kind", info.config.kind)
        if kind != info.config.kind:
            raise InvalidSettings(
                f"the queue {queue.name!r} exists, and is {info.config.kind}: it cannot become {kind}"
            )
        if info.config.changed(changes) != info.config:
            log.info("the queue %s is changed as declared: %s", queue.name, ", ".join(sorted(changes)))
            await shard.call(ChangeQueue(name=queue.name, changes=changes))
        return
    await shard.call(CreateQueue(name=queue.name, config=queue.config()))


async def _expect_queue(shard: Shards, name: str, what: str) -> None:
    try:
        await shard.call(DescribeQueue(name=name))
    except QueueDamaged as error:
        log.error("%s: %s", what, error)
    except QueueNotFound:
        raise InvalidSettings(f"{what}, {name!r}, does not exist: declare it as well") from None
