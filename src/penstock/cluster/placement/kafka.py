"""How a controller decides in Kafka: it writes in transactions, and takes for alive whom `liveness.py` does.

The controller is named in the ledger. When it has left, or is dead, the nodes that are alive come forward in the order
of their names, a second after one another. All controllers share one transactional id: whoever takes over fences the
one before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.cluster.membership.base import NotWritten
from penstock.cluster.membership.ledger import Ledger, Record, encode
from penstock.cluster.membership.liveness import Liveness
from penstock.cluster.placement.controller import Controller
from penstock.store.journal.kafka_options import KafkaOptions

ASK_S = 10.0
"""How long Kafka may take to take a decision."""
TURN_S = 1.0
"""So long the next node waits for the one before it to become the controller."""
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._STATE}
)

log = logging.getLogger("penstock.cluster")


def kafka_controller(
    options: KafkaOptions, node: str, ledger: Ledger, session_timeout_s: float, cool_down_s: float
) -> tuple[Controller, Liveness]:
    """A controller of a cluster in Kafka, and what it has to be told of who is heard."""
    authority = KafkaAuthority(options, node, ledger, session_timeout_s)
    return Controller(
        authority, options.cluster, options.shards, node, ledger, session_timeout_s, cool_down_s
    ), authority.liveness


class KafkaAuthority:
    """A producer with the controllers' transactional id, and who was heard in the topic. An `Authority`."""

    def __init__(self, options: KafkaOptions, node: str, ledger: Ledger, session_timeout_s: float) -> None:
        self._options = options
        self._node = node
        self._ledger = ledger
        self._transaction_s = max(session_timeout_s, 1.0)
        self._producer: Producer | None = None
        self._vacant_s: float | None = None
        """Since when there is no controller."""
        self.liveness = Liveness(session_timeout_s)

    def comes_forward(self, alive: list[str], now_s: float) -> bool:
        named = self._ledger.controller
        if named is None or named.node == self._node:  # a new cluster; or this node was it, and was fenced, or ended
            return True
        if named.node in alive or self._node not in alive:
            self._vacant_s = None
            return False
        self._vacant_s = now_s if self._vacant_s is None else self._vacant_s
        in_turn = sorted(alive, key=lambda name: (self._ledger.is_draining(name), name))
        return now_s - self._vacant_s >= in_turn.index(self._node) * TURN_S

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
        self._producer, self._vacant_s = producer, None

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

    def alive(self, now_s: float) -> set[str]:
        return self.liveness.alive(now_s)


def _not_written(error: KafkaException) -> NotWritten:
    told: KafkaError = error.args[0]
    if told.code() in _FENCED or told.fatal():
        return NotWritten(f"the controller was fenced, or has failed: {told}")
    return NotWritten(f"a decision could not be written: {told}")
