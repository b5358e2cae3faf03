"""What happened to a message, told in order: for people who ask what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from penstock.core.commands import Failure, Life
from penstock.core.delivery.states import State
from penstock.core.queues.origin import Origin

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
        what: What = "dead" if origin.failures else "sent"
        yield LifeEvent(life.sent_ms, what, life.queue, None, None, f"moved here from {origin.queue}")
    for each in life.channels:
        yield from _failed(life.queue, each.channel, each.failures, life.sequence)
        if each.state is State.LEASED:
            by = f" to {each.holder}" if each.holder else ""
            yield LifeEvent(each.received_ms, "received", life.queue, each.channel, each.attempts, f"delivered{by}")
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
