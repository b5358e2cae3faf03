"""Which node has which topics and channels. Pure: the time is an argument, in seconds of any steady clock.

A *peer* is a node's connection. Names outlive their peers: a topic is known until it is deleted, though nobody has it
any more; names with `#ephemeral` go with their last peer. A *tombstone* hides one node's topic from lookups for a
while: whoever drains a node sets one, so that consumers leave and its topic can be deleted there.

    topics      topic → peer → when its tombstone was set, or None
    channels    topic → channel → peers
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.errors import PenstockError
from penstock.protocols.nsq.wire import is_ephemeral

Order = Literal["depth", "readers", "round_robin"]
ORDERS: tuple[Order, ...] = ("depth", "readers", "round_robin")


class TooManyNames(PenstockError):
    """The registry is full: delete topics and channels that nobody needs, or raise names_max."""


Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
ShortText = Annotated[str, msgspec.Meta(max_length=256)]


class Identity(msgspec.Struct, frozen=True):
    """How a node introduces itself: where its clients reach it."""

    broadcast_address: ShortText = ""
    tcp_port: Port = 0
    http_port: Port = 0
    version: ShortText = ""
    hostname: ShortText = ""


class Load(msgspec.Struct, frozen=True, array_like=True):
    """How much waits on a node, and how many readers it has: for a topic, and for each of its channels."""

    depth: int
    readers: int
    channels: dict[str, tuple[int, int]] = {}


class Peer:
    """A node's connection, and what it told us."""

    __slots__ = ("channels", "identity", "loads", "remote_address", "seen_s", "topics")

    def __init__(self, identity: Identity, remote_address: str, now_s: float) -> None:
        self.identity = identity
        self.remote_address = remote_address
        self.seen_s = now_s
        """The last sign of life."""
        self.topics: set[str] = set()
        self.channels: set[tuple[str, str]] = set()
        self.loads: dict[str, Load] = {}

    def load(self, topic: str, channel: str | None) -> tuple[int, int]:
        """Depth and readers of a topic here, or of one of its channels; zeros when the node does not tell."""
        load = self.loads.get(topic)
        if load is None:
            return 0, 0
        return (load.depth, load.readers) if channel is None else load.channels.get(channel, (0, 0))


