"""Sessions: with their end, all that they hold fails."""

from __future__ import annotations

from penstock.core import commands as c
from penstock.core import errors as e
from penstock.core.delivery.states import State
from penstock.core.handlers.sessions import PROCESS_GONE
from tests.simulation.model.failing import Failing
from tests.simulation.model.state import Session
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
        if self._refused(outcome, [] if command.session in self.sessions else [e.SessionNotFound]):
            return
        ended = self._end_session(command.session, command.error)
        demand(outcome == ended, f"the session's end released {outcome} messages, not {ended}")

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
