"""Receiving: the right messages, all of them, in order, as they were sent."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

import msgspec

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.queues.config import LEASE_MS_MAX
from tests.simulation.model.ground import Ground
from tests.simulation.model.state import Channel, Copy, Message, Place, Queue, Remembered, Waiter, same_history
from tests.simulation.model.verdict import Outcome, Violation, demand


def held_by(delivery: c.Delivery) -> list[tuple[int, int]]:
    """Sequence number and attempt of everything in a delivery."""
    spans = [span for run in delivery.runs for span in run.spans()]
    return [(sequence, span.attempt) for span in spans for sequence in range(span.first, span.last + 1)]


class Receiving(Ground):
    """Rules of what a receive gets."""

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
            return len(self._fifo_choice(channel, room)[0])
        return min(room, channel.count(State.READY))

    def _fifo_choice(self, channel: Channel, room: int) -> tuple[list[Copy], bool]:
        """What is handed out, and whether it is the turn of groups that did not fail after that.

        Groups whose head was delivered before get half of the places, while there are others.
        """
        groups: dict[str | None, list[Copy]] = {}
        for copy in channel.ordered():
            groups.setdefault(copy.message.group, []).append(copy)
        free = [group for group in groups.values() if group[0].state is State.READY]
        free.sort(key=lambda group: (group[0].attempts, group[0].message.sequence))
        runs = [(group[0].attempts, list(takewhile(lambda copy: copy.state is State.READY, group))) for group in free]
        again = [copy for attempts, run in runs if attempts for copy in run]
        fresh = [copy for attempts, run in runs if not attempts for copy in run]
        owed = int(channel.owes_fresh)
        share = (room - owed + 1) // 2 if fresh else room
        chosen = again[: max(0, share)]
        others = fresh[: max(0, room - len(chosen))]
        rest = again[len(chosen) :][: max(0, room - len(chosen) - len(others))]
        return chosen + others + rest, max(0, owed + len(chosen) - len(others)) + len(rest) > 0

    # -- the same attempt again --

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

    # -- what was handed out --

    def _delivered(
        self,
        queue: Queue,
        channel: Channel,
        delivery: c.Delivery,
        limit: int,
        lease_ms: int | None,
        session: int,
        *,
        one_by_one: bool = False,
    ) -> None:
        """Messages were handed out: were these the right ones, all of them, as they were sent?

        Where bytes are counted, they are as if they had been handed out one by one.
        """
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
            self._check_standard(where, channel, copies, one_by_one)
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

    def _lease(self, copy: Copy, lease_ms: int, session: int) -> None:
        copy.state = State.LEASED
        copy.attempts += 1
        copy.deadline_ms = self.now_ms + lease_ms
        copy.received_ms = self.now_ms
        copy.session = session
        if copy.attempts == 1:
            copy.first_received_ms = self.now_ms

    def _check_fifo(self, where: str, channel: Channel, copies: list[Copy]) -> None:
        choice, owes_fresh = self._fifo_choice(channel, len(copies))
        right = [copy.message.sequence for copy in choice]
        if copies:
            channel.owes_fresh = owes_fresh
        got = [copy.message.sequence for copy in copies]
        demand(sorted(got) == sorted(right), f"{where}: FIFO handed out {got}, not {right}")
        for group in {copy.message.group for copy in copies}:
            in_group = [copy.message.sequence for copy in copies if copy.message.group == group]
            demand(in_group == sorted(in_group), f"{where}: group {group} in the order {in_group}")

    def _check_standard(self, where: str, channel: Channel, copies: list[Copy], one_by_one: bool) -> None:
        taken = {copy.message.sequence for copy in copies}
        ready = [copy for copy in channel.ordered() if copy.state is State.READY]
        again = [copy for copy in ready if copy.place in (Place.AGAIN, Place.RETRY)]
        again.sort(key=lambda copy: (copy.attempts, -copy.message.priority, copy.message.sequence))
        ranks = sorted({(-copy.message.priority, copy.place) for copy in ready if copy not in again})
        pools = {
            rank: [c for c in ready if (-c.message.priority, c.place) == rank and c not in again] for rank in ranks
        }
        before = [copy.message.sequence for copy in again]
        sizes = {rank: len(pool) for rank, pool in pools.items()}
        for _ in range(len(copies) if one_by_one else 1):
            self._take_turns(channel, again, sizes, 1 if one_by_one else len(copies))
        right = [sequence for sequence in before if sequence not in {copy.message.sequence for copy in again}]
        got = [sequence for sequence in before if sequence in taken]
        demand(got == right, f"{where}: of {before}, which were delivered before, {got} were handed out, not {right}")
        for rank, pool in pools.items():
            chosen = [copy.message.sequence for copy in pool if copy.message.sequence in taken]
            due = len(pool) - sizes[rank]
            what = f"{where}: priority {-rank[0]}, {rank[1].name}: {chosen} of {[m.message.sequence for m in pool]}"
            demand(len(chosen) == due, f"{what}, not {due} of them")
            if rank[1] is Place.FRESH:
                self._check_oldest_first(what, pool, set(chosen))
                self._check_turns(what, channel, -rank[0], pool, set(chosen))

    def _take_turns(self, channel: Channel, again: list[Copy], sizes: dict[tuple[int, Place], int], left: int) -> None:
        """Take messages that were delivered before, best first, and numbers of others, by turns.

        Half of each, as long as there are both. Nothing goes ahead of what is new and has a higher priority.
        """
        surplus = int(channel.owes_fresh)

        def redeliver(share: int, priority: int) -> int:
            chosen = [copy for copy in again if copy.message.priority >= priority][: max(0, share)]
            for copy in chosen:
                again.remove(copy)
            return len(chosen)

        for rank in sizes:
            if sizes[rank]:
                count = redeliver((left - surplus + 1) // 2, -rank[0])
                fresh = min(left - count, sizes[rank])
                sizes[rank] -= fresh
                left -= count + fresh
                surplus = max(0, surplus + count - fresh)
            if not left:
                break
        channel.owes_fresh = surplus + redeliver(left, 0) > 0

    def _check_oldest_first(self, what: str, pool: list[Copy], chosen: set[int]) -> None:
        """Within a group (all without a group are one) nobody is overtaken; with one group only, nobody at all."""
        skipped: set[str | None] = set()
        for copy in pool:
            if copy.message.sequence not in chosen:
                skipped.add(copy.message.group)
            else:
                demand(copy.message.group not in skipped, f"{what}: {copy.message.sequence} overtook an older one")

    def _check_turns(self, what: str, channel: Channel, priority: int, pool: list[Copy], chosen: set[int]) -> None:
        """Groups take turns: while one waits, each other one is served once at most before it."""
        served = Counter(copy.message.group for copy in pool if copy.message.sequence in chosen)
        waiting = {copy.message.group for copy in pool if copy.message.sequence not in chosen}
        for other in waiting:
            for group, count in served.items():
                if group == other:
                    continue
                turn = (priority, group, other)
                ahead = channel.turns[turn] + count
                demand(
                    ahead <= served[other] + 1,
                    f"{what}: group {group} was served {ahead} times, and {other}, which waits, {served[other]} times",
                )
                channel.turns[turn] = ahead
        over = [turn for turn in channel.turns if turn[0] == priority and (turn[2] in served or turn[2] not in waiting)]
        for turn in over:
            del channel.turns[turn]

    def _check_content(self, where: str, run: c.Run, index: int, copy: Copy) -> None:
        chunk, message = run.chunk, copy.message
        got = (bytes(chunk.body(index)), chunk.attributes(index), chunk.group(index))
        is_same = got == (message.body, message.attributes, message.group)
        demand(is_same, lambda: f"{where}: {got} was not sent as {message}")
        failures = [f for f in run.failures if f.first <= message.sequence <= f.last]
        failures.sort(key=lambda failure: failure.attempt)
        # A delivery that was given back does not count: the attempt after it has its number once more.
        same = same_history(sorted(copy.history, key=lambda failed: failed.attempt), failures)
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
        same = same_history(origin.failures, failures)
        demand(same, f"{where}: the reasons are {failures}, not {origin.failures}")
