"""A look at a cluster from outside, and wishes for it: through the partitions topic, without being a node."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.cluster.group import living
from penstock.cluster.ledger import DrainRecord, Ledger, Record, WishRecord, encode
from penstock.core.errors import InvalidRequest
from penstock.store.errors import LogUnavailable
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import made_client, said

ANSWER_S = 30.0
_BEGINNING = -2
_EOF = KafkaError._PARTITION_EOF


class NoCluster(InvalidRequest):
    """There is no cluster of that name, or none that was ever started."""


class Inspection:
    """What a cluster's topic says now, and who is alive."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._admin = made_client(AdminClient, options)
        try:
            self.ledger = self._read()
            self.alive = living(self._admin, options, ANSWER_S)
        except KafkaException as error:
            raise said(error, options, f"the cluster {options.cluster} cannot be looked at") from error
        if self.ledger.cluster is None:
            raise NoCluster(
                f"there is no cluster {options.cluster!r} at {options.bootstrap}: no node of it was ever started there"
            )
        self.shards = self.ledger.cluster.shards

    # -- looking --

    def nodes(self) -> list[dict[str, Any]]:
        """A row for each node."""
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
        decided, load = self.ledger.shards.get(shard), self.ledger.load_of(shard)
        wish, server = self.ledger.wishes.get(shard), self.ledger.server_of(shard)
        owner = "" if decided is None else decided.owner
        state = "served" if self.ledger.is_settled(shard) else "moving" if server else "not served"
        return {
            "shard": shard,
            "owner": owner,
            "served_by": server,
            "state": state if not server or server in self.alive else "not served",
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
            return "gone"
        return "draining" if self.ledger.is_draining(name) else "serving"

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

    def _read(self) -> Ledger:
        if self._options.partitions_topic not in self._admin.list_topics(timeout=ANSWER_S).topics:
            return Ledger()
        consumer = made_client(
            Consumer,
            self._options,
            group_id=f"{self._options.prefix}.reader.{uuid.uuid4().hex}",
            enable_auto_commit=False,
            enable_partition_eof=True,
            isolation_level="read_committed",
        )
        ledger, deadline_s = Ledger(), time.monotonic() + ANSWER_S
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(self._options.partitions_topic, 0), ANSWER_S)
            consumer.assign([TopicPartition(self._options.partitions_topic, 0, _BEGINNING)])
            while time.monotonic() < deadline_s:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    offset = message.offset() or 0
                    ledger.apply(offset, (message.key() or b"").decode(), message.value())
                    if offset + 1 >= end:  # with many nodes there is always more to read, and never an end
                        return ledger
                elif error.code() == _EOF:
                    return ledger
        finally:
            consumer.close()
        raise LogUnavailable(f"Kafka at {self._options.bootstrap} does not answer")

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
