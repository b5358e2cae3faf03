"""Sending, receiving and settling one message at a time."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from penstock.core.commands import Ack, Delivery, Extend, Receive, Send, Sent, Settled, Span
from penstock.core.errors import LeaseTooLong, PenstockError, StaleReceipt
from penstock.core.queues.attributes import encode_attributes
from penstock.core.queues.config import QueueConfig
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.context import Answer, RequestContext
from penstock.protocols.sqs.errors import (
    INVALID_MESSAGE_CONTENTS,
    INVALID_PARAMETER_VALUE,
    RECEIPT_HANDLE_IS_INVALID,
    SqsError,
    from_core,
    invalid_value,
    missing,
)
from penstock.protocols.sqs.limits import VISIBILITY_SECONDS_MAX
from penstock.protocols.sqs.received import NOTHING, Unpacking, Wanted
from penstock.protocols.sqs.service import SqsQueue, md5, sequence_number
from penstock.protocols.sqs.shapes import (
    ChangeMessageVisibilityRequest,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResult,
    SendMessageBatchRequestEntry,
    SendMessageRequest,
    SendMessageResult,
)

_TOKEN = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}\Z")
_SECOND_MS = 1_000
NO_MESSAGES = ReceiveMessageResult()


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


tuple_of: Final[Any] = tuple.__new__
"""A named tuple is made by a function in Python; one of its base's is a fifth of the price."""
_Draft: Final[Any] = Draft
_Span: Final[Any] = Span


