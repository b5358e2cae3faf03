"""A shard for the tasks of one event loop.

How it works. Commands that tasks bring in one turn of the loop are gathered and go through one step in the next turn;
their futures are resolved, or their callbacks called, after its commit. Where several came, others are likely to have
come while they were read: the step is put off turn by turn, as long as each brings more. Acknowledgements whose reply
is not urgent (`Ack.patient`) wait for something else to be committed with, for some milliseconds. The commit runs
right there (the loop waits for the disk), or, with `commit_in_thread`, in a thread of its own while the loop goes on
and gathers the next step.

Where messages may leave before they are on the disk (see `shard`), the step that lets them is written in a thread,
after they have left. Sends and credit that come meanwhile go through the broker at once, and share the next commit with
everything else, which waits for its turn: so a disk that stands still holds up answers, and nothing that is pushed.
Where one such message comes after the other, its front end need not wait for the next turn: see `step_now`.

A cancelled receive is withdrawn: if a delivery is on its way to it already, the messages are given back.

Everything here happens in the loop's thread, save the commits in their thread; there is nothing to lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any, NamedTuple

from penstock.core.broker import Broker
from penstock.core.commands import (
    COMMANDS,
    Ack,
    AddCredit,
    CancelWait,
    CatalogEvent,
    Command,
    Damage,
    QueueStats,
    QueueTally,
    Receive,
    Send,
    Stats,
)
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.server.shard import Call, Shard, ShardClosed, Step, Tick, Ticket, give_back
from penstock.server.tally import pages_of_tallies

# Whether a commit should wait a moment for others to come along.
#
# Two callers that each wait for their commit before they send again tend to take turns: while the one is being
# committed, the other arrives; it is committed alone in turn, while the first prepares its next. Each commit costs a
# sync of the disk, and half of them could be saved. So a step that lacks callers who usually come is delayed, for a
# part of the time that a step takes at most; PostgreSQL has it as `commit_delay` and `commit_siblings`.
#
# Who is usual: who was in the last two steps. Nobody waits for anybody if those were a while ago, or if there is only
# one caller; and who does not come back is waited for twice.


COMMIT_DELAY_SHARE = 1 / 2
"""How long to wait at most, as a part of the last step's time."""
COMMIT_DELAY_S_MAX = 0.001

_NOBODY: frozenset[Any] = frozenset()


class CommitDelay:
    """Knows who came lately, and how long a step takes. Times are seconds of any clock.

    >>> delay = CommitDelay()
    >>> delay.stepped({"a"}, 0.000, 0.003); delay.stepped({"b"}, 0.003, 0.006)
    >>> delay.is_early({"a"}, 0.0065), delay.is_early({"a", "b"}, 0.0065), delay.is_early({"a"}, 0.0076)
    (True, False, False)
    """

    __slots__ = ("_before", "_last", "until_s")

    def __init__(self) -> None:
        self._last: frozenset[Any] = _NOBODY
        self._before: frozenset[Any] = _NOBODY
        self.until_s = 0.0
        """Nobody is waited for after this time."""

    def stepped(self, callers: set[Any], start_s: float, end_s: float) -> None:
        self._before = self._last
        self._last = frozenset(callers)
        self.until_s = end_s + min((end_s - start_s) * COMMIT_DELAY_SHARE, COMMIT_DELAY_S_MAX)

    def is_early(self, callers: set[Any], now_s: float) -> bool:
        """Whether a step with these callers is worth putting off for a moment."""
        return now_s < self.until_s and bool(callers) and not callers >= (self._last | self._before)


log = logging.getLogger("penstock.shard")

_TOGETHER_MAX = 256
"""So many calls are enough for a step."""
_PATIENT_ACK_S = 0.01
"""How long an acknowledgement that is not urgent waits for something else to be committed with."""
_NOT_PASSED_ON = "an answer could not be passed on"
_MOMENT_S = 0.00001
"""What a step is put off for at a time; with what the system adds to it, some 60 us."""


class _TaskCall(Call):
    """A call whose task awaits a future."""

    __slots__ = ("future",)

    def __init__(self, command: Command, future: asyncio.Future[None]) -> None:
        self.command = command
        self.reply: Any = None
        self.error: BaseException | None = None
        self.parked_ms = 0
        self.future = future

    def settle(self) -> None:
        """Wake the task, if it still waits."""
        if not self.future.done():
            self.future.set_result(None)


