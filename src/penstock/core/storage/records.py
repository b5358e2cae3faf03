"""What the state records hold: the stored form of everything small, as MessagePack arrays.

A field is only ever added, at the end and with a default, so that a store that was written before can be read. A build
that does not know a field passes over it, and leaves it out when it writes the record again; only the settings of
queues are kept (`docs/upgrading.md`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.commands import ForwardedAcks, ForwardedDelete, ForwardedMessages, Span


class Meta(msgspec.Struct, array_like=True):
    """The store itself: its format, its secret, its realm, and the next numbers."""

    version: int
    secret: bytes
    realm: int
    next_queue: int = 1
    next_session: int = 1
    next_task: int = 1
    shard: int = 0
    shards: int = 1
    """Which shard of how many this store is."""
    made_ms: int = 0
    """When the store was made: a shard whose store is made anew has another outbox."""
    next_stage: int = 1


class Session(msgspec.Struct, array_like=True):
    """Who holds leases."""

    name: str
    ttl_ms: int | None
    seen_ms: int
    bound: bool = False
    holder: str = ""


class QueueRecord(msgspec.Struct, array_like=True):
    name: str
    settings: dict[str, Any]
    """As `penstock.core.queues.config.stored_settings` says."""
    created_ms: int
    changed_ms: int
    held_from: int | None = None
    needs: list[str] = []
    """Settings of these that a build must know to serve the queue."""


class Consumer(msgspec.Struct, array_like=True):
    """A named cursor."""

    offset: int
    seen_ms: int


class DoneOnce(msgspec.Struct, array_like=True, frozen=True):
    """A command that was done for a client which names its commands: what it was, and its reply."""

    command: str
    reply: bytes


class OnceClient(msgspec.Struct, array_like=True):
    """What is remembered of such a client."""

    seen_ms: int
    answered: int = 0
    done: dict[int, DoneOnce] = {}


class QuarantineRecord(msgspec.Struct, array_like=True):
    """A damaged chunk."""

    reason: str


class AttemptRecord(msgspec.Struct, array_like=True):
    """What a receive with an attempt id was given."""

    spans: list[Span]
    expires_ms: int


class Mark(msgspec.Struct, array_like=True):
    """Which numbered work of a name was done last."""

    number: int
    done_ms: int


class OutboxRecord(msgspec.Struct, array_like=True):
    """An entry of an outbox; its messages are in a chunk."""

    made_ms: int
    effect: ForwardedMessages | ForwardedAcks | ForwardedDelete
    messages: int = 0


class StageRecord(msgspec.Struct, array_like=True):
    """What is to be dropped if a stage is never committed: by queue (or outbox), and lane where it would be seen."""

    runs: list[tuple[int, int]]


class OutboxTarget(msgspec.Struct, array_like=True):
    """The entries of an outbox for one shard: from `first` on, up to before `next`. Numbers are never used again."""

    first: int = 0
    next: int = 0


class SegmentRecord(msgspec.Struct, array_like=True):
    """The stored form of a segment; queue, lane and first number are in its key."""

    order: int
    count: int
    sent_ms: int
    left: int
