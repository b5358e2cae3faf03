"""Where a message was before it was moved between queues, and what happened to it there.

What happened to a message, told in order: for people who ask what became of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from penstock.core.commands import Failure, Life
from penstock.core.delivery.states import State


class Origin(msgspec.Struct, frozen=True):
    """A dead letter's history; a redriven message keeps it.

    >>> origin = Origin("id", "orders", "main", 7, 1000, 3, 0, [])
    >>> Origin.decode(origin.encode()) == origin
    True
    """

    id: str
    """The identity that the message keeps for life."""
    queue: str
    """The queue it was moved from last."""
    channel: str
    sequence: int
    sent_ms: int
    """When it was first sent."""
    attempts: int
    priority: int
    failures: list[Failure]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Origin:
        return msgspec.msgpack.decode(data, type=cls)


_GROUP_LENGTH_MAX = 200
_VARYING = re.compile(
    r"""'[^'\n]{0,500}'|"[^"\n]{0,500}"|\b0x[0-9A-Fa-f]+\b|"""
    r"""\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b|\b(?=[A-Fa-f]*\d)[0-9A-Fa-f]{12,}\b|\d+(?:\.\d+)*"""
)


def error_group(error: str) -> str:
    """What an error has in common with others of its kind: its first line, without numbers, ids and quoted text.

    >>> error_group("Timeout: no answer from 10.0.0.7 after 3.5 s for order 'A-17'")
    'Timeout: no answer from # after # s for order #'
    """
    line = error.strip().partition("\n")[0][: 5 * _GROUP_LENGTH_MAX]
    return _VARYING.sub("#", line)[:_GROUP_LENGTH_MAX].rstrip() or "no error was given"


def failures_of(origin: Origin | None, failures: list[Failure], sequence: int) -> list[Failure]:
    """Every failed delivery of a message, the first one first: where it was before, and where it is."""
    before = [] if origin is None else [each for each in origin.failures if each.first <= origin.sequence <= each.last]
    return before + [each for each in failures if each.first <= sequence <= each.last]


What = Literal["sent", "received", "failed", "dead", "due", "lease ends"]


class LifeEvent(NamedTuple):
    """Something that happened to a message, or will."""

    at_ms: int
    what: What
    queue: str
    channel: str | None
    attempt: int | None
    text: str


def events_of(life: Life) -> list[LifeEvent]:
    """The whole life of a message as far as it is known, the oldest first.

    >>> [(event.at_ms, event.text) for event in events_of(Life("orders", 1, 7, 1_000, b"tea", due_ms=3_000))]
    [(1000, 'sent, due in 2 s')]
    """
    return sorted(_events(life), key=lambda event: event.at_ms)


def _events(life: Life) -> Iterator[LifeEvent]:
    origin = None if life.origin is None else Origin.decode(life.origin)
    if origin is None:
        delay = f", due in {(life.due_ms - life.sent_ms) / 1_000:g} s" if life.due_ms > life.sent_ms else ""
        yield LifeEvent(life.sent_ms, "sent", life.queue, None, None, f"sent{delay}")
    else:
        yield LifeEvent(origin.sent_ms, "sent", origin.queue, None, None, "sent")
        yield from _failed(origin.queue, origin.channel, origin.failures, origin.sequence)
        is_back = origin.queue == life.queue
        what: What = "dead" if origin.failures and not is_back else "sent"
        text = "brought back by a redrive" if is_back else f"moved here from {origin.queue}"
        yield LifeEvent(life.sent_ms, what, life.queue, None, None, text)
    for each in life.channels:
        yield from _failed(life.queue, each.channel, each.failures, life.sequence)
        if each.state is State.LEASED:
            by = each.holder or (f"session {each.session}" if each.session else "a client without a session")
            yield LifeEvent(each.received_ms, "received", life.queue, each.channel, each.attempts, f"delivered to {by}")
            text = "the lease ends, if it is not settled before"
            yield LifeEvent(each.deadline_ms, "lease ends", life.queue, each.channel, each.attempts, text)
        elif each.state is State.DELAYED and each.deadline_ms:
            yield LifeEvent(each.deadline_ms, "due", life.queue, each.channel, None, "comes due")


def _failed(queue: str, channel: str, failures: Iterable[Failure], sequence: int) -> Iterator[LifeEvent]:
    for each in failures:
        if each.first <= sequence <= each.last:
            by = f" to {each.session}" if each.session else ""
            yield LifeEvent(each.received_ms, "received", queue, channel, each.attempt, f"delivered{by}")
            yield LifeEvent(each.failed_ms, "failed", queue, channel, each.attempt, each.error or "no error was given")
