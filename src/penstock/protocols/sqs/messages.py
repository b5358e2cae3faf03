"""Sending, receiving and settling one message at a time."""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.core.attributes import encode_attributes
from penstock.core.commands import Ack, Delivery, Extend, Receive, Send, Sent, Settled, Span
from penstock.core.config import QueueConfig
from penstock.core.errors import LeaseTooLong, PenstockError, StaleReceipt
from penstock.protocols.sqs import message_attributes, plain
from penstock.protocols.sqs.attributes import message_bytes_max
from penstock.protocols.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    MESSAGE_NOT_INFLIGHT,
    RECEIPT_HANDLE_IS_INVALID,
    SqsError,
    from_core,
    invalid_value,
    missing,
    no_such_queue,
)
from penstock.protocols.sqs.limits import VISIBILITY_SECONDS_MAX
from penstock.protocols.sqs.received import NOTHING, Unpacking, Wanted, md5, sequence_number
from penstock.protocols.sqs.service import Caller, ask
from penstock.protocols.sqs.shapes import (
    ChangeMessageVisibilityRequest,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResult,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
    SendMessageResult,
)
from penstock.server.shards import QueueFace

_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_SECOND_MS = 1_000


class Draft(NamedTuple):
    """A message on its way in, checked."""

    body: bytes
    attributes: bytes | None
    size: int
    delay_ms: int | None
    group: str | None
    dedup_id: str | None
    md5_of_attributes: str | None
    md5_of_system_attributes: str | None


