"""What a cluster says of itself: its records, and the state of the cluster that they add up to. Pure.

    cluster        the cluster itself, written once                        by the first controller
    controller     who decides                                             by the controller
    shard/<n>      who shall own a shard, and in which epoch               by the controller
    node/<name>    where a node is reached, and whether it serves          by the node
    load/<name>    what its shards have to do, about every second          by the node
    serving/<n>    who serves a shard                                      by who serves it
    released/<n>   who does not any more                                   by who did
    wish/<n>       where somebody wants a shard to be                      by hand
    drain/<name>   a node that somebody wants to be empty                  by hand

In Kafka they are in the partitions topic, which is compacted: the last record of each key stays. In ZooKeeper each is a
znode. Records are JSON, so that Kafka's and ZooKeeper's own tools show them. Each
has a version; what is newer than this program is refused, and the node does not start. Fields that this program does
not know are passed over.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.cluster.base import ClusterMap, NodeAddress
from penstock.store.errors import StoreVersion
from penstock.wire.requests import Versions

VERSION = 1

NodeState = Literal["serving", "draining", "gone"]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value in the topic."""

    v: int = VERSION


class ClusterRecord(_Record, frozen=True):
    identity: str
    shards: int
    entropy: bytes
    """Of which every shard makes the same realm and secret."""
    name: str = ""
    """Of which the shards' transactional ids are made; "" if it was written by a version that did not say it."""

    def __repr__(self) -> str:
        return f"ClusterRecord({self.identity!r}, shards={self.shards})"


class ControllerRecord(_Record, frozen=True):
    """Who decides."""

    node: str
    nonce: str
    """Whoever reads this has read everything that was decided before."""


class ShardRecord(_Record, frozen=True):
    """Who shall own a shard."""

    owner: str
    epoch: int
    """Counts up with every decision."""
    after: str = ""
    """The node that has it until then, and will release it; "": nobody is expected to."""


class NodeRecord(_Record, frozen=True):
    incarnation: str
    """Another one each time that the node starts."""
    link: str
    urls: dict[str, str] = {}
    state: NodeState = "serving"
    version: str = ""
    """Of the program."""
    links: Versions = Versions(2, 2)
    """The versions of links that it speaks. The first build does not say it."""

    @property
    def address(self) -> NodeAddress:
        """Where it is reached."""
        return NodeAddress(self.link, self.urls, self.links.newest)


class LoadOfShard(msgspec.Struct, frozen=True):
    rate: float = 0.0
    """Messages a second, in and out."""
    backlog: int = 0
    bytes: int = 0
    queues: int = 0
    outbox: int = 0
    """Entries that wait to be forwarded to other shards."""
    commits: float = 0.0
    """A second."""
    byte_rate: float = 0.0
    """Bytes that it commits a second."""


class LoadRecord(_Record, frozen=True):
    """What a node's shards have to do."""

    at_ms: int
    shards: dict[int, LoadOfShard] = {}


class ServingRecord(_Record, frozen=True):
    """Who serves a shard."""

    node: str
    """"": nobody."""
    epoch: int
    since_ms: int = 0


class ReleasedRecord(_Record, frozen=True):
    """Who does not serve a shard any more, or will not."""

    node: str
    epoch: int
    reason: str = ""


class WishRecord(_Record, frozen=True):
    """Where somebody wants a shard to be."""

    node: str


class DrainRecord(_Record, frozen=True):
    """Somebody wants a node to be empty."""

    at_ms: int = 0


Record = (
    ClusterRecord
    | ControllerRecord
    | ShardRecord
    | NodeRecord
    | LoadRecord
    | ServingRecord
    | ReleasedRecord
    | WishRecord
    | DrainRecord
)

_BY_NUMBER: dict[str, type[Any]] = {
    "shard": ShardRecord,
    "serving": ServingRecord,
    "released": ReleasedRecord,
    "wish": WishRecord,
}
_BY_NAME: dict[str, type[Any]] = {"node": NodeRecord, "load": LoadRecord, "drain": DrainRecord}
_ALONE: dict[str, type[Any]] = {"cluster": ClusterRecord, "controller": ControllerRecord}
_OF_THE_MAP = frozenset({"shard", "serving", "released", "node"})
"""What the map is made of: with every record of these it has another version."""


def encode(record: Record) -> bytes:
    """A record as it is in the topic."""
    return msgspec.json.encode(record)


def key_of(message: Any) -> str:
    """The key of a message of Kafka's. One that is no text was written by somebody else, and stands for nothing."""
    return (message.key() or b"").decode(errors="replace")


