"""Sessions of a router: a session of a client is one in every shard in which it is used, opened when it is first used.

A shard numbers its sessions for itself, so a router has numbers of its own, and translates. A session that can end by
itself (with `ttl_ms`) is open in one shard from the beginning, its *anchor*: when it has ended there, it has ended.
Others are opened nowhere before they are used. Heartbeats and the end of a session go to every shard that knows it.

Numbers are this router's own: other nodes pass on what is about them (`session_router.py`). They start anywhere, so
that a number from before a restart is most likely nobody's, and never quietly somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.core.commands import OpenSession
from penstock.core.errors import SessionNotFound

_NUMBERS = 1 << 32
_SWEEP_MS = 10_000
"""How often those that have ended by themselves are looked for."""


class RoutedSession:
    """One client's session."""

    __slots__ = ("anchor", "at", "bound", "name", "number", "opening", "seen_ms", "ttl_ms")

    def __init__(self, number: int, command: OpenSession, now_ms: int) -> None:
        self.number = number
        self.name = command.name
        self.ttl_ms = command.ttl_ms
        self.bound = command.bound
        self.anchor: int | None = None
        """The shard that says whether it is still there."""
        self.at: dict[int, int] = {}
        """Shard -> its number there."""
        self.opening: dict[int, asyncio.Future[None]] = {}
        self.seen_ms = now_ms

    def open_command(self) -> OpenSession:
        """What opens it in another shard."""
        return OpenSession(name=self.name, ttl_ms=self.ttl_ms, bound=self.bound)


class RoutedSessions:
    """All sessions of a router. Sized: how many there are.

    >>> sessions = RoutedSessions(start=7)
    >>> sessions.add(OpenSession(name="mine"), now_ms=0).number
    7
    >>> sessions.get(8)
    Traceback (most recent call last):
        ...
    penstock.core.errors.SessionNotFound: session 8 has ended, or never was: open another one
    """

    def __init__(self, start: int, step: int = 1) -> None:
        self._step = step
        """With several routers at one address, each has every so manieth number: a number says whose it is."""
        self._first = start % step or step
        self._sessions: dict[int, RoutedSession] = {}
        self._anchored: dict[tuple[int, int], int] = {}
        self._next = start if 0 < start < _NUMBERS else self._first
        self._sweep_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[RoutedSession]:
        return iter(list(self._sessions.values()))

    def add(self, command: OpenSession, now_ms: int) -> RoutedSession:
        """A session that is open nowhere yet."""
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + _SWEEP_MS
            self._forget_expired(now_ms)
        while self._next in self._sessions:
            self._go_on()
        session = self._sessions[self._next] = RoutedSession(self._next, command, now_ms)
        self._go_on()
        return session

    def _go_on(self) -> None:
        self._next += self._step
        if self._next >= _NUMBERS:
            self._next = self._first

    def anchored(self, shard: int, number: int) -> RoutedSession | None:
        """The session that has its anchor there: a repeated `OpenSession` finds the first one's."""
        known = self._anchored.get((shard, number))
        return None if known is None else self._sessions.get(known)

    def anchor(self, session: RoutedSession, shard: int, number: int) -> None:
        """The session is open in the shard that says whether it still is."""
        session.anchor = shard
        session.at[shard] = number
        self._anchored[shard, number] = session.number

    def knows(self, number: int) -> bool:
        """Whether a session was opened here, and has not ended as far as is known."""
        return number in self._sessions

    def get(self, number: int) -> RoutedSession:
        """A session by its number; `SessionNotFound` if there is none."""
        session = self._sessions.get(number)
        if session is None:
            raise SessionNotFound(f"session {number} has ended, or never was: open another one")
        return session

    def drop(self, session: RoutedSession) -> None:
        """Forget a session."""
        self._sessions.pop(session.number, None)
        if session.anchor is not None:
            self._anchored.pop((session.anchor, session.at.get(session.anchor, 0)), None)

    def _forget_expired(self, now_ms: int) -> None:
        for session in list(self._sessions.values()):
            if session.ttl_ms is not None and now_ms > session.seen_ms + 2 * session.ttl_ms:
                self.drop(session)