class Registry:
    """All that a lookup service knows.

    >>> registry = Registry(inactive_s=300, tombstone_s=45)
    >>> node = Peer(Identity("node1", 4150, 4151, "1.3.0"), "10.0.0.1:5000", now_s=0)
    >>> registry.add(node)
    >>> registry.register(node, "orders", "billing")
    >>> registry.topics(), registry.channels("orders"), len(registry.producers("orders", now_s=1))
    (['orders'], ['billing'], 1)
    """

    def __init__(self, inactive_s: float, tombstone_s: float, names_max: int = 100_000) -> None:
        self._inactive_s = inactive_s
        self._tombstone_s = tombstone_s
        self._names_max = names_max
        self._peers: dict[Peer, None] = {}
        self._topics: dict[str, dict[Peer, float | None]] = {}
        self._channels: dict[str, dict[str, set[Peer]]] = {}
        self._channel_count = 0
        self._turns = itertools.count()

    @property
    def name_count(self) -> int:
        return len(self._topics) + self._channel_count

    @property
    def peer_count(self) -> int:
        return len(self._peers)

    # -- what nodes do --

    def add(self, peer: Peer) -> None:
        self._peers[peer] = None

    def remove(self, peer: Peer) -> None:
        """A node's connection is gone, and what it registered with it."""
        self._peers.pop(peer, None)
        for topic, channel in list(peer.channels):
            self._leave_channel(peer, topic, channel)
        for topic in list(peer.topics):
            self._leave_topic(peer, topic)

    def register(self, peer: Peer, topic: str, channel: str | None = None) -> None:
        """A node has this topic, or this channel of it."""
        self.create(topic, channel)
        self._topics[topic].setdefault(peer, None)
        peer.topics.add(topic)
        if channel is not None:
            self._channels[topic][channel].add(peer)
            peer.channels.add((topic, channel))

    def unregister(self, peer: Peer, topic: str, channel: str | None = None) -> None:
        """A node has this channel no longer; or, without a channel, the topic and all its channels."""
        if channel is not None:
            self._leave_channel(peer, topic, channel)
            return
        for each in [name for of, name in peer.channels if of == topic]:
            self._leave_channel(peer, topic, each)
        self._leave_topic(peer, topic)

    def note_loads(self, peer: Peer, loads: dict[str, Load]) -> None:
        """What waits on a node now; of topics and channels that it has registered: no others take room."""
        for topic, load in loads.items():
            if topic in peer.topics:
                channels = {name: pair for name, pair in load.channels.items() if (topic, name) in peer.channels}
                peer.loads[topic] = Load(load.depth, load.readers, channels)

    def _leave_topic(self, peer: Peer, topic: str) -> None:
        peer.topics.discard(topic)
        peer.loads.pop(topic, None)
        holders = self._topics.get(topic)
        if holders is not None:
            holders.pop(peer, None)
            if not holders and is_ephemeral(topic):
                self.delete_topic(topic)

    def _leave_channel(self, peer: Peer, topic: str, channel: str) -> None:
        peer.channels.discard((topic, channel))
        holders = self._channels.get(topic, {}).get(channel)
        if holders is not None:
            holders.discard(peer)
            if not holders and is_ephemeral(channel):
                self.delete_channel(topic, channel)

    # -- what people do --

    def create(self, topic: str, channel: str | None = None) -> None:
        """Make a name known, whoever has it."""
        if topic not in self._topics:
            self._make_room()
            self._topics[topic] = {}
        channels = self._channels.setdefault(topic, {})
        if channel is not None and channel not in channels:
            self._make_room()
            channels[channel] = set()
            self._channel_count += 1

    def _make_room(self) -> None:
        if self.name_count >= self._names_max:
            raise TooManyNames(f"there are {self.name_count} topics and channels already: no more than that are kept")

    def delete_topic(self, topic: str) -> None:
        for channel in self.channels(topic):
            self.delete_channel(topic, channel)
        self._channels.pop(topic, None)
        for peer in self._topics.pop(topic, {}):
            peer.topics.discard(topic)
            peer.loads.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; False if it is not known."""
        holders = self._channels.get(topic, {}).pop(channel, None)
        if holders is None:
            return False
        self._channel_count -= 1
        for peer in holders:
            peer.channels.discard((topic, channel))
        return True

    def tombstone(self, topic: str, node: str, now_s: float) -> None:
        """Hide a topic of the node, given as its HTTP address `host:port`, from lookups."""
        holders = self._topics.get(topic, {})
        for peer in holders:
            if f"{peer.identity.broadcast_address}:{peer.identity.http_port}" == node:
                holders[peer] = now_s

    # -- what clients ask --

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def channels(self, topic: str) -> list[str]:
        return sorted(self._channels.get(topic, ()))

    def producers(self, topic: str, now_s: float, order: Order | None = None, channel: str | None = None) -> list[Peer]:
        """The nodes that have a topic, are alive, and are not hidden.

        In order of depth (most first), of readers (fewest first), or beginning with another one at each call.
        """
        found = [
            peer
            for peer, since_s in self._topics.get(topic, {}).items()
            if self._is_alive(peer, now_s) and not self._is_hidden(since_s, now_s)
        ]
        if order is None or not found:
            return found
        if order == "round_robin":
            turn = next(self._turns) % len(found)
            return found[turn:] + found[:turn]
        return sorted(found, key=_SORT_KEYS[order](topic, channel))

    def nodes(self, now_s: float) -> Iterator[tuple[Peer, list[str], list[bool]]]:
        """The nodes that are alive: each with its topics, and whether each of them is hidden."""
        for peer in self._peers:
            if self._is_alive(peer, now_s):
                topics = sorted(peer.topics)
                yield peer, topics, [self._is_hidden(self._topics[topic].get(peer), now_s) for topic in topics]

    def registrations(self) -> Iterator[tuple[str, Iterable[tuple[Peer, float | None]]]]:
        """Everything, by nsqlookupd's keys (category:topic:channel); for `/debug`."""
        yield "client::", [(peer, None) for peer in self._peers]
        for topic, holders in self._topics.items():
            yield f"topic:{topic}:", holders.items()
        for topic, channels in self._channels.items():
            for channel, peers in channels.items():
                yield f"channel:{topic}:{channel}", [(peer, None) for peer in peers]

    def _is_alive(self, peer: Peer, now_s: float) -> bool:
        return now_s - peer.seen_s <= self._inactive_s

    def _is_hidden(self, since_s: float | None, now_s: float) -> bool:
        return since_s is not None and now_s - since_s < self._tombstone_s


_SORT_KEYS: dict[Order, Callable[[str, str | None], Callable[[Peer], Any]]] = {
    "depth": lambda topic, channel: lambda peer: -peer.load(topic, channel)[0],
    "readers": lambda topic, channel: lambda peer: peer.load(topic, channel)[1],
}
