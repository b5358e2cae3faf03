"""Settling: who may say what of which message, and what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.queues.config import LEASE_MS_MAX
from tests.simulation.model.failing import Failing
from tests.simulation.model.state import Channel, Copy, Place, Queue
from tests.simulation.model.verdict import Outcome, demand


class Acknowledging(Failing):
    """Rules of acks, releases and extensions."""

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
        lately = self.queues[command.queue].channels[command.channel].lately
        again = {
            s for span in command.spans for s in bad if span.first <= s <= span.last and lately.get(s) == span.attempt
        }
        self._check_settled(outcome, len(good) + len(again), {e.StaleReceipt: bad - again})
        self._acked(command.queue, command.channel, good)
        self._remember(command, good)

    def _remember(self, command: c.Ack, acked: list[Copy]) -> None:
        """What is acked on a FIFO queue may be acked again."""
        queue = self.queues[command.queue]
        if queue.config.is_fifo:
            attempts = {s: span.attempt for span in command.spans for s in range(span.first, span.last + 1)}
            lately = queue.channels[command.channel].lately
            lately.update({copy.message.sequence: attempts[copy.message.sequence] for copy in acked})

    def _ackable(self, command: c.Ack) -> tuple[list[Copy], set[int]]:
        queue = self.queues[command.queue]

        def is_ackable(copy: Copy, attempt: int) -> bool:
            is_forgotten = queue.was_forgotten(copy, attempt)
            self.recalled += is_forgotten
            in_time = not command.in_time or copy.state is State.LEASED
            return (copy.is_ackable(attempt) and in_time) or is_forgotten

        return self._sort_spans(queue.channels[command.channel], command.spans, is_ackable)

    def _held_or_forgotten(
        self, queue: Queue, channel: Channel, spans: Iterable[c.Span]
    ) -> tuple[list[Copy], set[int]]:
        """What a receiver holds, or held before a crash, with nobody after it: that it holds again."""

        def is_held(copy: Copy, attempt: int) -> bool:
            is_anothers = copy.state is State.LEASED and copy.received_ms >= queue.opened_ms
            return copy.is_held(attempt) or (queue.was_forgotten(copy, attempt) and not is_anothers)

        good, bad = self._sort_spans(channel, spans, is_held)
        attempts = {s: span.attempt for span in spans for s in range(span.first, span.last + 1)}
        for copy in good:
            if not copy.is_held(attempts[copy.message.sequence]):
                copy.state, copy.session = State.LEASED, 0
                copy.attempts, copy.received_ms = attempts[copy.message.sequence], self.now_ms
                copy.first_received_ms = copy.first_received_ms or self.now_ms
                self.recalled += 1
        return good, bad

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
        told: Counter[int] = Counter()
        for sent_ms, count in outcome.sent:
            told[sent_ms] += count
        right = Counter(copy.message.sent_ms for copy in good)
        demand(told == right, f"acked what was sent at {told}, not at {right}")
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
        good, bad = self._held_or_forgotten(queue, channel, command.spans)
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad})
        for copy in good:
            self._fail(queue, channel, copy, command.delay_ms, command.error)

    def _accept_GiveBack(self, command: c.GiveBack, outcome: Outcome) -> None:
        """As if it had not been handed out; with an at-most policy that cannot be known, and it has failed."""
        if self._refused(outcome, self._missing(command.queue, command.channel)):
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        good, bad = self._sort_spans(channel, command.spans, Copy.is_held)
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad})
        for copy in good:
            if queue.config.leases_are_durable:
                self._fail(queue, channel, copy, 0, "the receiver went away")
            else:
                self._take_back(copy)

    def _take_back(self, copy: Copy) -> None:
        copy.state = State.READY
        copy.attempts -= 1
        copy.deadline_ms = copy.session = 0
        if not copy.attempts:
            copy.first_received_ms = 0
        if copy.place is not Place.RETRY:
            copy.place = Place.AGAIN

    def _accept_Extend(self, command: c.Extend, outcome: Outcome) -> None:
        must = self._missing(command.queue, command.channel)
        out_of_range = not 0 <= command.lease_ms <= LEASE_MS_MAX
        if self._refused(outcome, must, [e.InvalidRequest] if out_of_range else []):
            return
        queue = self.queues[command.queue]
        channel = queue.channels[command.channel]
        held, bad = self._held_or_forgotten(queue, channel, command.spans)
        held += self._late(queue, channel, command, bad)
        bad -= {copy.message.sequence for copy in held}
        if command.lease_ms == 0:
            self._check_settled(outcome, len(held), {e.StaleReceipt: bad})
            for copy in held:
                if copy.state is State.LEASED:
                    self._fail(queue, channel, copy, 0, "released")
            return
        for copy in held:
            if copy.state is State.READY:
                copy.state, copy.session, copy.received_ms = State.LEASED, 0, self.now_ms
        deadline_ms = self.now_ms + command.lease_ms
        good = [copy for copy in held if deadline_ms <= copy.received_ms + LEASE_MS_MAX]
        late = {copy.message.sequence for copy in held if deadline_ms > copy.received_ms + LEASE_MS_MAX}
        self._check_settled(outcome, len(good), {e.StaleReceipt: bad, e.LeaseTooLong: late})
        for copy in good:
            copy.deadline_ms = deadline_ms

    def _late(self, queue: Queue, channel: Channel, command: c.Extend, sequences: set[int]) -> list[Copy]:
        """Messages of deliveries that are over: ready again, or with whoever got them since."""
        if not command.late or queue.config.is_fifo or queue.config.leases_are_durable:
            return []
        found = []
        for span in command.spans:
            for sequence in sequences & set(range(span.first, span.last + 1)):
                copy = channel.copies.get(sequence)
                if copy is not None and copy.state in (State.READY, State.LEASED) and copy.attempts >= span.attempt:
                    found.append(copy)
        return found
