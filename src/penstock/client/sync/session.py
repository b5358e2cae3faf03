"""A session: who holds leases. When it ends, all of them are released at once."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.sync.caller import Caller
from penstock.client.sync.queue import Queue
from penstock.client.sync.unit_of_work import UnitOfWork
from penstock.core.commands import EndSession, Heartbeat
from penstock.core.errors import SessionNotFound


class Session:
    """What is received through a session belongs to it. Leaving its block ends it."""

    __slots__ = ("_caller", "_number", "name")

    def __init__(self, caller: Caller, name: str, number: int) -> None:
        self._caller = caller
        self._number = number
        self.name = name

    def queue(self, name: str) -> Queue:
        """A handle on a queue, whose leases are this session's."""
        return Queue(self._caller, name, self._number)

    def unit_of_work(self) -> UnitOfWork:
        """A unit of work, whose leases are this session's."""
        return UnitOfWork(self._caller, self._number)

    def heartbeat(self) -> None:
        """The session is alive: a session with a time to live ends when no heartbeat comes for so long."""
        self._caller.call(Heartbeat(session=self._number))

    def end(self, *, error: str = "session ended") -> int:
        """Release everything that the session holds, in one commit. Returns how many messages."""
        count: int = self._caller.call(EndSession(session=self._number, error=error))
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.end()
        except SessionNotFound:
            return

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"
