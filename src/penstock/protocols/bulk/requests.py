"""What bulk requests say, and what they are answered: JSON bodies, as msgspec structs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.core.commands import Offsets

QUEUES_MAX = 10_000
PIECES_MAX = 100_000
READ_MAX = 100_000
CHUNKS_MAX = 10_000
TAKE_MAX = 100_000
PARTITIONS_MAX = 1_024

Offset = int | Annotated[list[int], msgspec.Meta(min_length=1, max_length=PARTITIONS_MAX)]
"""One offset; or several of a queue with several partitions, of which each says which it is in."""
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
QueueNames = Annotated[list[str], msgspec.Meta(max_length=QUEUES_MAX)]


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """A body with nothing in it that is not known."""


class QueuesRequest(_Request):
    """Which queues may the caller read?"""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 1_000


class QueuesReply(msgspec.Struct):
    """Names in order."""

    queues: list[str]
    last: str
    """Where to go on; empty when that was all."""


class OffsetsRequest(_Request):
    """Where do the messages of these queues stand? In all their partitions, or in those of the offsets in `after`."""

    queues: QueueNames
    times_ms: Annotated[list[int], msgspec.Meta(max_length=100)] = []
    after: dict[str, Offset] = {}
    bytes_max: dict[str, int] = {}
    """For each partition of a queue."""


class OffsetsReply(msgspec.Struct):
    """The queues that are there, in the order of the request and of their partitions, and those that are not."""

    offsets: list[Offsets]
    missing: list[str]
    has_kafka_log: bool = True
    """Whether `chunks` may tell where they are in Kafka."""


class ReadRequest(_Request):
    """Messages of a queue from an offset up to, not including, an end."""

    queue: str
    offset: int
    end: int
    limit: Annotated[int, msgspec.Meta(ge=1, le=READ_MAX)] = READ_MAX
    bytes_max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    headers: bool = False
    columns: tuple[str, ...] | None = None
    """Which columns of `wire/arrow.py`; None: those that every message has, and the headers if `headers` says so."""


class ChunksRequest(_Request):
    """Which chunks hold the messages of a queue from an offset up to, not including, an end?"""

    queue: str
    offset: int
    end: int
    limit: Annotated[int, msgspec.Meta(ge=1, le=CHUNKS_MAX)] = CHUNKS_MAX


class KafkaLog(msgspec.Struct):
    """Where the chunks of a queue are in Kafka."""

    bootstrap: str
    topic: str
    partition: int
    is_open: bool
    """Whether the server itself needs no password and no certificate there."""


class ChunksReply(msgspec.Struct):
    """The chunks' keys (base64), by base, and where they are; nothing when the server's engine is not Kafka."""

    kafka: KafkaLog | None
    keys: list[bytes]
    next_offset: int
    """From where to go on, after as many as were asked for; fewer are all."""


class ChannelRequest(_Request):
    """Create a channel at an offset; one that is there stays as it is."""

    queue: str
    channel: str
    offset: Offset


class AckRequest(_Request):
    """Everything before these offsets is done for a channel."""

    channel: str
    offsets: dict[str, Offset]


class AckReply(msgspec.Struct):
    """How many messages that were, for each queue."""

    acked: dict[str, int]


class PublishRequest(_Request):
    """Send staged pieces in one commit, once."""

    token: str
    pieces: Annotated[list[str], msgspec.Meta(max_length=PIECES_MAX)]
    name: str
    number: Annotated[int, msgspec.Meta(ge=0)]


class PublishReply(msgspec.Struct):
    """How many messages were sent; none if that work was done before."""

    messages: int
    already_done: bool = False


class TakeRequest(_Request):
    """Lease messages of a channel, to be settled by span."""

    queue: str
    channel: str = "main"
    limit: Annotated[int, msgspec.Meta(ge=1, le=TAKE_MAX)] = 10_000
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] = 3_600_000
    headers: bool = False
    columns: tuple[str, ...] | None = None


class SettleRequest(_Request):
    """Acknowledge what was taken, or give it back."""

    queue: str
    spans: list[tuple[Number, Number, Number]]
    """First sequence number, last, attempt."""
    channel: str = "main"
    done: bool = True


class SettleReply(msgspec.Struct):
    """How many messages were settled; the others were not the caller's any more."""

    settled: int
