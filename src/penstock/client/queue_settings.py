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
    """How long a message is leased to its receiver, before others can receive it. From 0 to 43,200 seconds.
    Default: 30."""

    retention: Seconds | None
    """Messages older than this are deleted, also unreceived ones. None keeps them for ever. From 60 to 1,209,600
    seconds. Default: 345600."""

    retention_bytes: int | None
    """The oldest messages are deleted when the queue is larger than this. None: no limit. From 1 to
    4,611,686,018,427,387,904. Default: None."""

    delay: Seconds
    """How long every message waits before it can be received. From 0 to 3,162,240,000 seconds. Default: 0."""

    message_bytes_max: int
    """Body and attributes of one message together. From 1 to 268,435,456. Default: 1048576."""

    receive_wait: Seconds
    """How long a receive waits for messages, unless it names a time itself. From 0 to 20 seconds. Default: 0."""

    max_receives: int
    """After this many failed deliveries a message goes to the dead-letter queue. 0: never. From 0 to 1,000.
    Default: 10."""

    dead_letter: str | None
    """The dead-letter queue. None: one of its own, named after the queue (`orders.dead`). Default: None."""

    backoff: Backoff
    """How long a failed message waits before its next delivery."""

    policy: PolicyName
    """How often a message may be delivered. Default: 'at_least_once'."""

    consume_times: int
    """With policy `consume_times`: how often a message may be delivered at most. From 1 to 1,000. Default: 1."""

    deliver_unsynced: bool
    """Push messages while their send is being written to the disk. A crash may take them back. Default: False."""

    partitions: int
    """How many shards hold the queue, in a cluster. From 1 to 1,024. Default: 1."""

    content_dedup: bool
    """FIFO: a message without a dedup id is deduplicated by the SHA-256 of its body. Default: False."""

    dedup_scope: Scope
    """FIFO: whether a dedup id counts for the whole queue or for its group. Default: 'queue'."""

    throughput_scope: Scope
    """FIFO: whether `throughput_per_second` is the queue's or each group's. Default: 'queue'."""

    throughput_per_second: int | None
    """FIFO: messages that the queue or each group takes a second. None: no limit. From 1 to 1,099,511,627,776.
    Default: None."""

    in_flight_max: int
    """How many messages a channel may have leased at once. From 1 to 10,000,000. Default: 120000."""

    consumer_retention: Seconds | None
    """A named consumer that was silent for this long is forgotten. None: never. From 60 to 3,162,240,000 seconds.
    Default: 1209600."""

    tags: dict[str, str]
    """Names and values of your own, kept with the queue."""

    labels: dict[str, str]
    """Names and values that front ends keep with the queue."""
