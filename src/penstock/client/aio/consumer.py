"""A named consumer: a cursor over a queue, which leases nothing."""

from __future__ import annotations

from penstock.client.aio.caller import AsyncCaller
from penstock.client.content import Record, RecordList, record_list
from penstock.core.commands import AckConsumer, DeleteConsumer, QueueStats, ReadRecords, Stats


class AsyncConsumer:
    """Reads a queue by offset, at its own pace. Its offset is remembered once it acknowledges something."""

    __slots__ = ("_caller", "_queue", "name")

    def __init__(self, caller: AsyncCaller, queue: str, name: str) -> None:
        self._caller = caller
        self._queue = queue
        self.name = name

    async def read(self, max: int = 100, *, offset: int | None = None) -> RecordList:
        """Up to `max` messages from `offset` on; without it, from where the consumer is."""
        command = ReadRecords(queue=self._queue, consumer=self.name, offset=offset, limit=max)
        return record_list(self._caller.identity, await self._caller.call(command))

    async def ack(self, offset: int | Record, *, allow_rewind: bool = False) -> int:
        """Remember that everything before `offset` is read; a record means that one, and everything before it.

        Going back is refused with `RewindRefused` unless it is allowed. Returns the offset.
        """
        before = offset.offset + 1 if isinstance(offset, Record) else offset
        command = AckConsumer(queue=self._queue, consumer=self.name, offset=before, allow_rewind=allow_rewind)
        remembered: int = await self._caller.call(command)
        return remembered

    @property
    async def offset(self) -> int | None:
        """Where the consumer is; None if it has never acknowledged anything."""
        stats: Stats = await self._caller.call(QueueStats(name=self._queue))
        return stats.consumers.get(self.name)

    async def delete(self) -> None:
        """Forget the consumer: nothing is kept for it any more."""
        await self._caller.call(DeleteConsumer(queue=self._queue, consumer=self.name))

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._queue!r}>"
