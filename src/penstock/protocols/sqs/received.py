"""A delivery of the core as messages of SQS: ids, receipts, checksums, and what the receiver wants beside the body."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.commands import Delivery, Run
from penstock.core.queues.attributes import Attributes, decode_attributes
from penstock.core.queues.config import dead_letter_name
from penstock.core.queues.origin import Origin
from penstock.core.storage.chunk import Section
from penstock.protocols.sqs import message_attributes
from penstock.protocols.sqs.errors import INVALID_ATTRIBUTE_NAME, SqsError
from penstock.protocols.sqs.service import ServiceBase, SqsQueue, md5, md5_list, sequence_number
from penstock.protocols.sqs.shapes import Message, ReceiveMessageRequest

SYSTEM_ATTRIBUTES = frozenset(
    {
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
        "PenstockDeadLetterReason",
        "PenstockDeadLetterReceiveCount",
    }
)
BY_NAME_ONLY = frozenset({"PenstockDeadLetterReason", "PenstockDeadLetterReceiveCount"})
"""What AWS does not have: who asks for `All` gets what AWS has."""
NOT_TEXT = "\0"
"""Stands for a body that is no text which SQS could carry: none has this character."""
ANONYMOUS_SENDER = "AIDAPENSTOCK"
"""The SenderId of messages whose senders are not known."""


class Wanted(NamedTuple):
    """What a receiver wants to have beside the body."""

    system: frozenset[str]
    own: Callable[[str], bool] | None

    @classmethod
    def of(cls, request: ReceiveMessageRequest) -> Wanted:
        """As a request says."""
        names = request.message_system_attribute_names or ()
        older_names = request.attribute_names or ()
        own = request.message_attribute_names
        system = frozenset(names).union(older_names)
        unknown = system - SYSTEM_ATTRIBUTES
        if unknown:
            raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {min(unknown)}.")
        return cls(system, message_attributes.wanted(own or ()))


NOTHING = Wanted(frozenset(), None)


class Unpacking(ServiceBase):
    """Unpacks deliveries."""

    def unpack(self, delivery: Delivery, queue: SqsQueue, wanted: Wanted) -> list[Message]:
        messages: list[Message] = []
        queue_id, channel_id = delivery.queue_id, delivery.channel_id
        is_same = queue_id == queue.id
        ids = queue.ids if is_same else self.message_ids(queue_id)
        seal = queue.seal if is_same else self.seal(queue_id)
        for run in delivery.runs:
            chunk, start = run.chunk, run.start
            first, attempt = chunk.base + start, run.attempt
            attempts = [attempt] * (run.stop - start) if isinstance(attempt, int) else attempt.tolist()
            receipts = seal.make(channel_id, first, attempts)
            message_ids = ids.texts(first, len(attempts))
            bodies = chunk.body_list(start, run.stop)
            texts = texts_of(bodies)
            made = list(map(Message, message_ids, receipts, md5_list(bodies), texts))
            if wanted is not NOTHING or NOT_TEXT in texts or chunk.column(Section.ORIGINS) is not None:
                for offset, message in enumerate(made):
                    delivered = DeliveredMessage(delivery.queue, run, offset, attempts[offset], queue.is_fifo)
                    self._complete(message, delivered, wanted, bodies[offset])
            messages += made
        return messages

    def _complete(self, message: Message, delivered: DeliveredMessage, wanted: Wanted, body: bytes) -> None:
        """What a message has beside its body, and where it came from."""
        chunk = delivered.run.chunk
        is_encoded = message.body == NOT_TEXT
        if is_encoded:
            encoded = base64.b64encode(body)
            message.body, message.md5_of_body = encoded.decode(), md5(encoded)
        stored_origin = chunk.origin(delivered.position)
        origin = None if stored_origin is None else Origin.decode(stored_origin)
        if origin is not None:
            message.message_id = origin.id
        if wanted is not NOTHING or is_encoded:
            self._add_attributes(message, delivered, origin, wanted, is_encoded)

    def _add_attributes(
        self, message: Message, delivered: DeliveredMessage, origin: Origin | None, wanted: Wanted, is_encoded: bool
    ) -> None:
        stored = decode_attributes(delivered.run.chunk.attributes(delivered.position))
        if wanted.system:
            system = self._system_attributes(delivered, origin, stored)
            wants_all = "All" in wanted.system
            message.attributes = {
                name: value
                for name, value in system.items()
                if value is not None and (name in wanted.system or (wants_all and name not in BY_NAME_ONLY))
            }
        own = {} if wanted.own is None else message_attributes.from_stored(stored, wanted.own)
        if is_encoded:
            own[message_attributes.ENCODING] = message_attributes.BASE64
        if own:
            message.message_attributes = own
            message.md5_of_message_attributes = message_attributes.checksum(own)
        elif wanted.own is not None and message_attributes.has_own(stored):
            message.message_attributes = own  # it has some, and none that was asked for

    def _system_attributes(
        self, delivered: DeliveredMessage, origin: Origin | None, stored: Attributes
    ) -> dict[str, str | None]:
        chunk = delivered.run.chunk
        sent_ms, receives, source = chunk.sent_ms, delivered.attempt, None
        reason = failed_receives = None
        if origin is not None:
            sent_ms = origin.sent_ms
            if self._is_dead_letter(origin, delivered.queue):
                receives += origin.attempts
                source = self.arns.of(origin.queue)
                failed_receives = str(origin.attempts)
                reason = (origin.failures[-1].error or None) if origin.failures else None
        return {
            "SenderId": str(stored.get(message_attributes.STORED_SENDER, ANONYMOUS_SENDER)),
            "SentTimestamp": str(sent_ms),
            "ApproximateReceiveCount": str(receives),
            "ApproximateFirstReceiveTimestamp": str(delivered.first_ms),
            "SequenceNumber": sequence_number(chunk.base + delivered.position) if delivered.is_fifo else None,
            "MessageDeduplicationId": chunk.dedup_id(delivered.position) if delivered.is_fifo else None,
            "MessageGroupId": chunk.group(delivered.position),
            "AWSTraceHeader": _optional_text(stored.get(message_attributes.STORED_TRACE_HEADER)),
            "DeadLetterQueueSourceArn": source,
            "PenstockDeadLetterReason": reason,
            "PenstockDeadLetterReceiveCount": failed_receives,
        }

    def _is_dead_letter(self, origin: Origin, queue: str) -> bool:
        """Whether a message is where its source sends dead letters, and not where it was moved to from there."""
        source = self.config(origin.queue)
        if source is None:
            return origin.queue != queue
        return queue == (source.dead_letter or dead_letter_name(origin.queue))


class DeliveredMessage(NamedTuple):
    queue: str
    run: Run
    offset: int
    attempt: int
    is_fifo: bool

    @property
    def position(self) -> int:
        """Its place in its chunk."""
        return self.run.start + self.offset

    @property
    def first_ms(self) -> int:
        """When it was handed out first."""
        first_ms = self.run.first_ms
        return first_ms if isinstance(first_ms, int) else int(first_ms[self.offset])


def texts_of(bodies: list[bytes]) -> list[str]:
    """Bodies as texts; `NOT_TEXT` for one that SQS could not carry: it may have come through another front end.

    >>> texts_of([b"text", b"\\x00", b"\\xff"])
    ['text', '\\x00', '\\x00']
    """
    texts: list[str] = []
    for body in bodies:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = NOT_TEXT
        if not text.isprintable() and message_attributes.not_allowed_in(text) is not None:
            text = NOT_TEXT
        texts.append(text)
    return texts


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)
