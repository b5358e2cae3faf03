"""Messages: sending, receiving, settling, looking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import UNSET

from penstock.core.commands import (
    Ack,
    Browse,
    CommitWork,
    Extend,
    GiveBack,
    Receive,
    Refused,
    Release,
    Seen,
    Send,
    Sent,
    Settled,
    Span,
)
from penstock.core.delivery.states import State
from penstock.core.errors import ChannelNotFound, ForeignReceipt, InvalidRequest, PenstockError
from penstock.core.queues.attributes import encode_attributes
from penstock.protocols.rest.caller import Caller
from penstock.protocols.rest.contents import (
    attributes_in,
    decode_text,
    milliseconds,
    received_messages,
    received_runs,
    seen_message,
)
from penstock.protocols.rest.intervening import first_of
from penstock.protocols.rest.masks import masks_of
from penstock.protocols.rest.operations import BATCH, JSON, Resource, operation
from penstock.protocols.rest.problems import code_of, invalid
from penstock.protocols.rest.shapes import (
    SEQUENCE_MAX,
    BrowseQuery,
    ExtendBatch,
    ExtendRequest,
    Held,
    NewMessage,
    Receipt,
    ReceiveBatch,
    ReceivedBatch,
    ReceiveOptions,
    ReceiveRequest,
    RefusedReceipt,
    ReleaseBatch,
    ReleaseRequest,
    SeenMessages,
    SendBatch,
    SendQuery,
    SentBatch,
    SentMessage,
    SentMessages,
    SettleBatch,
    SettledBatch,
    SettledReceipts,
)
from penstock.server.shards import Names

_ATTEMPT_MAX = (1 << 32) - 1
Settle = Callable[..., Ack | Release | Extend | GiveBack]
"""Makes a command for spans of a queue and a channel."""


class Messages(Resource):
    """Messages."""

    tag = "messages"

    # -- sending --

    @operation("POST", "/v1/queues/{queue}/messages", status=201, offers=(JSON, BATCH))
    async def send_messages(
        self, caller: Caller, queue: str, query: SendQuery, body: NewMessage | list[NewMessage] | SendBatch
    ) -> SentMessages | SentBatch:
        """Send one message (an object) or many (an array): all of them, or none."""
        caller.need(queue, Send)
        if isinstance(body, SendBatch):
            return await self._send_batch(caller, queue, query.create, body)
        messages = body if isinstance(body, list) else [body]
        sent = await self.send_all(caller, [(queue, message) for message in messages], create=query.create)
        return SentMessages(messages=sent)

    async def send_all(
        self, caller: Caller, messages: Sequence[tuple[str, NewMessage]], *, create: bool
    ) -> list[SentMessage]:
        """Send messages, each to its queue, in one commit."""
        if not messages:
            raise invalid("nothing to send: give at least one message")
        sends, places = sends_of(messages, create=create)
        if len(sends) == 1:
            replies: list[Sent] = [await self.shard.call(caller.named(sends[0]))]
        else:
            replies = await self.shard.call(caller.named(CommitWork(acks=[], sends=sends)))
        return self.sent_messages(replies, places)

    def sent_messages(self, replies: list[Sent], places: list[tuple[int, int]]) -> list[SentMessage]:
        """What became of each message, by the command it went with and its index there."""
        duplicates = [frozenset(reply.duplicates) for reply in replies]
        found: list[SentMessage] = []
        for number, index in places:
            reply, sequence = replies[number], replies[number].sequence(index)
            found.append(
                SentMessage(
                    id=self.broker.message_id(reply.queue_id, sequence) if sequence >= 0 else None,
                    sequence=sequence if sequence >= 0 else None,
                    duplicate=index in duplicates[number],
                )
            )
        return found

    async def _send_batch(self, caller: Caller, queue: str, create: bool, batch: SendBatch) -> SentBatch:
        for column in ("attributes", "groups", "dedup_ids"):
            values = getattr(batch, column)
            if values is not None and len(values) != len(batch.bodies):
                raise invalid(f"{column}: {len(values)} were given for {len(batch.bodies)} bodies: give one for each")
        attributes = None
        if batch.attributes is not None:
            attributes = [encode_attributes(each) for each in batch.attributes]
        command = Send(
            queue=queue,
            bodies=batch.bodies,
            attributes=attributes,
            groups=batch.groups,
            dedup_ids=batch.dedup_ids,
            priority=batch.priority,
            delay_ms=milliseconds(batch.delay, "delay"),
            due_ms=milliseconds(batch.due, "due"),
            create=create,
        )
        sent: Sent = await self.shard.call(caller.named(command))
        return SentBatch(sent.queue_id, sent.first, sent.count, sent.sequences, sent.duplicates)

    # -- receiving --

    @operation("POST", "/v1/queues/{queue}/receive", offers=(JSON, BATCH), reveals=True)
    async def receive_messages(
        self, caller: Caller, queue: str, body: ReceiveRequest | ReceiveBatch
    ) -> Receipt | ReceivedBatch:
        """Receive messages: they are the caller's until the lease ends.

        With `wait`, the answer comes when there are messages, or when the time is up. A caller that hangs up meanwhile
        takes no message with it.
        """
        return await self._receive(caller, queue, body.channel, body)

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/receive", offers=(JSON, BATCH), reveals=True)
    async def receive_from_channel(
        self, caller: Caller, queue: str, channel: str, body: ReceiveOptions | ReceiveBatch
    ) -> Receipt | ReceivedBatch:
        """Receive messages through a channel."""
        return await self._receive(caller, queue, channel, body)

    async def _receive(
        self, caller: Caller, queue: str, channel: str, body: ReceiveOptions | ReceiveBatch
    ) -> Receipt | ReceivedBatch:
        caller.need(queue, Receive)
        if not 1 <= body.max <= self.settings.receive_max:
            raise InvalidRequest(f"max is {body.max}: it must be from 1 to {self.settings.receive_max}")
        if body.wait is not None and not 0 <= body.wait <= self.settings.wait_max_s:
            raise InvalidRequest(f"wait is {body.wait}: it must be from 0 to {self.settings.wait_max_s:g} seconds")
        wait_ms = milliseconds(body.wait, "wait")
        command = Receive(
            queue=queue,
            channel=channel,
            limit=body.max,
            wait_ms=self.queue(queue).config.receive_wait_ms if wait_ms is None else wait_ms,
            lease_ms=milliseconds(body.lease, "lease"),
            session=self.session(caller, body.session),
            attempt_id=body.attempt_id,
        )
        if not command.wait_ms:
            await caller.room_for(self.shard, queue, command.limit, self.services.settings)
        delivery = self.fit(caller, await caller.receive(self.shard, command))
        if caller.wanted == BATCH:
            spans = [tuple(span) for span in delivery.spans()]
            return ReceivedBatch(
                delivery.queue_id,
                delivery.channel,
                delivery.deadline_ms,
                received_runs(delivery),
                spans,  # type: ignore[arg-type]
            )
        return Receipt(messages=received_messages(self.broker, delivery), deadline=delivery.deadline_ms / 1_000)

    # -- settling --

    @operation("POST", "/v1/queues/{queue}/ack", offers=(JSON, BATCH))
    async def ack_messages(
        self, caller: Caller, queue: str, body: Held | SettleBatch
    ) -> SettledReceipts | SettledBatch:
        """Acknowledge messages: the work is done."""
        return await self._settle(caller, queue, None, body, Ack)

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/ack", offers=(JSON, BATCH))
    async def ack_in_channel(
        self, caller: Caller, queue: str, channel: str, body: Held | SettleBatch
    ) -> SettledReceipts | SettledBatch:
        """Acknowledge messages of a channel."""
        return await self._settle(caller, queue, channel, body, Ack)

    @operation("POST", "/v1/queues/{queue}/release", offers=(JSON, BATCH))
    async def release_messages(
        self, caller: Caller, queue: str, body: ReleaseRequest | ReleaseBatch
    ) -> SettledReceipts | SettledBatch:
        """Release messages: the work failed, and they are delivered again."""
        return await self._settle(caller, queue, None, body, _releasing(body))

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/release", offers=(JSON, BATCH))
    async def release_in_channel(
        self, caller: Caller, queue: str, channel: str, body: ReleaseRequest | ReleaseBatch
    ) -> SettledReceipts | SettledBatch:
        """Release messages of a channel."""
        return await self._settle(caller, queue, channel, body, _releasing(body))

    @operation("POST", "/v1/queues/{queue}/extend", offers=(JSON, BATCH))
    async def extend_leases(
        self, caller: Caller, queue: str, body: ExtendRequest | ExtendBatch
    ) -> SettledReceipts | SettledBatch:
        """Extend leases: the work takes longer. A lease ends twelve hours after the receive at the latest."""
        return await self._settle(caller, queue, None, body, _extending(body))

    @operation("POST", "/v1/queues/{queue}/channels/{channel}/extend", offers=(JSON, BATCH))
    async def extend_in_channel(
        self, caller: Caller, queue: str, channel: str, body: ExtendRequest | ExtendBatch
    ) -> SettledReceipts | SettledBatch:
        """Extend leases of a channel."""
        return await self._settle(caller, queue, channel, body, _extending(body))

    async def _settle(
        self, caller: Caller, queue: str, channel: str | None, body: Held | SettleBatch, command_for: Settle
    ) -> SettledReceipts | SettledBatch:
        caller.need(queue, Ack)
        if isinstance(body, SettleBatch):
            return await self._settle_batch(caller, queue, channel, body, command_for)
        channels = self.queue(queue).channels
        if channel is not None and channel not in channels:
            raise ChannelNotFound(f"queue {queue!r} has no channel {channel!r}: create it first")
        if (body.receipt is UNSET) == (body.receipts is UNSET):
            raise invalid("give receipt or receipts, not both")
        receipts = [body.receipt] if isinstance(body.receipt, str) else body.receipts
        assert isinstance(receipts, list)
        settled, refused = await self._settle_receipts(caller, queue, channel, receipts, command_for)
        if refused and body.receipts is UNSET:
            raise refused[0][1]
        return SettledReceipts(
            settled=settled,
            refused=[RefusedReceipt(receipt=text, code=code_of(error), detail=str(error)) for text, error in refused],
        )

    async def _settle_receipts(
        self, caller: Caller, queue: str, channel: str | None, receipts: list[str], command_for: Settle
    ) -> tuple[int, list[tuple[str, PenstockError]]]:
        await self.shard.know(receipts=receipts)
        holdings, refused = sort_receipts(self.broker, receipts, queue, channel)
        count = 0
        for number, holding in enumerate(holdings):
            command = command_for(queue=holding.queue, channel=holding.channel, spans=holding.spans)
            settled: Settled = await self.shard.call(caller.named(command, number))
            count += settled.count
            refused += holding.refused(settled)
        return count, refused

    async def _settle_batch(
        self, caller: Caller, queue: str, channel: str | None, batch: SettleBatch, command_for: Settle
    ) -> SettledBatch:
        if self.queue(queue).id != batch.queue_id:
            raise ForeignReceipt(f"queue {queue!r} is not the one that these messages came from: it was created again")
        spans = [Span(*span) for span in batch.spans]
        for first, last, attempt in spans:
            if not (0 <= first <= last <= SEQUENCE_MAX and 0 <= attempt <= _ATTEMPT_MAX):
                raise invalid(f"spans: ({first}, {last}, {attempt}) is not (first, last, attempt)")
        command = command_for(queue=queue, channel=channel or batch.channel, spans=spans)
        settled: Settled = await self.shard.call(caller.named(command))
        refused = [(each.first, each.last, code_of(each.error), str(each.error)) for each in settled.refused]
        return SettledBatch(settled.count, refused)

    # -- looking --

    @operation("GET", "/v1/queues/{queue}/messages")
    async def browse_messages(self, caller: Caller, queue: str, query: BrowseQuery) -> SeenMessages:
        """Look at messages without receiving them: peek, browse, search."""
        caller.need(queue, Browse)
        command = Browse(
            queue=queue,
            channel=query.channel,
            after=query.after,
            limit=query.limit,
            states=tuple(State[name.upper()] for name in query.states),
            contains=None if query.contains is None else decode_text(query.contains, query.encoding, "contains"),
        )
        await caller.room_for(self.shard, queue, query.limit, self.services.settings)
        seen = await first_of(self, command)
        page = self.page(seen)
        await self.shard.know(queue)
        queue_id = self.queue(queue).id
        messages = [seen_message(self.broker, queue_id, one) for one in page]
        return SeenMessages(
            messages=await masks_of(self.services).hide(messages),
            next=page[-1].sequence if len(page) < len(seen) or len(seen) == query.limit else None,
        )

    def page(self, seen: list[Seen]) -> list[Seen]:
        """As much as a response holds; one message in any case."""
        size = 0
        for number, one in enumerate(seen):
            size += int(one.chunk.offsets[one.index + 1] - one.chunk.offsets[one.index])
            if size > self.settings.response_bytes_max and number:
                return seen[:number]
        return seen


def _releasing(body: ReleaseRequest | ReleaseBatch) -> Settle:
    delay_ms, error = milliseconds(body.delay, "delay"), body.error
    if body.failed:
        return partial(Release, delay_ms=delay_ms, error=error)
    if error or delay_ms is not None:
        raise InvalidRequest("messages that did not fail are returned unchanged: leave out error and delay, or failed")
    return GiveBack


def _extending(body: ExtendRequest | ExtendBatch) -> Settle:
    lease_ms = milliseconds(body.lease, "lease")
    assert lease_ms is not None
    return partial(Extend, lease_ms=lease_ms)


def sends_of(messages: Sequence[tuple[str, NewMessage]], *, create: bool) -> tuple[list[Send], list[tuple[int, int]]]:
    """As few sends as possible, each in the order given; and for each message, in which one it is and where."""
    sends: dict[tuple[str, int, int | None, int | None], Send] = {}
    numbers: dict[tuple[str, int, int | None, int | None], int] = {}
    places: list[tuple[int, int]] = []
    for position, (queue, message) in enumerate(messages):
        where = f"messages[{position}]." if len(messages) > 1 else ""
        key = (queue, message.priority, milliseconds(message.delay, "delay"), milliseconds(message.due, "due"))
        send = sends.get(key)
        if send is None:
            send = sends[key] = Send(
                queue=queue, bodies=[], priority=key[1], delay_ms=key[2], due_ms=key[3], create=create
            )
            send.attributes, send.groups, send.dedup_ids = [], [], []
            numbers[key] = len(numbers)
        assert isinstance(send.bodies, list)
        assert send.attributes is not None
        assert send.groups is not None
        assert send.dedup_ids is not None
        places.append((numbers[key], len(send.bodies)))
        send.bodies.append(decode_text(message.body, message.encoding, f"{where}body"))
        send.attributes.append(encode_attributes(attributes_in(message.attributes, where)))
        send.groups.append(message.group)
        send.dedup_ids.append(message.dedup_id)
    for send in sends.values():
        for column in ("attributes", "groups", "dedup_ids"):
            if not any(getattr(send, column)):
                setattr(send, column, None)
    return list(sends.values()), places


# -- receipts ----------------------------------------------------------------------------------------------------------


class Holding(NamedTuple):
    """Messages of one channel that a caller holds, at most once each, with the receipts that say so."""

    queue: str
    channel: str
    receipts: dict[int, tuple[str, int]]
    """Sequence number -> receipt, attempt."""

    @property
    def spans(self) -> list[Span]:
        """As few spans as possible."""
        merged: list[Span] = []
        for sequence, (_, attempt) in sorted(self.receipts.items()):
            last = merged[-1] if merged else None
            if last is not None and last.last + 1 == sequence and last.attempt == attempt:
                merged[-1] = Span(last.first, sequence, attempt)
            else:
                merged.append(Span(sequence, sequence, attempt))
        return merged

    def refused(self, settled: Settled) -> list[tuple[str, PenstockError]]:
        """The receipts that were refused, and why."""
        return [(receipt, refusal.error) for refusal in settled.refused for receipt in self._within(refusal)]

    def _within(self, refusal: Refused) -> Iterable[str]:
        if refusal.last - refusal.first < len(self.receipts):
            numbers: Iterable[int] = range(refusal.first, refusal.last + 1)
        else:
            numbers = [number for number in self.receipts if refusal.first <= number <= refusal.last]
        return [self.receipts[number][0] for number in numbers if number in self.receipts]


class Sorted(NamedTuple):
    """Receipts, sorted by channel, and those that could not be read."""

    holdings: list[Holding]
    refused: list[tuple[str, PenstockError]]


def sort_receipts(broker: Names, texts: Iterable[str], queue: str | None, channel: str | None) -> Sorted:
    """Find out what receipts are for: of this queue and channel, if they are given.

    The same receipt twice counts once. Two receipts of one message, on different attempts, go into two holdings.
    """
    rounds: list[dict[tuple[str, str], Holding]] = []
    refused: list[tuple[str, PenstockError]] = []
    for text in dict.fromkeys(texts):
        try:
            owner, held_in, sequence, attempt = _opened(broker, text, queue, channel)
        except PenstockError as error:
            refused.append((text, error))
            continue
        for holdings in rounds:
            holding = holdings.setdefault((owner, held_in), Holding(owner, held_in, {}))
            if sequence not in holding.receipts:
                break
        else:
            holding = Holding(owner, held_in, {})
            rounds.append({(owner, held_in): holding})
        holding.receipts[sequence] = (text, attempt)
    return Sorted([holding for holdings in rounds for holding in holdings.values()], refused)


def _opened(broker: Names, text: str, queue: str | None, channel: str | None) -> tuple[str, str, int, int]:
    receipt = broker.open_receipt(text)
    owner = broker.queue_name(receipt.queue_id)
    held_in = broker.channel_name(receipt.queue_id, receipt.channel_id)
    if owner is None or held_in is None:
        raise ForeignReceipt("the receipt belongs to a queue or a channel that no longer exists")
    if queue is not None and owner != queue:
        raise ForeignReceipt(f"the receipt belongs to queue {owner!r}, and not to {queue!r}")
    if channel is not None and held_in != channel:
        raise ForeignReceipt(f"the receipt belongs to channel {held_in!r} of {owner!r}, and not to {channel!r}")
    return owner, held_in, receipt.sequence, receipt.attempt
