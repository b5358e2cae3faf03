"""The shard: the only loop. It takes commands through the core and the store, and lets replies go.

How it works. A driver (`ThreadedShard`, `AsyncShard`) gathers calls and runs one *step* with all of them:

    begin    every call's command goes through the broker; then the broker does what is due and serves who waits
    commit   if anything in the step must be durable first, its changes go to the store: one commit, however many calls
    end      replies are filled in, and the driver settles the calls: wakes threads, resolves futures

While a commit is being written, the driver gathers the calls of the next step: that is the group commit. The shard
itself knows neither threads nor tasks; its driver makes sure that one step runs at a time.

Leases and attempts are *lazy*: they are committed with the next durable step, or `LAZY_COMMIT_MS` later at the latest
(or whatever the shard is told: where a commit costs more, they may wait longer).

Queues with `deliver_unsynced` do not let their subscribers wait for the commit: what `begin` finds for them is in
`step.early`, and the driver passes it on before it has the changes written, by `write` in a thread of its own. So it
does with all steps while such a queue is in use: none of them may hold up the next message. While that lasts, sends and
credit may `run_ahead`: the broker takes them, on top of what is being written, into a step that is committed next.
`written` ends the first one. If its commit has failed, both have: neither was answered. Only a driver that can do all
this says `deliver_unsynced()`; with a proof, or with events, nothing leaves early.

A receive that finds nothing is *parked*: its call stays open until the broker wakes it, at the latest when its wait
is over.

When something fails:

- `CommitFailed`, or an interrupt in the middle of a commit: whether the changes were kept is not known. Every call of
  the step gets the error; the store is opened again, the broker from it, and the parked receives are put back. What
  the broker had in mind but not in the store is gone, and nobody was told of it.
- `DirectoryMoved`: the data directory is not where it was. The store stays as it is, with its lock, and is opened again
  when the directory is back. Until then every call gets the error: no other directory is opened, and none is made.
- `DiskFull`: nothing was written, and the store goes on. The broker is opened again; sends get the error, everything
  else is handled once more, since it gives space back. For `FULL_PAUSE_MS` sends are refused at once, so that
  acknowledgements flow.
- An exception that is not a `PenstockError` is a bug, in the core or in a command. The call that met it gets it; the
  broker is opened again, and the others are handled once more without that call.
- A `StoreError` out of the broker is a read that failed, perhaps in the middle of something: as with a bug, the broker
  is opened again. What it has looked past without reading it must not count as done.
- A shard that another process can take over has a `proof` (see there). After a failed commit, or a read that found
  damage, it is not opened again: it is *lost*, and whoever waits, or comes later, is told to look elsewhere.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from penstock.core.broker import Broker
from penstock.core.commands import (
    CancelWait,
    CatalogEvent,
    Command,
    CommitWork,
    Damage,
    Delivery,
    DescribeQueue,
    GiveBack,
    QueueInfo,
    Receive,
    Records,
    Send,
    StageWork,
    Subscribe,
    TakeOutbox,
)
from penstock.core.errors import PenstockError, StoreError
from penstock.core.storage.changes import Changes
from penstock.server.clock import Clock
from penstock.server.events import LatencySampler, Recorder
from penstock.server.proof import Proof
from penstock.store.base import Store
from penstock.store.errors import CommitFailed, DirectoryMoved, DiskFull, StoreDamaged
from penstock.store.errors import ShardClosed as ShardClosed

LAZY_COMMIT_MS = 20
"""How long leases and attempts may wait for a durable step to go along with."""
FULL_PAUSE_MS = 500
"""How long sends are refused without trying after the disk was found full."""
REOPEN_PAUSE_MS = 1_000
"""How long a shard that could not be opened answers errors before it tries again."""
APART_MS = 1_000
"""For how long after a message has left early all steps are written apart."""
REPORTS_KEPT = 100
_FULL = "the disk is full: sends are refused until there is space again; acknowledgements work"

log = logging.getLogger("penstock.shard")


class Tick(Command):
    """Nothing but a step: the shard does what is due."""


class Ticket(Protocol):
    """Who waits for deliveries: a parked call, or a subscription."""

    def take(self, delivery: Delivery) -> None:
        """Keep a delivery; `settle` follows when it may leave."""

    def settle(self) -> None:
        """Everything taken is committed as far as it has to be: pass it on."""


class Call:
    """A command on its way through the shard, and what came of it. Drivers add how to wake its caller."""

    __slots__ = ("command", "error", "parked_ms", "reply")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.reply: Any = None
        self.error: BaseException | None = None
        self.parked_ms = 0
        """When it started to wait, if it does."""

    def take(self, delivery: Delivery) -> None:
        self.error = delivery.error
        self.reply = delivery

    def settle(self) -> None:
        """Wake whoever waits for this call."""

    def result(self) -> Any:
        """The reply, or the error raised; only once, so that nothing which its traceback leads to leads back to it."""
        error, self.error = self.error, None
        if error is None:
            return self.reply
        try:
            raise error
        finally:
            del error


class Step:
    """The calls that go through the shard together."""

    __slots__ = (
        "answered",
        "calls",
        "changes",
        "early",
        "events",
        "is_apart",
        "is_broken",
        "is_open",
        "now_ms",
        "outbox",
        "parked",
        "woken",
    )

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.now_ms = 0
        self.changes: Changes | None = None
        """What has to be committed before the calls are settled."""
        self.parked: list[Call] = []
        self.woken: list[tuple[Ticket, Delivery]] = []
        self.early: list[tuple[Ticket, Delivery]] = []
        """What the driver passes on before the changes are written."""
        self.is_apart = False
        """Begun, and the driver has it written in a thread."""
        self.is_broken = False
        """It ran ahead, and something failed: all of it is to be done again."""
        self.events: list[CatalogEvent] = []
        self.outbox: list[int] = []
        """Other shards for which something has come into the outbox."""
        self.answered: list[Ticket] = []
        """Filled when the step is over: whom the driver has to settle."""
        self.is_open = False
        """Committed, and `finish` has to follow before anybody is settled."""


_NOTED: frozenset[type[Command]] = frozenset({Receive, Subscribe, CancelWait})
"""Commands whose end the shard's own books have to know of."""


