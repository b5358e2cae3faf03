"""The controller: the node that decides who shall own which shard. Runs in the thread of its `Membership`.

A node is the controller while the group of nodes assigns it the partitions topic's one partition. It sees in the group
who is alive, and in the ledger everything else; it plans (`plan.py`), and writes what changes in a transaction. All
controllers share one transactional id: one that was paused, and goes on after another has taken over, is fenced, and
steps down. The first thing that a controller writes is its own name; when it reads that, it has read whatever former
controllers had decided, and plans from there.

Alive is who is in the group, and who was heard in the topic within a session timeout (`heartbeats.py`). For the group
may not answer, and when its coordinator stands still, and another broker takes its place, nodes that are well drop out
of it and join again.

Nothing here is needed for safety: if two controllers decided differently, shards would be fenced back and forth, and
no message would be handed out twice because of it.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping

import msgspec
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.cluster.membership.group import GroupAsker, GroupSilent
from penstock.cluster.membership.ledger import (
    ClusterRecord,
    ControllerRecord,
    Ledger,
    Record,
    ServingRecord,
    ShardRecord,
    encode,
)
from penstock.cluster.placement.plan import Member, ShardLoad, plan
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.wire.links import VERSIONS

# Who has been heard of in the partitions topic: the consumer group cannot always be asked who is alive.
#
# Every node says every second what its shards do. Times are those at which the controller reads it, by its own clock. A
# reader that stood still has heard nobody meanwhile, and neither has one whose broker did: after a silence of all,
# everybody counts as just heard. So nobody is taken for dead because something is wrong with the topic or the reader.


SILENCE_S = 3.0
"""When nobody was heard for so long, it is not the nodes that are silent."""


class Heartbeats:
    """When each node was heard last.

    >>> beats = Heartbeats()
    >>> for now_s in range(8):
    ...     beats.heard("a", now_s)
    ...     if now_s < 2: beats.heard("b", now_s)
    >>> sorted(beats.alive(within_s=10)), sorted(beats.alive(within_s=3))
    (['a', 'b'], ['a'])
    """

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        self._last_s = float("-inf")

    def heard(self, name: str, now_s: float) -> None:
        """A node has said something."""
        if now_s - self._last_s > SILENCE_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._heard_s[name] = self._last_s = now_s

    def alive(self, within_s: float) -> set[str]:
        """Who was heard not much longer ago than anybody."""
        return {name for name, heard_s in self._heard_s.items() if heard_s >= self._last_s - within_s}


ENTROPY_BYTES = 64
ASK_S = 10.0
"""How long Kafka may take to take a decision."""
ASK_GROUP_S = 2.0
"""How long it may take to say who is alive."""
SEEN_S_MAX = 10.0
"""How long a decision may take to be read again, before it is made once more."""
LOOKS_PER_SESSION = 6
"""How often in a session timeout it is asked who is alive."""
DECIDE_S = 0.25
"""How often the ledger is looked at."""
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._STATE}
)

log = logging.getLogger("penstock.cluster")


class Controller:
    """`turn` is called again and again by the thread that reads the ledger."""

    def __init__(
        self, options: KafkaOptions, node: str, ledger: Ledger, session_timeout_s: float, cool_down_s: float
    ) -> None:
        self._options = options
        self._node = node
        self._ledger = ledger
        self._look_s = session_timeout_s / LOOKS_PER_SESSION
        self._transaction_s = max(session_timeout_s, 1.0)
        self._cool_down_s = cool_down_s
        self._is_up = False
        self._producer: Producer | None = None
        self._group = GroupAsker(options)
        self._nonce = ""
        self._has_read_own_name = False
        self._members: set[str] | None = None
        """Who is in the group; None while that is not known."""
        self._session_timeout_s = session_timeout_s
        self._beats = Heartbeats()
        self._is_group_silent = False
        self._asked_s = float("-inf")
        self._next_look_s = 0.0
        self._moved_s: dict[int, float] = {}
        self._absence_s = session_timeout_s
        self._absent_s: dict[str, float] = {}
        self._unreached: set[str] = set()
        self._written: dict[int, int] = {}
        """Epochs that were written, and not read yet."""
        self._written_s = 0.0

    def step_up(self) -> None:
        """The group has made this node the controller."""
        log.info("node %s is the controller", self._node)
        self._is_up = True
        self._next_look_s = 0.0

    def step_down(self) -> None:
        """Another node is the controller now, or nobody is."""
        if self._is_up:
            log.info("node %s is not the controller any more", self._node)
        self._is_up = False
        self._drop_producer()
        self._group.close()

    def heard(self, name: str) -> None:
        """A node has said in the topic what its shards do."""
        self._beats.heard(name, time.monotonic())

    def turn(self) -> None:
        """Do what is due."""
        now_s = time.monotonic()
        if not self._is_up or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + min(self._look_s, DECIDE_S)
        try:
            if self._producer is None:
                self._take_over(now_s)
            elif self._has_read_everything(now_s):
                self._decide(now_s)
        except KafkaException as error:
            self._failed(error.args[0])

    # -- taking over --

    def _take_over(self, now_s: float) -> None:
        producer = Producer(
            {
                **self._options.client_properties(),
                "client.id": self._node,
                "transactional.id": f"{self._options.cluster}-controller",
                "transaction.timeout.ms": round(self._transaction_s * 1_000),
                "acks": "all",
                "linger.ms": 0,
                "logger": log,
            }
        )
        producer.init_transactions(ASK_S)
        self._producer = producer
        self._members, self._is_group_silent, self._asked_s = None, False, float("-inf")
        self._nonce = uuid.uuid4().hex
        self._has_read_own_name = False
        self._written.clear()
        self._moved_s = dict.fromkeys(self._ledger.shards, now_s)
        self._write({"controller": ControllerRecord(node=self._node, nonce=self._nonce)})
        self._next_look_s = 0.0

    def _has_read_everything(self, now_s: float) -> bool:
        """Whether the ledger has what this controller has written, and so whatever was written before."""
        if self._ledger.controller is None or self._ledger.controller.nonce != self._nonce:
            self._next_look_s = 0.0
            if self._has_read_own_name or now_s - self._written_s >= SEEN_S_MAX:
                self._take_over_again(now_s)
            return False
        self._has_read_own_name = True
        unread = {
            shard: epoch
            for shard, epoch in self._written.items()
            if shard not in self._ledger.shards or self._ledger.shards[shard].epoch < epoch
        }
        self._written = unread if now_s - self._written_s < SEEN_S_MAX else {}
        return not self._written

    def _take_over_again(self, now_s: float) -> None:
        """Somebody has written a name after ours, and the group says that we are the controller.

        That is one who was it, was cut off, and wrote before it could hear that it is no more. It has fenced us; we
        would not notice, for we write nothing before we have read our name.
        """
        log.warning("a former controller came back for a moment: node %s takes over again", self._node)
        self._drop_producer()
        self._next_look_s = now_s + self._look_s

    # -- deciding --

    def _decide(self, now_s: float) -> None:
        if self._ledger.cluster is None:
            self._found()
            return
        alive = self._alive(now_s)
        if self._node not in alive:
            return  # who is not in the group itself cannot tell who is
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
            shards=self._options.shards,
            entropy=os.urandom(ENTROPY_BYTES),
            name=self._options.cluster,
        )
        self._write({"cluster": record})
        self._next_look_s = time.monotonic() + self._look_s

    def _alive(self, now_s: float) -> list[str]:
        """The nodes in the group, or heard lately, that have said where they are, and do not leave."""
        self._look_at_group(now_s)
        if self._members is None and not self._is_group_silent:
            return []  # it is asked: a moment
        members = self._beats.alive(self._session_timeout_s) | (self._members or set())
        nodes = self._ledger.nodes
        return sorted(name for name in members if name in nodes and nodes[name].state != "gone")

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

    def _look_at_group(self, now_s: float) -> None:
        """Take the answer to the last question, if there is one, and ask again when it is time."""
        try:
            members = self._group.answer()
            if members is not None:
                self._members, self._is_group_silent = members, False
            elif self._group.is_asked and now_s - self._asked_s >= ASK_GROUP_S:
                self._group_is_silent("it takes too long")
        except GroupSilent as silence:
            self._group_is_silent(str(silence))
        if not self._group.is_asked and now_s - self._asked_s >= self._look_s:
            self._asked_s = now_s
            try:
                self._group.ask(ASK_GROUP_S)
            except GroupSilent as silence:
                self._group_is_silent(str(silence))

    def _group_is_silent(self, why: str) -> None:
        if not self._is_group_silent:
            log.warning(
                "Kafka does not say which nodes are alive (%s): nodes that write to the partitions topic count",
                why,
            )
        self._members, self._is_group_silent = None, True

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
        assert self._producer is not None
        self._producer.begin_transaction()
        for key, record in records.items():
            self._producer.produce(self._options.partitions_topic, key=key.encode(), value=encode(record))
        self._producer.commit_transaction(ASK_S)
        self._written_s = time.monotonic()

    def _failed(self, error: KafkaError) -> None:
        """Whatever it was, the producer is not used again: what it wrote is either there, or was given up."""
        if error.code() in _FENCED or error.fatal():
            log.warning("the controller was fenced, or has failed: %s", error)
        else:
            log.warning("a decision could not be written: %s", error)
        self._written.clear()
        self._drop_producer()

    def _drop_producer(self) -> None:
        self._producer = None
