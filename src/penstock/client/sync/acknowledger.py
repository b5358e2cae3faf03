"""What a listener holds: kept while it is worked on, and settled when the work has ended.

Workers only leave a note when a handler has ended, and go on with the next message. The acknowledger comes round, takes
all notes at once, and makes of them one acknowledgement for the messages whose handlers put nothing, and one commit for
all units of work: each unit is done as a whole because all of them are. When such a commit is refused, the units go one
by one, so that the one which cannot be committed fails alone. What failed is released with its error.

When messages come one by one, so do their acknowledgements, and each would cost the server a commit which the next send
has to wait for. Nobody waits for an acknowledgement while the listener has plenty of room, so the acknowledger gives
them `_GATHER_SECONDS` to become several. Units of work, failures, and queues that keep an order are settled at once.

An acknowledgement that did not get through is repeated, since that does no harm. A unit of work that did not get
through is not: its messages are released, which does nothing if it was done after all.

At a third of their lease, all messages in hand are extended with one command. A message whose lease is lost anyway (the
connection broke, the process stood still) is not begun any more; one that is being worked on cannot be settled, and is
counted as lost: somebody else has it, or will.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.client.content import error_text, spans_of, touched
from penstock.client.listening import GroupOrder, ListenerMetrics, pause_seconds
from penstock.client.puts import together
from penstock.client.sync.caller import Caller
from penstock.client.sync.message import Message
from penstock.client.sync.unit_of_work import UnitOfWork
from penstock.client.thread_workers import Signal, sleep
from penstock.core.commands import (
    Ack,
    CommitWork,
    Extend,
    GiveBack,
    Release,
    Settled,
    Span,
)
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import ConnectionLost, LeaseTooLong, PenstockError, StoreError

_LOG = logging.getLogger("penstock.listener")
_REPEAT_SECONDS_MAX = 1.0
_GATHER_SECONDS = 0.02
"""At a thousand messages a second that is one commit for twenty; a send that comes meanwhile has to wait for it."""
_GATHER_SHARE = 0.01
"""Of a lease, if that is less."""
_GATHERED_MAX = 100
"""So many acknowledgements are enough for one command: no more are waited for."""
_PATIENT_BELOW = 500
"""With fewer to be acknowledged the server may take its time: nobody waits for room because of them."""
_ROUNDS_A_LEASE = 6
"""How often a lease is looked at while it runs: it is extended at a third, and another time if that fails."""


class Outcome(NamedTuple):
    """A handler has ended."""

    message: Message
    work: UnitOfWork | None
    error: BaseException | None


class LeaseLost(PenstockError):
    """The lease of a message ended before its turn came."""


class Acknowledger:
    """Holds the messages of one listener."""

    def __init__(
        self, caller: Caller, queue: str, channel: str, metrics: ListenerMetrics, on_room: Callable[[], None]
    ) -> None:
        self._caller = caller
        self._queue = queue
        self._channel = channel
        self._metrics = metrics
        self._on_room = on_room
        self._lock = threading.Lock()
        self._held: set[Message] = set()
        self._gone: set[Message] = set()
        """Held, but the lease is lost."""
        self._ended: deque[Outcome] = deque()
        self._is_urgent = False
        """Whether there is anything among them that must not wait to be batched."""
        self._acknowledging = 0
        """Messages that the acknowledger has taken from there, and is at."""
        self._wake = Signal()
        self._finishing = False
        self._enough = 0
        """While acknowledgements wait to be batched: how many are enough. Otherwise 0."""
        self.spare_room: Callable[[], int] = lambda: 0
        """How many more messages could be in hand before anybody waits for room."""
        self._failures = 0
        self.order: GroupOrder[Message] | None = None
        """For a FIFO queue: who may be worked on."""
        self.is_one_by_one = False
        """Whether messages are received one by one, since what went back would be gone: then who waits behind another
        one of its group has come after that was settled, and need not go back with it."""
        self._lease_ms = 0
        self.begin: Callable[[list[Message]], None] = lambda messages: None
        """What to do with messages whose turn has come."""

    @property
    def in_hand(self) -> int:
        """How many messages are held."""
        return len(self._held)

    @property
    def unhandled(self) -> int:
        """How many of them wait for a worker, or are worked on; the others are only to be settled."""
        return max(0, len(self._held) - len(self._ended) - self._acknowledging)

    def is_gone(self, message: Message) -> bool:
        """Whether a message's lease is lost."""
        return message in self._gone

    def hold(self, messages: list[Message]) -> list[Message]:
        """Keep the leases of these messages from now on. Returns those that may be worked on."""
        with self._lock:
            self._held.update(messages)
            return messages if self.order is None else self.order.admit(messages)

    def drain(self) -> list[Message]:
        """Take back what waits behind others of its group."""
        with self._lock:
            return [] if self.order is None else self.order.drain()

    def leases_last(self, lease_ms: int) -> None:
        """Messages come with leases of this length: look after them so often."""
        if lease_ms != self._lease_ms:
            self._lease_ms = lease_ms
            self._wake.set()

    def ended(self, outcome: Outcome) -> None:
        """A handler has ended: settle it soon."""
        self._ended.append(outcome)
        if self._acknowledging:
            self._on_room()  # a slow commit holds up nobody
        if outcome.work is not None or outcome.error is not None:
            self._is_urgent = True  # when it is among them, and not before: who takes them clears this first
            self._wake.set()
        elif len(self._ended) >= self._enough:
            self._wake.set()

    def finish(self) -> None:
        """No handler runs any more: settle what is left, and end."""
        self._finishing = True
        self._wake.set()

    def run(self) -> None:
        """Settle and keep, until `finish`."""
        while not (self._finishing and not self._ended):
            self._wake.wait(None if not self._lease_ms else self._lease_ms / 1_000 / _ROUNDS_A_LEASE)
            self._gather()
            self._settle_ended()
            self._keep_leases()

    # -- settling --

    def _gather(self) -> None:
        """Give acknowledgements a moment to become several, if they are few and nobody waits for them."""
        ended = len(self._ended)
        if not 0 < ended < _GATHERED_MAX or self._finishing or self.order is not None:
            return
        enough = min(_GATHERED_MAX, ended + self.spare_room())
        if not self._may_gather(enough):
            return
        self._enough = enough
        self._on_room()  # who fetches need not wait for the acknowledgements either
        until = time.monotonic() + min(_GATHER_SECONDS, self._lease_ms / 1_000 * _GATHER_SHARE)
        while self._may_gather(enough) and (left := until - time.monotonic()) > 0:
            self._wake.wait(left)  # a worker that came before it could know what is enough wakes, too
        self._enough = 0

    def _may_gather(self, enough: int) -> bool:
        """Whether there is nothing to settle at once."""
        return len(self._ended) < enough and not (self._finishing or self._is_urgent)

    def _settle_ended(self) -> None:
        self._is_urgent = False
        outcomes = [self._ended.popleft() for _ in range(len(self._ended))]
        if not outcomes:
            return
        self._acknowledging = len(outcomes)
        self._on_room()
        try:
            self._settle(outcomes)
        except Exception:  # a fault in here must not end the listener: leases run out, and messages come again
            _LOG.exception("listener on %r could not settle %d messages", self._queue, len(outcomes))
            self._let_go([outcome.message for outcome in outcomes], "lost")
        finally:
            self._acknowledging = 0

    def _settle(self, outcomes: list[Outcome]) -> None:
        done: list[Message] = []
        acks: list[Message] = []
        units: list[Outcome] = []
        failed: list[Outcome] = []
        for outcome in outcomes:
            message, work, error = outcome
            if work is None and error is None and not message.is_settled:
                acks.append(message)
            elif error is not None or message.is_given_back:
                failed.append(outcome)
            elif work is None or work.state == "committed":
                done.append(message)
            elif work.state == "open":
                units.append(outcome)
            else:
                failed.append(outcome)
        self._let_go(done, "handled")
        if acks:
            self._acknowledge(acks)
        if units:
            failed += self._commit(units)
        if failed:
            self._release(failed)

    def _acknowledge(self, messages: list[Message]) -> None:
        is_patient = len(messages) < _PATIENT_BELOW and self.order is None and not self._finishing
        command = Ack(queue=self._queue, channel=self._channel, spans=spans_of(messages), patient=is_patient)
        try:
            settled: Settled = self._caller.call(command)
        except (ConnectionLost, StoreError) as error:
            self._repeat(messages, error)
            return
        except PenstockError as error:  # the queue or the channel is gone, or the right to read it
            _LOG.warning("%d messages of %r could not be acknowledged: %s", len(messages), self._queue, error)
            self._let_go(messages, "lost")
            return
        self._failures = 0
        refused = touched(messages, settled.refused)
        self._let_go([message for message in messages if message not in refused] if refused else messages, "handled")
        self._let_go(list(refused), "lost")

    def _repeat(self, messages: list[Message], error: PenstockError) -> None:
        """The acknowledgement did not get through: once more after a pause, while the leases last."""
        now_ms = self._caller.now_ms()
        alive = [message for message in messages if message.lease_ends_ms > now_ms]
        self._let_go(list(set(messages).difference(alive)), "lost")
        self._failures += 1
        log = _LOG.warning if self._failures == 1 else _LOG.debug
        log("%d messages of %r could not be acknowledged, trying again: %s", len(alive), self._queue, error)
        sleep(min(pause_seconds(self._failures), _REPEAT_SECONDS_MAX))
        for message in alive:
            self.ended(Outcome(message, None, None))

    def _commit(self, units: list[Outcome]) -> list[Outcome]:
        """Commit units of work, all at once if that can be. Returns those that failed, with the reason."""
        commands = {outcome: _begin(outcome) for outcome in units}
        if len(units) > 1:
            error = self._try(commands)
            if error is None or isinstance(error, ConnectionLost | StoreError):
                return [] if error is None else [_failed(outcome, error) for outcome in units]
        failed = []
        for outcome, command in commands.items():
            error = self._try({outcome: command})
            if error is not None:
                failed.append(_failed(outcome, error))
        return failed

    def _try(self, commands: dict[Outcome, CommitWork]) -> PenstockError | None:
        try:
            command = together(list(commands.values()))
            if command.acks or command.sends:
                self._caller.call(command)
        except PenstockError as error:
            return error
        for outcome in commands:
            assert outcome.work is not None
            outcome.work.end_commit("committed")
        self._let_go([outcome.message for outcome in commands], "handled")
        return None

    def _release(self, failed: list[Outcome]) -> None:
        """Give messages back, with the reasons: one command for each place and reason.

        What handlers have taken besides goes first: when their messages come again, it has to be there.
        """
        spans: dict[tuple[str, str, str], list[Span]] = {}
        for outcome in failed:
            text = "rolled back" if outcome.error is None else error_text(outcome.error)
            for (queue, channel), taken in _taken(outcome).items():
                spans.setdefault((queue, channel, text), []).extend(taken)
        own = (self._queue, self._channel)
        for (queue, channel, text), taken in sorted(spans.items(), key=lambda each: each[0][:2] == own):
            release = Release(queue=queue, channel=channel, spans=merged_spans(taken), error=text)
            try:
                self._caller.call(release)
            except PenstockError as error:
                _LOG.warning(
                    "messages of %r could not be released, and are delivered again when their lease ends: %s",
                    queue,
                    error,
                )
        lost = [outcome.message for outcome in failed if isinstance(outcome.error, LeaseLost)]
        self._let_go(lost, "lost")
        self._let_go([outcome.message for outcome in failed if not isinstance(outcome.error, LeaseLost)], "failed")

    def give_back(self, messages: list[Message]) -> None:
        """Nobody has begun these: as if they had not been received. (An at-most policy counts them all the same.)"""
        if not messages:
            return
        with self._lock:
            self._held.difference_update(messages)
            self._gone.difference_update(messages)
        try:
            self._caller.call(GiveBack(queue=self._queue, channel=self._channel, spans=spans_of(messages)))
        except PenstockError as error:
            _LOG.warning(
                "%d messages of %r are delivered again when their lease ends: %s", len(messages), self._queue, error
            )

    def abandon(self, unfinished: list[Message], reason: str) -> None:
        """Handlers that do not end: release what they hold, whatever becomes of them."""
        if not unfinished:
            return
        with self._lock:
            self._held.difference_update(unfinished)
        self._metrics.failed += len(unfinished)
        command = Release(queue=self._queue, channel=self._channel, spans=spans_of(unfinished), error=reason)
        try:
            self._caller.call(command)
        except PenstockError as error:
            _LOG.warning(
                "%d messages of %r are delivered again when their lease ends: %s", len(unfinished), self._queue, error
            )

    def _let_go(self, messages: list[Message], counter: str) -> None:
        """These are settled, or lost: the next of their groups may be begun, or go back in order with them."""
        if not messages:
            return
        turn: list[Message] = []
        goes_on = counter == "handled" or self.is_one_by_one
        with self._lock:
            before = len(self._held)
            self._held.difference_update(messages)
            self._gone.difference_update(messages)
            gone = before - len(self._held)
            setattr(self._metrics, counter, getattr(self._metrics, counter) + gone)
            self._acknowledging = max(0, self._acknowledging - gone)
            if self.order is not None:
                follow = self.order.done if goes_on else self.order.failed
                turn = [each for message in messages for each in follow(message)]
            if goes_on:
                self.begin(turn)  # in here: whoever takes back what is not begun finds it in one place or the other
        if not goes_on:
            self.give_back(turn)
        self._on_room()

    # -- keeping --

    def _keep_leases(self) -> None:
        """Extend whatever has used a third of its lease, in one command."""
        if not self._lease_ms or not self._held:
            return
        now_ms = self._caller.now_ms()
        with self._lock:
            ends_before = now_ms + self._lease_ms * 2 // 3
            due = [message for message in self._held if message.lease_ends_ms <= ends_before and not message.is_settled]
        if not due:
            return
        command = Extend(queue=self._queue, channel=self._channel, spans=spans_of(due), lease_ms=self._lease_ms)
        try:
            settled: Settled = self._caller.call(command)
        except PenstockError as error:
            _LOG.warning("listener on %r could not extend %d leases: %s", self._queue, len(due), error)
            return
        refused = touched(due, settled.refused)
        lost = touched(due, [each for each in settled.refused if not isinstance(each.error, LeaseTooLong)])
        for message in due:
            if message not in refused:
                message.extended_to(now_ms + self._lease_ms)
        with self._lock:
            self._gone.update(lost & self._held)


def _begin(outcome: Outcome) -> CommitWork:
    """The command that commits a unit. What the handler has settled itself is not settled again."""
    assert outcome.work is not None
    message = outcome.message
    if message.is_settled:
        outcome.work.let_go(message.queue, message.channel, message.span)
    return outcome.work.begin_commit()


def _failed(outcome: Outcome, error: PenstockError) -> Outcome:
    """A unit that could not be committed is to be rolled back."""
    assert outcome.work is not None
    outcome.work.end_commit("open")
    return Outcome(outcome.message, outcome.work, error)


def _taken(outcome: Outcome) -> dict[tuple[str, str], list[Span]]:
    """What a failed handler's message and unit hold, which is to be released."""
    if outcome.work is not None:
        return outcome.work.abandon()
    message = outcome.message
    return {} if message.is_settled else {(message.queue, message.channel): [message.span]}
