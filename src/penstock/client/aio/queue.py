"""A queue: messages go in and come out here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Unpack, overload

from penstock.client.aio.batch import AsyncBatch
from penstock.client.aio.caller import AsyncCaller
from penstock.client.aio.message import AsyncMessage, messages_of
from penstock.client.content import (
    Body,
    MessageLife,
    PeekedMessage,
    Record,
    RecordList,
    SentMessage,
    SentMessages,
    encode_bodies,
    encode_body,
    listed,
    most,
    record_list,
)
from penstock.client.queue_settings import QueueSettings
from penstock.client.times import Moment, Seconds, changes_of, lease_length_ms, length_ms, moment_ms
from penstock.core.commands import (
    MAIN,
    Ack,
    AckConsumer,
    Browse,
    Changed,
    ChangeQueue,
    ChannelStats,
    CreateChannel,
    CreateQueue,
    DeleteChannel,
    DeleteConsumer,
    DeleteMessages,
    DeleteQueue,
    Delivery,
    DescribeQueue,
    Extend,
    Life,
    LookUp,
    PauseChannel,
    PurgeChannel,
    PurgeQueue,
    QueueInfo,
    QueueStats,
    ReadRecords,
    Receive,
    Release,
    RescheduleMessages,
    Seen,
    Send,
    Sent,
    Settled,
    Stats,
)
from penstock.core.delivery.receipt import absent, no_message_id, open_message_id, sequence_in
from penstock.core.delivery.states import State
from penstock.core.errors import ChannelNotFound, InvalidRequest, MessageNotFound, QueueNotFound
from penstock.core.queues.attributes import Attributes, encode_attributes
from penstock.core.queues.partition import sent_after

WAITING = (State.READY, State.LEASED, State.DELAYED)
"""Every state but DONE."""


_PAGE = 1_000
LOOKED_AT_MAX = 100_000
"""Messages that are looked at to find those that came back."""


async def sequences_of(caller: AsyncCaller, queue: str, messages: Iterable[str | int]) -> list[int]:
    """The sequence numbers of messages that are named by id, or by number.

    An id says the number in the queue that it was sent to. A message that was moved keeps its id, so one has to look.
    """
    given = [messages] if isinstance(messages, str) else list(messages)
    found = {one for one in given if isinstance(one, int)}
    wanted = {one for one in given if isinstance(one, str)}
    for text in wanted:
        if open_message_id(0, text) is None:
            raise InvalidRequest(no_message_id(text))
    if wanted:
        info: QueueInfo = await caller.call(DescribeQueue(name=queue))
        own = {one: sequence_in(one, caller.identity.realm, info.queue_id) for one in wanted}
        found.update(sequence for sequence in own.values() if sequence is not None)
        wanted = {one for one, sequence in own.items() if sequence is None}
        found.update(await _by_looking(caller, queue, info.queue_id, wanted))
        if wanted:
            raise MessageNotFound(absent(min(wanted), queue))
    return sorted(found)


async def came_back(caller: AsyncCaller, queue: str, ids: Iterable[str], channel: str = MAIN) -> list[int]:
    """Where messages of a queue are now that a redrive brought back: they kept their ids, and got new numbers.

    What is not found among the messages sent since is left out; at most `LOOKED_AT_MAX` are looked at.
    """
    info: QueueInfo = await caller.call(DescribeQueue(name=queue))
    wanted = set(ids)
    numbers = [sequence_in(one, caller.identity.realm, info.queue_id) for one in wanted]
    after = min((sent_after(number) for number in numbers if number is not None), default=-1)
    return sorted(await _by_looking(caller, queue, info.queue_id, wanted, channel, after, LOOKED_AT_MAX))


async def _by_looking(
    caller: AsyncCaller,
    queue: str,
    queue_id: int,
    wanted: set[str],
    channel: str = MAIN,
    after: int = -1,
    count_max: int | None = None,
) -> set[int]:
    """The sequence numbers of messages that were moved here with their ids. What is found is no longer wanted."""
    found: set[int] = set()
    looked_at = 0
    while wanted and (count_max is None or looked_at < count_max):
        page: list[Seen] = await caller.call(Browse(queue=queue, channel=channel, after=after, limit=_PAGE))
        if not page:
            break
        for one in page:
            message = PeekedMessage(caller.identity, queue_id, one)
            if message.id in wanted:
                wanted.discard(message.id)
                found.add(message.sequence)
        after = page[-1].sequence
        looked_at += len(page)
    return found


class AsyncReceiver:
    """Messages come out here."""

    __slots__ = ("_caller", "_channel", "_queue", "_session")

    def __init__(self, caller: AsyncCaller, queue: str, channel: str, session: int = 0) -> None:
        self._caller = caller
        self._queue = queue
        self._channel = channel
        self._session = session

    # -- receiving --

    @overload
    async def receive(
        self, *, wait: Seconds | None = None, lease: Seconds | None = None, attempt_id: str | None = None
    ) -> AsyncMessage | None: ...

    @overload
    async def receive(
        self, max: int, *, wait: Seconds | None = None, lease: Seconds | None = None, attempt_id: str | None = None
    ) -> list[AsyncMessage]: ...

    async def receive(
        self,
        max: int | None = None,
        *,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
        attempt_id: str | None = None,
    ) -> AsyncMessage | list[AsyncMessage] | None:
        """Lease one message, or None if there is none. With `max`, lease a list of up to `max` messages.

        `while message := await queue.receive(wait=5):` loops until no message has come for five seconds; `async with
        message:` inside it settles each message.

        `wait`: how long to wait for the first message (None: the queue's `receive_wait`). `lease`: how long they belong
        to this receiver (None: the queue's `lease`). `attempt_id`: FIFO queues give the same messages again for the
        same id, while they are leased.
        """
        command = self._receive(1 if max is None else max, wait, lease, attempt_id)
        messages = messages_of(self._caller, await self._caller.call(command))
        if max is not None:
            return messages
        return messages[0] if messages else None

    async def receive_batch(
        self,
        max: int = 1_000,
        *,
        wait: Seconds | None = None,
        lease: Seconds | None = None,
        attempt_id: str | None = None,
    ) -> AsyncBatch:
        """Lease up to `max` messages as one object, which is empty if there are none."""
        delivery: Delivery | None = await self._caller.call(self._receive(max, wait, lease, attempt_id))
        return AsyncBatch(self._caller, delivery or Delivery(self._queue, 0, self._channel, 0, 0, 0))

    def _receive(self, max: int, wait: Seconds | None, lease: Seconds | None, attempt_id: str | None) -> Receive:
        return Receive(
            queue=self._queue,
            channel=self._channel,
            limit=max if max.__class__ is int and max > 0 else most(max),  # every receive passes here
            wait_ms=None if wait is None else length_ms(wait, "wait"),
            lease_ms=None if lease is None else length_ms(lease, "lease"),
            session=self._session,
            attempt_id=attempt_id,
        )

    # -- settling by receipt --

    async def ack(self, receipt: str | Iterable[str]) -> int:
        """The work is done. Settles all it can, then raises the first refusal. Returns the number of messages."""
        command = Ack(queue=self._queue, channel=self._channel, receipts=listed(receipt))
        return Settled.check(await self._caller.call(command))

    async def release(self, receipt: str | Iterable[str], *, delay: Seconds | None = None, error: str = "") -> int:
        """The work failed: the messages are delivered again, after `delay` (None: by the queue's backoff)."""
        delay_ms, receipts = length_ms(delay, "delay"), listed(receipt)
        command = Release(queue=self._queue, channel=self._channel, receipts=receipts, delay_ms=delay_ms, error=error)
        return Settled.check(await self._caller.call(command))

    async def extend(self, receipt: str | Iterable[str], lease: Seconds) -> int:
        """The work takes longer: the leases end `lease` seconds from now. 0 gives the messages back."""
        lease_ms, receipts = lease_length_ms(lease), listed(receipt)
        command = Extend(queue=self._queue, channel=self._channel, spans=[], lease_ms=lease_ms, receipts=receipts)
        return Settled.check(await self._caller.call(command))

    # -- looking --

    async def peek(self, max: int = 10) -> list[PeekedMessage]:
        """The first messages that are not done, whatever their state. They are not received."""
        return await self.browse(limit=most(max))

    async def browse(
        self, *, after: int = -1, limit: int = 100, states: Iterable[State] = WAITING, contains: Body | None = None
    ) -> list[PeekedMessage]:
        """Messages in order, beginning after sequence number `after`. They are not received."""
        seen: list[Seen] = await self._caller.call(
            Browse(
                queue=self._queue,
                channel=self._channel,
                after=after,
                limit=limit,
                states=tuple(states),
                contains=None if contains is None else encode_body(contains),
            )
        )
        if not seen:
            return []
        info: QueueInfo = await self._caller.call(DescribeQueue(name=self._queue))
        return [PeekedMessage(self._caller.identity, info.queue_id, one) for one in seen]

    # -- one by one, without a lease --

    async def look_up(self, message: str | int) -> MessageLife:
        """A message of this queue by its id or its sequence number, with everything that is known about it.

        Raises `MessageNotFound` if it is done in every channel, or was deleted.
        """
        (sequence,) = await sequences_of(self._caller, self._queue, [message])
        found: list[Life] = await self._caller.call(LookUp(queue=self._queue, sequences=[sequence]))
        if isinstance(message, str) and not (found and not found[0].is_done):
            for again in await came_back(self._caller, self._queue, [message]):
                found = await self._caller.call(LookUp(queue=self._queue, sequences=[again]))
        if not found:
            raise MessageNotFound(absent(message, self._queue))
        return MessageLife(self._caller.identity, found[0])

    async def delete_messages(self, messages: Iterable[str | int]) -> int:
        """Delete messages by id or sequence number, even if somebody holds them. Returns the number of messages.

        A queue deletes them in all its channels, and a channel only for itself.
        """
        return await self._change(DeleteMessages(queue=self._queue, sequences=[], channel=self._deletes_in()), messages)

    async def release_messages(self, messages: Iterable[str | int]) -> int:
        """Make messages ready now. Their delays end, and so do their leases, which counts as a failed delivery."""
        return await self._reschedule(messages, 0)

    async def reschedule_messages(
        self, messages: Iterable[str | int], *, due: Moment | None = None, delay: Seconds | None = None
    ) -> int:
        """Make messages due at another time: at `due`, or in `delay` seconds. Their leases end first."""
        if (due is None) == (delay is None):
            raise InvalidRequest("give due or delay, not both")
        return await self._reschedule(messages, moment_ms(due, "due") or 0, length_ms(delay, "delay"))

    async def _reschedule(self, messages: Iterable[str | int], due_ms: int, delay_ms: int | None = None) -> int:
        command = RescheduleMessages(
            queue=self._queue, sequences=[], channel=self._channel, due_ms=due_ms, delay_ms=delay_ms
        )
        return await self._change(command, messages)

    async def _change(self, command: DeleteMessages | RescheduleMessages, messages: Iterable[str | int]) -> int:
        """Change messages, and then those that a redrive has brought back under their ids."""
        given = [messages] if isinstance(messages, str) else list(messages)
        command.sequences = await sequences_of(self._caller, self._queue, given)
        changed: Changed = await self._caller.call(command)
        count, done = changed.count, set(changed.missing)
        if done and any(isinstance(one, str) for one in given):
            info: QueueInfo = await self._caller.call(DescribeQueue(name=self._queue))
            ids = [one for one in given if isinstance(one, str)]
            gone = [one for one in ids if sequence_in(one, self._caller.identity.realm, info.queue_id) in done]
            again = await came_back(self._caller, self._queue, gone, command.channel or MAIN)
            if again:
                command.sequences = again
                changed = await self._caller.call(command)
                count += changed.count
        return count

    def _deletes_in(self) -> str | None:
        return self._channel

    async def search(self, contains: Body, *, after: int = -1, limit: int = 100) -> list[PeekedMessage]:
        """Messages whose body contains these bytes. They are not received."""
        return await self.browse(after=after, limit=limit, contains=encode_body(contains))


class AsyncConsumer:
    """Reads a queue by offset, at its own pace. The queue remembers its offset from the first acknowledgement on."""

    __slots__ = ("_caller", "_queue", "name")

    def __init__(self, caller: AsyncCaller, queue: str, name: str) -> None:
        self._caller = caller
        self._queue = queue
        self.name = name

    async def read(self, max: int = 100, *, offset: int | None = None) -> RecordList:
        """Up to `max` messages from `offset` on. Without `offset`, from the consumer's own offset."""
        command = ReadRecords(queue=self._queue, consumer=self.name, offset=offset, limit=most(max))
        return record_list(self._caller.identity, await self._caller.call(command))

    async def ack(self, offset: int | Record, *, allow_rewind: bool = False) -> int:
        """Remember that everything before `offset` is read. With a record: that record, and everything before it.

        Moving backwards needs `allow_rewind`; without it, this raises `RewindRefused`. Returns the offset.
        """
        before = offset.offset + 1 if isinstance(offset, Record) else offset
        command = AckConsumer(queue=self._queue, consumer=self.name, offset=before, allow_rewind=allow_rewind)
        remembered: int = await self._caller.call(command)
        return remembered

    @property
    async def offset(self) -> int | None:
        """The offset of the consumer. None if it has never acknowledged anything."""
        stats: Stats = await self._caller.call(QueueStats(name=self._queue))
        return stats.consumers.get(self.name)

    async def delete(self) -> None:
        """Delete the consumer. Messages are no longer kept for it."""
        await self._caller.call(DeleteConsumer(queue=self._queue, consumer=self.name))

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self._queue!r}>"


class AsyncChannel(AsyncReceiver):
    """Every channel gets every message of its queue; within a channel each message goes to one receiver."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._channel

    async def pause(self) -> None:
        """Deliver no messages until `unpause`."""
        await self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=True))

    async def unpause(self) -> None:
        """Deliver messages again."""
        await self._caller.call(PauseChannel(queue=self._queue, channel=self._channel, paused=False))

    async def purge(self) -> int:
        """Drop the channel's messages, also those in flight. Other channels keep theirs. Returns their number."""
        count: int = await self._caller.call(PurgeChannel(queue=self._queue, channel=self._channel))
        return count

    async def delete(self) -> None:
        """Delete the channel, and the messages that only it still needed."""
        await self._caller.call(DeleteChannel(queue=self._queue, channel=self._channel))

    async def stats(self) -> ChannelStats:
        """Exact counts of this channel."""
        stats: Stats = await self._caller.call(QueueStats(name=self._queue))
        if self._channel not in stats.channels:
            raise ChannelNotFound(f"queue {self._queue!r} has no channel {self._channel!r}")
        return stats.channels[self._channel]

    def __repr__(self) -> str:
        return f"<Channel {self._channel!r} of {self._queue!r}>"


class AsyncQueue(AsyncReceiver):
    """A handle on a queue. The first message creates the queue, or `create_queue` does.

    `receive` reads the channel `main`. `channel(name)` gives other channels.
    """

    __slots__ = ()

    def __init__(self, caller: AsyncCaller, name: str, session: int = 0) -> None:
        super().__init__(caller, name, MAIN, session)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue

    def _deletes_in(self) -> str | None:
        return None  # in every channel

    # -- sending --

    async def send(
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
        """Send one message. It is on the disk when this returns.

        `delay` (a length of time) or `due` (a point in time) holds it back. The highest `priority`, 0 to 9, is received
        first.
        """
        command = Send(
            queue=self._queue,
            bodies=[body if isinstance(body, bytes) else encode_body(body)],
            attributes=[encode_attributes(attributes)] if attributes else None,
            groups=None if group is None else [group],
            dedup_ids=None if dedup_id is None else [dedup_id],
            priority=priority,
            delay_ms=None if delay is None else length_ms(delay, "delay"),
            due_ms=None if due is None else moment_ms(due, "due"),
        )
        sent: Sent = await self._caller.call(command)
        sequence = sent.sequence(0)
        message_id = self._caller.identity.message_id(sent.queue_id, sequence)
        return SentMessage(message_id, sequence, bool(sent.duplicates))

    async def send_many(
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
        """Send many messages: all of them or, with an error, none. The lists are as long as `bodies`."""
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
        return SentMessages(self._caller.identity, await self._caller.call(command))

    # -- reading in other ways --

    async def channel(self, name: str, *, start: str | datetime | float = "head") -> AsyncChannel:
        """The channel of this name. It is created if it does not exist, and so is the queue.

        A new channel starts at the `head` (all messages that are still stored), at the `tail` (only later messages), or
        at a point in time.
        """
        if not self._caller.read_only:
            begin = start if isinstance(start, str) else moment_ms(start, "start") or 0
            await self._make_channel(CreateChannel(queue=self._queue, channel=name, start=begin))
        return AsyncChannel(self._caller, self._queue, name, self._session)

    async def _make_channel(self, command: CreateChannel) -> None:
        try:
            await self._caller.call(command)
        except QueueNotFound:
            await self._caller.call(CreateQueue(name=self._queue))
            await self._caller.call(command)

    def consumer(self, name: str) -> AsyncConsumer:
        """The consumer of this name. It reads by offset, and leases nothing."""
        return AsyncConsumer(self._caller, self._queue, name)

    # -- the queue itself --

    async def configure(self, **settings: Unpack[QueueSettings]) -> QueueInfo:
        """Change some settings of the queue. Lengths of time are seconds."""
        info: QueueInfo = await self._caller.call(ChangeQueue(name=self._queue, changes=changes_of(settings)))
        return info

    async def info(self) -> QueueInfo:
        """The queue's configuration and channels."""
        info: QueueInfo = await self._caller.call(DescribeQueue(name=self._queue))
        return info

    async def stats(self) -> Stats:
        """Exact counts of the queue and of each channel."""
        stats: Stats = await self._caller.call(QueueStats(name=self._queue))
        return stats

    async def purge(self) -> int:
        """Delete all messages, also those in flight. Returns the number of messages."""
        count: int = await self._caller.call(PurgeQueue(name=self._queue))
        return count

    async def delete(self) -> None:
        """Delete the queue with its messages, channels and consumers."""
        await self._caller.call(DeleteQueue(name=self._queue))

    def __repr__(self) -> str:
        return f"<Queue {self._queue!r}>"
