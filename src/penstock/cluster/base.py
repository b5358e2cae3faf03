"""What the parts of a cluster know of each other: places that take a shard's commands, and the map."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from penstock.core.commands import Command, Delivery
from penstock.core.errors import PenstockError, StoreError
from penstock.core.queues.partition import SHARD_SHIFT as SHARD_SHIFT
from penstock.server.shard import Call, ShardClosed, give_back
from penstock.server.tasks import AsyncShard, CallbackCall
from penstock.wire.links import VERSIONS


def shard_of_id(queue_id: int) -> int:
    """The shard in which a queue's id was made.

    >>> shard_of_id((5 << SHARD_SHIFT) + 17)
    5
    """
    return queue_id >> SHARD_SHIFT


class ShardMoved(PenstockError):
    """This node does not own the shard (any more, or yet). The command was not done: try again at its owner."""

    def __init__(self, shard: int, map_version: int = 0) -> None:
        super().__init__(f"shard {shard} is not served here: look at the map, and ask its owner")
        self.shard = shard
        self.map_version = map_version

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shard, self.map_version)


class LinkBroken(StoreError):
    """The link to another node broke after the command was written: it may or may not have been done."""


class ShardUnserved(StoreError):
    """Nobody serves the shard just now: it was not done. Try again later."""


class Place(Protocol):
    """Somewhere that takes commands for shards: this process's shards (`ShardHost`), or a node behind a `Link`.

    Whatever happens, every call is settled once, in the loop, and `on_settled` is told: with a reply, or with an error
    in `call.error` (`ShardMoved`: not done; `LinkBroken`: not known; or the core's).
    """

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard."""

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left, and hears no more of it. Messages that it got go back."""

    def give_back(self, shard: int, delivery: Delivery) -> None:
        """Messages that a shard has handed out, and nobody takes, are ready again."""


class NodeAddress(msgspec.Struct, frozen=True):
    """Where a node is reached."""

    link: str
    """For other nodes: HOST:PORT."""
    urls: dict[str, str] = {}
    """For clients: the front ends' URLs by name (sqs, http, nsq, nsq-http)."""
    newest: int = VERSIONS.newest
    """The newest version of links that it speaks."""


class ClusterMap(msgspec.Struct, frozen=True):
    """One version of who owns what.

    >>> ClusterMap(3, "a", ("a", "b", ""), {"a": NodeAddress("h:1"), "b": NodeAddress("h:2")}).own_shards
    [0]
    """

    version: int
    own: str
    """This node's name."""
    owners: tuple[str, ...]
    """The node that serves each shard; "" while none does."""
    nodes: dict[str, NodeAddress]
    next_owners: tuple[str, ...] = ()
    """The node that serves each shard, or is to serve it next; "" while nobody has decided that."""

    @property
    def own_shards(self) -> list[int]:
        """The shards that this node serves."""
        return [shard for shard, owner in enumerate(self.owners) if owner == self.own]

    def earlier_than(self, version: int) -> str:
        """A node that does not speak this version of links yet; "" if all do."""
        return next((name for name, node in sorted(self.nodes.items()) if node.newest < version), "")


class ClusterMaps(Protocol):
    """Knows the map as it is now."""

    def current(self) -> ClusterMap:
        """The newest version."""

    def on_change(self, listener: Callable[[ClusterMap], None]) -> None:
        """Have a function called, in the loop, with every new version."""


# -- the shards of this process ----------------------------------------------------------------------------------------


class ShardHost:
    """This process's shards, by number. A `Place`.

    A shard that is given up goes in order: from now on its commands are answered with `ShardMoved`, so that whoever
    sent them asks the next owner; those in flight are done and answered; receives that wait, and subscriptions, end
    with `ShardMoved`; then the store is closed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._served: dict[int, AsyncShard] = {}

    @property
    def served(self) -> Mapping[int, AsyncShard]:
        """The shards that are served here, as they are now."""
        return MappingProxyType(self._served)

    def add(self, shard: int, served: AsyncShard) -> None:
        assert shard not in self._served, f"shard {shard} is served here already"
        self._served[shard] = served

    async def release(self, shard: int) -> None:
        """Serve a shard no longer: returns when all of it is committed and closed. One that is not here is fine.

        An error says that its last commit may have failed. The shard is gone from here in any case.
        """
        served = self._served.pop(shard, None)
        if served is not None:
            await served.close(ShardMoved(shard))

    async def close(self) -> None:
        """The process ends: commit what is left, end every wait with no messages, close every store."""
        closing = list(self._served.values())
        results = await asyncio.gather(*(served.close() for served in closing), return_exceptions=True)
        self._served.clear()
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to a shard; `ShardMoved`, in the loop's next turn, if it is not here."""
        served = self._served.get(shard)
        if served is not None:
            try:
                return served.submit(command, on_settled, caller)
            except ShardClosed:
                pass
        call = CallbackCall(command, on_settled)
        call.error = ShardMoved(shard)
        self._loop.call_soon(call.settle)
        return call

    def withdraw(self, call: CallbackCall) -> None:
        if call.home is None:
            call.on_settled = _ignore
        else:
            call.home.withdraw(call)

    def give_back(self, shard: int, delivery: Delivery) -> None:
        """Messages that a shard here has handed out, and nobody takes, are ready again."""
        self.submit(shard, give_back(delivery), _ignore)


def _ignore(_call: Call) -> None:
    """Nobody waits any more."""
