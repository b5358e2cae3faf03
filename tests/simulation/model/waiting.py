"""Demand: long polls and subscriptions, and when they are served."""

from __future__ import annotations

from typing import Any

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from tests.simulation.model.receiving import Receiving
from tests.simulation.model.state import Waiter
from tests.simulation.model.verdict import Outcome, demand

PICKED_TOGETHER = 32
"""So many messages of groups may be picked before the room in bytes is looked at again."""


class Waiting(Receiving):
    """Rules of those who wait."""

    def _accept_Subscribe(self, command: c.Subscribe, outcome: Outcome) -> None:
        must = self._missing(command.queue, command.channel)
        if command.session and command.session not in self.sessions:
            must.append(e.SessionNotFound)
        if command.in_flight and not must and self._is_limited(command):
            must.append(e.InvalidRequest)
        if self._refused(outcome, must):
            return
        self.waiters.append(
            Waiter(
                in_flight=command.in_flight,
                ticket=command.ticket,
                queue=command.queue,
                channel=command.channel,
                limit=command.credit,
                lease_ms=command.lease_ms,
                session=command.session,
                deadline_ms=None,
                subscription=outcome.subscription,
                room_bytes=command.room_bytes,
            )
        )

    def _is_limited(self, command: c.Subscribe) -> bool:
        """Whether the session has a subscription to the channel that limits what it holds."""
        place = (command.queue, command.channel, command.session)
        return any(w.in_flight and (w.queue, w.channel, w.session) == place for w in self.waiters)

    def _open_for(self, waiter: Waiter) -> int:
        """How many messages more one who waits may be given."""
        if waiter.room_bytes is not None and waiter.room_bytes <= 0:
            return 0
        if not waiter.in_flight:
            return waiter.limit
        return max(0, waiter.limit - self._in_hand(waiter))

    def _in_hand(self, waiter: Waiter) -> int:
        """How many messages the session of one who waits holds, if that limits what it is given."""
        if not waiter.in_flight:
            return 0
        copies = self.queues[waiter.queue].channels[waiter.channel].copies.values()
        return sum(copy.state is State.LEASED and copy.session == waiter.session for copy in copies)

    def _subscription(self, number: int) -> Waiter | None:
        return next((w for w in self.waiters if w.deadline_ms is None and w.subscription == number), None)

    def _accept_SetCredit(self, command: c.SetCredit, outcome: Outcome) -> None:
        waiter = self._subscription(command.subscription)
        if self._refused(outcome, [] if waiter else [e.PenstockError]) or waiter is None:
            return
        demand(outcome == self._in_hand(waiter), lambda: f"{outcome} are said to be held, not {self._in_hand(waiter)}")
        waiter.limit = waiter.limit if command.credit is None else command.credit
        waiter.room_bytes = waiter.room_bytes if command.room_bytes is None else command.room_bytes

    def _accept_AddCredit(self, command: c.AddCredit, outcome: Outcome) -> None:
        waiter = self._subscription(command.subscription)
        if not self._refused(outcome, [] if waiter else [e.PenstockError]) and waiter:
            waiter.limit += command.credit

    def _accept_CancelWait(self, command: c.CancelWait, outcome: Outcome) -> None:
        for waiter in [waiter for waiter in self.waiters if waiter.ticket == command.ticket]:
            self.waiters.remove(waiter)
            if waiter.deadline_ms is not None and waiter.deadline_ms <= self.now_ms:
                self.too_late.add(waiter.ticket)

    def woken(self, ticket: Any, delivery: c.Delivery) -> None:
        """One who waited got an answer."""
        if ticket in self.too_late:
            demand(delivery.count == 0, f"waiter {ticket} was cancelled, and got {delivery.count} messages")
            return
        if ticket in self.ended_waiters:
            error = self.ended_waiters.pop(ticket)
            demand(isinstance(delivery.error, error), f"waiter {ticket} got {delivery!r}, not {error.__name__}")
            return
        waiter = next((w for w in self.waiters if w.ticket == ticket), None)
        demand(waiter is not None, f"nobody waits with ticket {ticket!r}, but {delivery!r} came for it")
        assert waiter is not None
        queue = self.queues[waiter.queue]
        channel = queue.channels[waiter.channel]
        if waiter.deadline_ms is None:
            demand(delivery.count > 0, "an empty push")
            room = self._open_for(waiter)
            demand(delivery.count <= room, f"pushed {delivery.count} with a credit of {room}: {waiter}")
            counted = waiter.room_bytes is not None
            self._delivered(
                queue, channel, delivery, delivery.count, waiter.lease_ms, waiter.session, one_by_one=counted
            )
            if not waiter.in_flight:
                waiter.limit -= delivery.count
            if waiter.room_bytes is not None:
                before = self._bytes_before_last(delivery)
                fits = before < waiter.room_bytes or queue.config.is_fifo
                demand(fits, f"pushed on when {before} bytes were out: {waiter}")
                waiter.room_bytes -= sum(run.nbytes for run in delivery.runs)
            return
        self.waiters.remove(waiter)
        if delivery.count == 0:
            demand(waiter.deadline_ms <= self.now_ms, f"waiter {ticket} got an empty answer before its deadline")
            return
        earlier = [w for w in self.waiters if (w.queue, w.channel) == (waiter.queue, waiter.channel)]
        for other in earlier:
            is_before = other.deadline_ms is not None and self._came_before(other, waiter)
            demand(not is_before, f"waiter {ticket} was served before {other.ticket}, who came first")
        demand(delivery.count <= waiter.limit, f"{delivery.count} messages for a limit of {waiter.limit}")
        self._delivered(queue, channel, delivery, delivery.count, waiter.lease_ms, waiter.session)

    def _bytes_before_last(self, delivery: c.Delivery) -> int:
        """How much was out before the last piece of a delivery: a run, or some messages where groups are picked."""
        sizes = [len(run.chunk.body(index)) for run in delivery.runs for index in range(run.start, run.stop)]
        return sum(sizes[: -max(delivery.runs[-1].count, PICKED_TOGETHER)])

    def _came_before(self, one: Waiter, other: Waiter) -> bool:
        return bool(one.subscription < 0 and one.ticket < other.ticket)

    def check_demand(self) -> None:
        """After a step nobody waits for what is there, and nobody waits past the time."""
        demand(not self.ended_waiters, f"waiters were not told that their queue is gone: {self.ended_waiters}")
        for waiter in self.waiters:
            queue = self.queues[waiter.queue]
            ready = self.selectable(queue, queue.channels[waiter.channel], self._open_for(waiter))
            demand(not ready, f"{waiter} waits although {ready} messages are ready")
            late = waiter.deadline_ms is not None and waiter.deadline_ms <= self.now_ms
            demand(not late, f"{waiter} waits past its deadline")
