"""What front ends read without asking: names, configurations, ids, receipts; of this node's shards, and of others.

All shards of a cluster have one realm and one secret, so message ids and receipts are made and read anywhere. Queues of
this node's shards are read live, from their brokers. Queues of other nodes are known from what they were asked
(`DescribeQueue`), for `FRESH_S`: whoever wants to read of such a queue asks first (`Router.unknown`, `Router.know`).
That a queue is not there is never remembered, so a queue that was created at one node can be used at another at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from heapq import merge
from itertools import groupby
from time import monotonic
from typing import Any, TypeVar

from penstock.cluster.base import shard_of_id
from penstock.cluster.routing.placement import home_of
from penstock.core.commands import Delivery, QueueInfo, RedriveTask
from penstock.core.delivery.receipt import Receipt, message_id, receipt_key
from penstock.core.queues.config import QueueConfig
from penstock.core.storage.records import Meta
from penstock.server.shards import ChannelView, QueueView
from penstock.server.tasks import AsyncShard

LOOKS_MAX = 5
"""How often a queue is looked at again because another one has its name."""
FRESH_S = 2.0
"""How long what another node said of a queue is taken for true."""
KEPT_S = 60.0
"""How long the number of its partitions is, which never changes, and its id."""
_REMEMBERED_MAX = 20_000
_KEYS_MAX = 10_000
_SECRET_BYTES = 32
_REALM_BYTES = 8

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def meta_of(entropy: bytes) -> Meta:
    """The secret and the realm that all shards of a cluster share: they are opened with the same entropy."""
    realm = int.from_bytes(entropy[_SECRET_BYTES : _SECRET_BYTES + _REALM_BYTES], "big")
    return Meta(1, entropy[:_SECRET_BYTES], realm)


class FarChannel:
    """A channel of a queue of another node."""

    __slots__ = ("id", "ready")

    def __init__(self, channel_id: int) -> None:
        self.id = channel_id
        self.ready = 0


class FarQueue:
    """A queue of another node, as it was described, with as much in it as there was then."""

    __slots__ = ("asked_s", "backlog", "channels", "config", "id", "messages", "name", "size")

    def __init__(self, info: QueueInfo, asked_s: float) -> None:
        self.id = info.queue_id
        self.name = info.name
        self.config: QueueConfig = info.config
        self.channels: dict[str, FarChannel] = {
            name: FarChannel(number) for name, number in zip(info.channels, info.channel_ids, strict=True)
        }
        self.messages, self.size, self.backlog = info.messages, info.size, 0
        self.asked_s = asked_s


class LocalChannel:
    """A channel's parts in several shards of this node, as one."""

    __slots__ = ("id", "ready")

    def __init__(self, parts: list[ChannelView]) -> None:
        self.id = parts[0].id
        self.ready = sum(part.ready for part in parts)


class LocalQueue:
    """Several partitions of a queue in shards of this node, as one: as much as is here."""

    __slots__ = ("backlog", "channels", "config", "id", "messages", "name", "size")

    def __init__(self, parts: list[QueueView]) -> None:
        first = parts[0]
        self.id, self.name, self.config = first.id, first.name, first.config
        self.messages = sum(part.messages for part in parts)
        self.backlog = sum(part.backlog for part in parts)
        self.size = sum(part.size for part in parts)
        self.channels = {
            name: LocalChannel([part.channels[name] for part in parts if name in part.channels])
            for name in dict.fromkeys(name for part in parts for name in part.channels)
        }


