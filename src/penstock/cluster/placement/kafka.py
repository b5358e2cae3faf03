"""How a controller decides in Kafka: it writes in transactions, and asks the group of nodes who is alive.

A node is the controller while the group assigns it the partitions topic's one partition. All controllers share one
transactional id: whoever takes over fences the one before.

Alive is who is in the group, and who was heard in the topic within a session timeout. For the group may not answer, and
when its coordinator stands still, and another broker takes its place, nodes that are well drop out of it and join
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.cluster.membership.base import NotWritten
from penstock.cluster.membership.group import GroupAsker, GroupSilent
from penstock.cluster.membership.ledger import Ledger, Record, encode
from penstock.cluster.placement.controller import LOOKS_PER_SESSION, Controller
from penstock.store.journal.kafka_options import KafkaOptions

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


ASK_S = 10.0
"""How long Kafka may take to take a decision."""
ASK_GROUP_S = 2.0
"""How long it may take to say who is alive."""
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._STATE}
)

log = logging.getLogger("penstock.cluster")


def kafka_controller(
    options: KafkaOptions, node: str, ledger: Ledger, session_timeout_s: float, cool_down_s: float
) -> Controller:
    """A controller of a cluster in Kafka."""
    authority = KafkaAuthority(options, node, session_timeout_s)
    return Controller(authority, options.cluster, options.shards, node, ledger, session_timeout_s, cool_down_s)


class KafkaAuthority:
    """A producer with the controllers' transactional id, and the group's coordinator. An `Authority`."""

    def __init__(self, options: KafkaOptions, node: str, session_timeout_s: float) -> None:
        self._options = options
        self._node = node
        self._look_s = session_timeout_s / LOOKS_PER_SESSION
        self._transaction_s = max(session_timeout_s, 1.0)
        self._producer: Producer | None = None
        self._group = GroupAsker(options)
        self._members: set[str] | None = None
        """Who is in the group; None while that is not known."""
        self._session_timeout_s = session_timeout_s
        self._beats = Heartbeats()
        self._is_group_silent = False
        self._asked_s = float("-inf")

    def take_over(self) -> None:
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
        try:
            producer.init_transactions(ASK_S)
        except KafkaException as error:
            raise _not_written(error) from error
        self._producer = producer
        self._members, self._is_group_silent, self._asked_s = None, False, float("-inf")

    def write(self, records: Mapping[str, Record]) -> None:
        assert self._producer is not None
        try:
            self._producer.begin_transaction()
            for key, record in records.items():
                self._producer.produce(self._options.partitions_topic, key=key.encode(), value=encode(record))
            self._producer.commit_transaction(ASK_S)
        except KafkaException as error:
            raise _not_written(error) from error

    def drop(self) -> None:
        self._producer = None
        self._group.close()

    def heard(self, name: str) -> None:
        self._beats.heard(name, time.monotonic())

    def alive(self, now_s: float) -> set[str] | None:
        """Who is in the group, or was heard lately."""
        self._look_at_group(now_s)
        if self._members is None and not self._is_group_silent:
            return None  # it is asked: a moment
        return self._beats.alive(self._session_timeout_s) | (self._members or set())

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


def _not_written(error: KafkaException) -> NotWritten:
    told: KafkaError = error.args[0]
    if told.code() in _FENCED or told.fatal():
        return NotWritten(f"the controller was fenced, or has failed: {told}")
    return NotWritten(f"a decision could not be written: {told}")
