"""A cluster in Kafka: a node is seen to be alive, and it knows what the partitions topic says.

A consumer, in no group, reads the topic from its start, in a thread (`Membership`). A producer writes what the node has
to say: every second at least what its shards do. The event loop has it written, so a node whose loop stands still is
silent (`Liveness`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from penstock.cluster.membership.base import Batch, Listeners, Membership, NotWritten
from penstock.cluster.membership.inspection import Inspection
from penstock.cluster.membership.ledger import Ledger, Record, encode, key_of
from penstock.cluster.placement.controller import Controller
from penstock.core.storage.chunk import Chunk
from penstock.server.settings import Settings
from penstock.store.base import Store
from penstock.store.errors import LogUnavailable, LogUnsafe
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import (
    ADMIN_TIMEOUT_S,
    check_topic,
    made_client,
    said,
    topic_config,
    when_known,
)
from penstock.store.kafka import open_kafka, prepare_topics
from penstock.store.lock import lock_for_node

READ_RECORDS_MAX = 1_000
POLL_S = 0.05
PAUSE_S = 1.0
"""After something failed."""
ADMIN_S = 30.0
SEGMENT_BYTES = 16 << 20
_BEGINNING = -2

log = logging.getLogger("penstock.cluster")


class KafkaEngine:
    """A cluster in Kafka. A `ClusterEngine`."""

    name = "Kafka"
    records = "the partitions topic"

    def __init__(self, settings: Settings) -> None:
        self._options = settings.kafka_options()
        self.place, self.answer_s = f"Kafka at {self._options.bootstrap}", ADMIN_TIMEOUT_S
        self._data = Path(settings.server.data)
        self._opened = contextlib.ExitStack()
        self.cluster, self.shards = self._options.cluster, self._options.shards

    def prepare(self) -> None:
        self._opened.callback(lock_for_node(self._data).release)
        self._topics = prepare_topics(self._options)

    def open_store(self, shard: int) -> Store:
        return open_kafka(self._options, shard, self._data, topics=self._topics, check_chunk=Chunk.decode)

    def join(self, node: str, session_timeout_s: float, cool_down_s: float, listeners: Listeners) -> KafkaMembership:
        return KafkaMembership(self._options, node, session_timeout_s, cool_down_s, listeners)

    def look(self, *, is_quick: bool = False) -> Inspection:
        return Inspection(self._options, is_quick=is_quick)

    def close(self) -> None:
        self._opened.close()


class KafkaMembership(Membership):
    """A node's place in a cluster in Kafka."""

    def __init__(
        self,
        options: KafkaOptions,
        node: str,
        session_timeout_s: float,
        cool_down_s: float,
        listeners: Listeners,
    ) -> None:
        super().__init__(listeners)
        self._options = options
        self._node = node
        self._is_current = False
        """Whether the reader has reached what was the end of the topic when it started.

        Kafka says so when there is nothing more to read, which with many nodes is never the case: somebody always has
        something to say. So a record that was beyond the end will do as well.
        """
        self._end = 0
        self._reader: Consumer
        self._producer = Producer(self._properties(acks="all", **{"enable.idempotence": True, "linger.ms": 0}))
        self.controller = kafka_controller(options, node, self._ledger, session_timeout_s, cool_down_s)

    def publish(self, key: str, record: Record | None) -> None:
        value = None if record is None else encode(record)
        self._producer.produce(self._options.partitions_topic, key=key.encode(), value=value, on_delivery=_delivered)

    async def flush(self, timeout_s: float) -> bool:
        return bool(await asyncio.to_thread(self._producer.flush, timeout_s) == 0)

    # -- the thread --

    @contextlib.contextmanager
    def _opened(self) -> Iterator[None]:
        try:
            make_partitions_topic(self._options)
            self._reader = self._open_reader()
            with contextlib.closing(self._reader):
                yield
        finally:
            self._producer.flush(PAUSE_S)

    def _turn(self) -> None:
        try:
            self._read()
            self._producer.poll(0)
            if self._is_current:
                self.controller.turn()
        except KafkaException as error:
            log.warning("Kafka: %s", error)
            self._stopping.wait(PAUSE_S)

    def _read(self) -> None:
        batch: Batch = []
        was_current = self._is_current
        for message in self._reader.consume(READ_RECORDS_MAX, POLL_S):
            error = message.error()
            if error is None:
                offset = message.offset() or 0
                batch.append((offset, key_of(message), message.value()))
                self._is_current = self._is_current or offset + 1 >= self._end
            elif error.code() == KafkaError._PARTITION_EOF:
                self._is_current = True
            else:
                log.warning("Kafka: %s", error)
        self._take(batch, is_news=was_current)
        if self._is_current and not was_current:
            self._read_everything()

    def _open_reader(self) -> Consumer:
        reader = Consumer(
            self._properties(
                **{
                    "group.id": f"{self._options.prefix}.reader.{uuid.uuid4().hex}",  # asked for, and not used
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "fetch.wait.max.ms": 100,
                }
            )
        )
        partition = TopicPartition(self._options.partitions_topic, 0)
        _, self._end = when_known(lambda: reader.get_watermark_offsets(partition, ADMIN_S))
        reader.assign([TopicPartition(self._options.partitions_topic, 0, _BEGINNING)])
        return reader

    def _properties(self, **more: object) -> dict[str, object]:
        """A broker that stands still is not believed in for longer than whoever commits would."""
        patience = {name.replace("_", "."): each for name, each in self._options.answer_timeouts().items()}
        patience.pop("request.timeout.ms", None)
        return {**patience, **self._options.client_properties(), "client.id": self._node, "logger": log, **more}


