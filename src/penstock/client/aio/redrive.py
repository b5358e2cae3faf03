"""A redrive: messages on their way from a dead-letter queue back to where they failed, or elsewhere."""

from __future__ import annotations

from penstock.client.aio.caller import AsyncCaller
from penstock.client.times import Seconds, length_ms
from penstock.core.backoff import backoff
from penstock.core.commands import CancelRedrive, ListRedrives, RedriveTask
from penstock.core.errors import TaskNotFound

_FIRST_LOOK_SECONDS = 0.002
_LOOK_SECONDS_MAX = 0.25


class AsyncRedrive:
    """A redrive that was started. It goes on by itself, also after a restart."""

    __slots__ = ("_caller", "_queue", "_task")

    def __init__(self, caller: AsyncCaller, task: RedriveTask) -> None:
        self._caller = caller
        self._queue = task.queue
        self._task = task.task

    @property
    def number(self) -> int:
        """The task's number."""
        return self._task

    async def progress(self) -> RedriveTask:
        """How far it is."""
        tasks: list[RedriveTask] = await self._caller.call(ListRedrives(queue=self._queue))
        for task in tasks:
            if task.task == self._task:
                return task
        raise TaskNotFound(f"there is no redrive {self._task} of queue {self._queue!r}")

    async def cancel(self) -> RedriveTask:
        """Stop. What was moved stays moved."""
        task: RedriveTask = await self._caller.call(CancelRedrive(task=self._task))
        return task

    async def wait(self, timeout: Seconds | None = None) -> RedriveTask:
        """Until it is over, or the time is up: look at `status`."""
        left_ms = length_ms(timeout, "timeout")
        looks = 0
        while True:
            task = await self.progress()
            if task.status != "running" or (left_ms is not None and left_ms <= 0):
                return task
            looks += 1
            pause = backoff(looks, _FIRST_LOOK_SECONDS, _LOOK_SECONDS_MAX)
            await self._caller.sleep(pause if left_ms is None else min(pause, left_ms / 1_000))
            left_ms = None if left_ms is None else left_ms - max(1, round(pause * 1_000))

    def __repr__(self) -> str:
        return f"<Redrive {self._task} of {self._queue!r}>"