class Ledger:
    """The state of the cluster, from records in their order.

    >>> ledger = Ledger()
    >>> ledger.apply(0, "node/a", encode(NodeRecord(incarnation="1", link="h:1")))
    >>> ledger.apply(1, "serving/0", encode(ServingRecord(node="a", epoch=1)))
    >>> ledger.map_for("a", 2).owners
    ('a', '')
    """

    def __init__(self) -> None:
        self.cluster: ClusterRecord | None = None
        self.controller: ControllerRecord | None = None
        self.shards: dict[int, ShardRecord] = {}
        self.serving: dict[int, ServingRecord] = {}
        self.released: dict[int, ReleasedRecord] = {}
        self.wishes: dict[int, WishRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.loads: dict[str, LoadRecord] = {}
        self.drains: dict[str, DrainRecord] = {}
        self.map_version = 0
        """Grows with every record that says who serves what, or shall, and where that is. The same for all who have
        read as far."""
        self._tables: dict[str, dict[Any, Any]] = {
            "shard": self.shards,
            "serving": self.serving,
            "released": self.released,
            "wish": self.wishes,
            "node": self.nodes,
            "load": self.loads,
            "drain": self.drains,
        }

    def apply(self, offset: int, key: str, value: bytes | None) -> None:
        """Take one record. Keys that this program does not know are another version's, and are left alone."""
        if key in _ALONE:
            setattr(self, key, None if value is None else _decode(key, value, _ALONE[key]))
            return
        kind, _, name = key.partition("/")
        if kind in _OF_THE_MAP:
            self.map_version = max(self.map_version, offset + 1)
        if kind in _BY_NUMBER and name.isdecimal():
            self._put(kind, int(name), None if value is None else _decode(key, value, _BY_NUMBER[kind]))
        elif kind in _BY_NAME and name:
            self._put(kind, name, None if value is None else _decode(key, value, _BY_NAME[kind]))

    def _put(self, kind: str, name: int | str, record: Any) -> None:
        table = self._tables[kind]
        if record is None:
            table.pop(name, None)
        elif kind != "serving" or name not in table or record.epoch >= table[name].epoch:
            table[name] = record

    def server_of(self, shard: int) -> str:
        """Who serves a shard; "" if nobody does."""
        serving, released = self.serving.get(shard), self.released.get(shard)
        if serving is None or (released is not None and released.epoch >= serving.epoch):
            return ""
        return serving.node

    def owner_of(self, shard: int) -> str:
        """Who shall own a shard; "" if nobody shall, or whoever should has let go of it."""
        decided, released = self.shards.get(shard), self.released.get(shard)
        if decided is None or (released is not None and released.epoch >= decided.epoch):
            return ""
        return decided.owner

    def failed_at(self, shard: int) -> str:
        """The node that let go of a shard last, because it could not open it; "" if that is not how it was."""
        serving, released = self.serving.get(shard), self.released.get(shard)
        if released is None or not released.reason or (serving is not None and serving.epoch >= released.epoch):
            return ""
        return released.node

    def is_settled(self, shard: int) -> bool:
        """Whether the owner serves the shard."""
        decided, serving = self.shards.get(shard), self.serving.get(shard)
        if decided is None or serving is None:
            return False
        return self.server_of(shard) == decided.owner and serving.epoch == decided.epoch

    def load_of(self, shard: int) -> LoadOfShard:
        """What a shard has to do, as its server says; else as its owner said last."""
        for name in (self.server_of(shard), self.owner_of(shard)):
            load = self.loads.get(name)
            if load is not None and shard in load.shards:
                return load.shards[shard]
        return LoadOfShard()

    def is_draining(self, name: str) -> bool:
        """Whether a node shall be empty."""
        node = self.nodes.get(name)
        return name in self.drains or (node is not None and node.state != "serving")

    def map_for(self, own: str, shards: int) -> ClusterMap:
        """Who serves what, as one of the nodes sees it."""
        owners = tuple(self.server_of(shard) for shard in range(shards))
        nodes = {name: node.address for name, node in self.nodes.items() if node.state != "gone" or name in owners}
        owners = tuple(name if name in nodes else "" for name in owners)
        decided = (self.shards.get(shard) for shard in range(shards))
        next_owners = tuple(
            server or ("" if each is None else each.owner) for server, each in zip(owners, decided, strict=True)
        )
        return ClusterMap(self.map_version, own, owners, nodes, next_owners)


def _decode(key: str, value: bytes, shape: type[Any]) -> Any:
    try:
        head = msgspec.json.decode(value, type=_Record)
        if head.v > VERSION:
            raise StoreVersion(
                f"the record {key!r} of the partitions topic has version {head.v}, and this node knows version "
                f"{VERSION}: update Penstock"
            )
        return msgspec.json.decode(value, type=shape)
    except msgspec.MsgspecError as error:
        raise StoreVersion(f"the record {key!r} of the partitions topic cannot be read: {error}") from None
