"""A queue: messages go in and come out here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Unpack

from penstock.client.bodies import Body, encode_bodies, encode_body
from penstock.client.content import SentMessage, SentMessages
from penstock.client.queue_settings import QueueSettings
from penstock.client.settings import changes_of
from penstock.client.sync.caller import Caller
from penstock.client.sync.channel import Channel
from penstock.client.sync.consumer import Consumer
from penstock.client.sync.receiver import Receiver
from penstock.client.times import Moment, Seconds, length_ms, moment_ms
from penstock.core.attributes import Attributes, encode_attributes
from penstock.core.commands import (
    MAIN,
    ChangeQueue,
    CreateChannel,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    Send,
    Sent,
    Stats,
)
from penstock.core.errors import QueueNotFound


class Queue(Receiver):
    """A handle on a queue. The queue itself comes to be with the first message, or with `create_queue`.

    Receiving goes through the channel `main`; other channels by `channel(name)`.
    """

    __slots__ = ()

    def __init__(self, caller: Caller, name: str, session: int = 0) -> None:
        super().__init__(caller, name, MAIN, session)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue

    # -- sending --

    def send(
        self,
        body: Body,
        *,
        attributes: Attributes | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        due: Moment | None = None,
    ) -> SentMessage:
        """Send one message. It is on disk when this returns.

        `delay` (a length of time) or `due` (a point in time) keep it back. The highest `priority`, 0 to 9, goes first.
        """
        command = Send(
            queue=self._queue,
            bodies=[encode_body(body)],
            attributes=[encode_attributes(attributes)] if attributes else None,
            groups=None if group is None else [group],
            dedup_ids=None if dedup_id is None else [dedup_id],
            priority=priority,
            delay_ms=None if delay is None else length_ms(delay, "delay"),
            due_ms=None if due is None else moment_ms(due, "due"),
        )
        sent: Sent = self._caller.call(command)
        sequence = sent.sequence(0)
        message_id = self._caller.identity.message_id(sent.queue_id, sequence)
        return SentMessage(message_id, sequence, bool(sent.duplicates))

    def send_many(
        self,
        bodies: Iterable[Body],
        *,
        attributes: Sequence[Attributes | None] | None = None,
        groups: Sequence[str | None] | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        priority: int = 0,
        delay: Seconds | None = None,
        due: Moment | None = None,
    ) -> SentMessages:
        """Send a run of messages: all of them or, with an error, none. Lists run beside `bodies`."""
        encoded = encode_bodies(bodies)
        if not encoded:
            return SentMessages(self._caller.identity, Sent(0, 0, 0))
        command = Send(
            queue=self._queue,
            bodies=encoded,
            attributes=None if attributes is None else [encode_attributes(each) for each in attributes],
            groups=None if groups is None else list(groups),
            dedup_ids=None if dedup_ids is None else list(dedup_ids),
            priority=priority,
            delay_ms=length_ms(delay, "delay"),
            due_ms=moment_ms(due, "due"),
        )
        return SentMessages(self._caller.identity, self._caller.call(command))

    # -- reading in other ways --

    def channel(self, name: str, *, start: str | datetime | float = "head") -> Channel:
        """The channel of this name, made (and the queue with it) if it is not there.

        A new channel starts at the `head` (everything still stored), at the `tail` (only what comes later), or at a
        time.
        """
        if not self._caller.read_only:
            begin = start if isinstance(start, str) else moment_ms(start, "start") or 0
            self._make_channel(CreateChannel(queue=self._queue, channel=name, start=begin))
        return Channel(self._caller, self._queue, name, self._session)

    def _make_channel(self, command: CreateChannel) -> None:
        try:
            self._caller.call(command)
        except QueueNotFound:
            self._caller.call(CreateQueue(name=self._queue))
            self._caller.call(command)

    def consumer(self, name: str) -> Consumer:
        """The named consumer: reads by offset, and leases nothing."""
        return Consumer(self._caller, self._queue, name)

    # -- the queue itself --

    def configure(self, **settings: Unpack[QueueSettings]) -> QueueInfo:
        """Change some settings of the queue. Times are seconds."""
        info: QueueInfo = self._caller.call(ChangeQueue(name=self._queue, changes=changes_of(settings)))
        return info

    def info(self) -> QueueInfo:
        """The queue's configuration and channels."""
        info: QueueInfo = self._caller.call(DescribeQueue(name=self._queue))
        return info

    def stats(self) -> Stats:
        """Exact counts of the queue and each of its channels."""
        stats: Stats = self._caller.call(QueueStats(name=self._queue))
        return stats

    def purge(self) -> int:
        """Delete every message, in flight ones included. Returns how many."""
        count: int = self._caller.call(PurgeQueue(name=self._queue))
        return count

    def delete(self) -> None:
        """Delete the queue with its messages, channels and consumers."""
        self._caller.call(DeleteQueue(name=self._queue))

    def __repr__(self) -> str:
        return f"<Queue {self._queue!r}>"
