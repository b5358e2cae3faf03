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

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from penstock.cluster.membership.group import GroupAsker, GroupSilent, quick
from penstock.cluster.membership.ledger import Ledger, Record, encode, key_of
from penstock.cluster.membership.view import ClusterView, NoCluster
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
_BEGINNING = -2
_EOF = KafkaError._PARTITION_EOF


class Inspection(ClusterView):
    """What a cluster's topic says now, and who is alive.

    In a quick look a topic that cannot be read is not waited for: `unread` says so. A quick look cannot wish.
    """

    def __init__(self, options: KafkaOptions, *, is_quick: bool = False) -> None:
        self._options = options
        self._is_quick = is_quick
        self._admin = made_client(AdminClient, self._quick_options())
        super().__init__(Ledger(), options.cluster)
        self.alive: set[str] = set()
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
