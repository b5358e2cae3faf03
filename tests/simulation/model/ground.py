"""The state that all the rules share, and what they do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.acknowledgement import ACKED_KEPT
from penstock.core.delivery.states import State
from penstock.core.queues.config import QueueConfig
from tests.simulation.model.state import Channel, Copy, Place, Queue, Redrive, Session, Waiter
from tests.simulation.model.verdict import Outcome, demand


class Ground:
    """What is there, and how it goes."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[int, Session] = {}
        self.waiters: list[Waiter] = []
        self.redrives: dict[int, Redrive] = {}
        self.ended_waiters: dict[Any, type[e.PenstockError]] = {}
        self.went_back = False
        """Whether the clock was once earlier after a restart: times do not rise with sequence numbers then."""
        self.too_late: set[Any] = set()
        """Tickets that were cancelled when their time was already over; an empty answer may be on its way."""
        self.marks: dict[str, int] = {}
        """The highest number of marked work that was done, by name."""
        self.stages: dict[int, list[c.Send]] = {}
        """Sends that were written for work that is not committed yet."""
        self.done: dict[int, str] = {}
        """Number of a client's named command -> what it was answered."""
        self.done_ms = now_ms
        self.identify: Callable[[int, int], str] | None = None
        self.recalled = 0
        """How many deliveries that a crash had forgotten were settled, since somebody counted them."""
        self.deleted = 0
        """How many dead letters were deleted, since somebody counted them."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"identify": None}

    def reopened(self, now_ms: int) -> None:
        """The process started again: who waited is gone, and the clock is what the machine says now."""
        self.went_back |= now_ms < self.now_ms
        self.now_ms = now_ms
        self.done_ms = min(self.done_ms, now_ms)
        self.waiters.clear()
        self.ended_waiters.clear()
        for queue in self.queues.values():
            queue.rate.clear()
            queue.opened_to, queue.opened_ms = queue.next_sequence or 0, now_ms
            queue.dedup = {key: (sequence, min(at_ms, now_ms)) for key, (sequence, at_ms) in queue.dedup.items()}
            for consumer in queue.consumers.values():
                consumer.active_ms = min(consumer.active_ms, now_ms)
            for channel in queue.channels.values():
                channel.turns.clear()
                channel.lately = dict(list(channel.lately.items())[-ACKED_KEPT:])
                for copy in channel.copies.values():
                    self._set_clock_back(copy)
                    if copy.place is Place.AGAIN and not copy.attempts:  # given back; nobody remembers that
                        copy.place = Place.DUE if copy.message.due_ms else Place.FRESH
                for remembered in channel.attempts_known.values():
                    remembered.certain = False

    def _set_clock_back(self, copy: Copy) -> None:
        """No lease, and no backoff, lasts longer from now on than it was given, by a clock that may have been ahead."""
        if copy.state is State.LEASED and copy.received_ms > self.now_ms:
            copy.deadline_ms -= copy.received_ms - self.now_ms
            copy.received_ms = self.now_ms
        if copy.state is State.DELAYED and copy.history and copy.history[-1].failed_ms > self.now_ms:
            copy.deadline_ms -= copy.history[-1].failed_ms - self.now_ms
        for failure in copy.history:
            failure.failed_ms = min(failure.failed_ms, self.now_ms)

    def _refused(self, outcome: Outcome, must: Iterable[type[Exception]], may: Iterable[type[Exception]] = ()) -> bool:
        """Whether the command was refused, which it has to be for one of `must`, and can be for one of `may`."""
        must, may = tuple(must), tuple(may)
        if isinstance(outcome, e.PenstockError):
            demand(isinstance(outcome, must + may), f"refused with {outcome!r}; allowed: {must + may}")
            return True
        demand(not must, f"should have been refused with one of {must}, but got {outcome!r}")
        return False

    def _missing(self, queue: str, channel: str | None = None) -> list[type[Exception]]:
        if queue not in self.queues:
            return [e.QueueNotFound]
        if channel is not None and channel not in self.queues[queue].channels:
            return [e.ChannelNotFound]
        return []

    def _new_queue(self, name: str, config: QueueConfig, channels: Iterable[str]) -> Queue:
        queue = self.queues[name] = Queue(name, config)
        for channel in channels:
            self._new_channel(queue, channel)
        queue.was_open_ended = not queue.channels
        return queue

    def _new_channel(self, queue: Queue, name: str) -> Channel:
        channel = queue.channels[name] = Channel(name)
        return channel

    # -- what is stored --

    def _forget(self, queue: Queue, sequence: int) -> None:
        """A message is gone for everybody."""
        queue.messages.pop(sequence, None)
        queue.stored.discard(sequence)
        for channel in queue.channels.values():
            if channel.copies.pop(sequence, None) is not None:
                channel.turns.clear()
        for redrive in self.redrives.values():
            if redrive.queue == queue.name:
                redrive.due.discard(sequence)
                redrive.allowed.discard(sequence)

    def _purge(self, queue: Queue, purged: int | None) -> None:
        """All messages of a queue are gone, so many if that was said; it goes on being paused, if it was."""
        live = {sequence for channel in queue.channels.values() for sequence in channel.copies}
        live |= {message.sequence for message in queue.held()}
        most = self._stored_most(queue)
        queue.dedup.clear()
        right = purged is None or len(live) <= purged <= most
        demand(right, f"purged {purged} messages, from {len(live)} to {most} expected")
        for sequence in list(queue.messages):
            self._forget(queue, sequence)
        for channel in queue.channels.values():
            channel.copies.clear()
            channel.start = queue.next_sequence or 0
        if queue.held_from is not None:
            queue.held_from = queue.next_sequence or 0

    def _stored_most(self, queue: Queue) -> int:
        """How many messages may be stored: each once, and once more for each channel that has it in its retry lane."""
        return len(queue.messages) * (1 + len(queue.channels))

    def _may_be_gone(self, queue: Queue, sequences: Iterable[int]) -> None:
        """These may have been the last thing that kept a chunk."""
        if not queue.channels:
            return
        kept_from = min((consumer.offset for consumer in queue.consumers.values()), default=None)
        for sequence in sequences:
            if queue.is_held(sequence) or (kept_from is not None and sequence >= kept_from):
                continue
            wanted = (channel.copies.get(sequence) for channel in queue.channels.values())
            if not any(copy is not None and copy.place is not Place.RETRY for copy in wanted):
                queue.stored.discard(sequence)

    def _done(self, queue: Queue, channel: Channel, copy: Copy) -> None:
        del channel.copies[copy.message.sequence]
        self._may_be_gone(queue, [copy.message.sequence])

    def _excuse(self, queue: str, sequence: int) -> None:
        """A message that was touched meanwhile need not be redriven."""
        for redrive in self.redrives.values():
            if redrive.queue == queue:
                redrive.due.discard(sequence)

    # -- those who wait --

    def _end_waiters(self, queue: str, channel: str | None, error: type[e.PenstockError]) -> None:
        self._turn_away([w for w in self.waiters if w.queue == queue and channel in (None, w.channel)], error)

    def _turn_away(self, waiters: list[Waiter], error: type[e.PenstockError]) -> None:
        for waiter in waiters:
            self.waiters.remove(waiter)
            if waiter.deadline_ms is not None and waiter.deadline_ms <= self.now_ms:
                self.too_late.add(waiter.ticket)
            else:
                self.ended_waiters[waiter.ticket] = error