class MessageActions(Unpacking):
    """The actions on one message, and what batches share with them."""

    async def SendMessage(self, caller: Caller, request: SendMessageRequest) -> SendMessageResult | bytes:
        """Send a message."""
        name = self.queue_name(caller, request.queue_url, Send)
        config = self.config(name) or await self.existing(name)
        if may_be_plain(caller, config) and is_bare(request):
            body = self._plain_body(request.message_body, config)
            reply: Sent = await ask(Send(queue=name, bodies=[body], create=False))
            checksums = [md5(body)]
            self.remembered.add(reply.queue_id, reply.first, checksums)
            return plain.sent(checksums[0], self.message_id(reply.queue_id, reply.first))
        draft = self.draft(caller, request, config)
        sent: Sent = await ask(
            Send(
                queue=name,
                bodies=[draft.body],
                attributes=None if draft.attributes is None else [draft.attributes],
                groups=None if draft.group is None else [draft.group],
                dedup_ids=None if draft.dedup_id is None else [draft.dedup_id],
                delay_ms=draft.delay_ms,
                create=False,
            )
        )
        sequence = sent.first
        return SendMessageResult(
            md5(draft.body),
            draft.md5_of_attributes,
            draft.md5_of_system_attributes,
            self.message_id(sent.queue_id, sequence),
            sequence_number(sequence) if config.is_fifo else None,
        )

    async def ReceiveMessage(self, caller: Caller, request: ReceiveMessageRequest) -> ReceiveMessageResult | bytes:
        """Receive messages, now or as soon as there are any."""
        name = self.queue_name(caller, request.queue_url, Receive)
        config = self.config(name) or await self.existing(name)
        self._check_receive(request, config)
        wanted = Wanted.of(request)
        wait_s, visibility_s = request.wait_time_seconds, request.visibility_timeout
        wait_ms = config.receive_wait_ms if wait_s is None else wait_s * _SECOND_MS
        delivery: Delivery | None = await ask(
            Receive(
                queue=name,
                limit=request.max_number_of_messages or 1,
                wait_ms=wait_ms,
                lease_ms=None if visibility_s is None else visibility_s * _SECOND_MS,
                attempt_id=request.receive_request_attempt_id,
            )
        )
        if delivery is None or not delivery.runs:
            return ReceiveMessageResult()
        if wanted is NOTHING and caller.is_plain:
            answer = self.unpack_plain(delivery)
            if answer is not None:
                return answer
        return ReceiveMessageResult(self.unpack(delivery, config.is_fifo, wanted))

    async def DeleteMessage(self, caller: Caller, request: DeleteMessageRequest) -> None:
        """Delete a message that was received. One that is gone already, or that somebody else has, is fine."""
        name = self.queue_name(caller, request.queue_url, Ack)
        queue = self.broker.queues.get(name) or await self.queue(name)
        channel, span = self.held(queue, request.receipt_handle)
        settled: Settled = await ask(Ack(queue=queue.name, channel=channel, spans=[span]))
        if settled.refused and queue.config.is_fifo:
            raise expired(request.receipt_handle)

    async def ChangeMessageVisibility(self, caller: Caller, request: ChangeMessageVisibilityRequest) -> None:
        """Keep a message longer, or give it back."""
        name = self.queue_name(caller, request.queue_url, Extend)
        queue = self.broker.queues.get(name) or await self.queue(name)
        channel, span = self.held(queue, request.receipt_handle)
        visibility_s = check_visibility(request.visibility_timeout)
        settled: Settled = await ask(
            Extend(queue=queue.name, channel=channel, spans=[span], lease_ms=visibility_s * _SECOND_MS)
        )
        if settled.refused:
            raise not_changed(settled.refused[0].error, visibility_s)

    # -- sending --

    @staticmethod
    def _plain_body(text: str | None, config: QueueConfig) -> bytes:
        """As `draft` has it, for a text that is plain."""
        if not text:
            raise missing("MessageBody")
        body = text.encode()
        limit = message_bytes_max(config)
        if len(body) > limit:
            raise too_long(limit)
        return body

    def draft(
        self, caller: Caller, entry: SendMessageRequest | SendMessageBatchRequestEntry, config: QueueConfig
    ) -> Draft:
        """A message as the core takes it, or what is wrong with it."""
        text = entry.message_body
        if not text:
            raise missing("MessageBody")
        found = message_attributes.not_allowed_in(text)
        if found is not None:
            raise SqsError(
                INVALID_MESSAGE_CONTENTS,
                f"Invalid binary character '#x{ord(found):X}' was found in the message body, "
                f"{message_attributes.ALLOWED}",
            )
        body = text.encode()
        size = len(body)
        attributes: bytes | None = None
        md5_of_attributes = md5_of_system_attributes = None
        if entry.message_attributes or entry.message_system_attributes or caller.principal.access_key:
            attributes, added, md5_of_attributes, md5_of_system_attributes = self._attributes(caller, entry)
            size += added
        limit = message_bytes_max(config)
        if size > limit:
            raise too_long(limit)
        delay_s, group, dedup_id = entry.delay_seconds, entry.message_group_id, entry.message_deduplication_id
        if config.is_fifo or group is not None or dedup_id is not None:
            check_grouping(group, dedup_id, config)
        if delay_s is not None:
            self._check_delay(delay_s, config)
        return Draft(
            body,
            attributes,
            size,
            None if delay_s is None or config.is_fifo else delay_s * _SECOND_MS,
            group,
            dedup_id,
            md5_of_attributes,
            md5_of_system_attributes,
        )

    def _attributes(
        self, caller: Caller, entry: SendMessageRequest | SendMessageBatchRequestEntry
    ) -> tuple[bytes | None, int, str | None, str | None]:
        """The stored form of a message's attributes, what they count, and their checksums."""
        own, system = entry.message_attributes, entry.message_system_attributes
        size = 0
        md5_of_own = md5_of_system = None
        if own:
            message_attributes.check(own, self.limits.message_attributes_max)
            size = message_attributes.size(own)
            md5_of_own = message_attributes.checksum(own)
        if system:
            message_attributes.check_system(system)
            md5_of_system = message_attributes.checksum(system)
        stored = message_attributes.to_stored(own, system)
        if caller.sender_id is not None:
            stored[message_attributes.STORED_SENDER] = caller.sender_id
        return encode_attributes(stored), size, md5_of_own, md5_of_system

    def _check_delay(self, delay_s: int, config: QueueConfig) -> None:
        if config.is_fifo and delay_s:
            raise invalid_value(
                delay_s, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        limit = self.limits.delay_seconds_max
        if not 0 <= delay_s <= limit:
            raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {limit}.")

    # -- receiving --

    def _check_receive(self, request: ReceiveMessageRequest, config: QueueConfig) -> None:
        count, limit = request.max_number_of_messages, self.limits.receive_max
        if count is not None and not 1 <= count <= limit:
            raise invalid_value(count, "MaxNumberOfMessages", f"Must be between 1 and {limit}, if provided.")
        wait_s, limit = request.wait_time_seconds, self.limits.wait_seconds_max
        if wait_s is not None and not 0 <= wait_s <= limit:
            raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {limit}, if provided.")
        if request.visibility_timeout is not None:
            check_visibility(request.visibility_timeout)
        attempt_id = request.receive_request_attempt_id
        if attempt_id is not None:
            if not config.is_fifo:
                raise invalid_value(
                    attempt_id,
                    "ReceiveRequestAttemptId",
                    "The request include parameter that is not valid for this queue type.",
                )
            check_token(attempt_id, "ReceiveRequestAttemptId")

    # -- settling --

    async def queue(self, name: str) -> QueueFace:
        """A queue to settle messages of. None is created: nobody could hold its messages."""
        await self.learn(name)
        queue = self.broker.queues.get(name)
        if queue is None:
            self.broker.refuse_damaged(name)
            raise no_such_queue()
        return queue

    def held(self, queue: QueueFace, handle: str | None) -> tuple[str, Span]:
        """What a receipt handle says, for a message of this queue: the channel, and which message on which attempt."""
        if not handle:
            raise missing("ReceiptHandle")
        found = self.seal(queue.id).read([handle])
        if found is not None:
            channel_id, sequence, attempt = found[0]
            name = channel_name(queue, channel_id)
            if name is not None:
                return name, Span(sequence, sequence, attempt)
        raise invalid_receipt(handle)


def may_be_plain(caller: Caller, config: QueueConfig) -> bool:
    """Whether a message without anything beside its body needs nothing else here: no attributes, no group."""
    return caller.is_plain and not config.is_fifo and not caller.principal.access_key


def is_bare(entry: SendMessageRequest | SendMessageBatchRequestEntry) -> bool:
    """Whether a message is sent with nothing beside its body."""
    return (
        entry.message_attributes is None
        and entry.delay_seconds is None
        and entry.message_group_id is None
        and entry.message_deduplication_id is None
        and entry.message_system_attributes is None
    )


def channel_name(queue: QueueFace, channel_id: int) -> str | None:
    """The name of a queue's channel."""
    for name, channel in queue.channels.items():
        if channel.id == channel_id:
            return name
    return None


def check_token(text: str, parameter: str) -> None:
    """Raise unless the text can be a group, a dedup id, or a receive attempt id."""
    if not _TOKEN.match(text):
        raise invalid_value(
            text,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


def check_grouping(group: str | None, dedup_id: str | None, config: QueueConfig) -> None:
    """Raise unless group and dedup id are as the queue's kind needs them."""
    if config.is_fifo and group is None:
        raise missing("MessageGroupId")
    if group is not None:
        check_token(group, "MessageGroupId")
    if dedup_id is not None:
        if not config.is_fifo:
            raise invalid_value(
                dedup_id,
                "MessageDeduplicationId",
                "The request include parameter that is not valid for this queue type.",
            )
        check_token(dedup_id, "MessageDeduplicationId")
    elif config.is_fifo and not config.content_dedup:
        raise SqsError(
            INVALID_PARAMETER_VALUE,
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided "
            "explicitly",
        )


def check_visibility(visibility_s: int | None) -> int:
    """The visibility timeout, or what is wrong with it."""
    if visibility_s is None:
        raise missing("VisibilityTimeout")
    if not 0 <= visibility_s <= VISIBILITY_SECONDS_MAX:
        raise invalid_value(
            visibility_s,
            "VisibilityTimeout",
            f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_SECONDS_MAX}.",
        )
    return visibility_s


def too_long(limit: int) -> SqsError:
    """A message with more bytes than its queue takes."""
    return SqsError(
        INVALID_PARAMETER_VALUE,
        f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes.",
    )


def invalid_receipt(handle: str) -> SqsError:
    """A receipt handle that this queue did not give."""
    return SqsError(RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.')


def expired(handle: str | None) -> SqsError:
    """FIFO: the message is somebody else's, or gone."""
    return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")


def not_changed(error: PenstockError, visibility_s: int) -> SqsError:
    """Why a message's visibility was not changed."""
    if isinstance(error, LeaseTooLong):
        return invalid_value(
            visibility_s,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_SECONDS_MAX} seconds].",
        )
    if isinstance(error, StaleReceipt):
        return SqsError(MESSAGE_NOT_INFLIGHT, "The specified message isn't in flight.")
    return from_core(error)
