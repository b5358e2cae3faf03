"""Receivers that wait: long polls (one answer, a deadline) and subscriptions (standing credit).

Whoever has waited longest is served first. When several wait and little is ready, each gets a fair share of it; a
subscription that has been served goes to the end of the wait queue.

A subscription's credit is how many messages more it may be pushed; or, with a limit on what is in flight, it follows
from the limit and from what its session holds: every message that is settled, or whose lease runs out, makes room for
another one. A subscription may also have a limit in bytes, which whoever writes them to a socket sets again and again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

Allowance = tuple[int, int | None, int | None, int]
"""What a subscription may be given (credit, limit, room in bytes), and how many messages that were so far."""


class Waiter:
    __slots__ = (
        "attempt_id",
        "credit",
        "deadline_ms",
        "held",
        "is_queued",
        "lease_ms",
        "limit",
        "pushed",
        "room_bytes",
        "session",
        "standing",
        "subscription",
        "ticket",
    )

    def __init__(
        self,
        ticket: Any,
        credit: int,
        lease_ms: int | None,
        session: int,
        *,
        deadline_ms: int | None = None,
        attempt_id: str | None = None,
        subscription: int | None = None,
    ) -> None:
        self.ticket = ticket
        self.credit = credit
        """How many messages it may be given."""
        self.lease_ms = lease_ms
        self.session = session
        self.deadline_ms = deadline_ms
        self.attempt_id = attempt_id
        self.subscription = subscription
        self.standing = subscription is not None
        self.limit: int | None = None
        """How many messages its session may hold; None: only the credit counts."""
        self.held = 0
        """How many messages its session holds, if there is a limit."""
        self.pushed = 0
        """How many messages it was given, if it is a subscription."""
        self.room_bytes: int | None = None
        """How many bytes it may be given; None: any number."""
        self.is_queued = False

    @property
    def is_open(self) -> bool:
        """Whether it may be given anything now."""
        return self.credit > 0 and (self.room_bytes is None or self.room_bytes > 0)

    @property
    def allowance(self) -> Allowance:
        """What it may be given: kept before a step, and set again if the step has to be done again."""
        return self.credit, self.limit, self.room_bytes, self.pushed

    @allowance.setter
    def allowance(self, before: Allowance) -> None:
        self.credit, self.limit, self.room_bytes, self.pushed = before

    def allow(self, credit: int) -> None:
        """Set the credit; or, if there is one, the limit from which it follows."""
        if self.limit is None:
            self.credit = credit
        else:
            self.limit = credit
            self.hold(0)

    def hold(self, change: int) -> None:
        """Its session holds so many messages more, or fewer."""
        assert self.limit is not None
        self.held = max(0, self.held + change)
        self.credit = max(0, self.limit - self.held)

    def take(self, messages: int, size: int) -> None:
        """It was given messages, of `size` bytes together."""
        self.pushed += messages
        if self.limit is None:
            self.credit -= messages
        else:
            self.hold(messages)
        if self.room_bytes is not None:
            self.room_bytes -= size


class WaitQueue:
    """Those who wait for one channel, in order.

    >>> wait_queue = WaitQueue()
    >>> wait_queue.join(Waiter("first", 10, None, 0)); wait_queue.join(Waiter("second", 10, None, 0))
    >>> [(waiter.ticket, share) for waiter, share in (wait_queue.next(3), wait_queue.next(1))]
    [('first', 2), ('second', 1)]
    """

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self.waiters)

    def __iter__(self) -> Any:
        return iter(self.waiters)

    def join(self, waiter: Waiter) -> None:
        self.waiters.append(waiter)
        waiter.is_queued = True

    def join_first(self, waiter: Waiter) -> None:
        """Back to the front: it was its turn, and there was nothing for it."""
        self.waiters.appendleft(waiter)
        waiter.is_queued = True

    def join_once(self, waiter: Waiter) -> None:
        """Wait at the end of the wait queue, unless it waits already."""
        if not waiter.is_queued:
            self.waiters.append(waiter)
            waiter.is_queued = True

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer; no error if it did not wait."""
        if waiter.is_queued:
            self.waiters.remove(waiter)
            waiter.is_queued = False

    def next(self, ready: int) -> tuple[Waiter, int]:
        """The next waiter, taken out of the queue, and the share of `ready` messages that it may have at most."""
        share = -(-ready // len(self.waiters))
        waiter = self.waiters.popleft()
        waiter.is_queued = False
        return waiter, min(waiter.credit, share)
