"""A shard for many threads: whoever comes first does the work of all.

How it works. A calling thread that finds nobody at work *leads*: it runs a step itself, with its own call and all that
were gathered meanwhile, and commits right there. A single thread thus never hands anything to another one. Threads
that come while a step runs leave their call in the inbox and sleep on a lock of their own: they *follow*. During the
commit's fdatasync the interpreter is free, so those whom the last step has served come back with their next calls and
gather: the group commit. After its step a leader lets go of the lead and wakes the first who waits, to lead the next
one. (Leading some more steps for others, so that no step waits for a thread to wake up, was measured: it gathered less,
and was slower.)

No call is forgotten: a follower puts its call in the inbox before it tries for the lead, and a leader looks at the
inbox again after it let go.

Interrupts. Ctrl-C raises in the main thread, wherever it is. Asleep: its receive is withdrawn first, so that no message
goes to somebody who left. In a step: the shard trusts nothing of it any more, and answers everybody. Between two lines
of this file: whoever leaves `call` by an interrupt lets go of the lead if it has it (which is why the lead is a lock
that knows its owner), and a follower that hears nothing for long looks whether its call got lost.

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
from penstock.core.settings import SECOND_MS
from penstock.server.shard import Call, Shard, ShardClosed, Step, Tick, give_back
from penstock.signals import acquire_and_look
from penstock.store.errors import CommitFailed

_NEVER_MS = 1 << 62
_INSIDE_A_STEP = "called from inside a step of the same thread: a signal handler must not call Penstock"
_QUEUE_WAIT_MS_MAX = 20 * SECOND_MS
"""The longest wait that a queue can be configured with."""
_RECHECK_SECONDS = 1.0
"""After how long without an answer a follower looks whether its call got lost. Steps take milliseconds."""


class _SleepingCall(Call):
    """A call whose caller sleeps until it is settled, or should lead."""

    __slots__ = ("_asleep", "settled", "withdrawn")

    def __init__(self, command: Command) -> None:
        super().__init__(command)
        self.settled = False
        self.withdrawn = False
        """Its caller is busy with leaving, and does not listen."""
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def settle(self) -> None:
        self.settled = True
        self.wake()

    def wake(self) -> None:
        """Let the caller look again. Twice is as good as once."""
        with contextlib.suppress(RuntimeError):
            self._asleep.release()

    def sleep(self) -> None:
        """Until somebody wakes this call, or it has been quiet for too long."""
        acquire_and_look(self._asleep, self._recheck_seconds())

    def _recheck_seconds(self) -> float:
        if not self.parked_ms:
            return _RECHECK_SECONDS
        assert isinstance(self.command, Receive)
        wait_ms = _QUEUE_WAIT_MS_MAX if self.command.wait_ms is None else self.command.wait_ms
        return min(wait_ms / 1_000 + _RECHECK_SECONDS, threading.TIMEOUT_MAX)


class ThreadedShard:
    """`call` from any thread: takes a command, returns its reply or raises its error."""

    read_only = False

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._inbox: deque[_SleepingCall] = deque()
        self._lead = threading.RLock()
        self._stepping = 0
        """The thread in which a step is running."""
        self._closed = False
        self._timer = _Timer(self)

    def call(self, command: Command) -> Any:
        if self._closed:
            raise ShardClosed("the store is closed: open it again")
        try:
            if isinstance(command, Receive):
                return self._call_and_sleep(command)
            if not self._lead.acquire(blocking=False):
                return self._call_and_sleep(command)
            call = Call(command)
            self._run_as_leader(call)
            return call.result()
        except Exception:
            raise
        except BaseException:
            self._let_go()
            raise

    def _call_and_sleep(self, command: Command) -> Any:
        call = _SleepingCall(command)
        if self._lead.acquire(blocking=False):
            self._run_as_leader(call)
        else:
            self._inbox.append(call)
            self._lead_if_needed()
        if not call.settled:
            self._sleep_until_settled(call)
        return call.result()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now_ms(self) -> int:
        return self.shard.clock.now_ms()

    @property
    def identity(self) -> Broker:
        return self.shard.broker

    @property
    def reports(self) -> list[Damage]:
        return self.shard.reports

    def tick(self) -> None:
        """Make a step, so that the shard does what is due."""
        self.call(Tick())

    def close(self) -> None:
        """Commit what is left, end every wait, close the store. Once more does nothing."""
        with self._lead:
            if self._stepping == threading.get_ident():
                raise RuntimeError(_INSIDE_A_STEP)
            self._closed = True
            for ticket in self.shard.dismiss():
                ticket.settle()
            self.shard.close()
        self._lead_if_needed()
        self._timer.stop()

    # -- leading --

    def _run_as_leader(self, own: Call | None) -> None:
        """A step, by whoever has the lead; then let go of it."""
        me = threading.get_ident()
        if self._stepping == me:
            self._lead.release()
            raise RuntimeError(_INSIDE_A_STEP)
        self._stepping = me
        try:
            self._step(own)
        finally:
            self._stepping = 0
            self._lead.release()
            if self._inbox:
                self._wake_next_leader()

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

    def _wake_next_leader(self) -> None:
        """Somebody has to lead the next step: the first who listens."""
        next_leader = next((call for call in list(self._inbox) if not call.withdrawn), None)
        if next_leader is not None:
            next_leader.wake()

    def _lead_if_needed(self) -> None:
        if self._inbox and self._lead.acquire(blocking=False):
            self._run_as_leader(None)

    def _let_go(self) -> None:
        """After an interrupt, which may have come at any point: keep nothing that others need."""
        if self._stepping == threading.get_ident():
            self._stepping = 0
        with contextlib.suppress(RuntimeError):  # not this thread's (any more)
            while True:
                self._lead.release()
        self._wake_next_leader()
        self._timer.wake()

    # -- following --

    def _sleep_until_settled(self, call: _SleepingCall) -> None:
        try:
            while not call.settled:
                call.sleep()
                if not call.settled:
                    self._look_after(call)
        except BaseException:
            self._withdraw(call)
            raise

    def _look_after(self, call: _SleepingCall) -> None:
        """Woken without a reply: lead, if nobody does. Or it has been quiet for long: is the call still somewhere?"""
        if not self._lead.acquire(blocking=False):
            return
        if not (self._inbox or call.settled or self.shard.is_waiting(call)):
            self._find(call)
        self._run_as_leader(None)

    def _find(self, call: _SleepingCall) -> None:
        """An interrupt in another thread hit the moment in which this call was nowhere."""
        if call.reply is None or not call.parked_ms:
            call.reply, call.error = None, CommitFailed("the step was interrupted: its outcome is not known")
        call.settle()

    def _withdraw(self, call: _SleepingCall) -> None:
        """The caller leaves. Messages that it may have been handed go to others."""
        call.withdrawn = True
        self._let_go()
        if self._closed or not isinstance(call.command, Receive):
            return
        self.call(CancelWait(ticket=call))
        if call.reply is not None and call.reply.runs:
            self.call(give_back(call.reply))


def _answer_the_forgotten(step: Step, calls: list[Call]) -> None:
    """After an interrupt: whoever the shard did not get to answer hears that the outcome is not known."""
    known = {id(ticket) for ticket in step.answered}
    for call in calls:
        if id(call) not in known and not call.parked_ms:
            call.reply, call.error = None, CommitFailed("the step was interrupted: its outcome is not known")
            step.answered.append(call)


class _Timer:
    """A thread that ticks when the shard has to wake up by itself."""

    def __init__(self, owner: ThreadedShard) -> None:
        self._owner = owner
        self.at_ms = _NEVER_MS
        """When it ticks next."""
        self._stopped = False
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self._worker = threading.Thread(target=self._run, name="penstock-timer", daemon=True)
        self._worker.start()

    def arm(self, at_ms: int) -> None:
        """Tick at this time. One that is lost comes again: every step asks for the next tick, and a tick is a step."""
        self.at_ms = at_ms
        self.wake()

    def wake(self) -> None:
        """Look at the time again."""
        with contextlib.suppress(RuntimeError):
            self._asleep.release()

    def stop(self) -> None:
        """Tick no more."""
        self._stopped = True
        self.wake()
        if self._worker is not threading.current_thread():
            self._worker.join()

    def _run(self) -> None:
        while self._sleep_until_due():
            with contextlib.suppress(Exception):  # the shard has logged it, and says when to come again
                self._owner.tick()

    def _sleep_until_due(self) -> bool:
        """False when there will be no more ticks."""
        while not self._stopped:
            at_ms = self.at_ms
            left_ms = at_ms - self._owner.shard.clock.now_ms()
            if left_ms <= 0:
                self.at_ms = _NEVER_MS
                return True
            self._asleep.acquire(timeout=-1 if at_ms == _NEVER_MS else min(left_ms / 1_000, threading.TIMEOUT_MAX))
        return False
