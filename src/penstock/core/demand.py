"""Receivers that wait: long polls (one answer, a deadline) and subscriptions (standing credit).

Whoever has waited longest is served first. When several wait and little is ready, each gets a fair share of it; a
subscription that has been served goes to the end of the line.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Waiter:
    """One who waits."""

    __slots__ = ("attempt_id", "credit", "deadline_ms", "lease_ms", "session", "standing", "subscription", "ticket")

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


class Line:
    """Those who wait for one channel, in order.

    >>> line = Line()
    >>> line.join(Waiter("first", 10, None, 0)); line.join(Waiter("second", 10, None, 0))
    >>> [(waiter.ticket, share) for waiter, share in (line.next(3), line.next(1))]
    [('first', 2), ('second', 1)]
    """

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Any:
        return iter(self._waiters)

    def join(self, waiter: Waiter) -> None:
        """Wait at the end of the line."""
        self._waiters.append(waiter)

    def join_first(self, waiter: Waiter) -> None:
        """Back to the front: it was its turn, and there was nothing for it."""
        self._waiters.appendleft(waiter)

    def join_once(self, waiter: Waiter) -> None:
        """Wait at the end of the line, unless it waits already."""
        if waiter not in self._waiters:
            self._waiters.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer; no error if it did not wait."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def next(self, ready: int) -> tuple[Waiter, int]:
        """Who is served next, taken out of the line, and the share of `ready` messages that it may have at most."""
        share = -(-ready // len(self._waiters))
        waiter = self._waiters.popleft()
        return waiter, min(waiter.credit, share)
