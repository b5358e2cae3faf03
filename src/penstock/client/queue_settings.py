"""A queue's settings, for type checkers. Made from `QueueConfig` by `tools/generate_settings.py`."""

from __future__ import annotations

from typing import TypedDict

from penstock.client.times import Seconds
from penstock.core.queues.config import Backoff, Kind, PolicyName, Scope


class QueueSettings(TypedDict, total=False):
    """What `create_queue` and `configure` take. Lengths of time are seconds."""

    kind: Kind
    """A name that ends with `.fifo` makes a FIFO queue. Other queues can be FIFO, too. Default: 'standard'."""

    lease: Seconds
    """How long a receiver has to settle its messages, before others can receive them. From 0 to 43,200 seconds.
    Default: 30."""

    retention: Seconds | None
    """Messages older than this are deleted, even if nobody has received them. None: never. From 60 to 1,209,600
    seconds. Default: 345600."""

    retention_bytes: int | None
    """The oldest messages are deleted when the queue is larger than this. None: no limit. From 1 to
    4,611,686,018,427,387,904. Default: None."""

    delay: Seconds
    """How long every message waits before it can be received. From 0 to 3,162,240,000 seconds. Default: 0."""

    message_bytes_max: int
    """How large one message may be: its body and attributes together. From 1 to 268,435,456. Default: 1048576."""

    receive_wait: Seconds
    """How long a receive waits for messages if the caller does not say. From 0 to 20 seconds. Default: 0."""

    max_receives: int
    """How many failed deliveries move a message to the dead-letter queue. 0: it is never moved. From 0 to 1,000.
    Default: 10."""

    dead_letter: str | None
    """The dead-letter queue. None: a queue that is named after this one, such as `orders.dead`. Default: None."""

    backoff: Backoff
    """How long a failed message waits before its next delivery."""

    policy: PolicyName
    """How often a message may be delivered. Default: 'at_least_once'."""

    consume_times: int
    """With policy `consume_times`: how often a message may be delivered at most. From 1 to 1,000. Default: 1."""

    deliver_unsynced: bool
    """Push messages before they are synced to disk. After a crash, such a message may not exist. Default: False."""

    partitions: int
    """In a cluster: over how many shards the queue is spread. From 1 to 1,024. Default: 1."""

    content_dedup: bool
    """FIFO: deduplicate messages without a dedup id by the SHA-256 of their body. Default: False."""

    dedup_scope: Scope
    """FIFO: whether a dedup id must be unique in the whole queue or only in its group. Default: 'queue'."""

    throughput_scope: Scope
    """FIFO: whether `throughput_per_second` limits the whole queue or each group. Default: 'queue'."""

    throughput_per_second: int | None
    """FIFO: how many messages a second the queue, or each group, accepts. None: no limit. From 1 to
    1,099,511,627,776. Default: None."""

    in_flight_max: int
    """How many messages of a channel may be leased at once. From 1 to 10,000,000. Default: 120000."""

    consumer_retention: Seconds | None
    """A named consumer is deleted after this long without a sign of life. None: never. From 60 to 3,162,240,000
    seconds. Default: 1209600."""

    tags: dict[str, str]
    """Your own names and values, stored with the queue."""

    labels: dict[str, str]
    """Names and values that protocols such as SQS store with the queue."""