class Catalog:
    """Names for a router: see `server.shards.Names`."""

    def __init__(self, served: Mapping[int, AsyncShard], shards: int, meta: Meta, sessions: Sized) -> None:
        self._served = served
        self._shards = shards
        self.meta = meta
        self.sessions = sessions
        self.queues: Mapping[str, QueueView] = Queues(self)
        self.local_queues: Mapping[str, QueueView] = LocalQueues(self)
        self._far: dict[str, FarQueue] = {}
        self._far_by_id: dict[int, FarQueue] = {}
        self._far_tasks: dict[int, RedriveTask] = {}
        self.tasks: Mapping[int, RedriveTask] = Tasks(self)
        self._receipt_keys: dict[int, bytes] = {}
        self.holdings: Any = None
        """Who knows how many messages a subscription holds: set by the router."""

    # -- queues of this node --

    def near(self, name: str) -> AsyncShard | None:
        """The shard of a queue's first partition, if this node has it."""
        return self._served.get(home_of(name, self._shards))

    def local_names(self) -> Iterator[str]:
        """The queues whose first partition is in a shard of this node."""
        for shard, served in list(self._served.items()):
            for name, queue in list(served.identity.queues.items()):
                if shard_of_id(queue.id) == shard:
                    yield name

    def parts(self, name: str) -> list[int]:
        """The shards of this node that have a partition of a queue."""
        return [shard for shard, served in self._served.items() if name in served.identity.queues]

    def part_names(self) -> Iterator[str]:
        """The queues of which a partition is in a shard of this node, in order, as they are now."""
        names = merge(*[served.identity.part_names() for served in self._served.values()])
        return (name for name, _ in groupby(names))

    def local(self, name: str) -> QueueView | None:
        """What this node has of a queue; None if that is nothing."""
        found = [served.identity.queues.get(name) for served in self._served.values()]
        parts: list[QueueView] = [queue for queue in found if queue is not None]
        if len(parts) < 2:
            return parts[0] if parts else None
        return LocalQueue(parts)

    def find(self, name: str) -> QueueView | None:
        """A queue, if it is known to be there."""
        near = self.near(name)
        if near is not None:
            return near.identity.queues.get(name)
        far = self._far.get(name)
        return far if far is not None and monotonic() - far.asked_s < FRESH_S else None

    def known(self, name: str) -> QueueView | None:
        """A queue as far as it never changes, its id and partitions; None if nothing is known.

        A queue of another node may be gone, and another one have its name: whoever relies on this says the id
        (`of_queue`), so that the shard can tell.
        """
        near = self.near(name)
        if near is not None:
            return near.identity.queues.get(name)
        far = self._far.get(name)
        return far if far is not None and monotonic() - far.asked_s < KEPT_S else None

    def config(self, name: str) -> QueueConfig | None:
        """A queue's configuration as far as it never changes; None if nothing is known."""
        queue = self.known(name)
        return None if queue is None else queue.config

    def is_fresh(self, name: str) -> bool:
        """Whether `find` can tell."""
        if self.near(name) is not None:
            return True
        far = self._far.get(name)
        return far is not None and monotonic() - far.asked_s < FRESH_S

    def knows_id(self, queue_id: int, channel_id: int) -> bool:
        """Whether `queue_name` and `channel_name` can tell."""
        if shard_of_id(queue_id) in self._served:
            return True
        return self.channel_name(queue_id, channel_id) is not None

    # -- queues of other nodes --

    def note(self, info: QueueInfo) -> None:
        """A queue was described, by its first partition."""
        if self.near(info.name) is not None:
            return
        queue = FarQueue(info, monotonic())
        _remember(self._far, info.name, queue, _REMEMBERED_MAX)
        _remember(self._far_by_id, info.queue_id, queue, _REMEMBERED_MAX)

    def forget(self, name: str) -> None:
        """A queue is gone, or not as it was."""
        queue = self._far.pop(name, None)
        if queue is not None:
            self._far_by_id.pop(queue.id, None)

    def note_channel(self, delivery: Delivery) -> None:
        """A receive has shown a channel of a queue of another node; perhaps it has made it."""
        queue = self._far_by_id.get(delivery.queue_id)
        if queue is not None and delivery.channel not in queue.channels:
            queue.channels[delivery.channel] = FarChannel(delivery.channel_id)

    def find_task(self, number: int) -> RedriveTask | None:
        """A redrive, if it is known."""
        served = self._served.get(shard_of_id(number))
        return self._far_tasks.get(number) if served is None else served.identity.tasks.get(number)

    def task_numbers(self) -> list[int]:
        """The redrives of this node's shards."""
        return [number for served in self._served.values() for number in served.identity.tasks]

    def note_task(self, task: RedriveTask) -> None:
        """A redrive was told of, with its number in the cluster."""
        _remember(self._far_tasks, task.task, task, _REMEMBERED_MAX)

    # -- names and identities --

    def queue_name(self, queue_id: int) -> str | None:
        served = self._served.get(shard_of_id(queue_id))
        if served is not None:
            return served.identity.queue_name(queue_id)
        queue = self._far_by_id.get(queue_id)
        return None if queue is None else queue.name

    def refuse_damaged(self, name: str) -> None:
        """`QueueDamaged` if a shard that is served here has this queue in quarantine."""
        for served in self._served.values():
            served.identity.refuse_damaged(name)

    def channel_name(self, queue_id: int, channel_id: int) -> str | None:
        served = self._served.get(shard_of_id(queue_id))
        if served is not None:
            return served.identity.channel_name(queue_id, channel_id)
        queue = self._far_by_id.get(queue_id)
        if queue is None:
            return None
        return next((name for name, channel in queue.channels.items() if channel.id == channel_id), None)

    @property
    def realm(self) -> int:
        """What message ids are made of, besides queue and number."""
        return self.meta.realm

    def message_id(self, queue_id: int, sequence: int) -> str:
        return message_id(self.meta.realm, queue_id, sequence)

    def receipt_key(self, queue_id: int) -> bytes:
        key = self._receipt_keys.get(queue_id)
        if key is None:
            key = receipt_key(self.meta.secret, queue_id)
            _remember(self._receipt_keys, queue_id, key, _KEYS_MAX)
        return key

    def receipt(self, queue_id: int, channel_id: int, sequence: int, attempt: int) -> str:
        return Receipt(queue_id, channel_id, sequence, attempt).seal(self.receipt_key(queue_id))

    def open_receipt(self, text: str) -> Receipt:
        """Read a receipt; `ForgedReceipt` if this cluster has not made it."""
        return Receipt.open(text, self.receipt_key)

    def held(self, subscription: int) -> int:
        """How many messages the session of a subscription holds, as far as this node can tell."""
        return int(self.holdings.held(subscription))


