"""Messages fetched before they are asked for: a push with credit fills a buffer, and receives empty it.

The server pushes as long as there is credit; what is taken from the buffer becomes credit again. A receive that finds
the buffer empty waits for the next push. One that may not wait (or no longer) is told that there is nothing, but only
when that is certain: while credit is on its way, the server may have something that it was not allowed to push, and its
answer to the credit comes together with it.

Everything that was pushed is kept leased by heartbeats, three in the time of a lease: what waits here, and what is
being worked on until it is settled; the server ends that after twelve hours. What waits here is given back when nobody
has received for a minute, and at the end; that is no failed delivery. When the connection is lost, the server has
released all of it: the buffer is forgotten, and the push starts again with the next connection. If that cannot push,
the receives that wait here are taken to the server, as those that come later are.

Queues that promise *at most* so many deliveries are not prefetched: a message that only waited here would have used up
one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec

from penstock.client.remote.request import Outstanding, Settle
from penstock.core.commands import (
    Ack,
    Command,
    CommitWork,
    DescribeQueue,
    Extend,
    GiveBack,
    QueueInfo,
    Receive,
    Release,
    Run,
    Settled,
    Span,
)
from penstock.core.delivery.runs import merged_spans
from penstock.core.errors import ChannelNotFound, NotSent, PenstockError, QueueNotFound
from penstock.wire.answers import KeyedDelivery
from penstock.wire.requests import AddPushCredit, StartPush, StopPush


class HeldSpans:
    """Spans of one channel. Parts can be taken out.

    >>> held = HeldSpans()
    >>> held.add([Span(10, 19, 1)])
    >>> held.remove([Span(12, 12, 1), Span(18, 30, 1)])
    >>> list(held)
    [Span(first=10, last=11, attempt=1), Span(first=13, last=17, attempt=1)]
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._spans: dict[int, Span] = {}

    def __iter__(self) -> Iterator[Span]:
        return (self._spans[first] for first in self._firsts)

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, spans: Iterable[Span]) -> None:
        """Messages came. A message that is here on an older attempt is on the new one."""
        for span in spans:
            self._remove(span.first, span.last)
            insort(self._firsts, span.first)
            self._spans[span.first] = span

    def remove(self, spans: Iterable[Span]) -> None:
        """Messages are held no longer. Nothing happens to those that were not, or are held on another attempt."""
        for span in spans:
            self._remove(span.first, span.last, span.attempt)

    def _remove(self, first: int, last: int, attempt: int | None = None) -> None:
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._firsts) and self._firsts[at] <= last:
            span = self._spans[self._firsts[at]]
            if span.last < first or attempt not in (None, span.attempt):
                at += 1
                continue
            kept = [Span(span.first, first - 1, span.attempt), Span(last + 1, span.last, span.attempt)]
            kept = [part for part in kept if part.first <= part.last]
            self._firsts[at : at + 1] = [part.first for part in kept]
            del self._spans[span.first]
            self._spans.update((part.first, part) for part in kept)
            at += len(kept)

    def clear(self) -> None:
        self._firsts.clear()
        self._spans.clear()


_IDLE_S = 60.0


class Carrier(Protocol):
    """What a prefetcher needs of the caller."""

    @property
    def can_push(self) -> bool:
        """Whether the server can push now, or may be able to when there is a connection again."""

    def carry(self, command: Command, settle: Settle) -> Outstanding:
        """Take a command to the server."""

    def send_later(self, outstanding: Outstanding) -> None:
        """Take a command to the server that somebody waits for already, as if it were new."""


class _Waiter:
    """A receive that waits for the buffer to fill."""

    __slots__ = ("is_due", "outstanding", "timer")

    def __init__(self, outstanding: Outstanding) -> None:
        self.outstanding = outstanding
        self.is_due = False
        """Its wait is over: it is answered as soon as it is certain that there is nothing."""
        self.timer: asyncio.TimerHandle | None = None