class CallbackCall(Call):
    """A call that tells a function when it is settled: for who drives coroutines itself, without tasks and futures."""

    __slots__ = ("home", "number", "on_settled", "shard")

    def __init__(self, command: Command, on_settled: Callable[[Call], None], home: Any = None) -> None:
        self.command = command
        self.reply: Any = None
        self.error: BaseException | None = None
        self.parked_ms = 0
        self.on_settled = on_settled
        self.home = home
        """Who took it, for who has to withdraw it: an `AsyncShard`, or, with many shards, a place's own record."""
        self.shard = 0
        """On a link: the shard that it is for."""
        self.number = 0
        """On a link: its number there; 0 before it is written."""

    def settle(self) -> None:
        """Tell who waits."""
        self.on_settled(self)


def _ignore(_call: Call) -> None:
    """Nobody waits any more."""


def _is_patient(call: Call) -> bool:
    command = call.command
    return command.__class__ is Ack and command.patient


_AHEAD: frozenset[type[Command]] = frozenset({AddCredit, Send})
"""What may go through the broker while a step is being written."""
_ORDER: dict[type[Command], int] = {kind: kind.traits.turn.value for kind in COMMANDS if kind.traits.turn is not None}


def in_order(calls: list[Call]) -> list[Call]:
    """The calls of a step: credit, sends, what settles, receives; as they came if there are others.

    Nobody has been answered yet, so all of them are concurrent, and any order is right; those of one kind keep theirs.
    In this one a step's sends make one chunk: a receive between two sends would have it sealed, and every chunk has a
    head and columns of its own to be written.
    """
    try:
        return sorted(calls, key=lambda call: _ORDER[call.command.__class__])
    except KeyError:
        return calls


def _leading(calls: list[Call], kind: type[Command]) -> int:
    """How many calls of this kind there are before the first of another one."""
    return next((at for at, call in enumerate(calls) if call.command.__class__ is not kind), len(calls))


STOOD_STILL_S = 0.5
"""A timer that comes so late was not kept waiting by work alone: the process stood still."""
READ_FIRST_S = 0.05
"""So long it reads before it ends the connection of somebody who seems to be silent."""
HEALTH_S = 0.5
"""How long shards may take to answer whoever asks whether they do. Probes wait for a second, or for two."""


class Unready(NamedTuple):
    """Shards that do not answer."""

    unserved: Sequence[int] = ()
    """Nobody has them."""
    waiting: Sequence[int] = ()
    """Their store takes its time: Kafka replaces a broker, or a disk is slow."""
    reason: str = ""
    """Why nothing should be sent here any more; "" if that is not so."""


class Writer:
    """A thread: what it is given is done in that order; `close` waits for all of it, and so does the process's end.

    An executor of the standard library would do as well, and takes half as long again to hand a job over: it makes a
    future of each, with a lock and a condition, for who might wait for it. Here the job itself tells who has to hear of
    its end.

    >>> writer, done = Writer("example"), []
    >>> writer.submit(lambda: done.append("first"))
    >>> writer.submit(lambda: done.append("second"))
    >>> writer.close()
    >>> done
    ['first', 'second']
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        thread = threading.Thread(target=_do_jobs, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._life: set[None] = set()
        """It goes when this writer does. Compiled, the writer itself has no weak references."""
        self._end = weakref.finalize(self._life, _end_jobs, self._jobs, thread)

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job done. It must not raise."""
        self._jobs.put(job)

    def close(self) -> None:
        """Wait until everything is done, and end the thread. Once more does nothing."""
        self._end()


