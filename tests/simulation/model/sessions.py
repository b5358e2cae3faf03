"""Sessions: with their end, all that they hold fails."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.handlers.sessions import PROCESS_GONE
from tests.simulation.model.failing import Failing
from tests.simulation.model.state import Copy, Session
from tests.simulation.model.verdict import Outcome, demand


class Sessions(Failing):
    """Rules of sessions."""

    def _accept_OpenSession(self, command: c.OpenSession, outcome: Outcome) -> None:
        if not self._refused(outcome, []):
            demand(outcome not in self.sessions and outcome, f"session number {outcome} is taken")
            expires_ms = None if command.ttl_ms is None else self.now_ms + command.ttl_ms
            self.sessions[outcome] = Session(command.name, command.ttl_ms, expires_ms)

    def _accept_Heartbeat(self, command: c.Heartbeat, outcome: Outcome) -> None:
        session = self.sessions.get(command.session)
        if not self._refused(outcome, [] if session else [e.SessionNotFound]) and session and session.ttl_ms:
            session.expires_ms = self.now_ms + session.ttl_ms

    def _accept_EndSession(self, command: c.EndSession, outcome: Outcome) -> None:
        is_there = command.session in self.sessions and not command.shard
        if self._refused(outcome, [] if is_there else [e.SessionNotFound]):
            return
        ended = self._end_session(command.session, command.error)
        demand(outcome == ended, f"the session's end released {outcome} messages, not {ended}")

    def _accept_ListSessions(self, command: c.ListSessions, outcome: Outcome) -> None:
        if self._refused(outcome, [] if command.queue is None else self._missing(command.queue)):
            return
        right: dict[int, list[tuple[str, str, int, int, int]]] = {number: [] for number in self.sessions}
        for queue in self.queues.values():
            if command.queue not in (None, queue.name):
                continue
            for channel in queue.channels.values():
                held: dict[int, list[Copy]] = {}
                for copy in channel.copies.values():
                    if copy.state is State.LEASED:
                        held.setdefault(copy.session, []).append(copy)
                for number, copies in held.items():
                    since_ms, until_ms = min(one.received_ms for one in copies), min(one.deadline_ms for one in copies)
                    lease = (queue.name, channel.name, len(copies), since_ms, until_ms)
                    right.setdefault(number, []).append(lease)
        if command.queue is None:
            right.pop(0, None)
        else:
            right = {number: leases for number, leases in right.items() if leases}
        shown: dict[int, list[tuple[str, str, int, int, int]]] = {}
        for one in outcome:
            number = one.session if one.session in self.sessions else 0  # that of the broker's own process is nobody's
            leases = [(each.queue, each.channel, each.count, each.since_ms, each.until_ms) for each in one.leases]
            shown[number] = sorted(leases)
            demand(number == 0 or one.name == self.sessions[number].name, f"{one} has another name")
        if command.queue is None or command.after >= 0:
            shown.pop(0, None)
        wanted = {number: sorted(leases) for number, leases in right.items() if number > command.after}
        demand(shown == wanted, f"the sessions are {shown}, and should be {wanted}")

    def reopened(self, now_ms: int) -> None:
        """Sessions that say how long they live have that time again, to be heard of."""
        super().reopened(now_ms)
        for session in self.sessions.values():
            if session.ttl_ms:
                session.expires_ms = now_ms + session.ttl_ms

    def everybody_is_gone(self) -> int:
        """All who could receive died with the process: nobody holds anything any more. Returns how much it was."""
        return sum(self._end_session(number, PROCESS_GONE) for number in [0, *self.sessions])

    def _end_session(self, number: int, error: str) -> int:
        count = 0
        for queue in list(self.queues.values()):
            for channel in list(queue.channels.values()):
                for copy in channel.ordered():
                    if copy.state is State.LEASED and copy.session == number:
                        self._fail(queue, channel, copy, None if queue.config.expired_wait else 0, error)
                        count += 1
        self._turn_away([waiter for waiter in self.waiters if waiter.session == number], e.SessionNotFound)
        self.sessions.pop(number, None)
        return count
