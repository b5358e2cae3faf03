"""Sessions: who holds leases. When one ends, what it holds goes back, and what it waits for is over.

A session is *bound* if it cannot outlive the process that opened it: it was a connection of that process, or is used by
nobody else than that process. When another process opens the store, the bound sessions of the one before end.

A broker that serves the process it lives in, and nobody else (`Broker.in_process`), binds every session. What is
received there without one belongs to a session of the process itself. It is made with the first such receive, and is
committed with the leases that it holds: nobody else is ever told its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.commands import EndSession, Heartbeat, HeldLeases, ListSessions, OpenSession, SessionInfo
from penstock.core.delivery.channel import Channel
from penstock.core.errors import InvalidRequest, SessionNotFound
from penstock.core.handlers.checks import check_limit, clean
from penstock.core.storage import keys
from penstock.core.storage.keys import Kind
from penstock.core.storage.records import Session

if TYPE_CHECKING:
    from penstock.core.broker import Broker

PROCESS_GONE = "the process that held it, or its connection, is gone"
"""The error of a delivery whose session ended with its process."""


class SessionRegister:
    """Opens and ends sessions, and knows in which channels each may hold leases."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._held: dict[int, dict[Channel, None]] = {}
        """Session -> the channels in which it may hold leases."""
        self._own = 0
        """The session of this process; 0 while it has none."""
        self._hearing_ms = 0
        """Since when heartbeats are heard: before, the store was closed, or the process stood still."""
        """When sessions were taken back from the store: before, nobody could hear their heartbeats."""

    def _open_session(self, command: OpenSession) -> int:
        if command.ttl_ms is not None and command.ttl_ms <= 0:
            raise InvalidRequest(f"ttl_ms is {command.ttl_ms}: it must be more than 0")
        name, holder = clean(command.name), clean(command.holder)
        bound, now_ms = command.bound or self.broker.in_process, self.broker.now_ms
        number = self._begin(Session(name, command.ttl_ms, now_ms, bound, holder))
        if command.ttl_ms is not None:
            self.broker.schedule(now_ms + command.ttl_ms, "session", number)
        self.broker.must_commit = True
        return number

    def _begin(self, session: Session) -> int:
        number = self.broker.meta.next_session
        self.broker.meta.next_session += 1
        self.broker.save_meta()
        self.broker.sessions[number] = session
        self._save(number)
        return number

    def own(self) -> int:
        """Who receives without a session: this process, or, where others are served too, nobody (0)."""
        if not self.broker.in_process:
            return 0
        if self._own not in self.broker.sessions:
            self._own = self._begin(Session("", None, self.broker.now_ms, bound=True))
        return self._own

    def adopt(self, other: SessionRegister) -> None:
        """This process goes on with another broker: its own session is the one it had, if that was committed."""
        if other._own in self.broker.sessions:
            self._own = other._own

    def leave(self) -> None:
        """This process closes the store in order. See `Broker.leave_sessions`."""
        if not self.broker.in_process:
            return
        for number, session in self.broker.sessions.items():
            if session.bound and session.ttl_ms is not None:
                session.bound = False
                self._save(number)
        number, self._own = self._own, 0
        for channel in self._held.pop(number, {}):
            if self.broker.is_alive(channel):
                channel.detach_session(number)
        if number in self.broker.sessions:
            self._forget(number)

    def _heartbeat(self, command: Heartbeat) -> None:
        self.broker.check_session(command.session)
        session = self.broker.sessions.get(command.session)
        if session is not None:
            session.seen_ms = self.broker.now_ms
            self._save(command.session)

    def _end_session(self, command: EndSession) -> int:
        self.broker.check_session(command.session)
        if command.shard:
            raise SessionNotFound(f"session {command.shard}-{command.session} has ended, or never existed")
        self.broker.must_commit = True
        return self._end(command.session, clean(command.error))

    def _list_sessions(self, command: ListSessions) -> list[SessionInfo]:
        check_limit(command.limit)
        broker, found = self.broker, []
        queue = None if command.queue is None else broker.find_queue(command.queue, command.of_queue)
        if queue is not None and command.after < 0:
            leases = [_leases(channel, 0) for channel in queue.channels.values()]
            unnamed = [each for each in leases if each is not None]
            if unnamed:
                found.append(SessionInfo(0, leases=unnamed))
        for number in sorted(each for each in broker.sessions if each > max(0, command.after)):
            if len(found) >= command.limit:
                break
            channels = [each for each in self._held.get(number, ()) if broker.is_alive(each)]
            leases = [_leases(each, number) for each in channels if queue is None or each.queue is queue]
            held = [each for each in leases if each is not None]
            if queue is not None and not held:
                continue
            session = broker.sessions[number]
            found.append(
                SessionInfo(number, session.name, session.ttl_ms, session.seen_ms, session.holder, session.bound, held)
            )
        return found

    def end_bound(self, keeping: bool, before: int) -> int:
        """End the bound sessions before a number: see `Broker.end_bound_sessions`."""
        sessions = [session for session in self.broker.sessions.items() if session[0] < before]
        bound = [number for number, session in sessions if session.bound and not (keeping and session.holder)]
        for number in bound:
            self._end(number, PROCESS_GONE)
        return len(bound)

    def _end(self, number: int, error: str) -> int:
        count = 0
        for channel in self._held.pop(number, {}):
            if self.broker.is_alive(channel):
                count += channel.end_session(number, self.broker.now_ms, error)
        self.broker.receiving.session_ended(number, error)
        self._forget(number)
        return count

    def _forget(self, number: int) -> None:
        self.broker.sessions.pop(number, None)
        self.broker.write_buffer.changes.delete_record(keys.record(Kind.SESSION, number))

    def expire(self, number: int, _detail: Any, _time_ms: int) -> None:
        """End a session, if nothing was heard of it for too long."""
        session = self.broker.sessions.get(number)
        if session is None or session.ttl_ms is None:
            return
        expires_ms = max(session.seen_ms, self._hearing_ms) + session.ttl_ms
        if expires_ms <= self.broker.now_ms:
            self._end(number, "session expired")
        else:
            self.broker.schedule(expires_ms, "session", number)

    def stood_still(self, now_ms: int) -> None:
        """Heartbeats may have come and not been read: every session has its whole time again."""
        self._hearing_ms = now_ms

    def restore(self, number: int, data: bytes) -> None:
        session = self.broker.sessions[number] = msgspec.msgpack.decode(data, type=Session)
        self._hearing_ms = now_ms = self.broker.now_ms
        if session.seen_ms > now_ms:  # the clock was ahead
            session.seen_ms = now_ms
            self._save(number)
        if session.ttl_ms is not None:
            self.broker.schedule(now_ms + session.ttl_ms, "session", number)

    def note_lease(self, number: int, channel: Channel) -> None:
        """A session has got leases in a channel."""
        self._held.setdefault(number, {})[channel] = None

    def _save(self, number: int) -> None:
        data = msgspec.msgpack.encode(self.broker.sessions[number])
        self.broker.write_buffer.changes.put_record(keys.record(Kind.SESSION, number), data)


def _leases(channel: Channel, session: int) -> HeldLeases | None:
    """What a session holds in a channel; None if that is nothing."""
    count, since_ms, until_ms = channel.leases_of(session)
    return HeldLeases(channel.queue.name, channel.name, count, since_ms, until_ms) if count else None
