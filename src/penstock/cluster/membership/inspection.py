"""A look at a cluster from outside, and wishes for it: through the partitions topic, without being a node.

Who is alive is asked of the consumer group while the topic is read. If the group does not answer, or misses a node that
has not left, the topic is read on for a moment: nodes speak every second, and who is heard is alive.

If the broker that leads the topic stands still, nothing can be read until Kafka has replaced it. Whoever looks in haste
is told then what others say: the group who is alive, and Kafka how many shards there are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from penstock.cluster.membership.group import GroupAsker, GroupSilent, quick
from penstock.cluster.membership.ledger import DrainRecord, Ledger, Record, WishRecord, encode, key_of
from penstock.core.errors import InvalidRequest
from penstock.store.errors import LogUnavailable
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import made_client, said

ANSWER_S = 30.0
TOPIC_S = 4.0
"""How long the topic's leader may take to answer, for a quick look."""
GROUP_S = 4.0
"""How long the group's coordinator may take to answer."""
LISTEN_S = 3.0
"""How long nodes are listened to that the group does not know of: they speak every second."""
PAUSE_S = 0.2
NODE_FIELDS = ("node", "state", "controller", "shards", "rate", "backlog", "bytes", "link", "http", "version")
SHARD_FIELDS = ("shard", "owner", "served_by", "state", "epoch", "wish", "queues", "rate", "backlog", "bytes", "outbox")
_BEGINNING = -2
_EOF = KafkaError._PARTITION_EOF


class NoCluster(InvalidRequest):
    """There is no cluster of that name, or none that was ever started."""


