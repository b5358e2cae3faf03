"""A naive broker: plain objects, one per message and channel, no cleverness. It judges the real one.

How it works. The model is an acceptor: it never decides by itself what the broker answers. It is told each command with
its outcome (`accept`), each reply of a waiting receiver (`woken`) and the end of each step (`finish`), demands that the
outcome is one which the rules allow, and complete, and then follows it. Where the rules leave a choice (which group of
a fair queue, which sequence number a dead letter gets), the broker's choice is adopted; where they leave none, the
outcome must be exactly that.

One thing is only known within bounds, because it depends on how messages lie together in chunks: whether a message that
every channel is done with is still stored. `Queue.messages` is what may be stored, `Queue.stored` what must be.

Dead letters and redriven messages arrive in a queue without a reply that names their sequence numbers. They wait in
`Queue.incoming` until the driver has read the queue's log and calls `arrived`.

A model can be pickled: a crash takes it back to the last commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.config import (
    DEDUP_WINDOW_MS,
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    PRIORITY_MAX,
    QueueConfig,
    dead_letter_name,
)
from penstock.core.states import State

DEAD_LETTER_RETENTION_MS = 14 * 24 * 3_600_000

Outcome = Any
"""A reply, or the `PenstockError` that was raised."""


class Violation(AssertionError):
    """The broker did something that the rules do not allow."""


def demand(condition: object, message: str | Callable[[], str]) -> None:
    """Raise `Violation` unless the condition holds; a message that is costly to make is made then only."""
    if not condition:
        raise Violation(message if isinstance(message, str) else message())


def held_by(delivery: c.Delivery) -> list[tuple[int, int]]:
    """Sequence number and attempt of everything in a delivery."""
    spans = [span for run in delivery.runs for span in run.spans()]
    return [(sequence, span.attempt) for span in spans for sequence in range(span.first, span.last + 1)]


class Place(IntEnum):
    """Where a ready message stands among those of its priority; lower places are served first."""

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
    acked: int = 0
    failed: int = 0
    dead: int = 0
    attempts_known: dict[str, Remembered] = field(default_factory=dict)

    def ordered(self) -> list[Copy]:
        return [self.copies[sequence] for sequence in sorted(self.copies)]

    def count(self, state: State) -> int:
        return sum(copy.state is state for copy in self.copies.values())


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


@dataclass(slots=True)
class Redrive:
    queue: str
    target: str | None
    due: set[int]
    """Sequence numbers that must be moved when it is done."""
    allowed: set[int]
    """Sequence numbers that it may move."""


class Model:
    """The rules, and the state that follows from what the broker did."""

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
        self.done: dict[int, str] = {}
        """Number of a client's named command -> what it was answered."""
        self.done_ms = now_ms
        self.identify: Callable[[int, int], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"identify": None}

    def reopened(self, now_ms: int) -> None:
        """The process started again: who waited is gone, and the clock is what the machine says now."""
        self.went_back |= now_ms < self.now_ms
        self.now_ms = now_ms
        self.waiters.clear()
        self.ended_waiters.clear()
        for queue in self.queues.values():
            for channel in queue.channels.values():
                for remembered in channel.attempts_known.values():
                    remembered.certain = False

    # -- being told ----------------------------------------------------------------------------------------------------

    def accept(self, command: c.Command, outcome: Outcome, now_ms: int) -> None:
        """One command and what came of it."""
        self.now_ms = max(self.now_ms, now_ms)
        known = self.done_before(command, now_ms)
        if known is not None:
            demand(
                repr(outcome) == known,
                f"{command!r:.300} was answered with {known:.300}, and now with {outcome!r:.300}",
            )
            return
        judge = getattr(self, f"_accept_{type(command).__name__}")
        judge(command, outcome)
        if command.once is not None and not isinstance(outcome, e.PenstockError):
            self.done = {number: reply for number, reply in self.done.items() if number >= command.once.answered}
            self.done[command.once.number] = repr(outcome)
            self.done_ms = self.now_ms

    def done_before(self, command: c.Command, now_ms: int) -> str | None:
        """What a command with this name was answered, if it was done before and is remembered."""
        if command.once is None or max(self.now_ms, now_ms) >= self.done_ms + DEDUP_WINDOW_MS:
            self.done = self.done if command.once is None else {}
            return None
        return self.done.get(command.once.number)

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

    # -- queues --------------------------------------------------------------------------------------------------------

    def _new_queue(self, name: str, config: QueueConfig, channels: Iterable[str]) -> Queue:
        queue = self.queues[name] = Queue(name, config)
        for channel in channels:
            self._new_channel(queue, channel)
        queue.was_open_ended = not queue.channels
        return queue

    def _new_channel(self, queue: Queue, name: str) -> Channel:
        channel = queue.channels[name] = Channel(name)
        return channel

    def _accept_CreateQueue(self, command: c.CreateQueue, outcome: Outcome) -> None:
        known = self.queues.get(command.name)
        if self._refused(outcome, [e.QueueExists] if known and known.config != command.config else []):
            return
        if known is None:
            self._new_queue(command.name, command.config, command.channels)

    def _accept_ChangeQueue(self, command: c.ChangeQueue, outcome: Outcome) -> None:
        must = self._missing(command.name)
        config = None
        if not must:
            try:
                config = self.queues[command.name].config.changed(command.changes)
            except e.InvalidConfig:
                must.append(e.InvalidConfig)
            if config is not None and config.kind != self.queues[command.name].config.kind:
                must.append(e.InvalidConfig)
        if not self._refused(outcome, must):
            assert config is not None
            self.queues[command.name].config = config
            demand(outcome.config == config, f"changed to {outcome.config}, not {config}")

    def _accept_DeleteQueue(self, command: c.DeleteQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        del self.queues[command.name]
        self._end_waiters(command.name, None, e.QueueNotFound)
        for redrive in self.redrives.values():
            redrive.due = {s for s in redrive.due if redrive.queue != command.name}
            redrive.allowed = redrive.allowed if redrive.queue != command.name else set()

    def _end_waiters(self, queue: str, channel: str | None, error: type[e.PenstockError]) -> None:
        self._turn_away([w for w in self.waiters if w.queue == queue and channel in (None, w.channel)], error)

    def _turn_away(self, waiters: list[Waiter], error: type[e.PenstockError]) -> None:
        for waiter in waiters:
            self.waiters.remove(waiter)
            if waiter.deadline_ms is not None and waiter.deadline_ms <= self.now_ms:
                self.too_late.add(waiter.ticket)
            else:
                self.ended_waiters[waiter.ticket] = error

    def _accept_PurgeQueue(self, command: c.PurgeQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        queue = self.queues[command.name]
        live = {sequence for channel in queue.channels.values() for sequence in channel.copies}
        most = self._stored_most(queue)
        demand(len(live) <= outcome <= most, f"purged {outcome} messages, from {len(live)} to {most} expected")
        for sequence in list(queue.messages):
            self._forget(queue, sequence)
        for channel in queue.channels.values():
            channel.copies.clear()

    def _accept_DescribeQueue(self, command: c.DescribeQueue, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        queue = self.queues[command.name]
        demand(outcome.config == queue.config, f"{command.name} has {outcome.config}, not {queue.config}")
        demand(set(outcome.channels) == set(queue.channels), f"channels {outcome.channels}, not {set(queue.channels)}")
        demand(queue.queue_id in (None, outcome.queue_id), "the queue's id changed")
        queue.queue_id = outcome.queue_id

    def _accept_ListQueues(self, command: c.ListQueues, outcome: Outcome) -> None:
        names = [n for n in sorted(self.queues) if n.startswith(command.prefix) and n > command.after]
        demand(outcome == names[: command.limit], f"queues are {outcome}, not {names}")

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send_faults(self, command: c.Send) -> list[type[Exception]]:
        queue = self.queues.get(command.queue)
        config = queue.config if queue else QueueConfig()
        faults: list[type[Exception]] = [] if queue or command.create else [e.QueueNotFound]
        if not 0 <= command.priority <= PRIORITY_MAX or (config.is_fifo and command.priority):
            faults.append(e.InvalidRequest)
        if command.delay_ms is not None and not 0 <= command.delay_ms <= DELAY_MS_MAX:
            faults.append(e.InvalidRequest)
        for beside in (command.attributes, command.groups, command.dedup_ids):
            if beside is not None and len(beside) != len(command.bodies):
                return [e.InvalidRequest]
        for index, body in enumerate(command.bodies):
            size = len(body) + len((command.attributes[index] if command.attributes else None) or b"")
            if size > config.message_bytes_max:
                faults.append(e.MessageTooLarge)
            if config.is_fifo and not (command.groups and command.groups[index]):
                faults.append(e.InvalidRequest)
            if config.is_fifo and not config.content_dedup and not (command.dedup_ids and command.dedup_ids[index]):
                faults.append(e.InvalidRequest)
        return faults

    def _accept_Send(self, command: c.Send, outcome: Outcome) -> None:
        if not self._refused(outcome, self._send_faults(command)):
            self._sent(command, outcome)

    def _sent(self, command: c.Send, sent: c.Sent) -> None:
        queue = self.queues.get(command.queue) or self._new_queue(command.queue, QueueConfig(), command.channels)
        demand(queue.queue_id in (None, sent.queue_id), f"the id of {queue.name} changed")
        queue.queue_id = sent.queue_id
        due_ms = self._due_ms(queue, command)
        duplicates = []
        for index, body in enumerate(command.bodies):
            sequence = sent.sequence(index)
            original = self._original(queue, command, index, sequence)
            if original is not None:
                demand(sequence == original, f"a duplicate of {original} was answered with {sequence}")
                duplicates.append(index)
                continue
            message = Message(
                sequence=sequence,
                body=body,
                attributes=command.attributes[index] if command.attributes else None,
                group=command.groups[index] if command.groups else None,
                priority=command.priority,
                sent_ms=self.now_ms,
                due_ms=due_ms,
            )
            key = self._dedup_key(queue, command, index)
            if key is not None:
                queue.dedup[key] = (sequence, self.now_ms)
            self._enqueue(queue, message)
        demand(sent.duplicates == duplicates, f"duplicates were {sent.duplicates}, not {duplicates}")
        demand(sent.count == len(command.bodies), f"sent {sent.count} of {len(command.bodies)}")

    def _due_ms(self, queue: Queue, command: c.Send) -> int:
        """When a message comes due; 0 for at once."""
        if command.delay_ms is None and command.due_ms is not None:
            return command.due_ms if command.due_ms > self.now_ms else 0
        delay_ms = queue.config.delay_ms if command.delay_ms is None else command.delay_ms
        return self.now_ms + delay_ms if delay_ms else 0

    def _dedup_key(self, queue: Queue, command: c.Send, index: int) -> tuple[str | None, str] | None:
        dedup_id = command.dedup_ids[index] if command.dedup_ids else None
        if dedup_id is None and queue.config.is_fifo and queue.config.content_dedup:
            dedup_id = "sha256:" + hashlib.sha256(command.bodies[index]).hexdigest()
        if dedup_id is None:
            return None
        group = command.groups[index] if command.groups and queue.config.dedup_scope == "group" else None
        return (group, dedup_id)

    def _original(self, queue: Queue, command: c.Send, index: int, sequence: int) -> int | None:
        key = self._dedup_key(queue, command, index)
        known = queue.dedup.get(key) if key is not None else None
        if known is None:
            return None
        age_ms = self.now_ms - known[1]
        if age_ms == DEDUP_WINDOW_MS or self.went_back:
            return known[0] if sequence == known[0] else None
        return known[0] if age_ms < DEDUP_WINDOW_MS else None

    def _enqueue(self, queue: Queue, message: Message) -> None:
        expected = queue.next_sequence
        demand(expected in (None, message.sequence), f"{queue.name} gave out {message.sequence}, not {expected}")
        queue.next_sequence = message.sequence + 1
        queue.sent += 1
        queue.messages[message.sequence] = message
        queue.stored.add(message.sequence)
        for channel in queue.channels.values():
            self._offer(channel, message)

    def _offer(self, channel: Channel, message: Message) -> None:
        if message.due_ms > self.now_ms:
            channel.copies[message.sequence] = Copy(message, State.DELAYED, Place.DUE, deadline_ms=message.due_ms)
        else:
            place = Place.DUE if message.due_ms else Place.FRESH
            channel.copies[message.sequence] = Copy(message, State.READY, place)

    # -- what is stored ------------------------------------------------------------------------------------------------

    def _forget(self, queue: Queue, sequence: int) -> None:
        """A message is gone for everybody."""
        queue.messages.pop(sequence, None)
        queue.stored.discard(sequence)
        for channel in queue.channels.values():
            channel.copies.pop(sequence, None)
        for redrive in self.redrives.values():
            if redrive.queue == queue.name:
                redrive.due.discard(sequence)
                redrive.allowed.discard(sequence)

    def _stored_most(self, queue: Queue) -> int:
        """How many messages may be stored: each once, and once more for each channel that has it in its retry lane."""
        return len(queue.messages) * (1 + len(queue.channels))

    def _may_be_gone(self, queue: Queue, sequences: Iterable[int]) -> None:
        """These may have been the last thing that kept a chunk."""
        if not queue.channels:
            return
        kept_from = min((consumer.offset for consumer in queue.consumers.values()), default=None)
        for sequence in sequences:
            if kept_from is not None and sequence >= kept_from:
                continue
            wanted = (channel.copies.get(sequence) for channel in queue.channels.values())
            if not any(copy is not None and copy.place is not Place.RETRY for copy in wanted):
                queue.stored.discard(sequence)

    def _done(self, queue: Queue, channel: Channel, copy: Copy) -> None:
        del channel.copies[copy.message.sequence]
        self._may_be_gone(queue, [copy.message.sequence])

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _accept_Receive(self, command: c.Receive, outcome: Outcome) -> None:
        must: list[type[Exception]] = self._missing(command.queue, command.channel)
        if command.session and command.session not in self.sessions:
            must.append(e.SessionNotFound)
        if command.lease_ms is not None and not 0 <= command.lease_ms <= LEASE_MS_MAX:
            must.append(e.InvalidRequest)
        if command.attempt_id is not None and command.queue in self.queues:
            must += [] if self.queues[command.queue].config.is_fifo else [e.InvalidRequest]
        if must:
            self._refused(outcome, must)
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        full = [e.OverLimit] if self._room(queue, channel) <= 0 and not queue.config.is_fifo else []
        has_ready = any(copy.state is State.READY for copy in channel.copies.values()) and not channel.paused
        if self._refused(outcome, full if has_ready else [], full):
            return
        if self._is_repeat(channel, command, outcome):
            self._accept_repeat(queue, channel, command, outcome)
            return
        wait_ms = queue.config.receive_wait_ms if command.wait_ms is None else command.wait_ms
        if outcome is None:
            demand(wait_ms > 0 and command.ticket is not None, "a receive that may not wait got no answer")
            demand(not self.selectable(queue, channel, command.limit), "a receive waits although messages are ready")
            waiter = Waiter(
                ticket=command.ticket,
                queue=command.queue,
                channel=command.channel,
                limit=command.limit,
                lease_ms=command.lease_ms,
                session=command.session,
                deadline_ms=self.now_ms + wait_ms,
            )
            self.waiters.append(waiter)
            return
        self._delivered(queue, channel, outcome, command.limit, command.lease_ms, command.session)
        if outcome.count == 0:
            demand(not wait_ms or command.ticket is None, "a receive that may wait got an empty answer at once")
        elif command.attempt_id is not None and queue.config.is_fifo:
            channel.attempts_known[command.attempt_id] = Remembered(held_by(outcome))

    def _room(self, queue: Queue, channel: Channel) -> int:
        return queue.config.in_flight_max - channel.count(State.LEASED)

    def selectable(self, queue: Queue, channel: Channel, limit: int) -> int:
        """How many messages a receive gets now."""
        room = min(limit, self._room(queue, channel))
        if channel.paused or room <= 0:
            return 0
        if queue.config.is_fifo:
            return len(self._fifo_choice(channel, room))
        return min(room, channel.count(State.READY))

    def _fifo_choice(self, channel: Channel, room: int) -> list[Copy]:
        groups: dict[str | None, list[Copy]] = {}
        for copy in channel.ordered():
            groups.setdefault(copy.message.group, []).append(copy)
        chosen: list[Copy] = []
        for copies in groups.values():
            if any(copy.state is State.LEASED for copy in copies):
                continue
            for copy in copies:
                if copy.state is not State.READY or len(chosen) >= room:
                    break
                chosen.append(copy)
        return chosen

    def _is_repeat(self, channel: Channel, command: c.Receive, outcome: Outcome) -> bool:
        known = channel.attempts_known.get(command.attempt_id or "")
        if known is None:
            return False
        for sequence, attempt in known.held:
            copy = channel.copies.get(sequence)
            if copy is None or not copy.is_held(attempt) or copy.deadline_ms <= self.now_ms:
                return False
        if known.certain:
            return True
        got = [] if outcome is None else [run.first + i for run in outcome.runs for i in range(run.count)]
        return sorted(got) == sorted(sequence for sequence, _ in known.held)

    def _accept_repeat(self, queue: Queue, channel: Channel, command: c.Receive, outcome: Outcome) -> None:
        known = channel.attempts_known[command.attempt_id or ""]
        demand(outcome is not None, "a repeated receive attempt was not answered")
        got = held_by(outcome)
        demand(sorted(got) == sorted(known.held), f"a repeated receive attempt got {got}, not {known.held}")
        lease_ms = queue.config.lease_ms if command.lease_ms is None else command.lease_ms
        for sequence, _ in known.held:
            copy = channel.copies[sequence]
            copy.deadline_ms = min(self.now_ms + lease_ms, copy.received_ms + LEASE_MS_MAX)

    def _delivered(
        self, queue: Queue, channel: Channel, delivery: c.Delivery, limit: int, lease_ms: int | None, session: int
    ) -> None:
        """Messages were handed out: were these the right ones, all of them, as they were sent?"""
        demand(delivery.error is None, f"a delivery with an error: {delivery.error!r}")
        demand((delivery.queue, delivery.channel) == (queue.name, channel.name), f"a delivery of {delivery.queue}")
        queue.queue_id = delivery.queue_id if queue.queue_id is None else queue.queue_id
        demand(delivery.queue_id == queue.queue_id, "a delivery with another queue's id")
        taken = [(run, index) for run in delivery.runs for index in range(run.start, run.stop)]
        sequences = [run.chunk.base + index for run, index in taken]
        where = f"{queue.name}/{channel.name}"
        demand(len(set(sequences)) == len(sequences), f"{where}: a message twice in one delivery: {sequences}")
        for sequence in sequences:
            copy = channel.copies.get(sequence)
            if copy is None:
                raise Violation(f"{where}: message {sequence} is done, or never was, and was handed out")
            if copy.state is not State.READY:
                raise Violation(f"{where}: message {sequence} is {copy.state.name} and was handed out")
        expected = self.selectable(queue, channel, limit)
        demand(len(sequences) == expected, f"{where}: got {len(sequences)} messages {sequences}, not {expected}")
        copies = [channel.copies[sequence] for sequence in sequences]
        if queue.config.is_fifo:
            self._check_fifo(where, channel, copies)
        else:
            self._check_standard(where, channel, copies)
        lease = queue.config.lease_ms if lease_ms is None else lease_ms
        if sequences:
            demand(delivery.received_ms == self.now_ms, f"{where}: received at {delivery.received_ms}")
            demand(delivery.deadline_ms == self.now_ms + lease, f"{where}: leased until {delivery.deadline_ms}")
        shown = [pair for run in delivery.runs for pair in zip(run.attempts, run.first_received_ms, strict=True)]
        for (run, index), copy, pair in zip(taken, copies, shown, strict=True):
            self._check_content(where, run, index, copy)
            self._lease(copy, lease, session)
            right = (copy.attempts, copy.first_received_ms)
            demand(pair == right, lambda: f"{where}: attempts and first receive are {pair}, not {right}")  # noqa: B023
            self._excuse(queue.name, copy.message.sequence)

    def _excuse(self, queue: str, sequence: int) -> None:
        """A message that was touched meanwhile need not be redriven."""
        for redrive in self.redrives.values():
            if redrive.queue == queue:
                redrive.due.discard(sequence)

    def _lease(self, copy: Copy, lease_ms: int, session: int) -> None:
        copy.state = State.LEASED
        copy.attempts += 1
        copy.deadline_ms = self.now_ms + lease_ms
        copy.received_ms = self.now_ms
        copy.session = session
        if copy.attempts == 1:
            copy.first_received_ms = self.now_ms

    def _check_fifo(self, where: str, channel: Channel, copies: list[Copy]) -> None:
        right = [copy.message.sequence for copy in self._fifo_choice(channel, len(copies))]
        got = [copy.message.sequence for copy in copies]
        demand(sorted(got) == sorted(right), f"{where}: FIFO handed out {got}, not {right}")
        for group in {copy.message.group for copy in copies}:
            in_group = [copy.message.sequence for copy in copies if copy.message.group == group]
            demand(in_group == sorted(in_group), f"{where}: group {group} in the order {in_group}")

    def _check_standard(self, where: str, channel: Channel, copies: list[Copy]) -> None:
        taken = {copy.message.sequence for copy in copies}
        left = len(copies)
        ready = [copy for copy in channel.ordered() if copy.state is State.READY]
        for rank in sorted({(-copy.message.priority, copy.place) for copy in ready}):
            pool = [copy for copy in ready if (-copy.message.priority, copy.place) == rank]
            chosen = [copy.message.sequence for copy in pool if copy.message.sequence in taken]
            due = min(left, len(pool))
            what = f"{where}: priority {-rank[0]}, {rank[1].name}: {chosen} of {[m.message.sequence for m in pool]}"
            demand(len(chosen) == due, f"{what}, not {due} of them")
            left -= due
            if rank[1] in (Place.AGAIN, Place.FRESH):
                self._check_oldest_first(what, pool, set(chosen))

    def _check_oldest_first(self, what: str, pool: list[Copy], chosen: set[int]) -> None:
        """Within a group (all without a group are one) nobody is overtaken; with one group only, nobody at all."""
        skipped: set[str | None] = set()
        for copy in pool:
            if copy.message.sequence not in chosen:
                skipped.add(copy.message.group)
            else:
                demand(copy.message.group not in skipped, f"{what}: {copy.message.sequence} overtook an older one")

    def _check_content(self, where: str, run: c.Run, index: int, copy: Copy) -> None:
        chunk, message = run.chunk, copy.message
        got = (bytes(chunk.body(index)), chunk.attributes(index), chunk.group(index))
        is_same = got == (message.body, message.attributes, message.group)
        demand(is_same, lambda: f"{where}: {got} was not sent as {message}")
        failures = [f for f in run.failures if f.first <= message.sequence <= f.last]
        failures.sort(key=lambda failure: failure.attempt)
        same = len(failures) == len(copy.history) and all(
            mine.matches(theirs) for mine, theirs in zip(copy.history, failures, strict=True)
        )
        demand(same, lambda: f"{where}: history of {message.sequence} is {failures}, not {copy.history}")
        self._check_origin(where, chunk.origin(index), message)

    def _check_origin(self, where: str, packed: bytes | None, message: Message) -> None:
        has_origin = message.origin is not None
        demand((packed is not None) == has_origin, lambda: f"{where}: origin {packed!r} of {message}")
        if packed is None or message.origin is None:
            return
        shown, origin = msgspec.msgpack.decode(packed), message.origin
        for name in ("queue", "channel", "sequence", "sent_ms", "attempts", "priority"):
            demand(shown[name] == getattr(origin, name), f"{where}: origin's {name} is {shown[name]}, not {origin}")
        if self.identify is not None:
            demand(shown["id"] == self.identify(*origin.identity), f"{where}: origin's id is {shown['id']}: {origin}")
        failures = msgspec.convert(shown["failures"], list[c.Failure])
        same = len(failures) == len(origin.failures) and all(
            mine.matches(theirs) for mine, theirs in zip(origin.failures, failures, strict=True)
        )
        demand(same, f"{where}: the reasons are {failures}, not {origin.failures}")

    # -- demand --------------------------------------------------------------------------------------------------------

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
            )
        )

    def _is_limited(self, command: c.Subscribe) -> bool:
        """Whether the session has a subscription to the channel that limits what it holds."""
        place = (command.queue, command.channel, command.session)
        return any(w.in_flight and (w.queue, w.channel, w.session) == place for w in self.waiters)

    def _open_for(self, waiter: Waiter) -> int:
        """How many messages more one who waits may be given."""
        if not waiter.in_flight:
            return waiter.limit
        copies = self.queues[waiter.queue].channels[waiter.channel].copies.values()
        held = sum(copy.state is State.LEASED and copy.session == waiter.session for copy in copies)
        return max(0, waiter.limit - held)

    def _subscription(self, number: int) -> Waiter | None:
        return next((w for w in self.waiters if w.deadline_ms is None and w.subscription == number), None)

    def _accept_SetCredit(self, command: c.SetCredit, outcome: Outcome) -> None:
        waiter = self._subscription(command.subscription)
        if not self._refused(outcome, [] if waiter else [e.PenstockError]) and waiter:
            waiter.limit = command.credit

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
            self._delivered(queue, channel, delivery, delivery.count, waiter.lease_ms, waiter.session)
            if not waiter.in_flight:
                waiter.limit -= delivery.count
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

    # -- settling ------------------------------------------------------------------------------------------------------

    def _sort_spans(
        self, channel: Channel, spans: Iterable[c.Span], is_good: Callable[[Copy, int], bool]
    ) -> tuple[list[Copy], set[int]]:
        good: dict[int, Copy] = {}
        bad: set[int] = set()
        for span in spans:
            for sequence in range(span.first, span.last + 1):
                copy = channel.copies.get(sequence)
                if copy is not None and is_good(copy, span.attempt) and sequence not in good:
                    good[sequence] = copy
                else:
                    bad.add(sequence)
        return list(good.values()), bad

    def _check_settled(self, settled: c.Settled, good: int, refusals: dict[type[Exception], set[int]]) -> None:
        demand(settled.count == good, f"settled {settled.count}, not {good}: {settled}")
        for error, sequences in refusals.items():
            refused = {
                sequence
                for refusal in settled.refused
                if isinstance(refusal.error, error)
                for sequence in range(refusal.first, refusal.last + 1)
            }
            demand(refused == sequences, f"refused as {error.__name__}: {sorted(refused)}, not {sorted(sequences)}")
        kinds = tuple(refusals)
        demand(all(isinstance(refusal.error, kinds) for refusal in settled.refused), f"refused: {settled.refused}")

    def _accept_Ack(self, command: c.Ack, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        good, bad = self._ackable(command)
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad})
        self._acked(command.queue, command.channel, good)

    def _ackable(self, command: c.Ack) -> tuple[list[Copy], set[int]]:
        channel = self.queues[command.queue].channels[command.channel]
        return self._sort_spans(channel, command.spans, Copy.is_ackable)

    def _acked(self, queue_name: str, channel_name: str, copies: list[Copy]) -> None:
        queue = self.queues[queue_name]
        channel = queue.channels[channel_name]
        for copy in copies:
            self._done(queue, channel, copy)
            self._excuse(queue_name, copy.message.sequence)
        channel.acked += len(copies)

    def _accept_AckSequences(self, command: c.AckSequences, outcome: Outcome) -> None:
        must = self._missing(command.queue, command.channel)
        may = [e.SessionNotFound] if command.session not in self.sessions else []
        if self._refused(outcome, must, may):
            return
        channel = self.queues[command.queue].channels[command.channel]
        good: list[Copy] = []
        bad: set[int] = set()
        for sequence in command.sequences.tolist():
            copy = channel.copies.get(sequence)
            is_mine = copy is not None and copy.state is State.LEASED and copy.session == command.session
            if is_mine and copy is not None:
                good.append(copy)
            else:
                bad.add(sequence)
        self._check_settled(outcome, len(good), {e.ReceiptRefused: bad})
        self._acked(command.queue, command.channel, good)

    def _held(
        self, command: c.ReleaseSequences | c.ExtendSequences, outcome: Outcome
    ) -> tuple[Queue, Channel, list[Copy]] | None:
        """Which of the messages that a session names it holds; checked against the outcome."""
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return None
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        found = {sequence: channel.copies.get(sequence) for sequence in command.sequences.tolist()}
        good = [c for c in found.values() if c and c.state is State.LEASED and c.session == command.session]
        bad = set(found) - {copy.message.sequence for copy in good}
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad})
        return queue, channel, good

    def _accept_ReleaseSequences(self, command: c.ReleaseSequences, outcome: Outcome) -> None:
        held = self._held(command, outcome)
        if held is not None:
            queue, channel, copies = held
            for copy in copies:
                self._fail(queue, channel, copy, command.delay_ms, command.error)

    def _accept_ExtendSequences(self, command: c.ExtendSequences, outcome: Outcome) -> None:
        held = self._held(command, outcome)
        for copy in [] if held is None else held[2]:
            held_ms_max = LEASE_MS_MAX if command.held_ms_max is None else command.held_ms_max
            copy.deadline_ms = min(self.now_ms + command.lease_ms, copy.received_ms + held_ms_max)

    def _accept_Release(self, command: c.Release, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        good, bad = self._sort_spans(channel, command.spans, Copy.is_held)
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad})
        for copy in good:
            self._fail(queue, channel, copy, command.delay_ms, command.error)

    def _accept_Extend(self, command: c.Extend, outcome: Outcome) -> None:
        must = self._missing(command.queue, command.channel)
        out_of_range = not 0 <= command.lease_ms <= LEASE_MS_MAX
        if self._refused(outcome, must, [e.InvalidRequest] if out_of_range else []):
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        held, bad = self._sort_spans(channel, command.spans, Copy.is_held)
        if command.lease_ms == 0:
            self._check_settled(outcome, len(held), {e.StaleReceipt: bad})
            for copy in held:
                self._fail(queue, channel, copy, 0, "released")
            return
        deadline_ms = self.now_ms + command.lease_ms
        good = [copy for copy in held if deadline_ms <= copy.received_ms + LEASE_MS_MAX]
        late = {copy.message.sequence for copy in held if deadline_ms > copy.received_ms + LEASE_MS_MAX}
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad, e.LeaseTooLong: late})
        for copy in good:
            copy.deadline_ms = deadline_ms

    def _fail(self, queue: Queue, channel: Channel, copy: Copy, delay_ms: int | None, error: str) -> None:
        """The failure ladder."""
        config = queue.config
        session = self.sessions.get(copy.session)
        name = session.name if session else ""
        copy.history.append(Failed(copy.attempts, copy.received_ms, self.now_ms, name, error))
        copy.session = 0
        channel.failed += 1
        if config.receives_max and copy.attempts >= config.receives_max:
            self._dead_letter(queue, channel, copy)
            return
        is_first = copy.attempts == 1
        if delay_ms is None:
            delay_ms = 0 if is_first else config.backoff.delay_ms(copy.attempts - 1, copy.message.sequence)
        copy.state = State.DELAYED if delay_ms else State.READY
        copy.deadline_ms = self.now_ms + delay_ms if delay_ms else 0
        stays = config.is_fifo or (is_first and not delay_ms)
        again = Place.DUE if copy.message.due_ms else Place.AGAIN
        copy.place = again if stays else Place.RETRY
        if not stays:
            self._may_be_gone(queue, [copy.message.sequence])

    def _dead_letter(self, queue: Queue, channel: Channel, copy: Copy) -> None:
        name = queue.config.dead_letter or dead_letter_name(queue.name)
        target = self.queues.get(name)
        if target is None:
            config = QueueConfig(kind=queue.config.kind, max_receives=0, retention_ms=DEAD_LETTER_RETENTION_MS)
            target = self._new_queue(name, config, [c.MAIN])
        message, before = copy.message, copy.message.origin
        assert queue.queue_id is not None
        origin = Origin(
            queue=queue.name,
            channel=channel.name,
            sequence=message.sequence,
            identity=before.identity if before else (queue.queue_id, message.sequence),
            sent_ms=before.sent_ms if before else message.sent_ms,
            attempts=copy.attempts,
            priority=message.priority,
            failures=(before.failures if before else []) + copy.history,
        )
        target.incoming.append(
            Message(
                sequence=-1,
                body=message.body,
                attributes=message.attributes,
                group=message.group,
                priority=0,
                sent_ms=self.now_ms,
                due_ms=0,
                origin=origin,
            )
        )
        channel.dead += 1
        self._done(queue, channel, copy)

    def _accept_CommitWork(self, command: c.CommitWork, outcome: Outcome) -> None:
        faults: list[type[Exception]] = []
        settled: list[tuple[c.Ack, list[Copy]]] = []
        for ack in command.acks:
            missing = self._missing(ack.queue, ack.channel)
            faults += [*missing, e.WorkRefused] if missing else []
            if not missing:
                good, bad = self._ackable(ack)
                settled.append((ack, good))
                faults += [e.WorkRefused] if bad else []
        for send in command.sends:
            faults += self._send_faults(send)
        if self._refused(outcome, faults):
            return
        for ack, copies in settled:
            self._acked(ack.queue, ack.channel, copies)
        demand(len(outcome) == len(command.sends), f"{len(outcome)} answers to {len(command.sends)} sends")
        for send, sent in zip(command.sends, outcome, strict=True):
            self._sent(send, sent)

    # -- channels, sessions, consumers ---------------------------------------------------------------------------------

    def _accept_CreateChannel(self, command: c.CreateChannel, outcome: Outcome) -> None:
        if not self._refused(outcome, self._missing(command.queue)):
            demand(command.channel in self.queues[command.queue].channels, f"{command} made nothing")

    def channel_made(self, name: str, channel_name: str, start: str | int, seen: list[c.Seen], now_ms: int) -> None:
        """A command made a channel: what does it see? The driver browsed it, and tells before the command itself."""
        self.now_ms = max(self.now_ms, now_ms)
        queue = self.queues[name]
        channel = self._new_channel(queue, channel_name)
        since_ms = start if isinstance(start, int) else 0
        may = {s for s, m in queue.messages.items() if m.sent_ms >= since_ms and start != "tail"}
        must = may & queue.stored
        if self.went_back and since_ms:
            may, must = set(queue.messages), set()
        got = {one.sequence for one in seen}
        what = f"{name}/{channel_name} from {start}"
        demand(must <= got <= may, f"{what} starts with {sorted(got)}; must {sorted(must)}, may {sorted(may)}")
        for sequence in sorted(got):
            self._offer(channel, queue.messages[sequence])
        queue.stored |= got
        self._may_be_gone(queue, list(queue.stored))

    def _accept_DeleteChannel(self, command: c.DeleteChannel, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        del queue.channels[command.channel]
        if queue.channels:
            self._may_be_gone(queue, list(queue.stored))
        else:
            queue.stored.clear()
            queue.was_open_ended = True
        self._end_waiters(command.queue, command.channel, e.ChannelNotFound)

    def _accept_PauseChannel(self, command: c.PauseChannel, outcome: Outcome) -> None:
        if not self._refused(outcome, self._missing(command.queue, command.channel)):
            self.queues[command.queue].channels[command.channel].paused = command.paused

    def _accept_PurgeChannel(self, command: c.PurgeChannel, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        copies = queue.channels[command.channel].copies
        demand(outcome == len(copies), f"purged {outcome} messages, not {len(copies)}")
        sequences = list(copies)
        copies.clear()
        self._may_be_gone(queue, sequences)
        for sequence in sequences:
            self._excuse(command.queue, sequence)

    def _accept_OpenSession(self, command: c.OpenSession, outcome: Outcome) -> None:
        if not self._refused(outcome, []):
            demand(outcome not in self.sessions and outcome, f"session number {outcome} is taken")
            expires_ms = None if command.ttl_ms is None else self.now_ms + command.ttl_ms
            self.sessions[outcome] = Session(command.name, command.ttl_ms, expires_ms)

    def _accept_Heartbeat(self, command: c.Heartbeat, outcome: Outcome) -> None:
        session = self.sessions.get(command.session)
        if not self._refused(outcome, [] if session else [e.SessionNotFound]) and session and session.ttl_ms:
            session.expires_ms = self.now_ms + session.ttl_ms

    def _accept_EndSession(self, command: c.EndSession, outcome: Outcome) -> None:
        if self._refused(outcome, [] if command.session in self.sessions else [e.SessionNotFound]):
            return
        ended = self._end_session(command.session, command.error)
        demand(outcome == ended, f"the session's end released {outcome} messages, not {ended}")

    def _end_session(self, number: int, error: str) -> int:
        count = 0
        for queue in list(self.queues.values()):
            for channel in list(queue.channels.values()):
                for copy in channel.ordered():
                    if copy.state is State.LEASED and copy.session == number:
                        self._fail(queue, channel, copy, None, error)
                        count += 1
        self._turn_away([waiter for waiter in self.waiters if waiter.session == number], e.SessionNotFound)
        del self.sessions[number]
        return count

    def _accept_ReadRecords(self, command: c.ReadRecords, outcome: Outcome) -> None:
        must = self._missing(command.queue)
        queue = self.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer or "") if queue else None
        unknown = command.consumer is not None and consumer is None
        if self._refused(outcome, must, [e.ConsumerNotFound] if unknown else []):
            return
        assert queue is not None
        if consumer is not None:
            consumer.active_ms = self.now_ms
        start = command.offset if command.offset is not None else consumer.offset if consumer else 0
        self._check_records(queue, start, command.limit, outcome)

    def _check_records(self, queue: Queue, start: int, limit: int, records: c.Records) -> None:
        got = [(run.chunk, index) for run in records.runs for index in range(run.start, run.stop)]
        sequences = [chunk.base + index for chunk, index in got]
        demand(sequences == sorted(set(sequences)), f"{queue.name}: records in the order {sequences}")
        demand(len(sequences) <= limit, f"{queue.name}: {len(sequences)} records, at most {limit} were wanted")
        for chunk, index in got:
            sequence = chunk.base + index
            message = queue.messages.get(sequence)
            demand(message is not None and sequence >= start, f"{queue.name}: no message {sequence} from {start} on")
            assert message is not None
            demand(bytes(chunk.body(index)) == message.body, f"{queue.name}: the body of {sequence} is not as sent")
        through = records.next_offset if sequences else records.end_offset
        missing = sorted(s for s in queue.stored if start <= s < through and s not in sequences)
        demand(not missing, f"{queue.name}: records from {start} lack {missing}: {sequences}")
        if sequences:
            demand(records.next_offset > sequences[-1], f"{queue.name}: next offset {records.next_offset}: {sequences}")
        if queue.next_sequence is not None:
            demand(records.end_offset == queue.next_sequence, f"{queue.name}: the end is at {records.end_offset}")

    def _accept_AckConsumer(self, command: c.AckConsumer, outcome: Outcome) -> None:
        must: list[type[Exception]] = self._missing(command.queue)
        queue = self.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer) if queue else None
        if consumer is not None and command.offset < consumer.offset and not command.allow_rewind:
            must.append(e.RewindRefused)
        if queue is not None and command.offset > (queue.next_sequence or 0):
            must.append(e.InvalidRequest)
        if self._refused(outcome, must):
            return
        assert queue is not None
        queue.consumers[command.consumer] = Consumer(command.offset, self.now_ms)
        demand(outcome == command.offset, f"the consumer is at {outcome}, not {command.offset}")
        self._may_be_gone(queue, list(queue.stored))

    def _accept_DeleteConsumer(self, command: c.DeleteConsumer, outcome: Outcome) -> None:
        queue = self.queues.get(command.queue)
        must = self._missing(command.queue)
        if queue is not None and command.consumer not in queue.consumers:
            must.append(e.ConsumerNotFound)
        if not self._refused(outcome, must):
            assert queue is not None
            del queue.consumers[command.consumer]
            self._may_be_gone(queue, list(queue.stored))

    # -- looking -------------------------------------------------------------------------------------------------------

    def _accept_Browse(self, command: c.Browse, outcome: Outcome) -> None:
        if command.channel == c.MAIN and self._missing(command.queue, c.MAIN) == [e.ChannelNotFound]:
            self._check_look_without_channel(command, outcome)
            return
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        channel = self.queues[command.queue].channels[command.channel]
        expected = [
            copy
            for copy in channel.ordered()
            if copy.message.sequence > command.after
            and copy.state in command.states
            and (command.contains is None or command.contains in copy.message.body)
        ][: command.limit]
        where = f"{command.queue}/{command.channel}"
        got = [one.sequence for one in outcome]
        right = [copy.message.sequence for copy in expected]
        demand(got == right, f"{where}: browsing shows {got}, not {right}")
        for one, copy in zip(outcome, expected, strict=True):
            deadline_ms = 0 if copy.state is State.READY else copy.deadline_ms
            shown = (one.state, one.attempts, one.deadline_ms)
            demand(
                shown == (copy.state, copy.attempts, deadline_ms),
                f"{where}: {one.sequence} shows {shown}, not {(copy.state, copy.attempts, deadline_ms)}",
            )
            demand(bytes(one.chunk.body(one.index)) == copy.message.body, f"{where}: wrong body of {one.sequence}")
            same = len(one.failures) == len(copy.history) and all(
                mine.matches(theirs) for mine, theirs in zip(copy.history, one.failures, strict=True)
            )
            demand(same, f"{where}: history of {one.sequence} shows {one.failures}, not {copy.history}")

    def _check_look_without_channel(self, command: c.Browse, seen: list[c.Seen]) -> None:
        """The main channel is not there yet: what it would start with is shown, and nothing is made."""
        queue = self.queues[command.queue]
        shown = [one.sequence for one in seen]
        demand(shown == sorted(shown) and len(shown) <= command.limit, f"{queue.name}: browsing shows {shown}")
        for one in seen:
            message = queue.messages.get(one.sequence)
            demand(message is not None and one.attempts == 0, f"{queue.name}: no message {one.sequence}, or attempts")
        is_whole = command.contains is None and len(command.states) == len(c.Browse(queue="").states)
        if is_whole and len(seen) < command.limit:
            missing = {sequence for sequence in queue.stored if sequence > command.after} - set(shown)
            demand(not missing, f"{queue.name}: browsing does not show {missing}")

    def _accept_QueueStats(self, command: c.QueueStats, outcome: Outcome) -> None:
        if self._refused(outcome, self._missing(command.name)):
            return
        queue = self.queues[command.name]
        where = f"stats of {command.name}"
        demand(outcome.sent == queue.sent, f"{where}: sent {outcome.sent}, not {queue.sent}")
        demand(queue.next_sequence in (None, outcome.next_sequence), f"{where}: next is {outcome.next_sequence}")
        live = {s for channel in queue.channels.values() for s in channel.copies} | queue.stored
        low, high = len(live), self._stored_most(queue)
        demand(low <= outcome.messages <= high, f"{where}: {outcome.messages} messages, from {low} to {high} expected")
        body_bytes = sum(len(queue.messages[sequence].body) for sequence in live if sequence in queue.messages)
        demand(outcome.bytes >= body_bytes, f"{where}: {outcome.bytes} bytes, at least {body_bytes} expected")
        delayed = sum(message.due_ms > self.now_ms for message in queue.messages.values())
        demand(0 <= outcome.delayed <= delayed, f"{where}: {outcome.delayed} delayed, not {delayed}")
        demand(set(outcome.channels) == set(queue.channels), f"{where}: channels {set(outcome.channels)}")
        for name, channel in queue.channels.items():
            self._check_channel_stats(f"{where}/{name}", queue, channel, outcome.channels[name])
        self._check_consumers(where, queue, outcome.consumers)

    def _check_channel_stats(self, where: str, queue: Queue, channel: Channel, stats: c.ChannelStats) -> None:
        for state in (State.READY, State.LEASED, State.DELAYED):
            shown, count = getattr(stats, state.name.lower()), channel.count(state)
            demand(shown == count, f"{where}: {shown} {state.name}, not {count}")
        for name in ("acked", "failed", "dead", "paused"):
            shown, right = getattr(stats, name), getattr(channel, name)
            demand(shown == right, f"{where}: {name} is {shown}, not {right}")
        messages = [copy.message for copy in channel.copies.values()]
        self._check_oldest(where, messages, stats.oldest_ms)
        mine = [w for w in self.waiters if (w.queue, w.channel) == (queue.name, channel.name)]
        least = sum(waiter.deadline_ms is not None and waiter.deadline_ms > self.now_ms for waiter in mine)
        demand(least <= stats.waiting_receivers <= len(mine), f"{where}: {stats.waiting_receivers} wait, not {least}")

    def _check_oldest(self, where: str, messages: list[Message], shown_ms: int | None) -> None:
        """The oldest message's time. What is not due yet may be left out; a dead letter may tell its first time."""
        sent = {m.sent_ms for m in messages} | {m.origin.sent_ms for m in messages if m.origin}
        latest = min((m.sent_ms for m in messages if m.due_ms <= self.now_ms), default=None)
        if shown_ms is None:
            demand(latest is None, f"{where}: no oldest message, but one was sent at {latest}")
        else:
            right = shown_ms in sent and (latest is None or shown_ms <= latest or self.went_back)
            demand(right, f"{where}: oldest is {shown_ms}, not {latest}")

    def _check_consumers(self, where: str, queue: Queue, shown: dict[str, int]) -> None:
        right = {name: consumer.offset for name, consumer in queue.consumers.items()}
        demand(shown == right, f"{where}: consumers are {shown}, not {right}")

    # -- redrives ------------------------------------------------------------------------------------------------------

    def _accept_StartRedrive(self, command: c.StartRedrive, outcome: Outcome) -> None:
        running = [e.InvalidRequest] if any(r.queue == command.queue for r in self.redrives.values()) else []
        if self._refused(outcome, self._missing(command.queue), running):
            return
        queue = self.queues[command.queue]
        allowed = set()
        for sequence, message in queue.messages.items():
            wanted = command.sequences is None or sequence in command.sequences
            wanted &= command.contains is None or command.contains in message.body
            failures = message.origin.failures if message.origin else []
            wanted &= command.error is None or any(command.error in failure.error for failure in failures)
            if wanted and self._redrive_target(command.target, message) is not None:
                allowed.add(sequence)
        main = queue.channels.get(c.MAIN)
        ready = {s for s, copy in main.copies.items() if copy.state is State.READY} if main else set()
        due = {s for s in allowed & ready if self._redrive_target(command.target, queue.messages[s]) in self.queues}
        self.redrives[outcome.task] = Redrive(command.queue, command.target, due, allowed)

    def _redrive_target(self, target: str | None, message: Message) -> str | None:
        return target or (message.origin.queue if message.origin else None)

    def _accept_CancelRedrive(self, command: c.CancelRedrive, outcome: Outcome) -> None:
        if not self._refused(outcome, [], [e.TaskNotFound]):
            self.redrives.pop(command.task, None)

    def _accept_ListRedrives(self, command: c.ListRedrives, outcome: Outcome) -> None:
        self._refused(outcome, [])
        for task in outcome:
            known = self.redrives.get(task.task)
            if known is None or task.status == "running":
                continue
            source = self.queues.get(known.queue)
            left = [sequence for sequence in known.due if source and sequence in source.channels[c.MAIN].copies]
            demand(task.status != "done" or not left, f"{task} is done, but did not move {left}")
            del self.redrives[task.task]

    def expecting(self) -> list[str]:
        """The queues whose log has to be read, because messages may have arrived that no reply named."""
        names = {name for name, queue in self.queues.items() if queue.incoming}
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            for sequence in redrive.allowed if source else ():
                assert source is not None
                if sequence in source.messages:
                    names.add(self._redrive_target(redrive.target, source.messages[sequence]) or "")
        return sorted(name for name in names if name in self.queues)

    def missing_targets(self) -> list[str]:
        """Queues that are not there, and would be made by a redrive to them."""
        names = set()
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            messages = [source.messages.get(sequence) for sequence in redrive.allowed] if source else []
            names |= {self._redrive_target(redrive.target, message) for message in messages if message}
        return sorted(name for name in names if name is not None and name not in self.queues)

    def appeared(self, info: c.QueueInfo) -> None:
        """A queue that a redrive made."""
        self._new_queue(info.name, info.config, info.channels)

    def arrived(self, name: str, records: c.Records) -> None:
        """What the log of a queue holds after the last message that the model knows."""
        queue = self.queues[name]
        queue.queue_id = records.queue_id
        for run in records.runs:
            for index in range(run.start, run.stop):
                sequence = run.chunk.base + index
                if queue.next_sequence is not None and sequence < queue.next_sequence:
                    continue
                message = self._match_incoming(queue, run.chunk, index)
                message.sequence = sequence
                self._check_origin(f"{name}: {sequence}", run.chunk.origin(index), message)
                got = (bytes(run.chunk.body(index)), run.chunk.attributes(index), run.chunk.group(index))
                demand(got == (message.body, message.attributes, message.group), f"{name}: {got} is not {message}")
                self._enqueue(queue, message)
        demand(not queue.incoming, f"{name}: messages did not arrive: {queue.incoming}")

    def _match_incoming(self, queue: Queue, chunk: Any, index: int) -> Message:
        packed = chunk.origin(index)
        origin = msgspec.msgpack.decode(packed) if packed is not None else None
        key = (origin["queue"], origin["channel"], origin["sequence"], origin["sent_ms"]) if origin else None
        body = bytes(chunk.body(index))
        for position, message in enumerate(queue.incoming):
            if message.origin is not None and message.origin.key() == key and message.body == body:
                return queue.incoming.pop(position)
        moved = self._match_redriven(queue, key, body)
        demand(moved is not None, f"{queue.name}: nobody sent {body!r} with origin {origin}; due: {queue.incoming}")
        assert moved is not None
        return moved

    def _match_redriven(self, target: Queue, key: tuple[str, str, int, int] | None, body: bytes) -> Message | None:
        for redrive in self.redrives.values():
            source = self.queues.get(redrive.queue)
            if source is None:
                continue
            for sequence in sorted(redrive.allowed):
                message = source.messages.get(sequence)
                if message is None or self._redrive_target(redrive.target, message) != target.name:
                    continue
                if message.body != body or (message.origin.key() if message.origin else None) != key:
                    continue
                copy = source.channels[c.MAIN].copies.get(sequence)
                if copy is None or copy.state is State.LEASED:
                    continue
                self._redriven(source, copy)
                priority = message.origin.priority if message.origin else message.priority
                return Message(-1, body, message.attributes, message.group, priority, self.now_ms, 0, message.origin)
        return None

    def _redriven(self, source: Queue, copy: Copy) -> None:
        """A message left its queue; its chunk may stay for others."""
        sequence = copy.message.sequence
        self._done(source, source.channels[c.MAIN], copy)
        for redrive in self.redrives.values():
            if redrive.queue == source.name:
                redrive.due.discard(sequence)
                redrive.allowed.discard(sequence)

    # -- time ----------------------------------------------------------------------------------------------------------

    def finish(self, now_ms: int) -> None:
        """The end of a step: what is due happens, as it does before each command."""
        self.due(now_ms)

    def due(self, now_ms: int) -> None:
        """What is due at this time happens."""
        self.now_ms = max(self.now_ms, now_ms)
        for number, session in list(self.sessions.items()):
            if session.expires_ms is not None and session.expires_ms <= self.now_ms:
                self._end_session(number, "session expired")
        for queue in list(self.queues.values()):
            for channel in list(queue.channels.values()):
                self._expire(queue, channel)
        for queue in list(self.queues.values()):
            self._retain(queue)
            self._forget_consumers(queue)

    def _expire(self, queue: Queue, channel: Channel) -> None:
        for copy in channel.ordered():
            if copy.state is State.LEASED and copy.deadline_ms <= self.now_ms:
                self._fail(queue, channel, copy, None, "lease expired")
            elif copy.state is State.DELAYED and copy.deadline_ms <= self.now_ms:
                copy.state = State.READY
                copy.deadline_ms = 0

    def _retain(self, queue: Queue) -> None:
        if queue.config.retention_ms is None:
            return
        old = [s for s, m in queue.messages.items() if m.appears_ms + queue.config.retention_ms <= self.now_ms]
        for sequence in old:
            self._forget(queue, sequence)

    def _forget_consumers(self, queue: Queue) -> None:
        """Those that were silent for too long."""
        retention_ms = queue.config.consumer_retention_ms
        for name, consumer in list(queue.consumers.items()):
            if retention_ms is not None and consumer.active_ms + retention_ms <= self.now_ms:
                del queue.consumers[name]
                self._may_be_gone(queue, list(queue.stored))

    def next_due(self) -> tuple[int, Any] | None:
        """When something must happen although no command comes, and to what."""
        times: list[tuple[int, Any]] = [(s.expires_ms, s) for s in self.sessions.values() if s.expires_ms is not None]
        times += [(w.deadline_ms, w) for w in self.waiters if w.deadline_ms is not None]
        for queue in self.queues.values():
            for channel in queue.channels.values():
                late = [copy for copy in channel.copies.values() if copy.state is not State.READY]
                first = min(late, key=lambda copy: copy.deadline_ms, default=None)
                times += [(first.deadline_ms, (queue.name, channel.name, first))] if first else []
            consumers_ms = queue.config.consumer_retention_ms
            if consumers_ms is not None:
                times += [(one.active_ms + consumers_ms, (queue.name, one)) for one in queue.consumers.values()]
            kept = queue.stored.union(*(channel.copies for channel in queue.channels.values()))
            if queue.config.retention_ms is not None and kept:
                oldest_ms = min(queue.messages[sequence].appears_ms for sequence in kept)
                times.append((oldest_ms + queue.config.retention_ms, (queue.name, "retention")))
        return min(times, key=lambda time: time[0], default=None)

    def is_ambiguous(self, now_ms: int) -> bool:
        """Whether a leap to this time makes one message do two things whose order the rules leave open."""
        for queue in self.queues.values():
            retention_ms = queue.config.retention_ms
            if retention_ms is None:
                continue
            for channel in queue.channels.values():
                for copy in channel.copies.values():
                    goes_ms = copy.message.appears_ms + retention_ms
                    if copy.state is not State.READY and max(self._ends_ms(copy), goes_ms) <= now_ms:
                        return True
        return any(
            session.expires_ms is not None and session.expires_ms <= now_ms and self._has_lease_due(number, now_ms)
            for number, session in self.sessions.items()
        )

    def _ends_ms(self, copy: Copy) -> int:
        """When a lease or a delay ends, by its own deadline or with its session."""
        session = self.sessions.get(copy.session) if copy.state is State.LEASED else None
        expires_ms = session.expires_ms if session else None
        return copy.deadline_ms if expires_ms is None else min(copy.deadline_ms, expires_ms)

    def can_go_back(self) -> bool:
        """Whether the clock may be earlier after a restart: not with what counts from times that would lie ahead."""
        kept = any(queue.config.retention_ms is not None and queue.messages for queue in self.queues.values())
        watched = any(queue.consumers for queue in self.queues.values())
        return not kept and not watched and not any(session.ttl_ms for session in self.sessions.values())

    def _has_lease_due(self, session: int, now_ms: int) -> bool:
        return any(
            copy.state is State.LEASED and copy.session == session and copy.deadline_ms <= now_ms
            for queue in self.queues.values()
            for channel in queue.channels.values()
            for copy in channel.copies.values()
        )
