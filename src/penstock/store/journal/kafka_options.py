"""How a cluster's log in Kafka is reached. No client is imported here: whoever has settings may have these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RESERVED_PROPERTIES = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "client.id",
        "compression.codec",
        "compression.type",
        "delivery.timeout.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "message.max.bytes",
        "message.timeout.ms",
        "partition.assignment.strategy",
        "request.required.acks",
        "session.timeout.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""What decides whether messages are safe is not up for settings."""

ANSWERS_PER_COMMIT = 3
"""A broker that says nothing is given up so early that a commit can still succeed elsewhere."""
ANSWER_MS_MIN = 1_000
ANSWER_MS_MAX = 3_333
RECONNECT_MS_MAX = 1_000
"""How often a broker that is gone is looked for. librdkafka's 10 s would come on top of Kafka's own time."""


@dataclass(frozen=True)
class KafkaOptions:
    """Where the log of a cluster is, and how it is kept. `[cluster]` and `[kafka]` of penstock.toml say it.

    >>> KafkaOptions("127.0.0.1:9092", "demo", "demo", properties={"sasl.password": "hidden"})
    KafkaOptions('127.0.0.1:9092', cluster='demo', prefix='demo', shards=16)
    >>> KafkaOptions("127.0.0.1:9092", "demo", "demo").data_topic
    'demo.data'
    """

    bootstrap: str
    cluster: str
    prefix: str
    shards: int = 16
    replication_factor: int = 3
    min_insync_replicas: int = 2
    commit_timeout_s: float = 30.0
    message_bytes_max: int = 4 << 20
    compression: str = "lz4"
    properties: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """For librdkafka: SASL, TLS. They hold secrets, and are never shown."""
    topic_properties: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"KafkaOptions({self.bootstrap!r}, cluster={self.cluster!r}, prefix={self.prefix!r}, shards={self.shards})"
        )

    @property
    def data_topic(self) -> str:
        """The topic of the chunks."""
        return f"{self.prefix}.data"

    @property
    def offset_topic(self) -> str:
        """The topic of the state records."""
        return f"{self.prefix}.offset"

    @property
    def partitions_topic(self) -> str:
        """The topic in which nodes say who serves what."""
        return f"{self.prefix}.partitions"

    def transactional_id(self, shard: int) -> str:
        """Who has this id may write a shard; whoever had it before is fenced.

        >>> KafkaOptions("127.0.0.1:9092", "demo", "demo").transactional_id(3)
        'demo-shard-3'
        """
        return f"{self.cluster}-shard-{shard}"

    def client_properties(self) -> dict[str, str | int | float | bool]:
        """What every client of the log needs, for librdkafka."""
        return {**self.properties, "bootstrap.servers": self.bootstrap}

    def answer_timeouts(self) -> dict[str, int]:
        """How long a broker may take to answer whoever commits, before others are asked, unless `properties` say it.

        >>> KafkaOptions("127.0.0.1:9092", "demo", "demo").answer_timeouts()
        {'request_timeout_ms': 3333, 'socket_timeout_ms': 3333, 'reconnect_backoff_max_ms': 1000}
        >>> KafkaOptions("127.0.0.1:9092", "demo", "demo", properties={"socket.timeout.ms": 9_000}).answer_timeouts()
        {'request_timeout_ms': 3333, 'reconnect_backoff_max_ms': 1000}
        """
        answer_ms = round(self.commit_timeout_s * 1_000) // ANSWERS_PER_COMMIT
        answer_ms = min(max(ANSWER_MS_MIN, answer_ms), ANSWER_MS_MAX)
        wanted = {"request_timeout_ms": answer_ms, "socket_timeout_ms": answer_ms}
        wanted["reconnect_backoff_max_ms"] = RECONNECT_MS_MAX
        return {name: ms for name, ms in wanted.items() if name.replace("_", ".") not in self.properties}