class Inspection:
    """What a cluster's topic says now, and who is alive.

    In a quick look a topic that cannot be read is not waited for: `unread` says so. A quick look cannot wish.
    """

    def __init__(self, options: KafkaOptions, *, is_quick: bool = False) -> None:
        self._options = options
        self._is_quick = is_quick
        self._admin = made_client(AdminClient, self._quick_options())
        self.ledger = Ledger()
        self.alive: set[str] = set()
        self.silence: str | None = None
        """Why the group does not say who is alive, if so: then nothing is known of nodes that are not heard."""
        self.unread: str | None
        """Why the topic could not be read, if so: then nothing is known of shards, and of nodes that they are alive."""
        self.shards = 0
        group = GroupAsker(options)
        try:
            self.unread = self._look(group)
        except KafkaException as error:
            raise said(error, options, f"the cluster {options.cluster} cannot be looked at") from error
        finally:
            group.close()
        if self.unread is not None:
            return
        if self.ledger.cluster is None:
            raise NoCluster(
                f"there is no cluster {options.cluster!r} at {options.bootstrap}: no node of it was ever started there"
            )
        self.shards = self.ledger.cluster.shards

    # -- looking --

    def nodes(self) -> list[dict[str, Any]]:
        """A row for each node."""
        if self.unread is not None:
            return [{**dict.fromkeys(NODE_FIELDS), "node": name, "state": "alive"} for name in sorted(self.alive)]
        rows = []
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
            raise InvalidRequest(f"nobody has drained node {node!r} by hand")
        self._write(f"drain/{node}", None)

    def _check_node(self, node: str) -> None:
        if node not in self.alive:
            known = ", ".join(sorted(self.alive)) or "none"
            raise InvalidRequest(f"no node {node!r} is alive in the cluster {self._options.cluster!r}; alive: {known}")

    # -- Kafka --

    def _quick_options(self) -> KafkaOptions:
        """Options of clients that soon turn to another broker, when one stands still."""
        return dataclasses.replace(self._options, properties=quick(dict(self._options.properties), GROUP_S))

    def _look(self, group: GroupAsker) -> str | None:
        """Read the topic to its end; then see who is alive. Returns why it cannot be read, in a quick look."""
        with contextlib.suppress(GroupSilent):  # it is said when the answer is looked for
            group.ask(GROUP_S)
        topics = self._admin.list_topics(timeout=ANSWER_S).topics
        if self._options.partitions_topic not in topics:
            return None
        try:
            consumer = self._read()
        except (KafkaException, LogUnavailable):
            if not self._is_quick:
                raise
            return self._do_without(topics, group)
        try:
            self._see_who_is_alive(group, consumer)
        finally:
            consumer.close()
        return None

    def _read(self) -> Consumer:
        """Read the topic to its end. Returns who reads, to read on."""
        consumer, end = self._reader()
        try:
            for offset, key in self._records(consumer, ANSWER_S):
                if not key or offset + 1 >= end:  # with many nodes there is always more to read, and never an end
                    return consumer
            raise LogUnavailable(f"Kafka at {self._options.bootstrap} does not answer")
        except BaseException:
            consumer.close()
            raise

    def _do_without(self, topics: Mapping[str, TopicMetadata], group: GroupAsker) -> str:
        """Ask the others. Returns why the topic cannot be read. What was read of it may be out of date: it goes."""
        leader = topics[self._options.partitions_topic].partitions[0].leader
        self.ledger = Ledger()
        if self._options.data_topic in topics:
            self.shards = len(topics[self._options.data_topic].partitions)
        self.alive = self._members(group)
        return "it has no leader" if leader < 0 else f"broker {leader} leads it, and does not answer"

    def _reader(self) -> tuple[Consumer, int]:
        """Who reads the topic from its start, and where it ends. A client believes in a leader that stands still for as
        long as it waits for it: another one is made, which asks who leads now."""
        partition = TopicPartition(self._options.partitions_topic, 0, _BEGINNING)
        deadline_s = time.monotonic() + (TOPIC_S if self._is_quick else ANSWER_S)
        while True:
            consumer = made_client(
                Consumer,
                self._quick_options(),
                group_id=f"{self._options.prefix}.reader.{uuid.uuid4().hex}",
                enable_auto_commit=False,
                enable_partition_eof=True,
                isolation_level="read_committed",
            )
            try:
                _, end = consumer.get_watermark_offsets(partition, GROUP_S)
            except KafkaException:
                consumer.close()
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(PAUSE_S)
            else:
                consumer.assign([partition])
                return consumer, end

    def _members(self, group: GroupAsker) -> set[str]:
        """The nodes that the group knows of: none if it is silent."""
        try:
            members = group.answer(GROUP_S)
            self.silence = None if members is not None else f"there is no answer in {GROUP_S:g} s"
        except GroupSilent as silence:
            members, self.silence = None, str(silence)
        return set(members or ())

    def _see_who_is_alive(self, group: GroupAsker, consumer: Consumer) -> None:
        self.alive = self._members(group)
        if self.alive >= self._expected():
            return
        for _, key in self._records(consumer, LISTEN_S):
            kind, _, name = key.partition("/")
            if kind == "load":
                self.alive.add(name)
                if self.alive >= self._expected():
                    return

    def _expected(self) -> set[str]:
        """The nodes that have not left."""
        return {name for name, node in self.ledger.nodes.items() if node.state != "gone"}

    def _records(self, consumer: Consumer, seconds: float) -> Iterator[tuple[int, str]]:
        """The offset and the key of each record that is read in this time; there is no key at the end of the topic."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            message = consumer.poll(min(0.2, left_s))
            error = None if message is None else message.error()
            if message is not None and error is None:
                offset, key = message.offset() or 0, key_of(message)
                self.ledger.apply(offset, key, message.value())
                yield offset, key
            elif error is not None and error.code() == _EOF:
                yield 0, ""

    def _write(self, key: str, record: Record | None) -> None:
        producer = made_client(Producer, self._options, acks="all")
        failures: list[KafkaError] = []
        producer.produce(
            self._options.partitions_topic,
            key=key.encode(),
            value=None if record is None else encode(record),
            on_delivery=lambda error, _: failures.append(error) if error is not None else None,
        )
        if producer.flush(ANSWER_S) or failures:
            raise LogUnavailable(f"the wish could not be written: {failures or 'Kafka does not answer'}")
