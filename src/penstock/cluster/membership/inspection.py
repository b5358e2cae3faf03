"""A look at a cluster from outside, and wishes for it: through the partitions topic, without being a node.

The topic is read to its end, and then on for a moment: nodes speak every second, and who is heard is alive.

If the broker that leads the topic stands still, nothing can be read until Kafka has replaced it. Whoever looks in haste
is told then how many shards there are, which other brokers say. A node's own `/v1/cluster` knows more.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from queue import SimpleQueue

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from penstock.cluster.membership.ledger import Ledger, Record, encode, key_of
from penstock.cluster.membership.view import ClusterView, NoCluster
from penstock.store.errors import LogUnavailable
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_topics import made_client, said

ANSWER_S = 30.0
QUICK_S = 1.5
"""How long a quick look may take in all: the topic's leader may stand still."""
LISTEN_S = 3.0
"""How long nodes are listened to that have not left: they speak every second."""
LISTEN_S_MIN = 0.6
JUST_BEFORE_S = 2.5
BROKER_S = 0.4
"""How long one broker may take to answer a quick look, before another is asked."""
PATIENT_BROKER_S = 2.0
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
        self._until_s = time.monotonic() + (QUICK_S if is_quick else ANSWER_S)
        super().__init__(Ledger(), options.cluster)
        self.alive: set[str] = set()
        self.shards = 0
        try:
            self.unread = self._look()
        except KafkaException as error:
            raise said(error, options, f"the cluster {options.cluster} cannot be inspected") from error
        if self.unread is not None:
            return
        if self.ledger.cluster is None:
            raise NoCluster(
                f"there is no cluster {options.cluster!r} at {options.bootstrap}: no node of it was ever started there"
            )
        self.shards = self.ledger.cluster.shards

    # -- Kafka --

    def _quick_options(self) -> KafkaOptions:
        """Options of clients that soon turn to another broker, when one stands still, unless they say it themselves."""
        broker_ms = round(1_000 * (BROKER_S if self._is_quick else PATIENT_BROKER_S))
        patience = {"socket.timeout.ms": max(1_000, broker_ms), "socket.connection.setup.timeout.ms": 1_000}
        patience |= {"api.version.request.timeout.ms": broker_ms, "log_level": 0}
        return dataclasses.replace(self._options, properties={**patience, **self._options.properties})

    def _look(self) -> str | None:
        """Read the topic to its end; then see who is alive. Returns why it cannot be read, in a quick look."""
        topics = self._topics()
        if self._options.partitions_topic not in topics:
            return None
        try:
            consumer = self._read()
        except (KafkaException, LogUnavailable):
            if not self._is_quick:
                raise
            return self._do_without(topics)
        try:
            self._see_who_is_alive(consumer)
        finally:
            consumer.close()
        return None

    def _topics(self) -> Mapping[str, TopicMetadata]:
        """What topics there are. All brokers that we know are asked at once, and the first that answers is believed:
        one that stands still costs nothing. Whatever is asked afterwards is asked by way of the one that answered."""
        patience_s = max(0.1, self._until_s - time.monotonic()) if self._is_quick else ANSWER_S
        addresses = self._options.bootstrap.split(",")
        answers: SimpleQueue[tuple[str, Mapping[str, TopicMetadata] | Exception]] = SimpleQueue()

        def ask(address: str) -> None:
            options = dataclasses.replace(self._quick_options(), bootstrap=address)
            try:
                answers.put((address, made_client(AdminClient, options).list_topics(timeout=patience_s).topics))
            except Exception as error:  # whoever waits raises it, if it is all that comes
                answers.put((address, error))

        for address in addresses:
            threading.Thread(target=ask, args=(address,), daemon=True).start()
        for left in reversed(range(len(addresses))):
            address, answer = answers.get()
            if not isinstance(answer, Exception):
                self._options = dataclasses.replace(self._options, bootstrap=address)
                return answer
            if not left:
                raise answer
        raise AssertionError("there is no address")

    def _read(self) -> Consumer:
        """Read the topic to its end. Returns who reads, to read on."""
        consumer, end = self._reader()
        try:
            for offset, key in self._records(consumer, self._until_s - time.monotonic()):
                if not key or offset + 1 >= end:  # with many nodes there is always more to read, and never an end
                    return consumer
            raise LogUnavailable(f"Kafka at {self._options.bootstrap} does not answer")
        except BaseException:
            consumer.close()
            raise

    def _do_without(self, topics: Mapping[str, TopicMetadata]) -> str:
        """Returns why the topic cannot be read. What was read of it may be out of date: it goes."""
        leader = topics[self._options.partitions_topic].partitions[0].leader
        self.ledger = Ledger()
        if self._options.data_topic in topics:
            self.shards = len(topics[self._options.data_topic].partitions)
        return "it has no leader" if leader < 0 else f"broker {leader} leads it, and does not answer"

    def _reader(self) -> tuple[Consumer, int]:
        """Who reads the topic from its start, and where it ends. A client believes in a leader that stands still for as
        long as it waits for it: another one is made, which asks who leads now."""
        partition = TopicPartition(self._options.partitions_topic, 0, _BEGINNING)
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
                _, end = consumer.get_watermark_offsets(partition, 0.5 if self._is_quick else ANSWER_S / 10)
            except KafkaException:
                consumer.close()
                if time.monotonic() > self._until_s:
                    raise
                time.sleep(PAUSE_S)
            else:
                consumer.assign([partition])
                return consumer, end

    def _see_who_is_alive(self, consumer: Consumer) -> None:
        """Whoever is heard, and who had said something just before."""
        seconds = max(LISTEN_S_MIN, min(LISTEN_S, self._until_s - time.monotonic()))
        for _, key in self._records(consumer, seconds):
            kind, _, name = key.partition("/")
            if kind == "load" and name in self.ledger.loads:
                since_ms = self.ledger.loads[name].at_ms - round(JUST_BEFORE_S * 1_000)
                self.alive |= {name} | {each for each, load in self.ledger.loads.items() if load.at_ms >= since_ms}
            if self.alive >= self._expected():
                return
        if not self.alive and self._expected():
            self.silence = f"none has written to it for {seconds:.1f} s"

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
            raise LogUnavailable(
                f"the request could not be written to the cluster: {failures or 'Kafka does not answer'}"
            )