def _do_jobs(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and what it holds on to


def _end_jobs(jobs: SimpleQueue[Callable[[], None] | None], thread: threading.Thread) -> None:
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join()


class AsyncShard:
    """`await call(...)` from any task of the loop: takes a command, returns its reply or raises its error."""

    read_only = False

    def __init__(self, shard: Shard, *, commit_in_thread: bool = False) -> None:
        self.shard = shard
        self.now_ms: Callable[[], int] = shard.clock.now_ms
        self._loop = asyncio.get_running_loop()
        self._inbox: list[Call] = []
        self._busy = False
        """A step is running, or will run in the loop's next turn."""
        self._seen = 0
        """How many calls there were when a step was put off so that more of them come along."""
        self._is_urgent = False
        """Whether anything in the inbox is urgent."""
        self._patient_timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._timer_s = 0.0
        """When it is due, by the loop's clock."""
        self._commit_delay = CommitDelay()
        self._callers: set[object] = set()
        """Who in the inbox may be waited for next time, and is worth waiting for now."""
        self._committer = ThreadPoolExecutor(1, "penstock-commit") if commit_in_thread else None
        self._writing: Step | None = None
        """A step that is being written in a thread, or is about to be."""
        self._ahead: Step | None = None
        """What has gone through the broker meanwhile."""
        self._writer: Writer | None = None
        self._asked: asyncio.Future[None] | None = None
        """The last question of `answers`."""
        self._next_step: asyncio.Handle | None = None
        """The step that will run in the loop's next turn."""
        self._has_stepped_now = False
        """A step has run in this turn without waiting for the next one."""
        self._were_left = False
        """The last step has left calls behind that came with it: they are not left a second time."""
        shard.deliver_unsynced()
        self._arm()

    async def call(self, command: Command) -> Any:
        call = _TaskCall(command, self._loop.create_future())
        self.put(call)
        try:
            await call.future
        except asyncio.CancelledError:
            if command.__class__ is Receive and not self._closed:
                self._withdraw(call)
            raise
        return call.result()

    def submit(self, command: Command, on_settled: Callable[[Call], None], caller: object = None) -> CallbackCall:
        """As `call`, without a task: `on_settled` is called in the loop when the call is settled. It must not raise.

        A `caller` that waits for each of its commits before it comes again may be waited for: see `CommitDelay`.
        """
        call = CallbackCall(command, on_settled, self)
        self.put(call, caller)
        return call

    def put(self, call: Call, caller: object = None) -> None:
        """As `submit`, for who has a call already: it is settled when it is through."""
        if caller is not None:
            self._callers.add(caller)
        if self._closed:
            raise ShardClosed("the store is closed: open it again")
        self._inbox.append(call)
        command = call.command
        if command.__class__ is Ack and command.patient and len(self._inbox) < _TOGETHER_MAX:
            self._step_late()
        else:
            self._is_urgent = True
            if not self._busy:  # as `_step_soon`, which costs a call
                self._busy = True
                self._next_step = self._loop.call_soon(self._step)

    def withdraw(self, call: CallbackCall) -> None:
        call.on_settled = _ignore
        if not self._closed:
            self._withdraw(call)

    def unknown(self, name: str, *, now: bool = False) -> bool:
        """Whether a queue has to be asked for before `identity` can tell of it: not here."""
        return False

    def partitions_for(self, name: str) -> int:
        """How many partitions a queue needs for every node to have one of them: there is one node."""
        return 1

    async def local_stats(self, name: str) -> Stats:
        """The counts of a queue: it is all here."""
        stats: Stats = await self.call(QueueStats(name=name))
        return stats

    def tallies(self, *, local: bool) -> AsyncIterator[list[QueueTally]]:
        """Every queue in numbers, some at a time: they are all here."""
        return pages_of_tallies(self.call)

    def local_shards(self) -> Iterable[Shard]:
        """The shards that are in this process: one."""
        return (self.shard,)

    async def ask_each(self, command: Command) -> list[tuple[int, Any]]:
        """Ask every shard the same: there is this one."""
        return [(0, await self.call(command))]

    async def ask_each_of(self, queue: str, command: Command) -> list[tuple[int, Any]]:
        """Ask the shards of a queue: there is this one."""
        return await self.ask_each(command)

    async def ask_shard(self, shard: int, command: Command) -> Any:
        """Ask one shard: this one."""
        if shard:
            raise InvalidRequest(f"there is no shard {shard}: there is one, with the number 0")
        return await self.call(command)

    async def know(self, *names: str, receipts: Iterable[str] = (), now: bool = False) -> None:
        """Ask for queues that are unknown: there are none."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @property
    def identity(self) -> Broker:
        return self.shard.broker

    @property
    def listeners(self) -> list[Callable[[CatalogEvent], None]]:
        return self.shard.listeners

    @property
    def reports(self) -> list[Damage]:
        return self.shard.reports

    async def tick(self) -> None:
        """Make a step, so that the shard does what is due."""
        await self.call(Tick())

    async def answers(self, within_s: float) -> bool:
        """Whether a step is made in time. One question at a time: a store that stands still must not gather them."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(self.tick())
            self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        asked = self._asked
        await asyncio.wait({asked}, timeout=within_s)
        if asked.done():
            asked.result()
        return asked.done()

    async def unready(self, within_s: float) -> Unready:
        return Unready(waiting=[] if await self.answers(within_s) else [self.shard.number])

    async def close(self, moved: PenstockError | None = None) -> None:
        """Commit what is left, end every wait, close the store. Once more does nothing.

        Waits end with no messages; or, when the shard goes on elsewhere, with the error `moved`, subscriptions as well.
        """
        if self._closed:
            return
        if moved is not None:
            await self._until_idle()
        self._closed = True
        self._commit_patient_acks()
        await self._until_idle()
        if self._timer is not None:
            self._timer.cancel()
        for ticket in self.shard.dismiss(moved):
            ticket.settle()
        if self._writer is not None:
            self._writer.close()
        if self._committer is None:
            self.shard.close()
            return
        try:
            await self._loop.run_in_executor(self._committer, self.shard.close)
        finally:
            self._committer.shutdown()

    async def _until_idle(self) -> None:
        while self._busy or self._writing is not None:
            self._idle.clear()
            await self._idle.wait()

    def _withdraw(self, call: Call) -> None:
        """The receiver leaves. Messages that it may have been handed go back."""
        self.submit(CancelWait(ticket=call), lambda _: self._give_back(call))

    def _give_back(self, call: Call) -> None:
        if call.reply is not None and call.reply.runs and not self._closed:
            self.submit(give_back(call.reply), _ignore)

    # -- steps --

    def step_now(self) -> bool:
        """Let a message leave that need not wait for its commit, if it is all that has come. Whether a step has run.

        For front ends, when they have submitted all that they have. What comes together goes through one step in the
        next turn, as ever; this is for messages that come one by one. So it is done once in a turn.
        """
        if self._next_step is None or self._has_stepped_now or self._callers or not self._inbox:
            return False
        if self.shard.left_early_ms < 0:
            return False
        *others, call = self._inbox
        if others and (self._patient_timer is None or not all(map(_is_patient, others))):
            return False
        if self._writing is not None and self._writing.changes is None:  # nothing can run ahead of it yet
            return False
        if not self.shard.may_step_now(call):
            return False
        self._has_stepped_now = True
        self._loop.call_soon(self._allow_step_now)
        self._next_step.cancel()
        self._inbox = [call]
        try:
            self._step()
        finally:
            self._inbox = [*others, *self._inbox]  # they go on waiting, for as long as they would have
        return True

    def _allow_step_now(self) -> None:
        self._has_stepped_now = False

    def _step_soon(self) -> None:
        if not self._busy:
            self._busy = True
            self._next_step = self._loop.call_soon(self._step)

    def _step_late(self) -> None:
        """Nothing is urgent: a step when there is something else to do, or some milliseconds from now."""
        if not self._busy and self._patient_timer is None:
            self._patient_timer = self._loop.call_later(_PATIENT_ACK_S, self._commit_patient_acks)

    def _commit_patient_acks(self) -> None:
        self._patient_timer = None
        if self._inbox:
            self._is_urgent = True
            self._step_soon()

    def _step(self) -> None:
        """A step with all who are there; or, if that is more than one, and more than a turn ago, only another turn."""
        self._next_step = None
        if self._writing is not None:
            self._run_ahead()
            return
        if self._timer is not None and self._loop.time() - self._timer_s > STOOD_STILL_S:
            self._stood_still()
        count = len(self._inbox)
        if self._seen < count < _TOGETHER_MAX and count > 1 and not self._closed:
            self._seen = count
            self._next_step = self._loop.call_soon(self._step)
            return
        self._seen = 0
        callers, start_s = self._callers, 0.0
        if callers:
            start_s = perf_counter()
            commit_delay = self._commit_delay
            if start_s < commit_delay.until_s and commit_delay.is_early(callers, start_s) and not self._closed:
                sleep(_MOMENT_S)
                self._next_step = self._loop.call_soon(self._step)
                return
            self._callers = set()
        calls, self._inbox = self._inbox, []
        self._is_urgent = False
        were_left, self._were_left = self._were_left, False
        step = Step(self._first_of(in_order(calls), were_left) if count > 1 else calls)
        if self._committer is None:
            try:
                self.shard.run(step)
            except BaseException:
                self._end(step)
                raise
        else:
            try:
                self.shard.begin(step)
            except BaseException as interrupt:
                self.shard.interrupted(step, interrupt)
                self._end(step)
                raise
            if step.changes is not None:
                committed = self._loop.run_in_executor(self._committer, self.shard.commit, step)
                committed.add_done_callback(lambda _: self._end(step))
                return
        if step.is_apart:
            self._pass_on_early(step)
            self._write(step)
        else:
            self._end(step)
        if callers and self._committer is None:
            self._commit_delay.stepped(callers, start_s, perf_counter())

    # -- messages that leave before they are on the disk --

    def _pass_on_early(self, step: Step) -> None:
        early, step.early = step.early, []
        for ticket, delivery in early:
            ticket.take(delivery)
            self._settle((ticket,))

    def _write(self, step: Step) -> None:
        """Have a step written, once what has left is on its way: that is written to its sockets in the next turn."""
        self._writing = step
        self._busy = False
        self._loop.call_soon(self._start_writing, step)
        if self._inbox:
            self._step_soon()

    def _start_writing(self, step: Step) -> None:
        if self._writer is None:
            self._writer = Writer("penstock-write")
        try:
            self.shard.set_aside(step)
        except Exception as error:
            self._written(step, error)
        else:
            self._writer.submit(partial(self._write_in_thread, step))

    def _write_in_thread(self, step: Step) -> None:
        error = self.shard.write(step)
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits
            self._loop.call_soon_threadsafe(self._written, step, error)

    def _run_ahead(self) -> None:
        """A step is being written: of what has come, take through the broker what need not wait for that."""
        self._busy = False
        if not self._inbox or not self.shard.can_run_ahead:
            return
        calls = in_order(self._inbox)
        count = next((at for at, call in enumerate(calls) if call.command.__class__ not in _AHEAD), len(calls))
        if calls is self._inbox or not count:  # there are others among them, and these keep their order
            return
        self._inbox = calls[count:]
        self._callers = set()
        ahead = self._ahead = self._ahead or Step([])
        self.shard.run_ahead(ahead, calls[:count])
        self._pass_on_early(ahead)

    def _hold_steps(self) -> None:
        """No step runs until this one is ended, or the next one is being written: who comes meanwhile has to wait."""
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
        self._busy = True

    def _written(self, step: Step, error: Exception | None) -> None:
        """A step was written, or not: end it, and have written next what ran ahead of it, with all that waits."""
        self._hold_steps()
        ahead, self._ahead, self._writing = self._ahead, None, None
        if not self.shard.written(step, error, ahead) or ahead is None:
            self._end(step)
            return
        self._settle(step.answered)
        self._tell(step)
        calls, self._inbox, self._is_urgent, self._were_left = in_order(self._inbox), [], False, False
        try:
            self.shard.run_ahead(ahead, calls)
            is_to_be_written = self.shard.end_ahead(ahead)
        except BaseException as interrupt:
            self.shard.interrupted(ahead, interrupt)
            self._end(ahead)
            raise
        self._pass_on_early(ahead)
        if is_to_be_written:
            self._write(ahead)
        else:
            self._end(ahead)

    def _first_of(self, calls: list[Call], were_left: bool) -> list[Call]:
        """Those of the calls that the step is for: credit goes first and alone, the others are next.

        What credit brings is there already, and need not wait for the commit of an acknowledgement which came with it.
        Nor does that hold up what leaves before it is committed; but once only, or senders could starve it.
        """
        count = _leading(calls, AddCredit)
        if not count and not were_left:
            sends = _leading(calls, Send)
            if sends < len(calls) and any(map(self.shard.may_leave_early, calls[:sends])):
                count = sends
                self._were_left = True
        if 0 < count < len(calls):
            self._inbox = calls[count:]
            self._is_urgent = not all(map(_is_patient, self._inbox))
            return calls[:count]
        return calls

    @staticmethod
    def _settle(tickets: Iterable[Ticket]) -> None:
        """Pass on what a step has brought to those who wait for it."""
        for ticket in tickets:
            try:
                ticket.settle()
            except Exception:  # a bug of one who waits must not keep the shard from going on for the others
                log.exception(_NOT_PASSED_ON)

    def _tell(self, step: Step) -> None:
        """Tell the listeners what has come with a step."""
        if step.events:
            self.shard.tell(step.events)
        if step.outbox:
            self.shard.tell_outbox(step.outbox)

    def _end(self, step: Step) -> None:
        if step.is_open:
            self.shard.finish(step)
        for ticket in step.answered:  # as `_settle`, which costs a call
            try:
                ticket.settle()
            except Exception:
                log.exception(_NOT_PASSED_ON)
        if step.events or step.outbox:
            self._tell(step)
        self._busy = False
        if self._inbox and (self._is_urgent or self._closed):
            self._step_soon()
        else:
            self._idle.set()
            if self._inbox:
                self._step_late()
        self._arm()

    # -- the timer --

    def _arm(self) -> None:
        at_ms = self.shard.wake_at_ms()
        if at_ms is None or self._closed or (self._timer is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        left_ms = max(0, at_ms - self.shard.clock.now_ms())
        self._timer_ms = at_ms
        self._timer_s = self._loop.time() + left_ms / 1_000
        self._timer = self._loop.call_at(self._timer_s, self._on_timer)

    def _on_timer(self) -> None:
        if self._loop.time() - self._timer_s > STOOD_STILL_S:
            self._stood_still()
        self._timer = None
        self._step_soon()

    def _stood_still(self) -> None:
        """This process has not read the heartbeats that have come meanwhile."""
        self.shard.broker.stood_still(self.shard.clock.now_ms())