class Prefetcher:
    """The buffer of one channel of one queue."""

    def __init__(self, carrier: Carrier, queue: str, channel: str, credit: int) -> None:
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._queue = queue
        self._channel = channel
        self._credit = credit
        self._buffer: deque[tuple[KeyedDelivery, Run]] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._held = HeldSpans()
        self._owed = 0
        self._asking = 0
        """Commands on their way whose answer may bring messages with it."""
        self._state = "new"
        """`new`, `starting`, `running`, or `off`: the queue is not one to prefetch."""
        self._starts = 0
        """How often it was begun, or ended by the server."""
        self._push: Outstanding | None = None
        self._lease_s = 30.0
        self._wait_ms = 0
        self._beat: asyncio.TimerHandle | None = None
        self._received_s = self._loop.time()

    @property
    def is_off(self) -> bool:
        """Whether receives go to the server, one by one."""
        return self._state == "off"

    @property
    def push(self) -> int:
        """The number of the push; 0 if there is none."""
        return 0 if self._push is None else self._push.number

    # -- receiving --

    def receive(self, outstanding: Outstanding) -> None:
        """Answer a receive out of the buffer, now or later."""
        self._received_s = self._loop.time()
        if self._buffer and not self._waiters:
            self._serve(outstanding)
            return
        waiter = _Waiter(outstanding)
        self._waiters.append(waiter)
        if self._state == "new":
            self._start()
        elif self._state == "running":
            self._plan(waiter)
            self._settle_the_due()

    def withdraw(self, outstanding: Outstanding) -> None:
        """Whoever waited has left."""
        self._waiters = deque(waiter for waiter in self._waiters if waiter.outstanding is not outstanding)

    def sweep(self, now_s: float) -> None:
        """Whoever has waited too long for a connection is told so."""
        for waiter in [each for each in self._waiters if each.outstanding.deadline_s <= now_s]:
            self._waiters.remove(waiter)
            waiter.outstanding.settle(None, NotSent("the receive was not sent: there is no connection"))

    def _plan(self, waiter: _Waiter) -> None:
        command = waiter.outstanding.command
        assert isinstance(command, Receive)
        wait_ms = self._wait_ms if command.wait_ms is None else command.wait_ms
        if wait_ms == 0:
            waiter.is_due = True
        else:
            waiter.timer = self._loop.call_later(wait_ms / 1_000, self._over, waiter)

    def _over(self, waiter: _Waiter) -> None:
        waiter.is_due = True
        self._settle_the_due()

    def _settle_the_due(self) -> None:
        """Whose wait is over gets nothing, if it is certain that there is nothing."""
        if self._asking or self._state != "running" or self._buffer:
            return
        for waiter in [each for each in self._waiters if each.is_due]:
            self._waiters.remove(waiter)
            waiter.outstanding.settle(None, None)

    def _serve_waiters(self) -> None:
        while self._waiters and self._buffer:
            waiter = self._waiters.popleft()
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._serve(waiter.outstanding)

    def _serve(self, outstanding: Outstanding) -> None:
        command = outstanding.command
        assert isinstance(command, Receive)
        delivery = self._taken(command.limit)
        self._owed += delivery.count
        if self._owed * 2 >= self._credit or not self._buffer:
            self._pay()
        outstanding.settle(delivery, None)

    def _taken(self, limit: int) -> KeyedDelivery:
        source, run = self._buffer[0]
        runs: list[Run] = []
        while limit > 0 and self._buffer and self._buffer[0][0] is source:
            _, run = self._buffer.popleft()
            if run.count > limit:
                self._buffer.appendleft((source, run.part(limit, run.count)))
                run = run.part(0, limit)
            runs.append(run)
            limit -= run.count
        return msgspec.structs.replace(source, runs=runs)

    # -- the push --

    def _start(self) -> None:
        self._state = "starting"
        self._starts += 1
        self._carrier.carry(DescribeQueue(name=self._queue), partial(self._described, self._starts))

    def _described(self, starts: int, info: QueueInfo | None, error: BaseException | None) -> None:
        if starts != self._starts:  # the question went over two connections: another push would take messages along
            return
        if error is not None or info is None:
            self._fail(error)
            return
        if self._state != "starting":  # the connection was lost meanwhile, and nobody waits any more
            return
        if info.config.policy != "at_least_once":
            self._turn_off()
            return
        self._lease_s = max(1.0, info.config.lease_ms / 1_000)
        self._wait_ms = info.config.receive_wait_ms
        self._asking += 1
        self._owed = 0
        start = StartPush(queue=self._queue, channel=self._channel, credit=self._credit)
        self._push = self._carrier.carry(start, partial(self._answered, starts))

    def _answered(self, starts: int, reply: Any, error: BaseException | None) -> None:
        if starts == self._starts:  # else it has ended already: a queue of several partitions tells that before
            self._started(reply, error)

    def _started(self, _reply: Any, error: BaseException | None) -> None:
        self._asking -= 1
        if error is not None:
            self._push = None
            self._fail(error)
            return
        self._state = "running"
        self._beat_later()
        for waiter in self._waiters:
            self._plan(waiter)
        self._loop.call_soon(self._settle_the_due)  # a delivery may be in the same frame

    def _turn_off(self) -> None:
        self._state = "off"
        self._hand_on()

    def _hand_on(self) -> None:
        """Have every receive that waits taken to the server."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            self._carrier.send_later(waiter.outstanding)  # itself: whoever waits for it may still withdraw it

    def _fail(self, error: BaseException | None) -> None:
        self._state = "new"
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.outstanding.settle(None, error)

    def pushed(self, delivery: KeyedDelivery) -> None:
        self._leases_last(delivery.deadline_ms - delivery.received_ms)
        for run in delivery.runs:
            self._held.add(run.spans())
            self._buffer.append((delivery, run))
        self._serve_waiters()

    def ended(self, error: PenstockError) -> None:
        """The server ended the push: the queue is gone, or the store had to be opened again.

        Then what was pushed is leased as before: what waits here goes back, what is being worked on is kept.
        """
        self._starts += 1
        if isinstance(error, QueueNotFound | ChannelNotFound):
            self._forget()
        else:
            self._push, self._asking = None, 0
            self.give_back()
        self._fail(error)

    def lost(self) -> None:
        """The connection is gone, and all leases with it."""
        self._forget()
        self._state = "new"

    def resume(self) -> None:
        """There is a connection again; by a transport that cannot push, receives go to the server one by one."""
        if not self._carrier.can_push:
            self._state = "new"
            self._hand_on()
        elif self._waiters and self._state == "new":
            self._start()

    def gave_up(self, error: PenstockError) -> None:
        """There is no connection, and nobody tries to make one: whoever waits is told why."""
        self._fail(error)

    def close(self) -> None:
        """Nothing comes any more: whoever waits gets nothing."""
        self._forget()
        self._fail(None)

    def _forget(self) -> None:
        self._buffer.clear()
        self._held.clear()
        self._push = None
        self._asking = 0
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def _pay(self) -> None:
        if self._push is None:
            return
        credit, self._owed = self._owed, 0
        self._asking += 1
        push = self._push
        self._carrier.carry(AddPushCredit(push=push.number, credit=credit), partial(self._paid, push, credit))

    def _paid(self, push: Outstanding, credit: int, _reply: Any, error: BaseException | None) -> None:
        self._asking = max(0, self._asking - 1)
        if isinstance(error, NotSent) and push is self._push:  # the server does not have it
            self._owed += credit
            self._pay()
        self._loop.call_soon(self._settle_the_due)

    # -- heartbeats --

    def settled(self, command: Command) -> None:
        """A command that settles messages was carried out: those are held no longer."""
        if isinstance(command, Ack | Release | GiveBack) or (isinstance(command, Extend) and command.lease_ms == 0):
            self._held.remove(command.spans)

    def _leases_last(self, lease_ms: int) -> None:
        """Messages come with leases of this length: it may be another one than when the push began."""
        before_s, self._lease_s = self._lease_s, max(1.0, lease_ms / 1_000)
        if self._beat is not None and self._lease_s < before_s:
            self._beat_later()

    def _beat_later(self) -> None:
        if self._beat is not None:  # what is being worked on was kept while there was no push
            self._beat.cancel()
        self._beat = self._loop.call_later(self._lease_s / 3, self._heartbeat)

    def _heartbeat(self) -> None:
        if self._loop.time() - self._received_s > _IDLE_S and not self._waiters and self._buffer:
            self.give_back()
        spans = merged_spans(self._held)
        if spans:
            lease_ms = round(self._lease_s * 1_000)
            extend = Extend(queue=self._queue, channel=self._channel, spans=spans, lease_ms=lease_ms)
            self._carrier.carry(extend, partial(self._extended, spans))
        self._beat_later()

    def _extended(self, asked: list[Span], settled: Settled | None, error: BaseException | None) -> None:
        """What was refused is held no longer; unless it has come again meanwhile, on another attempt."""
        for refused in [] if settled is None else settled.refused:
            gone = [
                Span(max(span.first, refused.first), min(span.last, refused.last), span.attempt)
                for span in asked
                if span.first <= refused.last and refused.first <= span.last
            ]
            self._held.remove(gone)
            for span in gone:
                self._drop(span)

    def _drop(self, gone: Span) -> None:
        """Somebody else has these messages, or will: those of them that wait here are received by nobody."""
        before = sum(run.count for _, run in self._buffer)
        self._buffer = deque((delivery, part) for delivery, run in self._buffer for part in _without(run, gone))
        dropped = before - sum(run.count for _, run in self._buffer)
        if dropped:
            self._owed += dropped
            self._pay()

    # -- the end --

    def give_back(self) -> list[Outstanding]:
        """Stop the push, and give back what nobody has received. Returns the commands on their way."""
        spans = merged_spans(span for _, run in self._buffer for span in run.spans())
        self._buffer.clear()
        sent: list[Outstanding] = []
        if self._push is not None:
            sent.append(self._carrier.carry(StopPush(push=self._push.number), _ignore))
            self._push = None
            self._state = "new"
        if spans:
            self._held.remove(spans)
            back = GiveBack(queue=self._queue, channel=self._channel, spans=spans)
            sent.append(self._carrier.carry(back, _ignore))
        return sent


def acknowledging_parts(command: Command) -> list[Command]:
    """The commands in a command that settle messages."""
    return list(command.acks) if isinstance(command, CommitWork) else [command]


def _without(run: Run, gone: Span) -> list[Run]:
    """What is left of a run without these messages, if they are in it on that attempt."""
    parts, low = [], 0
    for span in run.spans():
        first, last = max(span.first, gone.first) - run.first, min(span.last, gone.last) - run.first
        if first <= last and span.attempt == gone.attempt:
            parts.append((low, first))
            low = last + 1
    return [run.part(*part) for part in [*parts, (low, run.count)] if part[0] < part[1]]


def _ignore(_reply: Any, _error: BaseException | None) -> None:
    """Nobody waits for this."""
