"""Time: what is due, and when."""

from __future__ import annotations

from typing import Any

from penstock.core.delivery.states import State
from penstock.core.queues.config import DEDUP_WINDOW_MS
from tests.simulation.model.sessions import Sessions
from tests.simulation.model.state import Channel, Copy, Queue


class Time(Sessions):
    """Rules of what happens although no command comes."""

    def finish(self, now_ms: int) -> None:
        """The end of a step: what is due happens, as it does before each command."""
        self.due(now_ms)

    def due(self, now_ms: int) -> None:
        """What is due at this time happens."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.now_ms >= self.done_ms + DEDUP_WINDOW_MS:
            self.done = {}  # for good, even if the clock goes back over a restart
        for number, session in list(self.sessions.items()):
            if session.expires_ms is not None and session.expires_ms <= self.now_ms:
                self._end_session(number, "session expired")
        for queue in list(self.queues.values()):
            for channel in list(queue.channels.values()):
                self._expire(queue, channel)
        for queue in list(self.queues.values()):
            self._retain(queue)
            self._forget_consumers(queue)

    def _expire(self, queue: Queue, channel: Channel) -> None:
        for copy in channel.ordered():
            if copy.state is State.LEASED and copy.deadline_ms <= self.now_ms:
                self._fail(queue, channel, copy, None if queue.config.expired_wait else 0, "lease expired")
            elif copy.state is State.DELAYED and copy.deadline_ms <= self.now_ms:
                copy.state = State.READY
                copy.deadline_ms = 0

    def _retain(self, queue: Queue) -> None:
        if queue.config.retention_ms is None:
            return
        old = [s for s, m in queue.messages.items() if m.appears_ms + queue.config.retention_ms <= self.now_ms]
        for sequence in old:
            self._forget(queue, sequence)

    def _forget_consumers(self, queue: Queue) -> None:
        """Those that were silent for too long."""
        retention_ms = queue.config.consumer_retention_ms
        for name, consumer in list(queue.consumers.items()):
            if retention_ms is not None and consumer.active_ms + retention_ms <= self.now_ms:
                del queue.consumers[name]
                self._may_be_gone(queue, list(queue.stored))

    def next_due(self) -> tuple[int, Any] | None:
        """When something must happen although no command comes, and to what."""
        times: list[tuple[int, Any]] = [(s.expires_ms, s) for s in self.sessions.values() if s.expires_ms is not None]
        times += [(w.deadline_ms, w) for w in self.waiters if w.deadline_ms is not None]
        for queue in self.queues.values():
            for channel in queue.channels.values():
                late = [copy for copy in channel.copies.values() if copy.state is not State.READY]
                first = min(late, key=lambda copy: copy.deadline_ms, default=None)
                times += [(first.deadline_ms, (queue.name, channel.name, first))] if first else []
            consumers_ms = queue.config.consumer_retention_ms
            if consumers_ms is not None:
                times += [(one.active_ms + consumers_ms, (queue.name, one)) for one in queue.consumers.values()]
            kept = queue.stored.union(*(channel.copies for channel in queue.channels.values()))
            if queue.config.retention_ms is not None and kept:
                oldest_ms = min(queue.messages[sequence].appears_ms for sequence in kept)
                times.append((oldest_ms + queue.config.retention_ms, (queue.name, "retention")))
        return min(times, key=lambda time: time[0], default=None)

    def is_ambiguous(self, now_ms: int) -> bool:
        """Whether a leap to this time makes one message do two things whose order the rules leave open."""
        for queue in self.queues.values():
            retention_ms = queue.config.retention_ms
            if retention_ms is None:
                continue
            for channel in queue.channels.values():
                for copy in channel.copies.values():
                    goes_ms = copy.message.appears_ms + retention_ms
                    if copy.state is not State.READY and max(self._ends_ms(copy), goes_ms) <= now_ms:
                        return True
        return any(
            session.expires_ms is not None and session.expires_ms <= now_ms and self._has_lease_due(number, now_ms)
            for number, session in self.sessions.items()
        )

    def _ends_ms(self, copy: Copy) -> int:
        """When a lease or a delay ends, by its own deadline or with its session."""
        session = self.sessions.get(copy.session) if copy.state is State.LEASED else None
        expires_ms = session.expires_ms if session else None
        return copy.deadline_ms if expires_ms is None else min(copy.deadline_ms, expires_ms)

    def can_go_back(self) -> bool:
        """Whether the clock may be earlier after a restart: not with what counts from times that would lie ahead."""
        watched = any(queue.consumers for queue in self.queues.values())
        return not self.retains() and not watched and not any(session.ttl_ms for session in self.sessions.values())

    def retains(self) -> bool:
        """Whether messages will be too old one day: what is behind one of a clock ahead may wait for it."""
        return any(queue.config.retention_ms is not None and queue.messages for queue in self.queues.values())

    def _has_lease_due(self, session: int, now_ms: int) -> bool:
        return any(
            copy.state is State.LEASED and copy.session == session and copy.deadline_ms <= now_ms
            for queue in self.queues.values()
            for channel in queue.channels.values()
            for copy in channel.copies.values()
        )