class _CallFailed(Exception):
    """A call met a bug, or a store that cannot be read."""

    def __init__(self, call: Call, error: Exception) -> None:
        super().__init__(call, error)
        self.call = call
        self.error = error


class Shard:
    """One broker over one store. Not thread-safe: a driver runs one step at a time."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        clock: Clock,
        entropy: Callable[[], bytes],
        shard: int = 0,
        shards: int = 1,
        proof: Proof | None = None,
        lazy_commit_ms: int = LAZY_COMMIT_MS,
        was_handed_over: bool = False,
        in_process: bool = False,
    ) -> None:
        self.number = shard
        self._in_process = in_process
        """Whether the process that this is in is the only one that receives: see `core/handlers/sessions.py`."""
        self._was_handed_over = was_handed_over
        """Whether another process has released it in order: connections that are elsewhere keep what they hold."""
        self._lazy_commit_ms = lazy_commit_ms
        self._proof = proof
        self._lost = False
        self._shards = shards
        self._open_store = open_store
        self.clock = clock
        self._entropy = entropy
        self._store: Store = open_store()
        self._is_well = True
        """Whether a step may go straight on. Everything that goes wrong clears it; `_get_well` sees to the rest."""
        self._store_is_good = True
        self._broker_is_good = False
        self._closed = False
        self._down: Exception | None = None
        self._down_until_ms = 0
        self._full_until_ms = 0
        self._stands_still = False
        """While the disk is full and what is due does not fit: it is not done."""
        self._lazy_since_ms: int | None = None
        self._parked: set[Call] = set()
        self._unparked: list[Call] = []
        self._undelivered: list[Delivery] = []
        self._unsubscribed: list[Ticket] = []
        """Subscribers who were told an error instead of messages; the broker hears of it in the next step."""
        self._subscribers: set[Ticket] = set()
        self._orphans: list[Ticket] = []
        """Subscribers whose channel or session is gone with a broker; they are told at the end of the step."""
        self._reports: deque[Damage] = deque(maxlen=REPORTS_KEPT)
        self.listeners: list[Callable[[CatalogEvent], None]] = []
        """Called by the driver, when a step is over, for each queue and channel that has come or gone."""
        self.outbox_listeners: list[Callable[[list[int]], None]] = []
        """Called likewise with the shards for which something is new in the outbox. They must not raise."""
        self._recorder: Recorder | None = None
        self.latencies: LatencySampler | None = None
        """Looks at a step now and then, if anybody wants to know how long messages take."""
        self._delivers_unsynced = False
        self.left_early_ms = -APART_MS
        """When something left early for the last time; below 0: nothing has."""
        self._first_session = 0
        """Sessions with lower numbers are from before this process: those that are bound are gone."""
        self.broker: Broker
        """The broker as it is now: another one after a failure. Anybody may ask it for ids and receipts."""
        try:
            self._open_broker(clock.now_ms())
        except BaseException:
            self._store.close()
            raise
        self._collect_reports()

    # -- a step --

    def run(self, step: Step) -> None:
        """A whole step, committed here; or only begun, if it is to be written apart.

        Raises nothing but interrupts, and every call is answered then as well.
        """
        try:
            self.begin(step)
            if step.is_apart:
                return
            if step.changes is not None:
                self.commit(step)
            if step.is_open:
                self.finish(step)
        except BaseException as interrupt:
            self.interrupted(step, interrupt)
            raise

    def begin(self, step: Step) -> None:
        """Take the calls through the broker. If `step.changes` is set afterwards, `commit` has to follow.

        If it `is_apart`, `set_aside` has to, when what is in `step.early` has left, and `write`.
        """
        step.now_ms = self.clock.now_ms()
        if not self._is_well and not self._get_well(step):
            return
        if self._recorder is not None and self._recorder.is_about_to_write(step.now_ms) and not self._save_lazy(step):
            return
        try:
            self._attempt(step)
            lazy_ms = self._lazy_since_ms
            is_overdue = lazy_ms is not None and step.now_ms >= lazy_ms + self._lazy_commit_ms
            if self.broker.must_commit or is_overdue or (self._proof is not None and self._must_prove(step)):
                if self._delivers_unsynced and step.woken:
                    self._let_leave_early(step)
                if step.now_ms - self.left_early_ms < APART_MS:
                    step.is_apart = True
                else:
                    step.changes = self.broker.take_changes()
            else:
                self._end(step)
        except Exception as error:
            if self._is_for_another_store(error):
                self._give_up_store(step, error)
            else:
                log.exception("the broker failed")
                self._go_down(step, error)

    def _save_lazy(self, step: Step) -> bool:
        """Events may find the disk full; leases must not be forgotten because of them, so they are saved before.

        False, with every call answered, if that fails.
        """
        if not self.broker.has_changes:
            return True
        try:
            self._commit(self.broker.take_changes())
        except DiskFull as error:
            log.error("the disk is full: %s", error)
            self._full_until_ms = step.now_ms + FULL_PAUSE_MS
            self._open_broker(step.now_ms)
        except Exception as error:
            self._give_up_store(step, error)
            return False
        return True

    def commit(self, step: Step) -> None:
        """Make the step's changes durable, then end it; or deal with the failure.

        With a proof, the step is left open: the driver lets `finish` end it, right before it settles the calls.
        """
        assert step.changes is not None
        try:
            if self._proof is None:
                self._store.commit(step.changes)
                self.broker.committed(step.changes)
                self._lazy_since_ms = None
                self._end(step)
            else:
                self._commit(step.changes)
                step.is_open = True
        except DiskFull as error:
            self._survive_full_disk(step, error)
        except Exception as error:
            self._give_up_store(step, error)

    def finish(self, step: Step) -> None:
        """End a step that `commit` left open."""
        step.is_open = False
        try:
            self._end(step)
        except Exception as error:
            self._give_up_store(step, error)

    # -- messages that leave before they are on the disk --

    def deliver_unsynced(self) -> None:
        """Whoever drives this passes `step.early` on; from now on there may be something in it."""
        if self._proof is None:
            self._delivers_unsynced = self.broker.delivers_unsynced = True

    def may_leave_early(self, call: Call) -> bool:
        """Whether a call sends messages that need not wait for their commit."""
        if not self._delivers_unsynced or self._recorder is not None:
            return False
        command = call.command
        queue = self.broker.queues.get(command.queue) if isinstance(command, Send) else None
        return queue is not None and queue.config.deliver_unsynced

    def may_step_now(self, call: Call) -> bool:
        """Whether a call sends messages that somebody is likely to get before they are committed."""
        return self.clock.now_ms() - self.left_early_ms < APART_MS and self.may_leave_early(call)

    def _let_leave_early(self, step: Step) -> None:
        """Find what subscribers need not wait for. It has left from now on, whatever becomes of the step.

        Who has only just subscribed is answered first.
        """
        if self._recorder is not None:
            return
        woken, broker = step.woken, self.broker
        step.woken = []
        for ticket, delivery in woken:
            if ticket in self._subscribers and broker.may_leave_early(delivery):
                step.early.append((ticket, delivery))
                broker.left_early(ticket, delivery)
                self.left_early_ms = step.now_ms
            else:
                step.woken.append((ticket, delivery))

    def write(self, step: Step) -> Exception | None:
        """Write the changes of a step that was set aside. In a thread: it touches nothing but the store.

        Returns what went wrong, for `written`.
        """
        assert step.changes is not None
        try:
            self._store.commit(step.changes)
        except Exception as error:
            return error
        except BaseException as interrupt:
            return CommitFailed(f"the commit was interrupted ({type(interrupt).__name__}): its outcome is not known")
        return None

    def set_aside(self, step: Step) -> None:
        """Take the changes of a step that is written next: what comes meanwhile is another one."""
        step.is_apart = True
        step.changes = self.broker.take_changes()
        self._take_news(step)
        self.broker.set_aside()

    @property
    def can_run_ahead(self) -> bool:
        """Whether calls may go through the broker while a step is being written."""
        return self._is_well and not self._unparked

    def run_ahead(self, step: Step, calls: list[Call]) -> None:
        """Take calls through the broker on top of what is being written; `end_ahead` follows when that is done.

        What fails in unexpected ways is not looked into here: the store is in use. The step is done again, later.
        """
        step.calls += calls
        if step.is_broken:
            return
        step.now_ms = self.clock.now_ms()
        step.is_broken = True
        try:
            for call in calls:
                self._handle(call, step, call.command)
            self.broker.finish(step.now_ms)
            step.woken += self.broker.take_woken()
        except Exception:
            log.warning("a step that ran ahead of the disk failed, and is done again", exc_info=True)
            return
        step.is_broken = False
        self._let_leave_early(step)

    def written(self, step: Step, error: Exception | None, ahead: Step | None) -> bool:
        """The changes of a step were written, or not. Whether the step that ran ahead of it can go on.

        If they were not, both have failed, and are dealt with as one.
        """
        if error is None:
            assert step.changes is not None
            self.broker.committed(step.changes)
            self._lazy_since_ms = None
            try:
                self._end(step)
                return True
            except Exception as failure:
                error = failure
        step.is_apart, step.events, step.outbox = False, [], []
        if ahead is not None:
            step.calls = [*step.calls, *ahead.calls]
            step.parked += ahead.parked
            step.woken += ahead.woken
        if isinstance(error, DiskFull):
            self._survive_full_disk(step, error)
        else:
            self._give_up_store(step, error)
        return False

    def end_ahead(self, step: Step) -> bool:
        """The step before is written: whether this one has to be, next. If it has failed, it is done again first."""
        if not step.is_broken:
            return True
        self._is_well = self._broker_is_good = False
        self._unpark(step)
        waiting = set(self._unparked)
        step.calls = [call for call in step.calls if call not in waiting]
        step.woken, step.is_broken = [], False
        self.run(step)
        return step.is_apart

    # -- trying --

    def _attempt(self, step: Step) -> None:
        """Handle every call, then what is due; once more without a call that met a bug. Leaves the shard's own books
        alone until `_end`.
        """
        while True:
            broker, now_ms = self.broker, step.now_ms
            if self.latencies is not None and broker.message_events is None and self.latencies.wants(now_ms):
                broker.message_events = []
            step.parked.clear()
            try:
                for call in self._unparked:
                    self._handle(call, step, _shortened(call, broker, now_ms))
                for call in step.calls:
                    self._handle(call, step, call.command)
                if self._recorder is not None:
                    self._recorder.write(broker, now_ms, may_add=not self._full_until_ms)
                broker.finish(now_ms)
                receiving = broker.receiving
                step.woken, receiving.woken = receiving.woken, []
                return
            except _CallFailed as bug:
                if self._is_for_another_store(bug.error):
                    raise bug.error from None
                why = "because the store cannot be read" if isinstance(bug.error, StoreError) else "with a bug"
                log.error("a command failed %s: %r", why, bug.call.command, exc_info=bug.error)
                bug.call.error = bug.error
                step.calls = [call for call in step.calls if call is not bug.call]
                self._unparked = [call for call in self._unparked if call is not bug.call]
                step.answered.append(bug.call)
                self._open_broker(step.now_ms)

    def _is_for_another_store(self, error: Exception) -> bool:
        """Whether a read has found damage in what is only a cache: whoever opens the shard next makes it anew. Or that
        the data directory is not there.
        """
        return isinstance(error, DirectoryMoved) or (self._proof is not None and isinstance(error, StoreDamaged))

    def _handle(self, call: Call, step: Step, command: Command) -> None:
        kind = type(command)
        if kind is Receive:
            command.ticket = call  # type: ignore[attr-defined]
        elif kind is Tick:
            failure = getattr(self._store, "failure", None)
            if isinstance(failure, DirectoryMoved):
                raise _copy(failure)
            return
        if self._full_until_ms and _adds(command) and not self.broker.was_done(command):
            call.reply, call.error = None, DiskFull(_FULL)
            return
        try:
            call.reply = self.broker.handle(command, step.now_ms)
            call.error = None
        except StoreError as error:
            raise _CallFailed(call, error) from None
        except PenstockError as error:
            call.reply, call.error = None, error.with_traceback(None)  # which leads to the call
        except Exception as error:
            raise _CallFailed(call, error) from None
        else:
            if kind is Receive and call.reply is None:
                step.parked.append(call)

    def _commit(self, changes: Changes) -> None:
        if self._proof is None:
            self._store.commit(changes)
        else:
            began_s = self._proof.now_s()
            self._store.commit(changes)
            self._proof.renewed(began_s)
        self.broker.committed(changes)
        self._lazy_since_ms = None

    def _end(self, step: Step) -> None:
        """The step is as durable as it has to be: bring the books up to date and fill `answered`."""
        broker = self.broker
        if self._proof is not None and self._must_prove(step):
            self._withhold(step)
        if broker.message_events is not None:
            if self.latencies is not None:
                self.latencies.take(broker.message_events)
            if self._recorder is None:
                broker.message_events = None
        if self._recorder is not None:
            self._recorder.settle(broker, step.now_ms)
        calls = step.calls
        if self._unparked:
            calls = [*self._unparked, *calls]
            self._unparked = []
        if step.parked:
            calls = self._park(step, calls)
        for call in calls:
            command = call.command
            kind = type(command)
            if kind is Receive:
                command.ticket = None  # type: ignore[attr-defined]
            elif kind in _NOTED:
                self._note(call)
        step.answered += calls
        if step.woken:
            self._wake(step)
        receiving = broker.receiving
        if receiving.before or receiving.before_written is not None:
            receiving.settled()
        if self._orphans:
            orphans, self._orphans = self._orphans, []
            self._turn_away(
                orphans, StoreError("the store was opened again, without this subscription: subscribe again"), step
            )
        if self._lazy_since_ms is None and step.changes is None and broker.has_changes:
            self._lazy_since_ms = step.now_ms
        if broker.reports:
            self._collect_reports()
        if not step.is_apart and (broker.events or broker.outbox.fresh):
            self._take_news(step)

    def _take_news(self, step: Step) -> None:
        """What the driver tells when the step is over. (The next one may have begun by then.)"""
        if self.broker.events:
            step.events += self.broker.take_events()
        if self.broker.outbox.fresh:
            step.outbox += self.broker.take_outbox_targets()

    def _must_prove(self, step: Step) -> bool:
        """Whether the step hands out messages that may be somebody else's by now."""
        assert self._proof is not None
        return _hands_out(step, self._unparked) and not self._proof.holds()

    def _withhold(self, step: Step) -> None:
        """Nobody gets messages in this step; they go back in the next one, if the shard is still ours then."""
        assert self._proof is not None
        log.warning(
            "shard %d: the process was paused for too long; messages about to be delivered are kept back", self.number
        )
        for call in (*self._unparked, *step.calls):
            if _holds_messages(call.reply):
                self._undelivered += [call.reply] if isinstance(call.reply, Delivery) else []
                call.reply, call.error = None, self._proof.moved()
        for index, (ticket, delivery) in enumerate(step.woken):
            if delivery.runs:
                self._undelivered.append(delivery)
                self._unsubscribed += [] if isinstance(ticket, Call) else [ticket]
                step.woken[index] = ticket, _error_delivery(self._proof.moved(), step.now_ms)
        self._proof.withheld += 1
        self._is_well = False

    def _park(self, step: Step, calls: list[Call]) -> list[Call]:
        """Put aside who waits from now on. Returns the others."""
        waiting = set(step.parked)
        for call in waiting:
            call.parked_ms = call.parked_ms or step.now_ms
        self._parked |= waiting
        return [call for call in calls if call not in waiting]

    def _wake(self, step: Step) -> None:
        for ticket, delivery in step.woken:
            ticket.take(delivery)
            step.answered.append(ticket)
            if delivery.error is not None:
                self._subscribers.discard(ticket)
            if isinstance(ticket, Call):
                self._parked.discard(ticket)
                self._note(ticket)

    def _note(self, call: Call) -> None:
        """What an answered call changes in the shard's own books."""
        command = call.command
        if isinstance(command, Receive):
            command.ticket = None
        elif isinstance(command, CancelWait):
            self._parked.discard(command.ticket)
            self._subscribers.discard(command.ticket)
        elif isinstance(command, Subscribe) and call.error is None:
            self._subscribers.add(command.ticket)

    def _collect_reports(self) -> None:
        for damage in self.broker.take_reports():
            if damage in self._reports:  # a broker that is opened again finds it again
                continue
            if damage.last >= damage.first:
                log.error("queue %s: messages %d to %d: %s", damage.queue, damage.first, damage.last, damage.reason)
            else:
                log.error("damage in the store: %s: %s", damage.queue or "no queue", damage.reason)
            self._reports.append(damage)

    # -- when things fail --

    def _get_well(self, step: Step) -> bool:
        """Something is not as it should be: whether the step may go on. If not, its calls are answered."""
        if self._closed:
            self._answer_all(step, ShardClosed("the store is closed: open it again"))
            return False
        if self._lost:
            assert self._proof is not None
            self._answer_all(step, self._proof.moved(), unparked=True)
            return False
        if not (self._broker_is_good and self._store_is_good) and not self._recover(step):
            return False
        if self._undelivered or self._unsubscribed:
            self._take_back(step.now_ms)
        if self._full_until_ms:
            self._handle_full_disk(step)
        self._is_well = not self._full_until_ms
        return True

    def _handle_full_disk(self, step: Step) -> None:
        """While the disk is known to be full, what is due may have to wait; then the next send tries it again.

        Whatever is lazy is saved before: if the disk is still full, leases must not be forgotten.
        """
        if step.now_ms < self._full_until_ms:
            return
        self._full_until_ms = 0
        self._stands_still = self.broker.stands_still = False
        if self.broker.has_changes:
            try:
                self._commit(self.broker.take_changes())
            except StoreError:
                self._open_broker(step.now_ms)
        self._end_lost_connections()

    def _open_broker(self, now_ms: int) -> None:
        """A broker as the store knows it; whoever was parked in the old one will be put back."""
        self._is_well = self._broker_is_good = False
        self._unparked += self._parked
        self._parked.clear()
        self._lazy_since_ms = None
        other: Broker | None = getattr(self, "broker", None)
        self.broker = Broker.open(self._store, now_ms, self._entropy(), self.number, self._shards)
        self.broker.delivers_unsynced = self._delivers_unsynced
        self.broker.in_process = self._in_process
        self.broker.skip_reserves()
        self.broker.stands_still = self._stands_still
        if other is None:
            self._first_session = self.broker.meta.next_session
        if not self._full_until_ms:  # it may lead to dead letters, which must not keep acknowledgements from the disk
            self._end_lost_connections()
        if other is not None:
            adopted = self.broker.adopt(other, self._subscribers)
            self._orphans += self._subscribers - adopted
            self._subscribers = adopted
            self.broker.message_events = None if self._recorder is None else []
        self._broker_is_good = True
        self._is_well = self._store_is_good and not self._full_until_ms

    def _end_lost_connections(self) -> None:
        """Those of former processes. It is done again for each broker: the one before may not have committed it."""
        self.broker.end_bound_sessions(keeping=self._was_handed_over, before=self._first_session)

    def _recover(self, step: Step) -> bool:
        """Open what a failure left closed. False, with every call answered, if that does not work out."""
        if self._down is None or step.now_ms >= self._down_until_ms:
            try:
                if not self._store_is_good:
                    getattr(self._store, "check_place", _nothing)()
                    self._close_store()
                    self._store = self._open_store()
                    self._store_is_good = True
                self._open_broker(step.now_ms)
                if isinstance(self._down, DirectoryMoved):
                    log.warning("the data directory is back: the store was opened again")
                self._down = None
                self._take_back(step.now_ms)
                return True
            except Exception as error:
                if not isinstance(error, DirectoryMoved):
                    log.exception("the store could not be opened again")
                elif not isinstance(self._down, DirectoryMoved):
                    log.error("%s", error)
                self._down = error
                self._down_until_ms = step.now_ms + REOPEN_PAUSE_MS
        assert self._down is not None
        self._answer_all(step, self._down, unparked=True)
        return False

    def _take_back(self, now_ms: int) -> None:
        """What a failed step had handed out never left. If its leases were kept after all, they are nobody's."""
        undelivered, self._undelivered = self._undelivered, []
        unsubscribed, self._unsubscribed = self._unsubscribed, []
        for ticket in unsubscribed:
            self.broker.handle(CancelWait(ticket=ticket), now_ms)
        for delivery in undelivered:
            with contextlib.suppress(PenstockError):
                self.broker.handle(give_back(delivery), now_ms)

    def _close_store(self) -> None:
        try:
            self._store.close()
        except Exception:
            log.exception("the store could not be closed")

    def _give_up_store(self, step: Step, error: Exception) -> None:
        self._is_well = self._store_is_good = False
        if isinstance(error, DirectoryMoved):  # who has noticed it has logged it
            self._down = error
        elif self._proof is None:
            log.error("a commit failed, the store will be opened again: %s", error)
        self._unpark(step)
        self._lose(error)
        self._answer_all(step, error)

    def _lose(self, error: Exception) -> None:
        """With a proof, a shard whose commit has failed, or whose cache is damaged, is of no use any more."""
        if self._proof is not None and not self._lost:
            log.error("shard %d: a commit or a read failed, so it is given up here: %s", self.number, error)
            self._lost = True
            self._proof.on_lost(error)

    def _go_down(self, step: Step, error: Exception) -> None:
        self._is_well = self._broker_is_good = False
        self._down = error
        self._down_until_ms = step.now_ms + REOPEN_PAUSE_MS
        self._unpark(step)
        self._answer_all(step, error, unparked=True)

    def interrupted(self, step: Step, interrupt: BaseException) -> None:
        """A step was left in the middle, by Ctrl-C or a signal handler that raises: trust nothing that is in memory."""
        step.woken, step.early = [*step.woken, *step.early], []
        self._is_well = self._broker_is_good = self._store_is_good = False
        self._unpark(step)
        error = CommitFailed(f"the step was interrupted ({type(interrupt).__name__}): its outcome is not known")
        self._lose(error)
        self._answer_all(step, error)

    def _unpark(self, step: Step) -> None:
        """Everybody who waits has to be put back: the broker that knew them is gone."""
        replies = [call.reply for call in (*self._unparked, *step.calls) if isinstance(call.reply, Delivery)]
        self._undelivered += [*replies, *(delivery for _, delivery in step.woken)]
        unparked = dict.fromkeys(self._unparked)
        unparked.update(dict.fromkeys(self._parked))
        unparked.update(dict.fromkeys(step.parked))
        left = {call.command.ticket for call in step.calls if isinstance(call.command, CancelWait)}
        self._unparked = [call for call in unparked if call not in left]
        self._parked.clear()
        for call in unparked:
            call.reply = None  # also of who has left, and would give it back a second time
            call.parked_ms = call.parked_ms or step.now_ms

    def _answer_all(self, step: Step, error: Exception, *, unparked: bool = False) -> None:
        """Every call of the step gets the error; those who only wait get it if nobody can say how long it lasts."""
        waiting = set() if unparked else set(self._unparked)
        calls = [call for call in [*step.calls, *(self._unparked if unparked else ())] if call not in waiting]
        for call in dict.fromkeys(calls):
            call.reply, call.error = None, _copy(error)
            step.answered.append(call)
        if unparked:
            self._unparked = []
        told = self._proof.moved() if self._proof is not None and self._lost else _failure(error)
        self._turn_away([*self._subscribers, *self._orphans], told, step)
        self._subscribers.clear()
        self._orphans = []
        step.changes = None

    @staticmethod
    def _turn_away(subscribers: list[Ticket], error: PenstockError, step: Step) -> None:
        """Subscriptions are over, and whoever has them is told."""
        for subscriber in subscribers:
            subscriber.take(_error_delivery(error, step.now_ms))
            step.answered.append(subscriber)

    def _survive_full_disk(self, step: Step, error: DiskFull) -> None:
        """Handle again whatever adds nothing; if it does not fit, without what became due; then each call for itself.

        What becomes due may add something: a dead letter is a message of another queue. It must not keep
        acknowledgements from the disk, so it has to wait for a while.
        """
        log.error("the disk is full: %s", error)
        self._full_until_ms = self.clock.now_ms() + FULL_PAUSE_MS
        self._is_well = False
        left: Iterator[Call] = iter(())
        try:
            if self._fits(step):
                return
            self._stands_still = True
            if self._fits(step):
                return
            if not step.calls:  # what did not fit is in this broker's mind, and nowhere else
                self._open_broker(step.now_ms)
            left = iter(step.calls)
            for call in left:
                step.calls, step.woken = [call], []
                if not self._fits(step):
                    call.reply, call.error = None, _copy(error)
                    step.answered.append(call)
                    self._open_broker(step.now_ms)
        except Exception as failure:
            for call in left:  # nobody gets what it would have got: somebody before it may have that
                call.reply = None
                step.calls.append(call)
            self._give_up_store(step, failure)

    def _fits(self, step: Step) -> bool:
        """Try the step again, with a broker as the store has it. Ended if it fits; False if the disk is too full."""
        try:
            self._open_broker(step.now_ms)
            self._attempt(step)
            self._commit(self.broker.take_changes())
        except DiskFull:
            return False
        self._end(step)
        return True

    # -- for the driver --

    def wake_at_ms(self) -> int | None:
        """When a step has to run although no call came; None if there is no need."""
        if self._unparked or (self._undelivered and self._broker_is_good and self._store_is_good):
            return self._full_until_ms if self._stands_still else 0
        if not (self._broker_is_good and self._store_is_good):
            return None
        timers = self.broker.timers
        wake_ms = timers[0][0] if timers else None
        if self._lazy_since_ms is not None:
            lazy_ms = self._lazy_since_ms + self._lazy_commit_ms
            wake_ms = lazy_ms if wake_ms is None else min(wake_ms, lazy_ms)
        if self._recorder is not None and (flush_ms := self._recorder.wake_at_ms()) is not None:
            wake_ms = flush_ms if wake_ms is None else min(wake_ms, flush_ms)
        if wake_ms is not None and self._stands_still:
            return max(wake_ms, self._full_until_ms)
        return wake_ms

    def record(self, recorder: Recorder) -> None:
        """Have what happens from now on written to an events queue."""
        self._recorder = recorder
        self.broker.message_events = []

    @property
    def reports(self) -> list[Damage]:
        return list(self._reports)

    def tell_outbox(self, targets: list[int]) -> None:
        """Tell who forwards the outbox that there is something for these shards."""
        for listener in self.outbox_listeners:
            listener(targets)

    def tell(self, events: list[CatalogEvent]) -> None:
        """Tell the listeners of a step's events."""
        for event in events:
            for listener in self.listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed")

    def is_waiting(self, call: Call) -> bool:
        """Whether a call is parked, or about to be put back."""
        return call in self._parked or call in self._unparked

    def dismiss(self, moved: PenstockError | None = None) -> list[Ticket]:
        """Nobody waits any longer. Returns who did, to be settled: their waits end with nothing, or with the error.

        With an error, subscriptions end as well: their channels go on elsewhere.
        """
        waiting: list[Ticket] = [*self._parked, *self._unparked]
        self._parked.clear()
        self._unparked = []
        if moved is not None:
            waiting += self._subscribers
            self._subscribers = set()
            now_ms = self.clock.now_ms()
            for ticket in waiting:
                if isinstance(ticket, Call) and isinstance(ticket.command, Receive):
                    ticket.command.ticket = None
                error = _copy(moved)
                assert isinstance(error, PenstockError)
                ticket.take(_error_delivery(error, now_ms))
        return waiting

    def close(self) -> None:
        """Commit what is left and close the store. Steps answer `ShardClosed` from then on; once more does nothing."""
        if self._closed:
            return
        self._closed = True
        self._is_well = False
        try:
            if self._broker_is_good and self._store_is_good:
                self.broker.release_reserves()
                self.broker.leave_sessions()
                if self.broker.has_changes:
                    self._commit(self.broker.take_changes())
        finally:
            self._broker_is_good = False
            self._store.close()


