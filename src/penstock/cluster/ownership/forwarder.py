"""The forwarder: takes what is in a shard's outbox to the other shards, in order.

How it works. Whoever owns a shard runs one forwarder for it. Each target that something waits for has a task: it reads
the next entries, submits them as one `TakeOutbox` to the target, wherever that is served, and has them forgotten when
it is done. The target does a batch only if its mark for this outbox is where the batch starts, and says where the mark
is; so nothing depends on what the forwarder believes. It starts with a guess (before the first entry that is left), and
goes on from what it is told:

    the mark is where the batch ends       done: forget up to there, read on
    the mark is elsewhere                  not done: forget up to there, read on from there

An error (the shard is on its way to another node, a link broke, a disk is full) means that nobody knows: the same
batch is sent again, after a pause that doubles. Two forwarders of one shard, because its former owner has not noticed
yet, do no harm: only committed entries can be read, and the mark lets each pass once.

The mark of a target whose store was lost is before entries that are forgotten here. Then those are lost with it; the
forwarder says so in the log, and goes on with what is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.backoff import backoff
from penstock.core.commands import Command, ForgetOutbox, OutboxEntry, ReadOutbox, Taken, TakeOutbox
from penstock.core.errors import PenstockError, StoreError
from penstock.server.shard import Call, ShardClosed
from penstock.server.tasks import AsyncShard

BATCH_BYTES = 4 * 1024 * 1024
PARALLEL_MAX = 32
"""How many targets are served at a time."""
ANSWER_S = 60.0
"""After this long without an answer a batch is sent again."""
PAUSE_S = 0.05
PAUSE_S_MAX = 5.0

log = logging.getLogger("penstock.forwarder")


class Submit(Protocol):
    """Takes a command to a shard, wherever it is served: as `Place.submit` does."""

    def __call__(self, shard: int, command: Command, on_settled: Callable[[Call], None], /) -> object:
        """Every call is settled once, in the loop, with a reply or an error."""


class ForwarderStats(msgspec.Struct):
    """How a forwarder is doing."""

    waiting: dict[int, int]
    """Entries that wait, for each target."""
    oldest_s: float
    """How long ago the oldest of them was written; 0.0 when there is none."""
    forwarded: int
    """Entries that were done by their targets since this forwarder was started."""
    failures: int
    """Batches that got an error or no answer."""
    refused: int
    """Messages that their queue did not take: they are in `<queue>.refused`."""
    stale: int
    """Acks of units of work that came too late: the messages were handed out again."""


class Forwarder:
    """Forwards the outbox of one shard, from `start` to `stop`."""

    def __init__(self, shard: AsyncShard, submit: Submit, *, pause_s: float = PAUSE_S) -> None:
        self._shard = shard
        self._submit = submit
        self._pause_s = pause_s
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(PARALLEL_MAX)
        self._stopped = False
        self._forwarded = self._failures = self._refused = self._stale = 0

    def start(self) -> None:
        """Forward what is there, and what comes."""
        self._shard.shard.outbox_listeners.append(self._wake)
        self._wake(list(self._shard.identity.outbox_targets()))

    async def stop(self) -> None:
        """Forward nothing more. What is under way may still be done: the next forwarder finds that out."""
        self._stopped = True
        if self._wake in self._shard.shard.outbox_listeners:
            self._shard.shard.outbox_listeners.remove(self._wake)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stats(self) -> ForwarderStats:
        """How it is doing."""
        broker = self._shard.identity
        waiting = broker.outbox_targets()
        oldest = [made_ms for target in waiting if (made_ms := broker.outbox.oldest_ms(target)) is not None]
        oldest_s = max(0.0, (self._shard.now_ms() - min(oldest)) / 1_000) if oldest else 0.0
        return ForwarderStats(waiting, oldest_s, self._forwarded, self._failures, self._refused, self._stale)

    # -- one task for each target --

    def _wake(self, targets: list[int]) -> None:
        for target in targets:
            if target not in self._tasks and not self._stopped:
                task = asyncio.get_running_loop().create_task(self._forward(target), name=f"forward to shard {target}")
                self._tasks[target] = task
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        (target,) = [target for target, each in self._tasks.items() if each is task]
        del self._tasks[target]
        if not task.cancelled() and task.exception() is not None:
            log.error("forwarding to shard %d failed", target, exc_info=task.exception())
            asyncio.get_running_loop().call_later(PAUSE_S_MAX, self._wake, [target])
        elif not self._stopped and target in self._shard.identity.outbox_targets():
            self._wake([target])  # something came while the task was ending

    async def _forward(self, target: int) -> None:
        """Until nothing waits for a target, or the shard is closed."""
        mark = self._shard.identity.outbox.first(target) - 1
        failures = 0
        while not self._stopped:
            try:
                async with self._places:
                    entries: list[OutboxEntry] = await self._shard.call(ReadOutbox(target=target, after=mark))
                    if not entries:
                        return
                    mark = await self._take(target, mark, entries)
                failures = 0
            except ShardClosed:
                self._stopped = True
            except (PenstockError, TimeoutError) as error:
                failures += 1
                self._failures += 1
                # What passes by itself, because a shard moves, is not worth a warning.
                level = logging.WARNING if failures >= 5 else logging.DEBUG
                log.log(
                    level, "shard %d did not accept a batch of the outbox (attempt %d): %s", target, failures, error
                )
                await asyncio.sleep(backoff(failures, self._pause_s, PAUSE_S_MAX, jitter=random.random() / 2))

    async def _take(self, target: int, mark: int, entries: list[OutboxEntry]) -> int:
        """Have the target do a batch. Returns where its mark is."""
        # A new store may get another name until its first commit, and there are no entries before that.
        name = self._shard.identity.outbox_name
        command = TakeOutbox(source=name, after=mark, up_to=entries[-1].number, entries=entries)
        taken: Taken = await self._ask(target, command)
        if taken.done:
            self._note(target, taken, len(entries))
        await self._shard.call(ForgetOutbox(target=target, up_to=taken.number))
        first = self._shard.identity.outbox.first(target)
        if taken.number < first - 1 and not taken.done:
            log.error(
                "shard %d has applied entries of this outbox only up to %d, but entries up to %d were deleted here: "
                "its store was lost, or is an older one",
                *(target, taken.number, first - 1),
            )
        return taken.number

    def _note(self, target: int, taken: Taken, entries: int) -> None:
        self._forwarded += entries
        self._refused += taken.refused
        self._stale += taken.stale
        if taken.refused:
            log.warning("queues of shard %d refused %d messages: they are in *.refused", target, taken.refused)
        if taken.stale:
            log.warning("%d acks of units of work came too late to shard %d", taken.stale, target)

    async def _ask(self, target: int, command: Command) -> Any:
        settled: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._submit(target, command, lambda call: None if settled.done() else settled.set_result(call))
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await settled).result()
        except ShardClosed as error:  # the target's: it will be served elsewhere
            raise StoreError(str(error)) from None


def forwarder_families(stats: Mapping[int, ForwarderStats]) -> Iterator[Metric]:
    """What Prometheus is told of the forwarders of some shards.

    >>> stats = ForwarderStats({1: 3}, 0.5, forwarded=7, failures=0, refused=0, stale=0)
    >>> [family.name for family in forwarder_families({0: stats})][:2]
    ['penstock_outbox_entries', 'penstock_outbox_oldest_seconds']
    """
    for name, text, is_counter, value_of in _SERIES:
        family_of = CounterMetricFamily if is_counter else GaugeMetricFamily
        family = family_of(f"penstock_outbox_{name}", text, labels=("shard",))
        for shard, each in stats.items():
            family.add_metric((str(shard),), value_of(each))
        yield family


_SERIES: tuple[tuple[str, str, bool, Callable[[ForwarderStats], float]], ...] = (
    ("entries", "Entries that wait to be carried to other shards.", False, lambda stats: sum(stats.waiting.values())),
    ("oldest_seconds", "How long the oldest of these entries has waited.", False, lambda stats: stats.oldest_s),
    ("forwarded", "Entries that other shards have executed.", True, lambda stats: stats.forwarded),
    ("failures", "Batches that got an error, or no answer.", True, lambda stats: stats.failures),
    ("refused_messages", "Messages that their queue refused.", True, lambda stats: stats.refused),
    ("stale_acks", "Acks of units of work that came too late.", True, lambda stats: stats.stale),
)
