"""Settling: what receivers say about the messages they hold, checked against what the channel knows.

A receiver names messages as spans: a run of sequence numbers on one attempt. Each message is settled for itself:
those to which the event may happen are, the others are refused. A message is looked for in every window, because it
may have moved to another lane since it was received; its sequence number has not changed.

A crash forgets the deliveries of its last moments: leases wait for no commit. Then a receiver names an attempt that is
higher than the one the message is on, or the message is not even in a window. It counts all the same: the lease is made
again, on the attempt that the receiver names, and what the receiver says happens to it (`_settle_forgotten`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from penstock.core.commands import MessageEvent, Refused, Settled, Span, What
from penstock.core.delivery.columns import HELD_FROM, LEASED, READY, runs_of
from penstock.core.delivery.runs import cut, gaps
from penstock.core.delivery.states import TRANSITIONS, Event, allowed
from penstock.core.delivery.window import Entry, Window
from penstock.core.errors import LeaseTooLong, StaleReceipt
from penstock.core.queues.config import LEASE_MS_MAX

if TYPE_CHECKING:
    from penstock.core.delivery.channel import Channel

_ACKED_COUNT: Final = struct.Struct("<H")
_ACKED: Final = struct.Struct("<QI")
_ACKED_KNOWN: Final = 8_192
ACKED_KEPT: Final = 64
"""How many acked messages of a FIFO channel its record remembers."""
_HOLDERS = 1 << 32
_ATTEMPTS_MAX = 1 << 24
"""No receipt on a higher attempt is taken for one of a forgotten delivery: who makes one up does not reach the end of
what a row can count."""
Part = tuple[int, int]
"""Sequence numbers from the first up to, not including, the second."""
Judge = Callable[[Window, slice], NDArray[np.bool_]]
JudgeWhole = Callable[[Entry], bool]
Apply = Callable[[Window, Entry, int, int], None]


def _allowing(event: Event, attempt: int) -> Judge:
    """Approves of messages to which an event may happen, on that attempt."""
    return lambda window, rows: window.columns.rows_allowing(event, rows, attempt)


def _allowing_unless_held(event: Event, attempt: int, but_for: int = 0, received_ms: int = 0) -> Judge:
    """As `_allowing`, but of nothing that a unit of work in another shard holds, unless it is that one.

    With `received_ms`, of nothing that was handed out later, either.
    """

    def judge(window: Window, rows: slice) -> NDArray[np.bool_]:
        holders = window.columns.holder[rows]
        mask = window.columns.rows_allowing(event, rows, attempt)
        mask &= (holders < HELD_FROM) | (holders == but_for)
        if received_ms:
            mask &= window.columns.received_ms[rows] <= received_ms
        return mask

    return judge


def holder_of_unit(unit: int) -> int:
    """What stands for a unit of work where the number of a session would be."""
    return HELD_FROM | unit % (_HOLDERS - HELD_FROM)


def _forgotten(event: Event, attempt: int, opened_ms: int) -> Judge:
    """Approves of messages whose delivery on that attempt a crash has forgotten, unless somebody has them since.

    An ack says that the work is done, whoever has the message now; only what a unit of work will ack is left to it. Who
    wants to keep the message, or to return it, must be the last who got it: a lease from before the store was opened is
    an earlier one, because its attempt is lower.
    """

    def judge(window: Window, rows: slice) -> NDArray[np.bool_]:
        columns = window.columns
        states = columns.state[rows]
        mask: NDArray[np.bool_] = allowed[Event.RECALL][states]
        mask &= columns.attempts[rows] < attempt
        mask &= (states != LEASED) | (columns.holder[rows] < HELD_FROM)
        if event != Event.ACK:
            mask &= (states != LEASED) | (columns.received_ms[rows] < opened_ms)
        return mask

    return judge


def _late(attempt: int) -> Judge:
    """Approves of messages whose delivery on that attempt is over: ready again, or with whoever got them since."""

    def judge(window: Window, rows: slice) -> NDArray[np.bool_]:
        columns = window.columns
        states = columns.state[rows]
        mask: NDArray[np.bool_] = (states == READY) | ((states == LEASED) & (columns.holder[rows] < HELD_FROM))
        mask &= columns.attempts[rows] >= attempt
        return mask

    return judge


_ACKABLE = frozenset(int(state) for state, row in TRANSITIONS.items() if Event.ACK in row)


def _wholly_ackable(attempt: int) -> JudgeWhole:
    """As `_allowing` an ack, for a whole entry: messages that were sent one by one are acked many at a time."""
    return lambda entry: entry.attempts == attempt and entry.state in _ACKABLE


def _do_nothing(window: Window, entry: Entry, first: int, stop: int) -> None:
    """For who only wants to know."""


class AckedLately:
    """Which messages of a FIFO channel were acked last, and on which attempt: who asks for that again has it done.

    A client whose answer got lost asks again. On a standard queue SQS tells it nothing else than the first time; on a
    FIFO queue an old receipt is an error, and only this tells it from one that was used. The last `ACKED_KEPT` outlive
    the process.

    >>> lately = AckedLately()
    >>> lately.add(7, 9, attempt=1)
    >>> lately.among(6, 10, attempt=1), lately.among(7, 8, attempt=2)
    ([(7, 9)], [])
    >>> again = AckedLately()
    >>> again.restore(lately.encode())
    >>> again.snapshot()
    [(7, 1), (8, 1)]
    """

    __slots__ = ("_attempts",)

    def __init__(self) -> None:
        self._attempts: dict[int, int] = {}
        """Sequence number -> attempt, the last acked at the end."""

    def add(self, first: int, stop: int, attempt: int) -> None:
        known = self._attempts
        for sequence in range(max(first, stop - _ACKED_KNOWN), stop):
            known[sequence] = attempt
        while len(known) > _ACKED_KNOWN:
            del known[next(iter(known))]

    def among(self, first: int, stop: int, attempt: int) -> list[Part]:
        """What of a run was acked on that attempt."""
        if stop - first > _ACKED_KNOWN:
            return []
        mask = np.array([self._attempts.get(sequence) == attempt for sequence in range(first, stop)])
        return [(low, high) for is_known, low, high in cut(mask, first) if is_known]

    def snapshot(self) -> list[tuple[int, int]]:
        """What outlives the process."""
        return list(islice(reversed(self._attempts.items()), ACKED_KEPT))[::-1]

    def encode(self) -> bytes:
        """What outlives the process, as it is stored: how many, and each. Nothing, if there is nothing."""
        kept = self.snapshot()
        return b"".join([_ACKED_COUNT.pack(len(kept)), *(_ACKED.pack(*each) for each in kept)]) if kept else b""

    def restore(self, data: bytes) -> None:
        """Take it back from its stored form, and leave what follows that."""
        if data:
            (count,) = _ACKED_COUNT.unpack_from(data)
            start = _ACKED_COUNT.size
            self._attempts = dict(_ACKED.iter_unpack(data[start : start + count * _ACKED.size]))


class Acknowledgement:
    """Settles messages of one channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.queue = channel.queue
        self.write_buffer = channel.write_buffer
        self.windows = channel.windows
        self.lately = AckedLately()

    def ack(self, span: Span, *, in_time: bool = False) -> tuple[int, list[Refused]]:
        """The work on some messages is done. On a FIFO queue that may be said more than once.

        With `in_time`, nothing is acked whose lease has run out.
        """
        done, refused = self._ack(span, in_time)
        if not self.queue.is_fifo:
            return done, refused
        stale = sorted((each.first, each.last + 1) for each in refused)
        for low, high in gaps(span.first, span.last + 1, [(None, *part) for part in stale]):
            self.lately.add(low, high, span.attempt)
        again = [run for part in stale for run in self.lately.among(*part, span.attempt)]
        if not again:
            return done, refused
        still = (
            gap
            for low, high in stale
            for gap in gaps(low, high, [(None, *run) for run in again if low <= run[0] < high])
        )
        return done + sum(high - low for low, high in again), [self._stale(low, high) for low, high in still]

    def _ack(self, span: Span, in_time: bool) -> tuple[int, list[Refused]]:
        first, last, attempt = span
        for window in self.windows.values():
            entries = window.wholly_leased(first, last + 1, attempt)
            if not entries:
                continue
            # Neighbours, each leased as a whole: messages that were sent one by one are acked many at a time.
            channel, is_heard = self.channel, self.queue.broker.message_events is not None
            fifo = channel.fifo if self.queue.is_fifo else None
            for entry in entries:
                channel.acked += entry.count
                if channel.subscribers:
                    channel.freed(entry.holder, entry.count)
                if is_heard:
                    self._note("acked", window, entry, entry.base, entry.stop)
                if fifo is not None:
                    for sequence in range(entry.base, entry.stop):
                        fifo.settle(sequence)
            channel.finish_leased(window, entries)
            return last + 1 - first, []
        if first == last:
            if self._ack_one(first, attempt):
                return 1, []
        elif self._ack_together(first, last + 1, attempt):
            return last + 1 - first, []
        return self._ack_each(span, in_time)

    def _ack_each(self, span: Span, in_time: bool) -> tuple[int, list[Refused]]:
        """Ack those messages of a span that can be; the others are refused."""
        first, last, attempt = span
        if attempt <= 0:
            return 0, [self._stale(first, last + 1)]
        if in_time:
            done, left = self._walk(first, last + 1, _allowing(Event.EXTEND, attempt), self._ack_run)
        else:
            judge_whole = _wholly_ackable(attempt)
            done, left = self._walk(first, last + 1, _allowing(Event.ACK, attempt), self._ack_run, judge_whole)
        if left and not in_time:
            acked, left = self._ack_far(left, attempt, dry=False)
            done += acked
            self.channel.acked += acked
            self.channel.touch()
        if left:
            found, left = self._settle_forgotten(left, Event.ACK, attempt, self._ack_run)
            done += found
        return done, [self._stale(low, high) for low, high in left]

    def _ack_one(self, sequence: int, attempt: int) -> bool:
        """One message of a spread entry, leased on that attempt: the common case of one by one."""
        for window in self.windows.values():
            entry = window.find(sequence)
            if entry is None or entry.is_whole:
                continue
            row = entry.start + sequence - entry.base
            if window.columns.state_at(row) == LEASED and window.columns.attempts_at(row) == attempt:
                self.channel.freed_rows(window, entry, sequence, sequence + 1)
                window.leased -= 1
                self.channel.acked += 1
                if self.queue.broker.message_events is not None:
                    self._note("acked", window, entry, sequence, sequence + 1)
                if self.channel.fifo is not None:
                    self.channel.fifo.settle(sequence)
                self.channel.finish(window, entry, sequence, sequence + 1)
                return True
        return False

    def _ack_together(self, first: int, stop: int, attempt: int) -> bool:
        """Several messages of one spread entry, all of them leased on that attempt: the common case of batches."""
        if attempt <= 0:
            return False
        for window in self.windows.values():
            entry = window.find(first)
            if entry is None or entry.is_whole or stop > entry.stop:
                continue
            rows = entry.rows_of(first, stop)
            if window.columns.all_leased(rows, attempt):
                self.channel.freed_rows(window, entry, first, stop)
                window.leased -= stop - first
                self._done(window, entry, first, stop)
                return True
        return False

    def _ack_run(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        self.channel.freed_rows(window, entry, first, stop)
        window.uncount(entry, first, stop)
        self._done(window, entry, first, stop)

    def _done(self, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Messages that count as nothing any more are acknowledged."""
        self.channel.acked += stop - first
        if self.queue.broker.message_events is not None:
            self._note("acked", window, entry, first, stop)
        fifo = self.channel.dispatch.fifo
        if fifo is not None:
            for sequence in range(first, stop):
                fifo.settle(sequence)
        self.channel.finish(window, entry, first, stop)

    def _note(self, what: What, window: Window, entry: Entry, first: int, stop: int) -> None:
        """Tell who wants to know. The attempt is that of the first message."""
        broker, row = self.queue.broker, entry.rows_of(first, stop).start
        if broker.message_events is None:
            return
        attempt, holder = (
            (entry.attempts, entry.holder)
            if entry.is_whole
            else (int(window.columns.attempts[row]), int(window.columns.holder[row]))
        )
        session = broker.session_name(holder)
        queue, channel, now_ms = self.queue.name, self.channel.name, broker.now_ms
        broker.message_events.append(
            MessageEvent(what, queue, channel, first, stop - first, now_ms, entry.sent_ms, attempt, session=session)
        )

    def ack_sequences(self, sequences: NDArray[np.int64], session: int) -> Settled:
        """As `ack`, for messages that a session holds; says also when they were sent."""
        sent: list[tuple[int, int]] = []

        def ack(window: Window, entry: Entry, first: int, stop: int) -> None:
            sent.append((entry.sent_ms, stop - first))
            window.leased -= stop - first
            self._done(window, entry, first, stop)

        settled = self._settle_held(sequences, session, ack)
        settled.sent = sent
        self.channel.freed(session, settled.count)
        return settled

    def release_sequences(
        self, sequences: NDArray[np.int64], session: int, now_ms: int, delay_ms: int | None, error: str
    ) -> Settled:
        """As `release`, for messages that a session holds."""
        return self._settle_held(sequences, session, self._failing(now_ms, delay_ms, error))

    def extend_sequences(
        self, sequences: NDArray[np.int64], session: int, now_ms: int, lease_ms: int, held_ms_max: int
    ) -> Settled:
        """As `extend`, for messages that a session holds; not longer than `held_ms_max` from the receive."""

        def prolong(window: Window, entry: Entry, first: int, stop: int) -> None:
            rows = window.rows(entry, first, stop)
            deadlines_ms = np.minimum(window.columns.received_ms[rows] + held_ms_max, now_ms + lease_ms)
            window.columns.extend(rows, deadlines_ms)
            self.write_buffer.touch(window, entry)
            self.channel.watch(window, int(deadlines_ms.min()))

        return self._settle_held(sequences, session, prolong)

    def _settle_held(self, sequences: NDArray[np.int64], session: int, apply: Apply) -> Settled:
        """Apply something to those of some messages that a session holds; the others are refused."""

        def held(window: Window, rows: slice) -> NDArray[np.bool_]:
            columns = window.columns
            mask: NDArray[np.bool_] = (columns.state[rows] == LEASED) & (columns.holder[rows] == session)
            return mask

        def whole_is_held(entry: Entry) -> bool:
            return entry.state == LEASED and entry.holder == session

        settled = Settled(0)
        nowhere: list[Part] = []
        if len(sequences) > 1 and not (np.diff(sequences) > 0).all():
            sequences = np.unique(sequences)
        for first, stop in runs_of(sequences.astype(np.intp, copy=False)):
            done, left = self._walk(first, stop, held, apply, whole_is_held)
            settled.count += done
            nowhere += left
        if nowhere:
            error = StaleReceipt(
                f"the session does not hold it any more, in queue {self.queue.name!r}, channel {self.channel.name!r}: "
                "it was settled before, or its lease ran out and another consumer may have it"
            )
            settled.refused = [Refused(low, high - 1, error) for low, high in nowhere]
        return settled

    def can_ack(self, span: Span) -> bool:
        """Whether `ack` would settle all of a span."""
        if span.attempt <= 0:
            return False
        judge, judge_whole = _allowing(Event.ACK, span.attempt), _wholly_ackable(span.attempt)
        _, left = self._walk(span.first, span.last + 1, judge, _do_nothing, judge_whole)
        if left:
            _, left = self._ack_far(left, span.attempt, dry=True)
        if left:
            _, left = self._walk_forgotten(left, Event.ACK, span.attempt, _do_nothing)
        return not left

    def is_held(self, span: Span) -> bool:
        """Whether a unit of work in another shard will ack something of a span."""

        def held(window: Window, rows: slice) -> NDArray[np.bool_]:
            mask: NDArray[np.bool_] = (window.columns.state[rows] == LEASED) & (
                window.columns.holder[rows] >= HELD_FROM
            )
            return mask

        return self._walk(span.first, span.last + 1, held, _do_nothing, lambda _whole: False)[0] > 0

    def can_hold(self, span: Span, holder: int) -> bool:
        """Whether all of a span is leased on its attempt, or was before a crash; and no other unit of work holds it.

        The attempt alone does not tell: a lease that was not written when the store crashed and the next one have the
        same.
        """
        if span.attempt <= 0:
            return False
        judge = _allowing_unless_held(Event.EXTEND, span.attempt, holder)
        _, left = self._walk(span.first, span.last + 1, judge, _do_nothing)
        if left:
            _, left = self._walk_forgotten(left, Event.EXTEND, span.attempt, _do_nothing)
        return not left

    def hold(self, span: Span, until_ms: int, holder: int) -> None:
        """A span that can be held stays leased until then, or for longer, and nobody can release it."""

        def prolong(window: Window, entry: Entry, first: int, stop: int) -> None:
            rows = window.rows(entry, first, stop)
            self.channel.freed_rows(window, entry, first, stop)
            window.columns.holder[rows] = holder
            window.columns.extend(rows, np.maximum(window.columns.deadline_ms[rows], until_ms))
            self.write_buffer.touch(window, entry)
            self.channel.watch(window, until_ms)

        _, left = self._walk(span.first, span.last + 1, _allowing(Event.EXTEND, span.attempt), prolong)
        if left:
            self._settle_forgotten(left, Event.EXTEND, span.attempt, prolong)

    def let_go(self, span: Span, holder: int) -> int:
        """What a unit of work held of a span is leased as anything is. Returns how many messages that were."""

        def free(window: Window, entry: Entry, first: int, stop: int) -> None:
            window.columns.holder[window.rows(entry, first, stop)] = 0
            self.write_buffer.touch(window, entry)

        def held(window: Window, rows: slice) -> NDArray[np.bool_]:
            mask = window.columns.rows_allowing(Event.EXTEND, rows, span.attempt)
            mask &= window.columns.holder[rows] == holder
            return mask

        return self._walk(span.first, span.last + 1, held, free)[0]

    def release(
        self, span: Span, now_ms: int, delay_ms: int | None, error: str, *, late: bool = False
    ) -> tuple[int, list[Refused]]:
        """A delivery failed, says the receiver. What is held for work is not its own any more.

        With `late`, also a delivery that is over: what is ready stays so, and whoever has the message loses it.
        """
        apply = self._failing(now_ms, delay_ms, error)
        done, left = self._return(span, Event.RETRY, apply)
        if left and late:
            found, left = self._settle_late(left, span.attempt, lambda *_where: None, apply)
            done += found
        if left:
            found, left = self._settle_forgotten(left, Event.RETRY, span.attempt, apply)
            done += found
        return done, [self._stale(low, high) for low, high in left]

    def _failing(self, now_ms: int, delay_ms: int | None, error: str) -> Apply:
        def fail(window: Window, entry: Entry, first: int, stop: int) -> None:
            rows = np.arange(stop - first, dtype=np.intp) + window.rows(entry, first, stop).start
            self.channel.redelivery.fail(window, rows, now_ms, delay_ms, error)

        return fail

    def give_back(self, span: Span, received_ms: int = 0) -> tuple[int, list[Refused]]:
        """The receiver went away before it got the messages: as if they had not been handed out, then or before."""

        def undo(window: Window, entry: Entry, first: int, stop: int) -> None:
            self.channel.freed_rows(window, entry, first, stop)
            self._note("returned", window, entry, first, stop)
            window.columns.give_back(window.rows(entry, first, stop))
            window.leased -= stop - first
            window.ready += stop - first
            self.write_buffer.touch(window, entry)
            self.channel.dispatch.offer_again(window, first, stop, span.attempt - 1)

        done, left = self._return(span, Event.GIVE_BACK, undo, received_ms)
        return done, [self._stale(low, high) for low, high in left]

    def _return(self, span: Span, event: Event, apply: Apply, received_ms: int = 0) -> tuple[int, list[Part]]:
        """Messages are ready again. What is held for work is not the receiver's any more, and stays."""
        if span.attempt <= 0:
            return 0, [(span.first, span.last + 1)]
        judge = _allowing_unless_held(event, span.attempt, received_ms=received_ms)
        return self._walk(span.first, span.last + 1, judge, apply)

    def extend(self, span: Span, now_ms: int, lease_ms: int, *, late: bool = False) -> tuple[int, list[Refused]]:
        """A heartbeat. With `late`, also for a delivery that is over: the message is leased again, on the attempt that
        it is on, or stays with whoever has it for that long.
        """
        deadline_ms = now_ms + lease_ms
        too_long: list[Refused] = []

        def prolong(window: Window, entry: Entry, first: int, stop: int) -> None:
            rows = window.rows(entry, first, stop)
            in_time = window.columns.received_ms[rows] + LEASE_MS_MAX >= deadline_ms
            for good, low, high in cut(in_time, first):
                if not good:
                    too_long.append(self._too_long(low, high, lease_ms))
                    continue
                self._prolong(window, window.rows(entry, low, high), deadline_ms)
                self.write_buffer.touch(window, entry)
                self.channel.watch(window, deadline_ms)

        done, left = self._extend(span, prolong, late=late)
        stale = [self._stale(low, high) for low, high in left]
        return done - sum(each.last - each.first + 1 for each in too_long), too_long + stale

    def _extend(self, span: Span, prolong: Apply, *, late: bool) -> tuple[int, list[Part]]:
        """Prolong those messages of a span that can be; how many that were, and what is left."""
        first, last, attempt = span
        if attempt <= 0:
            return 0, [(first, last + 1)]
        done, left = self._walk(first, last + 1, _allowing(Event.EXTEND, attempt), prolong)

        def lease_and_prolong(window: Window, entry: Entry, first: int, stop: int) -> None:
            attempts = window.columns.attempts[window.rows(entry, first, stop)].tolist()
            for sequence, own in enumerate(attempts, first):
                self._lease_again(window, entry, sequence, sequence + 1, own, self._own())
                window.withdraw(sequence, sequence + 1)
            prolong(window, entry, first, stop)

        if left and late:
            found, left = self._settle_late(left, attempt, lease_and_prolong, prolong)
            done += found
        if left:
            found, left = self._settle_forgotten(left, Event.EXTEND, attempt, prolong)
            done += found
        return done, left

    def _settle_late(
        self, wanted: list[Part], attempt: int, apply_ready: Apply, apply_leased: Apply
    ) -> tuple[int, list[Part]]:
        """Apply something to messages whose delivery on that attempt is over, according to what they are now."""
        if self.queue.leases_are_durable:
            return 0, wanted

        def apply(window: Window, entry: Entry, first: int, stop: int) -> None:
            states = window.columns.state[window.rows(entry, first, stop)]
            for is_ready, low, high in cut(states == READY, first):
                (apply_ready if is_ready else apply_leased)(window, entry, low, high)

        done, left = 0, []
        for low, high in wanted:
            found, still_left = self._walk(low, high, _late(attempt), apply)
            done += found
            left += still_left
        return done, left

    @staticmethod
    def _prolong(window: Window, rows: slice, deadline_ms: int) -> None:
        """Leases end at another time; what is held for work not earlier than before."""
        columns = window.columns
        held = columns.holder[rows] >= HELD_FROM
        if held.any():
            columns.extend(rows, np.where(held, np.maximum(columns.deadline_ms[rows], deadline_ms), deadline_ms))
        else:
            columns.extend(rows, deadline_ms)

    def _too_long(self, first: int, stop: int, lease_ms: int) -> Refused:
        error = LeaseTooLong(
            f"a lease of {lease_ms // 1000} s more for messages {first} to {stop - 1} of queue {self.queue.name!r} "
            "would end later than 12 hours after their receive: finish them, or release them"
        )
        return Refused(first, stop - 1, error)

    # -- deliveries that a crash has forgotten --

    def _settle_forgotten(self, wanted: list[Part], event: Event, attempt: int, apply: Apply) -> tuple[int, list[Part]]:
        """Apply something to those messages whose delivery was forgotten, as if it had not been."""

        def lease_and_apply(window: Window, entry: Entry, first: int, stop: int) -> None:
            if event == Event.ACK:
                self._lease_again(window, entry, first, stop, attempt, 0)
            else:  # it stays leased, or may be ready again
                self._lease_again(window, entry, first, stop, attempt, self._own())
                window.withdraw(first, stop)
            apply(window, entry, first, stop)

        return self._walk_forgotten(wanted, event, attempt, lease_and_apply)

    def _walk_forgotten(self, wanted: list[Part], event: Event, attempt: int, apply: Apply) -> tuple[int, list[Part]]:
        """As `_walk`, over messages whose delivery on that attempt was forgotten. What lies ahead is brought in."""
        queue, done = self.queue, 0
        left: list[Part] = []
        if queue.leases_are_durable or not 0 < attempt <= _ATTEMPTS_MAX:
            return 0, wanted
        judge, now_ms = _forgotten(event, attempt, queue.opened_ms), queue.broker.now_ms
        for low, high in wanted:
            end = min(high, queue.opened_to)  # what came later was handed out by this process, which forgets nothing
            if low >= end:
                left.append((low, high))
                continue
            if end < high:
                left.append((end, high))
            found, missing = self._walk(low, end, judge, apply)
            done += found
            for first, stop in missing:
                recalled = self.channel.dispatch.recall(first, stop, now_ms)
                if queue.far and queue.recall_far(self.channel, first, stop, attempt, now_ms):
                    recalled = True
                found, still_missing = self._walk(first, stop, judge, apply) if recalled else (0, [(first, stop)])
                done += found
                left += still_missing
        return done, left

    def _own(self) -> int:
        """Who holds what was recalled: nobody; or this process, where it serves itself alone."""
        broker = self.queue.broker
        own = broker.session_register.own()
        broker.leased(self.channel, own)
        return own

    def _lease_again(self, window: Window, entry: Entry, first: int, stop: int, attempt: int, holder: int) -> None:
        """RECALL: leased on an attempt of which nothing is known any more, from now on."""
        rows, columns, now_ms = window.rows(entry, first, stop), window.columns, self.queue.broker.now_ms
        self.channel.freed_rows(window, entry, first, stop)
        for is_leased, low, high in cut(columns.state[rows] == LEASED, first):
            if not is_leased:
                self.channel.dispatch.withdraw(window, entry, low, high)
        window.uncount(entry, first, stop)
        window.leased += stop - first
        columns.recall(rows, now_ms, attempt, holder)
        self.write_buffer.touch(window, entry)

    def _walk(
        self, first: int, stop: int, judge: Judge, apply: Apply, judge_whole: JudgeWhole | None = None
    ) -> tuple[int, list[Part]]:
        """Apply something to those messages of a run of which `judge` approves, in whatever window they are now.

        With `judge_whole`, a whole entry is judged as such, and not spread for it.

        Returns how many that were, and the parts of the run that were found nowhere or not approved of.
        """
        done, left = 0, [(first, stop)]
        for window in list(self.windows.values()):
            pending, left = left, []
            for low, high in pending:
                found = window.overlaps(low, high)
                left += gaps(low, high, found)
                for entry, start, end in found:
                    if judge_whole is not None and entry.is_whole:
                        if judge_whole(entry):
                            apply(window, entry, start, end)
                            done += end - start
                        else:
                            left.append((start, end))
                        continue
                    good = judge(window, window.rows(entry, start, end))
                    for ok, run_first, run_stop in cut(good, start):
                        if ok:
                            apply(window, entry, run_first, run_stop)
                            done += run_stop - run_first
                        else:
                            left.append((run_first, run_stop))
        return done, left

    def _ack_far(self, wanted: list[tuple[int, int]], attempt: int, *, dry: bool) -> tuple[int, list[tuple[int, int]]]:
        """A late ack may be for messages that wait far ahead: how many it reached, and what is left."""
        done, left = 0, []
        for low, high in wanted:
            reached = sorted(self.queue.ack_far(self.channel, low, high, attempt, dry=dry))
            done += sum(stop - first for first, stop in reached)
            left += gaps(low, high, [(None, *run) for run in reached])
        return done, left

    def _stale(self, first: int, stop: int) -> Refused:
        what = f"message {first} is" if stop - first == 1 else f"messages {first} to {stop - 1} are"
        error = StaleReceipt(
            f"{what} not leased on that attempt any more, in queue {self.queue.name!r}, channel {self.channel.name!r}: "
            "settled before, or the lease ran out and another consumer may have the message"
        )
        return Refused(first, stop - 1, error)
