"""A session: who holds leases. When it ends, all of them are released at once."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.queue import AsyncQueue
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.core.commands import EndSession, Heartbeat
from penstock.core.errors import SessionNotFound


class AsyncSession:
    """What is received through a session belongs to it. Leaving its block ends it."""

    __slots__ = ("_caller", "_number", "name")

    def __init__(self, caller: AsyncCaller, name: str, number: int) -> None:
        self._caller = caller
        self._number = number
        self.name = name

    def queue(self, name: str) -> AsyncQueue:
        """A handle on a queue, whose leases are this session's."""
        return AsyncQueue(self._caller, name, self._number)

    def unit_of_work(self) -> AsyncUnitOfWork:
        """A unit of work, whose leases are this session's."""
        return AsyncUnitOfWork(self._caller, self._number)

    async def heartbeat(self) -> None:
        """The session is alive: a session with a time to live ends when no heartbeat comes for so long."""
        await self._caller.call(Heartbeat(session=self._number))

    async def end(self, *, error: str = "session ended") -> int:
        """Release everything that the session holds, in one commit. Returns how many messages."""
        count: int = await self._caller.call(EndSession(session=self._number, error=error))
        return count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.end()
        except SessionNotFound:
            return

    def __repr__(self) -> str:
        return f"<Session {self.name!r}>"