class MessageActions(Unpacking):
    """The actions on one message, and what batches share with them."""

    def SendMessage(self, context: RequestContext, request: SendMessageRequest) -> Answer:
        queue = self.queue(context, request.queue_url, Send, may_create=True)
        draft = self.draft(context, request, queue)

        def answer(sent: Sent) -> SendMessageResult:
            sequence = sent.first
            return SendMessageResult(
                md5(draft.body),
                draft.md5_of_attributes,
                draft.md5_of_system_attributes,
                (queue.ids if sent.queue_id == queue.id else self.message_ids(sent.queue_id)).text(sequence),
                sequence_number(sequence) if queue.is_fifo else None,
            )

        return context.ask(
            Send(
                queue=queue.name,
                bodies=[draft.body],
                attributes=None if draft.attributes is None else [draft.attributes],
                groups=None if draft.group is None else [draft.group],
                dedup_ids=None if draft.dedup_id is None else [draft.dedup_id],
                delay_ms=draft.delay_ms,
                create=False,
            ),
            answer,
        )

    def ReceiveMessage(self, context: RequestContext, request: ReceiveMessageRequest) -> Answer:
        """Receive messages, now or as soon as there are any."""
        queue = self.queue(context, request.queue_url, Receive, may_create=True)
        count, limit = request.max_number_of_messages, self.limits.receive_max
        if count is not None and not 1 <= count <= limit:
            raise invalid_value(count, "MaxNumberOfMessages", f"Must be between 1 and {limit}, if provided.")
        wait_s, limit = request.wait_time_seconds, self.limits.wait_seconds_max
        if wait_s is not None and not 0 <= wait_s <= limit:
            raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {limit}, if provided.")
        visibility_s = request.visibility_timeout
        if visibility_s is not None:
            check_visibility(visibility_s)
        attempt_id = request.receive_request_attempt_id
        if attempt_id is not None:
            if not queue.is_fifo:
                raise invalid_value(
                    attempt_id,
                    "ReceiveRequestAttemptId",
                    "The request include parameter that is not valid for this queue type.",
                )
            check_token(attempt_id, "ReceiveRequestAttemptId")
        wants_more = (
            request.message_system_attribute_names or request.attribute_names or request.message_attribute_names
        )
        wanted = Wanted.of(request) if wants_more else NOTHING

        def answer(delivery: Delivery | None) -> ReceiveMessageResult:
            if delivery is None or not delivery.runs:
                return NO_MESSAGES
            return ReceiveMessageResult(self.unpack(delivery, queue, wanted))

        return context.receive(
            Receive(
                queue=queue.name,
                limit=count or 1,
                wait_ms=queue.config.receive_wait_ms if wait_s is None else wait_s * _SECOND_MS,
                lease_ms=None if visibility_s is None else visibility_s * _SECOND_MS,
                attempt_id=attempt_id,
            ),
            answer,
        )

    def DeleteMessage(self, context: RequestContext, request: DeleteMessageRequest) -> Answer:
        """Delete a message that was received. One that is gone already, or that somebody else has, is fine."""
        queue = self.queue(context, request.queue_url, Ack, may_create=False)
        channel, span = self.held(queue, request.receipt_handle)

        def answer(settled: Settled) -> None:
            if settled.refused and queue.is_fifo:
                raise expired(request.receipt_handle)

        return context.ask(Ack(queue=queue.name, channel=channel, spans=[span], in_time=queue.is_fifo), answer)

    def ChangeMessageVisibility(self, context: RequestContext, request: ChangeMessageVisibilityRequest) -> Answer:
        """Keep a message longer, or give it back."""
        queue = self.queue(context, request.queue_url, Extend, may_create=False)
        channel, span = self.held(queue, request.receipt_handle)
        visibility_s = check_visibility(request.visibility_timeout)

        def answer(settled: Settled) -> None:
            if settled.refused:
                raise not_changed(settled.refused[0].error, request.receipt_handle, visibility_s)

        lease_ms = visibility_s * _SECOND_MS
        return context.ask(
            Extend(queue=queue.name, channel=channel, spans=[span], lease_ms=lease_ms, late=not queue.is_fifo), answer
        )

    # -- sending --

    def draft(
        self, context: RequestContext, entry: SendMessageRequest | SendMessageBatchRequestEntry, queue: SqsQueue
    ) -> Draft:
        """A message as the core takes it, or what is wrong with it."""
        text = entry.message_body
        if not text:
            raise missing("MessageBody")
        if not text.isprintable():  # most are, and it is quickly seen
            check_characters(text)
        body = text.encode()
        size = len(body)
        own, system, delay_s = entry.message_attributes, entry.message_system_attributes, entry.delay_seconds
        group, dedup_id = entry.message_group_id, entry.message_deduplication_id
        md5_of_own = md5_of_system = None
        if own or system or context.trace_header:
            attributes, added, md5_of_own, md5_of_system = self._attributes(context, entry)
            size += added
        else:
            attributes = self.sender_attributes(context.principal) if context.principal.access_key else None
        if size > queue.bytes_max:
            raise SqsError(
                INVALID_PARAMETER_VALUE,
                f"One or more parameters are invalid. Reason: Message must be shorter than {queue.bytes_max} bytes.",
            )
        if queue.is_fifo or group is not None or dedup_id is not None:
            check_grouping(group, dedup_id, queue.config)
        if delay_s is not None:
            self._check_delay(delay_s, queue.config)
        delay_ms = None if delay_s is None or queue.is_fifo else delay_s * _SECOND_MS
        draft: Draft = tuple_of(_Draft, (body, attributes, size, delay_ms, group, dedup_id, md5_of_own, md5_of_system))
        return draft

    def _attributes(
        self, context: RequestContext, entry: SendMessageRequest | SendMessageBatchRequestEntry
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
        if context.trace_header and not system and not message_attributes.not_allowed_in(context.trace_header):
            stored[message_attributes.STORED_TRACE_HEADER] = context.trace_header
        if context.principal.access_key:
            stored[message_attributes.STORED_SENDER] = context.principal.name
        return encode_attributes(stored), size, md5_of_own, md5_of_system

    def _check_delay(self, delay_s: int, config: QueueConfig) -> None:
        if config.is_fifo and delay_s:
            raise invalid_value(
                delay_s, "DelaySeconds", "The request include parameter that is not valid for this queue type."
            )
        limit = self.limits.delay_seconds_max
        if not 0 <= delay_s <= limit:
            raise invalid_value(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {limit}.")

    # -- settling --

    def held(self, queue: SqsQueue, handle: str | None) -> tuple[str, Span]:
        """What a receipt handle says, for a message of this queue: the channel, and which message on which attempt."""
        if not handle:
            raise missing("ReceiptHandle")
        found = queue.seal.read_one(handle)
        if found is not None:
            channel_id, sequence, attempt = found
            name = self.channel_name(queue, channel_id)
            if name is not None:
                return name, tuple_of(_Span, (sequence, sequence, attempt))
        raise SqsError(RECEIPT_HANDLE_IS_INVALID, f'The input receipt handle "{handle}" is not a valid receipt handle.')

    def channel_name(self, queue: SqsQueue, channel_id: int) -> str | None:
        for name, channel in self.shard.identity.queues[queue.name].channels.items():
            if channel.id == channel_id:
                return name
        return None


def check_characters(text: str) -> None:
    """Raise unless a message may have every character of this text."""
    found = message_attributes.not_allowed_in(text)
    if found is not None:
        raise SqsError(
            INVALID_MESSAGE_CONTENTS,
            f"Invalid binary character '#x{ord(found):X}' was found in the message body, {message_attributes.ALLOWED}",
        )


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


def expired(handle: str | None) -> SqsError:
    """FIFO: the message is somebody else's, or gone."""
    return invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")


def not_changed(error: PenstockError, handle: str | None, visibility_s: int) -> SqsError:
    """Why a message's visibility was not changed."""
    if isinstance(error, LeaseTooLong):
        return invalid_value(
            visibility_s,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_SECONDS_MAX} seconds].",
        )
    if isinstance(error, StaleReceipt):
        return invalid_value(
            handle, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change."
        )
    return from_core(error)
