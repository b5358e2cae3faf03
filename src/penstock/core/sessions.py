"""Sessions: who holds leases. When one ends, what it holds goes back, and what it waits for is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core import keys
from penstock.core.channel import Channel
from penstock.core.checks import clean
from penstock.core.commands import EndSession, Handlers, Heartbeat, OpenSession
from penstock.core.errors import InvalidRequest
from penstock.core.keys import Kind
from penstock.core.records import Session

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class SessionRegister:
    """Opens and ends sessions, and knows in which channels each may hold leases."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._held: dict[int, dict[Channel, None]] = {}
        """Session -> the channels in which it may hold leases."""

    def handlers(self) -> Handlers:
        """What is called for a command."""
        return {
            OpenSession: self._open,
            Heartbeat: self._heartbeat,
            EndSession: self._end_now,
        }

    def _open(self, command: OpenSession) -> int:
        if command.ttl_ms is not None and command.ttl_ms <= 0:
            raise InvalidRequest(f"ttl_ms is {command.ttl_ms}: it must be more than 0")
        number = self.broker.meta.next_session
        self.broker.meta.next_session += 1
        self.broker.save_meta()
        self.broker.sessions[number] = Session(
            clean(command.name), command.ttl_ms, self.broker.now_ms, command.bound, clean(command.holder)
        )
        self._save(number)
        if command.ttl_ms is not None:
            self.broker.schedule(self.broker.now_ms + command.ttl_ms, "session", number)
        self.broker.must_commit = True
        return number

    def _heartbeat(self, command: Heartbeat) -> None:
        self.broker.check_session(command.session)
        session = self.broker.sessions.get(command.session)
        if session is not None:
            session.seen_ms = self.broker.now_ms
            self._save(command.session)

    def _end_now(self, command: EndSession) -> int:
        self.broker.check_session(command.session)
        self.broker.must_commit = True
        return self._end(command.session, clean(command.error))

    def end_bound(self, keeping: bool, before: int) -> int:
        """End the sessions before a number that were connections: see `Broker.end_bound_sessions`."""
        sessions = [session for session in self.broker.sessions.items() if session[0] < before]
        bound = [number for number, session in sessions if session.bound and not (keeping and session.holder)]
        for number in bound:
            self._end(number, "the connection was lost")
        return len(bound)

    def _end(self, number: int, error: str) -> int:
        count = 0
        for channel in self._held.pop(number, {}):
            if self.broker.is_alive(channel):
                count += channel.end_session(number, self.broker.now_ms, error)
        self.broker.receiving.session_ended(number, error)
        self.broker.sessions.pop(number, None)
        self.broker.shelf.changes.delete_record(keys.record(Kind.SESSION, number))
        return count

    def expire(self, number: int, _detail: Any, _time_ms: int) -> None:
        """End a session, if nothing was heard of it for too long."""
        session = self.broker.sessions.get(number)
        if session is None or session.ttl_ms is None:
            return
        expires_ms = session.seen_ms + session.ttl_ms
        if expires_ms <= self.broker.now_ms:
            self._end(number, "session expired")
        else:
            self.broker.schedule(expires_ms, "session", number)

    def restore(self, number: int, data: bytes) -> None:
        """Take a session back from its record."""
        session = self.broker.sessions[number] = msgspec.msgpack.decode(data, type=Session)
        if session.ttl_ms is not None:
            self.broker.schedule(session.seen_ms + session.ttl_ms, "session", number)

    def note_lease(self, number: int, channel: Channel) -> None:
        """A session has got leases in a channel."""
        self._held.setdefault(number, {})[channel] = None

    def _save(self, number: int) -> None:
        data = msgspec.msgpack.encode(self.broker.sessions[number])
        self.broker.shelf.changes.put_record(keys.record(Kind.SESSION, number), data)
