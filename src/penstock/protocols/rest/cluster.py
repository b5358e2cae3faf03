"""The cluster that this node is of: its nodes and shards, moves in progress, and wishes of operators."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.core.errors import AccessDenied
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.operations import Resource, operation
from penstock.protocols.rest.problems import RestError
from penstock.protocols.rest.shapes import Result, Shape
from penstock.server.partition_map import Steering
from penstock.server.settings import Settings

NodeName = Annotated[str, Meta(min_length=1, max_length=128)]
_LOADS = ("rate", "backlog", "bytes", "queues", "outbox")


class ClusterNodeRow(Result, omit_defaults=False):
    """A node."""

    node: str
    state: str
    """`serving`, `draining` or `gone`; `not known` while Kafka does not say which nodes are alive."""
    controller: bool
    """Whether this node decides which node has which shard."""
    shards: int
    """How many shards it serves."""
    http: str
    version: str
    rate: float | None
    """Messages a second, in and out. This and the next fields are null if the caller may not read all queues."""
    backlog: int | None
    bytes: int | None


class ShardRow(Result, omit_defaults=False):
    """A shard, and whether it is moving to another node."""

    shard: int
    owner: str
    """The node that should have it."""
    served_by: str
    """The node that has it now. While it moves, this is still another node, or empty."""
    state: str
    """`served`, `moving`, `not served` or `not known`."""
    wish: str | None
    """The node that an operator has moved it to, if any."""
    queues: int | None
    """This and the next fields are null if the caller may not read all queues."""
    rate: float | None
    backlog: int | None
    bytes: int | None
    outbox: int | None
    """How many entries wait to be forwarded to other shards: the lag of the shard."""


class ClusterState(Result, omit_defaults=False):
    """Nodes and shards. A server without a cluster has one of each."""

    alone: bool
    own: str
    """The node that answers."""
    version: int
    """The version of the partition map."""
    nodes: list[ClusterNodeRow]
    shards: list[ShardRow]
    options: list[str]
    """The options that `penstock cluster` needs to reach this cluster. Empty if the caller may not administer all
    queues."""


class MoveShard(Shape):
    """The node that a shard is moved to."""

    shard: Annotated[int, Meta(ge=0)]
    node: NodeName | None
    """null: the controller decides."""


class DrainNode(Shape):
    """The node to drain, or to undrain."""

    node: NodeName
    draining: bool = True


class Clusters(Resource):
    """Clusters."""

    tag = "server"

    @operation("GET", "/v1/cluster", live_s=1)
    async def cluster_state(self, caller: Caller) -> ClusterState:
        """Show the nodes and shards of the cluster: which node serves which shard, moves, and how far shards lag."""
        assert self.services.partition_maps is not None
        found, cluster = self.services.partition_maps.current(), self.services.cluster
        if cluster is not None:
            nodes, shards = cluster.nodes(), cluster.rows()
        else:
            nodes = [
                {"node": name, "state": "serving", "http": url, "shards": found.owners.count(name)}
                for name, url in found.urls.items()
            ]
            shards = [
                {"shard": shard, "owner": owner, "served_by": owner, "state": "served" if owner else "not served"}
                for shard, owner in enumerate(found.owners)
            ]
        may_read = caller.principal.allows_all("read")
        for row in (*nodes, *shards):
            row |= {name: row.get(name) if may_read else None for name in _LOADS}
        blank = {"controller": False, "version": "", "wish": None}
        return ClusterState(
            alone=cluster is None,
            own=found.own,
            version=found.version,
            nodes=msgspec.convert([blank | row for row in nodes], list[ClusterNodeRow]),
            shards=msgspec.convert([blank | row for row in shards], list[ShardRow]),
            options=self._options() if cluster is not None and caller.principal.allows_all("admin") else [],
        )

    @operation("POST", "/v1/cluster/move", is_change=True)
    async def move_shard(self, caller: Caller, body: MoveShard) -> ClusterState:
        """Move a shard to a node. It stays there until the node dies or is drained.

        The answer comes when the request is stored. The move itself takes longer: `GET /v1/cluster` shows it.
        """
        cluster = self._steering(caller)
        cluster.move(body.shard, body.node)
        await cluster.written()
        return await self.cluster_state(caller)

    @operation("POST", "/v1/cluster/drain", is_change=True)
    async def drain_node(self, caller: Caller, body: DrainNode) -> ClusterState:
        """Move a node's shards away, one by one, or let it own shards again. The node continues to serve clients."""
        cluster = self._steering(caller)
        (cluster.drain if body.draining else cluster.undrain)(body.node)
        await cluster.written()
        return await self.cluster_state(caller)

    def _options(self) -> list[str]:
        settings, usual = self.services.settings, Settings()
        options = ["--bootstrap", settings.kafka.bootstrap]
        return options + (["--cluster", settings.cluster.name] if settings.cluster.name != usual.cluster.name else [])

    def _steering(self, caller: Caller) -> Steering:
        if not caller.principal.allows_all("admin"):
            raise AccessDenied(
                f"{caller.principal.name!r} may not administer all queues: changes of a cluster need this right"
            )
        if self.services.cluster is None:
            raise RestError(409, "no_cluster", "this server is not a node of a cluster: it cannot move shards")
        return self.services.cluster
