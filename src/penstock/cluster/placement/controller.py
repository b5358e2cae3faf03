"""The controller decides which node owns which shard, and writes that to the records of the cluster.

Every node has one. The one that acts is named in the ledger. When it has left, or is dead
(`Liveness`, below), the nodes that are alive come forward in the order of their names, a second after one
another. It sees in the records and by its links who is alive, and in the ledger everything else; it plans (`plan.py`),
and writes what changes in a transaction of its engine (`Authority`). One that was paused, and goes on after another has
taken over, is fenced, and steps down. The first thing that a controller writes is its own name; when
it reads that, it has read whatever former controllers had decided, and plans from there. Whoever wrote its name last is
the controller: one that reads another name after its own steps down.

Nothing here is needed for safety: if two controllers decided differently, shards would be fenced back and forth, and
no message would be handed out twice because of it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterable, Mapping

import msgspec

from penstock.cluster.membership.base import Authority, NotWritten
from penstock.cluster.membership.ledger import (
    ClusterRecord,
    ControllerRecord,
    Ledger,
    Record,
    ServingRecord,
    ShardRecord,
)
from penstock.cluster.placement.plan import Member, ShardLoad, plan
from penstock.wire.links import VERSIONS

ENTROPY_BYTES = 64
SEEN_S_MAX = 10.0
"""How long a decision may take to be read again, before it is made once more."""
TURN_S = 1.0
"""So long the next node waits for the one before it to become the controller."""
RETRY_S = 1.0
"""After a decision that could not be written."""
DECIDE_S = 0.25
"""How often the ledger is looked at."""
SILENCE_S = 3.0
"""When nobody was heard for so long, it is not the nodes that are silent."""
MISSED_S = 1.5
"""Who has not written for so long has missed its turn in the topic."""

log = logging.getLogger("penstock.cluster")


class Controller:
    """`turn` is called again and again by the thread that reads the ledger."""

    def __init__(
        self,
        authority: Authority,
        cluster: str,
        shards: int,
        node: str,
        ledger: Ledger,
        session_timeout_s: float,
        cool_down_s: float,
    ) -> None:
        self._authority = authority
        self._cluster = cluster
        self._shards = shards
        self._node = node
        self._ledger = ledger
        self._cool_down_s = cool_down_s
        self._is_up = False
        """While this node is the controller, or comes forward."""
        self._nonce = ""
        self._has_read_own_name = False
        self.liveness = Liveness(session_timeout_s)
        self._next_look_s = 0.0
        self._vacant_s: float | None = None
        """Since when there is no controller."""
        self._moved_s: dict[int, float] = {}
        self._absence_s = session_timeout_s
        self._absent_s: dict[str, float] = {}
        self._unreached: set[str] = set()
        self._written: dict[int, int] = {}
        """Epochs that were written, and not read yet."""
        self._written_s = 0.0

    def caught_up(self) -> None:
        """Everything was read that was there when this node came."""
        self.liveness.presume((name for name, node in self._ledger.nodes.items() if node.state != "gone"), _now_s())

    def heard(self, name: str) -> None:
        """A node has said what its shards do."""
        self.liveness.heard(name, _now_s())

    def turn(self) -> None:
        """Do what is due."""
        now_s = _now_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + DECIDE_S
        try:
            if not self._is_up:
                if self._comes_forward(now_s):
                    self._take_over(now_s)
            elif self._has_read_everything(now_s):
                self._decide(now_s)
        except NotWritten as error:  # whatever it was: what was written is either there, or was given up
            log.warning("%s", error)
            self._written.clear()
            self._is_up = False
            self._next_look_s = _now_s() + RETRY_S

    # -- who is the controller --

    def _comes_forward(self, now_s: float) -> bool:
        """Whether this node is to be the controller now."""
        named = self._ledger.controller
        if named is None or named.node == self._node:  # a new cluster; or this node was it, and was fenced, or ended
            return True
        alive = self._alive(now_s)
        if named.node in alive or self._node not in alive:
            self._vacant_s = None
            return False
        self._vacant_s = now_s if self._vacant_s is None else self._vacant_s
        in_turn = sorted(alive, key=lambda name: (self._ledger.is_draining(name), name))
        return now_s - self._vacant_s >= in_turn.index(self._node) * TURN_S

    def step_down(self) -> None:
        """Another node is the controller now, or this one ends."""
        if self._is_up:
            log.info("node %s is not the controller any more", self._node)
        self._is_up = False

    # -- taking over --

    def _take_over(self, now_s: float) -> None:
        log.info("node %s takes over as the controller", self._node)
        self._authority.take_over()
        self._is_up, self._vacant_s = True, None
        self._nonce = uuid.uuid4().hex
        self._has_read_own_name = False
        self._written.clear()
        self._moved_s = dict.fromkeys(self._ledger.shards, now_s)
        self._write({"controller": ControllerRecord(node=self._node, nonce=self._nonce)})
        self._next_look_s = 0.0

    def _has_read_everything(self, now_s: float) -> bool:
        """Whether the ledger has what this controller has written, and so whatever was written before."""
        if self._ledger.controller is None or self._ledger.controller.nonce != self._nonce:
            if self._has_read_own_name or now_s - self._written_s >= SEEN_S_MAX:
                self.step_down()
            return False
        self._has_read_own_name = True
        unread = {
            shard: epoch
            for shard, epoch in self._written.items()
            if shard not in self._ledger.shards or self._ledger.shards[shard].epoch < epoch
        }
        self._written = unread if now_s - self._written_s < SEEN_S_MAX else {}
        return not self._written

    # -- deciding --

    def _decide(self, now_s: float) -> None:
        if self._ledger.cluster is None:
            self._found()
            return
        alive = self._alive(now_s)
        if self._node not in alive:
            return  # who is not heard does not hear, either
        members = [Member(name, self._ledger.is_draining(name) or not self._can_reach(name)) for name in alive]
        shards = [self._shard_load(number) for number in range(self._ledger.cluster.shards)]
        wishes = {number: wish.node for number, wish in self._ledger.wishes.items()}
        moves = plan(members, shards, wishes, now_s, self._cool_down_s)
        records = self._unserved(alive) | self._gone(alive, now_s) | self._decisions(moves, alive)
        if records:
            self._write(records)
            self._moved_s.update(dict.fromkeys(moves, now_s))
        if moves:
            log.info("shards get new owners: %s", ", ".join(f"{number}: {name}" for number, name in moves.items()))

    def _found(self) -> None:
        """The cluster begins here."""
        record = ClusterRecord(
            identity=uuid.uuid4().hex,
            shards=self._shards,
            entropy=os.urandom(ENTROPY_BYTES),
            name=self._cluster,
        )
        self._write({"cluster": record})
        self._next_look_s = _now_s() + RETRY_S

    def _alive(self, now_s: float) -> list[str]:
        """The nodes that live, have said where they are, and do not leave."""
        nodes = self._ledger.nodes
        known = self._authority.members()
        found = self.liveness.alive(now_s) if known is None else self.liveness.alive(now_s) & known
        return sorted(name for name in found if name in nodes and nodes[name].state != "gone")

    def _can_reach(self, name: str) -> bool:
        """Whether a node speaks a version of links that this build speaks, too: if not, it is to have no shards."""
        links = self._ledger.nodes[name].links
        is_reached = VERSIONS.agreed(links) is not None
        if is_reached:
            self._unreached.discard(name)
        elif name not in self._unreached:
            self._unreached.add(name)
            log.error(
                "node %s speaks version %s of links, and this one version %s: it gets no shards until the one with the "
                "lower number is upgraded",
                name,
                links,
                VERSIONS,
            )
        return is_reached

    def _shard_load(self, number: int) -> ShardLoad:
        load = self._ledger.load_of(number)
        return ShardLoad(
            number,
            self._ledger.owner_of(number),
            self._ledger.is_settled(number),
            load.rate,
            load.commits,
            load.byte_rate,
            self._moved_s.get(number, float("-inf")),
            self._ledger.failed_at(number),
        )

    def _unserved(self, alive: list[str]) -> dict[str, Record]:
        """Nobody serves the shards of a node that is not alive: who asks for them had better wait."""
        return {
            f"serving/{number}": ServingRecord(node="", epoch=serving.epoch)
            for number, serving in self._ledger.serving.items()
            if serving.node and serving.node not in alive and self._ledger.server_of(number)
        }

    def _gone(self, alive: list[str], now_s: float) -> dict[str, Record]:
        """Nodes that have not been alive for a while are written off. One that is says so itself, again."""
        nodes = self._ledger.nodes
        absent = [name for name, node in nodes.items() if name not in alive and node.state != "gone"]
        self._absent_s = {name: self._absent_s.get(name, now_s) for name in absent}
        return {
            f"node/{name}": msgspec.structs.replace(nodes[name], state="gone")
            for name, since_s in self._absent_s.items()
            if now_s - since_s >= self._absence_s
        }

    def _decisions(self, moves: Mapping[int, str], alive: list[str]) -> dict[str, Record]:
        records: dict[str, Record] = {}
        for number, owner in moves.items():
            former, server = self._ledger.shards.get(number), self._ledger.server_of(number)
            epoch = 1 if former is None else former.epoch + 1
            records[f"shard/{number}"] = ShardRecord(
                owner=owner, epoch=epoch, after=server if server in alive and server != owner else ""
            )
            self._written[number] = epoch
        return records

    # -- writing --

    def _write(self, records: Mapping[str, Record]) -> None:
        self._authority.write(records)
        self._written_s = _now_s()


def _now_s() -> float:
    return time.monotonic()


class Liveness:
    """Who is alive, as one node sees it: by what the others write to the partitions topic, and by the links to them.

    Every node says every second in the topic what its shards do. The controller watches the links to all nodes, and all
    nodes watch the one to the controller. A node is dead

    - when nobody listens where it was, or its link was silent for `[cluster] silence_s`, and it has missed its turn in
      the topic as well: a process that was killed is known to be dead within two seconds, one that stands still within
      four;
    - when it has not written for `[cluster] session_timeout_s`, whatever its link says: without Kafka it is of no use.

    So a node whose link is cut, and which writes, is alive, and so is one that cannot write for a while because a
    broker was lost. A node that stands still for a shorter time than `silence_s` stays alive.

    Times are those at which this node reads the topic, by its own clock. A reader that stood still has heard nobody
    meanwhile, and neither has one whose broker did: after a silence of all, everybody counts as just heard. So nobody
    is taken for dead because something is wrong with the topic or the reader.

    >>> liveness = Liveness(session_timeout_s=10.0)
    >>> for now_s in range(12):
    ...     liveness.heard("a", now_s)
    ...     if now_s < 2: liveness.heard("b", now_s)
    >>> sorted(liveness.alive(11.0)), sorted(liveness.alive(10.5))
    (['a', 'b'], ['a', 'b'])
    >>> liveness.dead_links = frozenset({"a", "b"})
    >>> sorted(liveness.alive(11.0))
    ['a']
    """

    def __init__(self, session_timeout_s: float) -> None:
        self._session_timeout_s = session_timeout_s
        self._heard_s: dict[str, float] = {}
        self._last_s = float("-inf")
        self.dead_links: frozenset[str] = frozenset()
        """The nodes that the event loop knows by their links to be dead. It puts another set here when that changes."""

    def presume(self, names: Iterable[str], now_s: float) -> None:
        """These nodes were there before this one came: they have as much time as anybody to be heard."""
        for name in names:
            self._heard_s.setdefault(name, now_s)
        self._last_s = max(self._last_s, now_s)

    def heard(self, name: str, now_s: float) -> None:
        """A node has said something."""
        if now_s - self._last_s > SILENCE_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s[name] = self._last_s = now_s

    def alive(self, now_s: float) -> set[str]:
        """Who seems to live."""
        dead_links = self.dead_links
        until_s = now_s if now_s - self._last_s <= MISSED_S else self._last_s  # while the topic stands still, so do we
        return {
            name
            for name, heard_s in self._heard_s.items()
            if until_s - heard_s <= (MISSED_S if name in dead_links else self._session_timeout_s)
        }
