"""A cluster as people see it, and what they wish for it: rows of nodes and shards, made from the ledger.

Wishes are records of the partitions topic. The controller follows them; who wishes need be no node.
"""

from __future__ import annotations

import time
from collections.abc import Set
from typing import Any

from penstock.cluster.membership.ledger import DrainRecord, Ledger, Record, WishRecord
from penstock.core.errors import InvalidRequest

SHARD_FIELDS = ("shard", "owner", "served_by", "state", "epoch", "wish", "queues", "rate", "backlog", "bytes", "outbox")


class NoCluster(InvalidRequest):
    """There is no cluster of that name, or none that was ever started."""


class ClusterView:
    """What the partitions topic says, for people. Whoever has it says who is alive, and writes the wishes."""

    alive: Set[str]
    shards: int

    def __init__(self, ledger: Ledger, cluster: str) -> None:
        self.ledger = ledger
        self._cluster = cluster
        self.silence: str | None = None
        """Why it is not known who is alive, if so."""
        self.unread: str | None = None
        """Why the topic could not be read, if so: then nothing is known of shards, and of nodes that they are alive."""

    def _write(self, key: str, record: Record | None) -> None:
        raise NotImplementedError

    # -- looking --

    def nodes(self) -> list[dict[str, Any]]:
        """A row for each node."""
        rows: list[dict[str, Any]] = []
        for name, node in sorted(self.ledger.nodes.items()):
            served = [shard for shard in range(self.shards) if self.ledger.server_of(shard) == name]
            if name not in self.alive and node.state == "gone" and not served:
                continue
            loads = [self.ledger.load_of(shard) for shard in served]
            rows.append(
                {
                    "node": name,
                    "state": self._state(name),
                    "controller": self.ledger.controller is not None and self.ledger.controller.node == name,
                    "shards": len(served),
                    "rate": round(sum(load.rate for load in loads), 1),
                    "backlog": sum(load.backlog for load in loads),
                    "bytes": sum(load.bytes for load in loads),
                    "link": node.link,
                    "http": node.urls.get("http", ""),
                    "version": node.version,
                }
            )
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """A row for each shard."""
        return [self._row(shard) for shard in range(self.shards)]

    def _row(self, shard: int) -> dict[str, Any]:
        if self.unread is not None:
            return {**dict.fromkeys(SHARD_FIELDS), "shard": shard, "state": "not known"}
        decided, load = self.ledger.shards.get(shard), self.ledger.load_of(shard)
        wish, server = self.ledger.wishes.get(shard), self.ledger.server_of(shard)
        owner = "" if decided is None else decided.owner
        state = "served" if self.ledger.is_settled(shard) else "moving" if server else "not served"
        return {
            "shard": shard,
            "owner": owner,
            "served_by": server,
            "state": state if not server or server in self.alive else self._lost("not served"),
            "epoch": 0 if decided is None else decided.epoch,
            "wish": None if wish is None else wish.node,
            "queues": load.queues,
            "rate": load.rate,
            "backlog": load.backlog,
            "bytes": load.bytes,
            "outbox": load.outbox,
        }

    def _state(self, name: str) -> str:
        if name not in self.alive:
            return self._lost("gone")
        return "draining" if self.ledger.is_draining(name) else "serving"

    def _lost(self, state: str) -> str:
        """What has become of a node that is not there, or of its shards, if that can be known."""
        return state if self.silence is None else "not known"

    # -- wishing --

    def move(self, shard: int, node: str | None) -> None:
        """Wish for a shard to be at a node, and to stay there; with None, to be where the controller wants it."""
        if not 0 <= shard < self.shards:
            raise InvalidRequest(f"there is no shard {shard}: they are numbered from 0 to {self.shards - 1}")
        if node is not None:
            self._check_node(node)
        self._write(f"wish/{shard}", None if node is None else WishRecord(node=node))

    def drain(self, node: str) -> None:
        """Wish for a node to be empty."""
        self._check_node(node)
        self._write(f"drain/{node}", DrainRecord(at_ms=round(time.time() * 1_000)))

    def undrain(self, node: str) -> None:
        """Let a node have shards again."""
        if node not in self.ledger.drains:
            raise InvalidRequest(f"node {node!r} is not drained, so there is nothing to undrain")
        self._write(f"drain/{node}", None)

    def _check_node(self, node: str) -> None:
        if node not in self.alive:
            known = ", ".join(sorted(self.alive)) or "none"
            raise InvalidRequest(f"no node {node!r} is alive in the cluster {self._cluster!r}; alive: {known}")
