"""Sessions that are known at every node: a session's number says where it was opened, and its commands go there.

A router numbers the sessions that are opened through it, and knows in which shards they are (`sessions.py`). Nodes
share the numbers: of every so many, one is a node's own. What a client does with a session over any connection
(receive, heartbeat, end) is taken to the router of that node, over the link, under the number of no shard (`ROUTER`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from penstock.cluster.base import ClusterMaps, Place, ShardHost, ShardMoved, ShardUnserved
from penstock.cluster.routing.routed import Routed, ignore
from penstock.cluster.routing.router import Host, Router
from penstock.cluster.routing.sessions import RoutedSessions
from penstock.core.commands import Command, Delivery, EndSession, Heartbeat, Receive
from penstock.server.clock import Clock
from penstock.server.shard import Call, give_back
from penstock.server.tasks import CallbackCall

ROUTER = -1
"""On a link: not for a shard, but for the other node's router."""
SLOTS = 4_096
"""A node's sessions have every so manieth number. Names of nodes that fall into the same slot get along, too."""
_COUNTERS = (1 << 31) // SLOTS
OF_SESSIONS = (Receive, Heartbeat, EndSession)
"""What a client does with a session over any connection; the rest stays within the connection of the session."""


def slot_of(node: str) -> int:
    """Which of `SLOTS` numbers is a node's: 1 to `SLOTS` - 1.

    >>> slot_of("n1"), slot_of("n2")
    (3437, 3273)
    """
    return zlib.crc32(node.encode()) % (SLOTS - 1) + 1


def numbers_of(node: str, holder: str = "") -> RoutedSessions:
    """Numbers for the sessions of a node; they begin anywhere, so that those from before a restart are nobody's."""
    return RoutedSessions(random.randrange(1, _COUNTERS) * SLOTS + slot_of(node), SLOTS, holder)


class RouterPlace:
    """Where other nodes' commands go: to the shards here; or, for a session that was opened here, to the router."""

    def __init__(self, host: ShardHost) -> None:
        self._host = host
        self.router: Router | None = None

    def submit(
        self, shard: int, command: Command, on_settled: Callable[[Call], None], caller: object = None
    ) -> CallbackCall:
        """Take a command to the shard, or to the router."""
        if shard == ROUTER and self.router is not None:
            return Router.submit(self.router, command, on_settled, caller)  # and no further
        return self._host.submit(shard, command, on_settled, caller)

    def withdraw(self, call: CallbackCall) -> None:
        """Whoever submitted this receive has left."""
        if isinstance(call, Routed) and self.router is not None:
            Router.withdraw(self.router, call)
        else:
            self._host.withdraw(call)

    def give_back(self, shard: int, delivery: Delivery) -> None:
        """Messages that nobody takes are ready again, at whichever node their shard is by now."""
        if self.router is None:
            self._host.give_back(shard, delivery)
        elif shard == ROUTER:
            self.router.give_back(delivery)
        else:
            self.router.submit_to(shard, give_back(delivery), ignore)


class SessionRouter(Router):
    """The router of a node among others, whose sessions it knows where to find."""

    def __init__(
        self,
        node: str,
        host: Host,
        remote: Callable[[str], Place],
        maps: ClusterMaps,
        shards: int,
        entropy: bytes,
        clock: Clock,
        holder: str = "",
    ) -> None:
        super().__init__(host, remote, maps, shards, entropy, clock, sessions=numbers_of(node, holder))
        self._node = node
        self._nodes = maps
        self._place_of = remote

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        """Take a command to where it belongs."""
        if isinstance(command, OF_SESSIONS) and command.session:
            owner = self._owner_of(command.session)
            if owner is not None:
                return self._submit_to(owner, command, on_settled, caller)
        return super().submit(command, on_settled, caller)

    def _submit_to(
        self, node: str, command: Command, on_settled: Callable[[Call], None], caller: object
    ) -> CallbackCall:
        def settled(call: Call) -> None:
            if isinstance(call.error, ShardMoved):
                call.error = ShardUnserved(
                    f"the session belongs to node {node!r}, which cannot be reached at the moment: nothing was done"
                )
            on_settled(call)

        return self._place_of(node).submit(ROUTER, command, settled, caller)

    def _owner_of(self, session: int) -> str | None:
        """The other node at which a session was opened; None if it was here, or nobody knows."""
        slot = session % SLOTS
        if slot == slot_of(self._node) and self.sessions.knows(session):
            return None
        nodes = self._nodes.current().nodes
        return next((name for name in nodes if name != self._node and slot_of(name) == slot), None)

    def withdraw(self, call: CallbackCall) -> None:
        if call.shard != ROUTER or not isinstance(call.command, OF_SESSIONS):
            super().withdraw(call)
        elif (owner := self._owner_of(call.command.session)) is not None:
            self._place_of(owner).withdraw(call)
