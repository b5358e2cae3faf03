"""What the model knows: plain objects, one for each message and channel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from penstock.core import commands as c
from penstock.core.delivery.states import State
from penstock.core.queues.config import QueueConfig

HISTORY_KEPT = 16
"""How many failed deliveries of a message are remembered at least."""


class Place(IntEnum):
    """Where a ready message stands among those of its priority.

    What was delivered before, or given back, is `AGAIN` or, in the retry lane, `RETRY`: it takes turns with the others.
    Of those, `DUE` is served before `FRESH`.
    """

    AGAIN = 0
    RETRY = 1
    DUE = 2
    FRESH = 3


@dataclass(slots=True)
class Failed:
    """One failed delivery, as it must show in a message's history."""

    attempt: int
    received_ms: int
    failed_ms: int
    session: str
    error: str

    def matches(self, failure: c.Failure) -> bool:
        return (self.attempt, self.received_ms, self.failed_ms, self.session, self.error) == (
            failure.attempt,
            failure.received_ms,
            failure.failed_ms,
            failure.session,
            failure.error,
        )


def same_history(mine: list[Failed], shown: list[c.Failure]) -> bool:
    """Whether a history shows what was: all of it, or the last `HISTORY_KEPT` failures at least; and nothing else."""
    past = iter(mine)
    is_known = all(any(one.matches(each) for one in past) for each in shown)
    last = mine[-HISTORY_KEPT:]
    if not is_known or len(shown) < len(last):
        return False
    return all(one.matches(each) for one, each in zip(reversed(last), reversed(shown), strict=False))


@dataclass(slots=True)
class Origin:
    """Where a dead letter came from, and why."""

    queue: str
    channel: str
    sequence: int
    identity: tuple[int, int]
    sent_ms: int
    attempts: int
    priority: int
    failures: list[Failed]

    def key(self) -> tuple[str, str, int, int]:
        return (self.queue, self.channel, self.sequence, self.sent_ms)


@dataclass(slots=True, eq=False)
class Message:
    sequence: int
    body: bytes
    attributes: bytes | None
    group: str | None
    priority: int
    sent_ms: int
    due_ms: int
    origin: Origin | None = None
    appears_ms: int = 0
    """When it can be received at first; retention counts from here, so that a delay may be longer."""

    def __post_init__(self) -> None:
        self.appears_ms = max(self.sent_ms, self.due_ms)


@dataclass(slots=True, eq=False)
class Copy:
    """A message as one channel sees it. A copy that is done is dropped."""

    message: Message
    state: State
    place: Place
    attempts: int = 0
    deadline_ms: int = 0
    received_ms: int = 0
    first_received_ms: int = 0
    session: int = 0
    history: list[Failed] = field(default_factory=list)

    def is_ackable(self, attempt: int) -> bool:
        return attempt >= 1 and self.attempts == attempt

    def is_held(self, attempt: int) -> bool:
        return self.state is State.LEASED and self.attempts == attempt


@dataclass(slots=True)
class Remembered:
    """What a receive with an attempt id got."""

    held: list[tuple[int, int]]
    certain: bool = True


@dataclass(slots=True)
class Channel:
    name: str
    copies: dict[int, Copy] = field(default_factory=dict)
    paused: bool = False
    owes_fresh: bool = False
    """Whether what was delivered before had the last turn."""
    start: int = 0
    """The first sequence number that it is about: what is held back before it is not shown to it later."""
    acked: int = 0
    failed: int = 0
    dead: int = 0
    attempts_known: dict[str, Remembered] = field(default_factory=dict)
    turns: Counter[tuple[int, str | None, str | None]] = field(default_factory=Counter)
    """(priority, one group, another one that waits) -> how often the one was served since the other was."""
    lately: dict[int, int] = field(default_factory=dict)
    """FIFO: sequence number -> attempt of what was acked, the last at the end."""

    def ordered(self) -> list[Copy]:
        return [self.copies[sequence] for sequence in sorted(self.copies)]

    def count(self, state: State) -> int:
        return sum(copy.state is state for copy in self.copies.values())


RECALLED_ATTEMPTS_MAX = 1 << 24
"""Nobody is taken to have got a message more often."""


@dataclass(slots=True)
class Queue:
    name: str
    config: QueueConfig
    queue_id: int | None = None
    next_sequence: int | None = None
    sent: int = 0
    channels: dict[str, Channel] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    """What may still be stored."""
    stored: set[int] = field(default_factory=set)
    """What must still be stored."""
    dedup: dict[tuple[str | None, str], tuple[int, int]] = field(default_factory=dict)
    incoming: list[Message] = field(default_factory=list)
    was_open_ended: bool = False
    """Whether it ever had no channel, so that nothing but retention ends what was sent then."""
    held_from: int | None = None
    """While it is paused: the first sequence number that the channels are not shown."""
    rate: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    """Group, or None for all -> a second, and how many messages came in it."""

    chunks: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of a queue with a limit by size, when its log was read last: base of each chunk -> messages, bytes."""
    seen_end: int = 0
    """The end of its log then."""
    opened_to: int = 0
    """Its next sequence number when the store was opened: deliveries of lower ones may have been forgotten."""
    opened_ms: int = 0

    def was_forgotten(self, copy: Copy, attempt: int) -> bool:
        """Whether somebody who got a message on this attempt may have got it just before a crash, which forgot it."""
        may_forget = not self.config.leases_are_durable and copy.message.sequence < self.opened_to
        return may_forget and copy.attempts < attempt <= RECALLED_ATTEMPTS_MAX

    def is_held(self, sequence: int) -> bool:
        return self.held_from is not None and sequence >= self.held_from

    def held(self) -> list[Message]:
        """What the channels are not shown."""
        return [message for sequence, message in sorted(self.messages.items()) if self.is_held(sequence)]


@dataclass(slots=True)
class Consumer:
    offset: int
    active_ms: int
    """When it last read or acknowledged."""


@dataclass(slots=True)
class Session:
    name: str
    ttl_ms: int | None
    expires_ms: int | None


@dataclass(slots=True, eq=False)
class Waiter:
    ticket: Any
    queue: str
    channel: str
    limit: int
    lease_ms: int | None
    session: int
    deadline_ms: int | None
    """None for a subscription."""
    subscription: int = -1
    in_flight: bool = False
    """Whether `limit` is what the session may hold, and not what it may still be given."""
    room_bytes: int | None = None
    """Nothing is pushed once this is used up; None: it has no limit in bytes."""


@dataclass(slots=True)
class Redrive:
    queue: str
    target: str | None
    due: set[int]
    """Sequence numbers that must be moved when it is done."""
    allowed: set[int]
    """Sequence numbers that it may move, or delete."""
    discard: bool = False
    group: str | None = None
