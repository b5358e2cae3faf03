"""A shard for many threads: whoever comes first does the work of all.

How it works. A calling thread that finds nobody at work *leads*: it runs a step itself, with its own call and all
that were gathered meanwhile, and commits right there. A single thread thus never hands anything to another one.
Threads that come while a step runs leave their call in the inbox and sleep on a lock of their own: they *follow*.
During the commit's fdatasync the interpreter is free, so those whom the last step has served come back with their
next calls and gather: the group commit. After its step a leader hands the lead to the first of them. (Leading some
more steps for others, so that no step waits for a thread to wake up, was measured: it gathered less, and was slower.)

No call is forgotten: a follower puts its call in the inbox before it tries for the lead, and a leader looks at the
inbox again after it gave the lead back.

An interrupt (Ctrl-C) while a thread sleeps withdraws its receive first: a message never goes to somebody who left.
One in the middle of a step is the shard's business; see there.

A timer thread makes the steps for which no call comes: deadlines, delays, the end of long polls, lazy commits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

from penstock.core.broker import Broker
from penstock.core.commands import CancelWait, Command, Damage, Receive
from penstock.server.shard import Call, Shard, ShardClosed, Step, Tick, give_back
from penstock.store.errors import CommitFailed

_NEVER_MS = 1 << 62


class _SleepingCall(Call):
    """A call whose caller sleeps until it is settled, or until it has to lead."""

    __slots__ = ("_asleep", "leads", "settled", "withdrawn")

    def __init__(self, command: Command) -> None:
        super().__init__(command)
        self.settled = False
        self.leads = False
        """Its caller was handed the lead, and has to run the next step."""
        self.withdrawn = False
        """Its caller is busy with leaving, and cannot lead."""
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def settle(self) -> None:
        """Wake the caller: the reply is there."""
        self.settled = True
        self._asleep.release()

    def wake_to_lead(self) -> None:
        """Wake the caller: it has the lead now."""
        self.leads = True
        self._asleep.release()

    def sleep(self) -> None:
        """Until somebody wakes this call."""
        self._asleep.acquire()


class ThreadedShard:
    """`call` from any thread: takes a command, returns its reply or raises its error."""

    read_only = False

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._inbox: deque[_SleepingCall] = deque()
        self._lead = threading.Lock()
        self._leader = 0
        self._handing_over = threading.Lock()
        self._closed = False
        self._timer = _Timer(self)

    def call(self, command: Command) -> Any:
        """Take a command through a step. Returns when its effect is as durable as it has to be."""
        if self._closed:
            raise ShardClosed("the store is closed: open it again")
        if command.__class__ is not Receive and self._lead.acquire(blocking=False):
            call = Call(command)
            self._run_as_leader(call)
            return call.result()
        return self._call_and_sleep(command)

    def _call_and_sleep(self, command: Command) -> Any:
        call = _SleepingCall(command)
        if self._lead.acquire(blocking=False):
            self._run_as_leader(call)
        elif self._leader == threading.get_ident():
            raise RuntimeError("called from inside a step of the same thread: a signal handler must not call Penstock")
        else:
            self._enqueue(call)
        if not call.settled:
            self._sleep_until_settled(call)
        return call.result()

    def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        time.sleep(seconds)

    def now_ms(self) -> int:
        """The shard's time."""
        return self.shard.clock.now_ms()

    @property
    def identity(self) -> Broker:
        """Who names messages and reads receipts."""
        return self.shard.broker

    @property
    def reports(self) -> list[Damage]:
        """The last reports of damaged chunks."""
        return self.shard.reports

    def tick(self) -> None:
        """Make a step, so that the shard does what is due."""
        self.call(Tick())

    def close(self) -> None:
        """Commit what is left, end every wait, close the store. Once more does nothing."""
        self._closed = True
        self._timer.stop()
        with self._lead:
            for ticket in self.shard.dismiss():
                ticket.settle()
            self.shard.close()
        self._serve_who_came_late()

    # -- leading --

    def _run_as_leader(self, own: Call | None) -> None:
        self._leader = threading.get_ident()
        try:
            self._step(own)
        finally:
            self._leader = 0
            self._give_up_lead()

    def _step(self, own: Call | None) -> None:
        calls: list[Call] = [] if own is None else [own]
        step = Step(calls)
        try:
            inbox = self._inbox
            while inbox:
                calls.append(inbox.popleft())
            self.shard.run(step)
        except BaseException:
            _answer_the_forgotten(step, calls)
            raise
        finally:
            for ticket in step.answered:
                ticket.settle()
            wake_at_ms = self.shard.wake_at_ms()
            if wake_at_ms is not None and wake_at_ms < self._timer.at_ms:
                self._timer.arm(wake_at_ms)

    def _give_up_lead(self) -> None:
        """To a follower, if any waits. Looks at the inbox afterwards: somebody may have come at the last moment."""
        while True:
            if self._inbox and self._hand_over():
                return
            self._lead.release()
            if not self._inbox or not self._lead.acquire(blocking=False):
                return

    def _hand_over(self) -> bool:
        with self._handing_over:
            for heir in list(self._inbox):
                if not heir.withdrawn:
                    heir.wake_to_lead()
                    return True
        self._serve_the_withdrawn()
        return False

    def _serve_the_withdrawn(self) -> None:
        """Nobody is left to lead, but there are calls whose callers have not quite left yet."""
        try:
            while self._inbox:
                self._step(None)
        except BaseException:
            self._lead.release()
            raise

    # -- following --

    def _enqueue(self, call: _SleepingCall) -> None:
        self._inbox.append(call)
        if self._lead.acquire(blocking=False):
            self._run_as_leader(None)

    def _sleep_until_settled(self, call: _SleepingCall) -> None:
        try:
            while not call.settled:
                call.sleep()
                self._lead_if_told(call)
        except BaseException:
            self._withdraw(call)
            raise

    def _lead_if_told(self, call: _SleepingCall) -> None:
        with self._handing_over:
            leads, call.leads = call.leads, False
        if leads:
            self._run_as_leader(None)

    def _withdraw(self, call: _SleepingCall) -> None:
        """The caller leaves. What it may have been handed, the lead or messages, goes to others."""
        with self._handing_over:
            call.withdrawn = True
        self._lead_if_told(call)
        if self._closed or call.command.__class__ is not Receive:
            return
        self.call(CancelWait(ticket=call))
        if call.reply is not None and call.reply.runs:
            self.call(give_back(call.reply))

    def _serve_who_came_late(self) -> None:
        """Calls that slipped in while the shard closed get their error."""
        if self._inbox and self._lead.acquire(blocking=False):
            self._run_as_leader(None)


