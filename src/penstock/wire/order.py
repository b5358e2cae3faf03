"""Calls stay in their order while what they are for moves: a shard from node to node, a queue from server to server.

A call may go at once if it overtakes nobody: nobody waits, and all calls without an answer are where this one goes.
Else it joins the line. A call that comes back undone joins it, too, and stands before all that came later. When the
place is known, and nothing is without an answer anywhere else, the line moves on: all of it, where the place is known
to take the calls; or the first alone, and all others when that is answered.

          may it go?  yes ──────► without an answer ──► answered
             │ no                    │        ▲
             ▼          came back    ▼        │ the first alone, or all
           waiting  ◄─────────────────        │
             └────────────────────────────────┘

Nothing here waits or keeps time. Receives stay out of it: nothing depends on their order, and they may wait for long.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Ordered(Protocol):
    """A call that knows when it came."""

    @property
    def order(self) -> int:
        """Higher than that of every call before it."""


AnyCall = TypeVar("AnyCall", bound=Ordered)
AnyPlace = TypeVar("AnyPlace")

_by_order = attrgetter("order")


class CallLine(Generic[AnyCall, AnyPlace]):
    """The calls for one thing that moves: those that wait, and how many are without an answer."""

    __slots__ = ("place", "probe", "unanswered", "waiting")

    def __init__(self, place: AnyPlace) -> None:
        self.place = place
        """Where the calls without an answer are."""
        self.unanswered = 0
        self.waiting: list[AnyCall] = []
        """In their order."""
        self.probe: AnyCall | None = None
        """The first of the line, if it was sent alone and nothing came of it yet."""

    @property
    def is_idle(self) -> bool:
        """Whether it keeps nobody."""
        return not self.unanswered and not self.waiting and self.probe is None

    def is_clear(self, place: AnyPlace) -> bool:
        """Whether nothing is without an answer anywhere but at this place."""
        return not self.unanswered or self.place is place

    def admits(self, place: AnyPlace) -> bool:
        """Whether a call that comes now may go to a place at once."""
        return not self.waiting and self.probe is None and self.is_clear(place)

    def left(self, place: AnyPlace) -> None:
        self.unanswered += 1
        self.place = place

    def answered(self) -> None:
        """A call has an answer, or has come back undone."""
        self.unanswered -= 1

    def join(self, call: AnyCall) -> None:
        """A call waits: behind all that came before it."""
        if call is self.probe:
            self.probe = None
        insort(self.waiting, call, key=_by_order)

    def first(self, place: AnyPlace) -> AnyCall | None:
        """The first that waits, to be sent alone; None if nobody may go to this place now."""
        if self.probe is not None or not self.waiting or not self.is_clear(place):
            return None
        self.probe = self.waiting.pop(0)
        return self.probe

    def rest(self, place: AnyPlace) -> list[AnyCall]:
        """The place takes calls: all that wait may go there, unless something is without an answer anywhere else."""
        self.probe = None
        if not self.is_clear(place):
            return []
        waiting, self.waiting = self.waiting, []
        return waiting