def _delivered(error: KafkaError | None, message: Any) -> None:
    if error is not None:
        log.error("the record %r could not be written to the partitions topic: %s", message.key(), error)


# -- deciding ----------------------------------------------------------------------------------------------------------


ASK_S = 10.0
"""How long Kafka may take to take a decision."""
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._STATE}
)


def kafka_controller(
    options: KafkaOptions, node: str, ledger: Ledger, session_timeout_s: float, cool_down_s: float
) -> Controller:
    """A controller of a cluster in Kafka."""
    authority = KafkaAuthority(options, node, session_timeout_s)
    return Controller(authority, options.cluster, options.shards, node, ledger, session_timeout_s, cool_down_s)


class KafkaAuthority:
    """A producer with the transactional id that all controllers share. An `Authority`."""

    def __init__(self, options: KafkaOptions, node: str, session_timeout_s: float) -> None:
        self._options = options
        self._node = node
        self._transaction_s = max(session_timeout_s, 1.0)
        self._producer: Producer | None = None

    def take_over(self) -> None:
        self._producer = Producer(
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
        with _as_not_written():
            self._producer.init_transactions(ASK_S)

    def write(self, records: Mapping[str, Record]) -> None:
        assert self._producer is not None
        with _as_not_written():
            self._producer.begin_transaction()
            for key, record in records.items():
                self._producer.produce(self._options.partitions_topic, key=key.encode(), value=encode(record))
            self._producer.commit_transaction(ASK_S)

    def members(self) -> set[str] | None:
        return None


@contextlib.contextmanager
def _as_not_written() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        told: KafkaError = error.args[0]
        what = "the controller was fenced, or has failed" if told.code() in _FENCED or told.fatal() else "not written"
        raise NotWritten(f"a decision: {what}: {told}") from error


# -- the topic ---------------------------------------------------------------------------------------------------------


def make_partitions_topic(options: KafkaOptions) -> None:
    """Create the partitions topic if it is not there; refuse one that would forget, or has more than one partition."""
    admin, topic = made_client(AdminClient, options), options.partitions_topic
    config = topic_config(options) | {"segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.1"}
    try:
        wanted = NewTopic(topic, num_partitions=1, replication_factor=options.replication_factor, config=config)
        admin.create_topics([wanted], request_timeout=ADMIN_S)[topic].result(ADMIN_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise said(error, options, f"the topic {topic} cannot be created") from error
    try:
        _check_topic(admin, topic, options)
    except KafkaException as error:
        raise said(error, options, f"the topic {topic} cannot be inspected") from error


def _check_topic(admin: AdminClient, topic: str, options: KafkaOptions) -> None:
    partitions = _partitions(admin, topic)
    if len(partitions) != 1:
        raise LogUnsafe(f"the topic {topic} has {len(partitions)} partitions: it must have one")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = when_known(lambda: admin.describe_configs([resource], request_timeout=ADMIN_S)[resource].result(ADMIN_S))
    check_topic(topic, len(partitions[0].replicas), {name: str(entry.value) for name, entry in found.items()}, options)


def _partitions(admin: AdminClient, topic: str) -> dict[int, Any]:
    """The topic's partitions. One that was just made may take a moment to be known."""
    deadline_s = time.monotonic() + ADMIN_S
    while time.monotonic() < deadline_s:
        found = admin.list_topics(topic, timeout=ADMIN_S).topics.get(topic)
        if found is not None and found.error is None and found.partitions:
            return found.partitions
        time.sleep(POLL_S)
    raise LogUnavailable(f"the topic {topic} was created, but cannot be found")
