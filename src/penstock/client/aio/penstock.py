"""An open store: where every handle comes from."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self, Unpack

from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.queue import AsyncQueue
from penstock.client.aio.redrive import AsyncRedrive
from penstock.client.aio.session import AsyncSession
from penstock.client.aio.unit_of_work import AsyncUnitOfWork
from penstock.client.settings import QueueSettings, config_of
from penstock.client.times import Seconds, length_ms
from penstock.core.commands import CreateQueue, Damage, ListQueues, ListRedrives, OpenSession, RedriveTask, StartRedrive
from penstock.core.errors import InvalidRequest

_PAGE = 1_000


class AsyncPenstock:
    """A store of queues. Close it, or use it as a context manager."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller

    def queue(self, name: str) -> AsyncQueue:
        """A handle on a queue. Nothing is created until the first write."""
        return AsyncQueue(self._caller, name)

    async def create_queue(self, name: str, **settings: Unpack[QueueSettings]) -> AsyncQueue:
        """Create a queue with these settings. Once more with the same is fine; with others it is `QueueExists`."""
        await self._caller.call(CreateQueue(name=name, config=config_of(settings)))
        return AsyncQueue(self._caller, name)

    async def queues(self, prefix: str = "") -> list[str]:
        """The names of all queues that start so, in order."""
        names: list[str] = []
        while True:
            after = names[-1] if names else ""
            page: list[str] = await self._caller.call(ListQueues(prefix=prefix, after=after, limit=_PAGE))
            names += page
            if len(page) < _PAGE:
                return names

    async def session(self, name: str, *, ttl: Seconds | None = None) -> AsyncSession:
        """Start a session. With `ttl` it ends by itself when no heartbeat comes for so long."""
        number: int = await self._caller.call(OpenSession(name=name, ttl_ms=length_ms(ttl, "ttl")))
        return AsyncSession(self._caller, name, number)

    def unit_of_work(self) -> AsyncUnitOfWork:
        """Takes and puts that happen together or not at all."""
        return AsyncUnitOfWork(self._caller)

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        ids: Iterable[str | int] | None = None,
        contains: bytes | str | None = None,
        error: str | None = None,
        rate: int | None = None,
    ) -> AsyncRedrive:
        """Move messages of a dead-letter queue to where they came from, or to the queue `to`.

        All of them; or those with these `ids` (or sequence numbers), those whose body holds `contains`, those one of
        whose errors holds `error`. `rate`: so many a second at most.
        """
        command = StartRedrive(
            queue=queue,
            target=to,
            sequences=None if ids is None else await self._sequences(queue, ids),
            contains=contains.encode() if isinstance(contains, str) else contains,
            error=error,
            per_second=rate,
        )
        task: RedriveTask = await self._caller.call(command)
        return AsyncRedrive(self._caller, task)

    async def redrives(self, queue: str | None = None) -> list[RedriveTask]:
        """Redrives of a queue, or all, the newest first."""
        tasks: list[RedriveTask] = await self._caller.call(ListRedrives(queue=queue))
        return tasks

    async def _sequences(self, queue: str, ids: Iterable[str | int]) -> list[int]:
        """The sequence numbers of messages that are named by id. A moved message keeps its id, so one has to look."""
        given = list(ids)
        found = {one for one in given if isinstance(one, int)}
        missing = {one for one in given if isinstance(one, str)}
        after, handle = -1, self.queue(queue)
        while missing:
            page = await handle.browse(after=after, limit=_PAGE)
            if not page:
                raise InvalidRequest(f"queue {queue!r} holds no message with the id {min(missing)}")
            found.update(message.sequence for message in page if message.id in missing)
            missing.difference_update(message.id for message in page)
            after = page[-1].sequence
        return sorted(found)

    @property
    def damage(self) -> list[Damage]:
        """The last reports of stored messages that no longer match their checksum. They are kept aside, not deleted."""
        return self._caller.reports

    async def close(self) -> None:
        """Write what is left and close. Once more does nothing."""
        await self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