def give_back(delivery: Delivery) -> GiveBack:
    """What to call with a delivery that its receiver never got: its messages are ready, as if never handed out."""
    spans = delivery.spans()
    return GiveBack(queue=delivery.queue, channel=delivery.channel, spans=spans, received_ms=delivery.received_ms)


def _error_delivery(error: PenstockError, now_ms: int) -> Delivery:
    """No messages, but an error."""
    return Delivery("", 0, "", 0, now_ms, 0, error=error)


def _holds_messages(reply: object) -> bool:
    return (isinstance(reply, Delivery) and bool(reply.runs)) or isinstance(reply, Records)


def _hands_out(step: Step, unparked: list[Call]) -> bool:
    return (
        any(delivery.runs for _, delivery in step.woken)
        or any(_holds_messages(call.reply) for call in step.calls)
        or any(_holds_messages(call.reply) for call in unparked)
    )


def _adds(command: Command) -> bool:
    """Whether a command makes the store larger."""
    if isinstance(command, TakeOutbox):
        return any(entry.chunk for entry in command.entries)
    return isinstance(command, Send) or (isinstance(command, CommitWork | StageWork) and bool(command.sends))


def _shortened(call: Call, broker: Broker, now_ms: int) -> Command:
    """A parked receive with what is left of its wait."""
    command = call.command
    assert isinstance(command, Receive)
    wait_ms = command.wait_ms
    if wait_ms is None:
        try:
            info: QueueInfo = broker.handle(DescribeQueue(name=command.queue), now_ms)
        except PenstockError:
            return command
        wait_ms = info.config.receive_wait_ms
    return msgspec.structs.replace(command, wait_ms=max(0, wait_ms - (now_ms - call.parked_ms)))


def _nothing() -> None:
    """What a store that has no place has to check."""


def _copy(error: Exception) -> Exception:
    """Each caller raises an exception of its own: tracebacks grow where they are raised."""
    twin = copy.copy(error)
    twin.__cause__ = error
    return twin


def _failure(error: Exception) -> PenstockError:
    return error if isinstance(error, PenstockError) else StoreError(str(error))
