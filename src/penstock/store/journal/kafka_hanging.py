"""Transactions without an end: whether a shard's log has any, and what is to become of them.

A producer's transaction ends in a partition with a mark of Kafka's own, *committed* or *aborted*. Kafka 4.3.0 and 4.3.1
may leave it out: if a partition has no leader in the moment when the mark is due, they take it for deleted, and call
the transaction complete (KAFKA-20734). What was written then *hangs*: nobody who reads committed transactions sees it,
until the same producer ends another transaction, of which it becomes a part. An aborted transaction, of which perhaps
one half had come to the brokers, would so be committed by whoever opens the shard next, and a committed one aborted.

So who opens a shard looks first. Whatever hangs was written by former owners, who are fenced. Each commit is closed by
a marker (`kafka_records.Marker`) in each partition that it has messages in, and an owner says *commit* only when all of
them have arrived. So a commit of which a marker is missing was not committed: it has to be aborted. One that is whole
may have been; if it was not, then nobody was told so, and it may as well be.

A partition keeps the last marker only. One that is not there any more was there if its owner has gone on: nobody does
after an aborted transaction that hangs, or may. So what hangs in the data partition may be older than the last commits,
which had no messages for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.store.errors import LogUnavailable, LogUnsafe
from penstock.store.journal.kafka_options import KafkaOptions
from penstock.store.journal.kafka_records import MARKER_KEY, Marker
from penstock.store.journal.kafka_topics import made_client, said

DATA, OFFSET = 0, 1
_TURN_S = 0.05
_MESSAGES = 500
_NEAR = 1_000
"""A marker is found among so many messages at the end, unless a commit was very large."""


@dataclass
class Hanging:
    """What hangs in one partition of a shard."""

    markers: list[Marker] = field(default_factory=list)
    has_tail: bool = False
    """Whether there are messages behind the last marker."""

    def note(self, message: Message) -> None:
        """One more message."""
        self.has_tail = message.key() != MARKER_KEY
        if not self.has_tail:
            value = message.value()
            self.markers.append(Marker.decode(value if isinstance(value, bytes) else None, str(message.topic())))


def must_abort(hanging: Sequence[Hanging | None], committed: Sequence[Marker | None]) -> bool:
    """Whether what hangs, in data and offset partition, has to be aborted; if not, it may be committed.

    `committed` is the last marker of each partition that did not hang. `LogUnsafe` if some has to be aborted, and some
    may not be: Kafka cannot do that any more.

    >>> whole = Marker(7, bytes(16), has_data=True)
    >>> must_abort([Hanging([whole]), Hanging([whole])], [None, None])
    False
    >>> must_abort([Hanging([whole]), None], [None, Marker(6, bytes(16))])  # the other half was aborted
    True
    """
    found = [marker for each in hanging if each is not None for marker in each.markers]

    def was_in(partition: int, marker: Marker) -> bool:
        """Whether a commit's marker has come to a partition."""
        there, last = hanging[partition], committed[partition]
        if there is not None and marker in there.markers:
            return True
        return last is not None and last.nonce == marker.nonce and last.number >= marker.number

    whole = [it for it in found if was_in(OFFSET, it) and (was_in(DATA, it) or not it.has_data)]
    is_cut = len(whole) < len(found) or any(each is not None and each.has_tail for each in hanging)
    if is_cut and whole:
        raise LogUnsafe(
            f"transactions hang in the log: commit {whole[0].number} is complete, another one is not, and Kafka can "
            "only end them together (KAFKA-20734). See docs/cluster.md."
        )
    return is_cut


class Ends:
    """Asks where a shard's partitions end: for those who read committed transactions, and for others."""

    def __init__(self, options: KafkaOptions, shard: int, timeout_s: float) -> None:
        self._options = options
        self._shard = shard
        self._timeout_s = timeout_s
        self._names = (options.data_topic, options.offset_topic)
        self._written, self._committed = (
            made_client(
                Consumer,
                options,
                client_id=f"{options.transactional_id(shard)}-ends",
                group_id=f"{options.transactional_id(shard)}-reader",
                isolation_level=level,
                enable_auto_commit=False,
                auto_offset_reset="error",
                enable_partition_eof=True,
            )
            for level in ("read_uncommitted", "read_committed")
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._written.close()
        self._committed.close()

    def hanging(self) -> list[Hanging | None]:
        """What hangs in the data partition and in the offset partition. Nobody may write meanwhile."""
        found: list[Hanging | None] = []
        for name in self._names:
            _, end = self._span(self._written, name)
            _, stable = self._span(self._committed, name)  # asked later, so that it is behind for one reason only
            found.append(self._look(self._written, name, stable) if stable < end else None)
        return found

    def last_markers(self) -> list[Marker | None]:
        """The last marker of each partition among what does not hang."""
        found: list[Marker | None] = []
        for name in self._names:
            low, stable = self._span(self._committed, name)
            start = max(low, stable - _NEAR)
            markers = self._look(self._committed, name, start).markers
            if not markers and start > low:
                markers = self._look(self._committed, name, low).markers
            found.append(markers[-1] if markers else None)
        return found

    def wait_until_nothing_hangs(self) -> None:
        """`LogUnavailable` if it does not come to that."""
        deadline_s = time.monotonic() + self._timeout_s
        while any(self._span(self._committed, name)[1] < self._span(self._written, name)[1] for name in self._names):
            if time.monotonic() > deadline_s:
                raise LogUnavailable(f"shard {self._shard}: Kafka does not end the transactions that hang in its log")
            time.sleep(_TURN_S)

    def _span(self, consumer: Consumer, name: str) -> tuple[int, int]:
        """Where a partition begins, and where it ends for this consumer."""
        try:
            found = consumer.get_watermark_offsets(TopicPartition(name, self._shard), self._timeout_s)
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be read") from error
        if found is None:
            raise LogUnavailable(f"shard {self._shard} cannot be read: Kafka is silent at {self._options.bootstrap}")
        return found

    def _look(self, consumer: Consumer, name: str, start: int) -> Hanging:
        """What there is from an offset on."""
        found = Hanging()
        consumer.assign([TopicPartition(name, self._shard, start)])
        deadline_s = time.monotonic() + self._timeout_s
        try:
            while time.monotonic() < deadline_s:
                for message in consumer.consume(_MESSAGES, _TURN_S):
                    error = message.error()
                    if error is None:
                        deadline_s = time.monotonic() + self._timeout_s
                        found.note(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        return found
        except KafkaException as error:
            raise said(error, self._options, f"shard {self._shard} cannot be read") from error
        finally:
            consumer.unassign()
        raise LogUnavailable(f"shard {self._shard} cannot be read: Kafka is silent at {self._options.bootstrap}")