def _answer_the_forgotten(step: Step, calls: list[Call]) -> None:
    """After an interrupt: whoever the shard did not get to answer hears that the outcome is not known."""
    known = {id(ticket) for ticket in step.answered}
    for call in calls:
        if id(call) not in known and not call.parked_ms:
            call.reply, call.error = None, CommitFailed("the step was interrupted: its outcome is not known")
            step.answered.append(call)


class _Timer:
    """A thread that ticks when the shard has to wake up by itself. It starts with the first need for it."""

    def __init__(self, owner: ThreadedShard) -> None:
        self._owner = owner
        self._changed = threading.Condition()
        self.at_ms = _NEVER_MS
        """When it ticks next."""
        self._stopped = False
        self._thread: threading.Thread | None = None

    def arm(self, at_ms: int) -> None:
        """Tick at this time."""
        with self._changed:
            self.at_ms = at_ms
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="penstock-timer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Tick no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while self._wait():
            with contextlib.suppress(Exception):  # the shard has logged it, and says when to come again
                self._owner.tick()

    def _wait(self) -> bool:
        """Sleep until it is time to tick; False when there will be no more ticks."""
        with self._changed:
            while not self._stopped:
                left_ms = self.at_ms - self._owner.shard.clock.now_ms()
                if left_ms <= 0:
                    self.at_ms = _NEVER_MS
                    return True
                self._changed.wait(None if self.at_ms == _NEVER_MS else min(left_ms / 1_000, threading.TIMEOUT_MAX))
            return False
