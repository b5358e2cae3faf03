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

from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.message import AsyncMessage
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.content import error_text, spans_of, touched
from penstock.client.listening import GroupOrder, ListenerMetrics, pause_seconds
from penstock.client.puts import together
from penstock.client.task_workers import Signal, sleep
from penstock.core.commands import Ack, CommitWork, Extend, GiveBack, Release, Settled, Span
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


class AsyncOutcome(NamedTuple):
    """A handler has ended."""

    message: AsyncMessage
    work: AsyncUnitOfWork | None
    error: BaseException | None


class LeaseLost(PenstockError):
    """The lease of a message ended before its turn came."""


class AsyncAcknowledger:
    """Holds the messages of one listener."""

    def __init__(
        self, caller: AsyncCaller, queue: str, channel: str, metrics: ListenerMetrics, on_room: Callable[[], None]
    ) -> None:
        self._caller = caller
        self._queue = queue
        self._channel = channel
        self._metrics = metrics
        self._on_room = on_room
        self._lock = threading.Lock()
        self._held: set[AsyncMessage] = set()
        self._gone: set[AsyncMessage] = set()
        """Held, but the lease is lost."""
        self._ended: deque[AsyncOutcome] = deque()
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
        self.order: GroupOrder[AsyncMessage] | None = None
        """For a FIFO queue: who may be worked on."""
        self.is_one_by_one = False
        """Whether messages are received one by one, since what went back would be gone: then who waits behind another
        one of its group has come after that was settled, and need not go back with it."""
        self._lease_ms = 0
        self.begin: Callable[[list[AsyncMessage]], None] = lambda messages: None
        """What to do with messages whose turn has come."""

    @property
    def in_hand(self) -> int:
        """How many messages are held."""
        return len(self._held)

    @property
    def unhandled(self) -> int:
        """How many of them wait for a worker, or are worked on; the others are only to be settled."""
        return max(0, len(self._held) - len(self._ended) - self._acknowledging)

    def is_gone(self, message: AsyncMessage) -> bool:
        """Whether a message's lease is lost."""
        return message in self._gone

    def hold(self, messages: list[AsyncMessage]) -> list[AsyncMessage]:
        """Keep the leases of these messages from now on. Returns those that may be worked on."""
        with self._lock:
            self._held.update(messages)
            return messages if self.order is None else self.order.admit(messages)

    def drain(self) -> list[AsyncMessage]:
        """Take back what waits behind others of its group."""
        with self._lock:
            return [] if self.order is None else self.order.drain()

    def leases_last(self, lease_ms: int) -> None:
        """Messages come with leases of this length: look after them so often."""
        if lease_ms != self._lease_ms:
            self._lease_ms = lease_ms
            self._wake.set()

    def ended(self, outcome: AsyncOutcome) -> None:
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

    async def run(self) -> None:
        """Settle and keep, until `finish`."""
        while not (self._finishing and not self._ended):
            await self._wake.wait(None if not self._lease_ms else self._lease_ms / 1_000 / _ROUNDS_A_LEASE)
            await self._gather()
            await self._settle_ended()
            await self._keep_leases()

    # -- settling --

    async def _gather(self) -> None:
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
            await self._wake.wait(left)  # a worker that came before it could know what is enough wakes, too
        self._enough = 0

    def _may_gather(self, enough: int) -> bool:
        """Whether there is nothing to settle at once."""
        return len(self._ended) < enough and not (self._finishing or self._is_urgent)

    async def _settle_ended(self) -> None:
        self._is_urgent = False
        outcomes = [self._ended.popleft() for _ in range(len(self._ended))]
        if not outcomes:
            return
        self._acknowledging = len(outcomes)
        self._on_room()
        try:
            await self._settle(outcomes)
        except Exception:  # a fault in here must not end the listener: leases run out, and messages come again
            _LOG.exception("listener on %r could not settle %d messages", self._queue, len(outcomes))
            await self._let_go([outcome.message for outcome in outcomes], "lost")
        finally:
            self._acknowledging = 0

    async def _settle(self, outcomes: list[AsyncOutcome]) -> None:
        done: list[AsyncMessage] = []
        acks: list[AsyncMessage] = []
        units: list[AsyncOutcome] = []
        failed: list[AsyncOutcome] = []
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
        await self._let_go(done, "handled")
        if acks:
            await self._acknowledge(acks)
        if units:
            failed += await self._commit(units)
        if failed:
            await self._release(failed)

    async def _acknowledge(self, messages: list[AsyncMessage]) -> None:
        is_patient = len(messages) < _PATIENT_BELOW and self.order is None and not self._finishing
        command = Ack(queue=self._queue, channel=self._channel, spans=spans_of(messages), patient=is_patient)
        try:
            settled: Settled = await self._caller.call(command)
        except (ConnectionLost, StoreError) as error:
            await self._repeat(messages, error)
            return
        except PenstockError as error:  # the queue or the channel is gone, or the right to read it
            _LOG.warning("%d messages of %r could not be acknowledged: %s", len(messages), self._queue, error)
            await self._let_go(messages, "lost")
            return
        self._failures = 0
        refused = touched(messages, settled.refused)
        await self._let_go(
            [message for message in messages if message not in refused] if refused else messages, "handled"
        )
        await self._let_go(list(refused), "lost")

    async def _repeat(self, messages: list[AsyncMessage], error: PenstockError) -> None:
        """The acknowledgement did not get through: once more after a pause, while the leases last."""
        now_ms = self._caller.now_ms()
        alive = [message for message in messages if message.lease_ends_ms > now_ms]
        await self._let_go(list(set(messages).difference(alive)), "lost")
        self._failures += 1
        log = _LOG.warning if self._failures == 1 else _LOG.debug
        log("%d messages of %r could not be acknowledged, trying again: %s", len(alive), self._queue, error)
        await sleep(min(pause_seconds(self._failures), _REPEAT_SECONDS_MAX))
        for message in alive:
            self.ended(AsyncOutcome(message, None, None))

    async def _commit(self, units: list[AsyncOutcome]) -> list[AsyncOutcome]:
        """Commit units of work, all at once if that can be. Returns those that failed, with the reason."""
        commands = {outcome: _begin(outcome) for outcome in units}
        if len(units) > 1:
            error = await self._try(commands)
            if error is None or isinstance(error, ConnectionLost | StoreError):
                return [] if error is None else [_failed(outcome, error) for outcome in units]
        failed = []
        for outcome, command in commands.items():
            error = await self._try({outcome: command})
            if error is not None:
                failed.append(_failed(outcome, error))
        return failed

    async def _try(self, commands: dict[AsyncOutcome, CommitWork]) -> PenstockError | None:
        try:
            command = together(list(commands.values()))
            if command.acks or command.sends:
                await self._caller.call(command)
        except PenstockError as error:
            return error
        for outcome in commands:
            assert outcome.work is not None
            outcome.work.end_commit("committed")
        await self._let_go([outcome.message for outcome in commands], "handled")
        return None

    async def _release(self, failed: list[AsyncOutcome]) -> None:
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
                await self._caller.call(release)
            except PenstockError as error:
                _LOG.warning(
                    "messages of %r could not be released, and are delivered again when their lease ends: %s",
                    queue,
                    error,
                )
        lost = [outcome.message for outcome in failed if isinstance(outcome.error, LeaseLost)]
        await self._let_go(lost, "lost")
        await self._let_go(
            [outcome.message for outcome in failed if not isinstance(outcome.error, LeaseLost)], "failed"
        )

    async def give_back(self, messages: list[AsyncMessage]) -> None:
        """Nobody has begun these: as if they had not been received. (An at-most policy counts them all the same.)"""
        if not messages:
            return
        with self._lock:
            self._held.difference_update(messages)
            self._gone.difference_update(messages)
        try:
            await self._caller.call(GiveBack(queue=self._queue, channel=self._channel, spans=spans_of(messages)))
        except PenstockError as error:
            _LOG.warning(
                "%d messages of %r are delivered again when their lease ends: %s", len(messages), self._queue, error
            )

    async def abandon(self, unfinished: list[AsyncMessage], reason: str) -> None:
        """Handlers that do not end: release what they hold, whatever becomes of them."""
        if not unfinished:
            return
        with self._lock:
            self._held.difference_update(unfinished)
        self._metrics.failed += len(unfinished)
        command = Release(queue=self._queue, channel=self._channel, spans=spans_of(unfinished), error=reason)
        try:
            await self._caller.call(command)
        except PenstockError as error:
            _LOG.warning(
                "%d messages of %r are delivered again when their lease ends: %s", len(unfinished), self._queue, error
            )

    async def _let_go(self, messages: list[AsyncMessage], counter: str) -> None:
        """These are settled, or lost: the next of their groups may be begun, or go back in order with them."""
        if not messages:
            return
        turn: list[AsyncMessage] = []
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
            await self.give_back(turn)
        self._on_room()

    # -- keeping --

    async def _keep_leases(self) -> None:
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
            settled: Settled = await self._caller.call(command)
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


def _begin(outcome: AsyncOutcome) -> CommitWork:
    """The command that commits a unit. What the handler has settled itself is not settled again."""
    assert outcome.work is not None
    message = outcome.message
    if message.is_settled:
        outcome.work.let_go(message.queue, message.channel, message.span)
    return outcome.work.begin_commit()


def _failed(outcome: AsyncOutcome, error: PenstockError) -> AsyncOutcome:
    """A unit that could not be committed is to be rolled back."""
    assert outcome.work is not None
    outcome.work.end_commit("open")
    return AsyncOutcome(outcome.message, outcome.work, error)


def _taken(outcome: AsyncOutcome) -> dict[tuple[str, str], list[Span]]:
    """What a failed handler's message and unit hold, which is to be released."""
    if outcome.work is not None:
        return outcome.work.abandon()
    message = outcome.message
    return {} if message.is_settled else {(message.queue, message.channel): [message.span]}
