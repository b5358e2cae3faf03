"""Topics and channels: what NSQ's two sides, TCP and HTTP, do with queues, and who is connected to them.

A topic is a queue, and a channel is its channel. A topic that is first used here is created as nsqd would have it: no
channel before somebody asks for one, nothing is dropped by age, no dead letters. Its first channel gets what was sent
before; a later one gets what comes later. A queue that another front end has created keeps its own settings.

On a cluster a topic has a partition at each node, as far as it goes: what is published at a node is stored there. A
client gets messages of all partitions, at whichever node it is. What a node says of a topic (its statistics, what
lookup services are told) is about the partitions that it has.

What is `#ephemeral` goes: a channel with its last client, a topic with its last channel, and all of them when the
server starts. (Everything else about them is as with others: their messages are on the disk as well.)

Queues and channels come and go through other front ends, too: `listeners` hear of all of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec

from penstock.core.commands import (
    CatalogEvent,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteQueue,
    OpenSession,
    PauseChannel,
    PauseQueue,
    PurgeBacklog,
    PurgeChannel,
    Send,
    Sent,
    Stats,
    Subscribe,
    Subscribed,
)
from penstock.core.errors import NotFound, OverLimit, PenstockError, QueueExists
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.chunk import PackedBodies
from penstock.protocols.nsq.client import Client
from penstock.protocols.nsq.wire import is_ephemeral
from penstock.server.audit import audit_of
from penstock.server.auth import ANYBODY
from penstock.server.node import Services
from penstock.server.shard import Call, Ticket
from penstock.server.shards import Shards, end_session

EXTRA = "nsq"
"""Where `Services.extras` keeps the topics."""

log = logging.getLogger("penstock.nsq")

Listener = Callable[[str, str, str | None], None]
"""Called with the event ("queue created", "queue deleted", "channel created", "channel deleted"), topic and channel."""
FinishListener = Callable[[str, str, list[tuple[int, int]]], None]
"""Called with topic, channel, and how many of the finished messages were sent when: (time in ms, count)."""


class Timeouts(msgspec.Struct, frozen=True):
    """How long a client has for a message: from its delivery, and from each TOUCH."""

    delivery_ms: int
    touch_ms: int
    held_ms_max: int
    """From the delivery, however often it is touched."""


class Topics:
    """Every topic of a node. One for its TCP and its HTTP side: `Topics.of(services)`."""

    def __init__(self, services: Services) -> None:
        self.settings = services.settings.nsq
        self.shard: Shards = services.shard
        self.listeners: list[Listener] = []
        self.finish_listeners: list[FinishListener] = []
        self.producers: dict[Client, None] = {}
        """Clients that have published."""
        self.requeues: dict[tuple[str, str], int] = {}
        """(topic, channel) -> messages that came back by REQ or by a disconnect, since the server was started."""
        self._clients: dict[tuple[str, str], dict[Client, None]] = {}
        self.config = QueueConfig(
            lease_ms=round(self.settings.message_timeout_s * 1_000),
            retention_ms=None,
            message_bytes_max=self.settings.message_bytes_max,
            max_receives=0,
            in_flight_max=self.settings.in_flight_max,
        )
        """What a topic created here is told."""
        self._configs = {1: self.config}
        """By the number of partitions."""
        self._audit = audit_of(services)
        self.shard.listeners.append(self._heard)

    @classmethod
    def of(cls, services: Services) -> Topics:
        """The topics of a node, made when they are first asked for."""
        found = services.extras.get(EXTRA)
        if found is None:
            found = services.extras[EXTRA] = cls(services)
        assert isinstance(found, cls)
        return found

    # -- what is there --

    def clients(self, topic: str, channel: str) -> list[Client]:
        return list(self._clients.get((topic, channel), ()))

    def subscribed(self) -> dict[str, list[str]]:
        """Every topic that a client of this node reads, wherever its messages are, with the channels that are read."""
        found: dict[str, list[str]] = {}
        for (topic, channel), clients in self._clients.items():
            if clients:
                found.setdefault(topic, []).append(channel)
        return found

    def in_flight(self, client: Client) -> int:
        """How many messages a client holds."""
        return self.shard.identity.held(client.subscription) if client.subscription else 0

    async def stats(self, topic: str) -> Stats:
        """Exact counts of a topic and its channels, as far as they are at this node."""
        return await self.shard.local_stats(topic)

    # -- topics --

    async def create_topic(self, topic: str) -> None:
        """Make sure that a topic is there."""
        if topic not in self.shard.identity.queues:
            with contextlib.suppress(QueueExists):  # another front end was faster
                await self.shard.call(CreateQueue(name=topic, config=self.config_of(topic), channels=()))

    def config_of(self, topic: str) -> QueueConfig:
        """What a topic is told that is created here: among others, how many partitions it has."""
        partitions = self.settings.topic_partitions or self.shard.partitions_for(topic)
        config = self._configs.get(partitions)
        if config is None:
            config = self._configs[partitions] = msgspec.structs.replace(self.config, partitions=partitions)
        return config

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with everything in it; its clients are disconnected. `QueueNotFound` if there is none."""
        await self.shard.call(DeleteQueue(name=topic))

    async def empty_topic(self, topic: str) -> None:
        """Drop what no channel has got yet."""
        await self.shard.call(PurgeBacklog(queue=topic))

    async def pause_topic(self, topic: str, paused: bool = True) -> None:
        """Stop moving messages from a topic to its channels, or go on."""
        await self.shard.call(PauseQueue(queue=topic, paused=paused))

    def send(self, topic: str, bodies: list[bytes] | PackedBodies, delay_ms: int | None = None) -> Send:
        """The command that publishes to a topic, creating it when needed."""
        return Send(queue=topic, bodies=bodies, delay_ms=delay_ms, channels=(), config=self.config_of(topic))

    async def publish(self, topic: str, bodies: list[bytes] | PackedBodies, delay_ms: int | None = None) -> Sent:
        sent: Sent = await self.shard.call(self.send(topic, bodies, delay_ms))
        return sent

    # -- channels --

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make sure that a channel is there. `QueueNotFound` if its topic is not."""
        await self.shard.call(CreateChannel(queue=topic, channel=channel, start="first"))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel; its clients are disconnected. An ephemeral topic goes with its last one."""
        await self.shard.call(DeleteChannel(queue=topic, channel=channel, purge_last=True))
        self._clean_topic(topic)

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Drop what waits in a channel, and what is in flight there."""
        await self.shard.call(PurgeChannel(queue=topic, channel=channel))

    async def pause_channel(self, topic: str, channel: str, paused: bool = True) -> None:
        """Stop handing out a channel's messages, or go on."""
        await self.shard.call(PauseChannel(queue=topic, channel=channel, paused=paused))

    # -- clients --

    async def subscribe(
        self, client: Client, topic: str, channel: str, lease_ms: int, room_bytes: int, ticket: Ticket
    ) -> None:
        """A client joins a channel, which is created when needed. It gets nothing before it is given credit."""
        clients = self._clients.setdefault((topic, channel), {})
        if 0 < self.settings.channel_consumers_max <= len(clients):
            limit = self.settings.channel_consumers_max
            raise OverLimit(f"consumers for {topic}:{channel} exceeds limit of {limit}")
        clients[client] = None  # from here on the channel is not empty, if it is ephemeral
        try:
            await self.shard.know(topic)
            known = self.shard.identity.queues.get(topic)
            is_new = known is None or channel not in known.channels
            await self.create_topic(topic)
            await self.create_channel(topic, channel)
            if is_new:
                address = client.remote_address.rpartition(":")[0].strip("[]")
                self._audit.note(client.identity or ANYBODY.name, address, "SUB", topic, {"channel": channel})
            client.session = await self.shard.call(OpenSession(name=f"nsq {client.remote_address}", bound=True))
            subscribed: Subscribed = await self.shard.call(
                Subscribe(
                    queue=topic,
                    channel=channel,
                    lease_ms=lease_ms,
                    session=client.session,
                    ticket=ticket,
                    in_flight=True,
                    room_bytes=room_bytes,
                )
            )
            client.subscription = subscribed.subscription
        except BaseException:
            self.leave(client, topic, channel)
            raise

    def leave(self, client: Client, topic: str, channel: str) -> None:
        """A client has gone: what it held is ready at once, and an ephemeral channel goes with its last client."""
        clients = self._clients.get((topic, channel), {})
        clients.pop(client, None)
        if client.session:
            requeued = self.in_flight(client)
            if requeued:
                self.requeued(topic, channel, requeued)
            session, client.session, client.subscription = client.session, 0, 0
            end_session(self.shard, session, "the client disconnected", lambda call: self._left(call, topic, channel))
        else:
            self._clean_channel(topic, channel)
        if not clients:
            self._clients.pop((topic, channel), None)

    def _left(self, call: Call, topic: str, channel: str) -> None:
        _check(call)
        self._clean_channel(topic, channel)

    def _clean_channel(self, topic: str, channel: str) -> None:
        """An ephemeral channel goes with its last client, here or at another node."""
        if is_ephemeral(channel) and not self._clients.get((topic, channel)):
            self._submit(DeleteChannel(queue=topic, channel=channel, purge_last=True, unless_subscribed=True))
            self._clean_topic(topic)

    def gone(self, client: Client) -> None:
        """A client that may have published has disconnected."""
        self.producers.pop(client, None)

    def requeued(self, topic: str, channel: str, count: int) -> None:
        self.requeues[topic, channel] = self.requeues.get((topic, channel), 0) + count

    def finished(self, topic: str, channel: str, sent: list[tuple[int, int]]) -> None:
        for listener in self.finish_listeners:
            listener(topic, channel, sent)

    def timeouts(self, topic: str, channel: str, message_timeout_ms: int) -> Timeouts:
        """How long a client of a channel has, given what it asked for."""
        for rule in self.settings.handshake:
            if fnmatchcase(topic, rule.topic) and fnmatchcase(channel, rule.channel):
                processing_ms = round(rule.processing_timeout_s * 1_000)
                held_ms_max = max(processing_ms, round(self.settings.message_timeout_max_s * 1_000))
                return Timeouts(round(rule.receipt_timeout_s * 1_000), processing_ms, held_ms_max)
        return Timeouts(message_timeout_ms, message_timeout_ms, round(self.settings.message_timeout_max_s * 1_000))

    # -- what is ephemeral --

    async def clean(self) -> None:
        """Delete what is ephemeral: the server starts, and nobody is connected."""
        for topic, queue in list(self.shard.identity.queues.items()):
            if is_ephemeral(topic):
                await self.shard.call(DeleteQueue(name=topic))
                continue
            for channel in list(queue.channels):
                if is_ephemeral(channel):
                    await self.shard.call(DeleteChannel(queue=topic, channel=channel, purge_last=True))

    def _clean_topic(self, topic: str) -> None:
        """An ephemeral topic goes with its last channel."""
        if is_ephemeral(topic):
            self._submit(DeleteQueue(name=topic, unless_channels=True))

    def _submit(self, command: DeleteChannel | DeleteQueue, on_settled: Callable[[Call], None] | None = None) -> None:
        """Have something done that nobody waits for; the store may be closing."""
        with contextlib.suppress(PenstockError):
            self.shard.submit(command, on_settled or _check)

    def _heard(self, event: CatalogEvent) -> None:
        if event.what == "channel deleted" and event.channel is not None:
            self.requeues.pop((event.queue, event.channel), None)
        for listener in self.listeners:
            try:
                listener(event.what, event.queue, event.channel)
            except Exception:  # the others hear of it all the same
                log.exception("a listener failed")


def _check(call: Call) -> None:
    """Nobody waits for it; but what is not just gone already is worth a line."""
    if call.error is not None and not isinstance(call.error, NotFound):
        log.warning("%s failed: %s", type(call.command).__name__, call.error)