class Queues(Mapping[str, QueueView]):
    """Queues by name: any that is known can be got; those of this node are listed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def get(self, name: str, default: Any = None) -> Any:
        """A queue that is known to be there."""
        found = self._catalog.find(name)
        return default if found is None else found

    def __getitem__(self, name: str) -> QueueView:
        found = self._catalog.find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._catalog.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return self._catalog.local_names()

    def __len__(self) -> int:
        return sum(1 for _ in self._catalog.local_names())


class LocalQueues(Mapping[str, QueueView]):
    """What this node has of queues, by name."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getitem__(self, name: str) -> QueueView:
        found = self._catalog.local(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return self._catalog.part_names()

    def __len__(self) -> int:
        return sum(1 for _ in self._catalog.part_names())


class Tasks(Mapping[int, RedriveTask]):
    """Redrives by number, likewise."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getitem__(self, number: int) -> RedriveTask:
        found = self._catalog.find_task(number)
        if found is None:
            raise KeyError(number)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._catalog.task_numbers())

    def __len__(self) -> int:
        return len(self._catalog.task_numbers())


def _remember(memory: dict[_Key, _Value], key: _Key, value: _Value, limit: int) -> None:
    """Keep the newest; the oldest goes."""
    memory.pop(key, None)
    if len(memory) >= limit:
        del memory[next(iter(memory))]
    memory[key] = value
