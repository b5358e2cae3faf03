"""Reading queues for an export. Nothing is leased, and nothing changes: it only looks, as `peek` does.

All messages that some channel is not done with are read, in the order of their numbers, from every channel at the same
time: each page of one channel is a look at that moment. On a server that goes on serving, a message that is
acknowledged before its page is read is not in the export, and one that is sent behind the last page neither.
"""

from __future__ import annotations

import heapq
import time
import uuid
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Protocol

import msgspec

from penstock.client.content import Identity
from penstock.core.commands import MAIN, Browse, Command, DescribeQueue, ListQueues, QueueInfo, QueueStats, Seen, Stats
from penstock.core.delivery.states import State
from penstock.core.errors import ChunkDamaged, InvalidRequest
from penstock.core.queues.config import QueueConfig
from penstock.core.queues.origin import Origin
from penstock.transfer.contents import (
    LABEL,
    VERSION,
    ChannelLine,
    Head,
    Item,
    MessageLine,
    QueueLine,
    attribute_lines,
    body_fields,
    failure_lines,
    origin_line,
)

_NAMES = 1_000
_PAGE = 5_000


class Caller(Protocol):
    """Takes commands to where the messages are: a directory, a server, a cluster."""

    def call(self, command: Command) -> Any:
        """The reply, or the error raised."""

    @property
    def identity(self) -> Identity:
        """Who names messages."""


class Writer(Protocol):
    """Writes an export in some format."""

    def write(self, item: Item) -> None:
        """One more queue, or message of the last queue."""

    def close(self) -> None:
        """Nothing more comes."""


class Source:
    """The queues of a place."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.quarantined: dict[str, int] = {}
        """Messages that are damaged, and not in the export, by queue."""
        self.consumers: dict[str, list[str]] = {}
        """Named consumers, which are not in the export, by queue."""
        self.received: dict[str, int] = {}
        """Messages that are delivered once only, and somebody has: they are not in the export, by queue."""

    @staticmethod
    def head(made_by: str) -> Head:
        return Head(version=VERSION, id=uuid.uuid4().hex, made_ms=time.time_ns() // 1_000_000, made_by=made_by)

    def names(self) -> list[str]:
        names: list[str] = []
        while True:
            page = self._caller.call(ListQueues(after=names[-1] if names else "", limit=_NAMES))
            names += page
            if len(page) < _NAMES:
                return names

    def queue(self, name: str) -> QueueLine:
        info: QueueInfo = self._caller.call(DescribeQueue(name=name))
        if LABEL in info.config.labels:
            raise InvalidRequest(
                f"queue {name!r} is being imported, and is not complete yet: finish that import (the same command "
                "again continues it), delete the queue, or export others with --queue"
            )
        stats: Stats = self._caller.call(QueueStats(name=name))
        self._count_damage(name, stats)
        if stats.consumers:
            self.consumers[name] = sorted(stats.consumers)
        channels = [ChannelLine(each, stats.channels[each].paused) for each in info.channels if each in stats.channels]
        settings = msgspec.to_builtins(info.config)
        usual = QueueConfig()
        said = {key: value for key, value in settings.items() if getattr(info.config, key) != getattr(usual, key)}
        return QueueLine(queue=name, settings=said, channels=channels)

    def _count_damage(self, name: str, stats: Stats) -> None:
        if stats.quarantined:
            self.quarantined[name] = stats.quarantined

    def messages(self, queue: QueueLine) -> Iterator[MessageLine]:
        """The messages that are not done, in order."""
        info: QueueInfo = self._caller.call(DescribeQueue(name=queue.queue))
        channels = [each.name for each in queue.channels]
        looks = [self._look(queue.queue, channel) for channel in channels or [MAIN]]
        for sequence, group in groupby(heapq.merge(*looks, key=_sequence), key=_sequence):
            found = {channel: seen for _, channel, seen in group}
            if info.config.policy == "consume_once":  # a channel that has received it must not get it again
                found = {channel: seen for channel, seen in found.items() if seen.state is not State.LEASED}
            if found:
                yield self._message(info, sequence, found, channels)
            else:
                self.received[queue.queue] = self.received.get(queue.queue, 0) + 1
        self._count_damage(queue.queue, self._caller.call(QueueStats(name=queue.queue)))

    def _look(self, queue: str, channel: str) -> Iterator[tuple[int, str, Seen]]:
        after, damage = -1, ""
        while True:
            try:
                page: list[Seen] = self._caller.call(Browse(queue=queue, channel=channel, after=after, limit=_PAGE))
            except ChunkDamaged as error:  # it is put aside now: the next look passes over it
                if str(error) == damage:
                    raise
                damage = str(error)
                continue
            yield from ((seen.sequence, channel, seen) for seen in page)
            if not page:
                return
            after = page[-1].sequence

    def _message(self, info: QueueInfo, sequence: int, found: dict[str, Seen], channels: list[str]) -> MessageLine:
        seen = next(iter(found.values()))
        chunk, index = seen.chunk, seen.index
        stored = chunk.origin(index)
        origin = None if stored is None else Origin.decode(stored)
        waits = [each.deadline_ms if each.state is State.DELAYED else 0 for each in found.values()]
        attempts = max(each.attempts for each in found.values())
        failures = [line for each in found.values() for line in failure_lines(each.failures, sequence)]
        if origin is not None and origin.queue == info.name:  # it was imported or redriven: that is its own history
            attempts += origin.attempts
            failures = failure_lines(origin.failures) + failures
        return MessageLine(
            sequence=sequence,
            id=self._caller.identity.message_id(info.queue_id, sequence) if origin is None else origin.id,
            sent_ms=chunk.sent_ms if origin is None else origin.sent_ms,
            **body_fields(chunk.body(index)),
            attributes=attribute_lines(chunk.attributes(index)),
            group=chunk.group(index),
            dedup_id=chunk.dedup_id(index),
            priority=seen.priority,
            due_ms=min(waits),
            attempts=attempts,
            failures=failures,
            origin=None if origin is None or origin.queue == info.name else origin_line(origin),
            done_for=[each for each in channels if each not in found],
        )


def _sequence(found: tuple[int, str, Seen]) -> int:
    return found[0]
