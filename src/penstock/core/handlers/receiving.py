"""Receiving: at once, after a wait, or pushed to a subscription.

A receive that finds nothing waits in the channel's wait queue (`core/delivery/demand.py`), as every subscription does.
At the end of a step those are served whose channels have something by then; what they get goes out with their tickets.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from penstock.core.commands import (
    MAIN,
    AddCredit,
    CancelWait,
    Delivery,
    MessageEvent,
    Receive,
    Run,
    SetCredit,
    Subscribe,
    Subscribed,
)
from penstock.core.delivery.channel import Channel
from penstock.core.delivery.demand import Allowance, Waiter
from penstock.core.errors import ChunkDamaged, InvalidRequest, OverLimit, PenstockError, SessionNotFound
from penstock.core.handlers.checks import check_lease, check_limit, check_text
from penstock.core.queues.queue import Queue

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_SUBSCRIPTION_BITS = 20
"""Subscriptions are numbered by the time in ms, and then in so many bits."""


class Receiving:
    """Hands messages to those who ask, and to those who wait."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.woken: list[tuple[Any, Delivery]] = []
        """Deliveries to those who waited, with their tickets."""
        self._waiters: dict[Any, tuple[Channel, Waiter]] = {}
        self._subscriptions: dict[int, tuple[Channel, Waiter]] = {}
        self._last_subscription = 0
        self.before: dict[Waiter, Allowance] = {}
        """What subscriptions might be given that this step has changed, as it was before."""
        self.before_written: dict[Waiter, Allowance] | None = None
        """The same of the step before, while that is being written."""

    # -- receives --

    def _receive(self, command: Receive) -> Delivery | None:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        check_limit(command.limit)
        if command.lease_ms is not None:
            check_lease(command.lease_ms)
        if command.wait_ms is not None and command.wait_ms < 0:
            raise InvalidRequest(f"wait_ms is {command.wait_ms}: it must not be negative")
        if command.session:
            self.broker.check_session(command.session)
        if command.attempt_id is not None and not queue.is_fifo:
            raise InvalidRequest(f"queue {queue.name!r} is a standard queue: receive attempt ids are for FIFO")
        channel = self.channel_to_receive(queue, command.channel)
        if command.attempt_id is not None:
            check_text(command.attempt_id, "receive attempt id")
            again = self._receive_again(channel, command)
            if again is not None:
                return again
        room = queue.config.in_flight_max - channel.leased
        if room <= 0 and not queue.is_fifo:
            raise OverLimit(
                f"channel {channel.name!r} of queue {queue.name!r} has {queue.config.in_flight_max} messages "
                f"in flight, "
                "which is its limit: settle some first"
            )
        runs = self._take(channel, min(command.limit, room), command.lease_ms, command.session, command.attempt_id)
        if runs:
            if command.session:
                channel.received(command.session, runs)
            return self._delivery(channel, runs, command.lease_ms)
        wait_ms = queue.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        if not wait_ms or command.ticket is None:
            return self._delivery(channel, [], command.lease_ms)
        self._wait(channel, command, wait_ms)
        return None

    def _receive_again(self, channel: Channel, command: Receive) -> Delivery | None:
        assert command.attempt_id is not None
        lease_ms = channel.queue.config.lease_ms if command.lease_ms is None else command.lease_ms
        again = channel.attempts.take_again(command.attempt_id, self.broker.now_ms, lease_ms)
        if again is None:
            return None
        runs, deadline_ms = again
        channel.attempts.remember(command.attempt_id, runs, deadline_ms)
        return self._delivery(channel, runs, deadline_ms - self.broker.now_ms)

    def channel_to_receive(self, queue: Queue, channel_name: str) -> Channel:
        """The channel of a queue with this name. The main one is created if it is not there."""
        if queue.draft is not None:
            queue.seal()
        channel = queue.channels.get(channel_name)
        if channel is None:
            if channel_name != MAIN:
                return self.broker.find_channel(queue, channel_name)
            channel = queue.add_channel(MAIN, "head", self.broker.now_ms)
        return channel

    def _wait(self, channel: Channel, command: Receive, wait_ms: int) -> None:
        deadline_ms = self.broker.now_ms + wait_ms
        waiter = Waiter(
            command.ticket,
            command.limit,
            command.lease_ms,
            command.session,
            deadline_ms=deadline_ms,
            attempt_id=command.attempt_id,
        )
        channel.wait_queue.join(waiter)
        self._waiters[command.ticket] = (channel, waiter)
        self.broker.schedule(deadline_ms, "waiter", channel, waiter)

    def end_wait(self, channel: Channel, waiter: Waiter, _time_ms: int) -> None:
        """A time has come up to which somebody may have waited: then there is nothing for them."""
        if self._waiters.get(waiter.ticket, (None, None))[1] is waiter:
            del self._waiters[waiter.ticket]
            channel.wait_queue.leave(waiter)
            self.woken.append((waiter.ticket, self._delivery(channel, [], 0)))

    def _cancel_wait(self, command: CancelWait) -> None:
        channel, waiter = self._waiters.pop(command.ticket, (None, None))
        if channel is not None and waiter is not None:
            channel.wait_queue.leave(waiter)
            if waiter.subscription is not None:
                del self._subscriptions[waiter.subscription]
                if channel.subscribers.get(waiter.session) is waiter:
                    del channel.subscribers[waiter.session]

    # -- subscriptions --

    def _subscribe(self, command: Subscribe) -> Subscribed:
        queue = self.broker.find_queue(command.queue, command.of_queue)
        check_lease(command.lease_ms)
        self.broker.check_session(command.session)
        if command.credit < 0:
            raise InvalidRequest(f"credit is {command.credit}: it must not be negative")
        channel = self.channel_to_receive(queue, command.channel)
        number = self._number_subscription()
        waiter = Waiter(command.ticket, command.credit, command.lease_ms, command.session, subscription=number)
        waiter.room_bytes = command.room_bytes
        if command.in_flight:
            self._limit_in_flight(channel, waiter)
        self._subscriptions[number] = (channel, waiter)
        self._waiters[command.ticket] = (channel, waiter)
        self._credit(channel, waiter, command.credit)
        return Subscribed(number)

    def _number_subscription(self) -> int:
        """A number that no subscription in this shard has had, wherever it was served: credit for one may come late."""
        self._last_subscription = max(self._last_subscription + 1, self.broker.now_ms << _SUBSCRIPTION_BITS)
        return self._last_subscription

    @staticmethod
    def _limit_in_flight(channel: Channel, waiter: Waiter) -> None:
        if not waiter.session or waiter.session in channel.subscribers:
            raise InvalidRequest("a limit on messages in flight needs a session that has no such subscription here yet")
        waiter.limit = waiter.credit
        waiter.hold(channel.held_by(waiter.session))
        channel.subscribers[waiter.session] = waiter

    def _set_credit(self, command: SetCredit) -> int:
        channel, waiter = self._subscription(command.subscription)
        self._keep(waiter)
        if command.room_bytes is not None:
            waiter.room_bytes = command.room_bytes
        if command.credit is not None:
            on_the_way = 0 if command.arrived is None else waiter.pushed - command.arrived
            self._credit(channel, waiter, max(min(0, command.credit), command.credit - on_the_way))
        else:
            channel.update_wait(waiter)
        return waiter.held

    def _add_credit(self, command: AddCredit) -> None:
        channel, waiter = self._subscription(command.subscription)
        self._keep(waiter)
        allowed = waiter.credit if waiter.limit is None else waiter.limit
        self._credit(channel, waiter, allowed + command.credit)

    def _subscription(self, number: int) -> tuple[Channel, Waiter]:
        found = self._subscriptions.get(number)
        if found is None:
            raise SessionNotFound(f"subscription {number} has ended, or never existed: subscribe again")
        return found

    def _credit(self, channel: Channel, waiter: Waiter, credit: int) -> None:
        if credit < 0:
            raise InvalidRequest(f"credit is {credit}: it must not be negative")
        waiter.allow(credit)
        channel.update_wait(waiter)

    def _keep(self, waiter: Waiter) -> None:
        """What a subscription may be given is about to change."""
        self.before.setdefault(waiter, waiter.allowance)

    def settled(self) -> None:
        """The step went well: what it has given counts."""
        if self.before_written is not None:
            self.before_written = None
        else:
            self.before.clear()

    def set_aside(self) -> None:
        """The step is being written while another one begins: until it is `settled`, both may have to be undone."""
        self.before_written, self.before = self.before, {}

    def left_early(self, ticket: Any, delivery: Delivery) -> None:
        """What a subscription was given has left: that counts, whatever becomes of the step."""
        _, waiter = self._waiters.get(ticket, (None, None))
        for before in (self.before, self.before_written or {}):
            if waiter is not None and waiter in before:
                credit, limit, room_bytes, pushed = before[waiter]
                room = None if room_bytes is None else room_bytes - sum(run.nbytes for run in delivery.runs)
                before[waiter] = credit - delivery.count, limit, room, pushed + delivery.count

    def held(self, subscription: int) -> int:
        """How many messages the session of a subscription holds, if that limits what it is pushed; else 0."""
        found = self._subscriptions.get(subscription)
        return 0 if found is None else found[1].held

    def adopt(self, other: Receiving, tickets: Container[Any]) -> set[Any]:
        """Take over the subscriptions with these tickets from a broker that is thrown away, and its step with it.

        Returns the tickets of those whose channel and session are still there: the others are over.
        """
        adopted: set[Any] = set()
        for waiter, before in [*other.before.items(), *(other.before_written or {}).items()]:
            waiter.allowance = before
        self._last_subscription = max(self._last_subscription, other._last_subscription)
        for number, (gone, waiter) in other._subscriptions.items():
            if waiter.ticket not in tickets:
                continue
            queue = self.broker.queues_by_id.get(gone.queue.id)
            channel = None if queue is None else queue.channels.get(gone.name)
            if channel is not None and (not waiter.session or waiter.session in self.broker.sessions):
                self._move_in(channel, waiter, number)
                adopted.add(waiter.ticket)
        return adopted

    def _move_in(self, channel: Channel, waiter: Waiter, number: int) -> None:
        waiter.is_queued = False
        self._subscriptions[number] = self._waiters[waiter.ticket] = (channel, waiter)
        if waiter.limit is not None:
            channel.subscribers[waiter.session] = waiter
            waiter.held = 0
            waiter.hold(channel.held_by(waiter.session))
        channel.update_wait(waiter)

    # -- channels and sessions go --

    def dismiss(self, channel: Channel, error: PenstockError) -> None:
        """A channel goes: so do those who wait for it."""
        for other, waiter in list(self._waiters.values()):
            if other is channel:
                self._turn_away(channel, waiter, error)

    def has_waiters(self, channel: Channel) -> bool:
        """Whether anybody waits for a channel, or has subscribed to it."""
        return any(other is channel for other, _ in self._waiters.values())

    def session_ended(self, session: int, error: str) -> None:
        """A session is over: so is what it waits for."""
        for channel, waiter in list(self._waiters.values()):
            if waiter.session == session:
                self._turn_away(channel, waiter, SessionNotFound(f"session {session} has ended: {error}"))

    def _turn_away(self, channel: Channel, waiter: Waiter, error: PenstockError) -> None:
        self._cancel_wait(CancelWait(ticket=waiter.ticket))
        delivery = self._delivery(channel, [], 0)
        delivery.error = error
        self.woken.append((waiter.ticket, delivery))

    # -- messages go out --

    def serve(self, awake: dict[Channel, None]) -> None:
        """Give those who wait what these channels have."""
        for channel in awake:
            while channel.wait_queue.waiters and not channel.paused and (ready := channel.ready):
                room = channel.queue.config.in_flight_max - channel.leased
                if room <= 0 or not self._serve_next(channel, min(ready, room)):
                    break

    def _serve_next(self, channel: Channel, ready: int) -> bool:
        waiter, share = channel.wait_queue.next(ready)
        try:
            runs = self._take(
                channel, share, waiter.lease_ms, waiter.session, waiter.attempt_id, room_bytes=waiter.room_bytes
            )
        except ChunkDamaged:  # reported; what comes after it can be served
            channel.wait_queue.join_first(waiter)
            return True
        if not runs:
            channel.wait_queue.join_first(waiter)
            return False
        delivery = self._delivery(channel, runs, waiter.lease_ms)
        self.woken.append((waiter.ticket, delivery))
        if not waiter.standing:
            self._waiters.pop(waiter.ticket, None)
            if waiter.session:
                channel.received(waiter.session, runs)
            return True
        self.before.setdefault(waiter, waiter.allowance)  # as `_keep`, which costs a call
        count = size = 0
        for run in runs:
            count += run.stop - run.start
            if waiter.room_bytes is not None:
                size += run.nbytes
        waiter.take(count, size)
        if waiter.is_open:
            channel.wait_queue.join_once(waiter)
        return True

    def _take(
        self,
        channel: Channel,
        limit: int,
        lease_ms: int | None,
        session: int,
        attempt_id: str | None,
        *,
        room_bytes: int | None = None,
    ) -> list[Run]:
        if lease_ms is None:
            lease_ms = channel.queue.config.lease_ms
        holder = session or self.broker.session_register.own()
        runs = channel.dispatch.take(limit, self.broker.now_ms, lease_ms, holder, room_bytes)
        if attempt_id is not None and runs:
            channel.attempts.remember(attempt_id, runs, self.broker.now_ms + lease_ms)
        if self.broker.message_events is not None:
            self._note_received(channel, runs, self.broker.session_name(session))
        return runs

    def _note_received(self, channel: Channel, runs: list[Run], session: str) -> None:
        assert self.broker.message_events is not None
        queue, at_ms = channel.queue.name, self.broker.now_ms
        for run in runs:
            size = run.nbytes
            for first, last, attempt in run.spans():
                count, sent_ms = last - first + 1, run.chunk.sent_ms
                share = size * count // run.count
                self.broker.message_events.append(
                    MessageEvent("received", queue, channel.name, first, count, at_ms, sent_ms, attempt, share, session)
                )

    def _delivery(self, channel: Channel, runs: list[Run], lease_ms: int | None) -> Delivery:
        queue, now_ms = channel.queue, self.broker.now_ms
        deadline_ms = now_ms + (queue.config.lease_ms if lease_ms is None else lease_ms)
        return Delivery(queue.name, queue.id, channel.name, channel.id, now_ms, deadline_ms, runs)
